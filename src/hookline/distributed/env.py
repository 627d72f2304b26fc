"""The rank of this process, and the number of processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed

from hookline.errors import SetupError


@dataclass(frozen=True, slots=True)
class Place:
    """The ranks of this process, and the number of processes."""

    rank: int = 0
    local_rank: int = 0
    """Rank among the processes of the same machine."""
    world_size: int = 1

    def device_of(self, visible: int) -> int:
        """Return the index of the device of this process.

        Args:
            visible: Number of devices that the process sees: all devices of the machine, or only its own.

        Example:
            >>> Place(local_rank=3).device_of(4), Place(local_rank=3).device_of(1)
            (3, 0)
        """
        return 0 if visible == 1 else self.local_rank


def this_process(environment: Mapping[str, str] | None = None) -> Place:
    """Return the ranks of this process.

    An existing process group decides, or else the variables that torchrun sets. Without both, the process is alone.

    Args:
        environment: Variables to read instead of the process group and ``os.environ``.

    Raises:
        SetupError: If a variable is not an integer, or ``RANK`` is not between 0 and ``WORLD_SIZE - 1``.

    Example:
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


def alone_under_slurm(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a warning if Slurm has started several tasks and ``WORLD_SIZE`` is not set.

    Only the first task gets the warning; the other tasks get ``None``.

    >>> alone_under_slurm({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}).partition(":")[0]
    'Slurm has started 4 tasks (SLURM_STEP_NUM_TASKS), and WORLD_SIZE is not set'
    >>> alone_under_slurm({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0", "WORLD_SIZE": "4"})
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks == "1" or environment.get("SLURM_PROCID") != "0" or environment.get("WORLD_SIZE"):
        return None
    return (
        f"Slurm has started {tasks} tasks (SLURM_STEP_NUM_TASKS), and WORLD_SIZE is not set: each of them trains "
        f"alone. To train together, set RANK=$SLURM_PROCID, LOCAL_RANK=$SLURM_LOCALID and WORLD_SIZE=$SLURM_NTASKS in "
        f"each, and MASTER_ADDR and MASTER_PORT for all; for one process, srun --ntasks 1"
    )


def _number(found: Mapping[str, str], name: str, default: int) -> int:
    text = found.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise SetupError(f"{name}={text!r} in the environment: torchrun sets an integer there") from None
