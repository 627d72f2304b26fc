"""What ranks do in ``test_basics.py``."""

from __future__ import annotations

import os

import torch

from hookline.distributed import Group, this_process


def talk() -> dict[str, object]:
    """Everything that a group can do, once."""
    from datetime import timedelta

    place = this_process()
    group = Group(place, torch.device("cpu"), timedelta(seconds=30))
    long = group.gather(bytes([place.rank]) * (3000 + place.rank))
    tensors = [torch.full((3,), float(place.rank)), torch.tensor(place.rank)]
    group.broadcast(tensors)
    found = {
        "exchanged": group.exchange({"rank": place.rank}),
        "from_zero": group.from_zero(f"rank {place.rank}"),
        "total": group.total(torch.tensor([1.0, place.rank], dtype=torch.float64)).tolist(),
        "largest": group.largest(torch.tensor([float(place.rank)])).tolist(),
        "long": [(part[:1][0], len(part)) for part in long],
        "broadcast": [tensors[0].tolist(), int(tensors[1])],
        "pid": os.getpid(),
    }
    group.close()
    return found
