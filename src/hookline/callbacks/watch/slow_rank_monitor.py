"""``SlowRankMonitor``: find a rank that slows down all others."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from hookline.callbacks.watch._interval import Aside
from hookline.distributed import this_process
from hookline.errors import ArgumentError
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

PARTS: Final = ("data", "forward", "update")
"""Timed parts: waiting for a batch; forward pass and loss; optimizer step and later hooks."""


class Slowness(NamedTuple):
    """Comparison of the work of all ranks in one interval."""

    slowest: int
    """The slowest rank."""
    slowdown: float
    """Its work, as a multiple of the median rank's work."""
    behind: float
    """Seconds that it has worked longer than the fastest rank."""
    part: str
    """Part of the work in which it has lost most of this time."""


class SlowRankMonitor(Callback):
    """Find the slowest rank, for which all other ranks wait in every step.

    Each rank measures its own work: waiting for a batch, the forward pass with the loss, and the optimizer step
    with the hooks after it. The callback logs at the end of each log interval and of each epoch:

    - ``ranks/slowest``: the slowest rank.
    - ``ranks/slowdown``: its work, as a multiple of the median rank's work.
    - ``ranks/waiting``: fraction of the time that the fastest rank waits for the slowest (0 to 1).
    - ``ranks/work``: seconds of data, forward and update (rows) of each rank (columns).

    In a single process the callback does nothing.

    Args:
        factor: A rank is slow if ``ranks/slowdown`` is larger than this.
        patience: Number of consecutive intervals in which the same rank is slow before Hookline warns. It warns
            once, until the rank has caught up.

    Raises:
        ArgumentError: If ``factor`` is not larger than 1 or ``patience`` is less than 1.

    Example:
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
        if not 1 < factor < math.inf:
            raise ArgumentError(f"SlowRankMonitor(factor={factor!r}): must be finite and > 1.")
        if patience < 1:
            raise ArgumentError(f"SlowRankMonitor(patience={patience!r}): must be >= 1.")
        self.factor = factor
        self.patience = patience
        self._slow_rank, self._slow_for, self._said = -1, 0, False
        self._timer: WorkTimer | None = None
        self._thread_began: float | None = None
        self._is_sharded = False
        self._aside = Aside()
        self._since = 0.0
        self._logged_at = 0
        if this_process().world_size > 1:  # Hooks that are not set cost nothing.
            self.on_batch_fetch_start = self._fetch  # type: ignore[method-assign]
            self.on_train_step_start = self._fetched  # type: ignore[method-assign]
            self.on_train_batch_start = self._compute  # type: ignore[method-assign]
            self.on_backward_start = self._computed  # type: ignore[method-assign]
            self.on_optimizer_step_start = self._update  # type: ignore[method-assign]
            self.on_train_step_end = self._stepped  # type: ignore[method-assign]

    # -- work of this rank ---------------------------------------------------------------------

    def on_train_start(self, run: Run) -> None:
        self._timer = timer_of(run.device)
        self._aside, self._thread_began = Aside(), None
        self._since, self._logged_at = run.clock.seconds, 0
        self._is_sharded = run.is_sharded

    def _fetch(self, run: Run) -> None:
        """Start timing the wait for a batch, as ``on_batch_fetch_start``."""
        if run.stage == "train" and self._timer is not None:
            self._timer.begin("data")

    def _fetched(self, run: Run) -> None:
        """Stop timing the wait for a batch, as ``on_train_step_start``."""
        if self._timer is not None:  # Buffers are synchronized next, and ranks wait for it.
            self._timer.end()

    def _compute(self, run: Run) -> None:
        """Start timing the forward pass, as ``on_train_batch_start``."""
        if self._timer is None:
            return
        if self._is_sharded:
            self._timer.end()
            self._thread_began = time.thread_time()
        else:
            self._timer.begin("forward")

    def _computed(self, run: Run) -> None:
        """Stop timing the forward pass, as ``on_backward_start``."""
        if self._timer is None:
            return
        if self._thread_began is not None:
            self._timer.add("forward", time.thread_time() - self._thread_began)
            self._thread_began = None
        self._timer.end()

    def _update(self, run: Run) -> None:
        """Start timing the update, as ``on_optimizer_step_start``."""
        if self._timer is not None:
            self._timer.begin("update")

    def _stepped(self, run: Run) -> None:
        """Log the times if a log interval may end. Otherwise the update lasts until the next batch."""
        if self._timer is None or not run.interval_may_end:
            return
        self._timer.end()
        work = torch.zeros(len(PARTS), run.world_size, dtype=torch.float64)
        work[:, run.rank] = torch.tensor(self._timer.take(), dtype=torch.float64)
        # The sum over ranks fills one column per rank. The loop counts ranks with equal data once.
        work *= run.world_size // run.data_parallel_size
        run.log({WORK: work}, reduce="sum", padding=True)  # A padding batch takes time as well.
        self._logged_at = run.clock.step

    def around_eval(self, run: Run) -> Iterator[None]:
        yield from self._aside.around(run)

    def around_predict(self, run: Run) -> Iterator[None]:
        yield from self._aside.around(run)

    def around_save(self, run: Run) -> Iterator[None]:
        yield from self._aside.around(run)

    # -- comparison of all ranks ---------------------------------------------------------------

    def on_metrics_ready(self, run: Run) -> None:
        """Compare the ranks. The metrics of the interval are now reduced over all ranks."""
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
        """Count the intervals in which the rank is slow, and warn."""
        if found.slowdown <= self.factor:
            self._slow_rank, self._slow_for, self._said = -1, 0, False
            return
        if found.slowest != self._slow_rank:  # A different rank each time is chance.
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
    """Compare the ranks, or return ``None`` if fewer than two have reported.

    Args:
        work: Seconds per part (row) and rank (column). A rank with zero seconds has not reported.

    Example:
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
    # The low median: of two ranks, the median is the fast one.
    median = statistics.median_low(totals.values())
    lost = [row[slowest] - statistics.median_low([row[rank] for rank in totals]) for row in work]
    part = PARTS[lost.index(max(lost))]
    return Slowness(slowest, totals[slowest] / median, totals[slowest] - totals[fastest], part)


