"""The site of ``hookline watch``: the list of runs, reports, comparisons, and their updates.

=====================  ==================================================================================
``/``                  the list
``/show?run=A``        the report of a run
``/show?run=A&run=B``  several runs compared
``/data?…&since=V``    the current data of the page with the same runs; only the version if it is still V
``/ask``               with POST: ask a run to stop, save, evaluate or change settings
=====================  ==================================================================================

A run is identified by the name that ``Runs`` assigned. No other part of an address is used to find a file, and no file
is sent unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from hashlib import blake2b
from html import escape
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import urlencode

from hookline import __version__
from hookline.errors import SetupError
from hookline.records.control import COMMANDS, parse_settings
from hookline.report.document import document, embedded, policy
from hookline.report.leaderboard import board_of, row_of
from hookline.report.lock import is_free
from hookline.report.page import Live, Page, compare_data, page_data, render, told_apart
from hookline.report.read import RunData, RunReader
from hookline.report.requests import ask
from hookline.report.serve import JSON, Answer, Query
from hookline.report.serve_runs import Glance, Runs, Summary, stamp

MAX_RUNS = 20
"""Maximum number of runs in a comparison, and of runs in memory."""
REST = 9
"""Seconds to wait per second that a page took to build, because the machine has to train."""
SCRIPTS = ("watch.js",)
CONTROL_SCRIPTS = ("control.js",)
ANSWER_WAIT_S = 20.0
"""Longest wait for a run that was asked for something."""
_SHOWN = [field.name for field in fields(Summary) if field.name != "standing"]


class WatchedSite:
    """The current pages about all runs under a folder.

    Args:
        folder: The folder with the runs.
        control: Token of the requests that control runs. By default, the pages have no buttons.

    Example:
        >>> WatchedSite(Path("no/such/folder")).answer("/no/such/page", {}) is None
        True
    """

    def __init__(self, folder: Path, control: str = "") -> None:
        self.runs, self._control = Runs(folder), control
        self._glances: dict[str, Glance] = {}
        self._open: dict[str, _OpenRun] = {}
        self._lock = Lock()

    def answer(self, path: str, query: Query) -> Answer | None:
        names = list(dict.fromkeys(query.get("run", [])))
        if len(names) > MAX_RUNS:
            return None
        match path:
            case "/":
                return self._list()
            case "/show" if names:
                return self._show(names)
            case "/data":
                return self._data(names, query.get("since", [""])[0])
        return None

    def act(self, path: str, fields: dict[str, Any]) -> Answer | None:
        """Ask a run for something, and return the outcome."""
        folder = self.runs.get(str(fields.get("run", ""))) if path == "/ask" else None
        command = fields.get("command")
        if folder is None or command not in COMMANDS:
            return None
        words = str(fields.get("settings", "")).split()
        settings = parse_settings(words) if command == "set" else None
        outcome = ask(folder, command, settings, wait=ANSWER_WAIT_S)
        return Answer(embedded(asdict(outcome)).encode(), JSON)

    # -- pages ---------------------------------------------------------------------------------

    def _list(self) -> Answer:
        data = self._list_data()
        version = _version(data)
        title = f"{data['title']} · Hookline"
        full = {**data, "live": asdict(Live("/data", version)), "made_by": f"Hookline {__version__}"}
        return _page(document(title, full, _without_scripts(data), online=True, scripts=SCRIPTS), SCRIPTS)

    def _show(self, names: Sequence[str]) -> Answer | None:
        found = self._read(names)
        if found is None:
            return None
        version, data = found
        address = "/data?" + urlencode([("run", name) for name in names])
        if self._control and len(names) == 1:
            live = Live(address, version, home="/", run=names[0], control=self._control)
            return _page(render(data, live, CONTROL_SCRIPTS), CONTROL_SCRIPTS)
        return _page(render(data, Live(address, version, home="/")))

    def _data(self, names: Sequence[str], since: str) -> Answer | None:
        if names:
            found = self._read(names, since)
            if found is None:
                return None
            version, data = found
        else:
            data = self._list_data()
            version = _version(data)
        if version == since:
            data = {}
        return Answer(embedded({**data, "version": version}).encode(), JSON)

    # -- their data ----------------------------------------------------------------------------

    def _list_data(self) -> Page:
        found = self.runs.find()
        with self._lock:
            self._glances = {name: self._glances.get(name) or Glance(folder, name) for name, folder in found.items()}
            runs = [glance.look() for glance in self._glances.values()]
        titles = told_apart([f"{run.project}/{run.name}" for run in runs], list(found.values()), self.runs.folder)
        names = [title.removeprefix(f"{run.project}/") for run, title in zip(runs, titles, strict=True)]
        board = board_of([run.standing.values for run in runs], [run.standing.settings for run in runs])
        rows = [
            {field: getattr(run, field) for field in _SHOWN} | {"name": name} | row_of(run.standing, board)
            for run, name in zip(runs, names, strict=True)
        ]
        title = self.runs.folder.name
        return {"page": "watch", "title": title, "notes": [], "most": MAX_RUNS, "board": board, "list": rows}

    def _read(self, names: Sequence[str], since: str = "") -> tuple[str, Page] | None:
        """Return version and data of a page, without data if the version is ``since``.

        The result is ``None`` if the runs no longer exist.
        """
        runs = [run for name in names if (run := self._get(name)) is not None]
        if since and runs and monotonic() < max(run.rests_until for run in runs):
            return since, {}
        with ExitStack() as locked:
            for run in sorted(runs, key=lambda run: run.name):  # In a fixed order, to avoid a deadlock.
                locked.enter_context(run.lock)
            version = "-".join([run.version() for run in runs])
            if runs and version == since:
                return version, {}
            read = [found for run in runs if (found := run.read()) is not None]
            if not read:
                return None
            start = monotonic()
            data = page_data(read[0]) if len(names) == 1 else compare_data(read)
            end = monotonic()
            for run in runs:
                run.rests_until = end + REST * (end - start)
            return version, data

    def _get(self, name: str) -> _OpenRun | None:
        folder = self.runs.get(name)
        with self._lock:
            run = self._open.pop(name, None)
            if folder is None:
                return None
            self._open[name] = run or _OpenRun(name, folder)  # The most recently used run is last.
            while len(self._open) > MAX_RUNS:
                self._open.pop(next(iter(self._open)))
            return self._open[name]


class _OpenRun:
    """A run that a page shows, with its data in memory."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.lock = Lock()
        self.rests_until = 0.0
        self._reader = RunReader(folder)
        self._stamp = ""
        self._runs = self._gone = False

    def version(self) -> str:
        """Return a string that changes when a file changes or when the process of the run has ended."""
        before, self._stamp = self._stamp, stamp(self.folder)
        self._gone = (self._gone and before == self._stamp) or (self._runs and is_free(self.folder))
        return f"{self.name}.{self._stamp}{'.gone' if self._gone else ''}"

    def read(self) -> RunData | None:
        try:
            found = self._reader.read()
        except (OSError, SetupError):  # The run was deleted a short time ago.
            return None
        self._runs = found.file is not None and found.file.status == "running" and not found.gone
        self._gone = found.gone
        return found


def _page(text: str, scripts: Sequence[str] = ()) -> Answer:
    rules = f"{policy(online=True, scripts=scripts)}; frame-ancestors 'none'"
    return Answer(text.encode(errors="replace"), policy=rules)


def _version(data: Page) -> str:
    return blake2b(embedded(data).encode(), digest_size=8).hexdigest()


def _without_scripts(data: Page) -> str:
    """Return the list for a browser without scripts."""
    links = [
        f'<li><a href="/show?run={run["id"]}">{escape("/".join((run["project"], run["name"])))}</a> {run["label"]}</li>'
        for run in data["list"]
    ]
    return f"<main><h1>{escape(data['title'])}</h1><ul>{''.join(links)}</ul></main>"
