"""The feeds of loaders that can only be read in order: from the beginning, or from a state of their own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from hookline.errors import DataError, HooklineWarning
from hookline.loop.data.batches import END, generators, set_epoch, sure_length
from hookline.loop.data.notes import one_shot_notes, stateful_notes, stream_notes
from hookline.loop.data.random_states import random_states, set_random_states
from hookline.loop.data.seeding import Apart, mix
from hookline.loop.data.workers import Workers, ignoring_workers

STREAM = 3
"""Keeps the seeds of these feeds apart from those of orders and batches."""


class StreamFeed:
    """Any iterable: each epoch runs on separate random states, and is read up to where it is to go on.

    So a loader that shuffles with ``torch.randperm`` or ``random.shuffle`` gives the same order again.

    >>> feed = StreamFeed({"a": 1, "b": 2, "c": 3}.keys(), seed=0)
    >>> list(feed.iterate(epoch=0, start=2))
    ['c']
    """

    def __init__(self, loader: Any, *, seed: int, rank: int = 0, tells: bool = True) -> None:
        """``tells``: the loader and its data set hear which epoch begins."""
        self._loader, self._seed, self._rank, self._tells = loader, seed, rank, tells
        self._generators = generators(loader)
        self._workers = Workers()
        self.length = sure_length(loader)
        self.notes = stream_notes(loader)

    def iterate(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of an epoch, from a batch on: those before are read with the first."""
        if self._tells:
            tell_epoch(self._loader, epoch)
        self.length = sure_length(self._loader)
        apart = Apart(self._generators, goes_on=True).at(mix(self._seed, epoch, STREAM, self._rank))
        if not self._workers.alive:
            forget_workers(self._loader)
        iterator = apart.run(fresh_iterator, self._loader, self._workers)
        return Reading(iterator, apart, skip=start)

    def state_dict(self) -> dict[str, Any]:
        """The number of workers, because the data depends on it."""
        return {"num_workers": self._loader.num_workers} if isinstance(self._loader, DataLoader) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved, now = state.get("num_workers"), getattr(self._loader, "num_workers", None)
        if saved != now:
            warnings.warn(
                f"the run was saved with num_workers={saved} and goes on with {now}: the data of this loader depends "
                f"on it, so that the resume is not exact; set num_workers={saved}",
                HooklineWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """End the worker processes."""
        self._workers.end()
        forget_workers(self._loader)


class StatefulFeed:
    """A loader with ``state_dict`` and ``load_state_dict``: its position is its own affair.

    Each epoch is read on separate random states, which are saved with the loader's state.
    """

    def __init__(self, loader: Any, *, seed: int, rank: int = 0) -> None:
        self._loader, self._seed, self._rank = loader, seed, rank
        self._generators = generators(loader)
        self._workers = Workers()
        self._saved: Mapping[str, Any] | None = None  # from a checkpoint, until it is known where to go on
        self._reading: NumberedReading | None = None
        self.length = sure_length(loader)
        self.notes = stateful_notes(loader)

    def iterate(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of an epoch, from a batch on: by the loader's state, where that is the one of the start."""
        tell_epoch(self._loader, epoch)
        self.length = sure_length(self._loader)
        seed = mix(self._seed, epoch, STREAM, self._rank)
        apart = Apart(goes_on=True).at(seed)
        there = self._load(epoch, start, apart)
        if not there and start and self._reading is not None and self._reading.position == (epoch, start):
            self._loader.load_state_dict(self._loader.state_dict())  # left early, and gone on with in this process
            there, apart = True, self._reading.apart
        iterator = Apart(self._generators).at(seed).run(fresh_iterator, self._loader, self._workers)
        self._reading = NumberedReading(iterator, apart, epoch, start if there else 0, start)
        return self._reading

    def state_dict(self) -> dict[str, Any]:
        """The loader's own state, and which batch comes next by it; that is not known while one is being read."""
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
        """Give the loader its state, if it is that of this place; whether it is there now, with its random states."""
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
    """An iterator: taken as it is in one process, and read up to where it was in a new one."""

    def __init__(self, loader: Iterator[Any], *, seed: int, rank: int = 0) -> None:
        self._loader = loader
        self._apart = Apart(goes_on=True).at(mix(seed, STREAM, rank))
        self._taken: int | None = None
        self._reading: Reading | None = None
        self.length: int | None = None
        self.notes = one_shot_notes(loader)

    def iterate(self, epoch: int, start: int) -> Iterator[Any]:
        """What is left of it."""
        tell_epoch(self._loader, epoch)
        if self._reading is None:
            self._reading = Reading(self._loader, self._apart, skip=start if self._taken is None else self._taken)
        return self._reading

    def state_dict(self) -> dict[str, Any]:
        """How many batches were taken of it in all epochs."""
        return {"taken": (self._taken or 0) if self._reading is None else self._reading.taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._taken, self._reading = int(state.get("taken", 0)), None

    def close(self) -> None:
        """There is nothing to end."""


class Reading(Iterator[Any]):
    """An iterator that runs on separate random states; the first batch skips the batches before it."""

    def __init__(self, iterator: Iterator[Any], apart: Apart, *, skip: int) -> None:
        self._iterator, self._apart, self._skip = iterator, apart, skip
        self._read = 0

    @property
    def taken(self) -> int:
        """How many batches are behind it, also those that it is still to skip."""
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
    """An iterator that runs on separate random states, and knows the number of the batch that comes next."""

    def __init__(self, iterator: Iterator[Any], apart: Apart, epoch: int, number: int, start: int) -> None:
        self._iterator, self._epoch, self._number, self._start = iterator, epoch, number, start
        self.apart = apart
        self._between = True

    @property
    def position(self) -> tuple[int, int] | None:
        """The epoch, and the number of the batch that comes next; nothing if a read was left in the middle."""
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
    """An iterator whose workers, if there are any, ignore signals and are ended with the feed."""
    if workers.alive and loader.persistent_workers:
        return iter(loader)  # they go on
    workers.end()
    with ignoring_workers(loader):
        iterator: Iterator[Any] = iter(loader)
    workers.watch(iterator)
    return iterator


def forget_workers(loader: Any) -> None:
    """Persistent workers that were started elsewhere are under another seed, or have ended: new ones are needed."""
    if isinstance(loader, DataLoader) and loader.persistent_workers:
        loader._iterator = None


def tell_epoch(loader: Any, epoch: int) -> None:
    """Tell the loader, its samplers and its data set which epoch begins."""
    set_epoch(loader, epoch)
    tell = getattr(getattr(loader, "dataset", None), "set_epoch", None)
    if callable(tell):
        tell(epoch)


def too_short(found: int, start: int) -> DataError:
    return DataError(
        f"the epoch is to go on at batch {start} and ended after {found} batches, while those before were read: "
        f"the loader does not give what it gave to the run that was saved"
    )
