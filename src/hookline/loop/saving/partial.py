"""Leave out the parts of a checkpoint that ``hl.Resume(skip=…)`` names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from hookline.distributed.random_states import random_states
from hookline.run import RunState

OF_CALLBACKS: Final = "callbacks (with their schedulers, frozen parameters and modules in eval mode)"


def skipped_text(skip: Collection[str]) -> str:
    """Return what a resume skips, for its line in the log. Empty if it skips nothing.

    Args:
        skip: The parts to leave out, as in ``hl.Resume``.

    >>> skipped_text(("optimizer", "data"))
    'skipped: optimizer, data'
    """
    shown = (OF_CALLBACKS if part == "callbacks" else part for part in skip)
    return f"skipped: {', '.join(shown)}" if skip else ""


def without(saved: Mapping[str, Any], skip: Collection[str], state: RunState) -> dict[str, Any]:
    """Return the state of a checkpoint without some parts. The run keeps its own state for them.

    Args:
        saved: The state of a checkpoint, for this rank.
        skip: The parts to leave out, as in ``hl.Resume``.
        state: The state of the run.
    """
    found = dict(saved)
    if "callbacks" in skip:
        owners = found.get("scheduler_owners", [None] * len(found["schedulers"]))
        pairs = zip(found["schedulers"], owners, strict=True)
        # The callbacks of this run make their own schedulers, and decide which parameters are frozen.
        found |= {
            "callbacks": {},
            "schedulers": [its for its, owner in pairs if owner is None],
            "scheduler_owners": [None] * owners.count(None),
            "model": {**found["model"], "frozen": None, "evaluating": None},
        }
    if "optimizer" in skip:
        updates = found["clock"]["updates"]
        counts = {name: updates.get(name, 0) for name in state.optimizers}
        found |= {"optimizers": {}, "scaler": None, "clock": {**found["clock"], "updates": counts}}
    if "schedulers" in skip:
        found |= {"schedulers": [], "scheduler_owners": []}
    if "data" in skip:
        found["data"] = {**found["data"], "feed": {}, "taken": 0, "facts": {}}
    if "random" in skip:
        found["random"] = random_states()
    return found
