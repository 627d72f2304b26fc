"""``LRMonitor``: the learning rates as a metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hookline.callbacks.watch.interval import Interval
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run


class LRMonitor(Callback):
    """Logs ``lr/<optimizer>`` at each interval (``log_every``) and at the end of each epoch.

    ``lr/AdamW`` for an optimizer with one group of parameters; with several, ``lr/AdamW/0``, ``lr/AdamW/1``, or the
    group's ``"name"``: ``lr/AdamW/backbone``. ``momentum`` and ``weight_decay`` log ``momentum/AdamW`` (the first
    beta, for optimizers of the Adam kind) and ``weight_decay/AdamW`` as well, where the optimizer has such. The
    schedulers have moved already, so the value is that of the next step.

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
    state = ("_interval",)

    def __init__(self, momentum: bool = False, weight_decay: bool = False) -> None:
        self.momentum = momentum
        self.weight_decay = weight_decay
        wanted = {"lr/*": True, "momentum/*": momentum, "weight_decay/*": weight_decay}
        self.writes = tuple(name for name, is_wanted in wanted.items() if is_wanted)
        self._interval = Interval()

    def on_setup(self, run: Run) -> None:
        self._interval.begin(run)

    def on_metrics_ready(self, run: Run) -> None:
        self._report(run)

    def on_epoch_end(self, run: Run) -> None:
        self._report(run)

    def _report(self, run: Run) -> None:
        if self._interval.is_over(run):
            run.log(dict(self._values(run)), reduce="last")

    def _values(self, run: Run) -> Iterator[tuple[str, Any]]:
        for optimizer_name, optimizer in run.optimizers.items():
            groups = optimizer.param_groups
            for name, group in zip(_names(optimizer_name, groups), groups, strict=True):
                yield f"lr/{name}", group["lr"]
                if self.momentum and (momentum := _momentum(group)) is not None:
                    yield f"momentum/{name}", momentum
                if self.weight_decay and "weight_decay" in group:
                    yield f"weight_decay/{name}", group["weight_decay"]


def _names(optimizer: str, groups: list[dict[str, Any]]) -> list[str]:
    """The name of each group; where two would have the same, their numbers follow."""
    if len(groups) == 1:
        return [optimizer]
    given = [str(group.get("name", index)) for index, group in enumerate(groups)]
    times = Counter(given)
    return [f"{optimizer}/{name}" + (f"-{i}" if times[name] > 1 else "") for i, name in enumerate(given)]


def _momentum(group: dict[str, Any]) -> Any:
    return group["betas"][0] if "betas" in group else group.get("momentum")
