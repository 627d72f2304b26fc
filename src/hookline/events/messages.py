"""Messages between callbacks: values under a key, each with a lifetime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from hookline.errors import RegistrationError

Lifetime = Literal["once", "epoch", "forever"]


class Messages:
    """Messages by key. A message lasts until it is read, until the epoch ends, or forever.

    Example:
        >>> messages = Messages()
        >>> messages.send("plots", "loss.png", keep="once")
        >>> messages.read("plots"), messages.read("plots")
        (['loss.png'], [])
    """

    __slots__ = ("_store",)

    def __init__(self) -> None:
        self._store: dict[str, list[tuple[Any, Lifetime]]] = {}

    def send(self, key: str, value: Any, *, keep: Lifetime = "epoch", replace: bool = False) -> None:
        """Add a message under a key.

        Args:
            key: Key that the reader uses.
            value: The message.
            keep: ``"once"`` (until it is read), ``"epoch"`` (until the epoch ends) or ``"forever"``.
            replace: Remove the earlier messages under the key.

        Raises:
            RegistrationError: If ``keep`` is none of these values.
        """
        if keep not in get_args(Lifetime):
            raise RegistrationError(f"keep={keep!r}: a message is kept 'once', for the 'epoch', or 'forever'")
        if replace:
            self._store[key] = []
        self._store.setdefault(key, []).append((value, keep))

    def read(self, key: str) -> list[Any]:
        """Return the messages under a key, oldest first. Remove those kept ``"once"``.

        Args:
            key: The key that the senders used.
        """
        messages = self._store.get(key, [])
        self._store[key] = [message for message in messages if message[1] != "once"]
        return [value for value, _ in messages]

    def state_dict(self) -> dict[str, Any]:
        """Return all remaining messages, for a checkpoint."""
        return {key: [list(message) for message in messages] for key, messages in self._store.items() if messages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the messages of a checkpoint.

        Args:
            state: Result of ``state_dict``.
        """
        self._store = {key: [(value, keep) for value, keep in messages] for key, messages in state.items()}

    def end_epoch(self) -> None:
        """Remove messages kept for the epoch. The loop calls this method after ``epoch_end``."""
        for key, messages in self._store.items():
            self._store[key] = [message for message in messages if message[1] != "epoch"]
