"""Requests from other processes to a run: small files in the run's folder.

A command writes one file per request into the folder ``control`` of the run. The run reads the file, does what it asks
for, and deletes it. The run lists each request, and what came of it, in ``run.json``.
"""

from __future__ import annotations

import json
import math
import os
import pwd
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self, get_args

from hookline.errors import ArgumentError, SetupError
from hookline.records.regular_file import open_regular

FOLDER = "control"
Command = Literal["stop", "save", "eval", "set"]
COMMANDS: tuple[Command, ...] = get_args(Command)
MAX_BYTES = 16_384
MAX_REQUESTS = 100
"""Largest number of files that a run reads at a time."""
_FILE = re.compile(r"\d{20}-\d+\.json")
_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request of a person to a run.

    >>> ControlRequest("1", "set", {"lr": 0.1}).text
    'set lr=0.1'
    """

    id: str
    """Name of the file without its ending: when it was written, and by which process."""
    command: Command
    settings: Mapping[str, Any] = field(default_factory=dict)
    """New values by name, for ``set``."""
    by: str = ""
    """Name of the user who asks."""
    asked: str = ""
    """Time in ISO 8601 format, with the time zone."""

    @classmethod
    def new(cls, command: Command, settings: Mapping[str, Any] | None = None) -> Self:
        """Return a request of the user of this process, made now.

        Args:
            command: What to do.
            settings: New values by name, for ``set``.
        """
        at = f"{time.time_ns():020d}-{os.getpid()}"
        return cls(at, command, dict(settings or {}), user_name(os.getuid()), datetime.now().astimezone().isoformat())

    @classmethod
    def from_json(cls, id: str, text: str) -> Self:
        """Read a request.

        Raises:
            ValueError: If the text is not a request.
        """
        found = json.loads(text)
        if not isinstance(found, dict) or found.get("command") not in COMMANDS:
            raise ValueError(f"its command is not one of {', '.join(COMMANDS)}")
        settings, by, asked = found.get("settings", {}), found.get("by", ""), found.get("asked", "")
        if not isinstance(settings, dict) or not all(isinstance(value, _PLAIN) for value in settings.values()):
            raise ValueError("its settings are not plain values by name")
        return cls(id, found["command"], settings, str(by), str(asked))

    @property
    def text(self) -> str:
        """The request as the command that makes it, for people."""
        return " ".join([self.command, *(f"{name}={shown(value)}" for name, value in self.settings.items())])

    @property
    def time_ns(self) -> int:
        """When the request was made, in nanoseconds since 1970."""
        return int(self.id.partition("-")[0])

    def write(self, run: Path) -> Path:
        """Write the request into a run's folder, atomically. Return the path.

        Args:
            run: The run's folder.

        Raises:
            SetupError: If the folder belongs to another user, or the file cannot be written.
        """
        check_owner(run)
        folder = run / FOLDER
        path, fresh = folder / f"{self.id}.json", folder / f".{self.id}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            fresh.write_text(json.dumps({key: value for key, value in asdict(self).items() if key != "id"}))
            fresh.replace(path)
        except OSError as error:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise SetupError(f"{path} cannot be written: {error.strerror or error}.") from error
        return path


def check_owner(run: Path) -> None:
    """Raise unless the run's folder belongs to the user of this process.

    Args:
        run: The run's folder.

    Raises:
        SetupError: If it belongs to another user.
    """
    owner = run.stat().st_uid
    if owner != os.geteuid():
        raise SetupError(f"{run} belongs to {user_name(owner)}. Only the owner of a run can control it.")


def has_requests(run: Path) -> bool:
    """True if there are requests in a run's folder.

    Args:
        run: The run's folder.
    """
    try:
        with os.scandir(run / FOLDER) as entries:
            return any(_FILE.fullmatch(entry.name) for entry in entries)
    except OSError:
        return False


def take_requests(run: Path) -> list[ControlRequest | str]:
    """Read and delete the requests in a run's folder. Return them in the order in which they were made.

    A file that is not a request of the user of this process becomes a string that says what is wrong with it.

    Args:
        run: The run's folder.
    """
    found: list[ControlRequest | str] = []
    try:
        names = sorted(name for name in os.listdir(run / FOLDER) if _FILE.fullmatch(name))
    except OSError:
        return found
    for name in names[:MAX_REQUESTS]:
        path = run / FOLDER / name
        try:
            found.append(ControlRequest.from_json(path.stem, _read_own(path)))
        except (OSError, ValueError, RecursionError) as error:
            found.append(f"{FOLDER}/{name} is not a request: {error}")
        with suppress(OSError):
            path.unlink()
    return found


def withdraw(path: Path) -> bool:
    """Delete a request that no run has taken. Return whether it was still there.

    Args:
        path: The file of the request.
    """
    try:
        path.unlink()
    except OSError:
        return False
    return True


def remove_empty_folder(run: Path) -> None:
    """Remove the folder of requests if it is empty.

    Args:
        run: The run's folder.
    """
    with suppress(OSError):
        (run / FOLDER).rmdir()


def parse_settings(words: list[str]) -> dict[str, Any]:
    """Return settings that are written as ``name=value``.

    A value is a number, ``true``, ``false``, ``none`` or a string.

    Args:
        words: The settings as strings.

    Raises:
        ArgumentError: If a word has no ``=``, or a name occurs twice.

    Example:
        >>> parse_settings(["lr=1e-4", "patience=5", "max_duration=2ep"])
        {'lr': 0.0001, 'patience': 5, 'max_duration': '2ep'}
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ArgumentError(f"{word!r} is not a setting. Write name=value, such as lr=1e-4.")
        if name in found:
            raise ArgumentError(f"{name} is given twice. Give it once.")
        found[name] = _parsed(value)
    if not found:
        raise ArgumentError("Give at least one setting, such as lr=1e-4.")
    return found


def shown(value: Any) -> str:
    """Return a value as ``parse_settings`` reads it.

    >>> shown("2ep"), shown(1e-4), shown(None)
    ('2ep', '0.0001', 'none')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(value)


def user_name(uid: int) -> str:
    """Return the name of a user.

    Args:
        uid: The number of the user.
    """
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _parsed(value: str) -> Any:
    try:
        return {"none": None, "true": True, "false": False}[value.lower()]
    except KeyError:
        pass
    with suppress(ValueError):
        return int(value)
    with suppress(ValueError):
        return float(value) if math.isfinite(float(value)) else value
    return value


def _read_own(path: Path) -> str:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError("it is not a regular file")
    with open_regular(path) as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner != os.geteuid():
            raise ValueError(f"{user_name(owner)} wrote it, who does not own the run")
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    return text.decode()
