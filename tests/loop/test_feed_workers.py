"""Worker processes: the same batches in any number of them, deaf to signals, and gone when the feed is closed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from hookline.errors import DataError
from hookline.loop.data import Feed, feed_of
from hookline.testing import run_script, start_script


class Augmented(Dataset[Any]):
    """Random in all three ways, for each sample."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Tensor:
        drawn = [torch.rand(()).item(), random.random(), np.random.rand(), np.random.randn()]
        return torch.tensor([index, *drawn], dtype=torch.float64)


class Asking(Augmented):
    """Tells which process read a sample, what that one knows, and what it was told."""

    mark = epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Tensor:
        info = get_worker_info()
        assert info is None or info.dataset is self
        return torch.tensor([index, os.getpid(), self.mark, self.epoch])


class Failing(Augmented):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getitem__(self, index: int) -> Tensor:
        if index == 9:
            raise self.error
        return super().__getitem__(index)


class Hanging(Augmented):
    """Never comes back from one sample."""

    def __getitem__(self, index: int) -> Tensor:
        if index >= 8:
            while True:
                time.sleep(60)
        return super().__getitem__(index)


class Shards(IterableDataset[Any]):
    """Each worker reads its share, and draws at random."""

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, 24, step):
            yield torch.tensor([index, torch.rand(()).item(), random.random(), np.random.rand()])


def noisy(samples: list[Tensor]) -> Tensor:
    """A collate function that draws, too."""
    return torch.stack(samples) + random.random() + torch.rand(())


