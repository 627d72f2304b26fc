"""What each rank has of its own in the state of a run: gathered for a checkpoint, and given back to its rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from hookline.checkpoint.agreement import agreed
from hookline.checkpoint.packing import pack, unpack
from hookline.events.line import keeper_of
from hookline.loop.data.random_states import random_states
from hookline.loop.data.seeding import Apart, mix
from hookline.loop.metrics.object_states import metrics_in

if TYPE_CHECKING:
    from hookline.events import Member
    from hookline.loop.engine.engine import Engine
    from hookline.loop.world.world import World
    from hookline.run import Run

logger = logging.getLogger("hookline")


def gathered(loop: Engine, world: World, capture: Callable[[Engine], dict[str, Any]]) -> dict[str, Any]:
    """By all: the state with what each rank has of its own, by rank. Only rank zero's is used, and so only it is whole.

    All else is the same on every rank, or rank zero's: counters and schedulers. The state of a callback is that of the
    first rank that runs it. What one rank cannot save is an error on all of them.
    """
    state: dict[str, Any] = {}
    packed: list[bytes] = []
    elsewhere = {member.key: keeper_of(member.callback, world.group.size) for member in loop.line.members}
    elsewhere = {key: rank for key, rank in elsewhere.items() if rank}

    def prepare() -> None:
        state.update(capture(loop))
        kept = {key: state["callbacks"].get(key) for key, rank in elsewhere.items() if rank == world.group.rank}
        packed.append(pack({**_own(loop, state), "kept": kept}))

    agreed(world.group, prepare)
    told = world.group.gather(packed[0])
    parts = [unpack(part) for part in told] if world.group.rank == 0 else []
    kept = {key: its for part in parts for key, its in part.pop("kept").items()}
    callbacks = {key: its for key, its in (state["callbacks"] | kept).items() if its is not None}
    return {**state, "callbacks": callbacks, "ranks": parts}


def _own(loop: Engine, state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "random": state["random"],
        "feed": state["data"]["feed"],
        "metrics": state["metrics"],
        "measured": state["model"]["metrics"],
        "callbacks": {
            member.key: state["callbacks"][member.key]
            for member in loop.line.members
            if member.key in state["callbacks"] and _is_own(member)
        },
    }


def of_this_rank(loop: Engine, saved: Mapping[str, Any], step: int) -> dict[str, Any]:
    """The state that this rank goes on with; in another number of processes, what there is for it."""
    rank, size = loop.state.rank, loop.state.world_size
    parts = saved.get("ranks") or [_of_one(saved)]
    changed = len(parts) != size
    if changed and not rank:
        logger.warning(
            "saved by %s, gone on with by %s: weights, optimizers and the place in the data are as they were; random "
            "numbers, such as those of dropout, are not",
            _processes(len(parts)),
            _processes(size),
        )
    found = dict(saved)
    if rank < len(parts):
        own = parts[rank]
        found["random"], found["metrics"] = own["random"], _joined([its["metrics"] for its in parts[rank::size]])
        found["model"] = {**saved["model"], "metrics": own["measured"]}
        found["callbacks"] = {**saved["callbacks"], **own["callbacks"]}
    else:
        found["random"] = _fresh(mix(saved["data"]["seed"], rank, step))
        found["metrics"] = {**saved["metrics"], "objects": {}, "pending": {}, "dated": []}
        found["model"] = {**saved["model"], "metrics": {}}
    if not changed:  # else the place in the data, which is the same for all, has to do
        found["data"] = {**saved["data"], "feed": parts[rank]["feed"]}
    return found


def _of_one(saved: Mapping[str, Any]) -> dict[str, Any]:
    """One process has written it."""
    return {
        "random": saved["random"],
        "feed": saved["data"]["feed"],
        "metrics": saved["metrics"],
        "measured": saved["model"].get("metrics", {}),
        "callbacks": {},
    }


def _joined(states: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What several ranks have logged since the last row, as if one had; all else of it is the same on all of them."""
    pending: dict[str, Any] = {}
    if any(its["objects"] or its["dated"] for its in states[1:]):
        logger.warning(
            "fewer processes go on than have saved: what metric objects of the others have measured since their last "
            "row is left out"
        )
    for state in states:
        for name, its in state["pending"].items():
            pending[name] = _added(pending[name], its) if name in pending else its
    return {**states[0], "pending": pending}


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    totals = [its["total"] for its in (one, other) if its["total"] is not None]
    if len(totals) == 2:
        first, second = totals
        choose: Any = {"max": max, "min": min, "last": lambda _, later: later}.get(one["reduce"], lambda a, b: a + b)
        totals = [choose(first, second)]
    return {
        **one,
        "values": [*one["values"], *other["values"]],
        "weights": [*one["weights"], *other["weights"]],
        "total": totals[0] if totals else None,
        "weight": one["weight"] + other["weight"],
    }


def _is_own(member: Member[Run]) -> bool:
    """Whether a callback has another state on each rank: it says so, or holds what measures this rank's data."""
    callback = member.callback
    if member.is_task or getattr(callback, "per_rank_state", False):
        return not member.is_task
    return any(True for value in vars(callback).values() if isinstance(value, nn.Module) for _ in metrics_in(value))


def _fresh(seed: int) -> dict[str, Any]:
    """Random states for a rank that was not there before."""
    found: dict[str, Any] = Apart().at(seed).run(random_states)
    return found


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"
