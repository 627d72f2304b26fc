"""``hookline``: the command line."""

from __future__ import annotations

import argparse
import sys
from io import TextIOWrapper

from hookline import __version__
from hookline.cli import (
    callbacks_command,
    check_command,
    checkpoints_command,
    compare_command,
    control_commands,
    demo_command,
    events_command,
    ls_command,
    replay_command,
    report_command,
    verify_resume_command,
    watch_command,
)

COMMANDS = (
    demo_command,
    report_command,
    compare_command,
    ls_command,
    watch_command,
    control_commands,
    events_command,
    callbacks_command,
    checkpoints_command,
    verify_resume_command,
    replay_command,
    check_command,
)


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, run the command, and return the exit code."""
    parser = argparse.ArgumentParser(prog="hookline", description="Train PyTorch models with callbacks.")
    parser.add_argument("--version", action="version", version=f"hookline {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.register(commands)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # An ASCII terminal shows other characters as escapes.
            stream.reconfigure(errors="backslashreplace")
    found = parser.parse_args(arguments)
    run = found.run
    return int(run(found))


if __name__ == "__main__":
    sys.exit(main())
