"""Transports of messages: mail (SMTP) and webhook (JSON)."""

from __future__ import annotations

import json
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from hookline.callbacks.watch.notify_message import Message
from hookline.errors import RegistrationError
from hookline.records.redact import HIDDEN

Security = Literal["starttls", "ssl", "none"]
PORTS: dict[str, int] = {"starttls": 587, "ssl": 465, "none": 25}
LOOPBACK = ("localhost", "127.0.0.1", "::1")


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
    payload: Callable[[dict[str, Any]], Any] | None
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
        content = message.as_json() if self.payload is None else self.payload(message.as_json())
        request = urllib.request.Request(
            self.address.reveal(),
            json.dumps(content, allow_nan=False).encode(),
            {"Content-Type": "application/json", "User-Agent": "hookline"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                answer.read(1_000)
        except urllib.error.HTTPError as error:
            error.close()  # The error holds the connection.
            raise


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
    """Return the mail transport for the arguments of ``Notify``, or raise ``RegistrationError``."""
    if not to or not all(isinstance(address, str) and "@" in address and "\n" not in address for address in to):
        raise RegistrationError(f"Notify(to={list(to)!r}): give one or more mail addresses, such as 'me@example.org'")
    if not smtp:
        raise RegistrationError("Notify(to=…): say through which server: smtp='mail.example.org:587'")
    if security not in PORTS:
        raise RegistrationError(f"Notify(security={security!r}): use one of {', '.join(PORTS)}")
    host, port = _host_and_port(smtp, PORTS[security])
    if (user is None) != (password is None):
        raise RegistrationError("Notify: give user and password, or neither of them")
    if password is not None and security == "none" and host not in LOOPBACK:
        raise RegistrationError(
            f"Notify(security='none', password=…): all could read the password on its way to {host}; use 'starttls' or "
            f"'ssl'"
        )
    own = sender or (user if user is not None and "@" in user else to[0])
    if "@" not in own or "\n" in own:
        raise RegistrationError(f"Notify(sender={own!r}): give a mail address")
    return Mail(host, port, own, tuple(to), user, None if password is None else Secret(password), security, timeout)


def webhook_of(address: str, payload: Callable[[dict[str, Any]], Any] | None, timeout: float) -> Webhook:
    """Return the webhook for the arguments of ``Notify``, or raise ``RegistrationError``."""
    if (wrong := _wrong_with(address)) is not None:
        raise RegistrationError(f"Notify(webhook=…): {wrong}")
    return Webhook(Secret(address), payload, timeout)


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
        raise RegistrationError(f"Notify(smtp={smtp!r}): give 'mail.example.org' or 'mail.example.org:587'")
    return parts.hostname, usual if port is None else port
