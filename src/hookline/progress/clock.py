"""``Clock``: progress of a run in epochs, steps, batches, samples, tokens and seconds."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from copy import copy
from operator import attrgetter
from typing import Any, Final, NamedTuple, NoReturn

from hookline.errors import DurationError, NotAvailableError, SetupError
from hookline.progress.duration import PASSES, UNITS, Duration
from hookline.progress.read_only import ReadOnly

_COUNTERS: Final = ("epoch", "step", "batch", "sample", "token")


class _Marks(NamedTuple):
    """Totals at the start of the epoch."""

    step: int = 0
    batch: int = 0
    sample: int = 0
    token: int = 0
    seconds: float = 0.0
    epoch: int = 0


class EvalClock:
    """Progress of one evaluation or prediction on this rank, over all its loaders.

    Args:
        now: Function that returns the time in seconds.

    Example:
        >>> clock = EvalClock(now=lambda: 0.0)
        >>> clock.batch += 1
        >>> clock
        EvalClock(batch=1, sample=0, token=0, seconds=0.0)
    """

    __slots__ = {
        "_ended": "",
        "_now": "",
        "_started": "",
        "batch": "Batches of this evaluation or prediction so far.",
        "sample": "Samples of this evaluation or prediction so far.",
        "token": "Tokens of this evaluation or prediction so far. 0 if the task counts none.",
    }

    batch: int
    """Batches of this evaluation or prediction so far."""
    sample: int
    """Samples of this evaluation or prediction so far."""
    token: int
    """Tokens of this evaluation or prediction so far. 0 if the task counts none."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.batch = 0
        self.sample = 0
        self.token = 0
        self._now = now
        self._started = now()
        self._ended: float | None = None

    @property
    def seconds(self) -> float:
        """Wall time in seconds since the start. It stops when the evaluation ends."""
        return (self._now() if self._ended is None else self._ended) - self._started

    def batch_done(self, samples: int, tokens: int | None) -> None:
        """Count a batch."""
        self.batch += 1
        self.sample += samples
        self.token += tokens or 0

    def continue_from(self, other: EvalClock) -> None:
        """Take over the counts of an evaluation that was left and is finished now."""
        self.batch, self.sample, self.token = other.batch, other.sample, other.token
        self._started = self._now() - other.seconds

    def end(self) -> None:
        """Stop the time, because a callback may keep the clock after the evaluation."""
        if self._ended is None:
            self._ended = self._now()

    def __repr__(self) -> str:
        return (
            f"EvalClock(batch={self.batch}, sample={self.sample}, token={self.token}, seconds={round(self.seconds, 3)})"
        )


