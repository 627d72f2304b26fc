"""``SAM``: take the gradient at the worst point near the weights (sharpness-aware minimization)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from hookline.callbacks._losses import autocast_of, check_pair, check_plain, loss_of, same_statistics
from hookline.callbacks.regularization._mixing import Mixing
from hookline.callbacks.regularization.label_smoothing import LabelSmoothing
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from hookline.run import Run

MIN_NORM = 1e-12


class SAM(Callback):
    """Take the gradient of each batch at the worst point near the weights (sharpness-aware minimization).

    For each batch the callback computes the gradient at the weights, and moves the weights by ``rho`` in its
    direction. Forward and backward of the run follow there. Then the callback restores the weights, and the optimizer
    updates them. A step takes about twice the time.

    Args:
        rho: Distance to the point.

    Raises:
        ArgumentError: If ``rho`` is not above 0.
        SetupError: If the model or a task computes its loss itself, the batch is not a pair of tensors, there are
            several optimizers or one with a closure, the weights are sharded, or the precision is fp16.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="1ep", callbacks=[SAM(0.05)], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> len(result.history["train/loss_epoch"])
        1
    """

    reads = ("batch",)
    writes = ("loss",)
    after = (LabelSmoothing, Mixing)

    def __init__(self, rho: float = 0.05) -> None:
        if not rho > 0 or rho == float("inf"):
            raise ArgumentError(f"SAM(rho={rho!r}): must be a number > 0.")
        self.rho = rho
        self._kept: tuple[list[Tensor], list[Tensor]] | None = None
        """Parameters that are moved, and their values before."""
        self._mixing: Mixing | None = None

    def on_train_start(self, run: Run) -> None:
        check_plain(run, "SAM")
        if len(run.optimizers) > 1:
            raise SetupError(f"SAM: there are several optimizers, {', '.join(run.optimizers)}. Use one.")
        if run.precision == "fp16":
            raise SetupError(
                "SAM: the first gradient of a batch is not scaled, and fp16 needs it. Use precision='bf16'."
            )
        if run.is_sharded:
            raise SetupError("SAM: the weights are sharded, and SAM needs all of them. Use hl.DDP.")
        self._mixing = next((other for other in run.callbacks if isinstance(other, Mixing)), None)

    def around_batch(self, run: Run) -> Iterator[None]:
        try:
            yield
        finally:
            self._restore()

    def on_train_batch_start(self, run: Run) -> None:
        inputs, targets = check_pair(run, "SAM")
        (optimizer,) = run.optimizers.values()
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        with same_statistics(run.model), torch.enable_grad():
            with autocast_of(run):
                outputs = run.task.model(inputs)
                loss = loss_of(run, outputs, targets)
            if self._mixing is not None:
                loss = self._mixing.mixed_loss(run, loss, outputs)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        pairs = [(p, grad) for p, grad in zip(parameters, gradients, strict=True) if grad is not None]
        if not pairs:
            return
        moved, steps = [p for p, _ in pairs], [grad for _, grad in pairs]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(steps)))
        self._kept = moved, [p.detach().clone() for p in moved]
        with torch.no_grad():
            torch._foreach_mul_(steps, self.rho / (norm + MIN_NORM))
            torch._foreach_add_(moved, steps)

    def on_optimizer_step_start(self, run: Run) -> None:
        if self._kept is not None:
            raise SetupError(
                f"SAM: {run.optimizer_name} updates the weights inside a batch. Use an optimizer without a closure."
            )

    def _restore(self) -> None:
        """Restore the weights that are moved."""
        if self._kept is not None:
            (moved, before), self._kept = self._kept, None
            with torch.no_grad():
                torch._foreach_copy_(moved, before)
