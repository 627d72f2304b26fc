"""``hookline watch``: serve live pages of all runs under a folder, on this machine."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from typing import Any

from hookline.errors import HooklineError, SetupError


def register(commands: Any) -> None:
    about = "serve the reports of all runs under a folder, live, on the loopback address"
    parser = commands.add_parser("watch", help=about, description=f"{about[0].upper()}{about[1:]}. Stop with Ctrl-C.")
    parser.add_argument("folder", metavar="RUNS", type=Path, help="folder with the runs, or the folder of one run")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free port)")
    parser.add_argument("--control", action="store_true", help="show buttons that stop, save, evaluate and set")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        return _watch(arguments.folder, arguments.port, control=arguments.control)
    except HooklineError as error:
        print(f"hookline watch: {error}", file=sys.stderr)
        return 2


def _watch(folder: Path, port: int, *, control: bool) -> int:
    from hookline.report.serve import Server
    from hookline.report.serve_site import WatchedSite

    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise SetupError(f"{folder} {what}. Give the folder with your runs, such as runs.")
    token = secrets.token_urlsafe(32) if control else ""
    site = WatchedSite(folder, token)
    try:
        with Server(site, port, control=token) as server:
            count = len(site.runs.find())
            print(f"watching {folder} ({count} {'run' if count == 1 else 'runs'} now)")
            print(f"open {server.url}")
            does = "can control your runs" if control else "is read-only"
            print(f"Stop with Ctrl-C. The server {does}, and only this machine can reach it.", flush=True)
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        print()
    return 0
