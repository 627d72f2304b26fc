"""``WandB``: a run of Weights & Biases, offline by default."""

from __future__ import annotations

import html
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from hookline.errors import SetupError
from hookline.events.arguments import checked_init
from hookline.records import EventRow, FileRow, HistogramRow, ImageRow, MetricRow, Record, TableRow, TextRow
from hookline.records.finding import Finding
from hookline.run.paths import in_run_folder, path_to_write
from hookline.sinks.names import Keys
from hookline.sinks.sink import RunInfo

logger = logging.getLogger("hookline")

Mode = Literal["offline", "online", "disabled"]

SETTINGS: Mapping[str, Any] = {
    "reinit": "create_new",  # An open run of the user is not affected.
    "silent": True,
    "console": "off",
    "label_disable": True,
    "disable_code": True,
    "save_code": False,
    "disable_git": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": 1.0,  # A killed process loses at most one second.
}
"""No output, no threads that measure, no environment.

``run.json`` has the environment with secrets redacted.
"""

EXIT_CODES = {"exception": 1, "interrupt": 255, "preempt": 143}
"""Exit code for W&B after an event. Otherwise it is 0. W&B shows 255 as killed."""

MOST_BINS = 512
"""Maximum number of bins that W&B accepts in a histogram."""


class WandB:
    """Write all records to Weights & Biases, offline unless you ask for ``"online"``.

    An offline run needs no network and no login. ``wandb sync`` uploads it later. Every chart has ``step`` as
    its x-axis. The sink needs ``hookline[wandb]``.

    Args:
        project: Name of the project. ``None``: ``$WANDB_PROJECT``, or the project of the run.
        mode: ``"offline"``, ``"online"`` or ``"disabled"``. ``None``: ``$WANDB_MODE``, or offline.
        folder: Folder in which W&B creates ``wandb/``. ``None``: ``$WANDB_DIR``, or the run's folder. A relative
            path is relative to the run's folder.
        entity: User or team that owns the project.
        tags: Tags of the run.
        settings: Fields of ``wandb.Settings``, such as ``{"run_group": "sweep 7"}``. They override the settings
            of this sink.

    Raises:
        SetupError: If wandb is not installed.
        ArgumentError: If an argument is invalid.

    Example:
        >>> WandB("digits", tags=["baseline"]).mode is None
        True
    """

    @checked_init
    def __init__(
        self,
        project: str | None = None,
        *,
        mode: Mode | None = None,
        folder: str | os.PathLike[str] | None = None,
        entity: str | None = None,
        tags: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        try:  # The import takes a second. A short run would end before its sink has started.
            import wandb  # noqa: F401
        except ImportError as error:
            raise SetupError(f"WandB(): wandb is missing ({error}): pip install 'hookline[wandb]'") from error
        self.project, self.mode, self.entity = project, mode, entity
        self.folder = None if folder is None else path_to_write(folder, "folder", "WandB")
        """Folder as the user gave it. A relative path is relative to the run's folder."""
        self.needs_folder = self.folder is not None and not self.folder.is_absolute()
        self.tags = tuple(tags)
        self.settings = dict(settings or {})
        self._run: Any = None
        self._keys = Keys("names/", {})
        self._folder: Path | None = None
        self._is_mine = False  # True if this sink has started W&B's service process, which runs can share.
        self._exit_code = 0
        self._batch: Sequence[Record] = ()
        self._taken = 0

    def preflight(self) -> list[Finding]:
        """Return a finding if the sink would upload, and no API key is known."""
        import wandb

        mode = self.mode or os.environ.get("WANDB_MODE") or "offline"
        if mode != "online" or wandb.api.api_key:
            return []
        advice = "Run `wandb login`, set WANDB_API_KEY, or write WandB(mode='offline')."
        return [Finding("warning", "sink", "WandB(mode='online') has no API key.", advice)]

    def start(self, info: RunInfo) -> None:
        self._end()  # Clean up after a start that failed.
        import wandb

        given = None if self.folder is None else in_run_folder(self.folder, info.folder, "folder", "WandB")
        if given is not None:
            given.mkdir(parents=True, exist_ok=True)  # W&B does not create the folder.
        self._folder, self._exit_code, self._keys = info.folder, 0, Keys("names/", {})
        mode = self.mode or os.environ.get("WANDB_MODE") or "offline"
        known = {name: value for name, value in SETTINGS.items() if name in wandb.Settings.model_fields}
        self._is_mine = "WANDB_SERVICE" not in os.environ
        try:
            with _no_traces(quiet=mode == "offline"):
                if self._is_mine:  # Without silent, an online run would ask for a login.
                    wandb.setup(wandb.Settings(silent=True))
                self._run = wandb.init(
                    id=info.run_id,
                    resume="allow",
                    project=self.project or os.environ.get("WANDB_PROJECT") or info.project,
                    name=info.name,
                    dir=given or os.environ.get("WANDB_DIR") or info.folder,
                    entity=self.entity,
                    tags=self.tags or None,
                    config=dict(info.config),
                    settings=wandb.Settings(**{**known, "mode": mode, **self.settings}),
                )
            self._run.define_metric("step", hidden=True)
            self._run.define_metric("epoch", hidden=True)
            self._run.define_metric("*", step_metric="step")
        except BaseException:
            self._end()
            raise

    def write(self, records: Sequence[Record]) -> None:
        if records is not self._batch:  # On a retry, skip the records that W&B already has.
            self._batch, self._taken = records, 0
        with TemporaryDirectory(prefix="hookline-") as folder:
            while self._taken < len(records):
                self._taken += self._write_some(records[self._taken :], Path(folder))
        self._batch = ()

    def flush(self) -> None:
        """Do nothing: the process of W&B has every row, and writes its file each second."""

    def close(self) -> None:
        if self._run is not None and self._run.offline:
            logger.info("Weights & Biases: nothing was sent; to send it: wandb sync %s", Path(self._run.dir).parent)
        self._end()

    # -- rows ----------------------------------------------------------------------------------

    def _write_some(self, records: Sequence[Record], folder: Path) -> int:
        """Write one event, one file, or the values of one step. Return the number of records."""
        first = records[0]
        if isinstance(first, EventRow):
            self._exit_code = EXIT_CODES.get(first.name, self._exit_code)
            self._run.summary[f"events/{first.name}"] = f"step {first.step}" + (f": {first.text}" if first.text else "")
            return 1
        if isinstance(first, FileRow):
            self._save(first)
            return 1
        row: dict[str, Any] = {}
        count = 0
        for record in records:
            if isinstance(record, EventRow | FileRow) or record.step != first.step:
                break
            key = record.name if isinstance(record, MetricRow | HistogramRow) else self._key(record.name)
            if key in row:
                break
            row[key] = self._value(record, folder / f"{count}.png")
            count += 1
        self._run.log({**row, "step": first.step, "epoch": first.epoch})
        return count

    def _key(self, name: str) -> str:
        """Return a safe key for a record in a file, because W&B uses the name as a path."""
        key = self._keys(name)
        if self._keys.new_tags:
            self._run.summary.update(self._keys.new_tags)
            self._keys.new_tags.clear()
        return key

    def _value(self, record: MetricRow | ImageRow | TextRow | TableRow | HistogramRow, png: Path) -> Any:
        """Return the value as a W&B object. A small array stays nested lists."""
        import wandb

        match record:
            case ImageRow():
                png.write_bytes(record.read(self._folder))
                return wandb.Image(str(png), caption=record.caption or None)
            case TextRow():
                return wandb.Html(f"<pre>{html.escape(record.text)}</pre>", inject=False, data_is_not_path=True)
            case TableRow():
                rows = [list(row) for row in record.rows]
                return wandb.Table(columns=list(record.columns), data=rows, allow_mixed_types=True)
            case HistogramRow():
                return wandb.Histogram(np_histogram=_coarser(record.counts, record.edges))
        return record.value

    def _save(self, row: FileRow) -> None:
        """Save a copy of a file. Without a copy, W&B would only create a link and print a message."""
        path = Path(row.file) if self._folder is None else self._folder / row.file
        copy = Path(self._run.dir) / "files" / self._key(row.name) / path.name
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        except OSError as error:
            logger.warning("Weights & Biases does not get the file %s: %s", row.name, error)
            return
        self._run.save(str(copy), base_path=self._run.dir, policy="now", glob=False)

    # -- the session ---------------------------------------------------------------------------

    def _end(self) -> None:
        """Finish the run, and stop the service process of W&B if no other run uses it."""
        run, self._run = self._run, None
        try:
            if run is not None:
                run.finish(exit_code=self._exit_code)
        finally:
            mine, self._is_mine = self._is_mine, False
            if mine:
                _end_session(run)


def _end_session(run: Any) -> None:
    """Stop the service process of W&B, unless another run uses it."""
    import wandb

    if wandb.setup().most_recent_active_run in (None, run):  # A run that could not be finished is still active.
        try:
            wandb.teardown()
        except SystemExit as error:  # SystemExit would end the thread silently.
            raise RuntimeError(f"W&B's service process ended with code {error.code}") from error


@contextmanager
def _no_traces(*, quiet: bool) -> Iterator[None]:
    """Restore ``sys.exit`` and ``sys.excepthook``, which W&B replaces.

    Args:
        quiet: Also disable the error reports of W&B, unless the environment configures them.
    """
    name = "WANDB_ERROR_REPORTING"
    before = sys.exit, sys.excepthook
    quiet = quiet and name not in os.environ
    if quiet:
        os.environ[name] = "false"
    try:
        yield
    finally:
        sys.exit, sys.excepthook = before
        if quiet:
            os.environ.pop(name, None)


def _coarser(counts: Sequence[int], edges: Sequence[float]) -> tuple[list[int], list[float]]:
    """Return a histogram with 1 to ``MOST_BINS`` bins, by merging neighbors."""
    if not counts:
        return [0], [0.0, 0.0]
    many = -(-len(counts) // MOST_BINS)
    sums = [sum(counts[start : start + many]) for start in range(0, len(counts), many)]
    return sums, [*edges[:-1:many], edges[-1]]
