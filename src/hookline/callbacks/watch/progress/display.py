"""``ProgressDisplay``: the protocol of a progress display, and the values that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hookline.records import Value

if TYPE_CHECKING:
    from hookline.run import Run


@dataclass(frozen=True, slots=True)
class Bar:
    """Progress of one thing: the run, the epoch, an evaluation or a prediction.

    Example:
        >>> Bar("step", "46/115", done=46, total=115).share
        0.4
    """

    name: str
    """Name of the bar.

    Either the unit that it counts (``"epoch"``, ``"step"``, ``"sample"``, ``"token"``, ``"time"``), or the
    stage (``"val"``, ``"val/hard"`` for a named loader, ``"test"``, ``"predict"``).
    """
    count: str
    """Progress as a string: ``"46/115"``, or ``"46"`` if the total is not known."""
    done: float
    """Progress in the unit of ``total``."""
    total: float | None
    """Value of ``done`` at the end.

    ``None`` for a loader without a length or without ``max_duration``.
    """
    speed: str = ""
    """Speed as a string, for example ``"12.3 it/s, 394 samples/s"``. Empty until it is known."""
    seconds_left: float | None = None
    """Estimate of the remaining seconds. ``None`` if it is not known."""

    @property
    def share(self) -> float | None:
        """Fraction that is done, from 0 to 1. ``None`` if the total is not known."""
        return None if not self.total else min(1.0, self.done / self.total)


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything that a display shows in one update.

    Example:
        >>> bars = (Bar("epoch", "2/5", 1.4, 5), Bar("step", "46/115", 46, 115))
        >>> Progress(bars, {"train/loss": 0.312}, seconds=12.5).where
        'epoch 2/5 step 46/115'
    """

    bars: tuple[Bar, ...]
    """Bars in order: the whole run first, a running evaluation or prediction last."""
    metrics: Mapping[str, Value | None]
    """Newest values in the order to show them. ``None`` for a requested metric without a value."""
    seconds: float
    """Seconds since the start of the call."""
    beside: str = ""
    """Counts that have no bar, for example ``"epoch 3"`` if ``max_duration`` is in steps."""
    note: str = ""
    """Reason why the run stopped. At the end of training, also the losses that are not finite."""
    over: bool = False
    """True for the last update of the call."""

    @property
    def where(self) -> str:
        """Position as a string."""
        return " ".join([*([self.beside] if self.beside else []), *(f"{bar.name} {bar.count}" for bar in self.bars)])


@runtime_checkable
class ProgressDisplay(Protocol):
    """Protocol of a custom display for ``ProgressBar(style=MyDisplay())``.

    Hookline calls ``update`` at most ten times per second (or as ``every`` says), at the end of epochs and
    evaluations, and at the end of the call. It calls ``close`` however the run ends. If a method raises an
    error, Hookline disables the progress bar and continues the run. One object can serve several calls, one
    after the other.

    Example:
        >>> class Percent:
        ...     def start(self, run): ...
        ...     def update(self, progress):
        ...         self.last = f"{progress.bars[0].share:.0%}"
        ...
        ...     def close(self): ...
        >>> isinstance(Percent(), ProgressDisplay)
        True
    """

    def start(self, run: Run) -> None:
        """Start to show a fit, an evaluation or a prediction.

        Args:
            run: The run that starts.
        """

    def update(self, progress: Progress) -> None:
        """Show the progress.

        Args:
            progress: The new progress. It replaces the previous one completely.
        """

    def close(self) -> None:
        """Restore the screen. No call follows until the next ``start``."""
