"""Processes come together to a run: they join, and make sure that all of them are about to do the same."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from hookline.distributed import Group, Place, this_process
from hookline.distributed.choose import as_strategy
from hookline.distributed.env import alone_under_slurm
from hookline.distributed.last_words import leave_last_words
from hookline.errors import SetupError, words_of
from hookline.loop.ranks import Ranks

if TYPE_CHECKING:
    from hookline.loop.session import Session

logger = logging.getLogger("hookline")

BEFORE_VOTE = ("train_step_start", "train_batch_start", "forward_start", "forward_end", "loss_ready", "backward_start")
"""Events of a step at which its vote is still to come."""


def find_place() -> Place:
    """This process among all. Where Slurm has started several that do not know of one another, that is said."""
    here = this_process()
    if here.world_size == 1 and (alone := alone_under_slurm()):
        logger.warning("%s", alone)
    return here


def join(place: Place, session: Session) -> Ranks:
    """By all, when a run is opened."""
    state, settings = session.state, session.settings
    strategy = as_strategy(settings.strategy, session.module)
    if strategy.is_sharded and settings.precision == "fp16":
        raise SetupError(
            "precision='fp16' scales the loss, and the scaler does not see what other ranks of a sharded model have: "
            "use precision='bf16', or hl.FSDP(param_dtype=torch.bfloat16)"
        )
    group = Group(place, state.device, strategy.timeout)
    ranks = Ranks(group, strategy, state.requests, state.clock)
    ranks.can_be_left = session.task is None
    ranks.may_be_skipped = any(
        member.hears(session.line.known[event])
        for member in session.line.members
        if not member.optional and not member.is_task
        for event in BEFORE_VOTE
    )
    ranks.watchdog.start()
    facts = {
        "the entry point": state.entry_point,
        "the list of callbacks": [member.key for member in session.line.members],
        "max_duration": str(state.max_duration),
        "accumulate": settings.accumulate,
        "eval_every": str(settings.eval_every),
        "log_every": str(settings.log_every),
        "precision": settings.precision,
        "strategy": type(strategy).__name__,
    }
    try:
        check_same(group, facts)
    except BaseException as error:
        leave_last_words(f"rank {group.rank}: {words_of(error)}")
        ranks.close()
        raise
    return ranks


def check_same(group: Group, facts: Mapping[str, Any]) -> None:
    """By all: what must be the same on all ranks, or they would wait for one another in different places."""
    said = group.exchange(dict(facts))
    for key, value in said[0].items():
        for rank, its in enumerate(said):
            if its.get(key) != value:
                raise SetupError(
                    f"{key} is {value!r} on rank 0 and {its.get(key)!r} on rank {rank}{_apart(value, its.get(key))}; "
                    f"give all the same"
                )


def _apart(zeros: Any, its: Any) -> str:
    """What one of two lists has and the other has not."""
    if not isinstance(zeros, list) or not isinstance(its, list):
        return ""
    odd = [*(Counter(zeros) - Counter(its)), *(Counter(its) - Counter(zeros))]
    return f" ({', '.join(odd)} only on one)" if odd else " (in another order)"


def roots_of(module: nn.Module, model: nn.Module) -> list[nn.Module]:
    """The modules whose ``forward`` is called: the model; of a task that is a model itself, its parts."""
    if module is not model:
        found = [model, *(root for part in module.children() if part is not model for root in _with_forward(part))]
    else:
        found = _members(model) if hasattr(module, "train_batch") else _with_forward(model)
    inside = {part for root in found for part in root.modules() if part is not root}
    return [root for root in dict.fromkeys(found) if root not in inside]


def _with_forward(part: nn.Module) -> list[nn.Module]:
    """The part itself; of one that has no ``forward``, such as a ``ModuleDict`` of models, its members."""
    if getattr(part.forward, "__func__", part.forward) is nn.Module.forward:
        return _members(part)
    return [part] if any(True for _ in part.parameters()) else []


def _members(part: nn.Module) -> list[nn.Module]:
    return [root for inner in part.children() for root in _with_forward(inner)]
