"""``LRMonitor``: the learning rates as a metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hookline.callbacks.watch.interval import Interval
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run


class LRMonitor(Callback):
    """Log the learning rate of each optimizer at each interval (``log_every``) and at the end of each epoch.

    ``lr/AdamW`` for an optimizer with one group of parameters; with several, ``lr/AdamW/0``, ``lr/AdamW/1``, or the
    group's ``"name"``: ``lr/AdamW/backbone``. ``momentum`` and ``weight_decay`` log ``momentum/AdamW`` (the first
    beta, for optimizers of the Adam kind) and ``weight_decay/AdamW`` as well, where the optimizer has such. The row of
    step n has the values that the optimizer made step n with, whatever schedulers have done since. An optimizer that
    has not stepped yet has no row.

    >>> import torch
    >>> from hookline.loop import Trainer
    >>> from hookline.testing import TinyModel, tiny_data
    >>> trainer = Trainer(max_duration="2ep", callbacks=[LRMonitor()], folder=False)
    >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
    >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
    >>> result.history["lr/SGD"], result.history.steps("lr/SGD")
    ([0.001, 0.001], [4, 8])
    """

    optional = True
    ranks = "zero"
    state = ("_interval", "_used")
    shares_state = True

    def __init__(self, momentum: bool = False, weight_decay: bool = False) -> None:
        self.momentum = momentum
        self.weight_decay = weight_decay
        wanted = {"lr/*": True, "momentum/*": momentum, "weight_decay/*": weight_decay}
        self.writes = tuple(name for name, is_wanted in wanted.items() if is_wanted)
        self._interval = Interval()
        self._used: dict[str, list[dict[str, Any]]] = {}  # by optimizer: the values of each group at its last step
        self._hooks: dict[str, RemovableHandle] = {}

    def on_setup(self, run: Run) -> None:
        self._interval.begin(run)
        self._used = {}
        self._follow(run)  # for a callback that joins a run under way; else there is no optimizer yet

    def on_train_start(self, run: Run) -> None:
        self._follow(run)

    def on_metrics_ready(self, run: Run) -> None:
        self._report(run)

    def on_epoch_end(self, run: Run) -> None:
        self._report(run)

    def on_teardown(self, run: Run) -> None:
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def _follow(self, run: Run) -> None:
        """Read the values as each optimizer steps: when a row is due, the schedulers have stepped already."""
        for name, optimizer in run.optimizers.items():
            if name not in self._hooks:
                self._hooks[name] = optimizer.register_step_pre_hook(partial(self._keep, name))

    def _keep(self, name: str, optimizer: Optimizer, args: object, kwargs: object) -> None:
        self._used[name] = [self._values(group) for group in optimizer.param_groups]

    def _values(self, group: dict[str, Any]) -> dict[str, Any]:
        lr = group["lr"]
        found = {"lr": lr.detach().clone() if isinstance(lr, Tensor) else lr}  # schedulers change a tensor in place
        if self.momentum and (momentum := _momentum(group)) is not None:
            found["momentum"] = momentum
        if self.weight_decay and "weight_decay" in group:
            found["weight_decay"] = group["weight_decay"]
        return found

    def _report(self, run: Run) -> None:
        if self._interval.is_over(run):
            run.log(dict(self._rows(run)), reduce="last")

    def _rows(self, run: Run) -> Iterator[tuple[str, Any]]:
        for optimizer_name, optimizer in run.optimizers.items():
            used = self._used.get(optimizer_name, [])
            groups = optimizer.param_groups[: len(used)]  # without those that were added after the step
            for name, values in zip(_names(optimizer_name, groups), used, strict=False):
                for key, value in values.items():
                    yield f"{key}/{name}", value


def _names(optimizer: str, groups: list[dict[str, Any]]) -> list[str]:
    """The name of each group; where two would have the same, their numbers follow."""
    if len(groups) == 1:
        return [optimizer]
    given = [str(group.get("name", index)) for index, group in enumerate(groups)]
    times = Counter(given)
    return [f"{optimizer}/{name}" + (f"-{i}" if times[name] > 1 else "") for i, name in enumerate(given)]


def _momentum(group: dict[str, Any]) -> Any:
    return group["betas"][0] if "betas" in group else group.get("momentum")
