"""``Result``: the return value of ``fit``."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.events import CostRow, Failure
from hookline.progress import Clock
from hookline.progress.counted import counted
from hookline.run import History
from hookline.run.run import no_folder
from hookline.sinks.pump import SinkReport

STAGES = ("train", "val", "test")
MAX_POINTS = 200
"""Maximum number of points of a curve in a notebook."""


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """The result of a run: the model, the metrics, why it stopped, and what callbacks cost."""

    model: Any
    """The model or task that was trained."""
    history: History
    metrics: dict[str, Any]
    """The newest value of each metric: a float, or a list for an array."""
    clock: Clock
    stop_reason: str
    stopped_by: str | None
    """The callback or task that asked to stop. ``None`` at the end of ``max_duration``."""
    interrupted: bool
    """True if Ctrl-C ended the run. ``fit`` with the same trainer and model continues it."""
    _folder: Path | None
    best_checkpoint: Path | None
    costs: tuple[CostRow, ...]
    failures: tuple[Failure, ...]
    """The failures of optional callbacks, which were switched off."""
    sinks: tuple[SinkReport, ...] = ()
    """For each sink, the number of rows that it has written and dropped, and its errors."""

    @property
    def folder(self) -> Path:
        """The folder of the run. Check ``result.has_folder`` first.

        Raises:
            NotAvailableError: If the run has no folder (``folder=False``).
        """
        if self._folder is None:
            raise no_folder("result")
        return self._folder

    @property
    def has_folder(self) -> bool:
        """True if the run wrote into a folder. False with ``folder=False``."""
        return self._folder is not None

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name}={_short(value)}" for name, value in sorted(self.metrics.items()))
        counts = f"{counted(self.clock.step, 'step')}, {counted(self.clock.epoch, 'epoch')}"
        return f"<Result: {self.stop_reason}; {counts}; {metrics}>"

    def _repr_html_(self) -> str:
        """Return the result as a notebook shows it: why the run stopped, and the metrics with their curves."""
        by = f" (by {html.escape(self.stopped_by)})" if self.stopped_by else ""
        counts = f"{counted(self.clock.step, 'step')}, {counted(self.clock.epoch, 'epoch')}, {self.clock.seconds:.1f} s"
        main = [name for name in sorted(self.metrics) if name.partition("/")[0] in STAGES]
        others = [name for name in sorted(self.metrics) if name not in main]
        parts = [f"<p><b>{html.escape(self.stop_reason)}</b>{by}<br>{counts}</p>", self._table(main)]
        if others:
            summary = f"{counted(len(others), 'other metric')}"
            parts.append(f"<details><summary>{summary}</summary>{self._table(others)}</details>")
        if self.has_folder:
            parts.append(f"<p><code>{html.escape(str(self.folder))}</code></p>")
        return "\n".join(parts)

    def _table(self, names: list[str]) -> str:
        """Return the metrics with their newest, lowest and highest value and a curve, as HTML."""
        rows = []
        for name in names:
            newest = self.metrics[name]
            if not isinstance(newest, int | float):
                continue  # Arrays are in the report.
            past = self.history.get(name, [])
            values = [float(value) for value in past if math.isfinite(value)]
            ends = (f"{min(values):.4g}", f"{max(values):.4g}") if values else ("", "")
            cells = "".join(f"<td>{text}</td>" for text in (_short(newest), *ends, _curve(values)))
            rows.append(f"<tr><td>{html.escape(name)}</td>{cells}</tr>")
        head = "".join(f"<th>{text}</th>" for text in ("metric", "last", "lowest", "highest", ""))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>" if rows else ""

    def summary(self) -> str:
        """Return a few lines of text: why the run stopped, the last metrics, costs and failures."""
        lines = [
            f"stopped: {self.stop_reason}" + (f" (by {self.stopped_by})" if self.stopped_by else ""),
            f"ran: {counted(self.clock.step, 'step')}, {counted(self.clock.epoch, 'epoch')}, "
            f"{counted(self.clock.sample, 'sample')}, {self.clock.seconds:.1f} s",
        ]
        lines += [f"{name}: {_short(value)}" for name, value in sorted(self.metrics.items())]
        total = max(self.clock.seconds, 1e-9)
        lines += [
            f"cost: {row.callback}.{row.hook}: {row.seconds * 1e3:.1f} ms in {counted(row.calls, 'call')}, "
            f"{row.seconds / total:.1%}"
            for row in self.costs[:10]
        ]
        counts: dict[str, int] = {}
        for failure in self.failures:
            counts[failure.callback] = counts.get(failure.callback, 0) + 1
        firsts = {failure.callback: failure for failure in reversed(self.failures)}
        lines += [f"switched off after {count} failure(s): {firsts[name]}" for name, count in counts.items()]
        lines += [f"sink {report}" for report in self.sinks if not report.is_well]
        if self.has_folder:
            lines.append(f"folder: {self.folder}")
        return "\n".join(lines)


def _curve(values: list[float]) -> str:
    """Return the values as a small SVG line."""
    if len(values) < 2:
        return ""
    values = values[:: math.ceil(len(values) / MAX_POINTS)]
    low, spread = min(values), (max(values) - min(values)) or 1.0
    points = " ".join(
        f"{1 + 98 * place / max(1, len(values) - 1):.1f},{23 - 22 * (value - low) / spread:.1f}"
        for place, value in enumerate(values)
    )
    line = f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    return f'<svg width="100" height="24" viewBox="0 0 100 24" aria-hidden="true">{line}</svg>'


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
