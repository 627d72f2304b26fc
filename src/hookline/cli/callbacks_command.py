"""``hookline callbacks``: list Hookline's callbacks and those of installed packages."""

from __future__ import annotations

import argparse
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from hookline.cli.console import wide_console


def register(commands: Any) -> None:
    parser = commands.add_parser("callbacks", help="list the callbacks of Hookline and of installed packages")
    parser.set_defaults(run=run)


def run(_arguments: argparse.Namespace) -> int:
    from hookline.callbacks.plugins import installed
    from hookline.cli.callbacks_table import callback_rows

    console = wide_console()
    table = Table(title="Callbacks: hl.<name>", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("callback", no_wrap=True)
    table.add_column("family", no_wrap=True)
    table.add_column("what it does")
    for row in callback_rows():
        table.add_row(row.name, row.family, escape(row.what))
    console.print(table)
    plugins = installed()
    if not plugins:
        console.print("No installed package provides callbacks (entry points in the group hookline.callbacks).")
        return 0
    offered = Table(title="From packages: disabled until you use them", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("name", "package", "factory"):
        offered.add_column(column, overflow="fold")
    for plugin in plugins:
        offered.add_row(escape(plugin.name), escape(plugin.package), escape(plugin.target))
    console.print(offered)
    line = f"hl.Trainer(callbacks=[*hl.callbacks.from_plugins({plugins[0].name!r})])"
    console.print(f"To use them: {line}", soft_wrap=True, markup=False, highlight=False)
    return 0
