"""Messages about a run: alerts, content, transports, and the thread that sends."""

from __future__ import annotations

import json
import logging
import math
import mimetypes
import operator
import os
import re
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

from hookline.callbacks._monitor import check_metric_name
from hookline.callbacks._text import MAX_ERROR_CHARS, format_error, format_size, format_time
from hookline.callbacks._worker import BackgroundWorker
from hookline.errors import ArgumentError, SetupError
from hookline.progress.counted import counted
from hookline.records.plain import plain
from hookline.records.redact import HIDDEN, redact_text

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

Security = Literal["starttls", "ssl", "none"]
PORTS: dict[str, int] = {"starttls": 587, "ssl": 465, "none": 25}
LOOPBACK = ("localhost", "127.0.0.1", "::1")

SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_COMPARISON = re.compile(r"(?P<metric>\S+)\s*(?P<sign>>=|<=|>|<)\s*(?P<value>\S+)")

MAX_TITLE_CHARS = 200
MAX_ATTACHED_BYTES = 10_000_000
"""Maximum total size of the files of one message, in bytes."""

MAX_WAITING = 32
"""Maximum number of waiting messages. The oldest is dropped when there are more."""
PAUSES = (1.0, 4.0)
"""Seconds before each retry of a message. After the last retry it is lost."""


class Secret:
    """A string that ``repr`` and messages do not show."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the string."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN


class Transport(Protocol):
    """Way to send a message. ``send`` raises an error if it fails."""

    @property
    def place(self) -> str:
        """Recipient for messages, without secrets."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Strings that must not appear in an error message."""

    def send(self, message: Message) -> None: ...


@dataclass(frozen=True, slots=True)
class Mail:
    """Send mail through an SMTP server, encrypted by default."""

    host: str
    port: int
    sender: str
    to: tuple[str, ...]
    user: str | None
    password: Secret | None
    security: Security
    timeout: float

    @property
    def place(self) -> str:
        return f"mail to {', '.join(self.to)} through {self.host}:{self.port}"

    @property
    def secrets(self) -> tuple[str, ...]:
        return () if self.password is None else (self.password.reveal(),)

    def send(self, message: Message) -> None:
        """Send the message, and raise an error if a recipient is refused."""
        mail = message.as_mail(self.sender, self.to)
        with self._connect() as server:
            if self.security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if self.user is not None and self.password is not None:
                server.login(self.user, self.password.reveal())
            refused = server.send_message(mail, self.sender, self.to)
        if refused:
            raise OSError(f"the server refused {', '.join(refused)}")

    def _connect(self) -> smtplib.SMTP:
        """Return a connection to the server."""
        if self.security == "ssl":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self.host, self.port, timeout=self.timeout, context=context)
        return smtplib.SMTP(self.host, self.port, timeout=self.timeout)


