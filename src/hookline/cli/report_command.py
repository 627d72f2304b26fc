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
        help="write the report of a run as one HTML file",
        description="Write the report of a run as one HTML file, which needs no network and no other file.",
    )
    parser.add_argument("folder", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="path of the report (default: report.html in the run's folder)"
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
        raise SetupError(f"{folder} has no metrics{said}. Nothing has been logged yet.")
    path = folder / FILE if output is None else output
    return save(render_report(found), path, to_device=output is not None)


def save(page: str, path: Path, *, to_device: bool) -> Path:
    """Write a page. An ``OSError`` becomes a ``SetupError``."""
    from hookline.report.page import write

    try:
        return write(page, path, to_device=to_device)
    except OSError as error:
        raise SetupError(f"{path} cannot be written: {error.strerror or error}. Use another --output.") from error
