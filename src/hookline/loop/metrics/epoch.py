"""The sums of the epoch that is open: what its intervals come to together, and the last of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline.loop.metrics.series import Series

Sums = tuple[Any, Any]
"""A total and its weight."""


class EpochSums:
    """The means and sums of training, over the whole epoch. In several processes they are the same on all ranks."""

    def __init__(self) -> None:
        self._whole: dict[str, Series] = {}
        self.before: dict[str, Sums] = {}
        """Those of the last interval, if it was of this epoch: a short one that follows is averaged with it."""

    def add(self, interval: Mapping[str, Series]) -> None:
        """An interval ends, with what was logged in it."""
        self.before = {name: its.sums() for name, its in interval.items() if its.reduce in ("mean", "sum")}
        for name, (total, weight) in self.before.items():
            whole = self._whole.setdefault(name, Series(interval[name].reduce))
            whole.folded_total = total if whole.folded_total is None else whole.folded_total + total
            whole.folded_weight = whole.folded_weight + weight

    def take(self) -> dict[str, Any]:
        """The epoch ends: what each comes to."""
        found = {name: series.result() for name, series in self._whole.items()}
        self._whole, self.before = {}, {}
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": {name: s.state_dict() for name, s in self._whole.items()}, "before": dict(self.before)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._whole = {name: Series(its["reduce"]) for name, its in state["epoch"].items()}
        for name, series in self._whole.items():
            series.load_state_dict(state["epoch"][name])
        self.before = {name: (total, weight) for name, (total, weight) in state.get("before", {}).items()}
