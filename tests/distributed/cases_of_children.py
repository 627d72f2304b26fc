"""What ranks do in ``test_children.py``."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.distributed import Group, this_process
from hookline.distributed.connections import cut, open_sockets, port_of
from tests.support import fit

RANK = int(os.environ.get("RANK", "0"))
BUSY = 400.0
"""Seconds that a child is busy, unless the test is over before."""


def steps_of_one_epoch(*callbacks: Any, workers: int = 0) -> int:
    loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randint(3, (32,))), 4, num_workers=workers)
    step: int = fit(*callbacks, train=loader, max_duration="1ep", eval_every=None).clock.step
    return step


def waits() -> dict[int, bool]:
    """Whether a read from each socket waits for what comes."""
    found = {}
    for number, which in open_sockets().items():
        with suppress(OSError):  # another thread has closed it meanwhile
            found[which] = os.get_blocking(number)
    return found


def with_default_timeout() -> dict[str, Any]:
    """Sockets of the user's have a time-out; those of torch's are to stay as they are, also when others are cut."""
    socket.setdefaulttimeout(30)
    seen: list[dict[int, bool]] = []

    def look(run: Any) -> None:
        seen.append(waits())  # a store whose reads do not wait fails whenever its answer takes a moment

    step = steps_of_one_epoch(hl.LambdaCallback(on_fit_start=look, on_train_end=look), workers=1)
    group = Group(this_process(), torch.device("cpu"), timedelta(seconds=30))
    seen.append(waits())
    cut(open_sockets(), spare=port_of(group.store))
    seen.append(waits())
    return {"step": step, "same": [same(seen[0], seen[1]), same(seen[2], seen[3])]}


def same(before: dict[int, bool], after: dict[int, bool]) -> bool:
    """Of those that are still there; the store's is."""
    both = before.keys() & after.keys()
    return bool(both) and all(before[which] == after[which] for which in both)


def killed_with_a_child(folder: str) -> None:
    """Rank one has a child of its own, no worker of a loader, which lives on when it is killed."""

    def stay(until: float) -> None:
        while time.monotonic() < until and not Path(folder, "over").exists():
            time.sleep(0.05)

    def kill(run: Any) -> None:
        if run.rank == 1 and run.clock.step == 2:
            multiprocessing.get_context("fork").Process(target=stay, args=(time.monotonic() + BUSY,)).start()
            os.kill(os.getpid(), signal.SIGKILL)

    steps_of_one_epoch(hl.LambdaCallback(on_train_step_end=kill))


def ended_child(inside: bool) -> dict[str, Any]:
    """Each rank forks a child that ends as any Python does, after a fit or inside of one; then all fit again."""
    codes = []

    def fork(run: Any = None) -> None:
        if run is not None and run.clock.step != 2:
            return
        child = os.fork()
        if not child:
            sys.stdout.flush()
            ctypes.pythonapi.Py_Exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    steps = [steps_of_one_epoch(*([hl.LambdaCallback(on_train_step_end=fork)] if inside else []))]
    if not inside:
        fork()
    return {"steps": [*steps, steps_of_one_epoch()], "codes": codes}
