"""``drive``: send any sequence of events to one callback, without a training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Self

from torch import nn

from hookline.errors import RegistrationError
from hookline.events import Callback, Event, Failure, Line
from hookline.events.spec import SCOPES
from hookline.events.validate import suggestion
from hookline.run import Run, StopRequest
from hookline.testing.stage import Stage

Fields = Mapping[str, Any]
Item = (
    str | tuple[str, Fields] | tuple[str, Sequence[Any]] | tuple[str, Fields, Sequence[Any]] | Callable[[Run], object]
)
"""An event, an event with fields, a scope with its inner items, or a function of ``run``."""

SCOPE_HOOKS = tuple(scope.hook for scope in SCOPES)


class Driven:
    """The actions of a driven callback, and its ``run``. ``then`` sends more events.

    Args:
        callback: The callback.
        stage: The parts of the run around the callback.
        tolerant: Record errors of an optional callback instead of raising them.
    """

    def __init__(self, callback: Callback, stage: Stage, *, tolerant: bool = False) -> None:
        self._stage = stage
        self._tolerant = tolerant
        self.callback: Any = callback
        self.run: Run = stage.run
        """The callback's ``run`` after the last event."""
        self.sent: list[str] = []
        """Names of the events that were sent."""
        self.stops: list[StopRequest] = stage.stops
        """Every vote to stop, with ``reason``, ``by`` and ``step``."""
        self.requests: list[tuple[str, str]] = stage.asked
        """Pairs ``(event, what)``, where ``what`` is ``"eval"``, ``"save"`` or ``"skip"``."""
        self.logged: dict[str, list[Any]] = stage.logged
        """All values that the callback logged, by the full name of the metric."""
        self.messages: dict[str, list[Any]] = stage.sent_messages
        """All values that the callback sent on ``run.messages``, by key."""
        self.emitted: list[tuple[str, dict[str, object]]] = stage.emitted
        """Pairs ``(event, payload)`` of every event that the callback sent."""

    @property
    def stop_reason(self) -> str | None:
        """Reason of the first vote to stop, which is the one that counts, or ``None``."""
        return self.stops[0].reason if self.stops else None

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Errors that disabled an optional callback, if ``tolerant`` is set."""
        return tuple(self._stage.line.failures)

    def then(self, events: Iterable[Item]) -> Self:
        """Send more events. Fields keep their values, but an open evaluation has ended.

        Args:
            events: Items as in ``drive``.

        Returns:
            This object.
        """
        try:
            for item in events:
                self._play(item)
        finally:
            self._stage.clear()
        return self

    def _play(self, item: Item) -> None:
        if isinstance(item, str):
            self._send(item, {}, ())
        elif isinstance(item, tuple):
            self._send(*_parts(item))
        elif callable(item):
            item(self.run)
        else:
            raise RegistrationError(
                f"drive(): {item!r} is not an event. Give 'train_start', ('train_step_end', {{'step': 1}}), "
                f"('around_eval', [...]) or a function of run."
            )

    def _send(self, name: str, fields: Fields, inner: Sequence[Any]) -> None:
        stage, line = self._stage, self._stage.line
        if name in SCOPE_HOOKS:
            with stage.scope(name, fields):
                self._raise_failures()
                for item in inner:
                    self._play(item)
            self._raise_failures()
            return
        event = _known(name, line)
        if inner:
            raise RegistrationError(f"drive(): {name!r} is not a scope and has no inner items. Use 'around_…'.")
        self.sent.append(name)
        payload = {key: fields[key] for key in event.gives if key in fields}
        stage.before(event, {key: value for key, value in fields.items() if key not in payload})
        stage.send(event, payload)
        stage.after(event)
        self._raise_failures()

    def _raise_failures(self) -> None:
        """Raise the error of an optional callback.

        A run would disable the callback, but a test has to fail.
        """
        if self.failures and not self._tolerant:
            failure = self.failures[0]
            failure.error.add_note(
                f"in {failure.callback}.{failure.hook}; drive(…, tolerant=True) records it, as a run does"
            )
            raise failure.error

    def __repr__(self) -> str:
        return f"<Driven {self.callback!r}, {len(self.sent)} events, stops={[stop.reason for stop in self.stops]}>"


def drive(
    callback: Callback,
    events: Iterable[Item],
    *,
    model: nn.Module | None = None,
    loss: Callable[..., Any] | None = None,
    data: Sequence[Any] | None = None,
    rank: int = 0,
    world_size: int = 1,
    tolerant: bool = False,
    **options: Any,
) -> Driven:
    """Send a sequence of events to a callback and record its actions.

    Hooks, ``run``, metrics and scopes are those of a real run. Only the loop is missing. An item of ``events`` is one
    of these:

    - the name of an event: ``"train_start"``
    - an event with fields of ``run``: ``("train_step_end", {"step": 3, "loss": 0.5})``
    - a scope with its inner items: ``("around_eval", ["eval_start", "eval_end"])``
    - a function, which is called with ``run``

    A field is ``step``, ``epoch``, ``sample``, ``token``, ``seconds`` or ``"clock.…"``; ``metrics``, which are then
    logged; ``batch``, ``outputs``, ``loss``, ``stage``, ``loader_name``, ``exception``, ``checkpoint``,
    ``stop_reason``, ``max_duration`` and others; or a keyword of a custom event.

    Fields without a given value are as in a run of ``TinyModel`` on ``tiny_data``: a batch, its outputs, its loss and
    the gradients, at the events where the table of events lists them. ``train_step_end`` counts a step and
    ``train_epoch_end`` an epoch. Weights do not change, and the clock's seconds stand still.

    Args:
        callback: The callback to drive.
        events: The items to send, in order.
        model: Model of the run. ``TinyModel()`` by default.
        loss: Loss function of the run.
        data: Batches of the run.
        rank: Rank of the process.
        world_size: Number of processes.
        tolerant: Record errors of an optional callback instead of raising them.
        **options: Options of ``Trainer``. Without ``folder``, nothing is written.

    Returns:
        The recorded actions.

    Raises:
        RegistrationError: If an item is not an event, a scope or a function.
        SetupError: If a field does not exist.

    Example:
        >>> from hookline.callbacks import EarlyStopping
        >>> driven = drive(
        ...     EarlyStopping("val/loss", patience=1),
        ...     [
        ...         "setup",
        ...         ("eval_end", {"step": 5, "metrics": {"val/loss": 0.4}}),
        ...         ("eval_end", {"metrics": {"val/loss": 0.6}}),
        ...     ],
        ... )
        >>> driven.stop_reason
        'val/loss has not improved on 0.4 (step 5) for 1 evaluation'
    """
    stage = Stage(callback, model, loss, data, rank=rank, world_size=world_size, options=options)
    return Driven(callback, stage, tolerant=tolerant).then(events)


def _parts(item: tuple[Any, ...]) -> tuple[str, Fields, Sequence[Any]]:
    """Return ``(name, fields, inner)`` from ``(name, fields)``, ``(name, inner)`` or all three."""
    name, *rest = item
    fields = [part for part in rest if isinstance(part, Mapping)]
    inner = [part for part in rest if isinstance(part, list | tuple)]
    if not isinstance(name, str) or len(fields) > 1 or len(inner) > 1 or len(rest) != len(fields) + len(inner):
        raise RegistrationError(f"drive(): {item!r} is invalid. Give (event, {{field: value}}) or (scope, [events]).")
    return name, fields[0] if fields else {}, inner[0] if inner else ()


def _known(name: str, line: Line[Run]) -> Event:
    """Return the event of this name. An unknown name raises an error with a suggestion."""
    if name in line.known:
        return line.known[name]
    bare = name.removeprefix("on_")
    if bare in line.known:
        hint = f"; the hook is {name}, the event is {bare!r}"
    elif f"around_{name}" in SCOPE_HOOKS:
        hint = f"; did you mean 'around_{name}'?"
    elif name.startswith("around_"):
        close = get_close_matches(name, SCOPE_HOOKS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; the scopes are {', '.join(SCOPE_HOOKS)}"
    else:
        hint = suggestion(name, line.known, prefix="")
    raise RegistrationError(f"drive(): no event {name!r}{hint}")
