"""A real browser for the report's pages: Debian's Chromium, driven by Playwright.

A test that asks for ``browse`` is skipped, with the reason, where there is none. Whatever a page says to its console
as an error, whatever it throws and whatever it asks for outside of itself fails the test that opened it.

``watch`` starts a server of ``hookline watch`` on a folder, ``samples`` is the module that makes runs.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import pytest

from hookline.report import serve_site
from hookline.report.serve import Server
from hookline.report.serve_site import WatchedSite

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",  # nothing leaves, whatever fails
)
INSIDE = ("file", "data", "blob", "about")

Browse = Callable[..., "Visit"]


def chromium() -> str | None:
    """Where the browser is: ``HOOKLINE_CHROMIUM``, or on the path."""
    named = os.environ.get("HOOKLINE_CHROMIUM")
    return shutil.which(named) if named else shutil.which("chromium") or shutil.which("chromium-browser")


@dataclass
class Visit:
    """One open page, and all that it did which it should not."""

    page: Page
    server: str = ""
    """``127.0.0.1:port``, if the page may talk to a server of our own."""
    wrong: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def listen(self) -> None:
        self.page.on("console", lambda said: self._add(f"console: {said.text}") if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self._add(f"thrown: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._request)

    def _add(self, what: str) -> None:
        self.wrong.append(what)

    def _dialog(self, dialog: Any) -> None:
        self._add(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        self.requests.append(request.url)
        url = urlsplit(request.url)
        if url.scheme not in INSIDE and not (url.scheme == "http" and url.netloc == self.server != ""):
            self._add(f"left the page: {request.url}")


@pytest.fixture(scope="module")  # its event loop runs as long as it lives: for a session it would disturb others
def browser() -> Iterator[Browser]:
    executable = chromium()
    if executable is None:
        pytest.skip("no Chromium here: apt-get install chromium, or name one in HOOKLINE_CHROMIUM")
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright here: make test installs it")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS), timeout=200_000)
        yield found
        found.close()


@pytest.fixture
def browse(browser: Browser) -> Iterator[Browse]:
    """Opens an address in a profile of its own: ``browse(url, width=390, scheme="dark")``."""
    visits: list[Visit] = []

    def open_page(
        url: str,
        *,
        width: int = 1280,
        height: int = 900,
        scheme: Literal["light", "dark"] = "light",
        server: str = "",
        scripts: bool = True,
    ) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, java_script_enabled=scripts
        )
        context.set_default_timeout(200_000)
        visit = Visit(context.new_page(), server)
        visits.append(visit)
        visit.listen()
        visit.page.goto(url)
        return visit

    yield open_page
    for visit in visits:
        visit.page.context.close()
    assert [what for visit in visits for what in visit.wrong] == []


# -- runs, and a server of them ----------------------------------------------------------------------


@pytest.fixture(scope="session")
def samples() -> ModuleType:
    """``sample_runs``, by its path: it is no test module, and no package."""
    spec = importlib.util.spec_from_file_location("sample_runs", Path(__file__).with_name("sample_runs.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: str

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Watching:
    """A server that runs."""

    server: Server

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    @property
    def cookie(self) -> str:
        return f"{self.server.cookie}={self.server.session}"

    def ask(self, path: str, *, method: str = "GET", body: bytes = b"", **headers: str | None) -> Reply:
        """With the right ``Host`` and ``Cookie``, unless others are given; ``None`` leaves one out."""
        length = {"Content-Length": str(len(body))} if body else {}
        sent = {"Host": self.address, "Cookie": self.cookie, **length, **headers}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=200)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            reply = connection.getresponse()
            return Reply(reply.status, dict(reply.getheaders()), reply.read().decode())
        finally:
            connection.close()

    def raw(self, request: bytes) -> bytes:
        """Exactly these bytes over a socket, and all that comes back."""
        with socket.create_connection(("127.0.0.1", self.server.server_port), timeout=200) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def list(self) -> list[dict[str, Any]]:
        """The runs of the first page."""
        found: list[dict[str, Any]] = self.ask("/data").json()["list"]
        return found


Watch = Callable[..., Watching]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Starts a server on a folder. Its pages are made anew whenever they are asked for, however busy the machine is."""
    monkeypatch.setattr(serve_site, "REST", 0)
    started: list[tuple[Server, threading.Thread]] = []

    def start(folder: Path, **options: Any) -> Watching:
        server = Server(WatchedSite(folder, options.get("control", "")), 0, **options)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        started.append((server, thread))
        return Watching(server)

    yield start
    for server, thread in started:
        server.shutdown()
        server.server_close()
        thread.join()
