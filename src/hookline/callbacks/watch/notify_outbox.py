"""``Outbox``: thread and bounded queue between a run and one transport."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic

from hookline.callbacks.watch._notify import Transport, is_final
from hookline.callbacks.watch.notify_message import Message
from hookline.errors import words_of
from hookline.records.redact import HIDDEN, redact_text

logger = logging.getLogger("hookline")

MOST = 32
"""Maximum number of waiting messages. The oldest is dropped when there are more."""
PAUSES = (1.0, 4.0)
"""Seconds before each retry of a message. After the last retry it is lost."""


class Outbox:
    """Send messages in a separate thread. Only ``close`` waits, up to a deadline."""

    def __init__(self, transport: Transport, *, most: int = MOST, pauses: Sequence[float] = PAUSES) -> None:
        self._transport, self._most, self._pauses = transport, most, tuple(pauses)
        self._queue: deque[Message] = deque()
        self._in_hand: Message | None = None
        self._changed = threading.Condition()
        self._closing = self._is_left = False
        self._thread: threading.Thread | None = None
        self.sent = 0
        self.unsent: list[str] = []
        """One line for each message that was not sent, with the reason."""

    def put(self, message: Message) -> None:
        """Add a message without waiting."""
        with self._changed:
            self._queue.append(message)
            dropped = self._queue.popleft() if len(self._queue) > self._most else None
            self._changed.notify()
        if dropped is not None:
            self._say(dropped, f"{self._most} messages were waiting already")
        if self._thread is None:  # A daemon thread: a server that hangs must not keep the process alive.
            self._thread = threading.Thread(target=self._work, name="hookline notify", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Announce that no message follows."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self, deadline: float) -> None:
        """Wait until all messages are sent, or until the deadline of the monotonic clock.

        Warn about the rest.
        """
        self.end()
        if self._thread is None:
            return
        self._thread.join(max(0.0, deadline - monotonic()))
        with self._changed:
            left = [*([self._in_hand] if self._in_hand is not None else []), *self._queue]
            self._is_left = True
            self._queue.clear()
        for message in left:
            self._say(message, "the server had not answered when the run was over")

    # -- in the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        """Send messages until the queue is empty and closed."""
        while (message := self._next()) is not None:
            why = self._try(message)
            with self._changed:
                self._in_hand = None
                if self._is_left:  # close() has already reported this message as not sent.
                    return
            if why is None:
                self.sent += 1
            else:
                self._say(message, why)

    def _next(self) -> Message | None:
        """Return the next message, or ``None`` at the end."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            self._in_hand = self._queue.popleft() if self._queue else None
            return self._in_hand

    def _try(self, message: Message) -> str | None:
        """Send a message with retries. Return the reason if it was not sent, or ``None``."""
        for pause in (*self._pauses, None):
            try:
                self._transport.send(message)
                return None
            except Exception as error:
                why = self._without_secrets(words_of(error))[:300]
                if pause is None or is_final(error) or self._is_over(pause):
                    return why
        return None

    def _without_secrets(self, text: str) -> str:
        """Return the text with the secrets of the transport redacted."""
        for secret in self._transport.secrets:
            text = text.replace(secret, HIDDEN)
        return redact_text(text)

    def _is_over(self, pause: float) -> bool:
        """Wait for the pause.

        Return True if the run has ended, so that there is no time for a retry.
        """
        end = monotonic() + pause
        with self._changed:
            while not self._closing and (left := end - monotonic()) > 0:
                self._changed.wait(left)
            return self._closing

    def _say(self, message: Message, why: str) -> None:
        """Warn that a message was not sent."""
        line = f"{message.title!r} was not sent by {self._transport.place}: {why}"
        self.unsent.append(line)
        logger.warning("Notify: %s", line)
