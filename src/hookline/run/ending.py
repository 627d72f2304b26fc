"""``Ending``: how training ends, as ``run.ending`` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EndingKind = Literal["duration", "stop", "break", "interrupt", "signal", "error"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How training ends.

    Args:
        kind: ``"duration"``: training has reached ``max_duration``. ``"stop"``: a callback, the task or the data asked
            to stop. ``"break"``: the body of a custom loop was left by ``break`` or ``return``. ``"interrupt"``:
            Ctrl-C, or ``run.pause``. ``"signal"``: a signal such as SIGTERM ends the process. ``"error"``: an
            exception ends the run.
        reason: Reason of the stop, name of the signal or text of the error.
        by: Name of the callback that asked to stop, ``"the user"`` after Ctrl-C, ``"the system"`` after a signal.
            ``None`` for ``"duration"`` and ``"error"``.
        step: Step at which training ends.
        can_resume: True if training is not finished, so that a run that resumes from a checkpoint continues it.

    Example:
        >>> ending = Ending("interrupt", "keyboard interrupt", "the user", 120, can_resume=True)
        >>> ending.kind, ending.can_resume
        ('interrupt', True)
    """

    kind: EndingKind
    reason: str
    by: str | None
    step: int
    can_resume: bool
