"""The key numbers: the last and the best value of each metric."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from hookline.report.charts import is_epoch, short
from hookline.report.downsample import downsample
from hookline.report.series import Series

TILES, ENOUGH = 8, 4
SPARK = 60
_STAGES = ("val", "test", "train")
_WORD = re.compile(r"[a-z]+|[0-9]+")
_LOWER = frozenset(
    ("loss", "error", "err", "mae", "mse", "rmse", "mape", "nll", "ppl", "perplexity", "wer", "cer", "fid", "bpb")
)
_HIGHER = frozenset(
    {"acc", "accuracy", "auc", "auroc", "f", "f1", "iou", "miou", "dice", "precision", "recall", "map", "ap", "top"}
    | {"bleu", "rouge", "ndcg", "mrr", "psnr", "ssim", "score", "reward", "return", "kappa", "mcc", "r2"}
)

Mode = Literal["min", "max"]


def better(name: str) -> Mode | None:
    """Whether less or more of a metric is better, as far as its name tells.

    >>> better("val/loss"), better("val/top_1_accuracy"), better("val/temperature")
    ('min', 'max', None)
    """
    words = set(_WORD.findall(name.rpartition("/")[2].lower())) | {name.rpartition("/")[2].lower()}
    if words & _LOWER:
        return "min"
    return "max" if words & _HIGHER else None


def number(series: Series) -> dict[str, Any]:
    """One row of the table of all metrics. There is a ``best`` if its name tells which is better."""
    mode, lowest, highest = better(series.name), series.lowest(), series.highest()
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
    """All digits; NaN and infinities as texts, because JSON has no such numbers."""
    return value if value - value == 0 else str(value)


def numbers_of(series: Mapping[str, Series]) -> list[dict[str, Any]]:
    """The table of all metrics: those of evaluations first."""
    order = {"test": 0, "val": 1, "train": 2}
    names = sorted(series, key=lambda name: (order.get(name.partition("/")[0], 3), name))
    return [number(series[name].ordered()) for name in names]


def tiles_of(series: Mapping[str, Series], numbers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The few numbers at the top: of evaluations; and of training, if there is room."""
    ranked = sorted(
        (number for number in numbers if _stage(number) in _STAGES and not is_epoch(number["name"])), key=_rank
    )
    evaluated = sum(_stage(number) != "train" for number in ranked)
    chosen = ranked[: max(ENOUGH, min(TILES, evaluated))]
    return [{**number, "spark": _spark(series[number["name"]].ordered())} for number in chosen]


def _stage(number: Mapping[str, Any]) -> str:
    return str(number["name"]).partition("/")[0]


def _rank(number: Mapping[str, Any]) -> tuple[int, bool, bool]:
    """Validation, test, training; of each what should be low, what should be high, the rest."""
    return _STAGES.index(_stage(number)), number["mode"] is None, number["mode"] == "max"


def _spark(series: Series) -> list[float | str]:
    return [short(series.values[place]) for place in downsample(series.values, SPARK).places]
