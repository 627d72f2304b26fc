"""``Result``: the return value of ``fit``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.events import CostRow, Failure
from hookline.progress import Clock
from hookline.progress.counted import counted
from hookline.run import History
from hookline.run.run import no_folder
from hookline.sinks.pump import SinkReport


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


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
