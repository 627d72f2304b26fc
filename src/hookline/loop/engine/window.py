"""``AccumulationWindow``: the micro-batches of one step, until the step is made or dropped."""

from __future__ import annotations

from typing import Any

from hookline.loop.metrics.series import Series
from hookline.progress import Clock


class AccumulationWindow:
    """The micro-batches of one step: their weights and losses, and what the step has come to."""

    __slots__ = (
        "_batch", "_sample", "_token", "batch_mark", "count", "driven", "has_batch", "is_last_batch",
        "last_was_skipped", "last_weights", "losses", "moved", "size", "step_mark", "unit", "weight_sums",
    )  # fmt: skip

    def __init__(self) -> None:
        self.size = 1
        """The number of batches that make a step."""
        self.count = 0
        """The number of batches in the window."""
        self.is_last_batch = False
        """The batch under way is the last of the step."""
        self.has_batch = False
        """A batch is under way: it has been given, and not been completed."""
        self.moved = False
        """An optimizer has changed the weights in this step."""
        self.last_was_skipped = False
        """The last step was skipped or dropped: it does not count."""
        self._batch = self._sample = self._token = 0  # Counts of the clock before the window.
        self.losses: list[tuple[Series, Any, Any]] = []
        """The losses of the window with their weights. They count if the step does."""
        self.weight_sums: dict[str, Any] = {}
        """Optimizers with gradients in this window, and the sums of their weights."""
        self.last_weights: dict[str, tuple[int, Any]] = {}
        """By optimizer: the last batch that counted, and its weight."""
        self.unit: float | None = None
        """The sum of weights whose gradients need no division. ``None`` before the first loss of the window."""
        self.driven: dict[str, bool] = {}
        """Optimizers that the body steps itself, and whether they have changed the weights."""
        self.step_mark: int | None = None
        """The number of open scopes below those of the step, if the step has any."""
        self.batch_mark: int | None = None
        """The number of open scopes below those of the batch, if the batch has any."""

    def begin(self, clock: Clock) -> None:
        """A step begins."""
        self.last_was_skipped = False
        self._batch, self._sample, self._token = clock.batch, clock.sample, clock.token

    def add_batch(self, *, is_last: bool) -> None:
        """A batch is given to the step.

        Args:
            is_last: True if the batch is the last of its epoch, so that the window is short.
        """
        self.count += 1
        self.has_batch = True
        self.is_last_batch = is_last or self.count >= self.size

    def set_unit(self, weight: float) -> None:
        """Count the weights of this window in a unit.

        Args:
            weight: The weight of one batch. With as many batches of this weight as make a step, the sum is the unit.
        """
        self.unit = weight * self.size or 1.0

    def set_size(self, batches: int) -> None:
        """Change the number of batches that make a step."""
        self.size = batches

    def open_step(self, mark: int) -> None:
        """The scopes of the step are opened above a mark."""
        self.step_mark = mark

    def open_batch(self, mark: int) -> None:
        """The scopes of the batch are opened above a mark."""
        self.batch_mark = mark

    def take_step_mark(self) -> int | None:
        """Return the number of open scopes below those of the step, once."""
        mark, self.step_mark = self.step_mark, None
        return mark

    def take_batch_mark(self) -> int | None:
        """Return the number of open scopes below those of the batch, once."""
        mark, self.batch_mark = self.batch_mark, None
        return mark

    def has_loss_of(self, name: str, *, is_whole_step: bool) -> bool:
        """True if the batch under way has had a loss of an optimizer that has not stepped on it yet."""
        return name in self.weight_sums if is_whole_step else self.last_weights.get(name, (0, None))[0] == self.count

    def drop_optimizer(self, name: str) -> None:
        """Drop the weights of the losses of an optimizer, whose gradients are used or cleared."""
        self.weight_sums.pop(name, None)
        self.last_weights.pop(name, None)

    def take_losses(self, *, counts: bool) -> None:
        """The window is complete: hand its losses to their metrics, if they count."""
        if counts:
            for series, value, weight in self.losses:
                series.values.append(value)
                series.weights.append(weight)
        self.losses.clear()

    def end(self, *, skipped: bool = False) -> None:
        """The step is made, skipped or dropped."""
        self.count, self.moved, self.has_batch, self.is_last_batch = 0, False, False, False
        self.last_was_skipped = skipped
        self.step_mark = self.batch_mark = self.unit = None
        for held in (self.driven, self.weight_sums, self.last_weights, self.losses):
            if held:
                held.clear()

    def turn_back(self, clock: Clock) -> None:
        """The clock forgets the batches of a window that is dropped, so that another fit trains on them."""
        if self.count and not self.moved:
            clock.take_back_batches(self._batch, self._sample, self._token)
