"""``hookline ls``: list the runs under a folder as a leaderboard."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hookline.errors import HooklineError, SetupError


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "ls",
        help="list runs: state, progress, time left, metrics, and the settings that differ",
        description="List the runs under a folder, one per line: state, progress, time left, newest metrics, and the "
        "settings that differ between them.",
    )
    parser.add_argument("folder", metavar="RUNS", type=Path, nargs="?", default=Path("runs"), help="folder (runs)")
    parser.add_argument("--sort", metavar="NAME", help="a metric, a setting, progress, left, step or seconds")
    parser.add_argument("--running", action="store_true", help="only runs that train now")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        return _list(arguments.folder, arguments.sort, only_running=arguments.running)
    except HooklineError as error:
        print(f"hookline ls: {error}", file=sys.stderr)
        return 2


def _list(folder: Path, by: str | None, *, only_running: bool) -> int:
    from hookline.cli.leaderboard_table import print_board
    from hookline.report.serve_runs import Glance, Runs

    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise SetupError(f"{folder} {what}. Give the folder with your runs, such as runs.")
    found = [(path, Glance(path, name).look()) for name, path in Runs(folder).find().items()]
    found = [(path, summary) for path, summary in found if not only_running or summary.standing.status == "running"]
    if not found:
        print(f"no run {'trains ' if only_running else ''}under {folder}")
        return 0
    top = folder.resolve()
    names = [str(path.relative_to(top)) if path != top else str(folder) for path, _ in found]
    print_board(names, [summary.standing for _, summary in found], by)
    return 0
