"""``Task``: the computation of one batch, with the hooks of a callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import Tensor, nn

from hookline.errors import SetupError
from hookline.events import Event, Hooks
from hookline.loop.data.batches import count

if TYPE_CHECKING:
    from hookline.run import Run

Batch = TypeVar("Batch")


class Task(nn.Module, Hooks, Generic[Batch]):
    """A module that computes the loss or the predictions of a batch.

    Define the methods that you need:

    - ``train_batch(run, batch)`` returns the mean loss over the batch, or a dict with ``"loss"`` and optionally
      ``"weight"`` (default: the number of samples) and ``"outputs"``. Or it steps its optimizers itself, with
      ``run.loop.backward(loss, optimizer)`` and ``run.loop.step(optimizer)``.
    - ``eval_batch(run, batch)`` may return the same. Hookline logs its loss as ``loss``.
    - ``predict_batch(run, batch)`` returns the predictions.
    - ``configure_optimizers(run)`` returns an optimizer, a list or a dict of optimizers, or
      ``(optimizers, schedulers)``.

    Example:
        >>> import torch
        >>> class Fit(Task):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Linear(4, 1)
        ...
        ...     def configure_optimizers(self, run):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        ...
        ...     def train_batch(self, run, batch):
        ...         x, y = batch
        ...         return (self.net(x) - y).square().mean()
    """

    events: tuple[Event, ...] = ()
    """Events that the task defines and sends with ``run.emit``."""
    drives_updates: bool = False
    """True if ``train_batch`` calls ``loss.backward()``, steps its optimizers with ``run.loop.step(optimizer)`` and
    logs its losses."""

    def count(self, batch: Batch) -> tuple[int, int | None]:
        """Return the number of samples in a batch and, if known, of tokens.

        The default is the first dimension of the first tensor.

        Args:
            batch: The batch.
        """
        return count(batch)

    if TYPE_CHECKING:

        def train_batch(self, run: Run, batch: Batch, /) -> Tensor | dict[str, Any] | None: ...
        def eval_batch(self, run: Run, batch: Batch, /) -> Tensor | dict[str, Any] | None: ...
        def predict_batch(self, run: Run, batch: Batch, /) -> Any: ...
        def configure_optimizers(self, run: Run) -> Any: ...


def counter(task: Task[Any] | None) -> Callable[[Any], tuple[int, int | None]]:
    """Return the function that counts batches. The default itself saves a call per step."""
    if task is None or type(task).count is Task.count:
        return count

    def counted(batch: Any) -> tuple[int, int | None]:
        found: Any = task.count(batch)
        if not isinstance(found, tuple) or len(found) != 2 or found[0] is None:
            raise SetupError(f"{type(task).__name__}.count(batch) returned {found!r}; return (samples, tokens or None)")
        samples, tokens = found
        return int(samples), None if tokens is None else int(tokens)  # The clock counts in Python integers.

    return counted
