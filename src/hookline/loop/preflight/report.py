"""Report the findings of the pre-flight: warn, or raise an error before step 1."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from hookline.errors import SetupError
from hookline.records.finding import Finding, table

VARIABLE: Final = "HOOKLINE_CHECK"


@dataclass(frozen=True, slots=True)
class Inspection:
    """Options of ``hookline check``, which the environment passes to the script."""

    report: Path
    """File for the findings."""
    folder: Path
    """Folder of the run, in place of the folder of the script."""
    is_full: bool
    """True to read everything, without limits."""
    target: Path | None = None
    """Folder of the script."""

    @classmethod
    def asked_for(cls) -> Self | None:
        """Read the environment. Return ``None`` outside of ``hookline check``."""
        given = os.environ.get(VARIABLE)
        if given is None:
            return None
        wanted = json.loads(given)
        return cls(Path(wanted["report"]), Path(wanted["folder"]), bool(wanted["full"]))

    def write(self, findings: Sequence[Finding], facts: dict[str, Any]) -> None:
        """Write the findings for the command, once: only the first fit of a script is checked."""
        os.environ.pop(VARIABLE, None)
        self.report.write_text(json.dumps({"findings": [asdict(finding) for finding in findings], **facts}))


def distinct(findings: Sequence[Finding]) -> list[Finding]:
    """Return errors before warnings, and one finding of each check for each line of code."""
    found: dict[tuple[str, str], Finding] = {}
    for finding in sorted(findings, key=lambda each: each.level != "error"):
        found.setdefault((finding.check, finding.where or finding.message), finding)
    return list(found.values())


def refused(findings: Sequence[Finding]) -> SetupError:
    """Return the error for findings that stop the run."""
    return SetupError(
        f"The pre-flight has found mistakes, and nothing was trained. Correct them, or pass preflight=False to train "
        f"all the same.\n{table(findings)}"
    )
