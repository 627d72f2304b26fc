"""Filters: when a hook really runs. Frozen values over the clock, the stage and the rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hookline.errors import RegistrationError
from hookline.events.callback import Callback, Ranks
from hookline.events.spec import ANY
from hookline.progress import Duration, Schedule

if TYPE_CHECKING:
    from hookline.run import Run


@dataclass(frozen=True, slots=True)
class When:
    """A filter; what it fired last is not kept here but in the handler's ``Gate``."""

    every: Duration | None = None
    at: Duration | None = None
    once: bool = False
    ranks: Ranks = "all"
    stage: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.ranks, set):
            object.__setattr__(self, "ranks", frozenset(self.ranks))  # a frozen value holds no set that can change
        unknown = [stage for stage in self.stage if stage not in ANY]
        if unknown:
            raise RegistrationError(f"stage={unknown[0]!r}: no such stage; use one of {', '.join(ANY)}")
        if self.every is not None and self.at is not None:
            raise RegistrationError(f"every={str(self.every)!r} and at={str(self.at)!r}: give one of the two")

    @property
    def always(self) -> bool:
        return not self.has_state and not self.stage

    @property
    def has_state(self) -> bool:
        """True if it depends on when the hook ran before, which a checkpoint holds."""
        return self.every is not None or self.at is not None or self.once

    @property
    def arguments(self) -> str:
        """The filter as it is written in ``hl.on(event, …)``."""
        durations = {"every": self.every, "at": self.at}
        given = {key: str(value) for key, value in durations.items() if value is not None}
        others = {"once": self.once, "stage": self.stage} | ({} if self.ranks == "all" else {"ranks": self.ranks})
        return "".join(f", {key}={value!r}" for key, value in (given | others).items() if value)


class Gate:
    """A hook behind a filter. It remembers what it fired last, so that a resume does not fire again."""

    __slots__ = ("_saved", "call", "done", "schedule", "when")

    def __init__(self, when: When, call: Callable[..., Any]) -> None:
        self.when = when
        self.call = call
        self.done = False
        self.schedule: Schedule | None = None
        self._saved: Mapping[str, Any] | None = None  # until `every` can be resolved

    def __call__(self, run: Run, **payload: object) -> None:
        when = self.when
        if self.done or (when.stage and run.stage not in when.stage):
            return
        if when.every is not None:
            schedule = self.schedule or self._resolve(run, when.every)
            if not schedule.due(run.clock):
                return
            schedule.fired(run.clock)
        elif when.at is not None:
            if not run.clock.reached(when.at.of(run.max_duration)):
                return
            self.done = True
        self.done = self.done or when.once
        self.call(run, **payload)

    def _resolve(self, run: Run, every: Duration) -> Schedule:
        self.schedule = Schedule(every.of(run.max_duration))
        if self._saved is not None:
            self.schedule.load_state_dict(self._saved)
        return self.schedule

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "schedule": self.schedule.state_dict() if self.schedule else self._saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.done, self._saved, self.schedule = bool(state["done"]), state["schedule"], None


class FunctionCallback(Callback):
    """A callback made of one function by ``hl.on``."""

    state_depends_on = ("event", "name", "at")

    def __init__(self, event: str, function: Callable[..., Any], when: When, writes: tuple[str, ...] = ()) -> None:
        self.event = event
        self.function = function
        self.when = when
        self.ranks = when.ranks
        if writes:  # without, the function may log anything
            self.writes = writes
        self.name = getattr(function, "__qualname__", type(function).__qualname__)

    @property
    def at(self) -> str | None:
        """When it runs once, as a string: one that has run is to run again at another time."""
        return None if self.when.at is None else str(self.when.at)

    @property
    def declares_state(self) -> bool:
        """True if a checkpoint holds when it ran last."""
        return self.when.has_state

    @property
    def state_key(self) -> str:
        """One function may be used for several events or filters, and most lambdas have one name."""
        return f"hl.on({self.event!r}{self.when.arguments})({self.name})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, so that a decorated function can still be used and tested."""
        return self.function(*args, **kwargs)


def on(
    event: str,
    *,
    every: str | Duration | None = None,
    at: str | Duration | None = None,
    once: bool = False,
    ranks: Ranks = "all",
    stage: str | tuple[str, ...] = (),
    writes: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], FunctionCallback]:
    """Make a callback of any callable: ``@hl.on("train_step_end", every="100st")``.

    ``writes`` are the metrics and resources that it writes, as those of a callback.

    >>> @on("train_step_end", every="100st")
    ... def show(run):
    ...     print(run.clock.step, run.metrics["train/loss"])
    >>> show.name
    'show'
    """
    if not isinstance(event, str):
        name = getattr(event, "__name__", repr(event))
        raise RegistrationError(
            f"hl.on({name}): say when it runs, as in @hl.on('train_step_end'); `hookline events` lists the events"
        )
    when = When(
        every=None if every is None else Duration.parse(every, f"hl.on({event!r}, every=…)"),
        at=None if at is None else Duration.parse(at, f"hl.on({event!r}, at=…)"),
        once=once,
        ranks=ranks,
        stage=(stage,) if isinstance(stage, str) else tuple(stage),
    )

    def decorate(function: Callable[..., Any]) -> FunctionCallback:
        if not callable(function):
            raise RegistrationError(
                f"hl.on({event!r}): {function!r} is not callable; decorate a function of one argument, run"
            )
        return FunctionCallback(event, function, when, writes)

    return decorate
