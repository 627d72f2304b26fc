"""``hookline check``: run the pre-flight of a script, without training."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from hookline.records.finding import Finding, table

VARIABLE: Final = "HOOKLINE_CHECK"


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="find probable mistakes in a training script, without training",
        description="Run SCRIPT up to its first fit, check that fit, and end the script. The exit code is 0 if there "
        "are no errors, 1 if there are, 2 if the script fails before.",
    )
    parser.add_argument(
        "--full", action="store_true", help="read data in memory and write the checkpoint without limits"
    )
    parser.add_argument("script", metavar="SCRIPT", type=Path, help="a Python file that trains with Hookline")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if not arguments.script.is_file():
        return _refuse(f"{arguments.script} is not a file. Give a Python file that trains with Hookline.")
    with tempfile.TemporaryDirectory(prefix="hookline-check-") as folder:
        report = Path(folder) / "report.json"
        wanted = {"report": str(report), "folder": str(Path(folder) / "run"), "full": arguments.full}
        command = [sys.executable, str(arguments.script), *arguments.arguments]
        code = subprocess.run(command, env={**os.environ, VARIABLE: json.dumps(wanted)}, check=False).returncode
        if not report.exists():
            return _refuse(
                f"The script ended with exit code {code} before its first fit was checked."
                if code
                else "The script has no fit. It must train with Hookline, in its own process."
            )
        found = json.loads(report.read_text())
    findings = [Finding(**each) for each in found["findings"]]
    print(table(findings) if findings else "no mistakes found")
    if found["untried"]:
        print(f"no training step was tried: {found['untried']}")
    if found["epoch_seconds"]:
        print(f"one epoch of training will take about {_time(found['epoch_seconds'])}")
    return 1 if any(finding.level == "error" for finding in findings) else 0


def _time(seconds: float) -> str:
    """Format a time.

    >>> _time(0.4), _time(90), _time(5400)
    ('1 s', '1.5 min', '1.5 h')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.2g} min" if seconds < 3600 else f"{seconds / 3600:.2g} h"


def _refuse(text: str) -> int:
    print(f"hookline check: {text}", file=sys.stderr)
    return 2
