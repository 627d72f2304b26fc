"""``hookline verify-resume``: compare a resumed script bitwise with an uninterrupted one."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.errors import HooklineError

if TYPE_CHECKING:
    from hookline.checkpoint.compare import Difference
    from hookline.cli.resume_check import Finding

GROUPS = 8
"""Maximum number of groups of differences to list."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "verify-resume",
        help="check that a killed and resumed script gives bitwise equal results",
        description="Run SCRIPT for N steps, run it again and kill it after N/2, resume it, and compare what is "
        "saved. The exit code is 0 if all are equal, 1 if they differ, 2 if the script fails.",
    )
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="number of steps to train (default: 20)")
    parser.add_argument("script", metavar="SCRIPT", type=Path, help="a Python file that trains with Hookline")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from hookline.cli.resume_check import LEAST, ResumeCheck

    if not arguments.script.is_file():
        return _refuse(f"{arguments.script} is not a file. Give a Python file that trains with Hookline.")
    if arguments.steps < LEAST:
        return _refuse(f"--steps {arguments.steps}: must be {LEAST} or more.")
    with tempfile.TemporaryDirectory(prefix="hookline-verify-resume-") as folder:
        command = [str(arguments.script), *arguments.arguments]
        check = ResumeCheck(command, arguments.steps, Path(folder), log=lambda text: print(text, flush=True))
        try:
            found = check.run()
        except HooklineError as error:
            return _refuse(str(error))
    print(_verdict(found))
    if found.begun_anew:
        print(_begun_anew(found))
    return 1 if found.differences else 0


def _refuse(text: str) -> int:
    print(f"hookline verify-resume: {text}", file=sys.stderr)
    return 2


def _verdict(found: Finding) -> str:
    if not found.differences:
        return f"equal: at step {found.step} the resumed run is bitwise equal to the uninterrupted run"
    if found.before_the_kill:
        head = f"different before the kill: two runs from the start differ at step {found.step}"
        hint = "The script is not deterministic, even without a resume. Seed all its random generators."
    else:
        head = f"different at step {found.step}"
        hint = "The first value is from the uninterrupted run, the second from the resumed run."
    return "\n".join([head, f"  first: {found.differences[0]}", *_others(found.differences), hint])


def _begun_anew(found: Finding) -> str:
    """List the attributes that a resumed run does not restore."""
    lines, more = [f"  {text}" for text in found.begun_anew[:GROUPS]], len(found.begun_anew) - GROUPS
    return "\n".join(
        [
            f"not saved, and different at step {found.step} (lists by their length):",
            *lines,
            *([f"  and {more:,} others"] if more > 0 else []),
            "To save an attribute, name it in the callback's `state`, or make it a buffer of the module.",
        ]
    )


def _others(differences: tuple[Difference, ...]) -> list[str]:
    """Return the groups of paths that differ, with the number of differences in each."""
    groups: dict[str, int] = {}
    for difference in differences:
        group = "/".join(difference.path.split("/")[:3])
        groups[group] = groups.get(group, 0) + 1
    lines = [f"  {group}: {count:,} differ" for group, count in list(groups.items())[:GROUPS]]
    more = len(groups) - GROUPS
    return lines + ([f"  and {more:,} other groups"] if more > 0 else [])
