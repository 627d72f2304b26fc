"""The training data of a run, for one process or for one among several, and where in an epoch it is."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookline.errors import DataError
from hookline.loop.feed import Feed, SharedFeed, feed_of, shared_feed_of
from hookline.loop.feed.facts import Facts, facts_of
from hookline.loop.feed.position import Position
from hookline.loop.feed.shared import distributed_sampler, says_sharded
from hookline.loop.feed.stripes import Share

if TYPE_CHECKING:
    from hookline.loop.ranks import Ranks
    from hookline.loop.training import Training

logger = logging.getLogger("hookline")


def make_feed(loop: Training, loader: Any, ranks: Ranks | None) -> Feed:
    """The feed of a training loader; of this rank's part of it, if there are others."""
    if ranks is None:
        return feed_of(loader, seed=loop.session.seed, rank=loop.state.rank)
    return shared_feed_of(loader, seed=loop.session.seed, circle=ranks.group, share=Share(*ranks.shares))


def first_feed(loop: Training, loader: Any) -> Feed:
    """The feed of a loader that the run has not read before, at the position of the checkpoint, if there is one."""
    feed = make_feed(loop, loader, loop.ranks)
    check_goes_on(loop, feed)
    _compare(loop, facts_of(loader))
    if loop.saved_feed and loop.feed is None:
        feed.load_state_dict(loop.saved_feed)
    if loop.saving.is_used and not loop.state.rank:
        for note in feed.notes:
            logger.warning("after a resume: %s", note)
    return feed


def _compare(loop: Training, here: Facts) -> None:
    """With the loader of before: in the checkpoint, or in this process. A place in an epoch is a number of samples."""
    clock, again = loop.clock, loop.feed is not None
    if again:  # another loader, later in this process, goes on where the one before it was left
        batch = clock.batch_in_epoch if loop.course.mid_epoch else 0
        loop.place = Position(clock.epoch, batch, taken(loop, batch) if batch else 0)
    saved, place = loop.saved_facts, loop.place.in_epoch(clock.epoch)
    loop.place = place._replace(taken=here.batches(place.taken, saved, place.epoch))
    changes = [] if again and not place.taken else here.changes(saved)
    if changes and not loop.state.rank:
        logger.warning(
            "the training data is not that of before (%s): its order is another from here on%s",
            ", ".join(changes),
            ", and in this epoch samples may come twice or not at all" if place.taken else "",
        )
    loop.saved_facts = here


def warn_of_lost_loader(loop: Training) -> None:
    """Warn before the first epoch after a resume if no hook has replaced the train loader again."""
    saved, loop.saved_replaced = loop.saved_replaced, 0
    if saved and not loop.times_replaced("train") and not loop.state.rank:
        logger.warning(
            "run.loaders['train'] was replaced before the checkpoint was saved, and not in this process: training "
            "continues on the loader that fit got. Replace it in on_fit_start."
        )


def check_goes_on(loop: Training, feed: Feed) -> None:
    """A loader that gives each rank its own share can be gone on with only by as many ranks."""
    saved, now = loop.saved_own, _own(feed)
    if saved != now and loop.place.in_epoch(loop.clock.epoch).taken:
        shared = f"gave each of {saved} ranks its own share" if saved > 1 else "was read as a whole"
        here = f"gives each of {now} ranks its own share" if now > 1 else "is read as a whole"
        raise DataError(
            f"the run was saved inside epoch {loop.place.epoch}, where the loader {shared}, and now it {here}, so that "
            f"nobody knows which samples are left: go on with as many processes and the same kind of loader, or from "
            f"a checkpoint of the end of an epoch; without a DistributedSampler or sharded = True any number can go on"
        )


def begin_epoch(loop: Training, feed: Feed) -> None:
    """Before the data of an epoch is asked for: where in it the run is, and how much of it is taken."""
    loop.place = loop.place.in_epoch(loop.clock.epoch)
    if isinstance(feed, SharedFeed):
        feed.limit = loop.limit("train")


def length_of_epoch(loop: Training, feed: Feed) -> float:
    """When the data of an epoch is open: how many batches this rank has in it, where that is known."""
    limit = loop.limit("train")
    if isinstance(feed, SharedFeed) and not math.isinf(limit):
        limit = -(-limit // feed.own)
    return loop.place.length(min(feed.length or math.inf, limit), _stride(feed))


def taken(loop: Training, batch: int) -> int:
    """How many of the loader's batches are behind all ranks when each has had so many in this epoch."""
    return loop.place.in_epoch(loop.clock.epoch).taken_after(batch, _stride(loop.feed))


def share_of(loader: Any, length: int, limit: float | None, ranks: Ranks | None) -> int:
    """How many batches a rank has of a loader that says it has so many; those that do not count included."""
    shares, limit = 1 if ranks is None else ranks.shares[0], math.inf if limit is None else limit
    if distributed_sampler(loader) is not None or says_sharded(loader):
        return int(min(length, -(-limit // shares)))
    return -(-int(min(length, limit)) // shares)


# -- in a checkpoint -----------------------------------------------------------------------------


def data_state(loop: Training, *, mid_epoch: bool) -> dict[str, Any]:
    """The position in the data, in a way that any number of processes can go on from."""
    batch = loop.clock.batch_in_epoch if mid_epoch else 0
    return {
        "seed": loop.session.seed,
        "feed": {} if loop.feed is None else loop.feed.state_dict(),
        "batch": batch,
        "taken": taken(loop, batch) if mid_epoch else 0,
        "own": loop.saved_own if loop.feed is None else _own(loop.feed),
        "facts": (loop.saved_facts if loop.feed is None else facts_of(loop.fed))._asdict(),
        "replaced": loop.times_replaced("train"),
    }


def load_data_state(loop: Training, saved: Mapping[str, Any], *, mid_epoch: bool) -> None:
    """After the clock. A checkpoint of an earlier version does not know of several processes."""
    clock = loop.clock
    batch = clock.batch_in_epoch if mid_epoch else 0
    given = loop.session.settings.seed
    if given not in (None, saved["seed"]) and not loop.state.rank:
        logger.warning("seed=%s is not used: the run goes on with its own, %s", given, saved["seed"])
    loop.session.seed = saved["seed"]
    loop.saved_feed, loop.saved_own = saved["feed"], saved.get("own", 1)
    loop.saved_facts = Facts(**saved.get("facts", {}))
    loop.saved_replaced = saved.get("replaced", 0)
    loop.place = Position(clock.epoch, saved.get("batch", batch), saved.get("taken", batch))


def _stride(feed: Feed | None) -> int:
    return feed.stride if isinstance(feed, SharedFeed) else 1


def _own(feed: Feed) -> int:
    return feed.own if isinstance(feed, SharedFeed) else 1
