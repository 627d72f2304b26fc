"""Metric that a callback monitors: name, direction, value, and when to decide."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hookline.callbacks._ending import was_cut_short, was_interrupted
from hookline.errors import ArgumentError, MetricError, SetupError
from hookline.events import Callback
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


def monitor_mode(reader: str, monitor: str, mode: str | None) -> Literal["min", "max"]:
    """Return ``mode``, or infer it from the name of the metric.

    Args:
        reader: Name of the callback, for errors.
        monitor: Name of the metric.
        mode: ``"min"``, ``"max"`` or ``None``.

    Raises:
        ArgumentError: If the name or the mode is invalid, or the mode cannot be inferred.

    Example:
        >>> monitor_mode("SaveBest", "val/los", None)
        Traceback (most recent call last):
        hookline.errors.ArgumentError: SaveBest(monitor='val/los'): the name does not tell whether larger is \
better. Write mode='max' or mode='min'. Or did you mean 'val/loss'?
    """
    check_metric_name(f"{reader}(monitor={monitor!r:.80})", monitor)
    try:
        return direction(monitor, mode)
    except ArgumentError:
        if mode is not None:
            raise ArgumentError(f"{reader}(mode={mode!r}): must be 'min' or 'max'.") from None
    folder, slash, name = monitor.rpartition("/")
    close = get_close_matches(name.lower(), sorted(SMALLER_IS_BETTER | LARGER_IS_BETTER), n=1, cutoff=0.75)
    hint = f" Or did you mean {folder + slash + close[0]!r}?" if close else ""
    raise ArgumentError(
        f"{reader}(monitor={monitor!r}): the name does not tell whether larger is better. Write mode='max' or "
        f"mode='min'.{hint}"
    )


def check_metric_name(where: str, name: object) -> None:
    """Raise if a name has no stage, because every metric is logged with its stage.

    Args:
        where: Start of the error message.
        name: Name of the metric.

    Raises:
        ArgumentError: If the name is not a string with a stage, or is a pattern.

    Example:
        >>> check_metric_name("EarlyStopping(monitor='loss')", "loss")
        Traceback (most recent call last):
        hookline.errors.ArgumentError: EarlyStopping(monitor='loss'): the name of a metric starts with its \
