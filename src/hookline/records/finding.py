"""``Finding``: a probable mistake in a run, found before its first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final, Literal

Level = Literal["error", "warning"]
WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """A probable mistake in a run.

    Callbacks and sinks return findings from ``preflight``. An error stops the run before its first step.

    Args:
        level: ``"error"`` or ``"warning"``.
        check: Name of the check, such as ``"schedule"``.
        message: What is wrong, with its values.
        advice: What to do.
        where: File and line, if they are known.

    Example:
        >>> print(Finding("warning", "schedule", "The warm-up is longer than the run.", "Make it shorter."))
        schedule: The warm-up is longer than the run. Make it shorter.
    """

    level: Level
    check: str
    message: str
    advice: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.message} {self.advice}" + (f" ({self.where})" if self.where else "")


def table(findings: Sequence[Finding]) -> str:
    """Return the findings as text, errors and warnings apart.

    >>> print(table([Finding("error", "learning-rate", "The learning rate is 0.", "Give a larger lr.", "train.py:3")]))
    1 error:
      learning-rate (train.py:3)
        The learning rate is 0.
        → Give a larger lr.
    """
    lines: list[str] = []
    for level in ("error", "warning"):
        some = [finding for finding in findings if finding.level == level]
        if some:
            lines.append(f"{len(some)} {level}{'' if len(some) == 1 else 's'}:")
        for finding in some:
            lines.append(f"  {finding.check}" + (f" ({finding.where})" if finding.where else ""))
            lines += wrap(finding.message, WIDTH, initial_indent="    ", subsequent_indent="    ")
            lines += wrap(finding.advice, WIDTH, initial_indent="    → ", subsequent_indent="      ")
    return "\n".join(lines)
