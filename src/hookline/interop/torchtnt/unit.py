"""The state and the unit that callbacks of TorchTNT see, and the host that keeps their books."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import torch

from hookline.interop.adapter import Host
from hookline.interop.names import MetricNames
from hookline.interop.torchtnt.support import VERSIONS
from hookline.progress import Duration
from hookline.run import Run

NAMES: Final = MetricNames((("val_", "val/"), ("eval_", "val/"), ("train_", "train/"), ("test_", "test/")))
PHASES: Final = {"train": "TRAIN", "val": "EVALUATE", "test": "EVALUATE", "predict": "PREDICT"}
"""Stages of Hookline, and the names of the ``ActivePhase``."""
DURATIONS: Final = {
    "train": "train_iteration_time",
    "val": "eval_iteration_time",
    "test": "eval_iteration_time",
    "predict": "predict_iteration_time",
}
"""Names under which the timer of a stage has the time of its steps."""


class TorchTNTHost(Host):
    """The books of the state and the unit that all callbacks of TorchTNT share: progress, and times of steps.

    A step of TorchTNT is a batch. An evaluation is one epoch, over all of its loaders.
    """

    library = "TorchTNT"
    shows = "the state and the unit"
    state = ("eval_progress", "has_evaluated")

    def _start(self) -> None:
        super()._start()
        progress = import_module("torchtnt.utils.progress").Progress
        self.train_progress, self.eval_progress, self.predict_progress = progress(), progress(), progress()
        self.is_stopping = self.is_sanity_check = False
        self.has_evaluated = False
        """True if there was an evaluation since the epoch began."""
        self._their_state: Any = None
        self._unit: Any = None
        self._own_unit: Any = None
        self.step_output: Any = None
        """The value that the unit of the user returned for this batch."""
        self._fetch_started = self._step_started = 0.0
        self._open_step: str | None = None

    @property
    def their_state(self) -> Any:
        """The ``State`` of TorchTNT, with a ``stop`` of Hookline."""
        if self._their_state is None:
            self._their_state = make_state(self)
        return self._their_state

    @property
    def unit(self) -> Any:
        """The unit that callbacks see: the one that the user trains, else one that shows the model of the run."""
        if self._own_unit is not None:
            return self._own_unit.unit
        if self._unit is None:
            self._unit = make_unit(self)
        return self._unit

    @property
    def has_own_unit(self) -> bool:
        """True if the user trains a unit, and not a plain model."""
        return self._own_unit is not None

    def attach(self, steps: Any) -> None:
        """Serve a unit that the user trains. Its progress is that of the run.

        Args:
            steps: The task of the unit.
        """
        self._own_unit = steps
        for name in ("train_progress", "eval_progress", "predict_progress"):
            setattr(self, name, getattr(steps.unit, name, getattr(self, name)))

    @property
    def is_at_epoch_start(self) -> bool:
        """True before the first step of an epoch. After a resume in the middle of an epoch it is False."""
        return bool(self.train_progress.num_steps_completed_in_epoch == 0)

    @property
    def is_in_step(self) -> bool:
        """True from the first to the last hook of a batch."""
        return self._open_step is not None

    def request_stop(self) -> None:
        """Stop training, for the callback that is called now."""
        self.is_stopping = True
        self.run.stop(f"{self.run.member.name} called state.stop()")

    # -- the books -----------------------------------------------------------------------------

    def _read_clock(self, run: Run) -> None:
        clock = run.clock
        self.train_progress.load_state_dict(
            {
                "num_epochs_completed": clock.epoch,
                "num_steps_completed": clock.batch,
                "num_steps_completed_in_epoch": clock.batch_in_epoch,
            }
        )

    on_train_start = _read_clock

    def on_train_epoch_start(self, run: Run) -> None:
        self._read_clock(run)
        if self.is_at_epoch_start:
            self.has_evaluated = False

    def on_batch_fetch_start(self, run: Run) -> None:
        self._end_step()
        self._fetch_started = time.perf_counter()

    def on_batch_fetch_end(self, run: Run) -> None:
        self._step_started = time.perf_counter()
        self._record(run.stage, "data_wait_time", self._step_started - self._fetch_started)
        self._open_step = run.stage

    def on_train_batch_end(self, run: Run) -> None:
        if not run.window_is_full:
            self.on_train_step_end(run)

    def on_train_step_end(self, run: Run) -> None:
        if self._own_unit is not None:
            self._own_unit.end_train_batch(run)
        self.train_progress.increment_step()

    on_step_skipped = on_train_step_end

    def on_train_epoch_end(self, run: Run) -> None:
        self._end_step()
        self.train_progress.increment_epoch()

    def on_sanity_check_start(self, run: Run) -> None:
        self.is_sanity_check = True

    def on_sanity_check_end(self, run: Run) -> None:
        self.is_sanity_check = False

    def on_eval_start(self, run: Run) -> None:
        self._end_step()

    def on_eval_batch_end(self, run: Run) -> None:
        self.eval_progress.increment_step()

    def on_eval_end(self, run: Run) -> None:
        self._end_step()
        self.has_evaluated = True
        self.eval_progress.increment_epoch()

    def on_predict_batch_end(self, run: Run) -> None:
        self.predict_progress.increment_step()

    def on_predict_end(self, run: Run) -> None:
        self._end_step()
        self.predict_progress.increment_epoch()

    def _end_step(self) -> None:
        """Record the time of a step after its last hook, as TorchTNT does."""
        if self._open_step is not None:
            stage, self._open_step, self.step_output = self._open_step, None, None
            self._record(stage, DURATIONS[stage], time.perf_counter() - self._step_started)

    def _record(self, stage: str, name: str, seconds: float) -> None:
        self.their_state.phases[stage].record(name, seconds)


class Phase:
    """A ``PhaseState`` of TorchTNT in a run of Hookline: ``make_state`` makes the class of both."""

    host: TorchTNTHost
    stages: tuple[str, ...]
    iteration_timer: Any

    @property
    def dataloader(self) -> Any:
        run = self.host.run
        found = run.loaders.get(run.stage if run.stage in self.stages else self.stages[0])
        if isinstance(found, Mapping):
            return next(iter(found.values())) if len(found) == 1 else list(found.values())
        return found

    @property
    def max_epochs(self) -> int | None:
        return _count(self.host.run.max_duration, "ep") if "train" in self.stages else None

    @property
    def max_steps(self) -> int | None:
        return self._batches(self.host.run.max_duration) if "train" in self.stages else None

    @property
    def evaluate_every_n_epochs(self) -> int | None:
        return _count(self.host.run.eval_every, "ep") if "val" in self.stages else None

    @property
    def evaluate_every_n_steps(self) -> int | None:
        return self._batches(self.host.run.eval_every) if "val" in self.stages else None

    def _batches(self, duration: Duration | None) -> int | None:
        """Return a duration in batches, which are the steps of TorchTNT."""
        steps = _count(duration, "st")
        return None if steps is None else steps * self.host.run.accumulate

    @property
    def step_output(self) -> Any:
        """Outputs of the model and, in training, the loss before them, as ``AutoUnit`` returns them."""
        run = self.host.run
        if not self.host.is_in_step or run.stage not in self.stages:
            return None
        if self.host.has_own_unit:
            return self.host.step_output
        return (run.loss.detach() / run.accumulate, run.outputs) if run.stage == "train" else run.outputs

    def record(self, name: str, seconds: float) -> None:
        """Add a time to those of the ``iteration_timer``."""
        timer = self.iteration_timer
        durations = timer.recorded_durations.setdefault(name, [])
        durations.append(seconds)
        if len(durations) >= timer.upper_bound:
            del durations[: -timer.lower_bound]


class RunView:
    """A ``State`` of TorchTNT in a run of Hookline: ``make_state`` makes the class of both."""

    host: TorchTNTHost
    phases: Mapping[str, Phase]
    module: Any
    """The module of TorchTNT with its enumerations, whose members callbacks compare."""

    @property
    def entry_point(self) -> Any:
        run, points = self.host.run, self.module.EntryPoint
        if run.is_training_run:
            return points.FIT if "val" in run.loaders else points.TRAIN
        return points.PREDICT if run.entry_point == "predict" else points.EVALUATE

    @property
    def active_phase(self) -> Any:
        return self.module.ActivePhase[PHASES[self.host.run.stage]]

    def active_phase_state(self) -> Phase:
        return self.phases[self.host.run.stage]

    @property
    def train_state(self) -> Phase | None:
        return self.phases["train"] if self.host.run.is_training_run else None

    @property
    def eval_state(self) -> Phase | None:
        run = self.host.run
        return self.phases["val"] if run.stage in ("val", "test") or "val" in run.loaders else None

    @property
    def predict_state(self) -> Phase | None:
        return self.phases["predict"] if self.host.run.stage == "predict" else None

    @property
    def should_stop(self) -> bool:
        ending = self.host.run.ending
        return self.host.is_stopping or (ending is not None and ending.kind != "duration")

    def stop(self) -> None:
        self.host.request_stop()


def make_state(host: TorchTNTHost) -> Any:
    """Return a ``State`` of TorchTNT that reads the run.

    Args:
        host: The host of the run.
    """
    module = import_module("torchtnt.framework.state")
    phases: dict[str, Any] = {}
    kind: Any = type("PhaseState", (Phase, module.PhaseState), {})
    for stages in (("train",), ("val", "test"), ("predict",)):
        phase = kind(dataloader=())
        phase.host, phase.stages = host, stages
        phases |= dict.fromkeys(stages, phase)
    state = type("State", (RunView, module.State), {})(entry_point=module.EntryPoint.FIT)
    state.host, state.phases, state.module = host, phases, module
    return state


def make_unit(host: TorchTNTHost) -> Any:
    """Return a unit with the model, the optimizers, the schedulers and the progress of a run.

    Metrics and attributes of the model are attributes of the unit. Callbacks may set other attributes.

    Args:
        host: The host of the run.
    """
    mixin = import_module("torchtnt.framework.unit").AppStateMixin

    class Unit(mixin):  # type: ignore[misc, valid-type]
        """The unit that callbacks of TorchTNT see."""

        def __init__(self) -> None:
            super().__init__()
            run = host.run
            self.module = run.model
            self.device = run.device
            for name, optimizer in _named("optimizer", dict(run.optimizers)).items():
                setattr(self, name, optimizer)
            schedulers = {str(number): its.scheduler for number, its in enumerate(run.schedulers)}
            for name, scheduler in _named("lr_scheduler", schedulers).items():
                setattr(self, name, scheduler)
            self.train_progress = host.train_progress
            self.eval_progress = host.eval_progress
            self.predict_progress = host.predict_progress

        # Callbacks read these in every step. As properties they are found without __getattr__.
        train_progress = property(lambda self: host.train_progress)
        eval_progress = property(lambda self: host.eval_progress)
        predict_progress = property(lambda self: host.predict_progress)

        def __getattr__(self, name: str) -> Any:
            for tracked in ("_modules", "_optimizers", "_lr_schedulers", "_progress", "_misc_statefuls"):
                if name in (found := self.__dict__.get(tracked, {})):
                    return found[name]
            if not name.startswith("__"):
                metrics, ours = host.run.metrics, host.aliases.get(name) or NAMES.ours(name)
                if ours in metrics:
                    return torch.tensor(metrics[ours])
                if hasattr(host.run.model, name):
                    return getattr(host.run.model, name)
            raise AttributeError(
                f"Unit.{name}: Hookline does not offer this attribute of units of TorchTNT (tested with {VERSIONS}) to "
                f"callbacks. It is neither a metric nor an attribute of the model. Metrics: "
                f"{', '.join(host.run.metrics) or 'none'}. Leave the callback out, or write a hl.Callback for it.",
                name=name,
                obj=self,
            )

        def on_checkpoint_save(self, state: Any, checkpoint_id: str) -> None:
            """Nothing to do: Hookline does not resume from this checkpoint."""

    return Unit()


def _named(attribute: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes for optimizers or schedulers: one is ``optimizer``, several are ``optimizer_<name>``."""
    if len(parts) == 1:
        return {attribute: next(iter(parts.values()))}
    return {f"{attribute}_{name}": part for name, part in parts.items()}


def _count(duration: Duration | None, unit: str) -> int | None:
    return int(duration.value) if duration is not None and duration.unit == unit and duration.value >= 1 else None
