"""``ProgressDisplay``: what shows the progress of a run, and the values that it is given to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hookline.records import Value

if TYPE_CHECKING:
    from hookline.run import Run


@dataclass(frozen=True, slots=True)
class Bar:
    """How far one thing is: the run, the epoch, an evaluation, a prediction.

    >>> Bar("step", "46/115", done=46, total=115).share
    0.4
    """

    name: str
    """What it counts (``"epoch"``, ``"step"``, ``"sample"``, ``"token"``, ``"time"``), or what runs (``"val"``,
    ``"val/hard"`` for a named loader, ``"test"``, ``"predict"``)."""
    count: str
    """The same in words: ``"46/115"``, or ``"46"`` when nobody knows the end."""
    done: float
    total: float | None
    """``None`` when nobody knows: a loader without a length, a loop without ``max_duration``."""
    speed: str = ""
    """``"12.3 it/s, 394 samples/s"``, or nothing while it is not known."""
    seconds_left: float | None = None

    @property
    def share(self) -> float | None:
        """From 0 to 1; ``None`` when nobody knows the end."""
        return None if not self.total else min(1.0, self.done / self.total)


@dataclass(frozen=True, slots=True)
class Progress:
    """All that there is to show at one moment.

    >>> bars = (Bar("epoch", "2/5", 1.4, 5), Bar("step", "46/115", 46, 115))
    >>> Progress(bars, {"train/loss": 0.312}, seconds=12.5).where
    'epoch 2/5 step 46/115'
    """

    bars: tuple[Bar, ...]
    """The whole first; an evaluation or a prediction that is under way last."""
    metrics: Mapping[str, Value | None]
    """The newest values, in the order to show them; ``None`` for one that was asked for and has no value yet."""
    seconds: float
    """Since the call began."""
    beside: str = ""
    """What is counted without a bar of its own: ``"epoch 3"`` when ``max_duration`` is in steps."""
    note: str = ""
    """Why the run stopped, once it did; at the end of training, the losses that are not finite."""
    over: bool = False
    """Whether this is the last of the call: nothing moves any more."""

    @property
    def where(self) -> str:
        """The moment in words."""
        return " ".join([*([self.beside] if self.beside else []), *(f"{bar.name} {bar.count}" for bar in self.bars)])


@runtime_checkable
class ProgressDisplay(Protocol):
    """A bar of your own: any object with these three methods, given as ``ProgressBar(style=MyDisplay())``.

    ``update`` comes ten times a second at most (or as ``every`` says), at the end of epochs and evaluations,
    and once more at the end of the call; ``close`` comes on every way out. If one of them raises, the bar is
    switched off and the run goes on. One object serves one call after the other.

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
        """A fit, an evaluation or a prediction begins."""

    def update(self, progress: Progress) -> None:
        """Show this. Each progress is complete in itself."""

    def close(self) -> None:
        """Nothing more follows; leave the screen clean."""