class Clock:
    """Progress of a run. Only the loop changes the counters.

    ``epoch`` and ``step`` count completed epochs and steps. All counters are totals over the run and its resumes.
    ``*_in_epoch`` count from the start of the latest epoch, also in its end hooks.

    Args:
        now: Function that returns the time in seconds.

    Example:
        >>> clock = Clock(now=lambda: 0.0)
        >>> clock.mark_epoch()
        >>> clock.step += 3
        >>> clock.step_in_epoch, clock.reached(Duration.parse("3st")), clock.reached(Duration.parse("1ep"))
        (3, True, False)
    """

    # The counters are plain attributes, because the loop changes them several times per step.
    __slots__ = {
        "_agreed_seconds": "",
        "_evals": "",
        "_marks": "",
        "_now": "",
        "_seconds": "",
        "_started": "",
        "batch": "Training batches of this rank. A step consists of ``run.accumulate`` batches.",
        "batches_per_step": "Number of batches that make one step.",
        "epoch": "Completed epochs, over the run and its resumes.",
        "epoch_batches": "Number of batches per epoch on this rank. Without a length: that of the previous epoch.",
        "sample": "Training samples of all ranks.",
        "step": "Completed steps. A step that was skipped or undone by a rollback does not count.",
        "token": "Training tokens of all ranks. 0 if the task counts none.",
        "updates": "Number of ``optimizer.step()`` calls by optimizer name. A step can make none or several.",
    }

    epoch: int
    """Completed epochs, over the run and its resumes."""
    step: int
    """Completed steps. A step that was skipped or undone by a rollback does not count."""
    batch: int
    """Training batches of this rank. A step consists of ``run.accumulate`` batches."""
    sample: int
    """Training samples of all ranks."""
    token: int
    """Training tokens of all ranks. 0 if the task counts none."""
    updates: dict[str, int]
    """Number of ``optimizer.step()`` calls by optimizer name. A step can make none or several."""
    epoch_batches: int | None
    """Number of batches per epoch on this rank. Without a length: that of the previous epoch."""
    batches_per_step: int
    """Number of batches that make one step."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.epoch = 0
        self.step = 0
        self.batch = 0
        self.sample = 0
        self.token = 0
        self.updates = {}
        self.epoch_batches = None
        self.batches_per_step = 1
        self._now = now
        self._seconds = 0.0
        self._started: float | None = None
        self._agreed_seconds: float | None = None
        self._marks = _Marks()
        self._evals: list[EvalClock] = []

    # --- time

    @property
    def seconds(self) -> float:
        """Wall time in seconds between ``start()`` and ``pause()``, over all starts and resumes."""
        return self._seconds if self._started is None else self._seconds + (self._now() - self._started)

    def start(self) -> None:
        """Start the time if it is not running."""
        if self._started is None:
            self._started = self._now()

    def pause(self) -> None:
        """Stop the time if it is running."""
        self._seconds, self._started = self.seconds, None

    def agree_seconds(self, seconds: float) -> None:
        """Set the time that all ranks use for decisions, until the next call.

        ``elapsed("s")``, ``reached`` and therefore every schedule use this value. ``seconds`` stays local.

        Args:
            seconds: Time on rank 0.
        """
        self._agreed_seconds = seconds

    # --- epochs

    def mark_epoch(self) -> None:
        """Start an epoch. ``*_in_epoch`` count from here."""
        self._marks = _Marks(self.step, self.batch, self.sample, self.token, self.seconds, self.epoch)

    def end_epoch(self) -> None:
        """Count the current epoch as completed."""
        self.epoch += 1
        self.epoch_batches = self.batch_in_epoch or self.epoch_batches

    @property
    def passes(self) -> tuple[int, int]:
        """Epochs, including the current one, as a fraction: batches and batches per epoch.

        If the length of the epoch is unknown, only completed epochs count.

        Example:
            >>> clock = Clock()
            >>> clock.epoch_batches, clock.batch = 8, 2
            >>> clock.passes
            (2, 8)
        """
        length = self.epoch_batches
        if not length:
            return self.epoch, 1
        # Between two epochs, the batches since the mark still belong to the completed epoch.
        begun = self.batch - self._marks.batch if self.epoch == self._marks.epoch else 0
        return self.epoch * length + min(begun, length), length

    @property
    def step_in_epoch(self) -> int:
        """Steps since the epoch began."""
        return self.step - self._marks.step

    @property
    def batch_in_epoch(self) -> int:
        """Loader batches since the epoch began."""
        return self.batch - self._marks.batch

    @property
    def sample_in_epoch(self) -> int:
        """Samples since the epoch began."""
        return self.sample - self._marks.sample

    @property
    def token_in_epoch(self) -> int:
        """Tokens since the epoch began."""
        return self.token - self._marks.token

    @property
    def seconds_in_epoch(self) -> float:
        """Wall time in seconds since the epoch began."""
        return self.seconds - self._marks.seconds

    def count_samples(self, samples: int, tokens: int | None) -> None:
        """Count samples and tokens of training."""
        self.sample += samples
        self.token += tokens or 0

    def set_lengths(self, *, batches_per_step: int | None = None, epoch_batches: int | None = None) -> None:
        """Set the number of batches per step or per epoch, if it is given."""
        self.batches_per_step = batches_per_step or self.batches_per_step
        self.epoch_batches = epoch_batches or self.epoch_batches

    def take_back_batches(self, batch: int, sample: int, token: int) -> None:
        """Return to the counts before the batches of a step that is not made."""
        self.batch, self.sample, self.token = batch, sample, token

    def go_back(self, step: int, updates: Mapping[str, int]) -> None:
        """Return to an earlier step. The other counters and the time continue.

        The batches of the undone steps have been read, so they stay counted.

        Args:
            step: The earlier step.
            updates: ``updates`` at that step.
        """
        self.step, self.updates = step, dict(updates)
        self._marks = self._marks._replace(step=min(self._marks.step, step))

    # --- evaluation and prediction

    @property
    def eval(self) -> EvalClock:
        """Clock of the running evaluation or prediction. If they are nested, the innermost one."""
        innermost = self._evals[-1:]  # Read once: the watchdog reads it in its own thread.
        if not innermost:
            raise NotAvailableError(
                "clock.eval has no value, because no evaluation or prediction is running: read it from "
                "eval_start to eval_end or from predict_start to predict_end."
            )
        return innermost[0]

    @property
    def is_evaluating(self) -> bool:
        """True if an evaluation or prediction is running."""
        return bool(self._evals)

    def begin_eval(self) -> EvalClock:
        """Start the clock of an evaluation or prediction. A hook may start another one inside it."""
        self._evals.append(EvalClock(self._now))
        return self._evals[-1]

    def end_eval(self) -> EvalClock:
        """Stop the innermost clock of an evaluation or prediction and return it."""
        ended = self.eval
        ended.end()
        self._evals.pop()
        return ended

    # --- durations

    def elapsed(self, unit: str) -> int | float:
        """Return the total in a unit of durations.

        Args:
            unit: ``ep``, ``st``, ``sp``, ``tok`` or ``s``.

        Raises:
            DurationError: If the unit is ``dur`` or unknown.

        Example:
            >>> Clock().elapsed("tok")
            0
        """
        match unit:
            case "st":
                return self.step
            case "ep":
                return self.epoch
            case "sp":
                return self.sample
            case "tok":
                return self.token
            case "s":
                return self.seconds if self._agreed_seconds is None else self._agreed_seconds
            case _ if unit == PASSES:
                batches, length = self.passes
                return batches / length
            case "dur":
                raise DurationError(
                    "a clock does not know max_duration, so it cannot tell which fraction ('dur') is done: "
                    "resolve it first with .of(max_duration)."
                )
            case _:
                known = ", ".join(known for known in UNITS if known != "dur")
                raise DurationError(f"a clock has no unit {unit!r}: it has {known}.")

    def reached(self, duration: Duration) -> bool:
        """True if the run has reached a duration.

        Args:
            duration: A duration that is not a fraction of ``max_duration``.

        Example:
            >>> Clock().reached(Duration.parse("1ep"))
            False
        """
        return self.elapsed(duration.unit) >= duration.value

    # --- saving

    def state_dict(self) -> dict[str, Any]:
        """Return counters, time and epoch marks as plain values, without running evaluations."""
        return {
            **{name: getattr(self, name) for name in _COUNTERS},
            "updates": dict(self.updates),
            "seconds": self.seconds,
            "epoch_start": self._marks._asdict(),
            "epoch_batches": self.epoch_batches,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved clock. If the time is running, it continues from the saved time.

        Args:
            state: Result of ``state_dict()``.

        Raises:
            SetupError: If the state lacks a value.
        """
        _require(state, (*_COUNTERS, "updates", "seconds", "epoch_start"), "the saved clock")
        marks = {"epoch": state["epoch"], **state["epoch_start"]}
        _require(marks, _Marks._fields, "'epoch_start' of the saved clock")
        for name in _COUNTERS:
            setattr(self, name, state[name])
        self.updates = dict(state["updates"])
        self._marks = _Marks(*(marks[name] for name in _Marks._fields))
        self.epoch_batches = state.get("epoch_batches")
        self._seconds = state["seconds"]
        if self._started is not None:
            self._started = self._now()
        if self._agreed_seconds is not None:
            # Every rank loads the same value, so all ranks still use the same time.
            self._agreed_seconds = self._seconds

    def __repr__(self) -> str:
        counters = ", ".join(f"{name}={getattr(self, name)}" for name in _COUNTERS)
        state = "" if self._started is None else ", running"
        return f"Clock({counters}, seconds={round(self.seconds, 3)}{state})"


