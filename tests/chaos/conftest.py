"""``lab``: runs that are killed and signalled, what they leave behind, and the run that nobody disturbed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hookline.checkpoint import Checkpoint, Store
from hookline.checkpoint.compare import compare
from tests.support import json_lines
from tests.support.rank_server import LIMIT_S, RankServer

POLL_S = 0.001
TIME = ("about/seconds", "about/run", "about/environment", "*/seconds", "state/history/bytes")
"""Time, and what depends on it."""
SENDERS = ("state/callbacks/LambdaCallback()", "state/callbacks/InWindow*", "state/callbacks/StopOnSignal*")
"""Callbacks without a state, which are there to send the signal: the run that nobody disturbs has none."""


class Child:
    """One run in its own process and session."""

    def __init__(self, lab: Lab, pid: int, folder: Path) -> None:
        self.lab, self.pid, self.folder = lab, pid, folder
        self.code: int | None = None

    def send(self, number: int, *, group: bool = False) -> None:
        os.killpg(self.pid, number) if group else os.kill(self.pid, number)

    def ended(self) -> bool:
        if self.code is None:
            self.code = self.lab.server.wait(self.pid, 0)
        return self.code is not None

    def finish(self, limit: float = LIMIT_S) -> int:
        """Its exit code, once it has ended and has left no process behind."""
        if self.code is None:
            self.code = self.lab.server.wait(self.pid, limit)
        if self.code is None:
            self.kill()
            raise AssertionError(f"the run did not end in {limit} s\n{self.output}")
        return self.code

    def kill(self) -> int:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.finish()

    def wait_for(self, what: Callable[[], bool]) -> bool:
        """Until something is there; ``False`` if the run has ended without it."""
        end = time.monotonic() + LIMIT_S
        look = 0
        while not what():
            look += 1
            if look % 50 == 0 and self.ended():
                return what()
            if time.monotonic() > end:
                self.kill()
                raise AssertionError(f"waited {LIMIT_S} s in vain\n{self.output}")
            time.sleep(POLL_S)
        return True

    def left_behind(self) -> list[int]:
        """Processes of its session that live on; those that are about to end have time for it."""
        end = time.monotonic() + LIMIT_S
        while found := alive_in_session(self.pid):
            if time.monotonic() > end:
                return found
            time.sleep(0.05)
        return []

    @property
    def output(self) -> str:
        path = self.folder / "output-0.txt"
        return path.read_text(errors="replace") if path.exists() else ""


class Lab:
    """The server from which runs are forked, and what is asked about them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._known: dict[str, Path] = {}
        self._children: list[Child] = []
        self.server = RankServer(base, Path(__file__).parent, warm_up="training_runs.py:warm_up")

    def close(self) -> None:
        for child in self._children:
            if child.code is None:
                child.kill()
        self.server.close()

    # -- runs ----------------------------------------------------------------------------------

    def start(self, folder: Path, **plan: Any) -> Child:
        """Start a run, or resume it: ``resume="auto"`` always."""
        plan["folder"] = str(folder)
        child = Child(self, self.server.start("training_runs.py:run", 1, output=folder, plan=plan).pids[0], folder)
        self._children.append(child)
        return child

    def run(self, folder: Path, **plan: Any) -> Child:
        """A run until its end, which must be a good one."""
        child = self.start(folder, **plan)
        assert child.finish() == 0, child.output
        assert child.left_behind() == []
        return child

    def undisturbed(self, **plan: Any) -> Path:
        """The folder of the same run without a signal, made once."""
        plan = {key: value for key, value in plan.items() if key not in ("signal", "requeue")}
        key = json.dumps(plan, sort_keys=True)
        if key not in self._known:
            self._known[key] = folder = self.base / f"undisturbed-{len(self._known)}"
            self.run(folder, **plan)
        return self._known[key]

    # -- what is in a folder -------------------------------------------------------------------

    def checkpoints(self, folder: Path) -> list[Checkpoint]:
        """All that are listed, in order; each must be whole by its hashes, and nothing may be refused."""
        store = Store(folder / "checkpoints")
        found = store.checkpoints()
        for checkpoint in found:
            store.verify(checkpoint)
        assert store.rejected() == []
        return found

    def newest(self, folder: Path) -> Checkpoint:
        found = self.checkpoints(folder)
        assert found, "nothing was saved"
        return found[-1]

    def events(self, child: Child) -> list[str]:
        """What this process has noted."""
        path = child.folder / "events.txt"
        rows = [row.split(" ", 1) for row in path.read_text().splitlines()] if path.exists() else []
        return [what for pid, what in rows if pid == str(child.pid)]

    def rows(self, folder: Path) -> list[dict[str, Any]]:
        """``metrics.jsonl`` without the seconds."""
        rows = json_lines(folder / "metrics.jsonl")
        for row in rows:
            assert row.pop("seconds") >= 0
        return rows

    def told(self, folder: Path, name: str) -> dict[str, Any]:
        return json.loads((folder / name).read_text())  # type: ignore[no-any-return]

    def check_same(self, folder: Path, other: Path) -> None:
        """Weights, optimizer, callbacks, random states, clocks, history: bitwise, at the end of both."""
        store = Store(folder)
        one, two = (store.load(self.newest(path)) for path in (folder, other))
        assert one.about.finished
        assert two.about.finished
        assert list(map(str, compare(one, two, (*TIME, *SENDERS)))) == []
        rows = self.rows(folder)
        names = [(row["name"], row["step"], row["kind"]) for row in rows]
        assert len(names) == len(set(names)), "a row is there twice"
        assert rows == self.rows(other)
        assert self.told(folder, "result.json") == self.told(other, "result.json")


def alive_in_session(session: int) -> list[int]:
    """Processes that have not ended; one that waits to be reaped has."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                # pid (name) state parent group session …, where the name may hold anything
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z" and int(fields[3]) == session:
                    found.append(int(entry))
    return found


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    """The functions of ``tests/distributed``."""
    server = RankServer(tmp_path_factory.mktemp("ranks"), Path(__file__).parents[1] / "distributed")
    yield server
    server.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("lab"))
    yield made
    made.close()