def mark(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.mark = worker  # type: ignore[attr-defined]
    random.seed(torch.initial_seed())
    np.random.seed(torch.initial_seed() % 2**32)


def loader_of(data: Any, workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, **{"batch_size": 4, "num_workers": workers, **options})


@pytest.fixture
def open_feeds() -> Iterator[list[Feed]]:
    feeds: list[Feed] = []
    yield feeds
    for feed in feeds:
        feed.close()


def read(feed: Feed, epoch: int, start: int = 0) -> list[Any]:
    return [batch.tolist() for batch in feed.iterate(epoch, start)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- the same batches ----------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_augmented_batches_are_the_same_in_0_2_and_3_workers_from_any_start(
    open_feeds: list[Feed], persistent: bool
) -> None:
    options: dict[str, Any] = {"shuffle": True, "collate_fn": noisy, "worker_init_fn": mark}
    here = feed_of(loader_of(Augmented(), 0, shuffle=True, collate_fn=noisy), seed=5)
    expected = [read(here, epoch) for epoch in range(2)]
    for workers in (2, 3):
        loader = loader_of(Augmented(), workers, persistent_workers=persistent, **options)
        feed = feed_of(loader, seed=5)
        open_feeds.append(feed)
        assert [read(feed, epoch) for epoch in range(2)] == expected
        assert read(feed, 1, 4) == expected[1][4:]


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_is_left_early_does_not_mix_its_batches_into_the_next(
    open_feeds: list[Feed], persistent: bool
) -> None:
    feed = feed_of(loader_of(Augmented(), 2, shuffle=True, persistent_workers=persistent), seed=0)
    open_feeds.append(feed)
    expected = read(feed_of(loader_of(Augmented(), 0, shuffle=True), seed=0), 1)
    left = feed.iterate(0, 0)
    next(left)
    assert read(feed, 1, 2) == expected[2:]
    assert read(feed, 1) == expected


def test_starting_workers_draws_nothing_from_the_program(open_feeds: list[Feed]) -> None:
    feed = feed_of(loader_of(Augmented(), 2, shuffle=True), seed=0)
    open_feeds.append(feed)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    read(feed, 0)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]


def test_persistent_workers_live_on_and_hear_of_each_epoch(open_feeds: list[Feed]) -> None:
    feed = feed_of(loader_of(Asking(), 2, persistent_workers=True, worker_init_fn=mark), seed=0)
    open_feeds.append(feed)
    rows = [row for epoch in (3, 4) for batch in read(feed, epoch) for row in batch]
    assert [row[0] for row in rows] == list(range(23)) * 2
    assert len({row[1] for row in rows} - {os.getpid()}) == 2
    assert {row[2] for row in rows} == {0, 1}  # what the worker_init_fn wrote into its data set
    assert [row[3] for row in rows] == [3] * 23 + [4] * 23


def test_what_a_worker_init_fn_draws_depends_on_the_epoch_and_not_on_those_before(open_feeds: list[Feed]) -> None:
    def keep_seed(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.mark = torch.initial_seed()  # type: ignore[attr-defined]

    feeds = [feed_of(loader_of(Asking(), 2, worker_init_fn=keep_seed), seed=seed) for seed in (0, 0, 1)]
    open_feeds.extend(feeds)
    seeds = [[{row[2] for batch in read(feed, epoch) for row in batch} for epoch in (0, 1)] for feed in feeds[::2]]
    later = {row[2] for batch in read(feeds[1], 1, 2) for row in batch}
    assert later == seeds[0][1] != seeds[0][0]
    assert not seeds[0][0] & seeds[1][0]


def test_workers_that_are_spawned_and_not_forked_read_the_same() -> None:
    done = run_script(
        """
        import random, torch
        from torch.utils.data import DataLoader, get_worker_info
        from hookline.loop.data import feed_of

        class Data:
            def __len__(self): return 12
            def __getitem__(self, index):
                info = get_worker_info()
                assert info is None or info.dataset is self
                return index + random.random() + torch.rand(())

        if __name__ == "__main__":
            here = feed_of(DataLoader(Data(), 4, True), seed=3)
            there = feed_of(DataLoader(Data(), 4, True, num_workers=2, multiprocessing_context="spawn"), seed=3)
            assert torch.equal(*(torch.cat(list(feed.iterate(2, 1))) for feed in (here, there)))
            print("equal")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "equal\n", "")


def test_iterable_data_is_exact_for_the_same_number_of_workers(open_feeds: list[Feed]) -> None:
    feeds = [feed_of(loader_of(Shards(), 2), seed=0) for _ in range(2)]
    open_feeds.extend(feeds)
    whole = read(feeds[0], 4)
    torch.rand(3)
    assert read(feeds[1], 4, 3) == whole[3:]
    assert read(feeds[1], 5) != whole
    assert sorted(row[0] for batch in whole for row in batch) == list(range(24))


# -- errors --------------------------------------------------------------------------------------


def test_an_error_in_a_worker_keeps_its_type_and_says_where(open_feeds: list[Feed]) -> None:
    feed = feed_of(loader_of(Failing(KeyError("nine")), 2), seed=0)
    open_feeds.append(feed)
    with pytest.raises(KeyError) as raised:
        read(feed, 0)
    assert "nine" in str(raised.value)
    assert "in __getitem__" in str(raised.value)


def test_a_stop_iteration_in_a_worker_is_an_error_and_not_the_end_of_the_epoch(open_feeds: list[Feed]) -> None:
    feed = feed_of(loader_of(Failing(StopIteration()), 2), seed=0)
    open_feeds.append(feed)
    with pytest.raises(DataError, match="Failing raised StopIteration"):
        read(feed, 0)


def test_a_killed_worker_is_an_error_and_a_new_iteration_starts_new_ones() -> None:
    # In a process of its own: torch raises in whatever line runs when it hears of the death. Here that is a sleep; in a
    # line of torch's own the error may be caught and printed there (an import in torch/autograd/profiler.py).
    done = run_script(
        """
        import os, signal, time
        from torch.utils.data import DataLoader
        from hookline.loop.data import feed_of

        feed = feed_of(DataLoader(list(range(40)), batch_size=4, num_workers=2, persistent_workers=True), seed=0)
        try:
            iterator = feed.iterate(0, 0)
            os.kill(iterator._workers[0].pid, signal.SIGKILL)
            time.sleep(60)
        except RuntimeError as error:
            print(error)
        print(len(list(feed.iterate(0, 2))))
        feed.close()
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].startswith("DataLoader worker (pid")
    assert done.stdout.splitlines()[-1] == "8"


# -- signals and the end -------------------------------------------------------------------------


def test_a_signal_to_the_whole_group_does_not_reach_the_workers() -> None:
    source = """
        import signal, time
        from torch.utils.data import DataLoader, IterableDataset
        from hookline.loop.data import feed_of

        class Stream(IterableDataset):
            def __iter__(self):
                yield from range(100)

        class Own(DataLoader):
            pass

        heard = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: heard.append(number))
        makers = [(DataLoader, list(range(100))), (DataLoader, Stream()), (Own, list(range(100)))]
        feeds = [feed_of(make(data, batch_size=1, num_workers=2), seed=0) for make, data in makers]
        iterators = [feed.iterate(0, 0) for feed in feeds]
        for iterator in iterators:
            next(iterator)
        print("ready", flush=True)
        while len(heard) < 2:
            time.sleep(0.01)
        print("read", *(len(list(iterator)) for iterator in iterators))
        for feed in feeds:
            feed.close()
    """
    with start_script(source) as script:
        script.wait_for("ready")
        script.send(signal.SIGTERM, group=True)
        time.sleep(0.2)  # signals of one kind that wait are one
        script.send(signal.SIGINT, group=True)
        done = script.finish()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[1] == "read 99 199 99"


def test_workers_are_deaf_from_their_birth() -> None:
    source = """
        import signal, time
        from torch.utils.data import DataLoader
        from hookline.loop.data import feed_of

        if __name__ == "__main__":
            heard = []
            signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
            for method in ("fork", "spawn"):
                context = {"num_workers": 2, "multiprocessing_context": method}
                feed = feed_of(DataLoader(list(range(40)), batch_size=4, **context), seed=0)
                iterator = feed.iterate(0, 0)
                print("born", method, flush=True)
                while not heard:
                    time.sleep(0.01)
                print(len(list(iterator)), flush=True)
                feed.close()
                heard.clear()
    """
    with start_script(source) as script:
        for method in ("fork", "spawn"):
            script.wait_for(f"born {method}")
            script.send(signal.SIGTERM, group=True)
        done = script.finish()
    assert (done.returncode, done.stdout, done.stderr) == (0, "born fork\n10\nborn spawn\n10\n", "")


@pytest.mark.parametrize("persistent", [False, True])
def test_closing_ends_the_workers_also_in_the_middle_of_an_epoch_and_twice(persistent: bool) -> None:
    feed = feed_of(loader_of(Asking(), 2, persistent_workers=persistent), seed=0)
    iterator = feed.iterate(0, 0)
    workers = {int(next(iterator)[0, 1]) for _ in range(4)}
    assert len(workers) == 2
    assert all(map(is_alive, workers))
    feed.close()
    feed.close()
    assert not any(map(is_alive, workers))
    assert len(read(feed, 0)) == 6  # and it can be used again
    feed.close()


def test_a_worker_that_hangs_is_killed_when_the_feed_is_closed() -> None:
    feed = feed_of(loader_of(Hanging(), 2), seed=0)
    iterator: Any = feed.iterate(0, 0)
    next(iterator)
    workers = [worker.pid for worker in iterator._workers]
    feed.close()
    assert not any(map(is_alive, workers))


@pytest.mark.parametrize("end", ["", "raise KeyError('the end')", "del feeds, iterators"])
def test_a_program_that_forgets_to_close_its_feed_ends_all_the_same(end: str) -> None:
    """The workers of one feed wait for work, and those of the other hang."""
    source = f"""
        import time
        from torch.utils.data import DataLoader
        from hookline.loop.data import feed_of

        class Hanging(list):
            def __getitem__(self, index):
                if index > 3:
                    time.sleep(1000)
                return index

        options = {{"batch_size": 1, "num_workers": 2, "persistent_workers": True}}
        feeds = [feed_of(DataLoader(kind(range(100)), **options), seed=0) for kind in (list, Hanging)]
        iterators = [feed.iterate(0, 0) for feed in feeds]
        print(*(worker.pid for iterator in iterators for worker in iterator._workers), flush=True)
        print([next(iterator) for iterator in iterators])
        {end}
    """
    done = run_script(source)
    assert done.returncode == (1 if "raise" in end else 0), done.stderr
    pids = done.stdout.splitlines()[0].split()
    assert len(pids) == 4
    assert not any(is_alive(int(pid)) for pid in pids)


def test_a_script_ends_though_the_workers_of_its_evaluations_stay() -> None:
    """They ignore the SIGTERM that ``multiprocessing`` sends at the end of Python, and waits for."""
    done = run_script(
        """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset
        from hookline.loop import Trainer

        data = TensorDataset(torch.randn(8, 4), torch.randint(3, (8,)))
        model, loss, trainer = nn.Linear(4, 3), nn.CrossEntropyLoss(), Trainer(max_duration="2ep", folder=False)
        training = {"loss": loss, "optimizer": torch.optim.SGD, "extend": "1ep"}
        entries = [
            lambda loader: trainer.fit(model, DataLoader(data, 4), loader, **training),
            lambda loader: trainer.evaluate(model, loader, loss=loss),
            lambda loader: trainer.predict(model, loader),
        ]
        loaders = [DataLoader(data, 4, num_workers=2, persistent_workers=True) for _ in entries]
        for entry, loader in zip(entries, loaders):
            pids = []
            for _ in range(2):
                entry(loader)
                pids.append([worker.pid for worker in loader._iterator._workers])
            print(pids[0] == pids[1])
        """
    )
    assert (done.returncode, done.stderr, done.stdout.split()[-3:]) == (0, "", ["True"] * 3)
