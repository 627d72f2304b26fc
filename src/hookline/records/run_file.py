"""``RunFile``: the description of a run in ``run.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
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
"""JSON types by type of field. Tuples are not here: lists are converted to tuples first."""

Status = Literal["running", "finished", "stopped", "interrupted", "preempted", "failed", "killed"]
"""A session that was killed is ``running`` until the next session marks it as ``killed``."""


@dataclass(frozen=True, slots=True)
class CallbackEntry:
    """A callback of the run. The entries are in the order in which the callbacks run."""

    name: str
    arguments: str
    """The call that makes the callback, with its plain arguments: ``EarlyStopping(patience=3)``."""
    optional: bool


@dataclass(frozen=True, slots=True)
class CostEntry:
    """The cost of one hook of one callback in one session."""

    callback: str
    hook: str
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MonitorEntry:
    """The metric that chooses the best checkpoint in one folder."""

    folder: str
    """Path relative to the run's folder."""
    metric: str
    mode: Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One ``fit``: the first one, or one that resumes."""

    started: str
    """Time in ISO 8601 format, with the time zone."""
    first_step: int = 0
    """The step from which the session resumed."""
    status: Status = "running"
    ended: str | None = None
    last_step: int = 0
    last_epoch: int = 0
    seconds: float = 0.0
    """Seconds of training in all sessions so far."""
    reason: str = ""
    """Why the session ended."""
    stopped_by: str | None = None
    costs: tuple[CostEntry, ...] = ()
    failures: tuple[str, ...] = ()
    """Failures of optional callbacks."""
    sinks: tuple[str, ...] = ()
    """A description of the result of each sink."""
    not_finite: tuple[str, ...] = ()
    """A description of each loss whose newest value is NaN or infinite."""


@dataclass(frozen=True, slots=True)
class ControlEntry:
    """A request of ``hookline stop``, ``save``, ``eval`` or ``set``, and what came of it."""

    id: str
    command: str
    step: int
    """The step at whose end the run took the request. A new setting counts from the next step on."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The new values by full name, such as ``EarlyStopping.patience``."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """The values that the settings had before."""
    by: str = ""
    """Name of the user."""
    asked: str = ""
    """Time in ISO 8601 format, with the time zone."""
    refused: str = ""
    """Why the run did not do it. Empty if it did."""
    undone: bool = False
    """True if it does not count after this session: a rollback has undone its step, or a later request replaces it.

    After a rollback, the request has a second entry, at the step to which the run went back.
    """
    generation: int = 0
    """For a second entry: the generation of the checkpoints that were saved after its rollback. 0 for others."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """The description of a run: plain values without secrets.

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
    """The hyperparameters."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The options of the trainer: ``max_duration``, ``log_every``, ``precision`` …"""
    arguments: tuple[str, ...] = ()
    """The command line."""
    callbacks: tuple[CallbackEntry, ...] = ()
    monitors: tuple[MonitorEntry, ...] = ()
    """One entry per folder with a best checkpoint. Files of earlier versions have none."""
    monitored: tuple[str, ...] = ()
    """The metrics that callbacks monitor."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """``class`` of the model, and its number of ``parameters`` and of ``trainable`` parameters."""
    versions: Mapping[str, str] = field(default_factory=dict)
    platform: Mapping[str, Any] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None
    """``commit``, ``branch`` and ``dirty`` (uncommitted changes); ``None`` outside a repository."""
    sessions: tuple[SessionEntry, ...] = ()
    control: tuple[ControlEntry, ...] = ()
    """The requests of other processes, in the order in which the run took them."""
    live: Mapping[str, Any] = field(default_factory=dict)
    """The settings that ``hookline set`` can change, with their values when the file was written."""

    @property
    def status(self) -> Status:
        return self.sessions[-1].status if self.sessions else "running"

    def with_session(self, session: SessionEntry, *, again: bool = False) -> Self:
        """Return the run with one more session; with ``again``, replace the newest session."""
        return replace(self, sessions=(*(self.sessions[:-1] if again else self.sessions), session))

    # -- the file ------------------------------------------------------------------------------

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a run from JSON. Unknown fields are ignored.

        Raises:
            ValueError: If the text does not describe a run.
        """
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or found.get("format") != FORMAT:
                raise ValueError(f"not a run of format {FORMAT}")
            found["arguments"] = tuple(found.get("arguments", ()))
            found["callbacks"] = tuple(_read(CallbackEntry, entry) for entry in found.get("callbacks", ()))
            found["monitors"] = tuple(_read(MonitorEntry, entry) for entry in found.get("monitors", ()))
            found["monitored"] = tuple(map(str, found.get("monitored", ())))
            found["sessions"] = tuple(_read_session(entry) for entry in found.get("sessions", ()))
            found["control"] = tuple(_read(ControlEntry, entry) for entry in found.get("control", ()))
            run: Self = _read(cls, found)
            return run
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a run: {error}") from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read ``run.json`` from a run's folder.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If the file does not describe a run.
        """
        with open_regular(folder / FILE) as file:
            return cls.from_json(file.read().decode("utf-8"))

    def write(self, folder: Path) -> None:
        """Write ``run.json`` atomically: a reader sees the old file or the new file."""
        fresh = folder / f".{FILE}.{os.getpid()}"
        try:
            # A command line may have lone surrogates, which UTF-8 cannot encode. They become escapes of JSON.
            fresh.write_bytes(self.to_json().encode(errors="backslashreplace"))
            fresh.replace(folder / FILE)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise


def _read(kind: Any, found: Mapping[str, Any]) -> Any:
    """Return an entry of the file. Unknown fields are ignored.

    Raises:
        ValueError: If a field has the wrong type.
    """
    known = _types_of(kind)
    given = {key: value for key, value in found.items() if key in known}
    for key, value in given.items():
        types, type_name = known[key]
        if not isinstance(value, types) or (value.__class__ is bool and bool not in types):
            raise ValueError(f"its {key} is {value!r:.40} and not of the type {type_name}")
    return kind(**given)


@cache
def _types_of(kind: Any) -> Mapping[str, tuple[tuple[type, ...], str]]:
    """Return the JSON types of each field, and the name of its type. A list of runs reads thousands of entries."""
    names = {field.name: str(field.type) for field in fields(kind)}
    return {key: ((tuple,) if name.startswith("tuple") else _TYPES[name], name) for key, name in names.items()}


def _read_session(found: Mapping[str, Any]) -> SessionEntry:
    costs = tuple(_read(CostEntry, entry) for entry in found.get("costs", ()))
    texts = {key: tuple(found.get(key, ())) for key in ("failures", "sinks", "not_finite")}
    session: SessionEntry = _read(SessionEntry, {**found, "costs": costs, **texts})
    return session
