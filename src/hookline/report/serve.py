"""The server of ``hookline watch``: pages about runs, on the loopback address.

It is the ``ThreadingHTTPServer`` of the standard library. One user opens a few pages that poll every two seconds, so a
framework would only add dependencies. All checks of requests are in this file:

* The server listens on 127.0.0.1 only. Users on other machines forward the port (``ssh -L``).
* The ``Host`` header must name this server. Otherwise a page of another site, whose name resolves to 127.0.0.1, could
  read the pages in the user's browser (DNS rebinding).
* Other users of the machine can connect to the port. Therefore the printed address contains a random token. A browser
  gets a cookie for it, which scripts cannot read and pages of other sites cannot use.
* The server accepts ``GET`` and ``HEAD`` only. A path from a client is never used as a file path: see ``serve_site``.
* With ``--control`` it also accepts ``POST``, with the cookie, an ``Origin`` header that names this server, and another
  token in a header. Only a page of this server has that token, and a page of another site cannot send such a header.
"""

from __future__ import annotations

import errno
import hmac
import io
import json
import secrets
import socket
import sys
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs, urlsplit

from hookline.errors import HooklineError, SetupError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ADDRESS = "127.0.0.1"
REQUEST_TIMEOUT_S = 30.0
"""Time limit for a client to send its request, and to receive the response."""
CONTROL_HEADER = "X-Hookline-Control"
MAX_BODY_BYTES = 10_000
HTML, JSON, TEXT = ("text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8")
NOTHING = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

Query = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A response."""

    body: bytes
    kind: str = HTML
    policy: str = NOTHING
    """The content security policy."""


class Site(Protocol):
    """The content to serve. Both methods return ``None`` for an unknown address."""

    def answer(self, path: str, query: Query) -> Answer | None:
        """Return the response to a ``GET`` request."""

    def act(self, path: str, fields: dict[str, Any]) -> Answer | None:
        """Do what a ``POST`` request asks for, and return the response. ``fields`` is its body."""


# The cookie is SameSite=Strict: a browser does not send it after a link or redirect from another site, such as a
# terminal in the browser. The refresh makes the next request one of this site.
WELCOME = b'<!doctype html><meta charset="utf-8"><title>Hookline</title><meta http-equiv="refresh" content="0; url=/">'


class Server(ThreadingHTTPServer):
    """Serve a site on the loopback address until ``shutdown``.

    ``url`` is the address to open in a browser.

    Args:
        site: The content to serve.
        port: Port to listen on. 0 for any free port.
        request_timeout: Seconds after which an incomplete request is dropped.
        control: Token that ``POST`` requests need. By default, all of them are refused.

    Raises:
        SetupError: If the port is invalid or not available.

    Example:
        >>> class Hello:
        ...     def answer(self, path, query):
        ...         return Answer(b"hello")
        ...
        ...     def act(self, path, fields):
        ...         return None
        >>> with Server(Hello(), port=0) as server:
        ...     server.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(self, site: Site, port: int, *, request_timeout: float = REQUEST_TIMEOUT_S, control: str = "") -> None:
        self.site, self.request_timeout, self.control = site, request_timeout, control
        self.token, self.session = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise SetupError(_why_not(port, error)) from error
        port = self.server_port
        self.cookie = f"hookline-watch-{port}"  # Ports share cookies: a second server must not overwrite this one.
        suffix = "" if port == 80 else f":{port}"
        self.hosts = {f"{ADDRESS}{suffix}", f"localhost{suffix}"}

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/?token={self.token}"

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer.server_bind() looks up the host name, which may take long.
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # The client closed the connection.
            super().handle_error(request, client_address)


