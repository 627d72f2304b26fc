"""``MLPerfLog``: a log in the public format of the MLPerf training benchmarks."""

from __future__ import annotations

import json
import math
import os
import platform as machine
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hookline.callbacks._ending import was_cut_short
from hookline.callbacks._monitor import check_metric_name, monitor_mode, monitored_value
from hookline.callbacks._paths import written_path
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import Run

DIVISIONS = ("open", "closed")
STATUSES = ("onprem", "cloud", "preview", "research")

EventType = Literal["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]
TOKEN = ":::MLLOG"


class MLPerfLog(Callback):
    """Write a log in the format of the MLPerf training benchmarks.

    The file ``mlperf/result_0.txt`` in the run's folder has the ``:::MLLOG {…}`` lines that the rules require,
    and passes the compliance checker of MLPerf. The callback does not stop training when the target is reached:
    use ``StopAtThreshold``. It is not optional: if the log cannot be written, the run stops.

    Args:
        benchmark: Name of the benchmark, for ``submission_benchmark``.
        organization: Name of the submitter, for ``submission_org``.
        platform: Name of the system, for ``submission_platform``. ``None``: the host name.
        division: ``"open"`` or ``"closed"``.
        status: ``"onprem"``, ``"cloud"``, ``"preview"`` or ``"research"``.
        monitor: Metric that is logged as ``eval_accuracy``.
        target: Value of ``monitor`` from which on the status in ``run_stop`` is ``"success"``; otherwise it is
            ``"aborted"``. ``None``: ``"success"`` if training reaches its planned end.
        mode: ``"min"`` or ``"max"``. Inferred from the name of ``monitor`` when possible. Used only with
            ``target``.
        path: Path of the log. A relative path is relative to the run's folder. A new run needs a file that does
            not exist.
        cache_clear: Function that clears the caches of the system. It is called before the run starts.
        extra: Additional lines by key, or other values for the lines that the callback writes. The closed
            division requires additional lines for each benchmark.

    Raises:
        ArgumentError: If an argument is empty or unknown, or if ``mode`` cannot be inferred.
        SetupError: When the run starts, if the file at ``path`` belongs to another run.

    Example:
        >>> import torch
        >>> from tempfile import mkdtemp
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> folder = mkdtemp()
        >>> log = MLPerfLog("bert", organization="Us", monitor="val/loss", target=0.1)
        >>> trainer = Trainer(max_duration="1ep", callbacks=[log], folder=folder)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        >>> lines = Path(folder, "mlperf/result_0.txt").read_text().splitlines()
        >>> lines[0].startswith(':::MLLOG {"namespace": "", "time_ms": '), lines[-1].endswith('{"status": "aborted"}}')
        (True, True)
    """

    ranks = "zero"
    state = ("lines", "has_started", "epoch", "told", "has_reached", "measured_at")
    state_depends_on = ("benchmark", "monitor", "mode", "target", "path")

    def __init__(
        self,
        benchmark: str,
        *,
        organization: str,
        platform: str | None = None,
        division: Literal["open", "closed"] = "open",
        status: Literal["onprem", "cloud", "preview", "research"] = "onprem",
        monitor: str = "val/acc",
        target: float | None = None,
        mode: Literal["min", "max"] | None = None,
        path: str | os.PathLike[str] | None = None,
        cache_clear: Callable[[], object] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        for name, text in (("benchmark", benchmark), ("organization", organization), ("platform", platform)):
            if text is not None and not text.strip():
                raise ArgumentError(f"MLPerfLog({name}={text!r}): must not be empty.")
        self.benchmark = benchmark
        self.organization = organization
        self.platform = platform
        self.division = division
        self.status = status
        self.monitor = monitor
        self.target = target
        check_metric_name(f"MLPerfLog(monitor={monitor!r})", monitor)
        self.mode = None if target is None else monitor_mode("MLPerfLog", monitor, mode)
        self.path = None if path is None else path_to_write(path, "path", "MLPerfLog")
        self.cache_clear = cache_clear
        self.extra = dict(extra or {})
        self.reads = (monitor,)
        self.lines = 0
        """Number of lines in the log without ``run_stop``, which is removed when the run is resumed."""
        self.has_started = self.has_reached = False
        self.epoch = 0
        """Number of the current or last epoch. The first epoch is 1."""
        self.told: tuple[str, ...] = ()
        """Keys that a log has once and that were written."""
        self.measured_at: int | None = None
        """Step of the value in the last ``eval_accuracy``."""
        self._file: Path | None = None
        self._setup_ms = 0

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({"measured_at": None, **state})  # Older checkpoints lack this key.

    # -- the run -------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        if run.clock.step == 0:
            self.reset_state()  # A state that was loaded by hand counts the lines of another file.
        self._file, self._setup_ms = None, now_ms()
        if run.is_training_run:
            self._file = self._place(run)
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a"):  # Fail now if the file cannot be written.
                pass

    def _place(self, run: Run) -> Path:
        """Return the path of the log."""
        return written_path(run, self.path or Path("mlperf", "result_0.txt"), "path", "MLPerfLog")

    def on_fit_start(self, run: Run) -> None:
        if self._file is None:
            return
        if not self.lines and self.path is not None and self._file.stat().st_size:
            raise SetupError(f"MLPerfLog(path={str(self.path)!r}): there is such a file; a log is of one run only")
        cut(self._file, self.lines)
        if not self.lines:
            self._introduce(run)

    def on_train_start(self, run: Run) -> None:
        if self._file is not None and not self.has_started:
            self.has_started = True
            self._describe(run)
            self._write("INTERVAL_END", "init_stop")
            self._write("INTERVAL_START", "run_start")

    def on_train_end(self, run: Run) -> None:
        self._stop(has_reached=not was_cut_short(run) if self.target is None else self.has_reached)

    def on_exception(self, run: Run) -> None:
        self._stop(has_reached=False)

    def on_teardown(self, run: Run) -> None:
        self._file = None

    def on_rollback(self, run: Run) -> None:
        if self._file is not None:
            cut(self._file, self.lines)

    def _stop(self, *, has_reached: bool) -> None:
        """Write ``run_stop`` with the status."""
        if self._file is not None and self.has_started:
            metadata = {"status": "success" if has_reached else "aborted"}
            append(self._file, line("INTERVAL_END", "run_stop", None, metadata, now_ms()))
            self._file = None

    # -- lines that a log has once ---------------------------------------------------------------

    def _introduce(self, run: Run) -> None:
        """Write the lines about the submission."""
        self._write("INTERVAL_START", "init_start", time_ms=self._setup_ms)
        if self.cache_clear is not None:
            self.cache_clear()
        self._once("cache_clear", self.cache_clear is not None)
        self._once("submission_benchmark", self.benchmark)
        self._once("submission_org", self.organization)
        self._once("submission_division", self.division)
        self._once("submission_status", self.status)
        self._once("submission_platform", self.platform or machine.node() or "unknown")

    def _describe(self, run: Run) -> None:
        """Write the lines about data, batch size and optimizer."""
        train, val = run.loaders.get("train"), run.loaders.get("val")
        size = getattr(train, "batch_size", None)
        accumulate = run.accumulate
        optimizer = next(iter(run.optimizers.values()), None)
        known = {
            "seed": run.config.get("seed"),
            "global_batch_size": None if size is None else size * accumulate * run.world_size,
            "gradient_accumulation_steps": accumulate,
            "train_samples": _samples(train),
            "eval_samples": _samples(val),
            "opt_name": None if optimizer is None else type(optimizer).__name__.lower(),
            "opt_base_learning_rate": None if optimizer is None else float(optimizer.param_groups[0]["lr"]),
        }
        for key, value in (known | self.extra).items():
            if value is not None:
                self._once(key, value)

    def _once(self, key: str, value: Any) -> None:
        """Write a line, unless the log already has its key."""
        if key not in self.told:
            self.told = (*self.told, key)
            self._write("POINT_IN_TIME", key, self.extra.get(key, value))

    # -- epochs and evaluations ------------------------------------------------------------------

    def on_train_epoch_start(self, run: Run) -> None:
        self.epoch = run.clock.epoch + 1
        self._write("INTERVAL_START", "block_start", first_epoch_num=self.epoch, epoch_count=1)
        self._write("INTERVAL_START", "epoch_start", epoch_num=self.epoch)

    def on_train_epoch_end(self, run: Run) -> None:
        if run.clock.epoch == self.epoch:  # Skip an epoch that was cut short.
            self._once("train_samples", run.clock.sample_in_epoch)
            self._write("INTERVAL_END", "epoch_stop", epoch_num=self.epoch)
            self._write("INTERVAL_END", "block_stop", first_epoch_num=self.epoch)

    def on_eval_start(self, run: Run) -> None:
        if run.stage == "val":
            self._write("INTERVAL_START", "eval_start", **self._where(run))

    def on_eval_end(self, run: Run) -> None:
        if run.stage != "val" or self._file is None:
            return
        value = monitored_value(run, "MLPerfLog", self.monitor)
        measured_at = run.metrics.step_of(self.monitor)
        is_new = measured_at != self.measured_at
        if value is not None and self.target is not None:
            self.has_reached |= value <= self.target if self.mode == "min" else value >= self.target
        self._once("eval_samples", run.clock.eval.sample)
        if value is not None and is_new:
            self.measured_at = measured_at
            self._write("POINT_IN_TIME", "eval_accuracy", float(value), **self._where(run))
        self._write("INTERVAL_END", "eval_stop", **self._where(run))

    def _where(self, run: Run) -> dict[str, int]:
        """Return the epoch and the number of samples so far."""
        return {"epoch_num": self.epoch, "samples_count": run.clock.sample}

    def _write(
        self, kind: EventType, key: str, value: Any = None, *, time_ms: int | None = None, **metadata: Any
    ) -> None:
        """Append a line and count it."""
        if self._file is not None:
            append(self._file, line(kind, key, value, metadata, now_ms() if time_ms is None else time_ms))
            self.lines += 1


def _samples(loader: Any) -> int | None:
    """Return the number of samples per epoch, or ``None`` if the dataset has no length."""
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError, NotImplementedError):
        return None


def now_ms() -> int:
    """Return the time of day in milliseconds."""
    return int(time.time() * 1000)


def line(kind: EventType, key: str, value: Any, metadata: dict[str, Any], time_ms: int) -> str:
    """Return one line. A number that is not finite becomes ``null``.

    Example:
        >>> print(line("POINT_IN_TIME", "lr", 1, {}, 5))
        :::MLLOG {"namespace": "", "time_ms": 5, "event_type": "POINT_IN_TIME", "key": "lr", "value": 1, "metadata": {}}
    """
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    parts = {
        "namespace": "",
        "time_ms": time_ms,
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": metadata,
    }
    return f"{TOKEN} {json.dumps(parts, allow_nan=False)}"


def append(path: Path, text: str) -> None:
    """Append a line and close the file, so that a killed process loses no line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def cut(path: Path, lines: int) -> None:
    """Keep the first lines.

    The others belong to steps after the checkpoint that the run resumes from.
    """
    found = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    if len(found) < lines:
        raise SetupError(
            f"MLPerfLog: {path} has {len(found)} lines, and the resumed run had written {lines}: restore the "
            f"file of that run, or begin a new run"
        )
    if len(found) > lines or not path.exists():
        path.write_text("".join(found[:lines]), encoding="utf-8")