def _delegate(owner: type, name: str) -> Any:
    # `attrgetter` is fast, and hooks read counters in every step.
    return property(attrgetter(f"_real.{name}"), doc=inspect.getdoc(getattr(owner, name)))


class EvalClockView(EvalClock):
    """Read-only view of an evaluation clock, for ``run.clock.eval``."""

    __slots__ = ("_real",)
    _real: EvalClock

    batch, sample, token = _delegate(EvalClock, "batch"), _delegate(EvalClock, "sample"), _delegate(EvalClock, "token")
    _now, _started, _ended = (
        _delegate(EvalClock, "_now"),
        _delegate(EvalClock, "_started"),
        _delegate(EvalClock, "_ended"),
    )

    def __init__(self, real: EvalClock) -> None:
        object.__setattr__(self, "_real", real)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise _only_the_loop(f"run.clock.eval.{name} = …")

    def batch_done(self, samples: int, tokens: int | None) -> NoReturn:
        raise _only_the_loop("run.clock.eval.batch_done()")

    def continue_from(self, other: EvalClock) -> NoReturn:
        raise _only_the_loop("run.clock.eval.continue_from()")

    def end(self) -> NoReturn:
        raise _only_the_loop("run.clock.eval.end()")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copy, (self._real,)  # A copy of the view is a separate clock, not a view.


