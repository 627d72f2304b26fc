"""Whether a smaller or a larger value of a metric is better."""

from __future__ import annotations

import re
from typing import Literal

from hookline.errors import ArgumentError

SMALLER_IS_BETTER = frozenset(
    ("loss", "error", "err", "mae", "mse", "rmse", "mape", "nll", "ppl", "perplexity", "wer", "cer", "fid", "bpb")
)
LARGER_IS_BETTER = frozenset(
    {"acc", "accuracy", "auc", "auroc", "f1", "iou", "miou", "dice", "precision", "recall", "map", "ap", "bleu"}
    | {"rouge", "ndcg", "mrr", "psnr", "ssim", "score", "reward", "return", "kappa", "mcc", "r2"}
)


def known_direction(metric: str) -> Literal["min", "max"] | None:
    """Return the direction that the name of a metric implies, or ``None`` if it is unclear.

    The last known word decides: ``dice_loss`` is a loss. A loss before a word for larger values is unclear.

    >>> known_direction("val/loss"), known_direction("val/map50"), known_direction("val/width")
    ('min', 'max', None)
    >>> known_direction("val/dice_loss"), known_direction("val/loss_score")
    ('min', None)
    """
    words = re.split(r"[^a-z0-9]+", metric.rpartition("/")[2].lower())
    known = [way for way in map(_way_of, words) if way is not None]
    if not known or (known[-1] == "max" and "min" in known):
        return None
    return known[-1]


def _way_of(word: str) -> Literal["min", "max"] | None:
    stems = {word, word.rstrip("0123456789")}
    return "min" if stems & SMALLER_IS_BETTER else "max" if stems & LARGER_IS_BETTER else None


def direction(monitor: str, mode: str | None = None) -> Literal["min", "max"]:
    """Return ``"min"`` or ``"max"`` for a metric.

    Args:
        monitor: Name of the metric.
        mode: ``"min"`` or ``"max"``. Inferred from the name by default.

    Raises:
        ArgumentError: If ``mode`` is not a direction, or if it is missing and the name does not imply one.

    Example:
        >>> direction("val/loss"), direction("val/top_acc"), direction("val/odd", "max")
        ('min', 'max', 'max')
    """
    if mode == "min":
        return "min"
    if mode == "max":
        return "max"
    if mode is not None:
        raise ArgumentError(f"mode={mode!r}: must be 'min' or 'max'.")
    known = known_direction(monitor)
    if known is None:
        raise ArgumentError(f"is a larger {monitor!r} better, or a smaller? Pass mode='max' or mode='min'")
    return known
