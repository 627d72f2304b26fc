"""``Ending``: how training ends, as ``run.ending`` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EndingKind = Literal["duration", "stop", "break", "interrupt", "signal", "error"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How training ends: ``kind``, ``reason``, ``by``, ``step`` and ``can_resume``.

    If ``can_resume`` is true, training is not finished: a run that resumes from a checkpoint continues it. A callback
    then leaves out what belongs to the end of all training, such as a final plot.

    Example:
        >>> ending = Ending("interrupt", "keyboard interrupt", "the user", 120, can_resume=True)
        >>> ending.kind, ending.can_resume
        ('interrupt', True)
    """

    kind: EndingKind
    """Way in which training ends.

    ``"duration"``: training has reached ``max_duration``. ``"stop"``: a callback, the task or the data asked to stop.
    ``"break"``: the body of a custom loop was left by ``break`` or ``return``. ``"interrupt"``: Ctrl-C, or
    ``run.pause``. ``"signal"``: a signal such as SIGTERM ends the process. ``"error"``: an exception ends the run.
    """
    reason: str
    """Reason of the stop, name of the signal or text of the error."""
    by: str | None
    """Name of the callback that asked to stop, ``"the user"`` after Ctrl-C, ``"the system"`` after a signal.

    ``None`` for ``"duration"`` and ``"error"``.
    """
    step: int
    """Step at which training ends."""
    can_resume: bool
    """True if training is not finished, so that a run that resumes from a checkpoint continues it.

    It is false for ``"duration"`` and ``"stop"``, and for a signal that arrives after the last step of training.
    """
