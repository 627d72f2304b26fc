"""Which metrics are shown where there is room for a few: next to a progress bar, and in the list of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def choose_metrics(names: Iterable[str], monitored: Iterable[str], room: Mapping[str, int]) -> list[str]:
    """The metrics that callbacks monitor first, then others in the order of ``names``.

    ``room`` is how many there may be by prefix, in the order to show them. Monitored ones are shown in any case.

    >>> choose_metrics(["train/loss", "val/loss", "val/acc", "val/f1"], ["val/f1"], {"train/": 1, "val/": 2})
    ['val/f1', 'train/loss', 'val/loss']
    """
    known = list(dict.fromkeys(names))
    found = [name for name in dict.fromkeys(monitored) if name in known]
    for prefix, most in room.items():
        left = most - sum(name.startswith(prefix) for name in found)
        found += [name for name in known if name.startswith(prefix) and name not in found][: max(0, left)]
    return found
