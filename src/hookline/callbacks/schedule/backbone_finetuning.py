"""``BackboneFinetuning``: train the head first, then also the backbone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from hookline.callbacks.schedule._freezing import Epochs, Frozen, check_something_is_left, named
from hookline.callbacks.schedule._schedulers import (
    grouping,
    leading,
    own_group,
    regroup,
    scale_rate,
    set_rate,
    the_optimizer,
)
from hookline.errors import RegistrationError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

GROUP = "backbone"


class BackboneFinetuning(Callback):
    """Train the head first, then also the backbone, at a learning rate that grows.

    The backbone gets its own parameter group when it is unfrozen. The optimizer may hold the parameters of the
    backbone before that, or not. The learning rate of the head is the learning rate of the first group with a
    parameter outside the backbone. Within an epoch, schedulers change both learning rates in proportion.

    Args:
        unfreeze_backbone_at_epoch: Epoch at which the backbone is unfrozen, counted from 0.
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
        RegistrationError: If the epoch is negative, or a number is not above 0.
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

    structural = True
    state_depends_on = ("backbone",)
    writes = ("weights", "optimizer")
    role = "structure"

    def __init__(
        self,
        unfreeze_backbone_at_epoch: int = 10,
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
        if isinstance(unfreeze_backbone_at_epoch, bool) or not isinstance(unfreeze_backbone_at_epoch, int):
            raise RegistrationError(f"BackboneFinetuning({unfreeze_backbone_at_epoch!r}): the epoch is a whole number")
        if unfreeze_backbone_at_epoch < 0:
            raise RegistrationError(f"BackboneFinetuning({unfreeze_backbone_at_epoch}): epochs are counted from 0")
        for name, value in (("backbone_initial_ratio_lr", backbone_initial_ratio_lr), ("lambda_func", lambda_func)):
            if not callable(value) and not value > 0:
                raise RegistrationError(f"BackboneFinetuning({name}={value!r}): give a number above 0")
        if backbone_initial_lr is not None and not backbone_initial_lr > 0:
            raise RegistrationError(f"BackboneFinetuning(backbone_initial_lr={backbone_initial_lr!r}): it is above 0")
        self.unfreeze_backbone_at_epoch = unfreeze_backbone_at_epoch
        self.backbone = backbone
        self.lambda_func = lambda_func
        self.backbone_initial_ratio_lr = backbone_initial_ratio_lr
        self.backbone_initial_lr = backbone_initial_lr
        self.should_align = should_align
        self.train_bn = train_bn
        self.verbose = verbose
        self.rounding = rounding
        self.optimizer = optimizer
        self._forget()

    def _forget(self) -> None:
        """Reset everything that belongs to one run."""
        self.rate: float | None = None
        """Learning rate of the backbone at the start of the epoch. ``None`` while the backbone is frozen."""
        self._frozen = Frozen()
        self._epochs = Epochs()
        self._names: list[str] = []
        self._run: Run | None = None
        self._groups: list[Any] = []

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        if run.clock.step == 0:
            self._forget()
        self._run = run
        self._names = named(run.model, (self.backbone,), "BackboneFinetuning", "backbone")
        if self.rate is None:
            self._frozen = Frozen()
            self._frozen.freeze(run.model, self._names, train_bn=self.train_bn)
            check_something_is_left(run.model, "BackboneFinetuning")

    def on_train_start(self, run: Run) -> None:
        self._optimizer(run)
        self._frozen.still()

    def on_train_epoch_start(self, run: Run) -> None:
        for epoch in self._epochs.begin(run.clock.epoch):
            self._begin(run, epoch)

    def on_rollback(self, run: Run) -> None:
        for epoch in self._epochs.catch_up(run.clock.epoch):
            self._begin(run, epoch)

    def on_teardown(self, run: Run) -> None:
        if self._run is not None:
            self._groups = self._grouping(run)
        self._frozen.release()
        self._run = None

    def state_dict(self) -> dict[str, Any]:
        groups = self._groups if self._run is None else self._grouping(self._run)
        return {
            "rate": self.rate,
            "frozen": list(self._frozen.names),
            "groups": groups,
            "epochs": self._epochs.save(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rate = state["rate"]
        self._frozen.become(state["frozen"])
        self._groups = list(state["groups"])
        self._epochs.load(state["epochs"])
        if self._run is not None and self._groups:
            regroup(self._optimizer(self._run), self._groups, self._run.model, self._run.schedulers, self._names)

    # ------------------------------------------------------------------------------------------

    def _begin(self, run: Run, epoch: int) -> None:
        """Unfreeze the backbone or raise its learning rate, as the epoch requires."""
        if self.rate is None and epoch >= self.unfreeze_backbone_at_epoch:
            self._unfreeze(run)
        elif self.rate is not None:
            self._raise(run, epoch)
        if self.verbose and self.rate is not None:
            logger.info(
                "epoch %d: head at %s, backbone at %s",
                epoch,
                round(self._head(run)[1], self.rounding),
                round(self.rate, self.rounding),
            )

    def _head(self, run: Run) -> tuple[int, float]:
        """Return the index of the head's parameter group and its learning rate."""
        optimizer = self._optimizer(run)
        lead = leading(optimizer, run.model, self._names)
        return lead, float(optimizer.param_groups[lead]["lr"])

    def _unfreeze(self, run: Run) -> None:
        """Unfreeze the backbone and move its parameters to a separate parameter group."""
        lead, head = self._head(run)
        self.rate = (
            head * self.backbone_initial_ratio_lr if self.backbone_initial_lr is None else self.backbone_initial_lr
        )
        parameters = dict(run.model.named_parameters())
        thawed = [parameters[name] for name in self._frozen.thaw()]
        own_group(self._optimizer(run), thawed, self.rate, GROUP, run.schedulers, lead=lead)

    def _raise(self, run: Run, epoch: int) -> None:
        """Multiply the learning rate of the backbone, now and in its schedulers."""
        optimizer = self._optimizer(run)
        groups = optimizer.param_groups
        index = next(index for index, group in enumerate(groups) if group.get("name") == GROUP)
        (_, head), before = self._head(run), float(groups[index]["lr"])
        factor = self.lambda_func(epoch + 1) if callable(self.lambda_func) else self.lambda_func
        rate = (self.rate or 0.0) * factor
        if self.should_align and rate > head:
            rate = head
        self.rate = rate
        if before:
            scale_rate(optimizer, index, rate / before, run.schedulers)
        set_rate(groups[index], rate)

    def _optimizer(self, run: Run) -> Optimizer:
        """Return the optimizer that trains the model."""
        return the_optimizer(run, self.optimizer, "BackboneFinetuning")

    def _grouping(self, run: Run) -> list[Any]:
        """Return the names of the parameters in each group."""
        if not run.optimizers:
            return []
        return grouping(self._optimizer(run), run.model)
