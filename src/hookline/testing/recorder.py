"""``Recorder``: record the events of a run in their order, and fields of ``run``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

import torch

from hookline.errors import RegistrationError
from hookline.events import Callback, Event
from hookline.events.spec import BY_NAME
from hookline.events.validate import suggestion

if TYPE_CHECKING:
    from hookline.run import Run


class Recorder(Callback):
    """Record the name of every event in ``names`` and fields of ``run`` in ``rows``.

    The recorder requests nothing, logs nothing and changes nothing. Values are copies: a scalar tensor becomes a
    number, other tensors are detached. A field without a value at an event is absent from its row.

    Args:
        fields: Paths on ``run``: ``"stage"``, ``"clock.step"``, ``"metrics.val/loss"``, or keywords of a custom event.
        only: Names of the events to record. By default, all events.
        name: Name of the callback.

    Raises:
        RegistrationError: If ``only`` contains a name that is not an event. Raised at the first event.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> recorder = Recorder(fields=("clock.step", "stage", "loss"), only=("train_start", "train_step_end"))
        >>> trainer = Trainer(max_duration="1st", callbacks=[recorder], folder=False)
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        >>> recorder.names
        ['train_start', 'train_step_end']
        >>> recorder.rows[0]
        {'event': 'train_start', 'clock.step': 0, 'stage': 'train'}
        >>> recorder.rows[1].keys()
        dict_keys(['event', 'clock.step', 'stage', 'loss'])
    """

    def __init__(self, fields: Iterable[str] = (), only: Iterable[str] | None = None, *, name: str = "") -> None:
        self.fields = (fields,) if isinstance(fields, str) else tuple(fields)
        self.only = None if only is None else frozenset((only,) if isinstance(only, str) else only)
        self.name = name
        self.names: list[str] = []
        """Names of the events, in order. (The attribute ``events`` declares custom events.)"""
        self.rows: list[dict[str, Any]] = []
        """With ``fields``: ``{"event": name, field: value, …}`` per event."""
        self._known: Mapping[str, Event] = {}

    def on_event(self, event: str, run: Run, **payload: object) -> None:
        if not self._known:
            self._known = run._state.line.known
            self._check(self.only or ())
        if self.only is not None and event not in self.only:
            return
        self.names.append(event)
        if self.fields:
            found = {field: _read(run, payload, field) for field in self.fields}
            self.rows.append({"event": event} | {field: value for field, value in found.items() if value is not ABSENT})

    def count(self, event: str) -> int:
        """Return how often an event was sent.

        Args:
            event: Name of the event.
        """
        self._check([event])
        return Counter(self.names)[event]

    def without(self, *events: str) -> list[str]:
        """Return the recorded names without some of them, for a shorter list.

        Args:
            *events: Names to leave out.
        """
        self._check(events)
        return [event for event in self.names if event not in events]

    def clear(self) -> None:
        """Delete the records."""
        self.names.clear()
        self.rows.clear()

    def _check(self, names: Iterable[str]) -> None:
        """Refuse an unknown name: such an event is never sent, so the test would never fail."""
        known = self._known or BY_NAME
        for name in names:
            if name not in known and name not in self.names:
                raise RegistrationError(f"{self!r}: no event {name!r}{suggestion(name, known, prefix='')}")


ABSENT: Any = object()


def _read(run: Run, payload: Mapping[str, object], field: str) -> Any:
    """Return a copy of the value at a path, or ``ABSENT`` if reading it fails."""
    first, _, rest = field.partition(".")
    try:
        value = payload[first] if first in payload else getattr(run, first)
        while rest:
            if isinstance(value, Mapping):
                value, rest = value[rest], ""  # The name of a metric may contain dots.
            else:
                part, _, rest = rest.partition(".")
                value = getattr(value, part)
        return _copied(value)
    except Exception:
        return ABSENT


def _copied(value: Any) -> Any:
    """Return a copy that does not change later and holds no graph."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.ndim else value.item()
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    return value if isinstance(value, torch.nn.Module | torch.optim.Optimizer) else copy(value)
