"""Messages reach real servers; servers that refuse, hang or are not there cost the run nothing, and this is said."""

from __future__ import annotations

import json
import logging
import math
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from hookline.callbacks import Checkpointer, HistoryPlot, LambdaCallback
from hookline.callbacks.watch import _notify
from hookline.callbacks.watch._notify import Alert, Message, Outbox
from hookline.callbacks.watch.notify import Notify
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback
from hookline.testing import drive, start_script, tiny_data
from tests.support import at_step, crash_at, fit, wait_until

PASSWORD = "correct horse battery"
WAIT = 200.0
"""A guard against a hang, and no measure."""


fit_owl = partial(fit, val=tiny_data(1), log_every="2st", name="zoo/owl")


def fail(run: Any) -> None:
    if run.clock.step == 5:
        raise ValueError("the disk is full; token=ghp_abcdefghijklmnop1234")


def stop(run: Any) -> None:
    if run.clock.step == 5:
        run.stop("it is good enough")


# -- a web server ----------------------------------------------------------------------------------


class Web:
    """A real server on the loopback address. ``codes`` are its next answers; ``release`` lets those that hang go on."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.requests = 0
        self.codes: list[int] = []
        self.hangs = False
        self.release = threading.Event()
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                web.requests += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if web.hangs:
                    web.release.wait(WAIT)
                code = web.codes.pop(0) if web.codes else 200
                if code == 200:
                    assert self.headers["Content-Type"] == "application/json"
                    web.bodies.append(json.loads(body, parse_constant=lambda name: pytest.fail(name)))
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/services/TABC/BDEF/verysecretverysecret"


@pytest.fixture
def web() -> Iterator[Web]:
    found = Web()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield found
    found.release.set()
    found.server.shutdown()
    found.server.server_close()
    thread.join(WAIT)


def test_a_webhook_gets_what_happened_with_the_numbers_of_the_run(web: Web) -> None:
    notify = Notify(webhook=web.url)
    result = fit_owl(notify)
    (body,) = web.bodies
    assert (notify.sent, notify.unsent, result.failures) == (1, [], ())
    facts = {key: body[key] for key in ("event", "title", "project", "run", "step", "epoch", "reason", "files")}
    assert facts == {
        "event": "end",
        "title": "zoo/owl has ended",
        "project": "zoo",
        "run": "owl",
        "step": 8,
        "epoch": 2,
        "reason": "",
        "files": [],
    }
    assert body["metrics"]["val/loss"] == result.history["val/loss"][-1]
    assert body["text"].startswith("zoo/owl has ended\nzoo/owl has ended: 8 steps, 2 epochs, ")
    assert f"val/loss = {result.history['val/loss'][-1]:.6g}" in body["text"]


@pytest.mark.parametrize(
    ("on", "hook", "expected"),
    [
        ("end", None, [("end", "")]),
        ("end", stop, [("stop", "it is good enough")]),
        ("stop", None, []),
        ("stop", stop, [("stop", "it is good enough")]),
        (("end", "stop"), stop, [("stop", "it is good enough")]),
        ("exception", None, []),
        (("end", "stop"), fail, []),
        ("exception", fail, [("exception", "ValueError: the disk is full; token=[redacted]")]),
        ("epoch", None, [("epoch", ""), ("epoch", "")]),
        (
            ("epoch", "exception"),
            fail,
            [("epoch", ""), ("exception", "ValueError: the disk is full; token=[redacted]")],
        ),
    ],
)
def test_each_event_is_told_once_if_it_is_wanted(on: Any, hook: Any, expected: Any, web: Web) -> None:
    callbacks = [Notify(on, webhook=web.url)] + ([] if hook is None else [LambdaCallback(on_train_step_end=hook)])
    if hook is fail:
        with pytest.raises(ValueError, match="disk"):
            fit_owl(*callbacks)
    else:
        fit_owl(*callbacks)
    assert [(body["event"], body["reason"]) for body in web.bodies] == expected
    assert "ghp_" not in json.dumps(web.bodies)


@pytest.mark.parametrize(("step", "told"), [(3, []), (5, ["zoo/owl has done epoch 1"])])
def test_an_epoch_that_a_stop_cuts_short_is_not_told(step: int, told: list[str], web: Web) -> None:
    fit_owl(Notify("epoch", webhook=web.url), at_step(step, lambda run: run.stop("enough")))
    assert [body["title"] for body in web.bodies] == told


def test_after_a_resume_an_epoch_that_was_told_is_not_told_again(web: Web, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit_owl(Notify("epoch", webhook=web.url), Checkpointer("1st"), crash_at(5), folder=tmp_path)
    stop_later = at_step(6, lambda run: run.stop("enough"))
    fit_owl(Notify("epoch", webhook=web.url), Checkpointer("1st"), stop_later, folder=tmp_path, resume="auto")
    assert [body["title"] for body in web.bodies] == ["zoo/owl has done epoch 1"]


def test_a_run_that_a_signal_stops_tells_it_before_the_process_ends(web: Web, tmp_path: Path) -> None:
    source = """
        import sys, time
        sys.path[:0] = eval(sys.argv[3])
        import torch
        from hookline.callbacks import LambdaCallback
        from hookline.callbacks.watch.notify import Notify
        from hookline.loop import Trainer
        from hookline.testing import TinyModel, tiny_data
        def slow(run):
            print("step", run.clock.step, flush=True)
            time.sleep(0.05)
        callbacks = [Notify(webhook=sys.argv[1]), LambdaCallback(on_train_step_end=slow)]
        trainer = Trainer(max_duration="1000ep", callbacks=callbacks, folder=sys.argv[2], device="cpu", name="zoo/owl")
        trainer.fit(TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    """
    with start_script(source, args=[web.url, tmp_path / "run", sys.path]) as script:
        script.wait_for("step 3")
        script.send(signal.SIGTERM)
        assert script.finish().returncode == 143
    (body,) = web.bodies
    assert (body["event"], body["title"]) == ("stop", "zoo/owl was stopped")
    assert "SIGTERM" in body["reason"]


def test_numbers_that_json_does_not_know_are_sent_as_texts(web: Web) -> None:
    bad = LambdaCallback(on_train_step_end=lambda run: run.log({"bad": math.nan, "worse": math.inf}))
    fit_owl(bad, Notify(webhook=web.url, metrics=("train/bad", "train/worse")))
    assert web.bodies[0]["metrics"] == {"train/bad": "nan", "train/worse": "inf"}


# -- alerts --------------------------------------------------------------------------------------


def evaluations(*values: float) -> list[Any]:
    return [("eval_end", {"metrics": {"val/loss": value}}) for value in values]


def test_an_alert_is_told_when_it_begins_to_hold_and_again_only_after_it_did_not(web: Web) -> None:
    notify = Notify((), webhook=web.url, when="val/loss > 1")
    drive(notify, ["setup", "train_start", *evaluations(0.5, 1.0, 1.5, 2.0, 0.9, math.nan, 3.0), "teardown"])
    assert [(body["title"].rpartition("/owl ")[2].split(" ", 1)[1], body["reason"]) for body in web.bodies] == [
        ("val/loss > 1", "val/loss = 1.5"),
        ("val/loss > 1", "val/loss = 3"),
    ]


def test_the_message_of_an_alert_has_the_value_that_the_alert_is_about(web: Web) -> None:
    """It had the value of the evaluation before, next to a reason with the new one."""

    class Rising(Callback):
        writes = ("val/score", "val/other")

        def on_eval_end(self, run: Any) -> None:
            run.log({"val/score": float(run.clock.epoch), "val/other": 10.0 * run.clock.epoch})

    fit_owl(Notify((), webhook=web.url, when="val/score >= 2"), Rising())
    (body,) = web.bodies
    assert body["reason"] == "val/score = 2"
    assert (body["metrics"]["val/score"], body["metrics"]["val/other"]) == (2.0, 20.0)


def test_what_a_condition_means() -> None:
    rows = [
        ("val/loss > 2", 2.0, False),
        ("val/loss >= 2", 2.0, True),
        ("val/loss<2", 1.0, True),
        ("val/loss <= -1e-3", 0.0, False),
        ("val/loss > 2", math.nan, False),
    ]
    assert [row for row in rows if Alert.parse(row[0]).holds(row[1]) is not row[2]] == []


def refusal(**arguments: Any) -> str:
    """How ``Notify`` refuses these arguments, with its notes; nothing if it takes them."""
    try:
        Notify(**arguments)
    except ArgumentError as error:
        return f"{error} {error!r} {getattr(error, '__notes__', '')}"
    return ""


def test_a_condition_that_cannot_be_read_is_refused_with_an_example() -> None:
    texts: list[Any] = [
        "val/loss",
        "val/loss = 2",
        "> 2",
        "val/loss > two",
        "val/loss > nan",
        "val/loss is not finite",
    ]
    refusals = {text: refusal(webhook="https://example.org", when=(text,)) for text in texts}
    assert {text: said for text, said in refusals.items() if "such as 'val/loss > 2'" not in said} == {}


def test_metrics_of_training_are_looked_at_when_an_interval_ends(web: Web) -> None:
    fit_owl(Notify((), webhook=web.url, when=("train/loss > 0.01", "train/loss < 0")))
    assert [(body["event"], body["step"]) for body in web.bodies] == [("alert", 2)]


def test_a_metric_that_is_declared_and_never_logged_is_said_at_the_end(
    web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(Callback):
        writes = ("gpu/heat",)

    fit_owl(Notify(webhook=web.url, when="gpu/heat > 1"), Forgetful())
    assert "no callback has logged gpu/heat" in caplog.text


def test_after_a_resume_an_alert_that_was_told_is_not_told_again(web: Web, tmp_path: Path) -> None:
    def make() -> Notify:
        return Notify((), webhook=web.url, when="val/loss > 0.01")

    with pytest.raises(RuntimeError, match="planted"):
        fit_owl(make(), Checkpointer("1st"), crash_at(5, "train_step_start"), folder=tmp_path / "run")
    assert len(web.bodies) == 1
    notify = make()
    fit_owl(notify, Checkpointer("1st"), folder=tmp_path / "run", resume="auto")
    assert len(web.bodies) == 1
    assert notify.holding == ["val/loss > 0.01"]


# -- mail ------------------------------------------------------------------------------------------

SMTP = """
    import asyncio, json, ssl, sys
    from pathlib import Path
    from aiosmtpd.smtp import SMTP, AuthResult
    options = json.loads(sys.argv[1])
    class Handler:
        count = 0
        async def handle_RCPT(self, server, session, envelope, address, rcpt_options):
            if address.startswith("nobody@"):
                return "550 no such user here"
            envelope.rcpt_tos.append(address)
            return "250 OK"
        async def handle_DATA(self, server, session, envelope):
            Handler.count += 1
            path = Path(sys.argv[2], f"{Handler.count}.eml")
            path.write_bytes(envelope.content)
            print("got", session.ssl is not None, session.authenticated, envelope.rcpt_tos, flush=True)
            return "250 OK"
    def authenticate(server, session, envelope, mechanism, data):
        good = data.login == b"me" and data.password == options["password"].encode()
        return AuthResult(success=good, handled=False)
    async def main():
        context = None
        if options["tls"]:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*options["tls"])
        wrapped = {"ssl": context} if options["wrapped"] else {}
        starttls = {"tls_context": context, "require_starttls": True} if context and not wrapped else {}
        auth = {"authenticator": authenticate, "auth_required": True, "auth_require_tls": bool(starttls)}
        make = lambda: SMTP(Handler(), **starttls, **(auth if options["password"] else {}))
        loop = asyncio.get_running_loop()
        server = await loop.create_server(make, "127.0.0.1", 0, **wrapped)
        print("port", server.sockets[0].getsockname()[1], flush=True)
        await asyncio.sleep(120)
    asyncio.run(main())
