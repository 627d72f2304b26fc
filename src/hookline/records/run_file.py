"""``RunFile``: what was run, as it stands in ``run.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, Literal, Self

from hookline.records.regular_file import open_regular

FILE = "run.json"
FORMAT = 1

_TYPES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "str": (str,),
        "Status": (str,),
        "Literal['min', 'max']": (str,),
        "int": (int,),
        "bool": (bool,),
        "float": (int, float),
        "str | None": (str, NoneType),
        "int | None": (int, NoneType),
        "Mapping[str, Any]": (dict,),
        "Mapping[str, str]": (dict,),
        "Mapping[str, Any] | None": (dict, NoneType),
    }
)
"""The types of the fields below, and what JSON has for them; a tuple is made of each list."""

Status = Literal["running", "finished", "stopped", "interrupted", "preempted", "failed", "killed"]
"""A session that was killed is ``running`` until the next one finds it so."""


@dataclass(frozen=True, slots=True)
class CallbackEntry:
    """A callback of the run. They stand in the order in which they run."""

    name: str
    arguments: str
    """The call that makes it, as far as its arguments are plain: ``EarlyStopping(patience=3)``."""
    optional: bool


@dataclass(frozen=True, slots=True)
class CostEntry:
    """What one hook of one callback cost in one session."""

    callback: str
    hook: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MonitorEntry:
    """By which metric the best of the checkpoints in one folder is chosen."""

    folder: str
    """Inside that of the run."""
    metric: str
    mode: Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One ``fit``: the first, or one that goes on."""

    started: str
    """ISO 8601, with the time zone."""
    first_step: int = 0
    """The step that it went on from."""
    status: Status = "running"
    ended: str | None = None
    last_step: int = 0
    last_epoch: int = 0
    seconds: float = 0.0
    """Seconds of training, over all sessions so far."""
    reason: str = ""
    """Why it ended."""
    stopped_by: str | None = None
    costs: tuple[CostEntry, ...] = ()
    failures: tuple[str, ...] = ()
    """Of optional callbacks."""
    sinks: tuple[str, ...] = ()
    """How each sink fared, in words."""
    not_finite: tuple[str, ...] = ()
    """The losses whose newest value is NaN or infinite, in words."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """Everything in it is plain, and without secrets.

    >>> RunFile.from_json(RunFile("digits", "first", run_id="a1", started="2030-01-01T00:00:00+00:00").to_json()).name
    'first'
    """

    project: str
    name: str
    run_id: str
    started: str
    seed: int | None = None
    entry_point: str = "fit"
    config: Mapping[str, Any] = field(default_factory=dict)
    """The hyper-parameters."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The options of the trainer: ``max_duration``, ``log_every``, ``precision`` …"""
    arguments: tuple[str, ...] = ()
    """The command line."""
    callbacks: tuple[CallbackEntry, ...] = ()
    monitors: tuple[MonitorEntry, ...] = ()
    """Of what saves checkpoints; empty if nothing says which is the best, or an earlier version wrote the file."""
    monitored: tuple[str, ...] = ()
    """The metrics that callbacks decide by."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Its class, and how many parameters it has: ``class``, ``parameters``, ``trainable``."""
    versions: Mapping[str, str] = field(default_factory=dict)
    platform: Mapping[str, Any] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None
    """``commit``, ``branch`` and whether it was ``dirty``; ``None`` outside of a repository."""
    sessions: tuple[SessionEntry, ...] = ()

    @property
    def status(self) -> Status:
        return self.sessions[-1].status if self.sessions else "running"

    def with_session(self, session: SessionEntry, *, again: bool = False) -> Self:
        """A session more; or the newest as it is now."""
        return replace(self, sessions=(*(self.sessions[:-1] if again else self.sessions), session))

    # -- the file ------------------------------------------------------------------------------

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What a text says; ``ValueError`` if it is no run. Fields that are not known are left out."""
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or found.get("format") != FORMAT:
                raise ValueError(f"not a run of format {FORMAT}")
            found["arguments"] = tuple(found.get("arguments", ()))
            found["callbacks"] = tuple(_read(CallbackEntry, entry) for entry in found.get("callbacks", ()))
            found["monitors"] = tuple(_read(MonitorEntry, entry) for entry in found.get("monitors", ()))
            found["monitored"] = tuple(map(str, found.get("monitored", ())))
            found["sessions"] = tuple(_read_session(entry) for entry in found.get("sessions", ()))
            run: Self = _read(cls, found)
            return run
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a run: {error}") from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """That of a run's folder; ``OSError`` or ``ValueError`` if there is none that can be read."""
        with open_regular(folder / FILE) as file:
            return cls.from_json(file.read().decode("utf-8"))

    def write(self, folder: Path) -> None:
        """In one piece: whoever reads meanwhile sees the old one or the new one."""
        fresh = folder / f".{FILE}.{os.getpid()}"
        try:
            # A command line may hold half of a surrogate pair, which has no UTF-8; like this it is an escape of JSON.
            fresh.write_bytes(self.to_json().encode(errors="backslashreplace"))
            fresh.replace(folder / FILE)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise


def _read(kind: type[Any], found: Mapping[str, Any]) -> Any:
    """An entry of the file; a field of another type than it should have is a ``ValueError``."""
    known = {field.name: field for field in fields(kind)}
    given = {key: value for key, value in found.items() if key in known}
    for key, value in given.items():
        type_name = str(known[key].type)
        types = (tuple,) if type_name.startswith("tuple") else _TYPES[type_name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"its {key} is {value!r:.40} and not of the type {type_name}")
    return kind(**given)


def _read_session(found: Mapping[str, Any]) -> SessionEntry:
    costs = tuple(_read(CostEntry, entry) for entry in found.get("costs", ()))
    texts = {key: tuple(found.get(key, ())) for key in ("failures", "sinks", "not_finite")}
    session: SessionEntry = _read(SessionEntry, {**found, "costs": costs, **texts})
    return session
