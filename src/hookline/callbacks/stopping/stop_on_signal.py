"""``StopOnSignal``: save and exit when the process receives a signal such as SIGUSR1."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

Requeue = Callable[["Run"], None]


class StopOnSignal(Callback):
    """Save a checkpoint and exit when the process receives a signal such as SIGUSR1.

    Every run already does this for SIGTERM. Slurm, for example, can send SIGUSR1 before the time limit of a job.
    Hookline finishes the step, saves a checkpoint, and ``fit`` raises ``hl.Preempted``, a ``SystemExit`` with the code
    128 + signal. A second signal exits immediately without saving.

    Args:
        *signals: Names or numbers of signals in addition to SIGTERM, for example ``"SIGUSR1"``.
        requeue: Function of ``run``, or ``"slurm"`` to run ``scontrol requeue`` for this job. Hookline calls it once,
            on rank 0, after the checkpoint is saved. ``None``: nothing. If it fails, Hookline logs the error, and the
            exit code stays the same.

    Raises:
        ArgumentError: If a signal does not exist or cannot be used (SIGINT, SIGKILL, SIGSTOP), or ``requeue`` is
            invalid.

    Example:
        >>> StopOnSignal("SIGUSR1").signals
        (<Signals.SIGTERM: 15>, <Signals.SIGUSR1: 10>)
    """

    writes = ()  # The callback logs no metric.
    ranks = "all"

    def __init__(self, *signals: str | int, requeue: Requeue | Literal["slurm"] | None = None) -> None:
        self.signals = (signal.SIGTERM, *(found for one in signals if (found := _signal(one)) is not signal.SIGTERM))
        self.requeue = requeue
        self._preempted = False

    def on_setup(self, run: Run) -> None:
        self._preempted = False
        run.listen_to_signals(self.signals)

    def on_preempt(self, run: Run) -> None:
        self._preempted = True

    def on_teardown(self, run: Run) -> None:
        if not self._preempted or self.requeue is None or run.rank != 0:
            return
        self._preempted = False
        try:
            if callable(self.requeue):
                self.requeue(run)
            else:
                _requeue_in_slurm()
        except Exception as error:
            # Log the error, because Python does not show the notes of the SystemExit that ends the process.
            logger.error("the job was not put back into the queue: %s: %s", type(error).__name__, error)
            raise


def _signal(given: str | int) -> signal.Signals:
    """Return the signal for a name or number. Raise for one that this callback cannot handle."""
    try:
        found = signal.Signals[given] if isinstance(given, str) else signal.Signals(given)
    except (KeyError, ValueError):
        raise ArgumentError(
            f"StopOnSignal(signals={given!r}): no such signal. Write for example StopOnSignal('SIGUSR1')."
        ) from None
    if found in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT):
        why = "Ctrl-C has its own meaning" if found is signal.SIGINT else "no program can catch it"
        raise ArgumentError(f"StopOnSignal(signals={found.name!r}): {why}. Use another signal.")
    return found


def _requeue_in_slurm() -> None:
    """Put this Slurm job, or this task of a job array, back into the queue."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isascii() or not job.isdigit():
        raise SetupError(f"StopOnSignal(requeue='slurm'): SLURM_JOB_ID={job!r} is not the number of a job.")
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID", ""), os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if array.isdigit() and task.isdigit():
        job = f"{array}_{task}"
    subprocess.run(["scontrol", "requeue", job], check=True, timeout=60)
