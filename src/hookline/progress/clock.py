"""``Clock``: what a run has done so far, in epochs, steps, batches, samples, tokens and seconds."""

from __future__ import annotations

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
    """The totals at the start of the epoch."""

    step: int = 0
    batch: int = 0
    sample: int = 0
    token: int = 0
    seconds: float = 0.0
    epoch: int = 0


class EvalClock:
    """What one evaluation or prediction has done so far, over all its loaders; in several processes, on this rank.

    >>> clock = EvalClock(now=lambda: 0.0)
    >>> clock.batch += 1
    >>> clock
    EvalClock(batch=1, sample=0, token=0, seconds=0.0)
    """

    __slots__ = ("_ended", "_now", "_started", "batch", "sample", "token")

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.batch = 0
        self.sample = 0
        self.token = 0
        self._now = now
        self._started = now()
        self._ended: float | None = None

    @property
    def seconds(self) -> float:
        """Wall time since it began; it stands still once the evaluation has ended."""
        return (self._now() if self._ended is None else self._ended) - self._started

    def end(self) -> None:
        """Stop the time, for those who keep the clock of an evaluation that is over."""
        if self._ended is None:
            self._ended = self._now()

    def __repr__(self) -> str:
        return (
            f"EvalClock(batch={self.batch}, sample={self.sample}, token={self.token}, seconds={round(self.seconds, 3)})"
        )


class Clock:
    """What a run has done so far. The loop adds to the counters; everybody else reads them.

    ``epoch`` and ``step`` count completed ones. All are totals over the run and its resumes;
    ``*_in_epoch`` count from the start of the last epoch that was begun, also in its end hooks.

    >>> clock = Clock(now=lambda: 0.0)
    >>> clock.mark_epoch()
    >>> clock.step += 3
    >>> clock.step_in_epoch, clock.reached(Duration.parse("3st")), clock.reached(Duration.parse("1ep"))
    (3, True, False)
    """

    # Plain attributes, not properties: the loop adds to them several times a step.
    __slots__ = (
        "_agreed_seconds",
        "_evals",
        "_marks",
        "_now",
        "_seconds",
        "_started",
        "batch",
        "batches_per_step",
        "epoch",
        "epoch_batches",
        "sample",
        "step",
        "token",
        "updates",
    )

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.epoch = 0
        self.step = 0
        self.batch = 0
        self.sample = 0
        self.token = 0
        self.updates: dict[str, int] = {}
        """The calls of ``optimizer.step()`` by the optimizer's name; a step may make none, or several."""
        self.epoch_batches: int | None = None
        """The batches of an epoch on this rank; of a loader without a length, those of the epoch before."""
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
        """Wall time between ``start()`` and ``pause()``, over all starts and resumes."""
        return self._seconds if self._started is None else self._seconds + (self._now() - self._started)

    def start(self) -> None:
        """Let the time run; nothing happens if it does already."""
        if self._started is None:
            self._started = self._now()

    def pause(self) -> None:
        """Stop the time; nothing happens if it stands already."""
        self._seconds, self._started = self.seconds, None

    def agree_seconds(self, seconds: float) -> None:
        """Decide about time by this value, rank zero's, until the next one: all ranks then decide alike.

        Only ``elapsed("s")`` and ``reached`` (and so every schedule) follow it; ``seconds`` stays local.
        """
        self._agreed_seconds = seconds

    # --- within the epoch

    def mark_epoch(self) -> None:
        """Begin an epoch: ``*_in_epoch`` count from here."""
        self._marks = _Marks(self.step, self.batch, self.sample, self.token, self.seconds, self.epoch)

    def end_epoch(self) -> None:
        """Count the epoch that is complete."""
        self.epoch += 1
        self.epoch_batches = self.batch_in_epoch or self.epoch_batches

    @property
    def passes(self) -> tuple[int, int]:
        """The epochs with the part of the one that is under way: batches, and how many of them are one epoch.

        Where the length of the epoch is not known, that are the complete epochs.

        >>> clock = Clock()
        >>> clock.epoch_batches, clock.batch = 8, 2
        >>> clock.passes
        (2, 8)
        """
        length = self.epoch_batches
        if not length:
            return self.epoch, 1
        # Between two epochs the batches in the epoch are still those of the one that is complete.
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

    def go_back(self, step: int, updates: Mapping[str, int]) -> None:
        """Steps are taken back; what they have read stays read, so the other counters and the time go on."""
        self.step, self.updates = step, dict(updates)
        self._marks = self._marks._replace(step=min(self._marks.step, step))

    # --- evaluation and prediction

    @property
    def eval(self) -> EvalClock:
        """The clock of the evaluation or prediction that is running, the innermost one if they nest."""
        if not self._evals:
            raise NotAvailableError(
                "clock.eval has no value, because no evaluation or prediction is running: read it from "
                "eval_start to eval_end or from predict_start to predict_end."
            )
        return self._evals[-1]

    @property
    def is_evaluating(self) -> bool:
        """Whether an evaluation or prediction is running."""
        return bool(self._evals)

    def begin_eval(self) -> EvalClock:
        """Open the clock of an evaluation or prediction; a hook of one may open another inside it."""
        self._evals.append(EvalClock(self._now))
        return self._evals[-1]

    def end_eval(self) -> EvalClock:
        """Close the innermost one and return it, with its time stopped."""
        ended = self.eval
        ended.end()
        self._evals.pop()
        return ended

    # --- in the units of durations

    def elapsed(self, unit: str) -> int | float:
        """The total in a unit of durations: ``ep``, ``st``, ``sp``, ``tok`` or ``s``.

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
        """Whether at least this much has been done.

        >>> Clock().reached(Duration.parse("1ep"))
        False
        """
        return self.elapsed(duration.unit) >= duration.value

    # --- saving

    def state_dict(self) -> dict[str, Any]:
        """The counters, the time and the marks of the epoch as plain values, without running evaluations."""
        return {
            **{name: getattr(self, name) for name in _COUNTERS},
            "updates": dict(self.updates),
            "seconds": self.seconds,
            "epoch_start": self._marks._asdict(),
            "epoch_batches": self.epoch_batches,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved clock. A running clock keeps running, from the saved time on."""
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
            # Every rank loads the same value, so they still agree.
            self._agreed_seconds = self._seconds

    def __repr__(self) -> str:
        counters = ", ".join(f"{name}={getattr(self, name)}" for name in _COUNTERS)
        state = "" if self._started is None else ", running"
        return f"Clock({counters}, seconds={round(self.seconds, 3)}{state})"


