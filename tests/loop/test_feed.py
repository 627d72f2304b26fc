"""The batches of a plain loader: the same from any start, in any number of workers, after any number of epochs."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from hookline.errors import DataError
from hookline.loop.data import Feed, feed_of

SIZE = 23


class Augmented(Dataset[Any]):
    """Random in all three ways, for each sample."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        drawn = [torch.rand(()).item(), random.random(), np.random.rand(), np.random.randn()]
        return torch.tensor([index, *drawn], dtype=torch.float64)


class PythonShuffle(Sampler[int]):
    """A sampler of the user's own that shuffles with Python's random."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(SIZE))
        random.shuffle(order)
        return iter(order)


class LazyNumpy(Sampler[int]):
    """A sampler of the user's own that draws while it is asked, and has no length."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(SIZE):
            yield int(np.random.randint(SIZE))


class ByLength(Sampler[list[int]]):
    """A batch sampler of the user's own: batches of 1, 2, 3 … samples, in a random order."""

    def __iter__(self) -> Iterator[list[int]]:
        order = iter(torch.randperm(SIZE).tolist())
        for size in itertools.count(1):
            batch = list(itertools.islice(order, size))
            if not batch:
                return
            yield batch


class Epochs(Sampler[int]):
    """Begins with the epoch that it was told."""

    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch, 1, 2, 3])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(77)


LOADERS: dict[str, dict[str, Any]] = {
    "sequential": {"batch_size": 4},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "shuffled, last dropped": {"batch_size": 4, "shuffle": True, "drop_last": True},
    "shuffled by a generator": {"batch_size": 4, "shuffle": True, "generator": generator()},
    "single samples": {"batch_size": None, "shuffle": True},
    "single samples in order": {"batch_size": None},
    "more than an epoch": {"batch_size": 4, "sampler": RandomSampler(range(SIZE), num_samples=50)},
    "less than an epoch": {"batch_size": 4, "sampler": RandomSampler(range(SIZE), num_samples=10)},
    "replacement": {"batch_size": 4, "sampler": RandomSampler(range(SIZE), replacement=True, num_samples=70)},
    "weighted": {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * SIZE, 30)},
    "weighted by a generator": {
        "batch_size": 4,
        "sampler": WeightedRandomSampler([1.0] * SIZE, 30, generator=generator()),
    },
    "subset": {"batch_size": 4, "sampler": SubsetRandomSampler(range(3, 20))},
    "distributed": {"batch_size": 4, "sampler": DistributedSampler(range(SIZE), num_replicas=2, rank=1)},  # type: ignore[arg-type]
    "python's random": {"batch_size": 4, "sampler": PythonShuffle()},
    "numpy's random, drawn late": {"batch_size": 4, "sampler": LazyNumpy()},
    "own batch sampler": {"batch_sampler": ByLength()},
    "torch's batch sampler": {"batch_sampler": BatchSampler(SequentialSampler(range(SIZE)), 5, False)},
    "a list as sampler": {"batch_size": 4, "sampler": [5, 3, 8, 1, 2]},
}


def read(feed: Feed, epoch: int, start: int = 0) -> list[Any]:
    return [batch.tolist() for batch in feed.iterate(epoch, start)]


def indices(feed: Feed, epoch: int, start: int = 0) -> list[list[int]]:
    return [[int(sample[0]) for sample in batch] for batch in read(feed, epoch, start)]


def random_states() -> tuple[Any, ...]:
    numpy = np.random.get_state()
    return random.getstate(), torch.get_rng_state().tolist(), numpy[1].tolist(), numpy[2:]  # type: ignore[index]


@pytest.mark.parametrize("kind", LOADERS)
def test_any_start_gives_the_rest_of_the_same_epoch_also_in_a_new_process_and_after_other_draws(kind: str) -> None:
    loader = DataLoader(Augmented(), **LOADERS[kind])
    whole = read(feed_of(loader, seed=1), epoch=3)
    assert len(whole) > 1
    feed = feed_of(loader, seed=1)
    for start in (len(whole), 1, len(whole) - 1, 0):
        torch.rand(start + 1), random.random(), np.random.rand()
        assert read(feed, 3, start) == whole[start:]


@pytest.mark.parametrize("kind", LOADERS)
def test_iterating_leaves_the_random_states_of_the_program_alone(kind: str) -> None:
    loader = DataLoader(Augmented(), **LOADERS[kind])
    np.random.seed(0)  # so that numpy keeps no second normal number
    before, own = random_states(), [g.get_state().tolist() for g in (loader.generator,) if g is not None]
    iterator = feed_of(loader, seed=1).iterate(0, 1)
    for _ in iterator:
        assert random_states() == before
    assert [g.get_state().tolist() for g in (loader.generator,) if g is not None] == own


