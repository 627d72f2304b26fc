"""Feeds of loaders that can be read only in order: from the start, or from a saved state."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from hookline.distributed.random_states import random_states, set_random_states
from hookline.errors import DataError, HooklineWarning
from hookline.loop.data.batches import END, generators, set_epoch, sure_length
from hookline.loop.data.notes import one_shot_notes, stateful_notes, stream_notes
from hookline.loop.data.seeding import Apart, mix
from hookline.loop.data.workers import Workers, ignoring_workers

STREAM = 3
"""Number in the seeds of these feeds, so that they differ from the seeds of orders and batches."""


class StreamFeed:
    """The feed of any iterable.

    After a resume it reads and drops the batches before the position. Each epoch runs with separate random states, so
    a loader that shuffles with ``torch.randperm`` or ``random.shuffle`` gives the same order again.

    Args:
        loader: The iterable.
        seed: The seed of the run.
        rank: The rank of this process.
        tells: True to call ``set_epoch`` of the loader and its data set.

    Example:
        >>> feed = StreamFeed({"a": 1, "b": 2, "c": 3}.keys(), seed=0)
        >>> list(feed.iterate(epoch=0, start=2))
        ['c']
    """

    def __init__(self, loader: Any, *, seed: int, rank: int = 0, tells: bool = True) -> None:
        self._loader, self._seed, self._rank, self._tells = loader, seed, rank, tells
        self._generators = generators(loader)
        self._workers = Workers()
        self.length = sure_length(loader)
        self.notes = stream_notes(loader)

    def iterate(self, epoch: int, start: int) -> Iterator[Any]:
        """Return the batches of an epoch, from a batch on. The first batch reads those before it."""
        if self._tells:
            tell_epoch(self._loader, epoch)
        self.length = sure_length(self._loader)
        apart = Apart(self._generators, goes_on=True).at(mix(self._seed, epoch, STREAM, self._rank))
        if not self._workers.alive:
            forget_workers(self._loader)
        iterator = apart.run(fresh_iterator, self._loader, self._workers)
        return Reading(iterator, apart, skip=start)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of workers, on which the data depends."""
        return {"num_workers": self._loader.num_workers} if isinstance(self._loader, DataLoader) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved, now = state.get("num_workers"), getattr(self._loader, "num_workers", None)
        if saved != now:
            warnings.warn(
                f"the run was saved with num_workers={saved} and resumes with {now}: the data of this loader depends "
                f"on it, so that the resume is not exact; set num_workers={saved}",
                HooklineWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """End the worker processes."""
        self._workers.end()
        forget_workers(self._loader)


class StatefulFeed:
    """The feed of a loader with ``state_dict`` and ``load_state_dict``.

    Each epoch runs with separate random states, which are saved with the state of the loader.

    Args:
        loader: The loader.
        seed: The seed of the run.
        rank: The rank of this process.
    """

    def __init__(self, loader: Any, *, seed: int, rank: int = 0) -> None:
        self._loader, self._seed, self._rank = loader, seed, rank
        self._generators = generators(loader)
        self._workers = Workers()
        self._saved: Mapping[str, Any] | None = None  # the state of a checkpoint, until `iterate`
        self._reading: NumberedReading | None = None
        self.length = sure_length(loader)
        self.notes = stateful_notes(loader)

    def iterate(self, epoch: int, start: int) -> Iterator[Any]:
        """Return the batches of an epoch, from a batch on. A state of that batch is loaded."""
        tell_epoch(self._loader, epoch)
        self.length = sure_length(self._loader)
        seed = mix(self._seed, epoch, STREAM, self._rank)
        apart = Apart(goes_on=True).at(seed)
        there = self._load(epoch, start, apart)
        if not there and start and self._reading is not None and self._reading.position == (epoch, start):
            # The epoch was left early, and continues in the same process.
            self._loader.load_state_dict(self._loader.state_dict())
            there, apart = True, self._reading.apart
        iterator = Apart(self._generators).at(seed).run(fresh_iterator, self._loader, self._workers)
        self._reading = NumberedReading(iterator, apart, epoch, start if there else 0, start)
        return self._reading

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader, the next batch and the random states.

        While a batch is read, the next batch is not known.
        """
        reading = self._reading
        at = None if reading is None else reading.position
        return {
            "loader": self._loader.state_dict(),
            "at": None if at is None else list(at),
            "random": None if reading is None or at is None else reading.apart.run(random_states),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "loader" not in state:
            raise DataError(
                f"the saved position holds {', '.join(state) or 'nothing'} and not the state of a loader: the run was "
                f"saved with a loader of another kind than {type(self._loader).__name__}; pass that one again"
            )
        self._saved = state

    def _load(self, epoch: int, start: int, apart: Apart) -> bool:
        """Load the saved state if it belongs to this position.

        Return whether the loader is there now.
        """
        saved, self._saved = self._saved, None
        if saved is None:
            return False
        at = None if saved.get("at") is None else (int(saved["at"][0]), int(saved["at"][1]))
        if at == (epoch, start) or (at is not None and not start and at[0] < epoch):
            self._loader.load_state_dict(saved["loader"])
            if start and saved.get("random") is not None:
                apart.run(set_random_states, saved["random"])
            return bool(start)
        warnings.warn(
            f"a signal left {type(self._loader).__name__} in the middle of a step, so its own state is not used: it is "
            f"read from the start of epoch {epoch} up to batch {start}",
            HooklineWarning,
            stacklevel=2,
        )
        return False

    def close(self) -> None:
        """End the worker processes."""
        self._workers.end()
        forget_workers(self._loader)


class OneShotFeed:
    """The feed of an iterator.

    After a resume it reads and drops all batches before the position.

    Args:
        loader: The iterator.
        seed: The seed of the run.
        rank: The rank of this process.
    """

    def __init__(self, loader: Iterator[Any], *, seed: int, rank: int = 0) -> None:
        self._loader = loader
        self._apart = Apart(goes_on=True).at(mix(seed, STREAM, rank))
        self._taken: int | None = None
        self._reading: Reading | None = None
        self.length: int | None = None
        self.notes = one_shot_notes(loader)

    def iterate(self, epoch: int, start: int) -> Iterator[Any]:
        """Return the remaining batches."""
        tell_epoch(self._loader, epoch)
        if self._reading is None:
            self._reading = Reading(self._loader, self._apart, skip=start if self._taken is None else self._taken)
        return self._reading

    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches that were read in all epochs."""
        return {"taken": (self._taken or 0) if self._reading is None else self._reading.taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._taken, self._reading = int(state.get("taken", 0)) - int(state.get("dropped", 0)), None

    def close(self) -> None:
        """Do nothing: there are no workers."""


class Reading(Iterator[Any]):
    """An iterator that runs with separate random states.

    Args:
        iterator: The batches.
        apart: The random states.
        skip: The number of batches that the first call drops.
    """

    def __init__(self, iterator: Iterator[Any], apart: Apart, *, skip: int) -> None:
        self._iterator, self._apart, self._skip = iterator, apart, skip
        self._read = 0

    @property
    def taken(self) -> int:
        """The number of batches before the next one, including those that are still to be dropped."""
        return max(self._read, self._skip)

    def __next__(self) -> Any:
        while self._read < self._skip:
            if self._apart.run(next, self._iterator, END) is END:
                raise too_short(self._read, self._skip)
            self._read += 1
        batch = self._apart.run(next, self._iterator)
        self._read += 1
        return batch


class NumberedReading(Iterator[Any]):
    """An iterator that runs with separate random states, and knows the number of the next batch.

    Args:
        iterator: The batches.
        apart: The random states.
        epoch: The epoch.
        number: The number of the next batch of ``iterator``.
        start: The first batch to return. Those before it are dropped.
    """

    def __init__(self, iterator: Iterator[Any], apart: Apart, epoch: int, number: int, start: int) -> None:
        self._iterator, self._epoch, self._number, self._start = iterator, epoch, number, start
        self.apart = apart
        self._between = True

    @property
    def position(self) -> tuple[int, int] | None:
        """The epoch and the number of the next batch. ``None`` if a read was interrupted."""
        return (self._epoch, self._number) if self._between else None

    def __next__(self) -> Any:
        while self._number < self._start:
            if self._read(END) is END:
                raise too_short(self._number, self._start)
        batch = self._read(END)
        if batch is END:
            raise StopIteration
        return batch

    def _read(self, end: Any) -> Any:
        self._between = False
        batch = self.apart.run(next, self._iterator, end)
        if batch is not end:
            self._number += 1
        self._between = True
        return batch


def fresh_iterator(loader: Any, workers: Workers) -> Iterator[Any]:
    """Return an iterator whose workers ignore signals and end with the feed."""
    if workers.alive and loader.persistent_workers:
        return iter(loader)  # The persistent workers continue.
    workers.end()
    with ignoring_workers(loader):
        iterator: Iterator[Any] = iter(loader)
    workers.watch(iterator)
    return iterator


def forget_workers(loader: Any) -> None:
    """Let a loader start new persistent workers: earlier ones have ended or have another seed."""
    if isinstance(loader, DataLoader) and loader.persistent_workers:
        loader._iterator = None


def tell_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` of a loader, its samplers and its data set."""
    set_epoch(loader, epoch)
    own = getattr(getattr(loader, "dataset", None), "set_epoch", None)
    if callable(own):
        own(epoch)


def too_short(found: int, start: int) -> DataError:
    """Return the error for a loader that ends before the position of a resume."""
    return DataError(
        f"the epoch is to continue at batch {start} and ended after {found} batches, while those before were read: "
        f"the loader does not give what it gave to the run that was saved"
    )
