"""``RunFile``: what was run, as it stands in ``run.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

FILE = "run.json"
FORMAT = 1

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
            found["sessions"] = tuple(_read_session(entry) for entry in found.get("sessions", ()))
            for key in ("config", "settings", "model", "versions", "platform"):
                if not isinstance(found.get(key, {}), dict):
                    raise ValueError(f"its {key} is {found[key]!r:.40} and not a table of values")
            run: Self = _read(cls, found)
            return run
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a run: {error}") from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """That of a run's folder; ``OSError`` or ``ValueError`` if there is none that can be read."""
        return cls.from_json((folder / FILE).read_text(encoding="utf-8"))

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
    known = {field.name for field in fields(kind)}
    return kind(**{key: value for key, value in found.items() if key in known})


def _read_session(found: Mapping[str, Any]) -> SessionEntry:
    costs = tuple(_read(CostEntry, entry) for entry in found.get("costs", ()))
    texts = {key: tuple(found.get(key, ())) for key in ("failures", "sinks")}
    session: SessionEntry = _read(SessionEntry, {**found, "costs": costs, **texts})
    return session
