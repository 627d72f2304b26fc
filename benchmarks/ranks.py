"""What two processes cost with Hookline and with a bare loop, and what they send."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from rank_worker import LONG, SIZES, TURN
from table import Figure, Section, quartiles, verdict
from torch import Tensor

from hookline.distributed.guard import guarded
from hookline.distributed.votes import FIELDS

LIMIT = 1.03
"""Of a bare step, for steps of 50 ms and more."""
NAMES = {"ddp": "DDP", "fsdp": "FSDP2"}
Rounds = Callable[[str], Iterable[int]]


def ranks_cost(rounds: Rounds, number: int, *, quick: bool) -> Section:
    """``number`` rounds; a bar that ``rounds`` gives is moved by one for each."""
    found = _launch(rounds("two processes"), number, quick=quick)
    times, counts = found["times"], found["counts"]
    figures = [_turns(s, found["turns"][s]) for s in NAMES]
    figures += [_step(s, name, times[s][name], counts[s][name]["ours"]) for s in NAMES for name in SIZES]
    figures += [_sent(s, name, counts[s][name], found["log_every"][name]) for s in NAMES for name in SIZES]
    figures.append(_guard())
    models = "; ".join(
        f"{name}: {found['parameters'][name]:,} parameters, batch {size.batch}, {found['steps'][name]} steps, an "
        f"interval of {found['log_every'][name]}"
        for name, size in SIZES.items()
    )
    return Section(
        "Two processes (step time, to a bare loop in the same launch)",
        figures,
        f"Two gloo processes under torchrun, one thread each, batches in memory, SGD; fit with a folder, metrics and "
        f"votes. {models}. Wall time on rank zero. In turn: {TURN} steps of a bare loop and {TURN} of fit, all ranks "
        f"meeting before each turn; fit to bare, the median of {number} runs; the control is a bare loop in the "
        f"place of fit, and both ratios are judged. A thread that never rests would slow both, so there are runs of "
        f"their own, too, in a third as many rounds: a bare run, fit and a bare run; fit to the mean "
        f"of the two, and in the next column the second of them to the first. Votes are thinned below 50 ms a step. "
        f"Sent: every collective of the measured steps, counted on rank zero in one more run each; bytes are those "
        f"of the largest tensor that goes in. The vote has {len(FIELDS) + 1} numbers of 8 bytes. The guard is around "
        f"hooks with ranks='zero' and its like, only in runs of several processes.",
    )


def _launch(bar: Iterable[int], number: int, *, quick: bool) -> dict[str, Any]:
    worker = Path(__file__).with_name("rank_worker.py")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(worker)]
        command += [folder, str(number), *(["--quick"] if quick else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (
            Path(folder, "errors.txt").open("w+") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
        ):
            if process.stdout is None:
                raise RuntimeError("the processes have no output")
            lines = iter(process.stdout.readline, "")
            for _ in bar:
                next((line for line in lines if line.strip() == "round"), None)
            code = process.wait()
            if code:
                errors.seek(0)
                raise RuntimeError(f"the two processes ended with {code}:\n{errors.read()[-4000:]}")
        found: dict[str, Any] = json.loads(Path(folder, "found.json").read_text())
    return found


def _step(strategy: str, name: str, rounds: list[tuple[float, float, float]], ours: dict[str, Any]) -> Figure:
    ratios = [own / ((before + after) / 2) for before, own, after in rounds]
    noise = [after / before for before, _, after in rounds]
    bare_step = statistics.median(value for before, _, after in rounds for value in (before, after))
    ratio, (low, high) = statistics.median(ratios), quartiles(ratios)
    noise_low, noise_high = quartiles(noise)
    return Figure(
        f"{NAMES[strategy]}, a step of about {name}",
        f"{ratio:.3f}",
        f"{low:.3f} to {high:.3f}; bare to bare {statistics.median(noise):.3f} ({noise_low:.3f} to {noise_high:.3f}); "
        f"bare step {bare_step * 1e3:.1f} ms; {ours.get('vote', [0])[0]:.2f} votes a step",
    )


def _turns(strategy: str, rounds: list[tuple[float, float, float]]) -> Figure:
    ratios, controls, seconds = zip(*rounds, strict=True)
    ratio, (low, high) = statistics.median(ratios), quartiles(ratios)
    to_control = statistics.median(own / control for own, control, _ in rounds)
    control_low, control_high = quartiles(controls)
    return Figure(
        f"{NAMES[strategy]}, a step of about {LONG}, in turn",
        f"{ratio:.3f}",
        f"{low:.3f} to {high:.3f}; the control {statistics.median(controls):.3f} ({control_low:.3f} to "
        f"{control_high:.3f}), and to that {to_control:.3f}; bare step {statistics.median(seconds) * 1e3:.1f} ms; "
        f"a vote in each",
        f"≤ {LIMIT}",
        verdict(max(ratio, to_control) <= LIMIT),
    )


def _sent(strategy: str, name: str, counts: dict[str, dict[str, list[float]]], log_every: int) -> Figure:
    bare, ours = counts["bare"], counts["ours"]
    own = ("vote", "metrics")
    calls, size = _sums(ours)
    bare_calls, bare_size = _sums(bare)
    votes, metrics = (ours.get(kind, [0.0, 0.0]) for kind in own)
    intervals = 1 / log_every
    rest = calls - bare_calls - votes[0] - metrics[0]
    return Figure(
        f"{NAMES[strategy]}, {name}: sent in a step",
        f"{calls:.2f} calls, {size / 1e6:.3f} MB",
        f"bare {bare_calls:.2f} calls, {bare_size / 1e6:.3f} MB; the vote {votes[0]:.2f} calls, {votes[1]:.0f} B; "
        f"metrics {metrics[0]:.3f} calls, {metrics[1]:.1f} B; anything else {rest:+.2f} calls",
        f"bare + vote + {intervals:g}",
        # An interval ends with one vote more than the steps have.
        verdict(abs(rest) < 0.005 and votes[0] <= 1 + intervals and metrics[0] <= intervals * 1.05),
    )


def _sums(counts: dict[str, list[float]]) -> tuple[float, float]:
    return sum(calls for calls, _ in counts.values()), sum(size for _, size in counts.values())


# -- the guard -------------------------------------------------------------------------------------------


def _guard() -> Figure:
    """A hook that does nothing, and one with ten operations, with the guard around it and without."""
    found = []
    for operations in (0, 10):
        hook = _hook(torch.zeros(8), operations)
        free, watched = _call_time(hook), _call_time(guarded(hook, "Zero", "on_train_step_end", "zero"))
        found.append((free, watched))
    (empty, guarded_empty), (ten, guarded_ten) = found
    return Figure(
        "the guard, a call of a hook",
        f"{(guarded_empty - empty) * 1e6:+.1f} µs",
        f"an empty hook {empty * 1e6:.2f} µs, with the guard {guarded_empty * 1e6:.2f} µs; one with ten operations "
        f"{ten * 1e6:.1f} µs, {guarded_ten * 1e6:.1f} µs",
    )


def _hook(values: Tensor, operations: int) -> Callable[[Any], None]:
    def hook(run: Any) -> None:
        for _ in range(operations):
            values.add_(1.0)

    return hook


def _call_time(hook: Callable[[Any], Any], calls: int = 2000) -> float:
    """The fastest of some rounds."""
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(calls):
            hook(None)
        best = min(best, (time.perf_counter() - began) / calls)
    return best
