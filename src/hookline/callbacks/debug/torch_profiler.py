"""``TorchProfiler``: where the time of a run goes, recorded by ``torch.profiler``."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from hookline.callbacks.run_paths import check_dirpath, output_folder
from hookline.errors import RegistrationError, SetupError
from hookline.events import Callback
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class TorchProfiler(Callback):
    """Records a few steps with ``torch.profiler``, and writes a trace and a table of the operators that took most.

    **What is recorded.** In a fit: training, with the evaluations inside it. ``evaluate``, ``test`` and ``predict``
    are recorded when they are what was called. It is started once and stopped once, on every way out: also after
    a stop, an error or Ctrl-C, and then what was recorded until there is written. A step of the profiler is a step
    of training, or one batch of an evaluation or a prediction.

    **When.** After ``skip_first`` steps, ``repeat`` times: ``wait`` steps pass, ``warmup`` steps are recorded and
    thrown away, ``active`` steps are kept. ``repeat=0`` goes on to the end. Or pass a ``torch.profiler.profile`` of
    your own, which has not been started: then its schedule counts, and its ``on_trace_ready``, if it has one, keeps
    the trace. A run that is resumed goes on in the schedule where it was.

    **What is written**, to ``profile/`` in the run's folder or to ``dirpath`` (relative to the run's folder): a trace
    for https://ui.perfetto.dev or TensorBoard, ``train-00000005-rank0.pt.trace.json.gz``, and
    ``train-00000005-rank0.txt``, a table of ``rows`` rows, by the time that an operator itself took on the run's
    device. The number is that of the step after which it was written. The table is also logged as the text
    ``profile/operators``.

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
        dirpath: str | os.PathLike[str] | None = None,
    ) -> None:
        if profiler is not None and not (hasattr(profiler, "start") and hasattr(profiler, "on_trace_ready")):
            raise RegistrationError(f"TorchProfiler({profiler!r}): give a torch.profiler.profile, or leave it out")
        least = {"wait": 0, "warmup": 0, "active": 1, "repeat": 0, "skip_first": 0, "rows": 1}
        given = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat, "skip_first": skip_first}
        for name, value in {**given, "rows": rows}.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < least[name]:
                raise RegistrationError(f"TorchProfiler({name}={value!r}): give a whole number, {least[name]} or more")
        self.profiler = profiler
        self.schedule = given
        self.record_shapes = record_shapes
        self.profile_memory = profile_memory
        self.with_stack = with_stack
        self.rows = rows
        self.dirpath = None if dirpath is None else path_to_write(dirpath, "dirpath", "TorchProfiler")
        self.steps = 0
        """Steps of the profiler in this fit, over all resumes."""
        cycle = wait + warmup + active
        self._last = skip_first + cycle * repeat if repeat and profiler is None else float("inf")
        self._active: Any = None
        self._run: Any = None
        self._recorded = 0
        """Traces of this fit."""

    def on_setup(self, run: Run) -> None:
        if any(isinstance(other, TorchProfiler) and other is not self for other in run.callbacks):
            raise SetupError("there are two TorchProfilers, and torch can have one at a time: leave one of them out")
        check_dirpath(run, self.dirpath, "TorchProfiler")
        if run.is_training_run and run.clock.step == 0:  # a state that is about to be loaded comes later
            self.steps = self._recorded = 0

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
        if self.steps >= self._last:  # in the process before
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

    # ------------------------------------------------------------------------------------------

    def _alone(self, run: Run) -> Iterator[None]:
        """An evaluation or a prediction: recorded by itself, unless it is a part of a fit."""
        if run.is_training_run:
            yield
            return
        steps, self.steps = self.steps, 0
        try:
            yield from self._recording(run)
        finally:
            self.steps = steps  # those of the fit

    def _recording(self, run: Run) -> Iterator[None]:
        if torch._C._autograd._profiler_enabled():  # torch itself would go on, and mix up the two
            raise SetupError("TorchProfiler: another profiler is recording already; torch can have one at a time")
        profiler = self._make(run) if self.profiler is None else self.profiler
        if self.steps and profiler.step_num == 0:  # it was recorded in another process until there
            profiler.step_num = self.steps
            profiler.current_action = profiler.schedule(self.steps)  # type: ignore[assignment]  # any of them
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
        self.steps += 1
        if self.profiler is None:
            with _quietly():
                self._active.step()
        else:
            self._active.step()
        if self.steps >= self._last:  # a step of a profiler that records no more costs time, too
            self._stop()

    def _stop(self) -> None:
        profiler, self._active = self._active, None
        if profiler is not None:
            profiler.stop()

    def _make(self, run: Run) -> torch.profiler.profile:
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
        def write(profiler: Any) -> None:
            self._recorded += self._run.is_training_run
            if own_handler is not None:
                own_handler(profiler)
            self._write(profiler, trace=own_handler is None)

        return write

    def _write(self, profiler: Any, *, trace: bool) -> None:
        run, folder = self._run, output_folder(self._run, self.dirpath, "profile", "TorchProfiler")
        by = "self_cpu_time_total" if run.device.type == "cpu" else "self_device_time_total"
        table = profiler.key_averages().table(sort_by=by, row_limit=self.rows)
        run.log_text("profile/operators", table)
        if folder is None:
            if trace:
                logger.warning("TorchProfiler: the run has no folder, so the trace is not written; give it a dirpath")
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
    """Without the warning that a new cycle forgets the events of the last: these are written by then."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
        yield
