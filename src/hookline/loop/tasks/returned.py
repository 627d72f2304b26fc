"""The values that ``train_batch`` and ``eval_batch`` may return."""

from __future__ import annotations

from typing import Any, Final

from hookline.errors import LossError

RETURNED: Final = frozenset({"loss", "weight", "outputs"})


def check_returned(method: str, found: dict[str, Any]) -> None:
    """Raise an error if a dict lacks the loss, or has a key that is not one of ``RETURNED``."""
    if not found.keys() <= RETURNED or "loss" not in found:
        raise LossError(
            f"{method} returned a dict with {', '.join(map(str, found)) or 'nothing'}: it must have 'loss' "
            f"and may have 'weight' and 'outputs'; log metrics with run.log({{...}})"
        )
