"""Parts of a run that record the actions of a callback, in addition to their usual work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hookline.events.messages import Lifetime, Messages
from hookline.loop.metrics.book import MetricBook
from hookline.run import Run

Note = Callable[[str, Any], None]


class NotedMessages(Messages):
    """Call ``note`` for every message that is sent."""

    __slots__ = ("_note",)

    def __init__(self, note: Note) -> None:
        self._note = note
        super().__init__()

    def send(self, key: str, value: Any, *, keep: Lifetime = "epoch", replace: bool = False) -> None:
        super().send(key, value, keep=keep, replace=replace)
        self._note(key, value)


class NotedMetrics:
    """Call ``note`` with the full name of every value that a callback logs."""

    def __init__(self, book: MetricBook, note: Note) -> None:
        self._book, self._note = book, note

    def log(self, values: Mapping[str, Any], weight: Any, reduce: str, step: int | None, by: Run) -> None:
        self._book.log(values, weight, reduce, step, by)
        for name, value in values.items():
            given = value.detach().tolist() if isinstance(value, torch.Tensor) else value
            self._note(self._book.full_name(name), given)

    def value(self, name: str) -> Any:
        return self._book.value(name)

    def names(self) -> Iterator[str]:
        return self._book.names()

    def measured_at(self, name: str) -> int | None:
        return self._book.measured_at(name)

    def measured_now(self, *, pending: bool = False) -> dict[str, float]:
        return self._book.measured_now(pending=pending)

    def rename(self, old: str, new: str, *, keep: bool = False) -> None:
        self._book.rename(old, new, keep=keep)