@dataclass(frozen=True, slots=True)
class Webhook:
    """Send a POST request with JSON. The URL is a secret: it permits sending."""

    address: Secret
    timeout: float

    @property
    def place(self) -> str:
        return f"webhook at {urlsplit(self.address.reveal()).hostname}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The URL, and the parts of it that an error may contain: path and query."""
        address = self.address.reveal()
        parts = urlsplit(address)
        found = (address, f"{parts.path}?{parts.query}", parts.path, parts.query)
        return tuple(text for text in found if text.strip("/?"))

    def send(self, message: Message) -> None:
        """Send the message, and raise an error if the server refuses it."""
        request = urllib.request.Request(
            self.address.reveal(),
            json.dumps(message.as_json(), allow_nan=False).encode(),
            {"Content-Type": "application/json", "User-Agent": "hookline"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                answer.read(1_000)
        except urllib.error.HTTPError as error:
            error.close()  # The error holds the connection.
            raise


@dataclass(frozen=True, slots=True)
class Apprise:
    """Send the text through services that apprise supports. An address contains tokens, so it is a secret."""

    addresses: tuple[Secret, ...]

    @property
    def place(self) -> str:
        kinds = [address.reveal().partition("://")[0] for address in self.addresses]
        return f"apprise to {', '.join(kinds)}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The addresses, and the parts of them that an error may contain."""
        addresses = [address.reveal() for address in self.addresses]
        parts = [part for address in addresses for part in re.split(r"[/:@?&=]+", address)[1:]]
        return (*addresses, *sorted((part for part in parts if len(part) > 3), key=len, reverse=True))

    def send(self, message: Message) -> None:
        """Send the message, and raise an error if a service does not take it."""
        services = import_module("apprise").Apprise()
        for address in self.addresses:
            services.add(address.reveal())
        if not services.notify(title=message.title, body=message.text):
            raise OSError("a service did not take the message; the logger 'apprise' has the reason")


def is_final(error: BaseException) -> bool:
    """True if a retry would fail as well."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500 and error.code != 429
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code >= 500 for code, _ in error.recipients.values())
    if isinstance(error, smtplib.SMTPResponseException):
        return error.smtp_code >= 500
    return isinstance(error, ssl.SSLCertVerificationError | smtplib.SMTPNotSupportedError | TypeError | ValueError)


# -- checking the arguments ----------------------------------------------------------------------


def mail_of(
    to: Sequence[str],
    smtp: str | None,
    sender: str | None,
    user: str | None,
    password: str | None,
    security: Security,
    timeout: float,
) -> Mail:
    """Return the mail transport for the arguments of ``Notify``, or raise ``ArgumentError``."""
    if not to:
        raise ArgumentError("Notify(smtp=…): needs an address. Add to='me@example.org'.")
    if not all("@" in address and "\n" not in address for address in to):
        raise ArgumentError(f"Notify(to={list(to)!r}): must be mail addresses, such as 'me@example.org'.")
    if not smtp:
        raise ArgumentError("Notify(to=…): needs a mail server. Add smtp='mail.example.org:587'.")
    host, port = _host_and_port(smtp, PORTS[security])
    if (user is None) != (password is None):
        raise ArgumentError("Notify(user=…, password=…): needs both or neither of them.")
    if password is not None and security == "none" and host not in LOOPBACK:
        raise ArgumentError(
            f"Notify(security='none', password=…): the password would be readable on its way to {host}. Use "
            f"'starttls' or 'ssl'."
        )
    own = sender or (user if user is not None and "@" in user else to[0])
    if "@" not in own or "\n" in own:
        raise ArgumentError(f"Notify(sender={own!r}): must be a mail address.")
    return Mail(host, port, own, tuple(to), user, None if password is None else Secret(password), security, timeout)


def webhook_of(address: str, timeout: float) -> Webhook:
    """Return the webhook for the arguments of ``Notify``, or raise ``ArgumentError``."""
    if (wrong := _wrong_with(address)) is not None:
        raise ArgumentError(f"Notify(webhook=…): {wrong}")
    return Webhook(Secret(address), timeout)


def apprise_of(addresses: Sequence[str]) -> Apprise:
    """Return the apprise transport for the arguments of ``Notify``, or raise ``ArgumentError``."""
    if find_spec("apprise") is None:
        raise SetupError("Notify(apprise=…) needs apprise: pip install 'hookline[notify]'")
    services = import_module("apprise").Apprise
    for index, address in enumerate(addresses):
        if not isinstance(address, str) or services.instantiate(address, suppress_exceptions=True) is None:
            raise ArgumentError(
                f"Notify(apprise=…): apprise does not know address {index + 1}. Write one such as 'discord://…'."
            )
    return Apprise(tuple(map(Secret, addresses)))


def _wrong_with(address: str) -> str | None:
    """Return what is wrong with a URL, or ``None``.

    The text does not contain the URL, which is secret.
    """
    if not isinstance(address, str) or not address.lower().startswith(("https://", "http://")):
        return "give an address that begins with https:// or http://"
    if not all("!" <= sign <= "~" for sign in address):
        return "the address has white space, control or non-ASCII characters in it; write them as %20 and so on"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return "the port of the address is not a number from 1 to 65535, or its host is in no right form"
    if not parts.hostname or port == 0:
        return "the address has no host, or the port 0"
    if "@" in parts.netloc:
        return "a user and a password in an address are not sent; give one without them"
    return None


def _host_and_port(smtp: str, usual: int) -> tuple[str, int]:
    """Return the host and port of a mail server."""
    parts = urlsplit(f"//{smtp}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if not parts.hostname or port == -1 or parts.path or "@" in smtp:
        raise ArgumentError(f"Notify(smtp={smtp!r}): must be 'mail.example.org' or 'mail.example.org:587'.")
    return parts.hostname, usual if port is None else port


@dataclass(frozen=True, slots=True)
class Alert:
    """A condition on a metric. ``text`` is the condition as the user wrote it."""

    text: str
    metric: str
    sign: str
    value: float

    def holds(self, value: float) -> bool:
        """True if the value meets the condition. NaN meets none.

        Example:
            >>> Alert.parse("val/loss > 2").holds(2.5), Alert.parse("val/loss <= 2").holds(2.5)
            (True, False)
        """
        return SIGNS[self.sign](value, self.value)

    @classmethod
    def parse(cls, text: str) -> Alert:
        """Return the condition that a string describes."""
        found = _COMPARISON.fullmatch(text.strip()) if isinstance(text, str) else None
        try:
            value = math.nan if found is None else float(found["value"])
        except ValueError:
            value = math.nan
        if found is None or math.isnan(value):
            raise ArgumentError(
                f"Notify(when={text!r}): not a condition. Write a metric, one of {', '.join(SIGNS)} and a number, "
                f"such as 'val/loss > 2'."
            )
        check_metric_name(f"Notify(when={text!r})", found["metric"])
        return cls(text.strip(), found["metric"], found["sign"], value)


@dataclass(frozen=True, slots=True)
class Message:
    """A complete message. Sending it needs nothing from the run."""

    event: str
    title: str
    text: str
    facts: Mapping[str, Any]
    files: tuple[tuple[str, bytes], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the message for a webhook. Chats show ``text``; the other keys are for programs."""
        names = [name for name, _ in self.files]
        return {
            "text": f"{self.title}\n{self.text}",
            "event": self.event,
            "title": self.title,
            **self.facts,
            "files": names,
        }

    def as_mail(self, sender: str, to: Sequence[str]) -> EmailMessage:
        """Return the message as a mail with attachments."""
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = self.title, sender, ", ".join(to)
        mail["Date"] = format_datetime(datetime.now(UTC))
        # Python would generate the id and the boundary from the random state that training uses.
        mail["Message-ID"] = f"<{token_hex(16)}@hookline.invalid>"
        mail.set_content(self.text)
        for name, content in self.files:
            kind = (mimetypes.guess_type(name)[0] or "application/octet-stream").split("/")
            mail.add_attachment(content, maintype=kind[0], subtype=kind[1], filename=name)
        if mail.is_multipart():
            mail.set_boundary(f"hookline-{token_hex(16)}")
        return mail


def compose(
    run: Run,
    event: str,
    headline: str,
    *,
    why: str,
    metrics: Sequence[str],
    attach: Sequence[str],
    new: Mapping[str, float] = MappingProxyType({}),
) -> Message:
    """Return a message about the current state of a run, with secrets redacted.

    Args:
        run: The run.
        event: Kind of the message.
        headline: Rest of the sentence that starts with the name of the run.
        why: Reason, which may be empty.
        metrics: Patterns of the metrics to include.
        attach: Patterns of the files to attach.
        new: Values that are not in the history yet.
    """
    clock, name = run.clock, f"{run.project}/{run.name}"
    shown = dict(_numbers(run, metrics, new))
    files, left_out = _files(run.folder if run.has_folder else None, attach)
    counts = f"{counted(clock.step, 'step')}, {counted(clock.epoch, 'epoch')}, {format_time(clock.seconds)}"
    parts = [f"{name} {headline}: {counts}.", why]
    parts += ["\n".join(f"{metric} = {value:.6g}" for metric, value in shown.items())]
    parts += [f"{format_size(size)} is too large to send: {file}" for file, size in left_out]
    facts = {
        "project": run.project,
        "run": run.name,
        "step": clock.step,
        "epoch": clock.epoch,
        "seconds": round(clock.seconds, 3),
        "reason": redact_text(why),
        "metrics": plain(shown),
    }
    text = redact_text("\n\n".join(part for part in parts if part))
    title = redact_text(" ".join(f"{name} {headline}".split())[:MAX_TITLE_CHARS])
    return Message(event, title, text, facts, tuple(files))


def _numbers(run: Run, patterns: Sequence[str], new: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """Yield the newest number of each selected metric."""
    for name in dict.fromkeys((*run.history, *new)):
        value = new[name] if name in new else run.history[name][-1]
        if isinstance(value, int | float) and any(fnmatchcase(name, pattern) for pattern in patterns):
            yield name, value


def _files(folder: Path | None, patterns: Sequence[str]) -> tuple[list[tuple[str, bytes]], list[tuple[str, int]]]:
    """Return the files to attach, and the names and sizes of those that are too large."""
    found: list[tuple[str, bytes]] = []
    left_out: list[tuple[str, int]] = []
    paths = {path for pattern in patterns for path in (() if folder is None else folder.glob(pattern))}
    room = MAX_ATTACHED_BYTES
    for path in sorted(path for path in paths if path.is_file() and not path.name.startswith(".")):
        size = os.stat(path).st_size
        if size > room:
            left_out.append((path.name, size))
        else:
            found.append((path.name, path.read_bytes()))
            room -= size
    return found, left_out


class Outbox:
    """Send messages in a separate thread. Only ``close`` waits, up to a deadline."""

    def __init__(
        self, transport: Transport, *, max_waiting: int = MAX_WAITING, pauses: Sequence[float] = PAUSES
    ) -> None:
        self._transport, self._max_waiting = transport, max_waiting
        self._worker = BackgroundWorker[Message](
            "hookline notify",
            transport.send,
            self._finished,
            pauses=pauses,
            max_waiting=max_waiting,
            is_final=lambda message, error: is_final(error),
        )
        self.sent = 0
        self.unsent: list[str] = []
        """One line for each message that was not sent, with the reason."""

    def put(self, message: Message) -> None:
        """Add a message without waiting."""
        for dropped in self._worker.put(object(), message):
            self._warn(dropped, f"{self._max_waiting} messages were waiting already")

    def end(self) -> None:
        """Announce that no message follows."""
        self._worker.end()

    def close(self, deadline: float) -> None:
        """Wait until all messages are sent, or until the deadline of the monotonic clock."""
        for message in self._worker.close(deadline):
            self._warn(message, "the server had not answered when the run was over")

    def _finished(self, message: Message, error: BaseException | None) -> None:
        """Count a message that was sent, or warn about it."""
        if error is None:
            self.sent += 1
        else:
            text = format_error(error, 10 * MAX_ERROR_CHARS)
            for secret in self._transport.secrets:
                text = text.replace(secret, HIDDEN)
            self._warn(message, text[:MAX_ERROR_CHARS])

    def _warn(self, message: Message, why: str) -> None:
        """Warn that a message was not sent."""
        line = f"{message.title!r} was not sent by {self._transport.place}: {why}"
        self.unsent.append(line)
        logger.warning("Notify: %s", line)
