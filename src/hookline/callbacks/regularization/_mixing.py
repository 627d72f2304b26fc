"""Mix each sample of a batch with another one of the same batch: the base of ``MixUp`` and ``CutMix``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributions import Beta

from hookline.callbacks._losses import autocast_of, check_pair, check_plain, loss_of
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from hookline.run import Run


class Mixing(Callback):
    """Mix the inputs of each training batch, and their losses by the same fraction.

    The loss is ``kept * loss(outputs, targets) + (1 - kept) * loss(outputs, targets of the other samples)``. The other
    samples are a permutation of the batch, so that both losses have the same weight in an accumulation window.

    Args:
        alpha: Both parameters of the beta distribution of the fraction.
        probability: Probability with which a batch is mixed.
    """

    writes = ("batch", "loss")

    def __init__(self, alpha: float, probability: float) -> None:
        name = type(self).__name__
        if not alpha > 0 or alpha == float("inf"):
            raise ArgumentError(f"{name}(alpha={alpha!r}): must be a number > 0.")
        if not 0 < probability <= 1:
            raise ArgumentError(f"{name}(probability={probability!r}): must be > 0 and <= 1.")
        self.alpha = alpha
        self.probability = probability
        self._beta = Beta(float(alpha), float(alpha))
        self._mixed: tuple[Tensor, float] | None = None
        """Targets of the other samples of the batch, and the fraction that is kept."""

    def mix(self, inputs: Tensor, order: Tensor, kept: float) -> tuple[Tensor, float]:
        """Return the mixed inputs, and the fraction of each sample that is kept.

        Args:
            inputs: Inputs of the batch.
            order: Index of the other sample, for each sample.
            kept: Fraction to keep.
        """
        raise NotImplementedError

    def on_setup(self, run: Run) -> None:
        self._mixed = None
        if not run.is_training_run:
            return
        if others := [other for other in run.callbacks if isinstance(other, Mixing) and other is not self]:
            raise SetupError(
                f"{type(self).__name__}: {type(others[0]).__name__} mixes the same batches. Leave one of them out."
            )

    def on_train_start(self, run: Run) -> None:
        check_plain(run, type(self).__name__)

    def on_train_batch_start(self, run: Run) -> None:
        self._mixed = None
        if self.probability < 1 and torch.rand(()).tolist() >= self.probability:  # type: ignore[operator]
            return
        inputs, targets = check_pair(run, type(self).__name__)
        if not inputs.is_floating_point():
            raise SetupError(
                f"{type(self).__name__}: the inputs are {inputs.dtype}. Convert them to floating point in the data set."
            )
        kept: Any = self._beta.sample().tolist()
        order = torch.randperm(len(inputs)).to(inputs.device)
        mixed, kept = self.mix(inputs, order, kept)
        run.batch = (mixed, targets)
        self._mixed = targets[order], kept

    def on_loss_ready(self, run: Run) -> None:
        if self._mixed is not None:
            run.loss = self.mixed_loss(run, run.loss, run.outputs)

    def mixed_loss(self, run: Run, loss: Tensor, outputs: Any) -> Tensor:
        """Return the loss of mixed samples.

        Args:
            run: The run.
            loss: Loss with the targets of the batch.
            outputs: Outputs for the mixed samples.
        """
        if self._mixed is None:
            return loss
        targets, kept = self._mixed
        with autocast_of(run):
            return kept * loss + (1 - kept) * loss_of(run, outputs, targets)
