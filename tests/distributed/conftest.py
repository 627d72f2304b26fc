"""``ranks``: real processes that run one function each, forked from one warm process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
LIMIT = 200.0
"""Seconds that nothing here takes, however busy the machine is; less than the time-outs of the runs."""


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

    def wait_for(self, path: str | Path, limit: float = LIMIT) -> None:
        """Until a file is there."""
        end = time.monotonic() + limit
        while not (self.folder / path).exists():
            if time.monotonic() > end:
                self.kill()
                raise AssertionError(f"{path} did not come in {limit} s\n{self._outputs()}")
            time.sleep(0.005)

    def finish(self, limit: float = LIMIT) -> list[Told]:
        """How each has ended, by rank. One that does not end in time is killed, and the test fails."""
        end, codes = time.monotonic() + limit, []
        for pid in self.pids:
            code = self._server.ask({"wait": pid, "limit": max(0.0, end - time.monotonic())})["code"]
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
    """Forks ranks on demand. ``run`` waits for them, ``start`` does not."""

    def __init__(self, base: Path) -> None:
        self._base, self._number = base, 0
        self.as_if_many = False
        """Votes go the way that they go with many ranks."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "rank_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._read()

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def start(self, case: str, size: int, *, env: dict[str, str] | None = None, **args: Any) -> Started:
        """``case`` is ``"cases_of_data.py:function"``, beside the tests; ``args`` are plain values."""
        self._number += 1
        folder = self._base / f"run-{self._number}"
        folder.mkdir()
        asked = {"run": str(HERE / case), "args": args, "size": size, "folder": str(folder), "env": env or {}}
        asked["as_if_many"] = self.as_if_many
        return Started(self, self.ask(asked)["pids"], folder)

    def run(
        self, case: str, size: int, *, env: dict[str, str] | None = None, limit: float = LIMIT, **args: Any
    ) -> list[Told]:
        """Start them and wait."""
        return self.start(case, size, env=env, **args).finish(limit)

    def values(self, case: str, size: int, *, limit: float = LIMIT, **args: Any) -> list[Any]:
        """What each rank returned; all must have ended well."""
        told = self.run(case, size, limit=limit, **args)
        bad = [f"--- rank {t.rank}: code {t.code}\n{t.output}" for t in told if t.code]
        assert not bad, "\n".join(bad)
        return [t.value for t in told]

    def close(self) -> None:
        self._process.kill()  # a process that was forked beside it may hold its pipe, which would not be at its end
        with self._process:  # closes the pipes and waits
            pass


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    server = RankServer(tmp_path_factory.mktemp("ranks"))
    yield server
    server.close()


@pytest.fixture(params=["few", "many"])
def either_ranks(ranks: RankServer, request: pytest.FixtureRequest) -> Iterator[RankServer]:
    """Once with votes that go directly from rank to rank, once with those of many ranks, which gloo adds up."""
    ranks.as_if_many = request.param == "many"
    yield ranks
    ranks.as_if_many = False
