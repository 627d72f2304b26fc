"""``EventRow``: something that happened in a run, for its timeline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventRow:
    """A moment of a run.

    ``name`` is one of ``start``, ``resume``, ``eval``, ``checkpoint``, ``checkpoint_failed``, ``stop``,
    ``interrupt``, ``preempt``, ``exception``, ``callback_disabled``, ``sink``, ``step_skipped``, ``rollback``,
    ``restore``, ``killed`` and ``end``. The last row of each process is ``end`` if it came to its end, else
    ``exception`` or ``preempt``; of one that was killed, the next one writes ``killed``.
    """

    name: str
    step: int
    epoch: int
    seconds: float
    """When it began, in seconds of training."""
    text: str = ""
    """The reason, the path, the message."""
    took: float = 0.0
    """How many seconds it lasted; 0 for a moment."""
