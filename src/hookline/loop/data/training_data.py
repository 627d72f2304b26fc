"""The training data of a run: the loader, the position, and the changes that callbacks make."""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from hookline.errors import DataError, SetupError
from hookline.loop.data import Feed, SharedFeed, feed_of, shared_feed_of
from hookline.loop.data.dealt import DealtMap
from hookline.loop.data.facts import Facts, facts_of
from hookline.loop.data.loaders import named_loaders
from hookline.loop.data.map import MapFeed
from hookline.loop.data.position import Position
from hookline.loop.data.shared import distributed_sampler, says_sharded
from hookline.loop.data.stripes import Share
from hookline.loop.world.world import World
from hookline.progress import Clock
from hookline.progress.counted import counted

logger = logging.getLogger("hookline")


@dataclass(frozen=True)
class SavedData:
    """The training data of a checkpoint, until the loader is known."""

    feed: Mapping[str, Any] = field(default_factory=dict)
    own: int = 1
    """The number of ranks among which the loader itself sharded the data. 1 if each rank could read all of it."""
    facts: Facts = field(default_factory=Facts)
    replaced: int = 0
    """How often the run had replaced its train loader."""


class TrainingData:
    """The loader that training reads, the position in it, and the changes that callbacks make.

    Args:
        clock: The clock of the run.
        rank: The rank of this process.
        loaders: ``run.loaders``, by stage.
    """

    def __init__(self, clock: Clock, rank: int, loaders: dict[str, Any]) -> None:
        self._clock, self._rank, self._loaders = clock, rank, loaders
        self.seed = 0
        """The seed of the run. The order of the data is a function of it."""
        self.iterator: Iterator[Any] = iter(())
        """The batches of this epoch."""
        self.given = 0
        """The number of batches that ``iterator`` has given, those before a resume included."""
        self.length: float = math.inf
        """The number of batches of this epoch on this rank, if it is known."""
        self.feed: Feed | None = None
        self.loader: Any = None
        """The loader of ``feed``. ``run.loaders["train"]`` may be the loader of the next epoch already."""
        self._place = Position()  # the position at which this epoch was started or resumed
        self._saved = SavedData()
        self._records_samples = False
        self._digested = 0  # The position up to which `take_digest` was called.
        self.reset_plans()

    # -- changes by callbacks, for one fit --------------------------------------------------------

    def set_seed(self, seed: int) -> None:
        """Set the seed of the run."""
        self.seed = seed

    def repeat_first_epoch(self) -> None:
        """Give the batches of the first epoch in each epoch."""
        self.repeat_epoch = True

    def reset_plans(self) -> None:
        """Reset the changes of callbacks at the start of a fit. Its callbacks make them again."""
        self.limits: dict[str, int] = {}
        """Largest number of batches of an epoch or an evaluation, by stage."""
        self.repeat_epoch = False
        """True if each epoch gives the batches of the first epoch again."""
        self._used: dict[str, Any] = {}
        self._replaced: dict[str, int] = {}

    def replace_loader(self, stage: str, loader: Any) -> None:
        """Use another loader from the next epoch or evaluation on."""
        self._used[stage] = self._loaders[stage] = loader
        self._replaced[stage] = self._replaced.get(stage, 0) + 1

    def times_replaced(self, stage: str) -> int:
        """Return how many times the loader of a stage was replaced in this fit."""
        return self._replaced.get(stage, 0)

    def check_replaced(self, stage: str, world: World) -> None:
        """Refuse a loader that only some ranks have replaced. All ranks must call it before an epoch or evaluation."""
        times = counted(self.times_replaced(stage), "time")
        world.compare(lambda: {f"run.loaders[{stage!r}], replaced": times}, "Replace it on all ranks.")

    def loader_of(self, stage: str, given: Any) -> Any:
        """Return the loader of a stage: the one that was passed, or its replacement."""
        return self._used.get(stage, given)

    def named_loaders_of(self, stage: str, given: dict[str | None, Any]) -> dict[str | None, Any]:
        """Return the named loaders of a stage: those that were passed, or their replacement."""
        return named_loaders(self._used[stage], stage) if stage in self._used else given

    def limit(self, stage: str) -> float:
        """Return the largest number of batches of an epoch or an evaluation."""
        found = self.limits.get(stage, math.inf)
        if found < 1:
            raise SetupError(f"loop.data.limits[{stage!r}] = {found!r}: give 1 batch or more; del it for no limit")
        return found

    def shard_length(self, stage: str, loader: Any, length: int, world: World) -> int:
        """Return the number of batches of a rank, including padding.

        Args:
            stage: The stage.
            loader: The loader.
            length: The length of the loader.
            world: The processes of the run.
        """
        shards, limit = world.shares[0], self.limits.get(stage, math.inf)
        if distributed_sampler(loader) is not None or says_sharded(loader):
            return int(min(length, -(-limit // shards)))
        return -(-int(min(length, limit)) // shards)

    # -- the samples of each step ------------------------------------------------------------------

    def record_samples(self, records: bool) -> None:
        """Set whether ``take_digest`` will be called in this fit."""
        self._records_samples = records

    def take_digest(self, position: int) -> int:
        """Return a digest of the indices of the batches up to a position, since the last call.

        Args:
            position: The position in the epoch.

        Returns:
            0 if the indices are not known, as for iterable data.
        """
        digests = getattr(getattr(self.feed, "tickets", None), "digests", None)
        count, self._digested = position - self._digested, position
        if not digests:
            return 0
        found = [digests.popleft() for _ in range(min(count, len(digests)))]
        return found[0] if len(found) == 1 else crc32(array("I", found))

    # -- the loader and the position ---------------------------------------------------------------

    def open(self, loader: Any, *, seed: int, world: World, is_epoch_begun: bool, warn: bool) -> Feed:
        """Return the feed of a loader. The same loader gets the same feed.

        Args:
            loader: The training loader.
            seed: The seed of the run.
            world: The processes of the run.
            is_epoch_begun: True if the run is inside an epoch.
            warn: True to warn if a resume of this loader is slow or not exact.
        """
        if self.feed is None or self.loader is not loader:
            before, feed = self.feed, make_feed(loader, seed, self._rank, world)
            self._check_own(feed)
            self._compare(facts_of(loader), is_epoch_begun=is_epoch_begun)
            if self._saved.feed and before is None:
                feed.load_state_dict(self._saved.feed)
            for note in feed.notes if warn and not self._rank else ():
                logger.warning("after a resume: %s", note)
            self.feed, self.loader = feed, loader
            if self._records_samples and isinstance(feed, MapFeed | DealtMap):
                feed.tickets.record_digests()
            if before is not None:
                before.close()
        if isinstance(self.feed, SharedFeed):
            self.feed.join(world.group)
        return self.feed

    def begin_epoch(self, feed: Feed) -> None:
        """Set the position in the epoch, before its data is read."""
        self._place = self._place.in_epoch(self._clock.epoch)
        if isinstance(feed, SharedFeed):
            feed.set_limit(self.limit("train"))

    def count_batch(self, *, is_last: bool) -> bool:
        """Count a batch that is given. Return whether it is the last of the epoch.

        Args:
            is_last: True if the batch says so itself.
        """
        self.given += 1
        if is_last:
            self.length = self.given
        return self.given == self.length

    def start(self, iterator: Iterator[Any]) -> None:
        """Read the batches of this epoch from an iterator."""
        self.iterator = iterator

    def measure_epoch(self, feed: Feed) -> None:
        """Set the number of batches of this rank, after ``feed.iterate``."""
        limit = self.limit("train")
        if isinstance(feed, SharedFeed) and not math.isinf(limit):
            limit = -(-limit // feed.own)
        self.length = self._place.length(min(feed.length or math.inf, limit), _stride(feed))
        self.given = self._digested = self._clock.batch_in_epoch

    def taken(self, batch: int) -> int:
        """Return how many batches of the loader are read after ``batch`` batches of each rank."""
        return self._place.in_epoch(self._clock.epoch).taken_after(batch, _stride(self.feed))

    def warn_of_lost_loader(self) -> None:
        """Warn before the first epoch after a resume if no hook has replaced the loader again."""
        if self._saved.replaced and not self.times_replaced("train") and not self._rank:
            logger.warning(
                "run.loaders['train'] was replaced before the checkpoint was saved, and not in this process: training "
                "continues on the loader that fit got. Replace it in on_fit_start."
            )
        self._saved = SavedData(self._saved.feed, self._saved.own, self._saved.facts)

    def close(self) -> None:
        """End the workers of the loader."""
        if self.feed is not None:
            self.feed.close()

    def _check_own(self, feed: Feed) -> None:
        """Raise an error if a run continues inside an epoch with a loader of other shards."""
        saved, now = self._saved.own, _own(feed)
        if saved != now and self._place.in_epoch(self._clock.epoch).taken:
            shared = f"gave each of {saved} ranks its own share" if saved > 1 else "was read as a whole"
            here = f"gives each of {now} ranks its own share" if now > 1 else "is read as a whole"
            raise DataError(
                f"the run was saved inside epoch {self._place.epoch}, where the loader {shared}, and now it {here}, so "
                f"it is unknown which samples are left: resume with as many processes and the same kind of loader, "
                f"or from a checkpoint of the end of an epoch; without a DistributedSampler or sharded = True any "
                f"number can resume"
            )

    def _compare(self, here: Facts, *, is_epoch_begun: bool) -> None:
        """Compare the loader with the one before it, and convert the position to its batch size."""
        clock, again = self._clock, self.feed is not None
        if again:  # In the same process, another loader continues at the position of the one before it.
            batch = clock.batch_in_epoch if is_epoch_begun else 0
            self._place = Position(clock.epoch, batch, self.taken(batch) if batch else 0)
        saved, place = self._saved.facts, self._place.in_epoch(clock.epoch)
        self._place = place._replace(taken=here.batches(place.taken, saved, place.epoch))
        changes = [] if again and not place.taken else here.changes(saved)
        if changes and not self._rank:
            logger.warning(
                "the training data is not that of before (%s): its order is another from here on%s",
                ", ".join(changes),
                ", and in this epoch samples may come twice or not at all" if place.taken else "",
            )
        self._saved = SavedData(self._saved.feed, self._saved.own, here, self._saved.replaced)

    # -- in a checkpoint ---------------------------------------------------------------------------

    def state_dict(self, *, is_epoch_begun: bool) -> dict[str, Any]:
        """Return the position in the data. Any number of processes can continue from it."""
        batch, feed = self._clock.batch_in_epoch if is_epoch_begun else 0, self.feed
        taken = self.taken(batch) if is_epoch_begun else 0
        # Batches that were given to a step that was dropped. An iterator has read them, and its feed counts them.
        dropped = max(0, self.taken(self.given) - taken) if is_epoch_begun else 0
        return {
            "seed": self.seed,
            "feed": {} if feed is None else {**feed.state_dict(), "dropped": dropped},
            "batch": batch,
            "taken": taken,
            "own": self._saved.own if feed is None else _own(feed),
            "facts": (self._saved.facts if feed is None else facts_of(self.loader))._asdict(),
            "replaced": self.times_replaced("train"),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, is_epoch_begun: bool) -> None:
        """Load the seed and the position, after the clock. Older checkpoints lack some of the fields."""
        self.seed = state["seed"]
        batch = self._clock.batch_in_epoch if is_epoch_begun else 0
        facts = Facts(**state.get("facts", {}))
        self._saved = SavedData(state["feed"], state.get("own", 1), facts, state.get("replaced", 0))
        self._place = Position(self._clock.epoch, state.get("batch", batch), state.get("taken", batch))


def make_feed(loader: Any, seed: int, rank: int, world: World) -> Feed:
    """Return the feed of a training loader: of all its batches, or of this rank's shard of them."""
    if world.is_alone:
        return feed_of(loader, seed=seed, rank=rank)
    return shared_feed_of(loader, seed=seed, circle=world.group, share=Share(*world.shares))


def _stride(feed: Feed | None) -> int:
    return feed.stride if isinstance(feed, SharedFeed) else 1


def _own(feed: Feed) -> int:
    return feed.own if isinstance(feed, SharedFeed) else 1
