"""``SlowRankMonitor``: which of several processes is slow, by how much, and in what."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from hookline.callbacks.watch.interval import Aside
from hookline.callbacks.watch.work_timer import PARTS, WorkTimer, timer_of
from hookline.distributed import this_process
from hookline.errors import RegistrationError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

WORK: Final = "ranks/work"
MEANING: Final = {
    "data": "waiting for data",
    "forward": "in the forward and the loss",
    "update": "in the update and in hooks after it",
}


class Slowness(NamedTuple):
    """What the work of all ranks in one interval comes to."""

    slowest: int
    """The rank."""
    slowdown: float
    """Its work, as a multiple of the median rank's."""
    behind: float
    """How many seconds more it has worked than the fastest."""
    part: str
    """In what it has lost most of them."""


class SlowRankMonitor(Callback):
    """Says which of several processes is slow: all of them wait for it in every step.

    Each rank times its own work: the wait for a batch, the forward with its loss, and the update with the hooks that
    follow it. The backward is not in it: there a rank works and waits for the others at once. With FSDP the forward
    waits as well, so only the time of its thread on the CPU counts.

    At each interval (``log_every``) and at the end of each epoch it logs ``ranks/slowest`` (the rank),
    ``ranks/slowdown`` (its work, as a multiple of the median rank's), ``ranks/waiting`` (the share of the time that the
    fastest rank waits for the slowest, from 0 to 1) and ``ranks/work``: the seconds of data, forward and update, a
    row each, by rank. When the same rank is slower than ``factor`` for ``patience`` intervals in a row, a warning
    names it and says in what it is slow; once, until it has caught up.

    It sends nothing of its own over the network: the numbers are metrics, and travel with the others.
    In one process there is nothing to compare, and it does nothing.

    >>> SlowRankMonitor(factor=2).factor
    2
    >>> slowness([[0.1, 0.1, 0.9], [1.0, 1.0, 1.0], [0.1, 0.1, 0.1]]).part
    'data'
    """

    optional = True
    writes = ("ranks/*",)
    state = ("_slow_rank", "_slow_for", "_said")
    state_depends_on = ("factor",)

    def __init__(self, *, factor: float = 1.5, patience: int = 3) -> None:
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 < factor < math.inf:
            raise RegistrationError(f"SlowRankMonitor(factor={factor!r}): how many times slower is slow; more than 1")
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise RegistrationError(f"SlowRankMonitor(patience={patience!r}): a number of intervals, 1 or more")
        self.factor = factor
        self.patience = patience
        self._slow_rank, self._slow_for, self._said = -1, 0, False
        self._timer: WorkTimer | None = None
        self._thread_began: float | None = None
        self._is_sharded = False
        self._aside = Aside()
        self._since = 0.0
        self._logged_at = 0
        if this_process().world_size > 1:  # a hook that is not there costs nothing
            self.on_batch_fetch_start = self._fetch  # type: ignore[method-assign]
            self.on_train_step_start = self._fetched  # type: ignore[method-assign]
            self.on_train_batch_start = self._compute  # type: ignore[method-assign]
            self.on_backward_start = self._computed  # type: ignore[method-assign]
            self.on_optimizer_step_start = self._update  # type: ignore[method-assign]
            self.on_train_step_end = self._stepped  # type: ignore[method-assign]

    # -- one's own work ------------------------------------------------------------------------

    def on_train_start(self, run: Run) -> None:
        self._timer = timer_of(run.device)
        self._aside, self._thread_began = Aside(), None
        self._since, self._logged_at = run.clock.seconds, 0
        self._is_sharded = run.is_sharded

    def _fetch(self, run: Run) -> None:
        if run.stage == "train" and self._timer is not None:
            self._timer.begin("data")

    def _fetched(self, run: Run) -> None:
        if self._timer is not None:  # then buffers are shared, for which ranks wait
            self._timer.end()

    def _compute(self, run: Run) -> None:
        if self._timer is None:
            return
        if self._is_sharded:
            self._timer.end()
            self._thread_began = time.thread_time()
        else:
            self._timer.begin("forward")

    def _computed(self, run: Run) -> None:
        if self._timer is None:
            return
        if self._thread_began is not None:
            self._timer.add("forward", time.thread_time() - self._thread_began)
            self._thread_began = None
        self._timer.end()

    def _update(self, run: Run) -> None:
        if self._timer is not None:
            self._timer.begin("update")

    def _stepped(self, run: Run) -> None:
        """Where an interval may end, what was timed is logged; else the update goes on to the next batch."""
        if self._timer is None or not run.interval_may_end:
            return
        self._timer.end()
        work = torch.zeros(len(PARTS), run.world_size, dtype=torch.float64)
        work[:, run.rank] = torch.tensor(self._timer.take(), dtype=torch.float64)
        # A sum over the ranks in which each has a column. What several have alike is counted once by the loop.
        work *= run.world_size // run.data_parallel_size
        run.log({WORK: work}, reduce="sum", padding=True)  # a batch that counts nothing takes its time all the same
        self._logged_at = run.clock.step

    def around_eval(self, run: Run) -> Iterator[None]:
        yield from self._aside.around(run)

    def around_predict(self, run: Run) -> Iterator[None]:
        yield from self._aside.around(run)

    def around_save(self, run: Run) -> Iterator[None]:
        yield from self._aside.around(run)

    # -- everybody's ---------------------------------------------------------------------------

    def on_metrics_ready(self, run: Run) -> None:
        """The interval is over, and its metrics are those of all ranks."""
        if self._logged_at != run.clock.step:
            return
        now = run.clock.seconds - self._aside.seconds
        seconds, self._since = now - self._since, now
        work = run.metrics[WORK]
        found = slowness(work) if isinstance(work, list) else None
        if found is None or seconds <= 0:
            return
        waiting = min(1.0, found.behind / seconds)
        values = {"ranks/slowest": found.slowest, "ranks/slowdown": found.slowdown, "ranks/waiting": waiting}
        run.log(values, reduce="last")
        self._judge(run, found, waiting)

    def _judge(self, run: Run, found: Slowness, waiting: float) -> None:
        if found.slowdown <= self.factor:
            self._slow_rank, self._slow_for, self._said = -1, 0, False
            return
        if found.slowest != self._slow_rank:  # another one each time is chance
            self._slow_rank, self._slow_for, self._said = found.slowest, 0, False
        self._slow_for += 1
        if self._slow_for >= self.patience and not self._said:
            self._said = True
            if run.rank == 0:
                logger.warning(
                    "rank %d is slow: in each of the last %d intervals its own work took more than %g times as long as "
                    "the median rank's, now %.1f times, most of it %s; the fastest waits %.0f %% of the time for it",
                    found.slowest, self._slow_for, self.factor, found.slowdown, MEANING[found.part], 100 * waiting,
                )  # fmt: skip


def slowness(work: Sequence[Sequence[float]]) -> Slowness | None:
    """Of the seconds that each rank (column) was at each part (row). A rank that said nothing is left out.

    >>> slowness([[0, 0, 0], [1.0, 3.0, 1.0], [0, 0, 0]])
    Slowness(slowest=1, slowdown=3.0, behind=2.0, part='forward')
    >>> slowness([[0, 0], [1.0, 0], [0, 0]]) is None
    True
    """
    totals = {rank: sum(column) for rank, column in enumerate(zip(*work, strict=True)) if sum(column) > 0}
    if len(totals) < 2:
        return None
    slowest = max(totals, key=lambda rank: totals[rank])
    fastest = min(totals, key=lambda rank: totals[rank])
    # The lower of the two in the middle: of two ranks the median is the fast one.
    median = statistics.median_low(totals.values())
    lost = [row[slowest] - statistics.median_low([row[rank] for rank in totals]) for row in work]
    part = PARTS[lost.index(max(lost))]
    return Slowness(slowest, totals[slowest] / median, totals[slowest] - totals[fastest], part)
