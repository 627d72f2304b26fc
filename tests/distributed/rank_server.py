"""Imports torch and Hookline once, then forks the ranks of a run. Read by a test over a pipe, a line at a time.

``{"run": "/path/cases.py:function", "args": {...}, "size": 2, "folder": "…", "env": {…},
"as_if_many": false}`` forks that many processes,
each of which calls the function, and answers ``{"pids": […]}``; ``{"wait": pid, "limit": seconds}`` answers
``{"code": …}`` as ``subprocess`` does, or ``{"code": null}`` if it runs still.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

POLL = 0.005


def warm_up() -> None:
    """What takes long the first time: torch, its optimizers, FSDP and checkpoints. No thread and no group is left."""
    import torch
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torchmetrics  # noqa: F401
    from torch.nn.parallel import DistributedDataParallel  # noqa: F401

    import hookline as hl
    from hookline.testing import TinyModel, tiny_data

    torch.set_num_threads(1)
    trainer = hl.loop.Trainer(max_duration="1st", folder=False)
    trainer.fit(TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.AdamW)


def wait(pid: int, limit: float) -> int | None:
    end = time.monotonic() + limit
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(POLL)


def answer(answered: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answered) + "\n")
    sys.stdout.flush()


def serve() -> tuple[dict[str, Any], int] | None:
    """In the parent: serve until the pipe is closed. In a child: what it has to do, and its rank."""
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if "wait" in asked:
            answer({"code": wait(asked["wait"], asked["limit"])})
            continue
        asked["port"] = free_port()
        pids = []
        for rank in range(asked["size"]):
            pid = os.fork()
            if not pid:
                begin(asked, rank)
                return asked, rank
            pids.append(pid)
        answer({"pids": pids})
    return None


def free_port() -> int:
    """Below those that the system gives out: one of these could be another connection's before rank zero listens."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def begin(asked: dict[str, Any], rank: int) -> None:
    """A session of its own, its own output, the signals as a shell gives them, and what torchrun sets."""
    os.setsid()
    output = os.open(Path(asked["folder"]) / f"output-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if asked["size"] > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": asked["size"], "LOCAL_WORLD_SIZE": asked["size"]}
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(asked["port"]))
    os.environ.update(asked["env"])
    if asked["as_if_many"]:
        from hookline.distributed import group, links

        group.connect = partial(links.connect, few=0)


def call(asked: dict[str, Any], rank: int) -> Any:
    path, _, name = asked["run"].rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)(**asked["args"])


def end_as_python_does(asked: dict[str, Any], rank: int) -> None:
    """Run it and exit as an interpreter does; what the function returns is written as JSON."""
    code, place = 0, Path(asked["folder"]) / f"result-{rank}.json"
    told = place.with_suffix(".part")  # whole or not there: a test may end this process once it sees the result
    try:
        value = call(asked, rank)
        told.write_text(json.dumps({"value": value}))
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
        told.write_text(json.dumps({"error": type(left).__name__, "text": str(left)}))
    except BaseException as error:
        traceback.print_exc()
        notes = getattr(error, "__notes__", [])
        told.write_text(json.dumps({"error": type(error).__name__, "text": str(error), "notes": notes}))
        code = 1
    told.replace(place)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are left
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    warm_up()
    answer({"ready": os.getpid()})
    found = serve()
    if found is not None:
        end_as_python_does(*found)