class WorkTimer:
    """Sum of the seconds of each part.

    At most one part is open: starting a part ends the previous one.

    Args:
        mark: Function that returns a time stamp.
        between: Function that returns the seconds between two time stamps, or ``None`` if not known yet.
    """

    def __init__(self, mark: Callable[[], Any], between: Callable[[Any, Any], float | None]) -> None:
        self._mark, self._between = mark, between
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._open: tuple[str, Any] | None = None
        self._unread: deque[tuple[str, Any, Any]] = deque()  # Times that the device has not reached yet.

    def begin(self, part: str) -> None:
        """Start a part, and end the previous one."""
        now = self._mark()
        self._close(now)
        self._open = part, now

    def end(self) -> None:
        """End the current part."""
        if self._open is not None:
            self._close(self._mark())

    def add(self, part: str, seconds: float) -> None:
        """Add seconds that were measured in another way."""
        self._seconds[part] += seconds

    def take(self) -> list[float]:
        """Return the seconds of each part since the last call."""
        self._read()
        taken = list(self._seconds.values())
        self._seconds = dict.fromkeys(PARTS, 0.0)
        return taken

    def _close(self, now: Any) -> None:
        """End the current part at this time stamp."""
        if self._open is not None:
            self._unread.append((*self._open, now))
            self._open = None
            self._read()

    def _read(self) -> None:
        """Add the times that the device has reached."""
        while self._unread:
            part, began, ended = self._unread[0]
            seconds = self._between(began, ended)
            if seconds is None:
                return  # Later events have not been reached either.
            self._seconds[part] += seconds
            self._unread.popleft()


def timer_of(device: torch.device) -> WorkTimer:
    """Return a timer on the timeline of the device, which runs asynchronously to the program."""
    if device.type == "cpu":
        return WorkTimer(time.perf_counter, lambda began, ended: float(ended - began))

    def mark() -> torch.Event:
        event = torch.Event(device, enable_timing=True)
        event.record()
        return event

    return WorkTimer(mark, between_events)


def between_events(began: Any, ended: Any) -> float | None:
    """Return the seconds between two events without waiting.

    ``None`` if the device has not reached the second event.
    """
    return began.elapsed_time(ended) / 1e3 if ended.query() else None
