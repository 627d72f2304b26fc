"""``EventRow``: something that happened in a run, for its timeline."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventRow:
    """A moment of a run.

    ``name`` is one of ``start``, ``resume``, ``eval``, ``checkpoint``, ``checkpoint_failed``, ``stop``,
    ``interrupt``, ``preempt``, ``exception``, ``callback_disabled``, ``sink``, ``step_skipped``, ``rollback``,
    ``restore``, ``nan``, ``killed`` and ``end``. The last row of each process is ``end`` if it came to its end, else
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


def put_back(step: int, why: str = "") -> str:
    """The text of a ``restore``: the model has the weights of an earlier step again.

    >>> put_back(320, "val/loss 0.05 was the best")
    'the weights of step 320 are put back: val/loss 0.05 was the best'
    """
    return f"the weights of step {step} are put back{f': {why}' if why else ''}"


def step_put_back(text: str) -> int | None:
    """Which step it names.

    >>> step_put_back(put_back(320)), step_put_back("something else")
    (320, None)
    """
    found = re.match(r"the weights of step (\d{1,18}) are put back", text)
    return int(found[1]) if found else None
