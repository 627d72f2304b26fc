"""The rows of metrics: recorded in the history, written, and the newest of each kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hookline.errors import HooklineWarning, MetricError
from hookline.records import Kind, MetricRow, Value
from hookline.run.state import RunState

Thing = TypeVar("Thing")


class MetricNames:
    """Who was renamed: rows, history, sinks and ``run.metrics`` know a metric by its new name.

    >>> names = MetricNames()
    >>> names.rename("train/loss", "train/nll")
    >>> names.rows({"train/loss": 0.5, "train/acc": 0.9})
    {'train/nll': 0.5, 'train/acc': 0.9}
    >>> names.rows({"train/loss": 0.5}, "_epoch")
    {'train/nll_epoch': 0.5}
    """

    __slots__ = ("_inner", "_shown")

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, ...]] = {}  # by the name inside
        self._inner: dict[str, str] = {}  # by a name that is shown

    def rename(self, old: str, new: str, *, keep: bool = False) -> None:
        """Show a metric as ``new`` from now on, with ``keep`` under both names; ``old`` may be a new name itself."""
        inner = self.inner(old)
        if self._inner.get(new, inner) != inner:
            raise MetricError(f"{old} is to be called {new}, and so is {self._inner[new]}; use two names")
        shown = self.shown(inner)
        if new not in shown:
            shown = (*shown, new) if keep else tuple(new if name == old else name for name in shown)
        self._shown[inner] = shown
        self._inner = {name: inside for inside, names in self._shown.items() for name in names}

    def forget(self) -> None:
        """A new run has its own callbacks."""
        self._shown.clear()
        self._inner.clear()

    def inner(self, name: str) -> str:
        """The name inside the book of a metric that is shown by this one."""
        return self._inner.get(name, name)

    def is_hidden(self, name: str) -> bool:
        """Whether it was given away: the metric of this name is shown by another."""
        return name in self._shown and name not in self._inner

    def shown(self, name: str) -> tuple[str, ...]:
        return self._shown.get(name, (name,))

    def rows(self, values: Mapping[str, Thing], suffix: str = "") -> dict[str, Thing]:
        """Values by the names of their rows; those of an epoch have a ``suffix``, and may have a name of their own."""
        if not self._shown and not suffix:
            return dict(values)
        found: dict[str, Thing] = {}
        for name, value in values.items():
            for shown in self.shown(name):
                for row in self.shown(f"{shown}{suffix}") if suffix else (shown,):
                    if row in found:
                        raise MetricError(f"{name} is called {row}, which is logged, too; use two names")
                    found[row] = value
        return found


class MetricRows:
    """What was measured, by the name under which it is shown."""

    def __init__(self, state: RunState, names: MetricNames, write: Callable[[list[MetricRow]], None]) -> None:
        self._state, self._names, self._write = state, names, write
        self.newest: dict[str, Value] = {}
        self.measured: dict[str, int] = {}
        """At which step."""
        self._late: set[str] = set()  # names that somebody was warned about

    def state_dict(self) -> dict[str, Any]:
        return {"newest": dict(self.newest), "measured": dict(self.measured)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.newest, self.measured = dict(state["newest"]), dict(state["measured"])

    def record(self, metrics: Mapping[str, Value], kind: Kind) -> None:
        clock = self._state.clock
        now = clock.seconds
        self._keep([MetricRow(name, clock.step, clock.epoch, value, kind, now) for name, value in metrics.items()])

    def record_dated(self, metrics: Mapping[tuple[str, int], Value], kind: Kind) -> None:
        clock = self._state.clock
        rows = [
            MetricRow(shown, step, clock.epoch, value, kind, clock.seconds)
            for (name, step), value in metrics.items()
            for shown in self._names.shown(name)
        ]
        self._keep(sorted(rows, key=lambda row: row.step))

    def _keep(self, rows: list[MetricRow]) -> None:
        trains = self._state.entry_point in ("fit", "train")  # else an evaluation may be made again, and has no rows
        kept: list[MetricRow] = []
        for row in rows:
            if (trains or row.kind == "step") and self._is_late(row):
                continue  # nor does anybody decide by a value that no row has
            kept.append(row)
            self.newest[row.name], self.measured[row.name] = row.value, row.step
        if kept and trains:
            for row in kept:
                self._state.history.record(row)
            self._write(kept)

    def _is_late(self, row: MetricRow) -> bool:
        """Whether its step has a row already: a second one would contradict the first, in every file."""
        late = self.measured.get(row.name, -1) >= row.step
        if late and row.name not in self._late:
            self._late.add(row.name)
            warnings.warn(
                f"{row.name} was logged again for step {row.step}, which has its row already, and is left out there: "
                f"log it once a step, or under another name; one without a slash gets that of the stage",
                HooklineWarning,
                stacklevel=2,
            )
        return late
