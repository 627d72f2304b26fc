"""``hookline events``: the table of events."""

from __future__ import annotations

import argparse
from typing import Any

from rich import box
from rich.table import Table

from hookline.cli.console import wide_console
from hookline.events import EVENTS, SCOPES


def register(commands: Any) -> None:
    parser = commands.add_parser("events", help="print the table of events and scopes")
    parser.set_defaults(run=run)


def run(_arguments: argparse.Namespace) -> int:
    console = wide_console()
    table = Table(title="Events: the hook is on_ + name, and gets run", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("event", no_wrap=True)
    table.add_column("scope", no_wrap=True)
    table.add_column("when", ratio=3)
    table.add_column("also valid on run", ratio=1, min_width=9)
    for event in EVENTS:
        table.add_row(event.name, event.scope, event.when, ", ".join(event.valid))
    console.print(table)
    scopes = Table(title="Scopes: a generator with one yield", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("generator", "wraps"):
        scopes.add_column(column, overflow="fold")
    for scope in SCOPES:
        scopes.add_row(scope.hook, scope.when)
    console.print(scopes)
    return 0
