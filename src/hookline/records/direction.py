"""Which of two values of a metric is the better one."""

from __future__ import annotations

from typing import Literal

from hookline.errors import RegistrationError

SMALLER_IS_BETTER = (
    "loss",
    "error",
    "err",
    "perplexity",
    "ppl",
    "mse",
    "mae",
    "rmse",
    "nll",
    "wer",
    "cer",
    "fid",
)
LARGER_IS_BETTER = (
    "acc",
    "accuracy",
    "f1",
    "auc",
    "auroc",
    "precision",
    "recall",
    "iou",
    "miou",
    "map",
    "bleu",
    "rouge",
    "r2",
    "reward",
    "score",
    "dice",
)


def direction(monitor: str, mode: str | None = None) -> Literal["min", "max"]:
    """``"min"`` or ``"max"``: as given, or as the name of the metric says.

    >>> direction("val/loss"), direction("val/top_acc"), direction("val/odd", "max")
    ('min', 'max', 'max')
    """
    if mode == "min":
        return "min"
    if mode == "max":
        return "max"
    if mode is not None:
        raise RegistrationError(f"mode={mode!r}: use 'min' or 'max'")
    words = monitor.rpartition("/")[2].lower().replace("-", "_").split("_")
    smaller, larger = any(w in SMALLER_IS_BETTER for w in words), any(w in LARGER_IS_BETTER for w in words)
    if smaller == larger:
        raise RegistrationError(f"is a larger {monitor!r} better, or a smaller? Pass mode='max' or mode='min'")
    return "min" if smaller else "max"