@pytest.mark.parametrize(
    "kind", [kind for kind in LOADERS if not any(w in kind for w in ("order", "seq", "list", "bat"))]
)
def test_seed_and_epoch_change_the_order(kind: str) -> None:
    loader = DataLoader(Augmented(), **LOADERS[kind])
    one, other = feed_of(loader, seed=1), feed_of(loader, seed=2)
    assert read(one, 0) != read(one, 1)
    assert kind == "distributed" or [b[0] for b in read(one, 0)] != [b[0] for b in read(other, 0)]
    assert sorted(map(len, read(one, 0))) == sorted(map(len, read(one, 1)))


def test_a_generator_of_the_user_gives_another_order_by_its_seed_and_not_by_what_was_drawn_from_it() -> None:
    def order(seed: int, drawn: int = 0) -> list[list[int]]:
        given = torch.Generator().manual_seed(seed)
        torch.rand(drawn, generator=given)
        return indices(feed_of(DataLoader(Augmented(), batch_size=4, shuffle=True, generator=given), seed=0), 0)

    assert order(1) == order(1, drawn=5) != order(2)


def test_a_shuffled_epoch_holds_each_sample_once() -> None:
    feed = feed_of(DataLoader(Augmented(), batch_size=4, shuffle=True), seed=0)
    for epoch in range(3):
        assert sorted(itertools.chain(*indices(feed, epoch))) == list(range(SIZE))


def test_the_batches_are_those_of_the_plain_loader_where_nothing_is_random() -> None:
    data = TensorDataset(torch.arange(10), torch.rand(10, 3))
    loader = DataLoader(data, batch_size=4)
    for ours, plain in zip(feed_of(loader, seed=0).iterate(0, 0), loader, strict=True):
        assert type(ours) is type(plain)
        assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


def test_ranks_read_the_same_order_and_augment_it_differently() -> None:
    loader = DataLoader(Augmented(), batch_size=4, shuffle=True)
    one, other = feed_of(loader, seed=0, rank=0), feed_of(loader, seed=0, rank=1)
    assert indices(one, 0) == indices(other, 0)
    assert all(a != b for a, b in zip(read(one, 0), read(other, 0), strict=True))


def test_no_two_batches_are_augmented_alike_and_no_two_sources_draw_the_same_numbers() -> None:
    loader = DataLoader(Augmented(512), batch_size=1)
    drawn = [number for batch in read(feed_of(loader, seed=0), 0) for number in batch[0][1:]]
    assert len(set(drawn)) == len(drawn)
    torch_numpy = [(batch[0][1], batch[0][3]) for batch in read(feed_of(loader, seed=0), 0)]
    assert abs(np.corrcoef(np.array(torch_numpy).T)[0, 1]) < 0.2


def test_the_samplers_and_the_data_set_are_told_the_epoch() -> None:
    class Told(Augmented):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __getitem__(self, index: int) -> Tensor:
            return torch.tensor([index, self.epoch])

    feed = feed_of(DataLoader(Told(), batch_size=2, sampler=Epochs()), seed=0)
    assert read(feed, 5) == [[[5, 5], [1, 5]], [[2, 5], [3, 5]]]
    assert read(feed, 2, 1) == [[[2, 2], [3, 2]]]


def test_a_data_set_that_fetches_whole_batches_is_asked_for_whole_batches() -> None:
    class Whole(Augmented):
        def __getitem__(self, index: int) -> Tensor:
            raise AssertionError("one by one")

        def __getitems__(self, wanted: list[int]) -> list[int]:
            return wanted

    feed = feed_of(DataLoader(Whole(), batch_size=20, collate_fn=tuple), seed=0)
    assert list(feed.iterate(0, 0)) == [tuple(range(20)), (20, 21, 22)]


def test_subsets_and_lists_of_tensors_are_read_by_index() -> None:
    part = Subset(TensorDataset(torch.arange(10)), [7, 8, 9])
    assert [b[0].tolist() for b in feed_of(DataLoader(part, batch_size=2), seed=0).iterate(0, 0)] == [[7, 8], [9]]
    assert read(feed_of(DataLoader([4, 5, 6], batch_size=2), seed=0), 0, 1) == [[6]]  # type: ignore[arg-type]


def test_the_length_is_the_one_that_can_be_relied_on() -> None:
    assert feed_of(DataLoader(Augmented(), batch_size=4), seed=0).length == 6
    assert feed_of(DataLoader(Augmented(), batch_size=4, drop_last=True), seed=0).length == 5
    assert feed_of(DataLoader(Augmented(), batch_sampler=ByLength()), seed=0).length is None


