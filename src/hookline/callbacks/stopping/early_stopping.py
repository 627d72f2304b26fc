"""``EarlyStopping``: stop training when a metric stops improving."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Literal

from hookline.callbacks._ending import report_restored
from hookline.callbacks._monitor import (
    DecideAt,
    MonitorCallback,
    check_min_delta,
    clock_of,
    in_words,
    is_over,
    read_patience,
    with_all_units,
)
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class EarlyStopping(MonitorCallback):
    """Stop training when a metric stops improving.

    At each decision the callback checks, in this order: ``check_finite``, ``start``, ``stopping_threshold``,
    ``divergence_threshold``, ``min_delta`` and ``patience``. The first check that applies counts.

    Args:
        monitor: Name of the metric, for example ``"val/loss"``.
        mode: ``"min"`` or ``"max"``. ``None``: inferred from the metric's name (``loss``, ``acc``, …).
        patience: Number of decisions without improvement, or a duration since the best decision: ``"500st"``,
            ``"2ep"``, ``"30m"``. 0 and 1 both stop at the first decision without improvement.
        min_delta: Smallest improvement. A value must be better than the best value by more than this.
        threshold_mode: Unit of ``min_delta``. ``"abs"``: a difference. ``"rel"``: a fraction of the best value.
        stopping_threshold: Stop when the value is equal to this or better. ``None``: no check.
        divergence_threshold: Stop when the value is worse than this. ``None``: no check.
        check_finite: Stop when the value is NaN or infinite, also before ``start``.
        start: Duration before which the callback ignores finite values, for example ``"5ep"``. ``None``: from the first
            decision.
        decide_at: When to decide: after each ``"eval"`` or ``"epoch"``, or at each ``"interval"`` (``log_every``).
            ``None``: ``"epoch"`` for a ``train/…`` metric, else ``"eval"``. A ``val/…`` value counts once.
        restore_best: Load the weights and buffers of the best decision when training ends. A run that Ctrl-C or
            ``break`` interrupts keeps its last weights; the best weights are in ``best_weights``.

    Raises:
        ArgumentError: If an argument is invalid, or ``mode`` cannot be inferred from the metric's name.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> stopper = EarlyStopping("val/loss", patience=1, min_delta=10.0)
        >>> trainer = Trainer(max_duration="9ep", callbacks=[stopper], folder=False)
        >>> result = trainer.fit(
        ...     TinyModel(), tiny_data(), tiny_data(seed=1), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
        ... )
        >>> result.clock.epoch, result.stopped_by
        (2, 'EarlyStopping')
    """

    state = ("best", "best_step", "waited", "best_at", "best_weights", *MonitorCallback.state)
    state_depends_on = ("monitor", "mode")
    settings = ("patience", "min_delta", "stopping_threshold", "divergence_threshold")

    def __init__(
        self,
        monitor: str = "val/loss",
        *,
        mode: Literal["min", "max"] | None = None,
        patience: int | str | Duration = 3,
        min_delta: float = 0.0,
        threshold_mode: Literal["abs", "rel"] = "abs",
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_finite: bool = True,
        start: str | Duration | None = None,
        decide_at: DecideAt | None = None,
        restore_best: bool = False,
    ) -> None:
        super().__init__(monitor, mode=mode, decide_at=decide_at)
        self.patience = read_patience("EarlyStopping", patience)
        self.min_delta = check_min_delta("EarlyStopping", min_delta)
        self.threshold_mode = threshold_mode
        self.stopping_threshold = stopping_threshold
        self.divergence_threshold = divergence_threshold
        self.check_finite = check_finite
        self.start = None if start is None else Duration.parse(start, "EarlyStopping(start=…)")
        self.restore_best = restore_best
        if restore_best:
            self.writes = ("weights",)
            self.role = "restore"
        self.best: float | None = None
        self.best_step = 0
        self.waited = 0
        self.best_at: dict[str, float] = {}
        """Clock at the best decision, by unit."""
        self.best_weights: dict[str, Any] | None = None

    def on_train_start(self, run: Run) -> None:
        self.best_at = with_all_units(run, self.patience, self.best_at)
        if not self.restore_best:  # The option may have been True before a resume.
            self.best_weights = None

    def on_train_end(self, run: Run) -> None:
        super().on_train_end(run)
        if self.best_weights is None:
            if self.restore_best and self.best is not None:
                logger.warning(
                    "EarlyStopping(restore_best=True): the run was resumed, and the weights of the best value, of step "
                    "%d, were not kept before; the model keeps its last weights",
                    self.best_step,
                )
            return
        if run.ending is not None and run.ending.can_resume:
            logger.warning(
                "EarlyStopping: the run was left (%s) and can be resumed, so it keeps its last weights; the best, of "
                "step %d, are in best_weights",
                run.ending.reason,
                self.best_step,
            )
        else:
            run.model.load_state_dict(self.best_weights)
            report_restored(run, self.best_step, self.monitor, self.best)

    def decide(self, run: Run, value: float) -> None:
        """Apply the checks in order and stop the run, keep the value as the best, or wait."""
        if self.check_finite and not math.isfinite(value):
            run.stop(f"{self.monitor} is {value}")
        elif self.start is not None and not run.clock.reached(self.start.of(run.max_duration)):
            return
        elif self.stopping_threshold is not None and self._has_reached(value, self.stopping_threshold):
            self._keep(run, value)  # No earlier value reached the threshold, so this value is the best.
            run.stop(f"{self.monitor} = {value:.6g} has reached {self.stopping_threshold}")
        elif self.divergence_threshold is not None and self._better(self.divergence_threshold, value):
            run.stop(f"{self.monitor} = {value:.6g} is worse than {self.divergence_threshold}")
        elif self.best is None or math.isnan(self.best) or self._better(value, self.best, self._least()):
            self._keep(run, value)
        else:
            self._wait(run)

    def _least(self) -> float:
        """Return the improvement that a value must exceed, as a difference."""
        relative = self.threshold_mode == "rel" and self.best is not None and math.isfinite(self.best)
        return self.min_delta * abs(self.best or 0.0) if relative else self.min_delta

    def _better(self, one: float, other: float, by: float = 0.0) -> bool:
        """True if ``one`` is better than ``other`` by more than ``by``."""
        return one < other - by if self.mode == "min" else one > other + by

    def _has_reached(self, value: float, threshold: float) -> bool:
        """True if the value is equal to the threshold or better. NaN never is."""
        return value <= threshold if self.mode == "min" else value >= threshold

    def _keep(self, run: Run, value: float) -> None:
        """Store the value as the best, with its step, clock and, if wanted, weights."""
        self.best, self.best_step, self.waited = value, run.clock.step, 0
        self.best_at = clock_of(run, self.patience)
        if self.restore_best:
            self.best_weights = {
                name: value.detach().clone() if hasattr(value, "detach") else value
                for name, value in run.model.state_dict().items()
            }

    def _wait(self, run: Run) -> None:
        """Count a decision without improvement and stop the run if the patience is over."""
        self.waited += 1
        self.best_at = with_all_units(run, self.patience, self.best_at)  # The patience may have another unit now.
        if is_over(run, self.patience, waited=self.waited, since=self.best_at):
            waited = in_words(self.patience, self.waited, self._decisions)
            best = f"{self.best:.6g} (step {self.best_step})"
            by = f" by more than {self._least():.6g} (min_delta)" if self.min_delta else ""
            run.stop(f"{self.monitor} has not improved on {best}{by} for {waited}")
