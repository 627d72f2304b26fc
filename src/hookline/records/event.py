"""``EventRow``: an event of a run, for its timeline."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event of a run.

    ``name`` is one of ``start``, ``resume``, ``eval``, ``checkpoint``, ``checkpoint_failed``, ``stop``,
    ``interrupt``, ``preempt``, ``exception``, ``callback_disabled``, ``sink``, ``step_skipped``, ``rollback``,
    ``restore``, ``nan``, ``control``, ``killed`` and ``end``. The last row of a process is ``end`` if the process
    reached its end, else ``exception`` or ``preempt``. If a process was killed, the next process writes ``killed``.
    """

    name: str
    step: int
    epoch: int
    seconds: float
    """Start of the event, in seconds of training."""
    text: str = ""
    """Reason, path or message."""
    took: float = 0.0
    """Duration in seconds; 0 for an event without a duration."""


def restore_text(step: int, why: str = "") -> str:
    """Return the text of a ``restore`` event: the model got the weights of an earlier step.

    >>> restore_text(320, "val/loss 0.05 was the best")
    'the weights of step 320 are restored: val/loss 0.05 was the best'
    """
    return f"the weights of step {step} are restored{f': {why}' if why else ''}"


def step_put_back(text: str) -> int | None:
    """Return the step in the text of a ``restore`` event, or ``None`` for another text.

    >>> step_put_back(restore_text(320)), step_put_back("something else")
    (320, None)
    """
    found = re.match(r"the weights of step (\d{1,18}) are restored", text)
    return int(found[1]) if found else None
