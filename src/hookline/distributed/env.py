"""Which process this is, of how many."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch.distributed


@dataclass(frozen=True, slots=True)
class Place:
    """This process among all."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1


def this_process() -> Place:
    """Read the process group that is there; one process when there is none."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank = torch.distributed.get_rank()
        return Place(rank, int(os.environ.get("LOCAL_RANK", rank)), torch.distributed.get_world_size())
    return Place()
