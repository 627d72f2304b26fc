"""``hookline stop``, ``save``, ``eval`` and ``set``: control a run that trains in another process."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hookline.errors import HooklineError

WAIT_S = 60.0
ABOUT = {
    "stop": "stop a run at the end of its step, as run.stop() does",
    "save": "save a checkpoint of a run at the end of its step",
    "eval": "evaluate a run at the end of its next step",
    "set": "change settings of a run that trains, such as lr=1e-4",
}
CODES = {"done": 0, "refused": 1, "ended": 1, "waiting": 3}


def register(commands: Any) -> None:
    for name, about in ABOUT.items():
        parser = commands.add_parser(
            name,
            help=about,
            description=f"{about[0].upper()}{about[1:]}. The exit code is 0 if it is done, 1 if the run refuses it or "
            "ends before, 2 if no run can be asked, and 3 if the run has not taken the request in time.",
        )
        parser.add_argument("folder", metavar="RUN", type=Path, help="the run's folder")
        if name == "set":
            parser.add_argument("settings", metavar="NAME=VALUE", nargs="*", help="without one: list the settings")
        parser.add_argument(
            "--wait", metavar="SECONDS", type=float, default=WAIT_S, help=f"longest wait for the run ({WAIT_S:g})"
        )
        parser.set_defaults(run=run, command=name)


def run(arguments: argparse.Namespace) -> int:
    try:
        return _run(arguments)
    except HooklineError as error:
        print(f"hookline {arguments.command}: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    from hookline.records.control import parse_settings
    from hookline.report.requests import ask

    command, folder = arguments.command, arguments.folder
    if command == "set" and not arguments.settings:
        return _list(folder)
    settings = parse_settings(arguments.settings) if command == "set" else None
    outcome = ask(folder, command, settings, wait=arguments.wait)
    print(outcome.text, file=sys.stdout if outcome.kind in ("done", "waiting") else sys.stderr)
    return CODES[outcome.kind]


def _list(folder: Path) -> int:
    """Print the settings of a run that can be set, with their values."""
    from hookline.records.control import shown
    from hookline.records.run_file import RunFile
    from hookline.report.requests import check_can_ask

    check_can_ask(folder)
    try:
        live = RunFile.read(folder).live
    except (OSError, ValueError):
        live = {}
    for name, value in live.items():
        print(f"{name}={shown(value)}")
    return 0
