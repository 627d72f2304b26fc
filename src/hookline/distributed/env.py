"""Which process this is, of how many."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed

from hookline.errors import SetupError


@dataclass(frozen=True, slots=True)
class Place:
    """This process among all."""

    rank: int = 0
    local_rank: int = 0
    """Among those of its machine."""
    world_size: int = 1


def this_process(environment: Mapping[str, str] | None = None) -> Place:
    """From the process group that is there; else from what torchrun has set; else it is the only one.

    >>> this_process({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"})
    Place(rank=3, local_rank=1, world_size=4)
    >>> this_process({})
    Place(rank=0, local_rank=0, world_size=1)
    """
    found = os.environ if environment is None else environment
    if environment is None and torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    else:
        size = _number(found, "WORLD_SIZE", 1)
        rank = _number(found, "RANK", 0) if size > 1 else 0
    if not 0 <= rank < size:
        raise SetupError(f"RANK={rank} with WORLD_SIZE={size}: a rank is a number from 0 to {size - 1}")
    on_machine = _number(found, "LOCAL_RANK", _number(found, "SLURM_LOCALID", rank))
    return Place(rank, on_machine if size > 1 else 0, size)


def _number(found: Mapping[str, str], name: str, default: int) -> int:
    text = found.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise SetupError(f"{name}={text!r} in the environment: torchrun sets a whole number there") from None
