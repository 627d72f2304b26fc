"""The batches that make one step, and their losses, until the step is judged."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Measured(NamedTuple):
    """One value of a step: what it is a value of, the number of its batch if it has one, and the value."""

    name: str
    batch: int | None
    value: float


class StepWindow:
    """Collects what a step is made of. Losses stay on their device until they are read, all at once."""

    __slots__ = ("_counts", "_losses", "batches", "found", "open")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """A new step begins."""
        self.open = self.found = False
        self.batches: dict[int, Any] = {}
        """By their number in the epoch."""
        self._counts: dict[int, int] = {}
        self._losses: list[tuple[str, int, Tensor]] = []

    def add_batch(self, number: int, batch: Any) -> None:
        self.batches[number] = batch
        self._counts[number] = 0

    def add_loss(self, loss: Tensor) -> None:
        """Of the last batch. It may have several, as in a GAN: the first is compared with first ones, and so on."""
        number = next(reversed(self._counts), 0)
        place = self._counts.get(number, 0)
        self._counts[number] = place + 1
        self._losses.append((f"loss/{place}", number, loss))

    def read_losses(self) -> list[Measured]:
        """Those since the last call, in one transfer."""
        losses, self._losses = self._losses, []
        if len(losses) == 1:
            name, number, loss = losses[0]
            return [Measured(name, number, loss.item())]
        values = torch.stack([loss.double() for _, _, loss in losses]).tolist() if losses else []
        return [Measured(name, number, value) for (name, number, _), value in zip(losses, values, strict=True)]
