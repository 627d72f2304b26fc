"""Gather the parts of a run's state that differ between ranks, and return them to each rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from hookline.checkpoint.agreement import agreed
from hookline.checkpoint.packing import pack, unpack
from hookline.distributed.random_states import random_states
from hookline.distributed.solo import AnyGroup
from hookline.events import Member
from hookline.events.line import keeper_of
from hookline.loop.data.seeding import Apart, mix
from hookline.loop.metrics.object_states import metrics_in
from hookline.run import Run

logger = logging.getLogger("hookline")


def gathered(members: Sequence[Member[Run]], group: AnyGroup, capture: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the state of the run, with the part that belongs to each rank.

    All ranks must call it. The state is complete on rank zero. The other parts, such as counters and schedulers, are
    those of rank zero. The state of a callback is that of the first rank that runs it. If one rank cannot save its
    state, all ranks raise an error.

    Args:
        members: The callbacks of the run.
        group: The processes of the run.
        capture: Function that returns the state of this rank.
    """
    state: dict[str, Any] = {}
    packed: list[bytes] = []
    elsewhere = {member.key: keeper_of(member.callback, group.size) for member in members}
    elsewhere = {key: rank for key, rank in elsewhere.items() if rank}

    def prepare() -> None:
        state.update(capture())
        kept = {key: state["callbacks"].get(key) for key, rank in elsewhere.items() if rank == group.rank}
        packed.append(pack({**_own(members, state), "kept": kept}))

    agreed(group, prepare)
    told = group.gather(packed[0])
    parts = [unpack(part) for part in told] if group.rank == 0 else []
    kept = {key: its for part in parts for key, its in part.pop("kept").items()}
    callbacks = {key: its for key, its in (state["callbacks"] | kept).items() if its is not None}
    return {**state, "callbacks": callbacks, "ranks": parts}


def _own(members: Sequence[Member[Run]], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the state that belongs to this rank."""
    return {
        "random": state["random"],
        "feed": state["data"]["feed"],
        "metrics": state["metrics"],
        "measured": state["model"]["metrics"],
        "callbacks": {
            member.key: state["callbacks"][member.key]
            for member in members
            if member.key in state["callbacks"] and _is_own(member)
        },
    }


def of_this_rank(saved: Mapping[str, Any], step: int, *, rank: int, size: int) -> dict[str, Any]:
    """Return the state for this rank, also if another number of processes saved the checkpoint.

    Args:
        saved: The state of a checkpoint.
        step: The step of the checkpoint.
        rank: The rank of this process.
        size: The number of processes.
    """
    parts = saved.get("ranks") or [_of_one(saved)]
    changed = len(parts) != size
    if changed and not rank:
        logger.warning(
            "saved by %s, resumed by %s: weights, optimizers and the position in the data are as they were; random "
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
    if not changed:  # Otherwise each rank continues from the position in the data, which is the same for all.
        found["data"] = {**saved["data"], "feed": parts[rank]["feed"]}
    return found


def _of_one(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the only rank, from a checkpoint of one process."""
    return {
        "random": saved["random"],
        "feed": saved["data"]["feed"],
        "metrics": saved["metrics"],
        "measured": saved["model"].get("metrics", {}),
        "callbacks": {},
    }


def _joined(states: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the values that several ranks have logged since the last row.

    The rest is the same on all ranks.
    """
    pending: dict[str, Any] = {}
    if any(its["objects"] or its["dated"] for its in states[1:]):
        logger.warning(
            "fewer processes resume than have saved: what metric objects of the others have measured since their last "
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
    """True if a callback has a separate state on each rank.

    It declares ``per_rank_state``, or it holds a metric of the data of its rank.
    """
    callback = member.callback
    if member.is_task or getattr(callback, "per_rank_state", False):
        return not member.is_task
    return any(True for value in vars(callback).values() if isinstance(value, nn.Module) for _ in metrics_in(value))


def _fresh(seed: int) -> dict[str, Any]:
    """Return random states for a rank that the checkpoint does not have."""
    found: dict[str, Any] = Apart().at(seed).run(random_states)
    return found


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"
