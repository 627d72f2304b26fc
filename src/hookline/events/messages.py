"""A small bus between callbacks: messages under a key, each with a lifetime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from hookline.errors import RegistrationError

Lifetime = Literal["once", "epoch", "forever"]


class Messages:
    """Write under a key, read them all; a message lives once, until the epoch ends, or for ever.

    >>> messages = Messages()
    >>> messages.send("plots", "loss.png", keep="once")
    >>> messages.read("plots"), messages.read("plots")
    (['loss.png'], [])
    """

    __slots__ = ("_store",)

    def __init__(self) -> None:
        self._store: dict[str, list[tuple[Any, Lifetime]]] = {}

    def send(self, key: str, value: Any, *, keep: Lifetime = "epoch", replace: bool = False) -> None:
        """Leave a message; ``replace`` drops the earlier ones under the key."""
        if keep not in get_args(Lifetime):
            raise RegistrationError(f"keep={keep!r}: a message is kept 'once', for the 'epoch', or 'forever'")
        if replace:
            self._store[key] = []
        self._store.setdefault(key, []).append((value, keep))

    def read(self, key: str) -> list[Any]:
        """The messages under a key, oldest first; those kept ``"once"`` are gone after this."""
        messages = self._store.get(key, [])
        self._store[key] = [message for message in messages if message[1] != "once"]
        return [value for value, _ in messages]

    def state_dict(self) -> dict[str, Any]:
        """All that is still there, for a checkpoint."""
        return {key: [list(message) for message in messages] for key, messages in self._store.items() if messages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._store = {key: [(value, keep) for value, keep in messages] for key, messages in state.items()}

    def end_epoch(self) -> None:
        """Drop what lived until the end of the epoch; the loop calls it after ``epoch_end``."""
        for key, messages in self._store.items():
            self._store[key] = [message for message in messages if message[1] != "epoch"]
