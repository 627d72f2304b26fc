"""``Upload``: copy the run's folder to remote storage during training."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from hookline.callbacks.saving._remote import UploadQueue, UploadReport
from hookline.checkpoint.lock import NAME as LOCK
from hookline.checkpoint.names import MANIFEST, is_ours
from hookline.checkpoint.remote import RemoteFolder, check_address
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback
from hookline.progress import Duration, Schedule
from hookline.records.redact import redact_text
from hookline.run.paths import is_address

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

LIVE = ("metrics.jsonl", "events.jsonl", "steps.bin", "log.txt", "run.json")
"""Files that grow during training."""
WAIT_AFTER_SIGNAL = 10.0
"""Maximum seconds to wait after a signal, because the system will kill the process."""


class Upload(Callback):
    """Copy the run's folder to remote storage in the background.

    The files go to ``<to>/<project>/<name>/``. A checkpoint is uploaded when it is saved, its manifest last. Everything
    else follows when ``fit`` ends, also after an error or a signal. The callback never blocks or fails training: after
    the run it logs what was not uploaded and why, and ``report`` has the same.

    ``hl.Trainer(folder="s3://…")`` adds ``Upload()`` itself. Give your own to change its options.

    Args:
        to: Any address of fsspec: ``"s3://bucket/runs"``, ``"gs://…"``, ``"sftp://…"`` or a folder. Needs
            ``hookline[upload]``, and ``hookline[s3]`` for S3. ``None``: the address given as ``folder=`` of the run.
        files: Patterns of paths to upload, such as ``("checkpoints/*", "metrics.jsonl")``.
        exclude: Patterns of paths not to upload.
        every: How often to upload ``metrics.jsonl`` and the other files that grow, in addition to each checkpoint.
        queue: Maximum number of waiting items. If there are more, the oldest wait until the end of the run.
        wait: Maximum seconds to wait for uploads at the end of the run. After a signal at most 10.
        options: Options for fsspec, such as ``{"endpoint_url": "http://…"}``.

    Raises:
        ArgumentError: If an argument is invalid, or the address contains a password.
        SetupError: If a package is missing.

    Example:
        >>> import tempfile, torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        ...     trainer = Trainer(max_duration="1ep", folder=here, name="digits/first", callbacks=[Upload(there)])
        ...     result = trainer.fit(
        ...         TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
        ...     )
        ...     print(sorted(path.name for path in Path(there, "digits/first").iterdir()))
        ['events.jsonl', 'metrics.jsonl', 'run.json', 'steps.bin']
    """

    optional = True
    in_replay = False
    ranks = "zero"
    reads = ("*",)
    """The callback runs last, after the others have written their files."""

    def __init__(
        self,
        to: str | os.PathLike[str] | None = None,
        *,
        files: str | Iterable[str] = ("*",),
        exclude: str | Iterable[str] = (),
        every: str | Duration = "5m",
        queue: int = 100,
        wait: float = 60.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if queue < 1:
            raise ArgumentError(f"Upload(queue={queue!r}): must be >= 1.")
        if wait < 0:
            raise ArgumentError(f"Upload(wait={wait!r}): must be >= 0.")
        if isinstance(to, os.PathLike) and is_address(to):
            raise ArgumentError(
                f"Upload(to={redact_text(os.fspath(to))!r}): this is an address, of which pathlib has made a path. "
                f"Give it as a string."
            )
        if to is None and options:
            raise ArgumentError(
                f"Upload(options={{{', '.join(sorted(options))}}}): without to=, the run is also downloaded from the "
                f"address of folder=, so give options in fsspec's configuration: FSSPEC_S3_ENDPOINT_URL=http://…"
            )
        self.to = None if to is None else check_address(os.fspath(to), "to", "Upload")
        self.files = _patterns("files", files)
        self.exclude = _patterns("exclude", exclude)
        self.every = Duration.parse(every, "Upload(every=…)")
        self.queue = queue
        self.wait = wait
        self.options = dict(options or {})
        self.report: UploadReport | None = None
        """Result of the uploads of the last ``fit``."""
        self._address = ""
        """The address for messages."""
        self._queue: UploadQueue | None = None
        self._schedule: Schedule | None = None

    @property
    def is_mirror(self) -> bool:
        """True if the run's folder is copied to the address that was given as ``folder=``."""
        return self.to is None

    # -- when ----------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        self._queue = self._schedule = None
        if not run.is_training_run:
            return
        self.report = None
        if not run.has_folder:
            logger.warning("Upload does nothing: this run has no folder (folder=False)")
            return
        address = run.remote_folder if self.to is None else f"{self.to}/{run.project}/{run.name}"
        if address is None:
            raise SetupError(
                "Upload(): the folder of this run is local. Give Upload('s3://bucket/runs'), or an address as folder=."
            )
        self._address = redact_text(self.to or address)
        self._queue = UploadQueue(RemoteFolder(address, self.options), run.folder, max_waiting=self.queue)
        if self.every.unit != "dur" or run.max_duration is not None:
            self._schedule = Schedule(self.every.of(run.max_duration))

    def on_fit_start(self, run: Run) -> None:
        if self._schedule is not None:
            self._schedule.fired(run.clock)

    def on_checkpoint_saved(self, run: Run) -> None:
        if self._queue is not None and run.checkpoint.is_relative_to(run.folder):
            if self._is_wanted(run.checkpoint.relative_to(run.folder).as_posix()):
                self._put_rows(run, self._queue)
                self._queue.put(run.checkpoint)
            self._warn_once(self._queue)

    def on_metrics_ready(self, run: Run) -> None:
        self._upload_live(run)

    def on_epoch_end(self, run: Run) -> None:
        self._upload_live(run)

    def _upload_live(self, run: Run) -> None:
        """Queue the files that grow, if an upload is due."""
        if self._queue is None or self._schedule is None or not self._schedule.due(run.clock):
            return
        self._schedule.fired(run.clock)
        self._put_rows(run, self._queue)
        self._warn_once(self._queue)

    def _put_rows(self, run: Run, queue: UploadQueue) -> None:
        """Queue the files that grow. A resume from a checkpoint needs its rows, so they are uploaded before it."""
        for name in LIVE:
            if self._is_wanted(name) and (run.folder / name).exists():
                queue.put(run.folder / name)

    def on_teardown(self, run: Run) -> None:
        queue, self._queue = self._queue, None
        if queue is None:
            return
        by_signal = run.ending is not None and run.ending.kind == "signal"
        wait = min(self.wait, WAIT_AFTER_SIGNAL) if by_signal else self.wait
        end = monotonic() + wait
        self._finish(queue, run.folder, end)
        run.when_written(lambda folder: self._finish_later(queue, folder, end))

    def _finish_later(self, queue: UploadQueue, folder: Path, end: float) -> None:
        """Upload the final ``run.json`` and the report, which are written after the last hook."""
        if self.report is not None and not self.report.hung:
            self._finish(queue, folder, end)
        self._log_report()

    # -- what ----------------------------------------------------------------------------------

    def _finish(self, queue: UploadQueue, folder: Path, end: float) -> None:
        """Queue everything that is wanted and wait for the uploads until ``end``."""
        for path in self._found(folder):
            queue.put(path, last=True)
        self.report = queue.finish(max(0.0, end - monotonic()))

    def _found(self, folder: Path) -> Iterator[Path]:
        """Yield the complete files and checkpoints of the run that are wanted."""
        for here, folders, names in os.walk(folder):
            path = Path(here)
            if MANIFEST in names and path != folder:
                folders.clear()
                if self._is_wanted(path.relative_to(folder).as_posix()):
                    yield path
                continue
            folders[:] = sorted(name for name in folders if not _is_unfinished(name))
            for name in sorted(names):
                if not _is_unfinished(name) and self._is_wanted((path / name).relative_to(folder).as_posix()):
                    yield path / name

    def _is_wanted(self, name: str) -> bool:
        """True if a path matches ``files`` and does not match ``exclude``."""

        def matches(pattern: str) -> bool:
            return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*")

        return any(map(matches, self.files)) and not any(map(matches, self.exclude))

    # -- log messages --------------------------------------------------------------------------

    def _warn_once(self, queue: UploadQueue) -> None:
        """Warn about the first error of the run, once."""
        if trouble := queue.trouble():
            logger.warning("Upload to %s: %s; it is tried again, and training continues", self._address, trouble)

    def _log_report(self) -> None:
        """Log the report."""
        if self.report is not None:
            log = logger.info if self.report.is_well else logger.warning
            log("Upload to %s: %s", self._address, self.report)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, which has no thread."""
        return {**self.__dict__, "_queue": None}


def _patterns(argument: str, given: Any) -> tuple[str, ...]:
    """Return the argument as a tuple of patterns."""
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(pattern, str) for pattern in found):
        raise ArgumentError(
            f"Upload({argument}={given!r:.80}): give a pattern as a string, such as 'checkpoints/*', or a list of them"
        )
    return found


def _is_unfinished(name: str) -> bool:
    """True if a name is hidden, temporary or the lock of the run."""
    return name.startswith(".") or is_ours(name) or name == LOCK
