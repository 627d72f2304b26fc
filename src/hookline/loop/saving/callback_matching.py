"""Match saved states with the callbacks of a resumed run, also if their options changed."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hookline.errors import CheckpointMismatchError, HooklineWarning
from hookline.events import Member
from hookline.events.callback import callback_name, identity_of
from hookline.run import Run

logger = logging.getLogger("hookline")

Saved = Mapping[str, Any]
"""The part of a checkpoint that belongs to one callback: its identity and its state."""


def holds_state(saved: Saved) -> bool:
    """True if the saved part of a callback holds more than its identity."""
    return any(saved[part] for part in ("state", "held", "gates"))


def for_this_run(members: Iterable[Member[Run]], state: Mapping[str, Any], *, is_quiet: bool) -> dict[str, Any]:
    """Return the saved state of a run, with the keys that its callbacks have in this run.

    The part of a callback whose ``state_depends_on`` has changed is left out. Hookline logs one line for each callback
    that resumes with other options, or without its state, and warns about saved states that no callback loads.

    Args:
        members: The callbacks of this run.
        state: The state of a checkpoint.
        is_quiet: True on a rank that logs nothing, because another rank logs the same lines.

    Raises:
        CheckpointMismatchError: If several callbacks of this run could continue one saved state.
    """
    callbacks = {member.key: member.callback for member in members if not member.is_task}
    lines: list[str] = []
    here = {key: identity_of(callback) for key, callback in callbacks.items()}
    saved = dict(state["callbacks"])
    renamed: dict[str, str | None] = {}
    structure_changed = False
    pairs = _pairs(here, saved)
    for key, was in pairs.items():
        before, now = saved[was], here[key]
        if "class" not in before:  # An older version has saved it.
            continue
        other_meaning = _differences(before["depends_on"], now["depends_on"], "{name} is {now} (was {before})")
        if other_meaning:
            renamed[was] = None
            structure_changed |= callbacks[key].structural and "weights" in callbacks[key].writes
        else:
            renamed[was] = key
        if other_meaning and holds_state(before):
            lines.append(f"{callback_name(callbacks[key])} starts without its saved state: {other_meaning}")
        elif not callbacks[key].reports_on_resume:
            options = _differences(before["arguments"], now["arguments"], "{name}={now} (was {before})")
            if options:
                lines.append(f"{callback_name(callbacks[key])} resumes with {options}")
    if not is_quiet:
        for line in lines:
            logger.warning("%s", line)
        if new := sorted(here.keys() - pairs.keys()):
            logger.info("callbacks without a saved state, which start from scratch: %s", ", ".join(new))
        if missing := sorted(key for key in saved.keys() - pairs.values() if holds_state(saved[key])):
            text = f"the checkpoint has the state of callbacks that this run lacks: {', '.join(missing)}"
            warnings.warn(text, HooklineWarning, stacklevel=2)
    return _renamed(state, renamed, structure_changed=structure_changed)


def _pairs(here: Mapping[str, Saved], saved: Mapping[str, Saved]) -> dict[str, str]:
    """Return the key in the checkpoint, by the key in this run."""
    pairs = {key: key for key in here if key in saved}
    for kind, is_certain in ((_arguments, False), (_meaning, True), (_class, False)):
        open_here = _grouped(here, kind, (key for key in here if key not in pairs))
        left = [key for key in saved if key not in pairs.values() and "class" in saved[key] and holds_state(saved[key])]
        open_there = _grouped(saved, kind, left)
        for group, keys in open_here.items():
            candidates = open_there.get(group, [])
            if len(keys) > 1 or len(candidates) > 1:  # Then a name that only one side has means another callback.
                keys = [key for key in keys if not here[key]["name"]]
                candidates = [key for key in candidates if not saved[key]["name"]]
            if len(keys) == len(candidates) == 1:
                pairs[keys[0]] = candidates[0]
            elif is_certain and keys and candidates:
                raise CheckpointMismatchError(
                    f"resume: the checkpoint has the state of {', '.join(candidates)}, and this run has "
                    f"{', '.join(keys)}: Hookline cannot decide which one continues. Give the arguments of "
                    f"the checkpoint to the callbacks that continue, and a name (callback.name = 'new') to those that "
                    f"start from scratch."
                )
    return pairs


def _arguments(identity: Saved) -> object:
    return identity["class"], tuple(identity["arguments"].items()), tuple(identity["depends_on"].items())


def _meaning(identity: Saved) -> object:
    return identity["class"], tuple(identity["depends_on"].items())


def _class(identity: Saved) -> object:
    return identity["class"]


def _grouped(
    identities: Mapping[str, Saved], kind: Callable[[Saved], object], keys: Iterable[str]
) -> dict[object, list[str]]:
    found: dict[object, list[str]] = {}
    for key in keys:
        found.setdefault(kind(identities[key]), []).append(key)
    return found


def _differences(before: Mapping[str, str], now: Mapping[str, str], line: str) -> str:
    names = [
        name for name in (*now, *(name for name in before if name not in now)) if before.get(name) != now.get(name)
    ]
    missing = "not given"
    return ", ".join(
        line.format(name=name, now=now.get(name, missing), before=before.get(name, missing)) for name in names
    )


def _renamed(state: Mapping[str, Any], keys: Mapping[str, str | None], *, structure_changed: bool) -> dict[str, Any]:
    """Return the state with other keys for its callbacks.

    Args:
        state: The state of a checkpoint.
        keys: The new key by the old key. ``None`` leaves the part of the callback out.
        structure_changed: True if a callback without its state decides which parameters are frozen.
    """
    moved = {was: key for was, key in keys.items() if was != key}
    if not moved:
        return dict(state)
    callbacks = {moved.get(was, was): its for was, its in state["callbacks"].items() if moved.get(was, was) is not None}
    objects = {}
    for name, its in state["metrics"].get("objects", {}).items():
        owner, path = _split(its["at"], moved)
        if owner is None or moved[owner] is not None:
            objects[name] = its if owner is None else {**its, "at": f"{moved[owner]}/{path}"}
    owners = state.get("scheduler_owners", [None] * len(state["schedulers"]))
    found = {
        **state,
        "callbacks": callbacks,
        "metrics": {**state["metrics"], "objects": objects},
        "schedulers": [
            its
            for its, owner in zip(state["schedulers"], owners, strict=True)
            if owner not in moved or moved[owner] is not None
        ],
    }
    if structure_changed:  # The callbacks of this run have decided which parameters are frozen.
        found["model"] = {**state["model"], "frozen": None, "evaluating": None}
    return found


def _split(path: str | None, owners: Iterable[str]) -> tuple[str | None, str]:
    """Return the owner at the beginning of a path, and the rest of the path."""
    owner = next((key for key in owners if path is not None and path.startswith(f"{key}/")), None)
    return owner, "" if path is None or owner is None else path.removeprefix(f"{owner}/")
