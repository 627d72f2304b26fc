"""``MixUp``: train on weighted means of two samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookline.callbacks.regularization._mixing import Mixing
from hookline.callbacks.regularization.cut_mix import CutMix

if TYPE_CHECKING:
    from torch import Tensor


class MixUp(Mixing):
    """Train on weighted means of two samples, with the same mean of their losses.

    Evaluations get the samples as they are. ``train/loss`` is the mixed loss. Targets in ``run.batch`` are those of the
    samples with the index in the batch.

    Args:
        alpha: Both parameters of the beta distribution of the fraction. With 0.2, most samples are close to one of the
            two. With 1, all fractions are equally likely.
        probability: Probability with which a batch is mixed.

    Raises:
        ArgumentError: If ``alpha`` or ``probability`` is out of range.
        SetupError: If the model or a task computes its loss itself, the batch is not a pair of tensors, or ``CutMix``
            is in the list.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="1ep", callbacks=[MixUp(0.2)], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> len(result.history["train/loss_epoch"])
        1
    """

    before = (CutMix,)

    def __init__(self, alpha: float = 0.2, *, probability: float = 1.0) -> None:
        super().__init__(alpha, probability)

    def mix(self, inputs: Tensor, order: Tensor, kept: float) -> tuple[Tensor, float]:
        return kept * inputs + (1 - kept) * inputs[order], kept
