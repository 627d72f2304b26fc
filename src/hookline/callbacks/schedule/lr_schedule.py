"""``LRSchedule``: schedule the learning rate over a run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from hookline.callbacks._ending import was_interrupted
from hookline.callbacks._monitor import check_has_evaluations, monitor_mode
from hookline.callbacks.schedule._schedulers import Planned, take_out_former
from hookline.callbacks.schedule._shapes import (
    MEASURED,
    OPTIONS,
    MeasuredShape,
    Shape,
    check_options,
    epochs_in,
    length_of_run,
    one_cycle,
    steps_in,
)
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback
from hookline.progress import Clock, Duration

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

NAMES = (*OPTIONS, "one_cycle", "plateau")
TOTALS = ("total", "total_steps", "T_max", "num_training_steps")
"""Scheduler arguments for the length of the whole schedule, which Hookline fills in."""


class LRSchedule(Callback):
    """Schedule the learning rate: named shape, PyTorch scheduler, or metric plateau.

    The named shapes are factors of each parameter group's learning rate: ``"constant"``, ``"linear"``, ``"cosine"``,
    ``"cosine_restarts"``, ``"wsd"`` (warm-up, stable, decay) and ``"one_cycle"``. ``"plateau"`` is
    ``ReduceLROnPlateau``. No step of a named shape has a factor of 0. Hookline fills in the length of the run.

    The lengths of a named shape, except ``"one_cycle"``, can also be samples, tokens or time, such as
    ``total="1e9tok"``. Each step then has the factor of what has been trained on before it.

    Args:
        schedule: Name of a shape, ``"plateau"``, a scheduler class of PyTorch, or a function of the optimizer that
            returns a scheduler.
        warmup: Length of the warm-up: a duration such as ``"500st"``, or a fraction of ``total`` such as ``0.1``. The
            factor rises from ``start`` to 1. ``None``: no warm-up. Only for named shapes except ``"plateau"``.
        total: Length of the schedule. ``None``: the rest of ``max_duration``.
        every: How often the scheduler steps, in steps or epochs. ``None``: ``"1st"``. A plateau steps after
            evaluations and does not take ``every``.
        monitor: Metric of a plateau.
        mode: ``"min"`` or ``"max"``, only for a plateau. ``None``: inferred from the metric's name when possible.
        optimizer: Name of the optimizer. ``None``: all optimizers.
        **options: Options of the shape or of the scheduler. Shapes take ``start=0.0`` and ``end=0.0``, which are
            factors from 0 to 1 (``"constant"`` has no ``end``). ``"cosine_restarts"`` also takes ``cycles=2``.
            ``"wsd"`` also takes ``decay="0.1dur"`` and ``decay_shape="sqrt"``, ``"linear"`` or ``"cosine"``.
            ``"one_cycle"`` takes the options of ``OneCycleLR``. A duration is converted to scheduler steps. An
            argument for the whole length (``total_steps``, ``T_max``, ``num_training_steps``, ``total``) is filled in
            if it has no default.

    Raises:
        ArgumentError: If the name or an option is unknown, or arguments do not fit together.
        SetupError: If the length of the schedule is unknown, the scheduler cannot be made, or a plateau has nothing
            to evaluate on.

    Example:
        >>> import torch
        >>> from hookline.callbacks import LRMonitor
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> callbacks = [LRSchedule("linear", warmup="2st"), LRMonitor()]
        >>> trainer = Trainer(max_duration="2ep", callbacks=callbacks, folder=False, log_every="1st")
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), lambda p: torch.optim.SGD(p, lr=0.6)
        >>> result = trainer.fit(TinyModel(), tiny_data(batches=4), loss=loss, optimizer=optimizer)
        >>> [round(lr, 3) for lr in result.history["lr/SGD"]]
        [0.3, 0.6, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    """

    structural = True
    """The schedulers must exist before a checkpoint restores their states."""
    role = "schedule"
    reports_on_resume = True
    state_depends_on = ("schedule", "every", "optimizer", "monitor", "mode")

    def __init__(
        self,
        schedule: str | type[LRScheduler] | Callable[..., LRScheduler] = "cosine",
        *,
        warmup: str | float | Duration | None = None,
        total: str | Duration | None = None,
        every: str | Duration | None = None,
        monitor: str = "val/loss",
        mode: str | None = None,
        optimizer: str | None = None,
        **options: Any,
    ) -> None:
        self.schedule = schedule
        self.warmup = None if warmup is None else _length("warmup", warmup)
        self.total = None if total is None else Duration.parse(total, "LRSchedule(total=…)")
        self.every = Duration.parse("1st" if every is None else every, "LRSchedule(every=…)")
        self._has_every = every is not None
        self.monitor = monitor
        self.optimizer = optimizer
        self.options = options
        self._check()
        self.mode = monitor_mode("LRSchedule", monitor, mode) if self._is_plateau else None
        if self._is_plateau:
            self.options = {"mode": self.mode, **options}
            self.reads = (monitor,)
        elif mode is not None:
            raise ArgumentError(f"LRSchedule(mode={mode!r}): is for 'plateau' only. Leave it out.")
        self.writes = ("optimizer",) if optimizer is None else (f"optimizer/{optimizer}",)
        self._run: Run | None = None
        self._entries: list[Planned] = []
        self.planned = False
        """True if the schedulers are in ``run.schedulers``."""
        self.lengths: dict[str, float] = {}
        """Durations in ``unit``: ``total``, ``warmup`` and options. Set when training starts."""
        self.unit = ""
        """``"sp"``, ``"tok"`` or ``"s"`` (samples, tokens, seconds), or empty for scheduler steps."""
        self.begins: float = 0
        """Amount of ``unit`` before the schedule was planned. Above 0 only in a later fit."""
        self._before = (0, 0)
        self._own_options: list[tuple[Any, dict[str, Any]]] = []
        """After a resume: objects that the checkpoint changed, and the options of this run to set on them again."""

    def _check(self) -> None:
        """Raise if the arguments do not fit together."""
        schedule, who = self.schedule, self._who.replace("(", "(schedule=", 1)
        if isinstance(schedule, str):
            if schedule not in NAMES:
                close = get_close_matches(schedule, NAMES, n=1)
                hint = f"Did you mean {close[0]!r}?" if close else f"Use {', '.join(NAMES)}."
                raise ArgumentError(f"{who}: no such shape. {hint}")
            if schedule in OPTIONS:
                check_options(schedule, self.options)
        if self.warmup is not None and (schedule not in (*OPTIONS, "one_cycle")):
            raise ArgumentError(
                f"{who}: warmup= goes with {', '.join((*OPTIONS, 'one_cycle'))}. For others use torch's SequentialLR."
            )
        if self.every.unit not in ("st", "ep"):
            raise ArgumentError(f"{who}: every={str(self.every)!r} is not in steps or epochs. Write '1st' or '1ep'.")
        if self._is_plateau and self._has_every:
            raise ArgumentError(f"{who}: a plateau steps after evaluations. Leave out every={str(self.every)!r}.")

    @property
    def _who(self) -> str:
        """Name of the callback with its schedule, for messages."""
        what = self.schedule
        return f"LRSchedule({what!r})" if isinstance(what, str) else f"LRSchedule({getattr(what, '__name__', what)})"

    @property
    def _is_plateau(self) -> bool:
        """True if the schedule follows a metric."""
        what = self.schedule
        return what == "plateau" or (isinstance(what, type) and issubclass(what, ReduceLROnPlateau))

    # -- hooks ---------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        self._run = run
        if self._is_plateau:
            check_has_evaluations(run, "LRSchedule", self.monitor)

    def on_train_start(self, run: Run) -> None:
        for part, options in self._own_options:
            vars(part).update(options)
        self._own_options = []
        if not self._entries:
            self.unit = self._unit(run)
            self.begins = run.clock.elapsed(self.unit or self.every.unit) // (1 if self.unit else int(self.every.value))
            self.lengths = self._lengths(run, self.unit)
            self._add(run)
        elif self.lengths != (wanted := self._lengths(run, unit := self._unit(run))):
            logger.warning(
                "%s continues with the saved plan, with %s; for this run it would be %s. Where the plan ends first, "
                "the learning rate stays as it is there",
                self._who,
                _words(self.lengths, self.unit),
                _words(wanted, unit),
            )
        self._before = (run.clock.step, self._looks())

    def on_train_end(self, run: Run) -> None:
        step, looks = self._before
        has_plateau = any(entry.unit == "eval" for entry in self._entries)
        if has_plateau and not was_interrupted(run) and run.clock.step > step and self._looks() <= looks:
            logger.warning(
                "%s has moved nothing: it looks at %s after evaluations, and none was made in %d steps",
                self._who,
                self.monitor,
                run.clock.step - step,
            )

    def on_teardown(self, run: Run) -> None:
        self._run = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "lengths": dict(self.lengths),
            "unit": self.unit,
            "planned": self.planned,
            "begins": self.begins,
            "options": self._plain_options(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._entries:
            # In a rollback, the loop restores the states of the existing schedulers.
            return
        self.lengths, self.planned, self.begins = dict(state["lengths"]), state["planned"], state["begins"]
        self.unit = state["unit"]
        if self._run is not None and self.planned:
            self._add(self._run)
            self._keep_options(state.get("options", self._plain_options()))

    def _keep_options(self, saved: Mapping[str, str]) -> None:
        """Make the options of this run take effect after a resume, instead of the saved options.

        A PyTorch scheduler saves its options together with its state.
        """
        kept: set[str] = set()
        for entry in self._entries:
            scheduler: Any = entry.scheduler
            shapes = [part for part in getattr(scheduler, "lr_lambdas", ()) if isinstance(part, Shape)]
            for part in shapes or [scheduler]:
                names = set(inspect.signature(type(part)).parameters) - {"last_epoch", "optimizer", *self.lengths}
                options = {name: value for name, value in vars(part).items() if name in names}
                self._own_options.append((part, options))
                kept.update(options)
        now = self._plain_options()
        taken: list[str] = []
        for name in [name for name in {**now, **saved} if now.get(name) != saved.get(name)]:
            if name in kept:
                taken.append(f"{name}={now.get(name, 'not given')} (was {saved.get(name, 'not given')})")
            elif name in now and name in saved and name not in self.lengths:
                logger.warning(
                    "%s keeps %s=%s of the checkpoint: its scheduler cannot change it", self._who, name, saved[name]
                )
        if taken:
            logger.warning("%s resumes with %s", self._who, ", ".join(taken))

    def _plain_options(self) -> dict[str, str]:
        """Return the options as strings, without functions."""
        return {name: repr(value) for name, value in self.options.items() if not callable(value)}

    # -- schedulers ----------------------------------------------------------------------------

    def _add(self, run: Run) -> None:
        """Make the schedulers and add them to ``run.schedulers``."""
        for name, optimizer in self._optimizers(run).items():
            if take_out_former(optimizer, run.schedulers, run.callbacks):
                logger.info("%s takes the place of the schedule of an earlier fit, for %s", self._who, name)
            others = [type(s.scheduler).__name__ for s in run.schedulers if s.scheduler.optimizer is optimizer]
            if others:
                logger.warning("%s and %s both move the learning rate of %s", self._who, ", ".join(others), name)
            self._entries.append(Planned(self._make(optimizer, run), self.every, self.monitor, self))
        run.schedulers.extend(self._entries)
        self.planned = True

    def _optimizers(self, run: Run) -> dict[str, Optimizer]:
        """Return the optimizers to schedule, by name."""
        if self.optimizer is None:
            return dict(run.optimizers)
        if self.optimizer not in run.optimizers:
            raise SetupError(
                f"{self._who}: no optimizer {self.optimizer!r} in this run; there is {', '.join(run.optimizers)}"
            )
        return {self.optimizer: run.optimizers[self.optimizer]}

    def _make(self, optimizer: Optimizer, run: Run) -> LRScheduler:
        """Make the scheduler of an optimizer."""
        known = self.options | self.lengths
        if self.unit:
            measured = MeasuredShape(str(self.schedule), **known)
            measured.position = partial(self._position, run.clock)
            return LambdaLR(optimizer, measured)
        if self.schedule in OPTIONS:
            return LambdaLR(optimizer, Shape(str(self.schedule), **known))
        if self.schedule == "one_cycle":
            return one_cycle(optimizer, known, self._who)
        make: Any = ReduceLROnPlateau if self.schedule == "plateau" else self.schedule
        try:
            made = make(optimizer, **known)
        except (TypeError, ValueError) as error:
            raise SetupError(f"{self._who} could not be made with {known}: {error}") from error
        if not isinstance(made, LRScheduler) or made.optimizer is not optimizer:
            raise SetupError(
                f"{self._who} gave {made!r}, which is not a scheduler of torch for the optimizer it was given"
            )
        if isinstance(made, ReduceLROnPlateau) and self._has_every:
            raise SetupError(f"{self._who} gave a plateau, which steps after evaluations; leave out every=")
        return made

    def _position(self, clock: Clock) -> float:
        """Return the samples, tokens or seconds since the schedule was planned."""
        done = clock.elapsed(self.unit)
        if self.unit == "tok" and clock.batch and not done:
            raise SetupError(
                f"{self._who} is in tokens, and no batch has told their number: give the task "
                f"count(self, batch) -> (samples, tokens)"
            )
        return max(0, done - self.begins)

    def _looks(self) -> int:
        """Return how often the plateau schedulers have read the metric."""
        return sum(entry.scheduler.last_epoch for entry in self._entries if entry.unit == "eval")

    # -- lengths -------------------------------------------------------------------------------

    def _given_lengths(self) -> dict[str, Duration]:
        """Return the durations that the user gave, and that of the decay."""
        given = {name: Duration.parse(value) for name, value in self.options.items() if _is_duration(value)}
        if self.schedule == "wsd":
            given.setdefault("decay", Duration.parse("0.1dur"))
        if self.warmup is not None:
            given["warmup"] = self.warmup
        return given

    def _whole(self, run: Run) -> Duration | None:
        """Return the length of the schedule, or ``None`` if nothing depends on it."""
        if self._name_of_total() is None and all(length.unit != "dur" for length in self._given_lengths().values()):
            return None
        return length_of_run(run, self.total, self._who)

    def _unit(self, run: Run) -> str:
        """Return the unit of a schedule in samples, tokens or seconds. Empty for scheduler steps."""
        lengths = [*self._given_lengths().values(), *filter(None, [self._whole(run)])]
        unit = next((length.unit for length in lengths if length.unit in MEASURED), "")
        if not unit or self.schedule not in OPTIONS:
            return ""
        if other := next((length for length in lengths if length.unit not in (unit, "dur")), None):
            one = next(length for length in lengths if length.unit == unit)
            raise SetupError(f"{self._who}: {other} and {one} are in different units. Give all lengths in one unit.")
        return unit

    def _lengths(self, run: Run, unit: str) -> dict[str, float]:
        """Return all durations as numbers of scheduler steps, or in ``unit``."""
        given, name, whole = self._given_lengths(), self._name_of_total(), self._whole(run)
        if whole is None:
            return {key: self._moves(length, run, unit) for key, length in given.items()}
        total = self._moves(whole, run, unit)
        if self.total is None:
            # A schedule that is added in a later fit covers the rest of the run.
            total = max(1, total - self.begins)
        found = {key: self._moves(length, run, unit, total) for key, length in given.items()}
        if name is not None:
            found[name] = total
        if self.schedule in OPTIONS and found.get("warmup", 0) + found.get("decay", 0) > total:
            raise SetupError(f"{self._who}: {_words(found, unit)}: more than the whole schedule")
        return found

    def _name_of_total(self) -> str | None:
        """Return the name of the scheduler's argument for the whole length, or ``None``."""
        if isinstance(self.schedule, str):
            return "total" if self.schedule in (*OPTIONS, "one_cycle") and self.schedule != "constant" else None
        wanted = inspect.signature(self.schedule).parameters
        open_ = [name for name in TOTALS if name in wanted and name not in self.options]
        if "total_steps" in open_ and not {"epochs", "steps_per_epoch"} & self.options.keys():
            # OneCycleLR has the default `None` for it, which is not a length.
            return "total_steps"
        return next((name for name in open_ if wanted[name].default is inspect.Parameter.empty), None)

    def _moves(self, length: Duration, run: Run, unit: str, total: float | None = None) -> float:
        """Return a duration as a number of scheduler steps, or in ``unit``."""
        if length.unit == "dur" and total is not None:
            return length.of(Duration(total, unit or "st")).value
        if unit:
            return length.value
        count = epochs_in if self.every.unit == "ep" else steps_in
        return max(1, count(length.of(run.max_duration), run, self._who) // int(self.every.value))


def _length(name: str, given: str | float | Duration) -> Duration:
    """Parse a duration, or a fraction given as a number."""
    if isinstance(given, float) and 0 < given < 1:
        return Duration(given, "dur")
    try:
        return Duration.parse(given)  # type: ignore[arg-type]  # It checks the type.
    except ValueError as error:
        raise ArgumentError(
            f"LRSchedule({name}={given!r}): must be a duration, or a fraction such as 0.1. {error}"
        ) from error


def _is_duration(value: object) -> bool:
    """True if an option is a duration and not an ordinary value."""
    return isinstance(value, Duration) or (isinstance(value, str) and value[:1].isdigit())


def _words(lengths: Mapping[str, float], unit: str) -> str:
    """Format lengths for a message."""
    return ", ".join(f"{name} {length}{unit}" for name, length in lengths.items()) or "no length"
