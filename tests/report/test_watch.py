"""The server of ``hookline watch``: who is refused, what is never sent, and how it ends."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookline.cli.main import main
from hookline.testing import start_script

Watch = Callable[..., Any]

COMMAND = "import sys; from hookline.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def served(watch: Watch, samples: ModuleType, tmp_path: Path) -> Any:
    samples.make_run(tmp_path / "runs" / "cifar" / "first", 60, media=False)
    return watch(tmp_path / "runs")


@pytest.fixture
def run(served: Any) -> str:
    """The id of the one run."""
    name: str = served.list()[0]["id"]
    return name


def pages(run: str) -> list[str]:
    return ["/", "/data", f"/show?run={run}", f"/data?run={run}", f"/show?run={run}&run={run}"]


# -- the way in --------------------------------------------------------------------------------------


def test_the_printed_address_gives_a_cookie_that_opens_every_page(served: Any, run: str) -> None:
    address = served.server.url.removeprefix(f"http://{served.address}")
    welcome = served.ask(address, Cookie=None)
    assert welcome.status == 200
    cookie, *flags = welcome.headers["Set-Cookie"].split("; ")
    assert sorted(flags) == ["HttpOnly", "Path=/", "SameSite=Strict"]
    assert [served.ask(page, Cookie=cookie).status for page in pages(run)] == [200] * 5


def test_the_cookie_does_not_hold_the_token_and_the_token_is_on_no_page(served: Any, run: str) -> None:
    token = served.server.token
    assert token not in served.cookie
    assert [page for page in pages(run) if token in served.ask(page).body] == []


def test_every_start_has_another_token(watch: Watch, tmp_path: Path) -> None:
    one, other = watch(tmp_path).server, watch(tmp_path).server
    assert len({one.token, other.token, one.session, other.session}) == 4
    assert len(one.token) >= 32


def test_nothing_is_shown_without_the_cookie(served: Any, run: str) -> None:
    wrong = [
        None,
        "",
        "hookline=1",
        f"{served.server.cookie}=",
        f"{served.cookie[:-1]}",
        f"x{served.cookie}",
        "\u00ff=",
    ]
    for cookie in wrong:
        replies = [served.ask(page, Cookie=cookie) for page in pages(run)]
        assert [reply.status for reply in replies] == [403] * 5, cookie
        assert "cifar" not in "".join(reply.body for reply in replies)


def test_the_cookie_is_found_among_those_of_other_programs(served: Any) -> None:
    assert served.ask("/", Cookie=f'a="b; _xsrf=2|x[]{{}}@; {served.cookie}; c=d').status == 200


@pytest.mark.parametrize("token", ["", "x", "%00", "%ff%fe", "%F0%9F%90%9F", "a&token=b", "' OR 1=1"])
def test_a_wrong_token_gives_no_cookie(served: Any, token: str) -> None:
    reply = served.ask(f"/?token={token.replace(' ', '+')}", Cookie=None)
    assert reply.status == 403
    assert "Set-Cookie" not in reply.headers


def test_the_right_token_beside_a_wrong_one_gives_no_cookie(served: Any) -> None:
    assert served.ask(f"/?token={served.server.token}&token=x", Cookie=None).status == 403


def test_a_token_opens_the_first_page_only(served: Any, run: str) -> None:
    assert served.ask(f"/data?run={run}&token={served.server.token}", Cookie=None).status == 403


# -- who asks ----------------------------------------------------------------------------------------


def test_a_name_that_was_pointed_at_this_machine_is_refused(served: Any, run: str) -> None:
    port = served.server.server_port
    hosts = ["evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", f"0.0.0.0:{port}", ""]
    hosts += [f"127.0.0.1.evil.example:{port}", f"localhost.evil.example:{port}", f"user@127.0.0.1:{port}", None]
    for host in hosts:
        for page in (*pages(run), f"/?token={served.server.token}"):
            reply = served.ask(page, Host=host)
            assert reply.status == 403, (host, page)
            assert "cifar" not in reply.body
            assert "Set-Cookie" not in reply.headers


def test_localhost_is_this_machine_too(served: Any) -> None:
    assert served.ask("/", Host=f"LocalHost:{served.server.server_port}").status == 200


def test_two_host_headers_are_refused(served: Any) -> None:
    host, cookie = f"Host: {served.address}\r\n", f"Cookie: {served.cookie}\r\n"
    both = served.raw(f"GET / HTTP/1.1\r\n{host}Host: evil.example\r\n{cookie}\r\n".encode())
    assert both.startswith(b"HTTP/1.0 403")


def test_a_request_of_1991_without_headers_gets_nothing(served: Any) -> None:
    assert b"cifar" not in served.raw(b"GET /\r\n\r\n")


def test_it_listens_on_the_loopback_address_only(served: Any) -> None:
    assert served.server.socket.getsockname()[0] == "127.0.0.1"
    elsewhere = ("127.0.0.2", served.server.server_port)  # loopback too, but not ours
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(elsewhere, timeout=200)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_it_is_for_reading_only(served: Any, method: str) -> None:
    reply = served.ask("/", method=method)
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")


def test_head_gives_the_headers_of_get_and_no_body(served: Any, run: str) -> None:
    for page in pages(run):
        head, get = served.ask(page, method="HEAD"), served.ask(page)
        assert head.body == ""
        assert head.headers["Content-Length"] == get.headers["Content-Length"] == str(len(get.body.encode()))


# -- what is sent ------------------------------------------------------------------------------------


def test_every_answer_has_the_headers_that_keep_a_browser_in_check(served: Any, run: str) -> None:
    replies = [served.ask(page) for page in (*pages(run), "/nothing")]
    replies += [served.ask("/", Host="x"), served.ask("/", Cookie=None), served.ask("/", method="POST")]
    replies += [served.ask(f"/?token={served.server.token}"), served.ask("/?" + "a=1&" * 500)]
    for reply in replies:
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Referrer-Policy"] == "no-referrer"
        assert reply.headers["Cache-Control"] == "no-store"
        assert reply.headers["X-Frame-Options"] == "DENY"
        policy = reply.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "Access-Control-Allow-Origin" not in reply.headers


def test_no_address_leads_to_a_file(served: Any, run: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    names = ["metrics.jsonl", "runs/cifar/first/run.json", "../secret", "..%2fsecret", "%2e%2e/secret", "/etc/passwd"]
    names += [
        "cifar/first",
        "cifar/first/",
        "./cifar/first",
        str(tmp_path / "runs/cifar/first"),
        "first",
        "\\..\\secret",
    ]
    names += [
        "file:///etc/passwd",
        "secret%00",
        f"{run}/../secret",
        run[:-1],
        run.upper() + "0",
        f"{run} ".strip() + ".",
    ]
    for name in names:
        for path in (f"/{name}", f"/show?run={name}", f"/data?run={name}", f"/static/{name}"):
            reply = served.ask(path)
            assert reply.status == 404, path
            assert "s3cret" not in reply.body


def test_a_request_that_is_none_is_answered_and_the_server_lives_on(served: Any) -> None:
    head = f"Host: {served.address}\r\nCookie: {served.cookie}\r\n\r\n"
    lines = [
        "",
        "GET",
        "\x00\x01\x02",
        "GET / HTTP/9.9",
        "GET / HTTP/x",
        "GET http://[ HTTP/1.1",
        "GET " + "a" * 70_000,
    ]
    for line in lines:
        served.raw(f"{line}\r\n{head}".encode("latin-1"))
    served.raw(f"GET / HTTP/1.1\r\n{'X: y' * 1000}\r\n{'A: b' * 200}\r\n{head}".encode())
    assert served.ask("/").status == 200


def test_a_page_that_cannot_be_made_says_why_and_the_others_live_on(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = served.server.site.answer

    def broken(path: str, query: Any) -> Any:
        return answer(path, query) if path == "/" else {}["no such key"]

    monkeypatch.setattr(served.server.site, "answer", broken)
    reply = served.ask("/data")
    assert reply.status == 500
    assert reply.body == "500 Internal Server Error: this page could not be built: KeyError: 'no such key'\n"
    assert served.ask("/").status == 200


def test_a_client_that_sends_one_byte_at_a_time_loses_its_connection(watch: Watch, tmp_path: Path) -> None:
    served = watch(tmp_path, request_timeout=0.2)
    with socket.create_connection(("127.0.0.1", served.server.server_port)) as client:
        client.settimeout(0.02)  # the pause between two bytes, each of which would start a socket's timeout again
        closed = False
        for byte in f"GET / HTTP/1.1\r\nHost: {served.address}\r\nX-Slow: {'y' * 1000}".encode():
            try:
                client.send(bytes([byte]))
                closed = client.recv(100) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                closed = True
            if closed:
                break
    assert closed
    assert served.ask("/").status == 200


# -- the command -------------------------------------------------------------------------------------


def test_ctrl_c_ends_it_with_exit_code_0(samples: ModuleType, tmp_path: Path) -> None:
    samples.make_run(tmp_path / "first", 60)
    with start_script(COMMAND, args=["watch", tmp_path]) as script:
        script.wait_for("Stop with Ctrl-C")
        script.send(signal.SIGINT)
        done = script.finish()
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^watching .* \(1 run now\)$", done.stdout, re.MULTILINE)
    assert re.search(r"^open http://127\.0\.0\.1:\d+/\?token=[\w-]{40,}$", done.stdout, re.MULTILINE)


def test_a_port_in_use_is_one_clear_line(served: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = served.server.server_port
    assert main(["watch", str(tmp_path), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"hookline watch: --port {port}: the port is in use on 127.0.0.1")
    assert said.count("\n") == 1


def test_a_port_that_is_none_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path), "--port", "70000"]) == 2
    assert "0 to 65535" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for name, said in (("nothing", "does not exist"), ("file", "is a file")):
        assert main(["watch", str(tmp_path / name)]) == 2
        assert f"hookline watch: {tmp_path / name} {said}. Give the folder" in capsys.readouterr().err
