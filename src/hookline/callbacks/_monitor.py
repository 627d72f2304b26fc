"""Metric that a callback monitors: name, direction, value, and when to decide."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from hookline.callbacks._ending import was_cut_short, was_interrupted
from hookline.errors import MetricError, RegistrationError, SetupError
from hookline.progress import Duration
from hookline.progress.duration import COUNTS, PASSES
from hookline.records.direction import LARGER_IS_BETTER, SMALLER_IS_BETTER, direction
from hookline.run.history import missing_metric

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

STAGES = {
    **dict.fromkeys(("val", "valid", "validation", "eval"), "val"),
    **dict.fromkeys(("train", "training"), "train"),
    "test": "test",
}
"""Prefixes of names such as ``"val_loss"`` in other frameworks, with the stage of each."""

DecideAt = Literal["eval", "epoch", "interval"]
DECIDE_AT = ("eval", "epoch", "interval")


def monitor_mode(reader: str, monitor: str, mode: str | None) -> Literal["min", "max"]:
    """Return ``mode``, or infer it from the name of the metric.

    Args:
        reader: Name of the callback, for errors.
        monitor: Name of the metric.
        mode: ``"min"``, ``"max"`` or ``None``.

    Raises:
        RegistrationError: If the name or the mode is invalid, or the mode cannot be inferred.

    Example:
        >>> monitor_mode("SaveBest", "val/los", None)
        Traceback (most recent call last):
        hookline.errors.RegistrationError: SaveBest('val/los'): is a larger value better, or a smaller? Pass \
mode='max' or mode='min'; or did you mean 'val/loss'?
    """
    check_metric_name(f"{reader}(monitor={monitor!r:.80})", monitor)
    try:
        return direction(monitor, mode)
    except RegistrationError:
        if mode is not None:
            raise RegistrationError(f"{reader}({monitor!r}, mode={mode!r}): use 'min' or 'max'") from None
    folder, slash, name = monitor.rpartition("/")
    close = get_close_matches(name.lower(), sorted(SMALLER_IS_BETTER | LARGER_IS_BETTER), n=1, cutoff=0.75)
    hint = f"; or did you mean {folder + slash + close[0]!r}?" if close else ""
    raise RegistrationError(
        f"{reader}({monitor!r}): is a larger value better, or a smaller? Pass mode='max' or mode='min'{hint}"
    )


def check_metric_name(where: str, name: object) -> None:
    """Raise if a name has no stage, because every metric is logged with its stage.

    Args:
        where: Start of the error message.
        name: Name of the metric.

    Raises:
        RegistrationError: If the name is not a string with a stage, or is a pattern.

    Example:
        >>> check_metric_name("EarlyStopping(monitor='loss')", "loss")
        Traceback (most recent call last):
        hookline.errors.RegistrationError: EarlyStopping(monitor='loss'): the name of a metric starts with its \
stage. Write 'val/loss' or 'train/loss'.
    """
    if not isinstance(name, str) or not name or "*" in name:
        raise RegistrationError(f"{where}: give the name of one metric, such as 'val/loss'.")
    if "/" not in name:
        prefix, _, rest = name.partition("_")
        stage = STAGES.get(prefix.lower())
        write = f"'{stage}/{rest}'" if stage and rest else f"'val/{name}' or 'train/{name}'"
        raise RegistrationError(f"{where}: the name of a metric starts with its stage. Write {write}.")


def monitored_value(run: Run, reader: str, name: str) -> float | None:
    """Return the newest value of a metric.

    Return ``None`` if a callback declares the metric but has not logged it yet.

    Args:
        run: The run.
        reader: Name of the callback that monitors the metric, for errors.
        name: Name of the metric.

    Raises:
        MetricError: If no callback logs the metric, or its value is an array.
    """
    value: float | list[object] | None = run.metrics.get(name)
    if value is None:
        if run.callbacks.declare(name):
            return None
        raise missing_metric(reader, name, run.metrics)
    if isinstance(value, list):
        raise MetricError(f"{reader} monitors {name!r}, which is an array; monitor a number")
    return value


class Monitored:
    """Metric ``name`` that the callback ``reader`` reads after evaluations, epochs or intervals."""

    __slots__ = ("_reader", "_warned", "at", "name")

    def __init__(self, reader: str, name: str, at: str | None) -> None:
        if at is not None and at not in DECIDE_AT:
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


def read_patience(reader: str, patience: int | str | Duration) -> int | Duration:
    """Return the validated patience: a number of decisions or a duration."""
    if not isinstance(patience, int):
        return Duration.parse(patience, f"{reader}(patience=…)")
    if isinstance(patience, bool) or patience < 0:
        raise RegistrationError(
            f"{reader}(patience={patience!r}): give 0 or more decisions, or a duration such as '2ep'"
        )
    return patience


def clock_of(run: Run, patience: int | Duration) -> dict[str, float]:
    """Return the clock by unit, because a resumed run may give its patience in another unit.

    Seconds are included only if the patience is in seconds, because they differ between two equal runs.
    """
    units = [*COUNTS, PASSES]
    if not isinstance(patience, int) and patience.of(run.max_duration).unit == "s":
        units.append("s")
    return {unit: run.clock.elapsed(unit) for unit in units}


def with_all_units(run: Run, patience: int | Duration, since: dict[str, float]) -> dict[str, float]:
    """Return the clock of a checkpoint. Units that it lacks count from now."""
    return {**clock_of(run, patience), **since} if since else since


def is_over(run: Run, patience: int | Duration, *, waited: int, since: dict[str, float]) -> bool:
    """True if the patience is used up.

    Args:
        run: The run.
        patience: Number of decisions, or a duration.
        waited: Number of decisions so far.
        since: Clock by unit from which a duration counts. Empty: the start of the run.
    """
    if isinstance(patience, int):
        return waited >= patience
    length = patience.of(run.max_duration)
    # Round the difference, because a fraction of an epoch is a float, and 0.3 - 0.2 is less than 0.1.
    return round(run.clock.elapsed(length.unit) - since.get(length.unit, 0), 9) >= length.value


def in_words(patience: int | Duration, waited: int, decisions: str) -> str:
    """Return the patience for messages: ``3 evaluations``, or the duration."""
    return str(patience) if isinstance(patience, Duration) else f"{waited} {decisions}{'' if waited == 1 else 's'}"
