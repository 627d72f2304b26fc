"""The values that ``train_batch`` and ``eval_batch`` may return."""

from __future__ import annotations

from typing import Any, Final

from hookline.errors import LossError

RETURNED: Final = frozenset({"loss", "weight", "outputs"})
"""Keys of the dict. Only ``"loss"`` is required."""


def check_returned(method: str, found: dict[str, Any]) -> None:
    """Check the dict that a method of a task has returned.

    Args:
        method: The name of the method, for the error.
        found: The dict.

    Raises:
        LossError: If the dict has no loss, or a key that is not in ``RETURNED``.
    """
    if not found.keys() <= RETURNED or "loss" not in found:
        raise LossError(
            f"{method} returned a dict with {', '.join(map(str, found)) or 'nothing'}: it must have 'loss' "
            f"and may have 'weight' and 'outputs'; log metrics with run.log({{...}})"
        )
