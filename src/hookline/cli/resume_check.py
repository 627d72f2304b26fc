"""Run a script uninterrupted, killed, and resumed, and compare what it saved. The engine obeys an environment variable.

``HOOKLINE_VERIFY_RESUME`` holds JSON with ``folder`` (the run's folder, whatever the script says), ``save_at`` (the
steps at which a full checkpoint is saved), ``stop_at`` (the step at which training ends) and ``resume``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hookline.checkpoint import Checkpoint, Store
from hookline.checkpoint.compare import Difference, compare
from hookline.errors import CheckpointNotFoundError, HooklineError

VARIABLE: Final = "HOOKLINE_VERIFY_RESUME"
POLL: Final = 0.02
"""Seconds between two looks at the folder of a run that is to be killed."""
NOT_COMPARED: Final = (
    "about/seconds",
    "about/run",
    "about/generation",
    "about/environment",
    "about/metrics",
    "*/seconds",
    "state/history/bytes",
    "state/metrics/newest/speed/*",
    "state/metrics/newest/time/*",
    "state/metrics/newest/memory/*",
    "state/metrics/newest/device/*",
)
"""Wall time, also as the text in the rows and in what monitors measure, and which process it was: these differ between
any two runs. The metrics are compared in the state, after what they are computed from."""


UNSEEDED: Final = ("state/random/python/", "state/random/numpy/")
"""States of a process that differ in two runs of a script that seeds only torch. If nothing else differs, nothing has
drawn from them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came out."""

    step: int
    """The first step at which something differs, or the last one that was compared."""
    differences: tuple[Difference, ...] = ()
    before_the_kill: bool = False
    """Two runs from the start differ: the script does not repeat itself, resumed or not."""


@dataclass(frozen=True, slots=True)
class ResumeCheck:
    """One script with its arguments, to be trained for so many steps."""

    command: Sequence[str]
    steps: int
    folder: Path
    """Where the runs live."""
    say: Callable[[str], None] = field(default=lambda _: None)

    def run(self) -> Finding:
        """Three runs, then the comparison: at the kill, at the step after it, and at the end."""
        kill_at = self.steps // 2
        save_at = sorted({kill_at, kill_at + 1, self.steps})
        whole, broken = self.folder / "uninterrupted", self.folder / "resumed"
        self._train(whole, save_at, resume=False)
        self.say(f"uninterrupted: {self.steps} steps")
        self._train_and_kill(broken, save_at, kill_at)
        self.say(f"killed: after the checkpoint of step {kill_at}")
        found = self._differ(whole, broken, kill_at)
        unseeded = tuple(path for path in UNSEEDED if found and all(f"{d.path}/".startswith(UNSEEDED) for d in found))
        if found and not unseeded:
            return Finding(kill_at, found, before_the_kill=True)
        if unseeded:
            self.say("not seeded, and not compared: Python's and NumPy's random states; Trainer(seed=0) seeds them")
        self._train(broken, save_at, resume=True)
        self.say(f"resumed: from step {kill_at} to {self.steps}")
        for step in save_at[1:]:
            found = self._differ(whole, broken, step, ignored=tuple(f"{path}*" for path in unseeded))
            if found:
                return Finding(step, found)
        return Finding(self.steps)

    def _train(self, folder: Path, save_at: list[int], *, resume: bool) -> None:
        log = self.folder / f"{folder.name}.log"
        process = self._start(folder, save_at, log, resume=resume)
        try:
            code = process.wait()
        finally:
            _kill(process)
        if code:
            raise _failed(log, code)

    def _train_and_kill(self, folder: Path, save_at: list[int], kill_at: int) -> None:
        """Kill it as soon as the checkpoint is there. What a quick script saved after that is taken away."""
        log = self.folder / f"{folder.name}-killed.log"
        process = self._start(folder, save_at, log, resume=False)
        try:
            while process.poll() is None and not any(c.about.step >= kill_at for c in _store(folder).checkpoints()):
                time.sleep(POLL)
            if process.returncode:
                raise _failed(log, process.returncode)
        finally:
            _kill(process)
        store = _store(folder)
        for checkpoint in store.checkpoints():
            if checkpoint.about.step > kill_at:
                store.delete(checkpoint)

    def _start(self, folder: Path, save_at: list[int], log: Path, *, resume: bool) -> subprocess.Popen[bytes]:
        wanted = {"folder": str(folder), "save_at": save_at, "stop_at": self.steps, "resume": resume}
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, VARIABLE: json.dumps(wanted)},
                start_new_session=True,  # its worker processes are killed with it
            )

    def _differ(self, whole: Path, other: Path, step: int, ignored: tuple[str, ...] = ()) -> tuple[Difference, ...]:
        first, second = (_store(folder).load(_at(folder, step)) for folder in (whole, other))
        return tuple(compare(first, second, NOT_COMPARED + ignored))


def _store(folder: Path) -> Store:
    return Store(folder / "checkpoints")


def _at(folder: Path, step: int) -> Checkpoint:
    """The newest checkpoint of a step."""
    found = _store(folder).checkpoints()
    of_step = [checkpoint for checkpoint in found if checkpoint.about.step == step and not checkpoint.weights_only]
    if not of_step:
        have = ", ".join(str(checkpoint.about.step) for checkpoint in found) or "none"
        raise CheckpointNotFoundError(
            f"the {folder.name} run saved no checkpoint at step {step}, only at {have}; does the script train with "
            f"Hookline, and for so many steps? Give --steps"
        )
    return of_step[-1]


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # all of the group have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failed(log: Path, code: int) -> HooklineError:
    last = log.read_text(errors="replace").strip().splitlines()[-15:]
    return HooklineError(f"the script ended with exit code {code}; its last lines:\n" + "\n".join(last))
