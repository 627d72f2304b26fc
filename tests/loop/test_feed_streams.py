"""Loaders that are iterated over as they are: lists, iterables, sub-classes, iterators, loaders with a state."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hookline.errors import DataError, HooklineWarning
from hookline.loop.data import Feed, feed_of


def drawn() -> list[float]:
    return [torch.rand(()).item(), random.random(), np.random.rand()]


class Shuffling:
    """A loader of the user's own, which shuffles anew in each iteration and draws at random for each batch."""

    def __init__(self) -> None:
        self.read = 0
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(10).tolist()
        random.shuffle(order)
        for index in order:
            self.read += 1
            yield [index, *drawn()]


class Stream(IterableDataset[Any]):
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for index in range(10):
            yield torch.tensor([index, self.epoch, *drawn()], dtype=torch.float64)


class OwnLoader(DataLoader[Any]):
    """A sub-class: what it does besides is not known."""


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, *drawn()], dtype=torch.float64)


class Stateful:
    """A loader that knows where it is, as ``StatefulDataLoader`` does."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.position = self.read = 0

    def __iter__(self) -> Iterator[Any]:
        if not self.order:
            self.order = torch.randperm(10).tolist()
        while self.position < 10:
            index = self.order[self.position]
            self.position += 1
            self.read += 1
            yield [index, *drawn()]
        self.order, self.position = [], 0

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self.order), "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.position = list(state["order"]), state["position"]


def plain(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, Tensor) else batch


def read(feed: Feed, epoch: int, start: int = 0) -> list[Any]:
    return [plain(batch) for batch in feed.iterate(epoch, start)]


def random_states() -> tuple[Any, ...]:
    return random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # type: ignore[index]


MAKERS: dict[str, Any] = {
    "iterable": Shuffling,
    "iterable data set": lambda: DataLoader(Stream(), batch_size=3),
    "sub-class": lambda: OwnLoader(Augmented(), batch_size=3, shuffle=True),
    "sub-class with a generator": lambda: OwnLoader(
        Augmented(), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(3)
    ),
    "stateful": Stateful,
    "iterator": lambda: iter(Shuffling()),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_left_of_an_epoch_is_the_same_in_a_new_process(kind: str) -> None:
    whole = read(feed_of(MAKERS[kind](), seed=1), 0)
    torch.rand(3), random.random(), np.random.rand()
    for start in (0, 1, len(whole) - 1, len(whole)):
        feed = feed_of(MAKERS[kind](), seed=1)
        assert read(feed, 0, start) == whole[start:]


@pytest.mark.parametrize("kind", MAKERS)
def test_reading_leaves_the_random_states_of_the_program_alone(kind: str) -> None:
    loader = MAKERS[kind]()
    before, given = random_states(), getattr(loader, "generator", None)
    state = None if given is None else given.get_state().tolist()
    for _ in feed_of(loader, seed=1).iterate(0, 2):
        assert random_states() == before
    assert state == (None if given is None else given.get_state().tolist())


@pytest.mark.parametrize("kind", ["iterable", "iterable data set", "sub-class", "stateful"])
def test_each_epoch_and_each_seed_draws_anew(kind: str) -> None:
    feed = feed_of(MAKERS[kind](), seed=1)
    first, second = read(feed, 0), read(feed, 1)
    assert first != second
    assert read(feed_of(MAKERS[kind](), seed=1), 1) == second
    assert read(feed_of(MAKERS[kind](), seed=2), 0) != first


@pytest.mark.parametrize("kind", ["iterable", "iterable data set", "sub-class", "iterator"])
def test_that_batches_are_read_and_dropped_is_said(kind: str) -> None:
    notes = feed_of(MAKERS[kind](), seed=0).notes
    assert "reads and drops" in notes[0]
    assert feed_of(MAKERS[kind](), seed=0).length == (4 if kind == "sub-class" else None)


def test_what_depends_on_the_workers_of_iterable_data_is_said() -> None:
    notes = feed_of(DataLoader(Stream(), num_workers=2, persistent_workers=True), seed=0).notes
    assert "num_workers=2 must be the same" in notes[1]
    assert "persistent_workers=True" in notes[2]


def test_iterable_data_and_its_loader_are_told_the_epoch() -> None:
    assert {row[1] for batch in read(feed_of(DataLoader(Stream(), batch_size=3), seed=0), 6) for row in batch} == {6.0}
    loader = Shuffling()
    read(feed_of(loader, seed=0), 4, 2)
    assert loader.epochs == [4]


def test_another_number_of_workers_after_a_resume_is_a_warning() -> None:
    saved = feed_of(DataLoader(Stream(), num_workers=2), seed=0).state_dict()
    feed_of(DataLoader(Stream(), num_workers=2), seed=0).load_state_dict(saved)
    with pytest.warns(HooklineWarning, match="saved with num_workers=2 and resumes with 0"):
        feed_of(DataLoader(Stream()), seed=0).load_state_dict(saved)


@pytest.mark.parametrize("kind", ["iterable", "iterable data set", "sub-class", "stateful", "iterator"])
def test_a_loader_that_ends_before_the_start_says_that_it_is_not_the_same(kind: str) -> None:
    with pytest.raises(DataError, match=r"continue at batch 11 and ended after \d+"):
        read(feed_of(MAKERS[kind](), seed=0), 0, 11)


# -- lists ---------------------------------------------------------------------------------------


def test_a_list_is_iterated_over_with_nothing_around_it() -> None:
    batches = [1, 2, 3]
    feed = feed_of(batches, seed=0)
    assert type(feed.iterate(0, 0)) is type(iter(batches))
    assert [list(feed.iterate(epoch, start)) for epoch, start in ((0, 0), (1, 2), (2, 3))] == [[1, 2, 3], [3], []]
    assert (feed.length, feed.notes, feed.state_dict()) == (3, (), {})
    with pytest.raises(DataError, match="continue at batch 4 and the list has only 3"):
        feed.iterate(0, 4)


def test_a_sequence_reads_none_of_the_batches_before_the_start() -> None:
    class Lazy(Sequence[Any]):
        def __init__(self) -> None:
            self.read: list[int] = []

        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: Any) -> Any:
            if not 0 <= index < 10:
                raise IndexError(index)
            self.read.append(index)
            return index

    loader = Lazy()
    assert list(feed_of(loader, seed=0).iterate(0, 7)) == [7, 8, 9] == loader.read
    assert list(feed_of(loader, seed=0).iterate(0, 0)) == list(range(10))


def test_a_sequence_with_an_iteration_of_its_own_is_read_by_it() -> None:
    class Backwards(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            torch.rand(1)
            return reversed(self)

    feed = feed_of(Backwards([1, 2, 3]), seed=0)
    assert [list(feed.iterate(0, start)) for start in (0, 1, 3)] == [[3, 2, 1], [2, 1], []]
    assert "Backwards is a sequence with a custom __iter__" in feed.notes[0]


def test_persistent_workers_that_ran_before_the_run_do_not_change_what_it_reads() -> None:
    def make() -> OwnLoader:
        return OwnLoader(Augmented(), batch_size=3, shuffle=True, num_workers=2, persistent_workers=True)

    loader, expected = make(), make()
    assert len(list(loader)) == 4
    feeds = [feed_of(loader, seed=1), feed_of(expected, seed=1)]
    first, second = ([read(feed, epoch) for epoch in (0, 1)] for feed in feeds)
    for feed in feeds:
        feed.close()
    assert first == second
    assert len(list(loader)) == 4  # and it is the user's again


# -- loaders with a state ------------------------------------------------------------------------


def test_a_loader_with_a_state_goes_on_by_it_without_reading_again() -> None:
    whole = read(feed_of(Stateful(), seed=1), 3)
    saving = feed_of(Stateful(), seed=1)
    iterator = saving.iterate(3, 0)
    assert [next(iterator) for _ in range(4)] == whole[:4]
    state = saving.state_dict()
    loader = Stateful()
    feed = feed_of(loader, seed=1)
    feed.load_state_dict(state)
    assert read(feed, 3, 4) == whole[4:]
    assert loader.read == 6
    assert feed.notes == ()


def test_a_loader_with_a_state_that_was_left_early_goes_on_in_the_same_process() -> None:
    whole = read(feed_of(Stateful(), seed=1), 0)
    feed = feed_of(Stateful(), seed=1)
    iterator = feed.iterate(0, 0)
    assert [next(iterator) for _ in range(4)] == whole[:4]
    assert read(feed, 0, 4) == whole[4:]
    assert read(feed, 1) == read(feed_of(Stateful(), seed=1), 1)


def test_the_state_of_another_kind_of_loader_is_refused() -> None:
    with pytest.raises(DataError, match="holds num_workers and not the state of a loader"):
        feed_of(Stateful(), seed=0).load_state_dict({"num_workers": 2})


# -- iterators -----------------------------------------------------------------------------------


def numbered() -> Iterator[Any]:
    return ([index, *drawn()] for index in itertools.count())


def test_an_iterator_goes_on_from_epoch_to_epoch() -> None:
    feed = feed_of(numbered(), seed=0)
    first = [batch[0] for batch in itertools.islice(feed.iterate(0, 0), 3)]
    second = [batch[0] for batch in itertools.islice(feed.iterate(1, 0), 3)]
    again = next(feed.iterate(1, 3))[0]
    assert (first, second, again) == ([0, 1, 2], [3, 4, 5], 6)
    assert feed.state_dict() == {"taken": 7}


def test_an_iterator_in_a_new_process_is_read_up_to_where_it_was_in_all_epochs() -> None:
    feed = feed_of(numbered(), seed=0)
    read_before = list(itertools.islice(feed.iterate(0, 0), 5)) + list(itertools.islice(feed.iterate(1, 0), 2))
    state = feed.state_dict()
    expected = list(itertools.islice(feed.iterate(1, 2), 3))
    assert [batch[0] for batch in read_before] == list(range(7))

    resumed = feed_of(numbered(), seed=0)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    iterator = resumed.iterate(1, 2)
    assert resumed.state_dict() == state  # saved again before the first batch
    assert list(itertools.islice(iterator, 3)) == expected


# -- tensors as they come ------------------------------------------------------------------------


def test_the_batches_themselves_are_handed_on() -> None:
    batches: Iterable[Tensor] = {torch.zeros(2): None, torch.ones(2): None}.keys()
    assert all(ours is theirs for ours, theirs in zip(feed_of(batches, seed=0).iterate(0, 0), batches, strict=True))
    data = OwnLoader(TensorDataset(torch.arange(4)), batch_size=2)
    assert [batch[0].tolist() for batch in feed_of(data, seed=0).iterate(0, 1)] == [[2, 3]]
