"""Processes that run one function each, forked from one process that has imported torch and Hookline already.

``RankServer`` is what tests use. It starts this file as a script, to which it writes one request per line:

- ``{"run": "/path/cases.py:function", "args": {...}, "size": 2, "folder": "...", "env": {...}, "as_if_many": false}``
  forks ``size`` processes, each of which calls the function, and answers ``{"pids": [...]}``.
- ``{"end": true}`` kills the processes that still run, and answers.
- ``{"wait": pid, "limit": seconds}`` answers ``{"code": ...}`` as ``subprocess`` does, or ``{"code": null}`` if the
  process still runs.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

LIMIT_S = 200.0
"""A hang guard, far above what a busy machine needs and below the time-outs of the runs."""
POLL_S = 0.002


# -- in the test -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """How one rank has ended."""

    rank: int
    code: int
    value: Any
    """What its function returned."""
    error: str
    """The name of the class of what it raised, else empty."""
    text: str
    """The error's text and notes."""
    output: str


class Started:
    """The ranks of one run, while they run."""

    def __init__(self, server: RankServer, pids: list[int], folder: Path) -> None:
        self._server, self.pids, self.folder = server, pids, folder

    def send(self, number: int, rank: int | None = None) -> None:
        """A signal to one rank, or to all."""
        for index, pid in enumerate(self.pids):
            if rank in (None, index):
                os.kill(pid, number)

    def wait_for(self, path: str | Path, limit: float = LIMIT_S) -> None:
        """Return when the file exists."""
        end = time.monotonic() + limit
        while not (self.folder / path).exists():
            if time.monotonic() > end:
                self.kill()
                raise AssertionError(f"{path} did not come in {limit} s\n{self._outputs()}")
            time.sleep(POLL_S)

    def finish(self, limit: float = LIMIT_S) -> list[Told]:
        """How each rank has ended. A rank that does not end in time is killed, and the test fails."""
        end, codes = time.monotonic() + limit, []
        for pid in self.pids:
            code = self._server.wait(pid, max(0.0, end - time.monotonic()))
            if code is None:
                self.kill()
                raise AssertionError(f"rank {len(codes)} did not end in {limit} s\n{self._outputs()}")
            codes.append(code)
        return [self._told(rank, code) for rank, code in enumerate(codes)]

    def kill(self) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _told(self, rank: int, code: int) -> Told:
        path = self.folder / f"result-{rank}.json"
        said = json.loads(path.read_text()) if path.exists() else {}
        text = "\n".join([said.get("text", ""), *said.get("notes", [])])
        output = (self.folder / f"output-{rank}.txt").read_text(errors="replace")
        return Told(rank, code, said.get("value"), said.get("error", ""), text, output)

    def _outputs(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')}" for p in sorted(self.folder.glob("output-*")))


class RankServer:
    """Forks ranks on demand. ``run`` waits for them, ``start`` does not.

    Args:
        base: Folder for the results and outputs of the ranks.
        cases: Folder with the files of functions.
        warm_up: A function ``"file.py:function"`` in ``cases`` that the server calls once, before it forks.
    """

    def __init__(self, base: Path, cases: Path, warm_up: str = "") -> None:
        self._base, self._cases, self._number = base, cases, 0
        self.as_if_many = False
        """Votes go the way that they go with many ranks."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, *([str(cases / warm_up)] if warm_up else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default", "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self._read()

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server has ended; its error is above"
        found: dict[str, Any] = json.loads(line)
        return found

    def wait(self, pid: int, limit: float) -> int | None:
        """The exit code of a process, or ``None`` if it still runs after ``limit`` seconds."""
        code: int | None = self._ask({"wait": pid, "limit": limit})["code"]
        return code

    def start(
        self, case: str, size: int, *, env: dict[str, str] | None = None, output: Path | None = None, **args: Any
    ) -> Started:
        """Start the ranks.

        Args:
            case: The function, such as ``"cases_of_data.py:train"``.
            size: Number of ranks.
            env: Environment variables of the ranks.
            output: Folder for their results and outputs. By default, a new one.
            args: Arguments of the function: plain values.
        """
        self._number += 1
        folder = output or self._base / f"run-{self._number}"
        folder.mkdir(parents=True, exist_ok=output is not None)
        asked = {"run": str(self._cases / case), "args": args, "size": size, "folder": str(folder), "env": env or {}}
        asked["as_if_many"] = self.as_if_many
        return Started(self, self._ask(asked)["pids"], folder)

    def run(
        self, case: str, size: int, *, env: dict[str, str] | None = None, limit: float = LIMIT_S, **args: Any
    ) -> list[Told]:
        """Start them and wait."""
        return self.start(case, size, env=env, **args).finish(limit)

    def values(self, case: str, size: int, *, limit: float = LIMIT_S, **args: Any) -> list[Any]:
        """What each rank returned; all must have ended well."""
        told = self.run(case, size, limit=limit, **args)
        bad = [f"--- rank {t.rank}: code {t.code}\n{t.output}" for t in told if t.code]
        assert not bad, "\n".join(bad)
        return [t.value for t in told]

    def close(self) -> None:
        """End the server, and the ranks that a failed test has left."""
        self._ask({"end": True})
        self._process.kill()  # a process that it has forked may hold its pipe, which would not end
        with self._process:  # closes the pipes and waits
            pass


# -- in the server ---------------------------------------------------------------------------------


def import_all() -> None:
    """Import in the server what each rank would import again. No thread and no process group is left."""
    import encodings.idna  # noqa: F401

    import torch
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torchmetrics  # noqa: F401
    from torch.nn.parallel import DistributedDataParallel  # noqa: F401

    import hookline as hl
    from tests.support import fit
    from tests.support.inside import import_strategies

    for name in hl.__all__:  # Hookline imports its callbacks at their first use
        getattr(hl, name)
    import_strategies()
    torch.set_num_threads(1)
    fit(max_duration="1st", optimizer=torch.optim.AdamW, seed=None)


def wait(pid: int, limit: float) -> int | None:
    end = time.monotonic() + limit
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(POLL_S)


def answer(answered: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answered) + "\n")
    sys.stdout.flush()


def serve() -> tuple[dict[str, Any], int] | None:
    """In the parent: serve until the pipe is closed. In a child: its request, and its rank."""
    running: set[int] = set()
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if "end" in asked:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            answer({})
            continue
        if "wait" in asked:
            code = wait(asked["wait"], asked["limit"])
            if code is not None:
                running.discard(asked["wait"])
            answer({"code": code})
            continue
        asked["port"] = free_port()
        pids = []
        for rank in range(asked["size"]):
            pid = os.fork()
            if not pid:
                begin(asked, rank)
                return asked, rank
            pids.append(pid)
        running.update(pids)
        answer({"pids": pids})
    return None


def free_port() -> int:
    """Below those that the system gives out: one of these could be another connection's before rank zero listens."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)  # not what a seed has all servers draw
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def begin(asked: dict[str, Any], rank: int) -> None:
    """Set up a separate session and output, the signals as a shell gives them, and the variables of torchrun."""
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


def call(function: str, args: dict[str, Any]) -> Any:
    """Call ``"/path/file.py:function"``."""
    path, _, name = function.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(path).parent))  # for what files of cases import from one another
    spec.loader.exec_module(module)
    return getattr(module, name)(**args)


def end_as_python_does(asked: dict[str, Any], rank: int) -> None:
    """Run it and exit as an interpreter does, but without taking torch apart, which takes two seconds."""
    code, path = 0, Path(asked["folder"]) / f"result-{rank}.json"
    part = path.with_suffix(f".part{os.getpid()}")  # complete or absent: a test may end this process when it sees it
    try:
        told: dict[str, Any] = {"value": call(asked["run"], asked["args"])}
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        told = {"error": type(left).__name__, "text": str(left)}
    except BaseException as error:
        traceback.print_exc()
        told = {"error": type(error).__name__, "text": str(error), "notes": getattr(error, "__notes__", [])}
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    part.write_text(json.dumps(told))
    part.replace(path)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are left
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # cases import tests.support, and not the files in this folder
    import_all()
    for function in sys.argv[1:]:
        call(function, {})
    gc.freeze()  # ranks do not look through it again, and their memory stays shared with the server
    answer({"ready": os.getpid()})
    found = serve()
    if found is not None:
        end_as_python_does(*found)