"""


class Mailbox:
    """A real SMTP server in a process of its own."""

    def __init__(self, script: Any, folder: Path) -> None:
        self.script, self.folder = script, folder
        script.wait_for("port")
        script.wait_for("\n")
        self.address = f"127.0.0.1:{script.stdout.split()[1]}"

    @property
    def mails(self) -> list[EmailMessage]:
        found = sorted(self.folder.glob("*.eml"))
        return [message_from_bytes(path.read_bytes(), policy=policy.default) for path in found]  # type: ignore[misc]


@contextmanager
def mailbox(folder: Path, *, tls: Any = (), password: str = "", wrapped: bool = False) -> Iterator[Mailbox]:
    folder.mkdir()
    options = json.dumps({"tls": [str(path) for path in tls], "password": password, "wrapped": wrapped})
    with start_script(SMTP, args=[options, folder]) as script:
        yield Mailbox(script, folder)


def attachments(mail: EmailMessage) -> dict[str | None, Any]:
    return {part.get_filename(): part.get_content() for part in mail.iter_attachments()}


def test_a_mail_has_the_metrics_and_the_plots_of_the_run(tmp_path: Path) -> None:
    with mailbox(tmp_path / "mails") as box:
        to = ("me@example.org", "you@example.org")
        notify = Notify(to=to, smtp=box.address, security="none", sender="run@example.org")
        result = fit_owl(notify, HistoryPlot(), folder=tmp_path / "run")
        (mail,) = box.mails
        assert "['me@example.org', 'you@example.org']" in box.script.stdout
    assert (notify.sent, notify.unsent) == (1, [])
    assert (mail["Subject"], mail["From"], mail["To"]) == ("zoo/owl has ended", "run@example.org", ", ".join(to))
    body = mail.get_body()
    assert body is not None
    text = body.get_content()
    assert f"val/loss = {result.history['val/loss'][-1]:.6g}" in text
    plot = tmp_path / "run" / "plots" / "history.png"
    assert attachments(mail) == {"history.png": plot.read_bytes()}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("certificate")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT)
    return cert, key


@pytest.mark.parametrize("security", ["starttls", "ssl"])
def test_mail_is_encrypted_and_logged_in_and_only_to_a_server_that_is_who_it_says(
    security: Any, certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mailbox(tmp_path / "mails", tls=certificate, password=PASSWORD, wrapped=security == "ssl") as box:
        notify = Notify(to="me@example.org", smtp=box.address, user="me", password=PASSWORD, security=security)
        fit_owl(notify)
        assert box.mails == []
        assert "CERTIFICATE_VERIFY_FAILED" in notify.unsent[0]
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        fit_owl(notify)
        assert notify.unsent == []
        assert len(box.mails) == 1
        if security == "starttls":
            assert "got True True" in box.script.stdout


def test_a_wrong_password_and_an_unknown_address_are_said_and_no_secret_is(
    certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with mailbox(tmp_path / "mails", tls=certificate, password=PASSWORD) as box:
        wrong = Notify(to="me@example.org", smtp=box.address, user="me", password="hush-hush-hush")
        fit_owl(wrong)
        unknown = Notify(to="nobody@example.org", smtp=box.address, user="me", password=PASSWORD)
        fit_owl(unknown)
        assert box.mails == []
    assert "was not sent by mail to me@example.org through 127.0.0.1" in wrong.unsent[0]
    assert "SMTPAuthenticationError" in wrong.unsent[0]
    assert "no such user here" in unknown.unsent[0]
    assert "hush" not in caplog.text
    assert PASSWORD not in caplog.text


def test_secrets_are_in_no_file_of_the_run_and_in_no_repr(web: Web, tmp_path: Path) -> None:
    def make(password: str) -> Notify:
        mail: Any = {"to": "me@example.org", "smtp": "127.0.0.1:9", "user": "me", "security": "none"}
        return Notify(webhook=web.url, password=password, when="val/loss > 0.01", **mail)

    notify = make(PASSWORD)
    fit_owl(notify, Checkpointer("1st"), folder=tmp_path / "run")
    shown = repr(notify) + notify.state_key + repr(notify.state_dict()) + repr(vars(notify)) + "".join(notify.unsent)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(path.name == "run.json" for path in files)
    for secret in (PASSWORD, "verysecretverysecret"):
        assert secret not in shown
        assert not [path for path in files if secret.encode() in path.read_bytes()]
    assert make("another").state_key == notify.state_key  # a new password must not lose the state


def test_a_mail_draws_nothing_from_the_random_state_that_training_uses() -> None:
    before = random.getstate()
    message = Message("end", "title", "text", {}, (("a.png", b"\x89PNG"), ("b.bin", bytes(range(256)))))
    raw = message.as_mail("a@b.c", ["d@e.f"]).as_bytes()
    assert random.getstate() == before
    mail: Any = message_from_bytes(raw, policy=policy.default)
    assert attachments(mail) == {"a.png": b"\x89PNG", "b.bin": bytes(range(256))}


def test_files_that_are_too_large_stay_and_this_is_said(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_notify, "MAX_ATTACHED_BYTES", 1_500_000)

    def write(run: Any) -> None:
        (run.folder / "plots").mkdir()
        (run.folder / "plots" / "a.png").write_bytes(b"0" * 1_000_000)
        (run.folder / "plots" / "b.png").write_bytes(b"0" * 1_000_000)

    fit_owl(Notify(webhook=web.url), LambdaCallback(on_train_start=write), folder=tmp_path / "run")
    (body,) = web.bodies
    assert body["files"] == ["a.png"]
    assert "1.0 MB is too large to send: b.png" in body["text"]


# -- servers that are no good ------------------------------------------------------------------------


def test_a_server_that_hangs_stalls_neither_training_nor_its_end(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    web.hangs = True  # until this test lets go: if anything waited for an answer, it would not get here
    notify = Notify(("epoch", "end"), webhook=web.url, timeout=0.2)
    result = fit_owl(notify, max_duration="5ep")
    assert result.clock.step == 20
    assert result.failures == ()
    assert notify.sent == 0
    assert len(notify.unsent) == 6
    assert sum("was not sent by webhook at 127.0.0.1" in record.message for record in caplog.records) == 6
    assert all(record.levelno == logging.WARNING for record in caplog.records if "Notify" in record.message)


def test_a_mail_server_that_accepts_and_says_nothing_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        notify = Notify(to="me@example.org", smtp=address, timeout=0.2)
        result = fit_owl(notify)
    assert result.clock.step == 8
    assert len(notify.unsent) == 1


def test_a_server_that_is_not_there_is_said_once_for_each_message(hold_port: Callable[[], int]) -> None:
    port = hold_port()
    notify = Notify(webhook=f"http://127.0.0.1:{port}", to="me@example.org", smtp=f"127.0.0.1:{port}", security="none")
    result = fit_owl(notify)
    assert result.clock.step == 8
    assert [line.partition(": ")[0] for line in notify.unsent] == [
        "'zoo/owl has ended' was not sent by webhook at 127.0.0.1",
        f"'zoo/owl has ended' was not sent by mail to me@example.org through 127.0.0.1:{port}",
    ]
    assert all("refused" in line for line in notify.unsent)


MESSAGE = Message("end", "title", "text", {})


def outbox(url: str, **options: Any) -> Outbox:
    (transport,) = Notify(webhook=url)._transports
    return Outbox(transport, **options)


@pytest.mark.parametrize(
    ("codes", "requests", "sent"),
    [([503, 429], 3, 1), ([500, 500, 500], 3, 0), ([404], 1, 0), ([401], 1, 0)],
)
def test_what_may_pass_is_tried_again_and_what_will_not_is_not(
    codes: list[int], requests: int, sent: int, web: Web
) -> None:
    web.codes = list(codes)
    box = outbox(web.url, pauses=(0.01, 0.01))
    box.put(MESSAGE)
    wait_until(lambda: box.sent or box.unsent, "the message is sent or given up")
    box.close(monotonic() + WAIT)
    assert (web.requests, box.sent, len(box.unsent)) == (requests, sent, 1 - sent)
    assert sent or f"HTTP Error {codes[0]}" in box.unsent[0]


def test_when_too_many_messages_wait_the_oldest_are_dropped_and_said(web: Web) -> None:
    web.hangs = True
    box = outbox(web.url, max_waiting=3)
    box.put(Message("epoch", "first", "", {}))
    wait_until(lambda: web.requests == 1, "the first message is under way")
    for number in range(5):
        box.put(Message("epoch", f"number {number}", "", {}))
    assert [line.partition(" was")[0] for line in box.unsent] == ["'number 0'", "'number 1'"]
    assert "3 messages were waiting already" in box.unsent[0]
    web.hangs = False
    web.release.set()
    box.close(monotonic() + WAIT)
    assert [body["title"] for body in web.bodies] == ["first", "number 2", "number 3", "number 4"]
    assert box.sent == 4


class Refusing:
    """A transport whose errors show its address, as http.client does with a request line that it refuses."""

    def __init__(self, url: str, place: str) -> None:
        (self._webhook,) = Notify(webhook=url)._transports
        self._url, self._place = url, place
        self.place, self.secrets = self._webhook.place, self._webhook.secrets

    def send(self, message: Message) -> None:
        raise ValueError(f"cannot send to {self._url}, that is {self._place!r}" + " and more" * 100)


@pytest.mark.parametrize("place", ["/hook/S3CRET", "/hook/S3CRET?key=S3CRET", "/?key=S3CRET"])
def test_an_error_that_shows_the_address_is_said_without_it(place: str, caplog: pytest.LogCaptureFixture) -> None:
    box = Outbox(Refusing(f"http://127.0.0.1:9{place}", place))
    box.put(MESSAGE)
    box.close(monotonic() + WAIT)
    assert "cannot send to [redacted], that is '[redacted]'" in box.unsent[0]
    assert "S3CRET" not in box.unsent[0] + caplog.text


@pytest.mark.filterwarnings(
    "ignore:.* is deprecated and slated for removal:DeprecationWarning"
)  # apprise imports imghdr
def test_other_services_get_the_text_through_apprise(web: Web) -> None:
    pytest.importorskip("apprise")
    address = web.url.replace("http://", "json://")
    notify = Notify(apprise=address)
    fit_owl(notify)
    assert (notify.sent, notify.unsent) == (1, [])
    assert web.bodies[0]["title"] == "zoo/owl has ended"
    assert "val/loss = " in web.bodies[0]["message"]
    assert "S3CRET" not in repr(Notify(apprise="json://example.org/S3CRET"))
    with pytest.raises(ArgumentError, match="apprise does not know address 1"):
        Notify(apprise="nowhere://S3CRET")


def test_apprise_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_notify, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"pip install 'hookline\[notify\]'"):
        Notify(apprise="json://example.org")


# -- arguments -----------------------------------------------------------------------------------


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "has no address"),
    ({"webhook": "file:///etc/passwd"}, "begins with https://"),
    ({"webhook": "hooks.example.org/S3CRET"}, "begins with https://"),
    ({"webhook": "https://example.org/S3CRET x"}, "white space"),
    ({"webhook": "https://example.org/S3CRET\n"}, "white space, control or non-ASCII"),
    ({"webhook": "https://example.org/S3CR\u00c9T"}, "non-ASCII"),
    ({"webhook": "https://example.org:S3CRET/x"}, "the port of the address"),
    ({"webhook": "https://example.org:70000/S3CRET"}, "the port of the address"),
    ({"webhook": "https://[::1/S3CRET"}, "in no right form"),
    ({"webhook": "https:///S3CRET"}, "has no host"),
    ({"webhook": "https://me:S3CRET@example.org/x"}, "a user and a password"),
    ({"to": "me@example.org"}, "needs a mail server"),
    ({"to": "me", "smtp": "mail.example.org"}, "mail addresses"),
    ({"to": "me@example.org\nBcc: x@y.z", "smtp": "mail.example.org"}, "mail addresses"),
    ({"smtp": "mail.example.org"}, "needs an address"),
    ({"to": "me@example.org", "smtp": "mail.example.org:many"}, "must be 'mail.example.org'"),
    ({"to": "me@example.org", "smtp": "me:pw@mail.example.org"}, "must be 'mail.example.org'"),
    ({"to": "me@example.org", "smtp": "mail.example.org", "user": "me"}, "needs both or neither"),
    ({"to": "me@example.org", "smtp": "mail.example.org", "security": "tls"}, "must be 'starttls', 'ssl' or 'none'"),
    (
        {"to": "me@example.org", "smtp": "mail.example.org", "user": "m", "password": "p", "security": "none"},
        "the password would be readable",
    ),
    ({"webhook": "https://example.org", "on": "start"}, "use one or more of end, stop, exception, epoch"),
    ({"webhook": "https://example.org", "timeout": 0}, "seconds"),
]


def test_wrong_arguments_are_refused_when_it_is_made_without_their_secrets() -> None:
    refusals = [(refusal(**arguments), message) for arguments, message in REFUSED]
    assert [row for row in refusals if not re.search(row[1], row[0]) or "S3CR" in row[0]] == []


@pytest.mark.parametrize(
    ("security", "smtp", "port"),
    [("starttls", "mail.example.org", 587), ("ssl", "mail.example.org", 465), ("none", "mail.example.org:2525", 2525)],
)
def test_the_port_is_the_usual_one_unless_it_is_given(security: Any, smtp: str, port: int) -> None:
    notify: Any = Notify(to="me@example.org", smtp=smtp, security=security)
    assert (notify._transports[0].host, notify._transports[0].port) == ("mail.example.org", port)
