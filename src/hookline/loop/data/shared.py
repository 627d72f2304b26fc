"""``shared_feed_of``: the data of one rank among several. Ranks get batches of the loader.

- A plain ``DataLoader`` over a map-style data set: each rank reads only its own batches (``dealt.py``).
- A list of batches: each rank reads its own batches by index (``dealt.py``).
- A loader with ``sharded = True`` on itself or its data set gives each rank its own data (``rounds.py``).
- A loader with a ``DistributedSampler`` does so as well. In an evaluation it must not repeat or drop samples.
- Any other loader is read completely by each rank, which keeps its own batches (``rounds.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, MapDataPipe

from hookline.errors import DataError
from hookline.loop.data.agreement import Circle
from hookline.loop.data.dealt import DealtMap, DealtSequence, SharedFeed
from hookline.loop.data.feed import Feed, feed_of, is_by_index
from hookline.loop.data.map import MapFeed
from hookline.loop.data.rounds import OwnShare, Rounds
from hookline.loop.data.stream import StreamFeed
from hookline.loop.data.stripes import Share

logger = logging.getLogger("hookline")

Count = Callable[[Any], tuple[int, int | None]]
"""Returns the number of samples and of tokens in a batch."""


def shared_feed_of(
    loader: Any, *, seed: int, circle: Circle, share: Share, evaluates: str = "", count: Count | None = None
) -> SharedFeed:
    """Return the feed of a loader of any kind, for one of several ranks.

    Args:
        loader: The loader.
        seed: The seed of the run.
        circle: The group of all ranks.
        share: The shard of this rank.
        evaluates: Name of an evaluation or prediction. It reads each sample once, and does not call ``set_epoch``.
        count: Counts the samples of a batch, in an evaluation.
    """
    sampler = distributed_sampler(loader)
    if sampler is not None:
        check_sampler(sampler, share, evaluates)
        extra = sampler.total_size - len(sampler.dataset)  # type: ignore[arg-type]
        if extra and circle.rank == 0:
            what = f"repeats {extra}" if extra > 0 else f"leaves out {-extra}"
            logger.warning("the DistributedSampler %s samples in each epoch; without it each is trained on once", what)
        inner = _inner(loader, seed, share.part, evaluates)
        if isinstance(inner, MapFeed) and inner.length is not None:
            return OwnShare(inner, circle, share)
        return Rounds(inner, circle, share, own=True)
    if says_sharded(loader):
        _log(circle, loader, "gives each rank its own shard of the data")
        return Rounds(_inner(loader, seed, share.part, evaluates), circle, share, own=True)
    if is_map(loader):
        return DealtMap(loader, seed, circle, share, evaluates=bool(evaluates))
    if isinstance(loader, Sequence) and is_by_index(loader):
        return DealtSequence(loader, circle, share, count if evaluates else None, tells=not evaluates)
    _log(circle, loader, f"is read whole by each rank, which keeps one batch in {share.shares}")
    checks = getattr(loader, "sharded", getattr(getattr(loader, "dataset", None), "sharded", None)) is None
    return Rounds(_inner(loader, seed, 0, evaluates), circle, share, own=False, count=count, checks=checks)


def is_map(loader: Any) -> bool:
    """True for a plain ``DataLoader`` over a map-style data set."""
    return type(loader) is DataLoader and not isinstance(loader.dataset, IterableDataset | MapDataPipe)


def says_sharded(loader: Any) -> bool:
    """True if a loader or its data set has ``sharded = True``."""
    return any(getattr(part, "sharded", False) is True for part in (loader, getattr(loader, "dataset", None)))


def distributed_sampler(loader: Any) -> DistributedSampler[Any] | None:
    """Return the ``DistributedSampler`` of a loader. ``None`` if it has none."""
    outer = getattr(loader, "batch_sampler", None)
    for found in (getattr(loader, "sampler", None), outer, getattr(outer, "sampler", None)):
        if isinstance(found, DistributedSampler):
            return found
    return None


def check_sampler(sampler: DistributedSampler[Any], share: Share, evaluates: str) -> None:
    """Raise an error if a ``DistributedSampler`` does not give this rank its samples.

    In an evaluation, all ranks together must read each sample once.

    Args:
        sampler: The sampler.
        share: The shard of this rank.
        evaluates: Name of an evaluation or prediction. Empty in training.
    """
    given = (sampler.num_replicas, sampler.rank)
    if given != tuple(share):
        raise DataError(
            f"the DistributedSampler was made for rank {given[1]} of {given[0]}, and this is share {share.part} of "
            f"{share.shares} of the data: leave num_replicas and rank out, or leave the sampler out"
        )
    if evaluates == "predict":
        raise DataError(
            "the predict loader has a DistributedSampler, which takes its order apart, so that predictions could not "
            "be put together again: leave the sampler out; each sample is predicted once, on one rank"
        )
    size = len(sampler.dataset)  # type: ignore[arg-type]
    extra = sampler.total_size - size
    if extra and evaluates:
        what = f"repeats {extra}" if extra > 0 else f"drops {-extra}"
        raise DataError(
            f"the {evaluates} loader has a DistributedSampler, which {what} of {size} samples so that all "
            f"{share.shares} ranks get as many: metrics would be wrong; leave the sampler out, each sample is read once"
        )


def _inner(loader: Any, seed: int, rank: int, evaluates: str) -> Feed:
    if not evaluates:
        return feed_of(loader, seed=seed, rank=rank)
    if is_map(loader):
        return MapFeed(loader, seed=seed, rank=rank, tells=False)
    return StreamFeed(loader, seed=seed, rank=rank, tells=False)


def _log(circle: Circle, loader: Any, what: str) -> None:
    if circle.rank == 0:
        logger.info("in several processes: the loader (%s) %s", type(loader).__name__, what)
