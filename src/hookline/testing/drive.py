"""``drive``: one callback through any sequence of hooks, without a training loop around it."""

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
"""An event, with fields, a scope with what happens inside it, or a function that is given ``run``."""

SCOPE_HOOKS = tuple(scope.hook for scope in SCOPES)


class Driven:
    """What a callback did while it was driven, and the ``run`` that it saw. ``then`` drives it on."""

    def __init__(self, callback: Callback, stage: Stage, *, tolerant: bool = False) -> None:
        self._stage = stage
        self._tolerant = tolerant
        self.callback: Any = callback
        self.run: Run = stage.run
        """The callback's own ``run``, as it is after the last event."""
        self.sent: list[str] = []
        """The names of the events that were sent."""
        self.stops: list[StopRequest] = stage.stops
        """Every vote to stop, with ``reason``, ``by`` and ``step``."""
        self.requests: list[tuple[str, str]] = stage.asked
        """``(event, what)``, where what is ``"eval"``, ``"save"`` or ``"skip"``."""
        self.logged: dict[str, list[Any]] = stage.logged
        """What the callback logged, by the full name of the metric: every value, as it was given."""
        self.messages: dict[str, list[Any]] = stage.sent_messages
        """What the callback sent on ``run.messages``, by key."""
        self.emitted: list[tuple[str, dict[str, object]]] = stage.emitted
        """``(event, payload)`` of every event that the callback sent itself."""

    @property
    def stop_reason(self) -> str | None:
        """The reason of the first vote to stop, which is the one that counts; ``None`` if there is none."""
        return self.stops[0].reason if self.stops else None

    @property
    def failures(self) -> tuple[Failure, ...]:
        """With ``tolerant``: why an optional callback was switched off."""
        return tuple(self._stage.line.failures)

    def then(self, events: Iterable[Item]) -> Self:
        """Send more events. What was set before stays set; an evaluation that was left open has ended."""
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
                f"{item!r} is no event; give 'train_start', ('train_step_end', {{'step': 1}}), "
                f"('around_eval', [...]) or a function of run"
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
            raise RegistrationError(f"{name!r} is no scope, so nothing can happen inside it; did you mean 'around_…'?")
        self.sent.append(name)
        payload = {key: fields[key] for key in event.gives if key in fields}
        stage.before(event, {key: value for key, value in fields.items() if key not in payload})
        stage.send(event, payload)
        stage.after(event)
        self._raise_failures()

    def _raise_failures(self) -> None:
        """An optional callback that fails is switched off in a run. In a test its error is what one wants to see."""
        if self.failures and not self._tolerant:
            failure = self.failures[0]
            failure.error.add_note(
                f"in {failure.callback}.{failure.hook}; drive(…, tolerant=True) notes it as a run does"
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
    """Send a callback through a sequence of hooks, and see what it did.

    Line, run, metrics and scopes are those of a real run; only the loop is missing. An item of ``events`` is

    - the name of an event: ``"train_start"``;
    - with fields of ``run``: ``("train_step_end", {"step": 3, "loss": 0.5})``. A field is ``step``, ``epoch``,
      ``sample``, ``token``, ``seconds`` or ``"clock.…"``; ``metrics``, which are then logged; ``batch``, ``outputs``,
      ``loss``, ``stage``, ``loader_name``, ``exception``, ``checkpoint``, ``stop_reason``, ``max_duration`` …; the
      keywords of a custom event;
    - a scope, with what happens inside it: ``("around_eval", ["eval_start", "eval_end"])``;
    - a function, which is called with ``run``.

    What is not set is as in a run of ``TinyModel`` on ``tiny_data``: a batch, its outputs, its loss and the gradients,
    at the events where the table of events says that there are such; ``train_step_end`` counts a step,
    ``train_epoch_end`` an epoch. No weight moves, and time stands still. ``model``, ``loss`` and ``data`` are your own;
    ``options`` are those of ``Trainer`` (nothing is written unless there is a ``folder``).

    An error of the callback is raised, also if it is optional, unless ``tolerant``.

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
    """``(name, fields, inner)`` of ``(name, fields)``, ``(name, inner)`` or all three."""
    name, *rest = item
    fields = [part for part in rest if isinstance(part, Mapping)]
    inner = [part for part in rest if isinstance(part, list | tuple)]
    if not isinstance(name, str) or len(fields) > 1 or len(inner) > 1 or len(rest) != len(fields) + len(inner):
        raise RegistrationError(f"{item!r}: give (event, {{field: value}}) or (scope, [events])")
    return name, fields[0] if fields else {}, inner[0] if inner else ()


def _known(name: str, line: Line[Run]) -> Event:
    """The event of this name, or an error with a suggestion."""
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
