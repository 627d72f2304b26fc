"""``hookline events``: the table of events."""

from __future__ import annotations

import argparse
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hookline.events import EVENTS, SCOPES


def register(commands: Any) -> None:
    parser = commands.add_parser("events", help="print the table of events and scopes")
    parser.set_defaults(run=run)


def run(_arguments: argparse.Namespace) -> int:
    console = Console()
    table = Table(title="Events: the hook is on_ + name, and gets run", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("event", "when", "scope", "also valid on run", "stage"):
        table.add_column(column, overflow="fold", no_wrap=column == "event")
    for event in EVENTS:
        table.add_row(event.name, event.when, event.scope, ", ".join(event.valid), ", ".join(event.stages))
    console.print(table)
    scopes = Table(title="Scopes: a generator with one yield", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("generator", "wraps"):
        scopes.add_column(column, overflow="fold")
    for scope in SCOPES:
        scopes.add_row(scope.hook, scope.when)
    console.print(scopes)
    return 0
