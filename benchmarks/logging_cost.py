"""What it costs to log: a bar, JSON lines, TensorBoard, two monitors and five metrics in every step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from contenders import Problem, bare_step, mlp
from log_contenders import (
    BARE,
    COMPUTED,
    COMPUTING,
    DEFAULTS,
    EVERY,
    FIFTY,
    HUNDRED,
    TERMINAL,
    in_a_terminal,
    log_contenders,
)
from measure import (
    WARM_UP,
    Added,
    Batches,
    Contender,
    InTurn,
    TimedRun,
    Timing,
    compare_runs,
    compare_steps,
    mean_step,
    on_one_core,
    uncertainty,
)
from steps import LIMITS_SET_AT, Rounds
from table import Figure, Section, judged, quartiles, verdict
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hookline.callbacks.watch.progress.rich_display import RichDisplay

STEPS = 200
LIMITS = {HUNDRED: 25.0, FIFTY: 50.0, TERMINAL: 25.0, DEFAULTS: 25.0}
DRAWN_STEPS = 8_000
"""About two seconds, in which a terminal is drawn anew some twenty times."""


def logging_cost(rounds: Rounds) -> Section:
    problem = mlp()
    rows = log_contenders(problem)
    here = {name: row for name, row in rows.items() if row is not None}
    bare, others = here[BARE], _Others(here)
    with on_one_core():
        in_turn = InTurn(problem.batches, STEPS, partial(bare_step, problem))
        steps, bare_steps = compare_steps(here, bare, in_turn, rounds("logging, steps in turn"))
        runs, _ = compare_runs(others.noted, bare, AllThreads(problem.batches, STEPS), rounds("logging, paired runs"))
        drawing = _drawing(problem)
        reads = {name: _reads(name, row, problem) for name, row in here.items()}
    usual = statistics.median(bare_steps)
    beside = {name: others.microseconds(name) for name in here}
    beside[TERMINAL] += drawing
    figures = [
        _figure(name, steps[name], beside[name], runs[name], usual) if name in here else Figure(name, "not installed")
        for name in rows
    ]
    figures.append(_to_computing(steps[COMPUTED] - steps[COMPUTING], beside[COMPUTED], usual))
    return Section(
        "Logging (µs added per step, and as a share of the bare step; reads from the device)",
        figures + [_read_figure(name, found, reads[BARE]) for name, found in reads.items()],
        f"The model and the bare loop of the step overhead, and in every step five metrics: the loss under five "
        f"names, so that nothing but the logging is added; in the last rows five values that are computed from it, "
        f"which costs the same in a bare loop. Hookline: a task that calls run.log, LRMonitor, SpeedMonitor, "
        f"ProgressBar (lines to a file, or bars in a pseudo-terminal), metrics.jsonl and sinks.TensorBoard. "
        f"Lightning: five self.log, LearningRateMonitor, its default bar to a file, CSVLogger and TensorBoardLogger. "
        f"The row of the bare loop is the noise. A bare step took {usual:.0f} µs. Each target was set where it takes "
        f"{LIMITS_SET_AT:g}: it is judged in µs and, in brackets, by its share. Measured as the step overhead is, in "
        f"turn and in CPU time of the loop's thread over {len(steps[BARE])} runs; added to it is the CPU time of all "
        f"other threads, which are those of the sinks, and in the terminal that of drawing it (over {DRAWN_STEPS:,} "
        f"steps), because it comes at other steps in each run. Runs: whole runs against the mean of the bare runs "
        f"before and after, in CPU time of all threads. Reads: calls of aten::_local_scalar_dense in {STEPS} steps "
        f"after {WARM_UP} of warm-up, counted by a TorchDispatchMode; between intervals there may be no more than in "
        f"the bare loop (the one transfer that ends an interval is a copy, which is no such call).",
    )


# -- time ------------------------------------------------------------------------------------------------


class AllThreads(TimedRun):
    """Also counts the CPU time of the threads that are not the loop's."""

    others: float
    """Microseconds a step."""

    def __iter__(self) -> Iterator[Any]:
        start, last = 0, len(self) - 1
        for index, batch in enumerate(super().__iter__()):
            if index == WARM_UP:
                start = _of_other_threads()
            elif index == last:
                self.others = (_of_other_threads() - start) / (last - WARM_UP) / 1e3
            yield batch

    def timing(self) -> Timing:
        timing = super().timing()
        return Timing(timing.mean + self.others, timing.median)


