"""The last and the best value of each metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline.records.direction import known_direction
from hookline.report.charts import epoch_of, is_epoch, short
from hookline.report.downsample import downsample
from hookline.report.series import Series

TILES, ENOUGH = 8, 4
SPARK = 60
_STAGES = ("val", "test", "train")


def number(series: Series) -> dict[str, Any]:
    """Return one row of the table of metrics. ``best`` needs a name with a known direction."""
    mode, lowest, highest = known_direction(series.name), series.lowest(), series.highest()
    return {
        "name": series.name,
        "kind": series.kind,
        "count": len(series),
        "last": _point(series, len(series) - 1),
        "lowest": _point(series, lowest),
        "highest": _point(series, highest),
        "best": _point(series, {"min": lowest, "max": highest}.get(mode or "")),
        "mode": mode,
    }


def _point(series: Series, place: int | None) -> dict[str, Any] | None:
    if place is None:
        return None
    return {"value": exact(series.values[place]), "step": series.steps[place], "epoch": series.epochs[place]}


def exact(value: float) -> float | str:
    """Return the value with all digits, and NaN and infinities as strings, which JSON requires."""
    return value if value - value == 0 else str(value)


def whole(value: Any) -> Any:
    """Return integers from 2**53 as strings: JavaScript would round them, for example a seed.

    >>> whole(9938647860722010304), whole(7), whole("a")
    ('9938647860722010304', 7, 'a')
    """
    return str(value) if isinstance(value, int) and abs(value) >= 2**53 else value


def numbers_of(series: Mapping[str, Series]) -> list[dict[str, Any]]:
    """Return the table of all metrics, evaluations first."""
    order = {"test": 0, "val": 1, "train": 2}
    names = sorted(series, key=lambda name: (order.get(name.partition("/")[0], 3), name))
    return [number(series[name].ordered()) for name in names]


def tiles_of(
    series: Mapping[str, Series], numbers: list[dict[str, Any]], kept: int | None = None, since: float = 0.0
) -> list[dict[str, Any]]:
    """Return the values at the top of the page: of evaluations first, then of training.

    If a metric also has values over full epochs, these are shown: the best value of an interval of a few batches is
    often chance.

    Args:
        series: The series by name.
        numbers: The table of all metrics.
        kept: Step whose weights were restored.
        since: Time of the restore in seconds of training.
    """
    own = (number for number in numbers if _stage(number) in _STAGES and not is_epoch(number["name"], series))
    ranked = sorted(own, key=_rank)
    evaluated = sum(_stage(number) != "train" for number in ranked)
    chosen = ranked[: max(ENOUGH, min(TILES, evaluated))]
    by_name = {number["name"]: number for number in numbers}
    tiles = []
    for number in chosen:
        name, shown = number["name"], by_name.get(epoch_of(number["name"]), number)
        tile = {**shown, "name": name, "by_epoch": shown is not number, "spark": _spark(series[name].ordered())}
        tiles.append(tile if kept is None else {**tile, **_kept(series[shown["name"]].ordered(), kept, since)})
    return tiles


def _kept(series: Series, step: int, since: float) -> dict[str, Any]:
    """Return the value with the restored weights: at their step, or after the restore."""
    if series.seconds[-1] >= since:
        return {"weights": step}
    return {"kept": _point(series, series.steps.index(step) if step in series.steps else None)}


def _stage(number: Mapping[str, Any]) -> str:
    return str(number["name"]).partition("/")[0]


def _rank(number: Mapping[str, Any]) -> tuple[int, bool, bool]:
    """Sort by validation, test, training; then lower is better, higher is better, unknown."""
    return _STAGES.index(_stage(number)), number["mode"] is None, number["mode"] == "max"


def _spark(series: Series) -> list[float | str]:
    return [short(series.values[place]) for place in downsample(series.values, SPARK).places]
