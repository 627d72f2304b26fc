"""Learning-rate schedulers: which is stepped when. ``run.schedulers`` alone is stepped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hookline.errors import SetupError, kind_of
from hookline.progress import Duration


@dataclass(slots=True)
class Scheduler:
    """A torch scheduler and when it moves: every so many steps or epochs, or on a plateau of a metric.

    A scheduler that is given without this wrapper moves at every step, and ``ReduceLROnPlateau``
    after every evaluation on ``val/loss``.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> Scheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), every="1ep").unit
    'ep'
    """

    scheduler: LRScheduler
    every: str | Duration = "1st"
    monitor: str = "val/loss"

    def __post_init__(self) -> None:
        self.every = Duration.parse(self.every, "hl.Scheduler(every=…)")
        if self.every.unit not in ("st", "ep"):
            raise SetupError(
                f"a scheduler moves every so many steps or epochs, not every {self.every}; write '1st' or '1ep'"
            )

    @property
    def unit(self) -> str:
        """``"st"``, ``"ep"``, or ``"eval"`` for a plateau."""
        return "eval" if isinstance(self.scheduler, ReduceLROnPlateau) else self.every.unit  # type: ignore[union-attr]

    def due(self, count: int) -> bool:
        return count % self.every.value == 0  # type: ignore[union-attr]


def make_schedulers(given: Any, optimizers: dict[str, Optimizer]) -> list[Scheduler]:
    """An instance, a ``Scheduler``, a function of the optimizer, or a list of these."""
    if given is None:
        return []
    if isinstance(given, list | tuple):
        return [scheduler for one in given for scheduler in make_schedulers(one, optimizers)]
    if callable(given) and not isinstance(given, LRScheduler | Scheduler):
        if len(optimizers) != 1:
            raise SetupError(
                "a scheduler given as a function needs exactly one optimizer; return them from configure_optimizers"
            )
        given = given(next(iter(optimizers.values())))
    scheduler = given if isinstance(given, Scheduler) else Scheduler(given)
    if not isinstance(scheduler.scheduler, LRScheduler):
        raise SetupError(f"scheduler={scheduler.scheduler!r} is {kind_of(scheduler.scheduler)}, not a torch scheduler")
    if all(scheduler.scheduler.optimizer is not optimizer for optimizer in optimizers.values()):
        raise SetupError(f"{type(scheduler.scheduler).__name__} was made for an optimizer that this run does not have")
    return [scheduler]


def given_schedulers(schedulers: Iterable[Any]) -> list[Scheduler]:
    """Return the schedulers that the user passed. A callback such as ``LRSchedule`` adds other ones."""
    return [scheduler for scheduler in schedulers if type(scheduler) is Scheduler]


def of_optimizer(schedulers: Iterable[Scheduler], optimizer: Optimizer, unit: str) -> list[Scheduler]:
    return [s for s in schedulers if s.unit == unit and s.scheduler.optimizer is optimizer]