def _delegate(name: str) -> Any:
    return property(attrgetter(f"_real.{name}"))  # a hook that hears every step reads it


class EvalClockView(EvalClock):
    """``run.clock.eval``: the clock of an evaluation, to be read."""

    __slots__ = ("_real",)
    _real: EvalClock

    batch, sample, token = _delegate("batch"), _delegate("sample"), _delegate("token")
    _now, _started, _ended = _delegate("_now"), _delegate("_started"), _delegate("_ended")

    def __init__(self, real: EvalClock) -> None:
        object.__setattr__(self, "_real", real)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise _only_the_loop(f"run.clock.eval.{name} = …")

    def end(self) -> NoReturn:
        raise _only_the_loop("run.clock.eval.end()")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copy, (self._real,)  # a copy is a separate clock


class ClockView(Clock):
    """``run.clock``: the clock of a run, to be read. The loop has the clock itself, whose counters are plain."""

    __slots__ = ("_real",)
    _real: Clock

    epoch, step, batch = _delegate("epoch"), _delegate("step"), _delegate("batch")
    sample, token, seconds = _delegate("sample"), _delegate("token"), _delegate("seconds")
    _now, _seconds, _started = _delegate("_now"), _delegate("_seconds"), _delegate("_started")
    _agreed_seconds, _marks, _evals = _delegate("_agreed_seconds"), _delegate("_marks"), _delegate("_evals")
    epoch_batches, batches_per_step = _delegate("epoch_batches"), _delegate("batches_per_step")

    def __init__(self, real: Clock) -> None:
        object.__setattr__(self, "_real", real)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise _only_the_loop(f"run.clock.{name} = …")

    @property
    def updates(self) -> Mapping[str, int]:  # type: ignore[override]
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

    def go_back(self, step: int, updates: Mapping[str, int]) -> NoReturn:
        raise _only_the_loop("run.clock.go_back()")

    def load_state_dict(self, state: Mapping[str, Any]) -> NoReturn:
        raise _only_the_loop("run.clock.load_state_dict()")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copy, (self._real,)  # a copy is a separate clock


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
