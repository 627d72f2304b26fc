"""The choice of a few metrics to show, next to a progress bar and in the list of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def choose_metrics(names: Iterable[str], monitored: Iterable[str], room: Mapping[str, int]) -> list[str]:
    """Return the metrics to show: the monitored ones, then others in the order of ``names``.

    Args:
        names: All metrics.
        monitored: The metrics that callbacks monitor. They are always shown.
        room: Number of metrics to show by prefix, in the order of display.

    Example:
        >>> choose_metrics(["train/loss", "val/loss", "val/acc", "val/f1"], ["val/f1"], {"train/": 1, "val/": 2})
        ['val/f1', 'train/loss', 'val/loss']
    """
    known = list(dict.fromkeys(names))
    found = [name for name in dict.fromkeys(monitored) if name in known]
    for prefix, most in room.items():
        left = most - sum(name.startswith(prefix) for name in found)
        found += [name for name in known if name.startswith(prefix) and name not in found][: max(0, left)]
    return found
