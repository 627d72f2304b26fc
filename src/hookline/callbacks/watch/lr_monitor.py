"""``LRMonitor``: learning rates as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hookline.callbacks.watch._interval import IntervalMonitor

if TYPE_CHECKING:
    from hookline.run import Run


class LRMonitor(IntervalMonitor):
    """Log the learning rate of each optimizer and parameter group.

    The callback logs at the end of each log interval and of each epoch. An optimizer with one parameter group
    is logged as ``lr/AdamW``. With several groups the names are ``lr/AdamW/0``, ``lr/AdamW/1``, or the
    ``"name"`` of the group: ``lr/AdamW/backbone``. The row of step n has the learning rate of step n, although
    the schedulers have already stepped. An optimizer that has not stepped yet has no row.

    Args:
        momentum: Also log ``momentum/AdamW``: the momentum, or the first beta of Adam-like optimizers.
        weight_decay: Also log ``weight_decay/AdamW``, if the optimizer has a weight decay.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="2ep", callbacks=[LRMonitor()], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> result.history["lr/SGD"], result.history.steps("lr/SGD")
        ([0.001, 0.001], [4, 8])
    """

    ranks = "zero"
    state = (*IntervalMonitor.state, "_used")

    def __init__(self, momentum: bool = False, weight_decay: bool = False) -> None:
        self.momentum = momentum
        self.weight_decay = weight_decay
        wanted = {"lr/*": True, "momentum/*": momentum, "weight_decay/*": weight_decay}
        self.writes = tuple(name for name, is_wanted in wanted.items() if is_wanted)
        super().__init__()
        self._used: dict[str, list[dict[str, Any]]] = {}  # Values of each group at the last step, by optimizer.
        self._hooks: dict[str, RemovableHandle] = {}

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        self._used = {}
        self._follow(run)  # For a callback that is added during a run. Otherwise there is no optimizer yet.

    def on_train_start(self, run: Run) -> None:
        self._follow(run)

    def on_teardown(self, run: Run) -> None:
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def _follow(self, run: Run) -> None:
        """Read the values when each optimizer steps.

        When a row is due, the schedulers have already stepped.
        """
        for name, optimizer in run.optimizers.items():
            if name not in self._hooks:
                self._hooks[name] = optimizer.register_step_pre_hook(partial(self._keep, name))

    def _keep(self, name: str, optimizer: Optimizer, args: object, kwargs: object) -> None:
        """Record the values of all groups. This is a pre-hook of the optimizer's step."""
        self._used[name] = [self._values(group) for group in optimizer.param_groups]

    def _values(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a group to log."""
        lr = group["lr"]
        found = {"lr": lr.detach().clone() if isinstance(lr, Tensor) else lr}  # Schedulers modify a tensor in place.
        if self.momentum and (momentum := _momentum(group)) is not None:
            found["momentum"] = momentum
        if self.weight_decay and "weight_decay" in group:
            found["weight_decay"] = group["weight_decay"]
        return found

    def report(self, run: Run) -> None:
        """Log a row."""
        run.log(dict(self._rows(run)), reduce="last")

    def _rows(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Yield the names and values of a row."""
        for optimizer_name, optimizer in run.optimizers.items():
            used = self._used.get(optimizer_name, [])
            groups = optimizer.param_groups[: len(used)]  # Without groups that were added after the step.
            for name, values in zip(_names(optimizer_name, groups), used, strict=False):
                for key, value in values.items():
                    yield f"{key}/{name}", value


def _names(optimizer: str, groups: list[dict[str, Any]]) -> list[str]:
    """Return the name of each group. Groups with equal names get their index as suffix."""
    if len(groups) == 1:
        return [optimizer]
    given = [str(group.get("name", index)) for index, group in enumerate(groups)]
    times = Counter(given)
    return [f"{optimizer}/{name}" + (f"-{i}" if times[name] > 1 else "") for i, name in enumerate(given)]


def _momentum(group: dict[str, Any]) -> Any:
    """Return the first beta or the momentum of a group, or ``None``."""
    return group["betas"][0] if "betas" in group else group.get("momentum")