class _UntilDeadline(io.RawIOBase):
    """Read from a socket until a deadline. A socket's own timeout restarts with every byte."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._end = connection, monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        left = self._end - monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "hookline", ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_UntilDeadline(self.connection, self.server.request_timeout))

    def parse_request(self) -> bool:
        """Return True if the request is acceptable. Otherwise an error response has been sent."""
        if not super().parse_request():
            return False
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].strip().lower() not in self.server.hosts:
            port = self.server.server_port
            reason = f"the Host header does not name this server. If you forward the port, use {port} on both sides."
            self._refuse(HTTPStatus.FORBIDDEN, reason)
            return False
        accepted = ("GET", "HEAD", "POST") if self.server.control else ("GET", "HEAD")
        if self.command not in accepted:
            reason = "this method is not supported." if self.server.control else "this server is read-only."
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, reason, ("Allow", ", ".join(accepted)))
            return False
        return True

    def do_POST(self) -> None:
        origins, tokens = self.headers.get_all("Origin", []), self.headers.get_all(CONTROL_HEADER, [])
        if not self._known():
            self._refuse(HTTPStatus.FORBIDDEN, "open the full address that 'hookline watch' prints, with its token.")
        elif len(origins) != 1 or origins[0] not in {f"http://{host}" for host in self.server.hosts}:
            self._refuse(HTTPStatus.FORBIDDEN, "the Origin header does not name this server.")
        elif len(tokens) != 1 or not _same(tokens[0], self.server.control):
            self._refuse(HTTPStatus.FORBIDDEN, f"the token in {CONTROL_HEADER} is wrong. Reload the page.")
        else:
            self._act()

    def _act(self) -> None:
        """Read the body of an accepted ``POST`` request, and do what it asks for."""
        try:
            size = int(self.headers.get("Content-Length", ""))
            if not 0 < size <= MAX_BODY_BYTES:
                raise ValueError(size)
            fields = json.loads(self.rfile.read(size))
            if not isinstance(fields, dict):
                raise ValueError(fields)
        except (ValueError, RecursionError):
            self._refuse(HTTPStatus.BAD_REQUEST, f"the body must be a JSON object of at most {MAX_BODY_BYTES} bytes.")
            return
        try:
            answer = self.server.site.act(self.path, fields)
        except HooklineError as error:
            self._refuse(HTTPStatus.CONFLICT, str(error))
            return
        if answer is None:
            self._refuse(HTTPStatus.NOT_FOUND, "this page does not exist, or no longer exists.")
        else:
            self._send(HTTPStatus.OK, answer)

    def do_GET(self) -> None:
        try:
            url = urlsplit(self.path)
            query = parse_qs(url.query, max_num_fields=400)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "the address is invalid.")
            return
        if url.path == "/" and "token" in query:
            self._welcome(query["token"])
        elif not self._known():
            self._refuse(HTTPStatus.FORBIDDEN, "open the full address that 'hookline watch' prints, with its token.")
        else:
            self._answer(url.path, query)

    def do_HEAD(self) -> None:
        self.do_GET()  # _send() omits the body.

    def _answer(self, path: str, query: Query) -> None:
        try:
            answer = self.server.site.answer(path, query)
        except Exception as error:  # A run's files may contain anything; one bad run must not hide the others.
            reason = f"this page could not be built: {type(error).__name__}: {error}"
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, reason)
            return
        if answer is None:
            self._refuse(HTTPStatus.NOT_FOUND, "this page does not exist, or no longer exists.")
        else:
            self._send(HTTPStatus.OK, answer)

    def _welcome(self, tokens: list[str]) -> None:
        if len(tokens) != 1 or not _same(tokens[0], self.server.token):
            self._refuse(HTTPStatus.FORBIDDEN, "the token is wrong. 'hookline watch' prints a new one at each start.")
            return
        cookie = f"{self.server.cookie}={self.server.session}; HttpOnly; SameSite=Strict; Path=/"
        self._send(HTTPStatus.OK, Answer(WELCOME), ("Set-Cookie", cookie))

    def _known(self) -> bool:
        wanted = f"{self.server.cookie}={self.server.session}"  # SimpleCookie fails on invalid cookies of other sites.
        sent = [cookie for header in self.headers.get_all("Cookie", []) for cookie in header.split(";")]
        return any(_same(cookie.strip(), wanted) for cookie in sent)

    def _refuse(self, status: HTTPStatus, reason: str, *headers: tuple[str, str]) -> None:
        text = f"{status.value} {status.phrase}: {reason}\n"
        self._send(status, Answer(text.encode(errors="replace"), TEXT), *headers)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error of the base class with Hookline's headers."""
        status = HTTPStatus(code)
        self._refuse(status, explain or status.description)

    def _send(self, status: HTTPStatus, answer: Answer, *headers: tuple[str, str]) -> None:
        self.connection.settimeout(self.server.request_timeout)
        self.send_response(status)
        own = {"Content-Type": answer.kind, "Content-Security-Policy": answer.policy}
        for name, value in (*own.items(), ("Content-Length", str(len(answer.body))), *HEADERS.items(), *headers):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, *_arguments: object) -> None:
        """Log nothing: one line per request would fill the terminal and show the token."""


def _same(given: str, wanted: str) -> bool:
    """Compare two strings in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _why_not(port: int, error: Exception) -> str:
    if isinstance(error, OverflowError):
        return f"--port {port}: must be from 0 to 65535. Omit --port to use a free port."
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"--port {port}: the port is in use on {ADDRESS}. Give another port, or omit --port to use a free port."
    if isinstance(error, OSError) and error.errno == errno.EACCES:
        return f"--port {port}: permission denied on {ADDRESS}. Give 1024 or more, or omit --port to use a free port."
    return f"--port {port}: cannot listen on {ADDRESS}: {error}."
