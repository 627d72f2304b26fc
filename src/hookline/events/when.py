"""Filters that decide by clock, stage and rank whether a hook runs."""

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
    """Filter of a hook. It has no state: the ``Gate`` of the hook stores when the hook last ran."""

    every: Duration | None = None
    """Interval between two calls."""
    at: Duration | None = None
    """Duration after which the hook runs once."""
    once: bool = False
    """Run the hook only once."""
    ranks: Ranks = "all"
    """Ranks on which the hook runs."""
    stage: tuple[str, ...] = ()
    """Stages in which the hook runs. An empty tuple stands for all stages."""

    def __post_init__(self) -> None:
        if isinstance(self.ranks, set):
            object.__setattr__(self, "ranks", frozenset(self.ranks))  # A frozen value must not hold a mutable set.
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
        """True if the filter depends on when the hook last ran, which a checkpoint saves."""
        return self.every is not None or self.at is not None or self.once

    @property
    def arguments(self) -> str:
        """Filter as the user writes it in ``hl.on(event, …)``."""
        durations = {"every": self.every, "at": self.at}
        given = {key: str(value) for key, value in durations.items() if value is not None}
        others = {"once": self.once, "stage": self.stage} | ({} if self.ranks == "all" else {"ranks": self.ranks})
        return "".join(f", {key}={value!r}" for key, value in (given | others).items() if value)


class Gate:
    """Hook with a filter. It stores when it last ran, so that a resume does not repeat a call.

    Args:
        when: The filter.
        call: The hook.
    """

    __slots__ = ("_saved", "call", "done", "schedule", "when")

    def __init__(self, when: When, call: Callable[..., Any]) -> None:
        self.when = when
        self.call = call
        self.done = False
        self.schedule: Schedule | None = None
        self._saved: Mapping[str, Any] | None = None  # It is used once `every` can be resolved.

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
    """Callback that ``hl.on`` makes from a function.

    Args:
        event: Name of the event.
        function: The function to call.
        when: The filter.
        writes: Metrics and resources that the function writes.
    """

    state_depends_on = ("event", "name", "at")

    def __init__(self, event: str, function: Callable[..., Any], when: When, writes: tuple[str, ...] = ()) -> None:
        self.event = event
        self.function = function
        self.when = when
        self.ranks = when.ranks
        if writes:  # Without a declaration, the function may log any metric.
            self.writes = writes
        self.name = getattr(function, "__qualname__", type(function).__qualname__)

    @property
    def at(self) -> str | None:
        """The filter ``at`` as a string. If it changes, the function runs again after a resume."""
        return None if self.when.at is None else str(self.when.at)

    @property
    def declares_state(self) -> bool:
        """True if a checkpoint saves when the function last ran."""
        return self.when.has_state

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint: the event, the filter and the name of the function.

        The name alone is ambiguous: a function can have several events or filters, and lambdas share one name.
        """
        return f"hl.on({self.event!r}{self.when.arguments})({self.name})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, so that a decorated function can be used and tested."""
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
    """Make a callback from a callable: ``@hl.on("train_step_end", every="100st")``.

    Args:
        event: Name of the event, such as ``"train_step_end"``.
        every: Interval between two calls, such as ``"100st"`` or ``"1ep"``.
        at: Duration after which the callable runs once. Use either ``every`` or ``at``.
        once: Run the callable only once.
        ranks: Ranks on which the callable runs: ``"all"``, ``"zero"``, ``"local_zero"`` or a set of ranks.
        stage: Stage or stages in which the callable runs. All stages by default.
        writes: Metrics and resources that the callable writes, as in ``Callback.writes``.

    Returns:
        A decorator that returns the callback.

    Raises:
        RegistrationError: If ``event`` is not a string, a stage is unknown, or ``every`` and ``at`` are both given.
        DurationError: If ``every`` or ``at`` is not a duration.

    Example:
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
