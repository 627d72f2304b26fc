"""``CutMix``: train on images with a rectangle of another image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hookline.callbacks.regularization._mixing import Mixing
from hookline.errors import SetupError

if TYPE_CHECKING:
    from torch import Tensor


class CutMix(Mixing):
    """Train on images with a rectangle of another image, with losses in proportion to the areas.

    The last two dimensions of the inputs are height and width. Evaluations get the images as they are. ``train/loss``
    is the mixed loss. Targets in ``run.batch`` are those of the images around the rectangles.

    Args:
        alpha: Both parameters of the beta distribution of the area that is kept. With 1, all areas are equally likely.
        probability: Probability with which a batch is mixed.

    Raises:
        ArgumentError: If ``alpha`` or ``probability`` is out of range.
        SetupError: If the model or a task computes its loss itself, the batch is not a pair of tensors, the inputs have
            fewer than three dimensions, or ``MixUp`` is in the list.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
        >>> batches = [(torch.rand(8, 1, 8, 8), torch.arange(8) % 3)]
        >>> trainer = Trainer(max_duration="2ep", callbacks=[CutMix()], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(model, batches, loss=loss, optimizer=optimizer)
        >>> len(result.history["train/loss_epoch"])
        2
    """

    def __init__(self, alpha: float = 1.0, *, probability: float = 1.0) -> None:
        super().__init__(alpha, probability)

    def mix(self, inputs: Tensor, order: Tensor, kept: float) -> tuple[Tensor, float]:
        if inputs.ndim < 3:
            raise SetupError(
                f"CutMix: the inputs have the shape {tuple(inputs.shape)}. Give images, with height and width last."
            )
        height, width = inputs.shape[-2:]
        side = (1 - kept) ** 0.5  # As a fraction of the sides of the image.
        row, column = torch.rand(2).tolist()
        top, bottom = _limits(row * height, side * height, height)
        left, right = _limits(column * width, side * width, width)
        mixed = inputs.clone()
        mixed[..., top:bottom, left:right] = inputs[order][..., top:bottom, left:right]
        return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def _limits(center: float, length: float, size: int) -> tuple[int, int]:
    """Return the first position of a side of the rectangle and the position after its last, inside the image."""
    return max(int(center - length / 2), 0), min(int(center + length / 2), size)
