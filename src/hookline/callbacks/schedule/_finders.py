"""Search for a learning rate or a batch size, and the figures of the search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from hookline.callbacks._plots import BLUE, ORANGE, RED, new_figure, style_axes
from hookline.errors import NotAvailableError, SetupError, kind_of

if TYPE_CHECKING:
    from hookline.run import Run


ROUNDING = 1e-9
"""Smallest fall that counts, as a fraction of the loss. A smaller fall is a rounding error."""


def lr_figure(
    lrs: Sequence[float], raw: Sequence[float], smooth: Sequence[float], found: int | None, log_x: bool
) -> Any:
    """Draw the losses over the learning rates, with the suggestion."""
    from matplotlib.ticker import NullLocator

    figure, axes = _figure()
    axes.plot(lrs, _drawable(raw), color=BLUE, linewidth=0.9, alpha=0.4, label="loss")
    axes.plot(lrs, _drawable(smooth), color=BLUE, linewidth=1.8, label="smoothed")
    if log_x:
        axes.set_xscale("log")
        # Minor ticks without labels would take most of the drawing time.
        axes.xaxis.set_minor_locator(NullLocator())
    if found is not None:
        axes.plot([lrs[found]], [smooth[found]], "o", color=ORANGE, markersize=8, label=f"suggestion {lrs[found]:.3g}")
        axes.axvline(lrs[found], color=ORANGE, linewidth=0.8, alpha=0.6)
    finite = [value for value in _drawable(smooth) if value == value]
    if finite:
        low = min(value for value in (*finite, *_drawable(raw)) if value == value)
        room = (finite[0] - low) or abs(low) or 1.0
        # A diverging loss would flatten the rest of the curve.
        axes.set_ylim(low - 0.05 * room, finite[0] + 0.5 * room)
    axes.set_xlabel("learning rate", fontsize=9)
    axes.set_ylabel("loss", fontsize=9)
    axes.set_title("LRFinder", loc="left", fontsize=11, fontweight="bold")
    axes.legend(frameon=False, fontsize=8)
    return figure


def size_figure(sizes: Sequence[int], speeds: Sequence[float], failed: Sequence[int], chosen: int | None) -> Any:
    """Draw samples per second over batch sizes. Crosses mark sizes that did not fit."""
    from matplotlib.ticker import FuncFormatter

    figure, axes = _figure()
    axes.plot(sizes, speeds, color=BLUE, linewidth=1.8, marker="o", markersize=4, label="fits")
    if failed:
        axes.plot(
            failed, [0.03] * len(failed), "x", color=RED, transform=axes.get_xaxis_transform(), label="out of memory"
        )
    if chosen is not None:
        axes.axvline(chosen, color=ORANGE, linewidth=1.0, alpha=0.8, label=f"found {chosen}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch size", fontsize=9)
    axes.set_ylabel("samples per second", fontsize=9)
    axes.set_title("BatchSizeFinder", loc="left", fontsize=11, fontweight="bold")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _figure() -> tuple[Any, Any]:
    """Return an empty figure and its axes."""
    figure = new_figure(6.4, 3.8, dpi=110)
    # The layout is fixed because an automatic layout takes longer than drawing.
    axes = figure.add_axes((0.11, 0.13, 0.86, 0.78))
    style_axes(axes)
    return figure, axes


def _drawable(values: Sequence[float]) -> list[float]:
    """Replace values that cannot be drawn by NaN."""
    return [value if math.isfinite(value) and abs(value) < 1e100 else math.nan for value in values]


def need_task(run: Run, who: str) -> None:
    """Raise if the run has no task: only a task knows how to train on a batch."""
    try:
        task = run.task
    except NotAvailableError:
        task = None
    if task is None:
        raise SetupError(
            f"{who} runs training steps itself, and a custom loop keeps them in its body; use Trainer.fit or hl.fit "
            f"with a model or a task"
        )


def need_one_process(run: Run, who: str) -> None:
    """Raise if the run has several processes."""
    if run.world_size > 1:
        raise SetupError(f"{who} works in one process, and this run has {run.world_size}; find it on one, then set it")


def rates(low: float, high: float, count: int, *, linear: bool) -> list[float]:
    """Return ``count`` learning rates from ``low`` to ``high``, both included.

    Example:
        >>> rates(0.001, 1.0, 4, linear=False), rates(0.0, 3.0, 4, linear=True)
        ([0.001, 0.01, 0.1, 1.0], [0.0, 1.0, 2.0, 3.0])
    """
    shares = [index / (count - 1) for index in range(count)]
    if linear:
        found = [low + (high - low) * share for share in shares]
    else:
        found = [math.exp(math.log(low) + (math.log(high) - math.log(low)) * share) for share in shares]
    return [low, *(float(f"{rate:.12g}") for rate in found[1:-1]), high]


class Smoothed:
    """Exponential moving average of the losses with bias correction, and its minimum."""

    def __init__(self, beta: float) -> None:
        self._beta = beta
        self._mean = 0.0
        self._count = 0
        self.best = math.inf

    def add(self, loss: float) -> float:
        """Add a loss and return the smoothed loss."""
        self._count += 1
        self._mean = self._beta * self._mean + (1.0 - self._beta) * loss
        value = self._mean / (1.0 - self._beta**self._count)
        if value < self.best:
            self.best = value
        return value


def steepest(losses: Sequence[float], *, skip_begin: int, skip_end: int) -> int | None:
    """Return the index at which the loss falls most, or ``None`` if it does not fall.

    Example:
        >>> steepest([3.0, 3.0, 2.0, 1.0, 1.0], skip_begin=0, skip_end=0)
        2
    """
    end = len(losses) - skip_end
    usable = [index for index in range(skip_begin, end) if math.isfinite(losses[index])]
    if len(usable) < 2:
        return None
    inside = [losses[index] for index in usable]
    slopes = [_slope(inside, place) for place in range(len(inside))]
    lowest = min(range(len(slopes)), key=slopes.__getitem__)
    falls = slopes[lowest] < -ROUNDING * max(map(abs, inside))
    return usable[lowest] if falls else None


def _slope(values: Sequence[float], place: int) -> float:
    """Return the central difference, or the difference to the neighbor at both ends."""
    if place == 0:
        return values[1] - values[0]
    if place == len(values) - 1:
        return values[-1] - values[-2]
    return (values[place + 1] - values[place - 1]) / 2


def largest(
    fits: Callable[[int], bool], *, start: int, limit: int, trials: int, bisect: bool, margin: float = 0.0
) -> int | None:
    """Return the largest size that fits, or ``None`` if not even 1 fits.

    Args:
        fits: Function that tries a size.
        start: First size. It is doubled until a size does not fit.
        limit: Largest size to try.
        trials: Largest number of sizes to try.
        bisect: Also bisect between the last size that fits and the first that does not.
        margin: Fraction to leave free below the bisected size.

    Example:
        >>> largest(lambda size: size <= 100, start=2, limit=8192, trials=25, bisect=False)
        64
        >>> largest(lambda size: size <= 100, start=2, limit=8192, trials=25, bisect=True)
        100
    """
    good, bad, size = 0, 0, min(start, limit)
    while trials > 0 and not bad:
        trials -= 1
        if fits(size):
            good = size
            if size == limit:
                break
            size = min(size * 2, limit)
        else:
            bad = size
    # Halve the size if even the first one was too large.
    while bad and not good and bad > 1 and trials > 0:
        trials -= 1
        size = bad // 2
        good, bad = (size, bad) if fits(size) else (0, size)
    if bisect and bad and good:
        good = _bisected(fits, good, bad, trials)
        good = max(1, int(good * (1.0 - margin)))
    return good or None


def _bisected(fits: Callable[[int], bool], good: int, bad: int, trials: int) -> int:
    """Bisect between a size that fits and one that does not."""
    while trials > 0 and bad - good > 1:
        trials -= 1
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def check_can_resize(loader: Any, who: str) -> None:
    """Raise if the loader cannot be copied. Only a plain ``DataLoader`` can."""
    why = _why_not(loader)
    if why:
        raise SetupError(
            f"{who} cannot make the training loader in another size: {why}; "
            f"say how with make_loader=lambda size: DataLoader(…, batch_size=size)"
        )


def _why_not(loader: Any) -> str:
    """Return why a loader cannot be copied, or an empty string."""
    if type(loader) is not DataLoader:
        return f"it is {kind_of(loader)}, not a plain DataLoader"
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        return "it has a custom batch sampler, or none"
    return (
        "its data set is iterable, and may count batches itself" if isinstance(loader.dataset, IterableDataset) else ""
    )


def resized(loader: DataLoader[Any], size: int) -> DataLoader[Any]:
    """Return a copy of the loader with this batch size and the same sampler."""
    extra: dict[str, Any] = {}
    if loader.num_workers:
        extra = {"prefetch_factor": loader.prefetch_factor, "persistent_workers": loader.persistent_workers}
    return DataLoader(
        loader.dataset,
        batch_size=size,
        sampler=loader.sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        **extra,
    )


def max_size(loader: Any, limit: int) -> int:
    """Return the limit, or the number of samples if it is smaller."""
    try:
        return max(1, min(limit, len(loader.sampler)))
    except (AttributeError, TypeError):
        return limit
