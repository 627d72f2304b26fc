"""``hookline watch --control``: which requests are refused, and what the others do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookline.checkpoint.lock import FolderLock
from hookline.records.run_file import RunFile, SessionEntry
from hookline.report import serve_site

Watch = Callable[..., Any]
TOKEN = "a-token"
STARTED = "2030-01-01T00:00:00+00:00"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """A run whose folder is locked, as while it trains."""
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    RunFile("digits", "first", "id", STARTED, sessions=(SessionEntry(STARTED),)).write(folder)
    with FolderLock(folder):
        yield folder


@pytest.fixture
def served(watch: Watch, running: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(serve_site, "ANSWER_WAIT_S", 0.0)
    return watch(running.parent, control=TOKEN)


def post(served: Any, body: Any = None, path: str = "/ask", **headers: str | None) -> Any:
    """The reply to a request to save the first run, with the right headers unless others are given."""
    fields = {"run": served.list()[0]["id"], "command": "save"} if body is None else body
    given = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    sent = {"Origin": f"http://{served.address}", "X-Hookline-Control": TOKEN, **headers}
    return served.ask(path, method="POST", body=given, **sent)


def asked(run: Path) -> list[str]:
    return [json.loads(path.read_text())["command"] for path in (run / "control").glob("[0-9]*.json")]


def test_a_right_request_reaches_the_run(served: Any, running: Path) -> None:
    reply = post(served)
    assert (reply.status, reply.json()["kind"]) == (200, "waiting")
    assert asked(running) == ["save"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"Cookie": None},
        {"Cookie": "hookline=1"},
        {"Origin": None},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "https://{address}"},
        {"Origin": "http://{address}.evil.example"},
        {"X-Hookline-Control": None},
        {"X-Hookline-Control": ""},
        {"X-Hookline-Control": TOKEN[:-1]},
        {"Host": "evil.example"},
    ],
)
def test_a_request_with_a_wrong_header_is_refused_and_writes_nothing(
    served: Any, running: Path, wrong: dict[str, str | None]
) -> None:
    """A page of another site, or a program without the tokens, must not stop a run."""
    headers = {name: value and value.format(address=served.address) for name, value in wrong.items()}
    assert post(served, **headers).status == 403
    assert asked(running) == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused(served: Any, method: str) -> None:
    assert served.ask("/ask", method=method).status == 405


def test_without_the_option_the_server_is_read_only(watch: Watch, running: Path) -> None:
    served = watch(running.parent)
    reply = post(served)
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")
    assert asked(running) == []
    page = served.ask(f"/show?run={served.list()[0]['id']}").body
    assert "X-Hookline-Control" not in page


def test_only_the_page_of_a_run_has_the_token(served: Any) -> None:
    run = served.list()[0]["id"]
    assert TOKEN in served.ask(f"/show?run={run}").body
    assert TOKEN not in served.ask("/").body


@pytest.mark.parametrize("body", [b"", b"[", b"[1]", b'"save"', b"[" * 5000, b"{" + b" " * 20_000 + b"}"])
def test_a_body_that_is_no_request_is_refused(served: Any, running: Path, body: bytes) -> None:
    assert post(served, body).status == 400
    assert asked(running) == []


def test_what_cannot_be_asked_is_refused_with_the_reason(served: Any, running: Path, watch: Watch) -> None:
    run = served.list()[0]["id"]
    assert post(served, {"run": "../first", "command": "save"}).status == 404
    assert post(served, {"run": run, "command": "rm"}).status == 404
    assert post(served, path="/other").status == 404
    reply = post(served, {"run": run, "command": "set", "settings": "lr"})
    assert (reply.status, "is not a setting. Write name=value" in reply.body) == (409, True)
    assert asked(running) == []


def test_a_run_that_has_ended_says_so(watch: Watch, tmp_path: Path) -> None:
    folder = tmp_path / "ended"
    folder.mkdir()
    RunFile("digits", "ended", "id", STARTED, sessions=(SessionEntry(STARTED, status="finished"),)).write(folder)
    reply = post(watch(tmp_path, control=TOKEN))
    assert reply.status == 409
    assert "has ended at step 0: finished" in reply.body
