"""``hookline replay``: make some steps of a past run again, with other callbacks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hookline.errors import HooklineError


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "replay",
        help="make some steps of a past run again, with other callbacks",
        description="Start SCRIPT again at a checkpoint of a past run, with more callbacks and in another folder, and "
        "compare each step with the run. The exit code is 0 if all are equal, 1 if they differ, 2 if the replay "
        "cannot start, 3 if they cannot be compared.",
    )
    parser.add_argument("script", metavar="SCRIPT", type=Path, help="the Python file that trained the run")
    parser.add_argument("--run", dest="past", metavar="RUN", type=Path, required=True, help="the folder of the run")
    parser.add_argument("--from", dest="first", metavar="STEP", type=int, help="the step after which the steps begin")
    parser.add_argument("--to", dest="last", metavar="STEP", type=int, help="the last step (default: that of the run)")
    parser.add_argument(
        "--until",
        choices=("nan", "spike"),
        help="replay up to the first step whose loss is not finite (nan) or far above the others (spike), and find the "
        "module and the samples",
    )
    parser.add_argument(
        "--callback",
        dest="callbacks",
        metavar="NAME",
        action="append",
        default=[],
        help="a callback to add: module:Name or file.py:Name, also with arguments: 'watch:Watch(every=2)'",
    )
    parser.add_argument("--folder", metavar="FOLDER", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--processes", metavar="N", type=int, help="processes for torchrun (default: as in the run)")
    parser.add_argument(
        "--args",
        dest="arguments",
        metavar="ARG",
        nargs=argparse.REMAINDER,
        help="arguments of the script, as the last option (default: those in run.json)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from hookline.replaying import replay

    try:
        result = replay(
            arguments.script,
            arguments.arguments,
            run=arguments.past,
            first_step=arguments.first,
            last_step=arguments.last,
            until=arguments.until,
            callbacks=arguments.callbacks,
            folder=arguments.folder,
            processes=arguments.processes,
            say=lambda text: print(text, flush=True),
        )
    except HooklineError as error:
        print(f"hookline replay: {error}", file=sys.stderr)
        return 2
    print(result.verdict)
    for line in result.differences[1:]:
        print(f"  {line}")
    if result.exit_code:
        print(f"the script ended with exit code {result.exit_code}")
    if arguments.until is not None:
        found = result.found
        print("\n".join(found.lines) if found is not None else "no step of the replay has a value that is not finite")
    print(f"report: {result.report}")
    if result.is_equal:
        return 0
    return 1 if result.differences else 3
