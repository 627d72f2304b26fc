"""``TTModel`` of AIToolbox as the model of a run."""

from __future__ import annotations

from typing import Any

import torch

from hookline.errors import LossError
from hookline.run import Run


class TTModelSteps:
    """Methods of a task for a ``TTModel``: the loop makes a task of this class and of ``hl.Task``.

    The loss of a step, of an epoch and of an evaluation is a mean over batches, as in AIToolbox.

    Args:
        model: The model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.criterion: Any = None

    def own_callbacks(self) -> list[object]:
        """Return no callbacks: a ``TTModel`` brings none."""
        return []

    def use_loss(self, loss: Any) -> None:
        """Set the ``criterion`` that ``get_loss`` gets.

        Args:
            loss: The loss that was passed to ``fit`` or ``evaluate``.
        """
        self.criterion = loss

    def train_batch(self, run: Run, batch: Any, /) -> Any:
        return self._weighted(self.model.get_loss(batch, self.criterion, run.device), "get_loss")

    def eval_batch(self, run: Run, batch: Any, /) -> Any:
        return self._weighted(self.model.get_loss_eval(batch, self.criterion, run.device), "get_loss_eval")

    def predict_batch(self, run: Run, batch: Any, /) -> Any:
        """Return the predictions, the targets and the metadata of a batch."""
        predictions, targets, metadata = self.model.get_predictions(batch, run.device)
        return predictions, targets, metadata or {}

    def _weighted(self, loss: Any, method: str) -> dict[str, Any]:
        if not isinstance(loss, torch.Tensor):
            raise LossError(
                f"{type(self.model).__name__}.{method} returned {type(loss).__name__}: Hookline needs one loss tensor. "
                f"Return the sum, or write a hl.Task with several optimizers."
            )
        return {"loss": loss, "weight": 1}
