"""``hookline report``: write the report of one run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hookline.errors import HooklineError, SetupError


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="write a page about a run: one HTML file that needs nothing else",
        description="Write a page about a run: one HTML file that needs no network and no other file.",
    )
    parser.add_argument("folder", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="where to (default: report.html in the run's folder)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        print(make(arguments.folder, arguments.output))
    except HooklineError as error:
        print(f"hookline report: {error}", file=sys.stderr)
        return 2
    return 0


def make(folder: Path, output: Path | None) -> Path:
    """Write the report and return its path."""
    from hookline.report import read_run, render_report
    from hookline.report.page import FILE

    found = read_run(folder)
    if not found.rows:
        said = f" ({found.damaged:,} lines could not be read)" if found.damaged else ""
        raise SetupError(f"{folder} has no metrics{said}: nothing was logged yet, so there is nothing to show")
    path = folder / FILE if output is None else output
    return save(render_report(found), path, to_device=output is not None)


def save(page: str, path: Path, *, to_device: bool) -> Path:
    """Write a page. An ``OSError`` becomes a ``SetupError``."""
    from hookline.report.page import write

    try:
        return write(page, path, to_device=to_device)
    except OSError as error:
        raise SetupError(f"{path} cannot be written: {error.strerror or error}; give another with --output") from error