def _of_other_threads() -> int:
    return time.process_time_ns() - time.thread_time_ns()


class _Others:
    """The contenders, of which each run's time in other threads is noted."""

    def __init__(self, contenders: dict[str, Contender]) -> None:
        self._found: dict[str, list[float]] = {name: [] for name in contenders}
        self.noted: dict[str, Contender] = {name: self._noting(name, row) for name, row in contenders.items()}

    def _noting(self, name: str, contender: Contender) -> Contender:
        def run(batches: Batches) -> None:
            contender(batches)
            if isinstance(batches, AllThreads):
                self._found[name].append(batches.others)

        return run

    def microseconds(self, name: str) -> float:
        return statistics.median(self._found[name][1:])  # the first run warms up


class Timed:
    """The display of a terminal, and the CPU time that it takes to draw it."""

    def __init__(self) -> None:
        self.nanoseconds = 0

    def start(self, run: Any) -> None:
        self._display = RichDisplay()  # now: it takes the standard output that it finds
        self._display.start(run)

    def update(self, progress: Any) -> None:
        start = time.thread_time_ns()
        self._display.update(progress)
        self.nanoseconds += time.thread_time_ns() - start

    def close(self) -> None:
        self._display.close()


def _drawing(problem: Problem) -> float:
    """Microseconds a step."""
    display = Timed()
    in_a_terminal(problem, Batches(problem.batches, DRAWN_STEPS), display)
    return display.nanoseconds / DRAWN_STEPS / 1e3


def _figure(name: str, steps: Tensor, beside: float, runs: Added, bare: float) -> Figure:
    value, limit = mean_step(steps) + beside, LIMITS.get(name)
    middle, (low, high) = statistics.median(runs.by_mean), quartiles(runs.by_mean)
    return Figure(
        name,
        f"{value:+.1f} ± {uncertainty(steps):.1f} ({value / bare:+.1%})",
        f"{beside:.1f} of it outside the steps; runs {middle:+.1f} ({low:+.1f} to {high:+.1f})",
        "" if limit is None else f"≤ {limit:g} ({limit / LIMITS_SET_AT:.1%})",
        "" if limit is None else judged(value, limit, bare, LIMITS_SET_AT),
    )


def _to_computing(added: Tensor, beside: float, bare: float) -> Figure:
    """To a bare loop that computes the five values, too."""
    value, limit = mean_step(added) + beside, LIMITS[HUNDRED]
    return Figure(
        "  to the bare loop that does, too",
        f"{value:+.1f} ± {uncertainty(added):.1f}",
        "",
        f"≤ {limit:g} ({limit / LIMITS_SET_AT:.1%})",
        judged(value, limit, bare, LIMITS_SET_AT),
    )


# -- reads from the device -------------------------------------------------------------------------------


class Reads(TorchDispatchMode):
    """Counts what reads a number from a device, which waits until the device has computed it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class Counted(Batches):
    """Notes how many reads there were when each batch was fetched."""

    def __init__(self, batches: Sequence[Any], steps: int, reads: Reads) -> None:
        super().__init__(batches, steps)
        self._reads = reads
        self.until: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        for batch in self._all:
            self.until.append(self._reads.count)
            yield batch


@dataclass(frozen=True, slots=True)
class Found:
    """Reads in the measured steps."""

    a_step: float
    between: int
    """In the steps that do not end an interval."""


def _reads(name: str, contender: Contender, problem: Problem) -> Found:
    with Reads() as reads:
        batches = Counted(problem.batches, STEPS, reads)
        contender(batches)
    counts = {step: batches.until[step] - batches.until[step - 1] for step in range(WARM_UP + 1, WARM_UP + STEPS + 1)}
    between = [count for step, count in counts.items() if name not in EVERY or step % EVERY[name]]
    return Found(sum(counts.values()) / STEPS, sum(between))


def _read_figure(name: str, found: Found, bare: Found) -> Figure:
    is_ours = name in LIMITS
    return Figure(
        f"reads, {name}",
        f"{found.a_step:.2f} a step",
        f"{found.between} between intervals",
        f"{bare.between} between" if is_ours else "",
        verdict(found.between <= bare.between) if is_ours else "",
    )
