"""Batches and losses of one step, kept until the step is judged."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Measured(NamedTuple):
    """One value of a step: its name, the number of its batch if it has one, and the value."""

    name: str
    batch: int | None
    value: float


class StepWindow:
    """Collector of the batches and losses of one step.

    Losses stay on their device until ``read_losses`` reads them in one transfer.
    """

    __slots__ = ("_counts", "_losses", "batches", "found", "open")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove everything, for a new step."""
        self.open = self.found = False
        self.batches: dict[int, Any] = {}
        """Batches by their number in the epoch."""
        self._counts: dict[int, int] = {}
        self._losses: list[tuple[str, int, Tensor]] = []

    def add_batch(self, number: int, batch: Any) -> None:
        """Add a batch with its number in the epoch."""
        self.batches[number] = batch
        self._counts[number] = 0

    def add_loss(self, loss: Tensor) -> None:
        """Add a loss of the last batch.

        A batch may have several losses, as in a GAN. The first loss is compared with first losses only, and so on.
        """
        number = next(reversed(self._counts), 0)
        place = self._counts.get(number, 0)
        self._counts[number] = place + 1
        self._losses.append((f"loss/{place}", number, loss))

    def read_losses(self) -> list[Measured]:
        """Return the losses since the last call, read in one transfer."""
        losses, self._losses = self._losses, []
        if len(losses) == 1:
            name, number, loss = losses[0]
            return [Measured(name, number, loss.item())]
        values = torch.stack([loss.double() for _, _, loss in losses]).tolist() if losses else []
        return [Measured(name, number, value) for (name, number, _), value in zip(losses, values, strict=True)]
