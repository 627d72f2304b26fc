"""How runs are timed, and what is made of the times.

These machines are shared: a bare step may take 230 µs in one second and 500 µs in the next. So nothing is
compared with what was measured at another time. Whole runs are compared with the bare runs before and after
them; single steps, which is much sharper, with a bare step less than a millisecond earlier.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

WARM_UP = 110
"""Steps left out. The first interval of metrics ends at step 100: then the run's folder and file are made, once."""


class Batches(Sequence[Any]):
    """Batches in memory: ``WARM_UP`` that are not measured, then ``steps`` that are, then the one that ends the last.

    The bare loop and every library iterate over the same object, so what it costs cancels. It is a sequence,
    because then Hookline knows its length, as it knows that of a list or of a ``DataLoader``.
    """

    warm_up = WARM_UP

    def __init__(self, batches: Sequence[Any], steps: int) -> None:
        count = self.warm_up + steps + 1
        self._all = [batches[index % len(batches)] for index in range(count)]

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]


Contender = Callable[[Batches], None]
"""Trains a new model on the batches, once."""


# -- whole runs against the bare runs before and after ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Timing:
    """One run, in microseconds per step."""

    mean: float
    """CPU time of the thread over all measured steps: what a neighbour takes while we wait is not in it."""
    median: float
    """Wall time of the step in the middle: rare work, such as the end of an interval, is not in it."""


class TimedRun(Batches):
    """Notes the time at each batch that is fetched."""

    _stamps: list[int]
    _cpu: int

    def __iter__(self) -> Iterator[Any]:
        self._stamps = stamps = []
        yield from self._all[: self.warm_up]
        start = time.thread_time_ns()
        for batch in self._all[self.warm_up : -1]:
            stamps.append(time.perf_counter_ns())
            yield batch
        stamps.append(time.perf_counter_ns())
        self._cpu = time.thread_time_ns() - start
        yield self._all[-1]

    def timing(self) -> Timing:
        steps = [later - earlier for earlier, later in zip(self._stamps, self._stamps[1:], strict=False)]
        return Timing(self._cpu / len(steps) / 1e3, statistics.median(steps) / 1e3)


@dataclass(slots=True)
class Added:
    """What one contender added per step to the bare runs beside it, in each round: microseconds."""

    by_mean: list[float] = field(default_factory=list)
    by_median: list[float] = field(default_factory=list)


def compare_runs(
    contenders: dict[str, Contender], bare: Contender, batches: TimedRun, rounds: Iterable[int]
) -> tuple[dict[str, Added], list[float]]:
    """Every contender once a round, the bare loop before and after each. Also: a bare step in each bare run."""
    added = {name: Added() for name in contenders}
    bare_steps = []
    with _warmed_up([bare, *contenders.values()], batches):
        for round_ in rounds:
            before = _timed(bare, batches)
            for name in _turned(list(contenders), round_):
                own = _timed(contenders[name], batches)
                after = _timed(bare, batches)
                added[name].by_mean.append(own.mean - (before.mean + after.mean) / 2)
                added[name].by_median.append(own.median - (before.median + after.median) / 2)
                bare_steps.append(after.median)
                before = after
    return added, bare_steps


def _timed(contender: Contender, batches: TimedRun) -> Timing:
    gc.collect()  # what another run left behind is not this one's; collections during the run are
    contender(batches)
    return batches.timing()


# -- single steps against a bare step beside them ----------------------------------------------------


