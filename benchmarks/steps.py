"""What a step costs beyond the bare loop: on a real model, and on one that computes nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from functools import partial

from contenders import Problem, bare_step, contenders, mlp, null
from measure import (
    WARM_UP,
    Added,
    Contender,
    InTurn,
    TimedRun,
    compare_runs,
    compare_steps,
    mean_step,
    on_one_core,
    uncertainty,
    usual_step,
)
from table import Figure, Section, judged, quartiles, verdict
from torch import Tensor

Rounds = Callable[[str], Iterable[int]]
"""The rounds to make, with a bar that says what for."""

STEPS = 200
LIMITS = {"Hookline, metrics off": 5.0, "Hookline, metrics on": 8.0, "Hookline, on, 10 callbacks": 11.0}
LIMITS_SET_AT = 230.0
"""Microseconds of a bare step on the machine, and in the quiet, in which the limits were set."""
ON, EMPTY = "Hookline, metrics on", "Hookline, on, 30 empty callbacks"
BY_HAND = "bare loop, gradients set to None"


def step_overhead(rounds: Rounds) -> Section:
    problem = mlp()
    bare, rows = contenders(problem)
    here = _installed(rows)
    with on_one_core():
        steps, bare_steps = compare_steps(here, bare, _in_turn(problem), rounds("steps in turn"))
        runs, run_steps = compare_runs(here, bare, TimedRun(problem.batches, STEPS), rounds("paired runs"))
    usual = statistics.median(bare_steps)
    figures = [
        _figure(name, steps[name], runs[name], usual, steps[BY_HAND]) if name in here else Figure(name, "not installed")
        for name in rows
    ]
    figures.insert(list(rows).index(EMPTY) + 1, _nothing_added(steps[EMPTY] - steps[ON]))
    low, high = quartiles(bare_steps)
    return Section(
        "Step overhead (µs added per step, and as a share of the bare step)",
        figures,
        f"32-64-10 MLP, SGD, batch 32, batches in memory, one thread on one core; metrics on: log_every='100st' and "
        f"a folder. A bare step took {usual:.0f} µs (quartiles {low:.0f} to {high:.0f}). The targets were set where it "
        f"takes {LIMITS_SET_AT:g}: each is judged in µs and, in brackets, by its share. "
        f"Measured: each step against a bare step of another model some steps earlier, in CPU time of the thread; "
        f"the median over {len(steps[ON])} runs at each of {STEPS} positions, then the mean over the positions (so the "
        f"end of an interval counts and a pause of the machine does not), minus the same of the bare loop; "
        f"± is a 95 % bootstrap. Runs: whole runs against the mean of the bare runs before and after, in CPU time, "
        f"median and quartiles of {len(run_steps) // len(here)} paired differences; middle step: the same with the "
        f"wall time of the step in the middle of a run. All rows take turns, in another order each round. "
        f"Hookline sets gradients to None itself, which is faster than zero_grad: the second row is a bare loop that "
        f"does so, and the last figure of each row is to that one. "
        f"{WARM_UP} steps of warm-up and all set-up are left out. The row of the bare loop is the noise.",
    )


def own_python(rounds: Rounds) -> Section:
    problem = null()
    bare, rows = contenders(problem)
    here = _installed(rows)
    with on_one_core():
        steps, bare_steps = compare_steps(here, bare, _in_turn(problem), rounds("null model"))
    figures = [
        Figure(
            name,
            f"{mean_step(steps[name]):+.2f} ± {uncertainty(steps[name]):.2f}",
            f"{usual_step(steps[name]):+.2f} without rare work",
        )
        if name in here
        else Figure(name, "not installed")
        for name in rows
    ]
    return Section(
        "The loop's own Python, on the general way (µs added per step, null model)",
        figures,
        f"As above, but model, loss, backward and optimizer do nothing (a bare step: "
        f"{statistics.median(bare_steps):.1f} µs). So all code is in the cache, which makes it less than a real step "
        f"pays, and there is little noise. Rare work is the end of an interval and the sampling of costs. What this "
        f"model gives is no tensor, so no step of it is plain (decision 0012): a real one of `Trainer` is shorter.",
    )


def _installed(rows: dict[str, Contender | None]) -> dict[str, Contender]:
    return {name: row for name, row in rows.items() if row is not None}


def _in_turn(problem: Problem) -> InTurn:
    return InTurn(problem.batches, STEPS, partial(bare_step, problem))


def _figure(name: str, steps: Tensor, runs: Added, bare: float, by_hand: Tensor) -> Figure:
    value, limit = mean_step(steps), LIMITS.get(name)
    low, high = quartiles(runs.by_mean)
    return Figure(
        name,
        f"{value:+.1f} ± {uncertainty(steps):.1f} ({value / bare:+.1%})",
        f"runs {statistics.median(runs.by_mean):+.1f} ({low:+.1f} to {high:+.1f}), "
        f"middle step {statistics.median(runs.by_median):+.1f}; to gradients set to None "
        f"{mean_step(steps - by_hand):+.1f}",
        "" if limit is None else f"≤ {limit:g} ({limit / LIMITS_SET_AT:.1%})",
        "" if limit is None else judged(value, limit, bare, LIMITS_SET_AT),
    )


def _nothing_added(difference: Tensor) -> Figure:
    """Thirty callbacks that override nothing, compared with none."""
    value, half = mean_step(difference), uncertainty(difference)
    return Figure("  of it, by the 30", f"{value:+.1f} ± {half:.1f}", "", "not measurable", verdict(value <= half))
