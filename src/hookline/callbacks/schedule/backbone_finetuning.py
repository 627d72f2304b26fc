"""``BackboneFinetuning``: train the head first, then also the backbone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from hookline.callbacks.schedule._schedulers import (
    leading,
    own_group,
    scale_rate,
    set_rate,
)
from hookline.callbacks.schedule.finetuning import Finetuning
from hookline.callbacks.schedule.freeze import Freeze
from hookline.errors import ArgumentError
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

GROUP = "backbone"


class BackboneFinetuning(Finetuning):
    """Train the head first, then also the backbone, at a learning rate that grows.

    The backbone gets its own parameter group when it is unfrozen. The optimizer may hold the parameters of the
    backbone before that, or not. The learning rate of the head is the learning rate of the first group with a
    parameter outside the backbone. Within an epoch, schedulers change both learning rates in proportion.

    Args:
        unfreeze: Start of training the backbone, such as ``"10ep"`` or the number of the epoch, counted from 0.
        backbone: Name of the layer that is the backbone.
        lambda_func: Factor for the learning rate of the backbone at each epoch after the first unfrozen one. A
            number, or a function of the epoch, counted from 1.
        backbone_initial_ratio_lr: First learning rate of the backbone, as a fraction of the learning rate of the
            head.
        backbone_initial_lr: First learning rate of the backbone. ``None``: use ``backbone_initial_ratio_lr``.
        should_align: Do not let the learning rate of the backbone exceed the learning rate of the head.
        train_bn: Train the batch norms of the backbone from the start. ``False``: keep them in eval mode while the
            backbone is frozen.
        verbose: Log both learning rates at each epoch in which the backbone is trained.
        rounding: Number of decimal places of the logged learning rates.
        optimizer: Name of the optimizer. Needed only if there are several.

    Raises:
        ArgumentError: If the epoch is negative, or a number is not above 0.
        SetupError: If no parameter matches ``backbone``, or nothing is left to train.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> tuning = BackboneFinetuning(1, backbone="hidden", lambda_func=2)
        >>> trainer = Trainer(max_duration="4ep", callbacks=[tuning], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), lambda p: torch.optim.SGD(p, lr=0.5)
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> tuning.rate
        0.2
    """

    state_depends_on = ("backbone",)
    after = (Freeze, Finetuning)
    _argument = "backbone"

    def __init__(
        self,
        unfreeze: int | str | Duration = "10ep",
        *,
        backbone: str = "backbone",
        lambda_func: float | Callable[[int], float] = 2.0,
        backbone_initial_ratio_lr: float = 0.1,
        backbone_initial_lr: float | None = None,
        should_align: bool = True,
        train_bn: bool = True,
        verbose: bool = False,
        rounding: int = 12,
        optimizer: str | None = None,
    ) -> None:
        start = unfreeze if isinstance(unfreeze, int) else Duration.parse(unfreeze, "BackboneFinetuning(unfreeze=…)")
        if isinstance(start, Duration) and start.unit != "ep":
            raise ArgumentError(f"BackboneFinetuning(unfreeze={str(start)!r}): must be in epochs, such as '10ep'.")
        self.unfreeze_epoch = start if isinstance(start, int) else int(start.value)
        if self.unfreeze_epoch < 0:
            raise ArgumentError(f"BackboneFinetuning(unfreeze={unfreeze}): must be >= 0.")
        if not backbone:
            raise ArgumentError("BackboneFinetuning(backbone=''): name a submodule, such as 'backbone' or 'encoder'.")
        for name, value in (("backbone_initial_ratio_lr", backbone_initial_ratio_lr), ("lambda_func", lambda_func)):
            if not callable(value) and value <= 0:
                raise ArgumentError(f"BackboneFinetuning({name}={value!r}): must be > 0.")
        if backbone_initial_lr is not None and backbone_initial_lr <= 0:
            raise ArgumentError(f"BackboneFinetuning(backbone_initial_lr={backbone_initial_lr!r}): must be > 0.")
        super().__init__(backbone, train_bn=train_bn, optimizer=optimizer)
        self.backbone = backbone
        self.lambda_func = lambda_func
        self.backbone_initial_ratio_lr = backbone_initial_ratio_lr
        self.backbone_initial_lr = backbone_initial_lr
        self.should_align = should_align
        self.verbose = verbose
        self.rounding = rounding
        self.rate: float | None = None
        """Learning rate of the backbone at the start of the epoch. ``None`` while the backbone is frozen."""

    def finetune_function(self, run: Run, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze the backbone or raise its learning rate, as the epoch requires."""
        if optimizer is not self._optimizer(run):
            return
        lead = leading(optimizer, run.model, self._part)
        head = float(optimizer.param_groups[lead]["lr"])
        if self.rate is not None:
            self._raise(run, epoch, optimizer, head)
        elif epoch >= self.unfreeze_epoch:
            ratio, given = self.backbone_initial_ratio_lr, self.backbone_initial_lr
            self.rate = head * ratio if given is None else given
            parameters = dict(run.model.named_parameters())
            thawed = [parameters[name] for name in self._frozen.unfreeze()]
            own_group(optimizer, thawed, self.rate, GROUP, run.schedulers, lead=lead)
        if self.verbose and self.rate is not None:
            rates = round(head, self.rounding), round(self.rate, self.rounding)
            logger.info("epoch %d: head at %s, backbone at %s", epoch, *rates)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rate": self.rate}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rate = state["rate"]
        super().load_state_dict(state)

    def _raise(self, run: Run, epoch: int, optimizer: Optimizer, head: float) -> None:
        """Multiply the learning rate of the backbone, now and in its schedulers."""
        groups = optimizer.param_groups
        index = next(index for index, group in enumerate(groups) if group.get("name") == GROUP)
        before = float(groups[index]["lr"])
        factor = self.lambda_func(epoch + 1) if callable(self.lambda_func) else self.lambda_func
        rate = (self.rate or 0.0) * factor
        self.rate = rate = head if self.should_align and rate > head else rate
        if before:
            scale_rate(optimizer, index, rate / before, run.schedulers)
        set_rate(groups[index], rate)
