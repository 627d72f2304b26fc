"""Run a script uninterrupted, killed, and resumed, and compare its checkpoints.

The environment variable ``HOOKLINE_VERIFY_RESUME`` controls the engine of the script. Its value is JSON with these
keys: ``folder`` (overrides the run's folder), ``save_at`` (steps at which to save a full checkpoint), ``stop_at`` (step
at which training ends) and ``resume``.
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
LEAST: Final = 4
"""Minimum number of steps, so that some are before the kill and some after it."""
POLL: Final = 0.02
"""Seconds between two checks of the folder of a run that will be killed."""
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
"""Paths that differ between any two runs: times, and the identity of the process.

Times also occur inside rows and monitors.

The metrics are compared in the state, after the values from which they are computed.
"""


BESIDE: Final = "state/verification/beside/"
"""Attributes of callbacks and modules that are not in a checkpoint.

The check reports a difference, but it is not an error.
"""
UNSEEDED: Final = ("state/random/python/", "state/random/numpy/")
"""Random states that differ between two runs of a script that seeds only torch.

If nothing else differs, no code has used them.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of the check."""

    step: int
    """First step with a difference, or the last step that was compared."""
    differences: tuple[Difference, ...] = ()
    before_the_kill: bool = False
    """True if two runs from the start differ, so that the script is not deterministic."""
    begun_anew: tuple[str, ...] = ()
    """Attributes that are not saved and differ, such as ``Counter.seen: 14 and 7``."""


@dataclass(frozen=True, slots=True)
class ResumeCheck:
    """A script with its arguments, and the number of steps to train."""

    command: Sequence[str]
    steps: int
    folder: Path
    """Folder for the runs."""
    log: Callable[[str], None] = field(default=lambda _: None)

    def run(self) -> Finding:
        """Train three times, then compare: at the kill, at the step after it, and at the end."""
        kill_at = self.steps // 2
        save_at = sorted({kill_at, kill_at + 1, self.steps})
        whole, broken = self.folder / "uninterrupted", self.folder / "resumed"
        self._train(whole, save_at, resume=False)
        saves = self._check_length(whole)
        self.log(f"uninterrupted: {self.steps} steps")
        if not saves:
            self.log("note: the script has no hl.Checkpointer, so only this check saves")
        self._train_and_kill(broken, save_at, kill_at)
        self.log(f"killed: after the checkpoint of step {kill_at}")
        found, unsteady = self._differ(whole, broken, kill_at)
        unseeded = tuple(path for path in UNSEEDED if found and all(f"{d.path}/".startswith(UNSEEDED) for d in found))
        if found and not unseeded:
            return Finding(kill_at, found, before_the_kill=True)
        if unseeded:
            self.log("note: the random states of Python and NumPy are not seeded, so not compared; use Trainer(seed=0)")
        self._train(broken, save_at, resume=True)
        self.log(f"resumed: from step {kill_at} to {self.steps}")
        paths = {difference.path for difference in unsteady}  # Attributes with times or with the path of the run.
        for step in save_at[1:]:
            found, beside = self._differ(whole, broken, step, ignored=tuple(f"{path}*" for path in unseeded))
            if found:
                break
        return Finding(step, found, begun_anew=tuple(_attribute(d) for d in beside if d.path not in paths))

    def _check_length(self, whole: Path) -> bool:
        """Check that the script trained for all steps.

        The result is True if a callback of the script saves checkpoints.

        A run that ends early saves a checkpoint at its last step.
        """
        found = _store(whole).checkpoints()
        if not found:
            raise HooklineError("The script saved nothing. It must train with Hookline, in its own process.")
        last = max(found, key=lambda checkpoint: checkpoint.about.step)
        step, state = last.about.step, _store(whole).load(last).state or {}
        if step < self.steps:
            advice = f"Give --steps {step} or fewer." if step >= LEAST else f"It must train for {LEAST} steps or more."
            raise HooklineError(
                f"The first fit of the script ended at step {step} of {self.steps} ({state.get('ended')}). {advice}"
            )
        return bool(state.get("verification", {}).get("saves", True))

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
        """Kill the script after the checkpoint appears, and delete checkpoints of later steps."""
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
                start_new_session=True,  # Its worker processes are killed with it.
            )

    def _differ(
        self, whole: Path, other: Path, step: int, ignored: tuple[str, ...] = ()
    ) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
        """Return the differences in the checkpoints, and those of attributes that are not saved."""
        first, second = (_store(folder).load(_at(folder, step)) for folder in (whole, other))
        found = compare(first, second, NOT_COMPARED + ignored)
        beside = [difference for difference in found if difference.path.startswith(BESIDE)]
        in_both = [difference for difference in beside if "nothing" not in (difference.first, difference.second)]
        return tuple(difference for difference in found if difference not in beside), tuple(in_both)


def _store(folder: Path) -> Store:
    return Store(folder / "checkpoints")


def _at(folder: Path, step: int) -> Checkpoint:
    """Return the newest checkpoint of a step."""
    found = _store(folder).checkpoints()
    of_step = [checkpoint for checkpoint in found if checkpoint.about.step == step and not checkpoint.weights_only]
    if not of_step:
        have = ", ".join(str(checkpoint.about.step) for checkpoint in found) or "none"
        raise CheckpointNotFoundError(
            f"The {folder.name} run saved no checkpoint at step {step}, only at {have}. It ended before the "
            f"uninterrupted run."
        )
    return of_step[-1]


def _attribute(difference: Difference) -> str:
    owner, _, name = difference.path.removeprefix(BESIDE).rpartition("/")
    return f"{owner.removesuffix('()')}.{name}: {difference.first} and {difference.second}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # All processes of the group have ended.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failed(log: Path, code: int) -> HooklineError:
    last = log.read_text(errors="replace").strip().splitlines()[-15:]
    return HooklineError(f"The script ended with exit code {code}. Its last lines:\n" + "\n".join(last))
