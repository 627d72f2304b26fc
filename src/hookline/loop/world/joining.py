"""Create the world of a run, and find the modules that a strategy distributes."""

from __future__ import annotations

import logging

from torch import nn

from hookline.distributed import Place, this_process
from hookline.distributed.env import alone_under_slurm
from hookline.loop.world.ranks import Ranks
from hookline.loop.world.world import Alone, World
from hookline.progress import Clock
from hookline.run import Requests

logger = logging.getLogger("hookline")


def find_place() -> Place:
    """Return the rank of this process, and warn if Slurm has started unconnected processes."""
    here = this_process()
    if here.world_size == 1 and (alone := alone_under_slurm()):
        logger.warning("%s", alone)
    return here


def make_world(place: Place, requests: Requests, clock: Clock, *, is_custom_loop: bool) -> World:
    """Return the world of a run.

    Args:
        place: The rank of this process, and the number of processes.
        requests: The requests of the run.
        clock: The clock of the run.
        is_custom_loop: True if the body of the loop is the user's.
    """
    if place.world_size == 1:
        return Alone()
    return Ranks(place, requests, clock, is_custom_loop=is_custom_loop)


def roots_of(module: nn.Module, model: nn.Module) -> list[nn.Module]:
    """Return the modules whose ``forward`` is called: the model, or the parts of a task.

    Args:
        module: The task, or the model of a custom loop.
        model: The model.
    """
    if module is not model:
        found = [model, *(root for part in module.children() if part is not model for root in _with_forward(part))]
    else:
        found = _members(model) if hasattr(module, "train_batch") else _with_forward(model)
    inside = {part for root in found for part in root.modules() if part is not root}
    return [root for root in dict.fromkeys(found) if root not in inside]


def _with_forward(part: nn.Module) -> list[nn.Module]:
    """Return the module, or its members if it has no ``forward``, as ``ModuleDict``."""
    if getattr(part.forward, "__func__", part.forward) is nn.Module.forward:
        return _members(part)
    return [part] if any(True for _ in part.parameters()) else []


def _members(part: nn.Module) -> list[nn.Module]:
    return [root for inner in part.children() for root in _with_forward(inner)]