class ClockView(Clock):
    """Read-only view of the clock, for ``run.clock``.

    The loop uses the clock itself, whose counters are plain attributes.
    """

    __slots__ = ("_real",)
    _real: Clock

    epoch, step, batch = _delegate(Clock, "epoch"), _delegate(Clock, "step"), _delegate(Clock, "batch")
    sample, token, seconds = _delegate(Clock, "sample"), _delegate(Clock, "token"), _delegate(Clock, "seconds")
    _now, _seconds, _started = _delegate(Clock, "_now"), _delegate(Clock, "_seconds"), _delegate(Clock, "_started")
    _agreed_seconds, _marks, _evals = (
        _delegate(Clock, "_agreed_seconds"),
        _delegate(Clock, "_marks"),
        _delegate(Clock, "_evals"),
    )
    epoch_batches, batches_per_step = _delegate(Clock, "epoch_batches"), _delegate(Clock, "batches_per_step")

    def __init__(self, real: Clock) -> None:
        object.__setattr__(self, "_real", real)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise _only_the_loop(f"run.clock.{name} = …")

    @property
    def updates(self) -> Mapping[str, int]:  # type: ignore[override]
        """Number of ``optimizer.step()`` calls by optimizer name."""
        return ReadOnly(self._real.updates, "run.clock.updates", "Only the loop counts.")

    @property
    def eval(self) -> EvalClock:
        return EvalClockView(self._real.eval)

    def start(self) -> NoReturn:
        raise _only_the_loop("run.clock.start()")

    def pause(self) -> NoReturn:
        raise _only_the_loop("run.clock.pause()")

    def mark_epoch(self) -> NoReturn:
        raise _only_the_loop("run.clock.mark_epoch()")

    def end_epoch(self) -> NoReturn:
        raise _only_the_loop("run.clock.end_epoch()")

    def begin_eval(self) -> NoReturn:
        raise _only_the_loop("run.clock.begin_eval()")

    def end_eval(self) -> NoReturn:
        raise _only_the_loop("run.clock.end_eval()")

    def agree_seconds(self, seconds: float) -> NoReturn:
        raise _only_the_loop("run.clock.agree_seconds()")

    def count_samples(self, samples: int, tokens: int | None) -> NoReturn:
        raise _only_the_loop("run.clock.count_samples()")

    def set_lengths(self, *, batches_per_step: int | None = None, epoch_batches: int | None = None) -> NoReturn:
        raise _only_the_loop("run.clock.set_lengths()")

    def take_back_batches(self, batch: int, sample: int, token: int) -> NoReturn:
        raise _only_the_loop("run.clock.take_back_batches()")

    def go_back(self, step: int, updates: Mapping[str, int]) -> NoReturn:
        raise _only_the_loop("run.clock.go_back()")

    def load_state_dict(self, state: Mapping[str, Any]) -> NoReturn:
        raise _only_the_loop("run.clock.load_state_dict()")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copy, (self._real,)  # A copy of the view is a separate clock, not a view.


def _only_the_loop(act: str) -> NotAvailableError:
    return NotAvailableError(
        f"{act}: only the loop counts. Set run.max_duration to train longer or shorter, or call run.stop('why') to end."
    )


def _require(state: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    missing = [name for name in names if name not in state]
    if missing:
        raise SetupError(
            f"{where} lacks {', '.join(missing)} (it has {', '.join(state) or 'nothing'}): "
            "give what Clock.state_dict() returned."
        )