@given(
    size=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    epoch=st.integers(0, 10**6),
    seed=st.integers(-(2**63), 2**64 - 1),
    data=st.data(),
)
@settings(max_examples=100)
def test_every_start_of_every_epoch_gives_what_is_left_of_it(
    size: int, batch_size: int, drop_last: bool, shuffle: bool, epoch: int, seed: int, data: st.DataObject
) -> None:
    loader = DataLoader(Augmented(size), batch_size, shuffle, drop_last=drop_last)
    whole = read(feed_of(loader, seed=seed), epoch)
    assert len(whole) == len(loader)
    start = data.draw(st.integers(0, len(whole)))
    assert read(feed_of(loader, seed=seed), epoch, start) == whole[start:]


def test_resuming_late_in_an_epoch_of_3_million_samples_touches_only_the_indices_that_are_read() -> None:
    loader = DataLoader(range(3_200_000), batch_size=32, shuffle=True)  # type: ignore[arg-type]
    feed = feed_of(loader, seed=0)
    tracemalloc.start()
    try:
        batch = next(feed.iterate(0, 99_990))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert batch.shape == (32,)
    assert peak < 1_000_000  # bytes of Python objects: one for each index would be a hundred times as many


def test_a_sequential_start_far_inside_makes_no_list_of_what_is_before() -> None:
    feed = feed_of(DataLoader(range(10**12), batch_size=1000), seed=0)  # type: ignore[arg-type]
    assert next(feed.iterate(0, 10**8))[0] == 10**11


# -- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOADERS)
def test_a_start_behind_the_end_says_that_the_data_has_changed(kind: str) -> None:
    feed = feed_of(DataLoader(Augmented(), **LOADERS[kind]), seed=0)
    with pytest.raises(DataError, match=r"continue at batch 1000 and has only \d+"):
        list(feed.iterate(0, 1000))


class Failing(Augmented):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def __getitem__(self, index: int) -> Tensor:
        if index == 9:
            torch.rand(3), random.random(), np.random.rand()
            raise self.error
        return super().__getitem__(index)


@pytest.mark.parametrize("error", [KeyError("nine"), KeyboardInterrupt()])
def test_an_error_in_the_data_is_raised_as_it_is_and_leaves_the_random_states_alone(error: BaseException) -> None:
    np.random.seed(0)
    before = random_states()
    with pytest.raises(type(error)) as raised:
        list(feed_of(DataLoader(Failing(error), batch_size=4), seed=0).iterate(0, 0))
    assert raised.value is error
    assert random_states() == before


def test_a_stop_iteration_inside_a_data_set_is_an_error_and_not_the_end_of_the_epoch() -> None:
    feed = feed_of(DataLoader(Failing(StopIteration()), batch_size=4), seed=0)
    with pytest.raises(DataError, match="Failing raised StopIteration while batch 2 of epoch 7 was fetched"):
        list(feed.iterate(7, 0))


# -- notes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOADERS)
def test_nothing_is_said_where_a_resume_is_exact_and_cheap(kind: str) -> None:
    assert feed_of(DataLoader(Augmented(), **LOADERS[kind]), seed=0).notes == ()


@pytest.mark.parametrize(
    ("attributes", "where"),
    [
        ({"rng": np.random.default_rng(0)}, "dataset.rng"),
        ({"old": np.random.RandomState(0)}, "dataset.old"),
        ({"g": torch.Generator()}, "dataset.g"),
        ({"transform": SimpleNamespace(dice=random.Random(0))}, "dataset.transform.dice"),
        (
            {"transform": SimpleNamespace(transforms=[len, SimpleNamespace(rng=random.Random(0))])},
            "dataset.transform.transforms[1].rng",
        ),
    ],
)
def test_a_generator_inside_the_data_set_is_named_because_it_cannot_be_seeded(
    attributes: dict[str, Any], where: str
) -> None:
    data = Augmented()
    vars(data).update(attributes)
    (note,) = feed_of(DataLoader(data, batch_size=4), seed=0).notes
    assert note.startswith(f"{where} is a random generator")
    assert feed_of(DataLoader(Subset(data, [1, 2])), seed=0).notes[0].startswith("dataset.dataset")


def test_a_sampler_with_a_generator_of_its_own_is_named_unless_it_is_torchs() -> None:
    class Own(PythonShuffle):
        def __init__(self, rng: Any) -> None:
            self.rng = rng

    assert feed_of(DataLoader(Augmented(), sampler=Own(torch.Generator())), seed=0).notes == ()
    (note,) = feed_of(DataLoader(Augmented(), sampler=Own(random.Random(0))), seed=0).notes
    assert "sampler.sampler.rng" in note


def test_a_sampler_that_is_used_up_and_an_order_that_depends_on_speed_are_said() -> None:
    once: Any = (index for index in range(5))
    assert "iterator" in feed_of(DataLoader(Augmented(), sampler=once), seed=0).notes[0]
    assert "in_order" in feed_of(DataLoader(Augmented(), num_workers=2, in_order=False), seed=0).notes[0]
