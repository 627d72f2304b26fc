"""Learning rate schedulers, and when they step. Hookline steps those in ``run.schedulers``."""

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
    """A torch scheduler, and when it steps: every few steps or epochs, or after evaluations.

    A scheduler without this wrapper steps after every training step, and ``ReduceLROnPlateau`` after every evaluation
    on ``val/loss``.

    Args:
        scheduler: The torch scheduler.
        every: Number of steps or epochs from one step of the scheduler to the next, such as ``"1ep"``.
        monitor: Metric of ``ReduceLROnPlateau``.

    Raises:
        SetupError: If ``every`` is not in steps or epochs.

    Example:
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
                f"a scheduler steps after a number of steps or epochs, not every {self.every}; write '1st' or '1ep'"
            )

    @property
    def unit(self) -> str:
        """``"st"``, ``"ep"``, or ``"eval"`` for a plateau."""
        return "eval" if isinstance(self.scheduler, ReduceLROnPlateau) else self.every.unit  # type: ignore[union-attr]

    def due(self, count: int) -> bool:
        """True if the scheduler steps after ``count`` steps or epochs."""
        return count % self.every.value == 0  # type: ignore[union-attr]


def make_schedulers(given: Any, optimizers: dict[str, Optimizer]) -> list[Scheduler]:
    """Return the schedulers of a run.

    Args:
        given: A torch scheduler, a ``Scheduler``, a function of the optimizer, or a list of these.
        optimizers: The optimizers of the run.
    """
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
    """Return the schedulers that the user passed.

    A callback such as ``LRSchedule`` adds other ones.
    """
    return [scheduler for scheduler in schedulers if type(scheduler) is Scheduler]
