"""``LRFinder``: suggest a learning rate before training."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Literal

from torch.optim import Optimizer

from hookline.callbacks._plots import check_matplotlib, save_figure
from hookline.callbacks.schedule._finders import (
    Smoothed,
    lr_figure,
    need_one_process,
    need_task,
    rates,
    steepest,
)
from hookline.callbacks.schedule._schedulers import base_rate, scale_rate, set_rate, the_optimizer
from hookline.callbacks.schedule.accumulation_schedule import AccumulationSchedule
from hookline.callbacks.schedule.batch_size_finder import BatchSizeFinder
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class LRFinder(Callback):
    """Suggest a learning rate from a short range test before training.

    The test trains a few steps at a growing learning rate. It suggests the learning rate at which the smoothed loss
    falls most. Without such a point, Hookline warns and ``suggestion`` is ``None``. The test works on a snapshot:
    without ``apply``, training gives bitwise the same results as without the test. The results are in ``suggestion``,
    ``lrs``, ``losses`` and ``smoothed``.

    Args:
        min_lr: First learning rate.
        max_lr: Last learning rate.
        num_training_steps: Number of steps from ``min_lr`` to ``max_lr``.
        mode: ``"exponential"`` multiplies the learning rate at each step, ``"linear"`` adds to it.
        smoothing: Weight of the past losses in the smoothed loss, from 0 (no smoothing) to below 1.
        early_stop_threshold: Stop the test when the smoothed loss exceeds this multiple of its minimum. ``None``:
            stop only at a loss that is not finite.
        skip_begin: Number of points at the start of the curve that are never suggested.
        skip_end: Number of points at the end of the curve that are never suggested.
        apply: Start training at the suggested learning rate. Parameter groups keep their proportions, a group at 0
            stays at 0, and schedulers are scaled in the same way.
        optimizer: Name of the optimizer. Needed only if there are several.
        plot: Draw the curve to ``lr_finder.png`` in the run's folder, and log the figure as ``plots/lr_finder``.
            Needs matplotlib.

    Raises:
        ArgumentError: If an argument is out of range.
        SetupError: If the run has several processes, or is a custom loop without a task.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> finder = LRFinder(num_training_steps=40, plot=False)
        >>> trainer = Trainer(max_duration="1ep", callbacks=[finder], folder=False, seed=0)
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        >>> 1e-3 < finder.suggestion < 1
        True
    """

    state = ("lrs", "losses", "smoothed", "found", "searched")

    def __init__(
        self,
        min_lr: float = 1e-8,
        max_lr: float = 1.0,
        *,
        num_training_steps: int = 100,
        mode: Literal["exponential", "linear"] = "exponential",
        smoothing: float = 0.98,
        early_stop_threshold: float | None = 4.0,
        skip_begin: int = 10,
        skip_end: int = 1,
        apply: bool = False,
        optimizer: str | None = None,
        plot: bool = True,
    ) -> None:
        if not (0 < min_lr < max_lr < math.inf):
            raise ArgumentError(f"LRFinder(min_lr={min_lr!r}, max_lr={max_lr!r}): needs 0 < min_lr < max_lr.")
        if num_training_steps < 3 or skip_begin < 0 or skip_end < 0 or num_training_steps - skip_begin - skip_end < 2:
            raise ArgumentError(
                f"LRFinder(num_training_steps={num_training_steps}, skip_begin={skip_begin}, skip_end={skip_end}): "
                f"needs three steps or more, of which two or more are left."
            )
        if not 0 <= smoothing < 1:
            raise ArgumentError(f"LRFinder(smoothing={smoothing!r}): must be >= 0 and < 1.")
        if early_stop_threshold is not None and early_stop_threshold <= 1:
            raise ArgumentError(
                f"LRFinder(early_stop_threshold={early_stop_threshold!r}): must be > 1, or None for no early stop."
            )
        self.min_lr, self.max_lr = min_lr, max_lr
        self.num_training_steps = num_training_steps
        self.mode = mode
        self.smoothing = smoothing
        self.early_stop_threshold = early_stop_threshold
        self.skip_begin, self.skip_end = skip_begin, skip_end
        self.apply = apply
        self.optimizer = optimizer
        self.plot = plot
        self.optional = not apply
        self.role = "plan"
        self.writes = ("optimizer",) if apply else ()
        self.after = (AccumulationSchedule, BatchSizeFinder)
        self.lrs: list[float] = []
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        self.found: int | None = None
        self.searched = False

    @property
    def suggestion(self) -> float | None:
        """Suggested learning rate, or ``None``."""
        return None if self.found is None else self.lrs[self.found]

    def on_setup(self, run: Run) -> None:
        if run.is_training_run:
            if self.plot:
                check_matplotlib("LRFinder", ", or LRFinder(plot=False)")
            need_one_process(run, "LRFinder")
            need_task(run, "LRFinder")

    def on_fit_start(self, run: Run) -> None:
        if self.searched or run.clock.step:
            return
        optimizer = the_optimizer(run, self.optimizer, "LRFinder")
        if self.apply and not any(map(base_rate, optimizer.param_groups)):
            raise SetupError(
                "LRFinder(apply=True): all groups of the optimizer have a learning rate of 0, so there is no "
                "proportion to keep; make it with a rate above 0"
            )
        self._search(run, optimizer)
        self.searched = True
        self.found = steepest(self.smoothed, skip_begin=self.skip_begin, skip_end=self.skip_end)
        self._log_suggestion(optimizer)
        if self.plot and run.rank == 0:
            self._draw(run)
        if self.apply and self.suggestion is not None:
            self._apply(run, optimizer, self.suggestion)

    def figure(self) -> Any:
        """Return the curve as a matplotlib figure."""
        return lr_figure(self.lrs, self.losses, self.smoothed, self.found, self.mode == "exponential")

    def _search(self, run: Run, optimizer: Optimizer) -> None:
        """Train at growing learning rates and record the losses."""
        plan = rates(self.min_lr, self.max_lr, self.num_training_steps, linear=self.mode == "linear")
        shares = _shares(optimizer)
        smooth = Smoothed(self.smoothing)
        with run.trial() as trial:
            for rate, batch in zip(plan, trial.batches(len(plan)), strict=False):
                for group, share in zip(optimizer.param_groups, shares, strict=True):
                    set_rate(group, rate * share)
                loss = float(trial.step(batch))
                self.lrs.append(rate)
                self.losses.append(loss)
                self.smoothed.append(smooth.add(loss))
                if self._has_diverged(smooth):
                    break

    def _has_diverged(self, smooth: Smoothed) -> bool:
        """True if the loss is not finite or has risen too far above its minimum.

        For losses near or below zero, a multiple of the minimum has no meaning. The rise is therefore compared with
        the absolute minimum or with the fall to the minimum, whichever is larger.
        """
        if not math.isfinite(self.losses[-1]):
            return True
        limit, best = self.early_stop_threshold, smooth.best
        if limit is None or len(self.losses) == 1:
            return False
        return self.smoothed[-1] - best > (limit - 1) * max(abs(best), self.smoothed[0] - best)

    def _log_suggestion(self, optimizer: Optimizer) -> None:
        """Log the suggestion, or warn if there is none."""
        now = base_rate(optimizer.param_groups[0])
        if self.suggestion is None:
            logger.warning(
                "LRFinder has no suggestion: the loss fell nowhere from %g to %g, in %d steps; try other limits or "
                "more steps. The learning rate stays at %g",
                self.lrs[0],
                self.lrs[-1],
                len(self.lrs),
                now,
            )
        else:
            what = "it is set" if self.apply else "it was not changed"
            logger.info("LRFinder suggests a learning rate of %.3g; it was %g, and %s", self.suggestion, now, what)

    def _draw(self, run: Run) -> None:
        """Draw, save and log the curve."""
        figure = self.figure()
        if run.has_folder:
            save_figure(figure, run.folder / "lr_finder.png")
        run.log_figure("plots/lr_finder", figure)

    def _apply(self, run: Run, optimizer: Optimizer, rate: float) -> None:
        """Set the learning rates of the optimizer and its schedulers."""
        for index, share in enumerate(_shares(optimizer)):
            group = optimizer.param_groups[index]
            if not share:
                continue
            scale_rate(optimizer, index, rate * share / base_rate(group), run.schedulers)
            if "initial_lr" not in group:
                # Set the exact value: scaling has rounded it.
                set_rate(group, rate * share)


def _shares(optimizer: Optimizer) -> list[float]:
    """Return the learning rate of each group, divided by the first learning rate that is not 0."""
    bases = [base_rate(group) for group in optimizer.param_groups]
    first = next(filter(None, bases), None)
    return [1.0 if first is None else base / first for base in bases]
