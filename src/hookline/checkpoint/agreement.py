"""Checkpoint work that all ranks share: if one rank fails, all ranks raise the same error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookline import errors
from hookline.distributed.solo import AnyGroup
from hookline.errors import CheckpointCorruptError, CheckpointError, CheckpointWriteError, StateError


def agreed(group: AnyGroup, act: Callable[[], Any]) -> list[Any]:
    """Call ``act`` on every rank and return the results of all ranks, by rank.

    If ``act`` fails on one rank, all ranks raise its error, so that no rank waits for a rank that has stopped. This
    covers errors of checkpoints, state and setup. Other errors are raised on their rank only and end the run.

    Args:
        group: The ranks. All of them have to call this function.
        act: Function to call on each rank. It returns plain values that ranks can exchange.

    Returns:
        The result of each rank, by rank.
    """
    value, error = None, None
    try:
        value = act()
    except (CheckpointError, StateError, errors.SetupError) as raised:
        error = raised
    said = group.exchange({"value": value, "error": None if error is None else _told(error)})
    for rank, its in enumerate(said):
        if its["error"] is not None:
            if rank == group.rank and error is not None:
                raise error
            other = _revived(its["error"])
            other.add_note(f"on rank {rank}")
            raise other from error
    return [its["value"] for its in said]


def by_zero(group: AnyGroup, act: Callable[[], Any]) -> Any:
    """Call ``act`` on rank zero and return its result, or raise its error, on every rank."""
    return agreed(group, act if group.rank == 0 else lambda: None)[0]


def _told(error: Exception) -> dict[str, Any]:
    """Return an error as plain values, from which another rank can build the same error."""
    notes = list(getattr(error, "__notes__", ()))
    if isinstance(error, CheckpointWriteError):
        cause = error.__reduce__()[1][1]
        said = {"path": error.path, "errno": error.errno, "text": getattr(cause, "strerror", None) or str(cause)}
        return {"kind": "write", "needed": error.needed, "free": error.free, "notes": notes, **said}
    if isinstance(error, CheckpointCorruptError):
        path, reason, hint = error.__reduce__()[1]
        return {"kind": "corrupt", "path": path, "reason": reason, "hint": hint, "notes": notes}
    return {"kind": type(error).__name__, "text": str(error), "notes": notes}


def _revived(said: dict[str, Any]) -> Exception:
    if said["kind"] == "write":
        cause = OSError(said["errno"], said["text"])
        found: Exception = CheckpointWriteError(said["path"], cause, needed=said["needed"], free=said["free"])
    elif said["kind"] == "corrupt":
        found = CheckpointCorruptError(said["path"], said["reason"], said["hint"])
    else:
        kind = getattr(errors, said["kind"], CheckpointError)
        found = kind(said["text"])
    for note in said["notes"]:
        found.add_note(note)
    return found