class InTurn(Batches):
    """Two bare steps of another model, then two own ones, and so on; the second of each two is measured.

    The first of each two settles the caches and the allocator: what one loop leaves behind, the other would
    find. Without it a loop that frees its gradients earlier looks slower, because the bare step gains by it.
    """

    def __init__(
        self,
        batches: Sequence[Any],
        steps: int,
        bare_step: Callable[[], Callable[[Any], None]],
        warm_up: int = WARM_UP,
    ) -> None:
        self.warm_up = warm_up
        super().__init__(batches, steps + 1)
        self._steps = steps
        self._bare_step = bare_step
        self.odd = False
        """Which half of the positions in a run is measured."""
        self.bare: list[float] = []
        """The bare steps of the last run: microseconds."""
        self.added: list[float] = []
        """What the own step after each of them took more."""

    def __iter__(self) -> Iterator[Any]:
        now, step, start = time.thread_time_ns, self._bare_step(), self.warm_up + self.odd
        self.bare, self.added = [], []
        for batch in self._all[:start]:
            step(batch)
            yield batch
        for index in range(start, start + self._steps, 2):
            first, second = self._all[index], self._all[index + 1]
            step(first)
            bare_from = now()
            step(second)
            bare_to = now()
            yield first
            own_from = now()
            yield second
            self.added.append((now() - own_from - (bare_to - bare_from)) / 1e3)
            self.bare.append((bare_to - bare_from) / 1e3)
        yield from self._all[start + self._steps :]

    def by_position(self) -> torch.Tensor:
        """What was added at each position of the run; NaN where it was not measured."""
        added = torch.full((self._steps,), torch.nan, dtype=torch.float64)
        added[int(self.odd) :: 2] = torch.tensor(self.added, dtype=torch.float64)
        return added


def compare_steps(
    contenders: dict[str, Contender], bare: Contender, batches: InTurn, rounds: Iterable[int]
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Every contender once a round: what each step added, as rounds times positions. Also: a bare step in each run.

    The bare loop runs as a contender too, and its differences are taken off: that its turn is the second,
    and inside an iterator, is the same for all.
    """
    names = ["", *contenders]
    found: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    bare_steps = []
    with _warmed_up([bare, *contenders.values()], batches):
        for round_ in rounds:
            batches.odd = bool(round_ % 2)
            for name in _turned(names, round_):
                gc.collect()
                contenders.get(name, bare)(batches)
                found[name].append(batches.by_position())
                bare_steps.append(statistics.median(batches.bare))
    level = torch.stack(found.pop("")).nanquantile(0.5, 0)
    return {name: torch.stack(rows) - level for name, rows in found.items()}, bare_steps


def mean_step(added: torch.Tensor) -> float:
    """The median over the rounds at each position in the run, then the mean over the positions.

    So a pause of the machine is left out, because it comes at another position in each round, and the end of
    an interval is counted, because it comes at the same one.
    """
    return float(added.nanquantile(0.5, 0).nanmean())


def usual_step(added: torch.Tensor) -> float:
    """The same at the position in the middle: rare work, such as the end of an interval, is not in it."""
    return float(added.nanquantile(0.5, 0).nanquantile(0.5))


def uncertainty(added: torch.Tensor, samples: int = 200) -> float:
    """Half the width of the range in which ``mean_step`` lies in 95 of 100 cases (bootstrap over the rounds)."""
    generator = torch.Generator().manual_seed(0)
    rounds = len(added)
    means = torch.tensor(
        [mean_step(added[torch.randint(rounds, (rounds,), generator=generator)]) for _ in range(samples)]
    )
    return float(means.quantile(0.975) - means.quantile(0.025)) / 2


# -- what both need ----------------------------------------------------------------------------------


@contextmanager
def _warmed_up(contenders: Iterable[Contender], batches: Batches) -> Iterator[None]:
    """Run each once, for lazy imports and cold code. Then leave the objects of all imports to no collection.

    Otherwise one library would pay, in its collections, for the size of another.
    """
    for contender in contenders:
        contender(batches)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _turned(names: list[str], by: int) -> list[str]:
    """Another first row each round, and two rounds in four backwards: no row always follows the same one."""
    start = by % len(names)
    turned = names[start:] + names[:start]
    return turned[::-1] if by // 2 % 2 else turned


@contextmanager
def on_one_core() -> Iterator[None]:
    """One thread of torch, on the core that is idle now: a move to another core costs what is in its caches."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cores = os.sched_getaffinity(0)
    before = _busy()
    time.sleep(0.5)
    after = _busy()
    os.sched_setaffinity(0, {min(cores, key=lambda core: after[core] - before[core])})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


def _busy() -> dict[int, int]:
    """For each core the ticks that it was not idle."""
    with open("/proc/stat", encoding="ascii") as lines:
        rows = [line.split() for line in lines if line.startswith("cpu") and line[3].isdigit()]
    return {int(row[0][3:]): sum(map(int, row[1:])) - int(row[4]) - int(row[5]) for row in rows}
