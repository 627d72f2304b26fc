"""What ranks do in ``test_remote_folder.py``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

import hookline as hl
from hookline.checkpoint import Store
from hookline.distributed import this_process
from hookline.distributed.group import Group
from hookline.loop.saving.mirror import bring_run


def bring(address: str, folders: list[str]) -> dict[str, Any]:
    """What the folder of this rank has, after the run at the address was brought there."""
    place = this_process()
    folder = Path(folders[place.rank])
    group = Group(place, torch.device("cpu"), timedelta(seconds=60))
    bring_run(address, folder, hl.Resume("auto"), group)
    group.barrier()
    group.close()
    newest = Store(folder / "checkpoints").newest_valid()
    rows = folder / "metrics.jsonl"
    return {"newest": newest and newest.name, "rows": rows.read_text() if rows.exists() else ""}
