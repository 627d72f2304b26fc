"""A metric that a callback decides by: when it is final, and what it is then."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from hookline.callbacks.ending import was_cut_short, was_interrupted
from hookline.callbacks.monitor_mode import monitored_value
from hookline.errors import RegistrationError, SetupError

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

Moment = Literal["eval", "epoch", "interval"]
MOMENTS = ("eval", "epoch", "interval")


class Monitored:
    """The metric ``name``, which ``reader`` looks at after evaluations, epochs or intervals."""

    __slots__ = ("_reader", "_warned", "at", "name")

    def __init__(self, reader: str, name: str, at: str | None) -> None:
        if at is not None and at not in MOMENTS:
            raise RegistrationError(f"{reader}(decide_at={at!r}): use 'eval', 'epoch' or 'interval'")
        self._reader, self.name = reader, name
        self.at = at or ("epoch" if name.startswith("train/") else "eval")
        self._warned = False

    def check(self, run: Run) -> None:
        """Before a fit: without anything to evaluate on it would never decide. An own loop cannot be asked."""
        if self.at != "eval" or not run.is_training_run or getattr(run, "task", None) is None:
            return
        if not self.name.startswith("val/") and "val" not in run.loaders:  # val/… has an error of its own
            raise SetupError(
                f"{self._reader}({self.name!r}) decides after evaluations, and there is nothing to evaluate on: "
                f"pass a validation loader to fit, or decide_at='epoch' or 'interval'"
            )

    def is_measured(self, run: Run, decided_at: int | None) -> bool:
        """In ``on_eval_end``: an evaluation of a fit, not the final test nor a separate evaluation.

        A callback may log a metric that it declares at some evaluations only. Other evaluations do not count as
        decisions.
        """
        if run.stage != "val" or run.entry_point != "fit":
            return False
        return not self._waits(run) or self._is_fresh(run, decided_at)

    def measured_at(self, run: Run) -> int | None:
        """The step of the newest value, which a decision keeps as its ``decided_at``."""
        return run.metrics.step_of(self.name)

    def _waits(self, run: Run) -> bool:
        """Whether a callback declares the metric, and may log it less often than this one decides."""
        return run.callbacks.declare(self.name) and not run.callbacks.lost(self.name)

    def _is_fresh(self, run: Run, decided_at: int | None) -> bool:
        """Whether the metric was measured since the last decision."""
        return self.measured_at(run) not in (None, decided_at)

    def after_epoch(self, run: Run, decided: int) -> bool:
        """Not in one that was cut short: its metrics are those of the epoch before."""
        return self.at == "epoch" and run.clock.epoch > decided

    def after_interval(self, run: Run) -> bool:
        """Not in one that a stop has cut short."""
        return self.at == "interval" and not was_cut_short(run)

    def is_new(self, run: Run, evaluations: int, decided: int | None, decided_at: int | None) -> bool:
        """Not before the first evaluation, and no value twice; ``decided`` is how many there were last time.

        ``decided_at`` is the step of the value that was decided by last time.
        """
        if self._waits(run):
            return self._is_fresh(run, decided_at)
        if not self.name.startswith("val/"):
            return True
        if not evaluations:  # an own loop may log it by itself
            return self.name in run.metrics
        return decided is None or evaluations > decided

    def warn_if_never(self, run: Run, evaluations: int, decided: int | None) -> None:
        """When training ends: nothing was there to decide by. A run that was interrupted may continue."""
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
        """The newest value; ``None`` before the first, and when the callback that logged it has been switched off."""
        name = self.name
        if run.callbacks.lost(name):
            if not self._warned:
                self._warned = True
                logger.warning("%s decides nothing: the callback that logged %s is switched off", self._reader, name)
            return None
        return monitored_value(run, self._reader, name)

    @property
    def decisions(self) -> str:
        """What a decision follows, in words."""
        return {"eval": "evaluation", "epoch": "epoch", "interval": "interval"}[self.at]
