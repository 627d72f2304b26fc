"""Metric that a callback monitors: when to decide, and with which value."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from hookline.callbacks._ending import was_cut_short, was_interrupted
from hookline.callbacks._monitor import monitored_value
from hookline.errors import RegistrationError, SetupError

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

Moment = Literal["eval", "epoch", "interval"]
MOMENTS = ("eval", "epoch", "interval")


class Monitored:
    """Metric ``name`` that the callback ``reader`` reads after evaluations, epochs or intervals."""

    __slots__ = ("_reader", "_warned", "at", "name")

    def __init__(self, reader: str, name: str, at: str | None) -> None:
        if at is not None and at not in MOMENTS:
            raise RegistrationError(f"{reader}(decide_at={at!r}): use 'eval', 'epoch' or 'interval'")
        self._reader, self.name = reader, name
        self.at = at or ("epoch" if name.startswith("train/") else "eval")
        self._warned = False

    def check(self, run: Run) -> None:
        """Raise before a fit that has no evaluations to decide after. A custom loop is not checked."""
        if self.at != "eval" or not run.is_training_run or getattr(run, "task", None) is None:
            return
        if not self.name.startswith("val/") and "val" not in run.loaders:  # val/… has a separate error.
            raise SetupError(
                f"{self._reader}({self.name!r}) decides after evaluations, and there is nothing to evaluate on: "
                f"pass a validation loader to fit, or decide_at='epoch' or 'interval'"
            )

    def is_measured(self, run: Run, decided_at: int | None) -> bool:
        """True in ``on_eval_end`` if this evaluation of a fit has measured the metric.

        The final test and separate evaluations do not count. A callback may log a metric that it declares at some
        evaluations only. The other evaluations do not count as decisions.
        """
        if run.stage != "val" or run.entry_point != "fit":
            return False
        return not self._waits(run) or self._is_fresh(run, decided_at)

    def measured_at(self, run: Run) -> int | None:
        """Return the step of the newest value. A decision stores it as ``decided_at``."""
        return run.metrics.step_of(self.name)

    def _waits(self, run: Run) -> bool:
        """True if a callback that is not disabled declares the metric.

        That callback may log the metric less often than this callback decides.
        """
        return run.callbacks.declare(self.name) and not run.callbacks.lost(self.name)

    def _is_fresh(self, run: Run, decided_at: int | None) -> bool:
        """True if the metric was measured after the last decision."""
        return self.measured_at(run) not in (None, decided_at)

    def after_epoch(self, run: Run, decided: int) -> bool:
        """True in ``on_epoch_end`` if the callback decides now.

        It does not after an incomplete epoch, whose metrics are those of the epoch before.
        """
        return self.at == "epoch" and run.clock.epoch > decided

    def after_interval(self, run: Run) -> bool:
        """True in ``on_metrics_ready`` if the callback decides now.

        It does not after an interval that a stop has cut short.
        """
        return self.at == "interval" and not was_cut_short(run)

    def is_new(self, run: Run, evaluations: int, decided: int | None, decided_at: int | None) -> bool:
        """True if the newest value has not been used for a decision.

        Args:
            run: The run.
            evaluations: Number of evaluations that measured the metric.
            decided: Number of these evaluations at the last decision. ``None``: no decision yet.
            decided_at: Step of the value of the last decision.
        """
        if self._waits(run):
            return self._is_fresh(run, decided_at)
        if not self.name.startswith("val/"):
            return True
        if not evaluations:  # A custom loop may log the metric itself.
            return self.name in run.metrics
        return decided is None or evaluations > decided

    def warn_if_never(self, run: Run, evaluations: int, decided: int | None) -> None:
        """Warn at the end of training if the callback never decided.

        Hookline does not warn about an interrupted run, because that run may resume.
        """
        if decided is not None or was_interrupted(run):
            return
        waits = self.at == "eval" or self.name.startswith("val/")
        if self.name not in run.metrics and run.callbacks.declare(self.name) and not self._warned:
            logger.warning("%s decided nothing: %r was never logged", self._reader, self.name)
        elif waits and not evaluations:
            logger.warning(
                "%s decided nothing: it needs evaluations for %s, and none was made; "
                "in a custom loop, evaluate with loop.eval_batches(…) whenever loop.eval_due",
                self._reader,
                self.name,
            )

    def value(self, run: Run) -> float | None:
        """Return the newest value of the metric.

        Return ``None`` before the first value, and after Hookline has disabled the callback that logs the metric.
        """
        name = self.name
        if run.callbacks.lost(name):
            if not self._warned:
                self._warned = True
                logger.warning("%s decides nothing: the callback that logged %s is switched off", self._reader, name)
            return None
        return monitored_value(run, self._reader, name)

    @property
    def decisions(self) -> str:
        """Name of the event that a decision follows, for messages."""
        return {"eval": "evaluation", "epoch": "epoch", "interval": "interval"}[self.at]