stage. Write 'val/loss' or 'train/loss'.
    """
    if not isinstance(name, str) or not name or "*" in name:
        raise ArgumentError(f"{where}: give the name of one metric, such as 'val/loss'.")
    if "/" not in name:
        prefix, _, rest = name.partition("_")
        stage = STAGES.get(prefix.lower())
        write = f"'{stage}/{rest}'" if stage and rest else f"'val/{name}' or 'train/{name}'"
        raise ArgumentError(f"{where}: the name of a metric starts with its stage. Write {write}.")


def check_min_delta(reader: str, min_delta: float) -> float:
    """Return ``min_delta``, or raise if it is negative or NaN."""
    if not min_delta >= 0:
        raise ArgumentError(f"{reader}(min_delta={min_delta}): must be >= 0.")
    return min_delta


def check_has_evaluations(run: Run, reader: str, monitor: str, otherwise: str = "") -> None:
    """Raise before a fit without evaluations. A custom loop is not checked.

    A missing ``val/…`` metric raises a separate error.
    """
    has_task = run.is_training_run and getattr(run, "task", None) is not None
    if has_task and not monitor.startswith("val/") and "val" not in run.loaders:
        raise SetupError(
            f"{reader}({monitor!r}) decides after evaluations, and there is nothing to evaluate on. Pass a "
            f"validation loader to fit{f', or {otherwise}' if otherwise else ''}."
        )


def warn_if_lost(run: Run, reader: Any) -> bool:
    """Return whether the callback that logged the metric is disabled, and warn once.

    Args:
        run: The run.
        reader: Object with ``monitor``, ``_who`` and ``_warned``.
    """
    if not run.callbacks.lost(reader.monitor):
        return False
    if not reader._warned:
        reader._warned = True
        logger.warning("%s decides nothing: the callback that logged %s is switched off", reader._who, reader.monitor)
    return True


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


class MonitorCallback(Callback):
    """Base class of callbacks that decide something by a metric.

    A subclass implements ``decide``. Hookline calls it after evaluations, epochs or log intervals, once for each value.

    Args:
        monitor: Name of the metric, for example ``"val/loss"``.
        mode: ``"min"`` or ``"max"``. ``None``: inferred from the metric's name.
        decide_at: When to decide: after each ``"eval"`` or ``"epoch"``, or at each ``"interval"`` (``log_every``).
            ``None``: ``"epoch"`` for a ``train/…`` metric, else ``"eval"``.
    """

    state: ClassVar[tuple[str, ...]] = ("decided_epoch", "evaluations", "decided_evaluations", "decided_at")

    def __init__(
        self, monitor: str, *, mode: Literal["min", "max"] | None = None, decide_at: DecideAt | None = None
    ) -> None:
        self.monitor = monitor
        self.mode = monitor_mode(self._who, monitor, mode)
        self.decide_at: DecideAt = decide_at or ("epoch" if monitor.startswith("train/") else "eval")
        self.reads = (monitor,)
        self._warned = False
        self.decided_epoch = 0
        self.evaluations = 0
        """Number of evaluations of this run that measured the metric."""
        self.decided_evaluations: int | None = None
        """Value of ``evaluations`` at the last decision."""
        self.decided_at: int | None = None
        """Step at which the value of the last decision was measured."""

    def decide(self, run: Run, value: float) -> None:
        """Decide by a new value of the metric."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({"decided_at": None, **state})  # Older checkpoints do not have this key.

    def on_setup(self, run: Run) -> None:
        if self.decide_at == "eval":
            check_has_evaluations(run, self._who, self.monitor, "pass decide_at='epoch' or 'interval'")

    def on_eval_end(self, run: Run) -> None:
        # The final test and separate evaluations do not count. A callback may log a metric that it declares at some
        # evaluations only. The other evaluations do not count as decisions.
        if run.stage != "val" or not run.is_training_run or (self._is_declared(run) and not self._is_fresh(run)):
            return
        self.evaluations += 1
        if self.decide_at == "eval":
            self._decide_once(run)

    def on_epoch_end(self, run: Run) -> None:
        # After an incomplete epoch, the metrics are those of the epoch before.
        if self.decide_at == "epoch" and run.clock.epoch > self.decided_epoch:
            self.decided_epoch = run.clock.epoch
            self._decide_once(run)

    def on_metrics_ready(self, run: Run) -> None:
        if self.decide_at == "interval" and not was_cut_short(run):
            self._decide_once(run)

    def on_train_end(self, run: Run) -> None:
        """Warn if the callback never decided. A run that was interrupted may resume."""
        if self.decided_evaluations is not None or was_interrupted(run):
            return
        name, waits = self.monitor, self.decide_at == "eval" or self.monitor.startswith("val/")
        if name not in run.metrics and run.callbacks.declare(name) and not self._warned:
            logger.warning("%s decided nothing: %r was never logged", self._who, name)
        elif waits and not self.evaluations:
            logger.warning(
                "%s decided nothing: it needs evaluations for %s, and none was made; "
                "in a custom loop, evaluate with loop.eval_batches(…) whenever loop.eval_due",
                self._who,
                name,
            )

    @property
    def _who(self) -> str:
        """Name of the class, for messages."""
        return type(self).__name__

    @property
    def _decisions(self) -> str:
        """Name of the event that a decision follows, for messages."""
        return "evaluation" if self.decide_at == "eval" else self.decide_at

    def _decide_once(self, run: Run) -> None:
        """Decide by the newest value, unless it was used for a decision before."""
        if not self._is_new(run) or warn_if_lost(run, self):
            return
        value = monitored_value(run, self._who, self.monitor)
        if value is not None:
            self.decided_evaluations, self.decided_at = self.evaluations, run.metrics.step_of(self.monitor)
            self.decide(run, value)

    def _is_declared(self, run: Run) -> bool:
        """True if a callback that is not disabled declares the metric.

        That callback may log the metric less often than this callback decides.
        """
        return run.callbacks.declare(self.monitor) and not run.callbacks.lost(self.monitor)

    def _is_fresh(self, run: Run) -> bool:
        """True if the metric was measured after the last decision."""
        return run.metrics.step_of(self.monitor) not in (None, self.decided_at)

    def _is_new(self, run: Run) -> bool:
        """True if the newest value has not been used for a decision."""
        if self._is_declared(run):
            return self._is_fresh(run)
        if not self.monitor.startswith("val/"):
            return True
        if not self.evaluations:  # A custom loop may log the metric itself.
            return self.monitor in run.metrics
        return self.decided_evaluations is None or self.evaluations > self.decided_evaluations


def read_patience(reader: str, patience: int | str | Duration) -> int | Duration:
    """Return the validated patience: a number of decisions or a duration."""
    if not isinstance(patience, int):
        return Duration.parse(patience, f"{reader}(patience=…)")
    if patience < 0:
        raise ArgumentError(f"{reader}(patience={patience!r}): must be >= 0, or a duration such as '2ep'.")
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
