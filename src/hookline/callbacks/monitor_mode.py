"""Which values of a monitored metric are the better ones, in the words of the callback that monitors it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Literal

from hookline.errors import RegistrationError
from hookline.records.direction import LARGER_IS_BETTER, SMALLER_IS_BETTER, direction


def monitor_mode(reader: str, monitor: str, mode: str | None) -> Literal["min", "max"]:
    """``mode`` as given to ``reader``, or as the name of the metric says.

    >>> monitor_mode("SaveBest", "val/los", None)
    Traceback (most recent call last):
    hookline.errors.RegistrationError: SaveBest('val/los'): is a larger value better, or a smaller? Pass mode='max' or \
mode='min'; or did you mean 'val/loss'?
    """
    if not isinstance(monitor, str):
        raise RegistrationError(f"{reader}(monitor={monitor!r:.80}): give the name of a metric, such as 'val/loss'")
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
