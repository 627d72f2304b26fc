"""``TorchProfiler``: record steps with ``torch.profiler``."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from hookline.callbacks._paths import check_folder, output_folder
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class TorchProfiler(Callback):
    """Record a few steps with ``torch.profiler`` and write a trace and a table.

    The trace (``train-00000005-rank0.pt.trace.json.gz``) opens at https://ui.perfetto.dev or in TensorBoard. The
    table (``train-00000005-rank0.txt``) lists the slowest operators and is logged as the text ``profile/operators``.
    A fit records training and its evaluations. In ``evaluate``, ``test`` and ``predict``, a profiler step is one
    batch. If the run ends early, the callback writes what was recorded until then.

    Args:
        profiler: A ``torch.profiler.profile`` that has not been started. Its schedule and ``on_trace_ready`` are
            used. ``None``: make a profiler from the other arguments.
        wait: Number of steps to skip in each cycle.
        warmup: Number of steps to record and discard in each cycle.
        active: Number of steps to record and keep in each cycle.
        repeat: Number of cycles. 0: until the run ends.
        skip_first: Number of steps before the first cycle.
        record_shapes: Record the shapes of operator inputs.
        profile_memory: Record memory allocations.
        with_stack: Record source lines.
        rows: Number of rows of the table.
        folder: Folder for the files. A relative path is in the run's folder. ``None``: ``profile/`` in the run's
            folder.

    Raises:
        ArgumentError: If a number is out of range, or ``profiler`` is not a profiler.
        SetupError: If ``folder`` is not writable, or the run has two ``TorchProfiler`` callbacks.

    Example:
        >>> import torch
        >>> from pathlib import Path
        >>> from tempfile import mkdtemp
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> folder = mkdtemp()
        >>> trainer = Trainer(max_duration="2ep", callbacks=[TorchProfiler(active=2)], folder=folder)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> sorted(path.name for path in Path(folder, "profile").iterdir())
        ['train-00000004-rank0.pt.trace.json.gz', 'train-00000004-rank0.txt']
    """

    optional = True
    writes = ("profile/*",)
    state = ("steps",)

    def __init__(
        self,
        profiler: torch.profiler.profile | None = None,
        *,
        wait: int = 1,
        warmup: int = 1,
        active: int = 3,
        repeat: int = 1,
        skip_first: int = 0,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        rows: int = 20,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if profiler is not None and not (hasattr(profiler, "start") and hasattr(profiler, "on_trace_ready")):
            raise ArgumentError(f"TorchProfiler(profiler={profiler!r}): must be a torch.profiler.profile.")
        least = {"wait": 0, "warmup": 0, "active": 1, "repeat": 0, "skip_first": 0, "rows": 1}
        given = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat, "skip_first": skip_first}
        for name, value in {**given, "rows": rows}.items():
            if value < least[name]:
                raise ArgumentError(f"TorchProfiler({name}={value!r}): must be >= {least[name]}.")
        self.profiler = profiler
        self.schedule = given
        self.record_shapes = record_shapes
        self.profile_memory = profile_memory
        self.with_stack = with_stack
        self.rows = rows
        self.folder = None if folder is None else path_to_write(folder, "folder", "TorchProfiler")
        self.steps = 0
        """Number of profiler steps in this fit, including those before a resume."""
        cycle = wait + warmup + active
        self._last = skip_first + cycle * repeat if repeat and profiler is None else float("inf")
        self._active: Any = None
        self._run: Any = None
        self._recorded = 0
        """Number of traces in this fit."""

    def on_setup(self, run: Run) -> None:
        if any(isinstance(other, TorchProfiler) and other is not self for other in run.callbacks):
            raise SetupError("there are two TorchProfilers, and torch can have one at a time: leave one of them out")
        check_folder(run, self.folder, "TorchProfiler")

    def on_train_step_end(self, run: Run) -> None:
        if self._active is not None:
            self._step()

    def on_eval_batch_end(self, run: Run) -> None:
        if self._active is not None:
            self._step()

    def on_predict_batch_end(self, run: Run) -> None:
        if self._active is not None:
            self._step()

    def around_train(self, run: Run) -> Iterator[None]:
        if self.steps >= self._last:
            # The schedule ended before the resume.
            yield
        else:
            yield from self._recording(run)

    def around_eval(self, run: Run) -> Iterator[None]:
        yield from self._alone(run)

    def around_predict(self, run: Run) -> Iterator[None]:
        yield from self._alone(run)

    def on_teardown(self, run: Run) -> None:
        if run.is_training_run and not self._recorded and 0 < self.steps < self._last:
            logger.warning("TorchProfiler recorded nothing: the run ended at its step %d, too early", self.steps)

    # -- recording -----------------------------------------------------------------------------

    def _alone(self, run: Run) -> Iterator[None]:
        """Record an evaluation or prediction, unless it is part of a fit."""
        if run.is_training_run:
            yield
            return
        steps, self.steps = self.steps, 0
        try:
            yield from self._recording(run)
        finally:
            # Keep the steps of the fit.
            self.steps = steps

    def _recording(self, run: Run) -> Iterator[None]:
        """Record a stage."""
        # PyTorch would not raise, and would mix the results of the two profilers.
        if torch._C._autograd._profiler_enabled():
            raise SetupError("TorchProfiler: another profiler is recording already; torch can have one at a time")
        profiler = self._make(run) if self.profiler is None else self.profiler
        # After a resume, the schedule continues where the other process stopped.
        if self.steps and profiler.step_num == 0:
            profiler.step_num = self.steps
            profiler.current_action = profiler.schedule(self.steps)  # type: ignore[assignment]  # Any action fits.
        own_handler = profiler.on_trace_ready
        profiler.on_trace_ready = self._writer(own_handler)
        self._run = run
        with _quietly():
            profiler.start()
        self._active = profiler
        try:
            yield
        finally:
            try:
                self._stop()
            finally:
                profiler.on_trace_ready = own_handler
                self._run = None

    def _step(self) -> None:
        """Step the profiler, and stop it after the last cycle."""
        self.steps += 1
        if self.profiler is None:
            with _quietly():
                self._active.step()
        else:
            self._active.step()
        # A profiler step costs time even after the last cycle.
        if self.steps >= self._last:
            self._stop()

    def _stop(self) -> None:
        """Stop the profiler if it is active."""
        profiler, self._active = self._active, None
        if profiler is not None:
            profiler.stop()

    def _make(self, run: Run) -> torch.profiler.profile:
        """Make a profiler for the device of the run."""
        kinds = {"cuda": "CUDA", "xpu": "XPU", "hpu": "HPU", "mtia": "MTIA"}
        wanted = {"CPU", kinds.get(run.device.type, "CPU")}
        supported: Any = torch.profiler.supported_activities
        return torch.profiler.profile(
            activities=[kind for kind in supported() if kind.name in wanted],
            schedule=torch.profiler.schedule(**self.schedule),
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
        )

    def _writer(self, own_handler: Callable[[Any], Any] | None) -> Callable[[Any], None]:
        """Return the handler of a finished trace."""

        def write(profiler: Any) -> None:
            self._recorded += self._run.is_training_run
            if own_handler is not None:
                own_handler(profiler)
            self._write(profiler, trace=own_handler is None)

        return write

    def _write(self, profiler: Any, *, trace: bool) -> None:
        """Write the table and, if requested, the trace."""
        run, folder = self._run, output_folder(self._run, self.folder, "profile", "TorchProfiler")
        by = "self_cpu_time_total" if run.device.type == "cpu" else "self_device_time_total"
        table = profiler.key_averages().table(sort_by=by, row_limit=self.rows)
        run.log_text("profile/operators", table)
        if folder is None:
            if trace:
                logger.warning("TorchProfiler: the run has no folder, so the trace is not written; give it a folder")
            return
        folder.mkdir(parents=True, exist_ok=True)
        number = run.clock.step if run.is_training_run else self.steps
        stage = "train" if run.is_training_run else run.stage
        name = f"{stage}-{number:08d}-rank{run.rank}"
        (folder / f"{name}.txt").write_text(table)
        if trace:
            profiler.export_chrome_trace(str(folder / f"{name}.pt.trace.json.gz"))


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the warning that a new cycle clears the events of the last cycle.

    These events are already written.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
        yield
