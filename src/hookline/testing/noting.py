"""The parts of a run that note what a callback does with them, and do what they always do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from hookline.events.messages import Lifetime, Messages
from hookline.loop.metrics import MetricBook
from hookline.run import Requests, Run, StopRequest

Note = Callable[..., None]


class NotedRequests(Requests):
    """Notes every request; saving and evaluating are possible."""

    __slots__ = ("_note",)

    def __init__(self, note: Note) -> None:
        self._note = note
        super().__init__()
        self.can_save = True

    def ask_stop(self, request: StopRequest, *, agreed: bool = False) -> None:
        super().ask_stop(request, agreed=agreed)
        self._note("stop", request)

    def ask_eval(self) -> None:
        super().ask_eval()
        self._note("eval")

    def ask_save(self) -> None:
        super().ask_save()
        self._note("save")

    def ask_skip(self, by: str, *, agreed: bool = False) -> None:
        super().ask_skip(by, agreed=agreed)
        self._note("skip")


class NotedMessages(Messages):
    """Notes every message that is sent."""

    __slots__ = ("_note",)

    def __init__(self, note: Note) -> None:
        self._note = note
        super().__init__()

    def send(self, key: str, value: Any, *, keep: Lifetime = "epoch", replace: bool = False) -> None:
        super().send(key, value, keep=keep, replace=replace)
        self._note(key, value)


class NotedBook(MetricBook):
    """Notes every value that is logged, under its full name."""

    note: Note

    def log(
        self, values: Mapping[str, Any], weight: Any, reduce: str, step: int | None = None, by: Run | None = None
    ) -> None:
        super().log(values, weight, reduce, step, by)
        for name, value in values.items():
            self.note(self.full_name(name), value.detach().tolist() if isinstance(value, torch.Tensor) else value)

    def put(self, values: Mapping[str, Any]) -> None:
        """Give metrics their values, whatever was logged before."""
        self._groups.clear()
        self._rows.measured.clear()  # a sequence may give them several times at one step
        for name in values:
            self._layers[-1].series.pop(self.full_name(name), None)
        super().log(values, None, "mean")
