"""The rows of metrics: recorded in the history, written, and the newest of each kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

from hookline.errors import HooklineWarning
from hookline.loop.metrics.names import MetricNames
from hookline.records import Kind, MetricRow, Value
from hookline.run.state import RunState


class MetricRows:
    """What was measured, by the name under which it is shown."""

    def __init__(self, state: RunState, names: MetricNames, write: Callable[[list[MetricRow]], None]) -> None:
        self._state, self._names, self._write = state, names, write
        self.newest: dict[str, Value] = {}
        self.measured: dict[str, int] = {}
        """At which step."""
        self._late: set[str] = set()  # names that somebody was warned about

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
