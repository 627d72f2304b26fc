"""Metric that a callback monitors: name, direction and value."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from hookline.errors import MetricError, RegistrationError
from hookline.records.direction import LARGER_IS_BETTER, SMALLER_IS_BETTER, direction
from hookline.run.history import missing_metric

if TYPE_CHECKING:
    from hookline.run import Run

STAGES = {
    **dict.fromkeys(("val", "valid", "validation", "eval"), "val"),
    **dict.fromkeys(("train", "training"), "train"),
    "test": "test",
}
"""Prefixes of names such as ``"val_loss"`` in other frameworks, with the stage of each."""


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
