"""The largest batch that fits: found with real memory errors, reported, and not a bit of it left in training."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hookline.callbacks import Checkpointer, LambdaCallback
from hookline.callbacks._memory import is_out_of_memory
from hookline.callbacks.schedule import BatchSizeFinder, LRSchedule
from hookline.callbacks.schedule._finders import largest
from hookline.errors import ArgumentError, SetupError
from hookline.loop import SupervisedTask
from hookline.records import ImageRow, TableRow, from_json
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, same_tensors, sgd


class Hungry(SupervisedTask):
    """Asks for so much memory that a batch above ``most`` does not get it: a real error, from Python or from torch."""

    def __init__(self, most: int = 10**9, error: str = "python", dropout: float = 0.3) -> None:
        super().__init__(TinyModel(dropout=dropout), CE, sgd)
        self.most, self.error = most, error
        self.seen: list[int] = []

    def train_batch(self, run: Any, batch: Any) -> Any:
        self.seen.append(len(batch[0]))
        if len(batch[0]) > self.most:
            if self.error == "python":
                bytearray(1 << 62)
            elif self.error == "torch":
                torch.empty(1 << 55)
            else:
                raise RuntimeError(self.error)
        return super().train_batch(run, batch)


def loader(**options: Any) -> DataLoader[Any]:
    x, y = (torch.cat(part) for part in zip(*tiny_data(batches=8), strict=True))
    return DataLoader(TensorDataset(x, y), **{"batch_size": 8, "shuffle": True} | options)


def fit_hungry(*callbacks: Any, **options: Any) -> Any:
    options = {"model": Hungry(), "train": loader(), "seed": 3, **options}
    return fit(*callbacks, val=tiny_data(seed=1), **options)


@pytest.mark.parametrize("error", ["python", "torch", "CUDA error: out of memory"])
def test_a_real_memory_error_ends_the_search(error: str) -> None:
    finder = BatchSizeFinder(plot=False)
    result = fit_hungry(finder, model=Hungry(most=20, error=error))
    assert finder.size == 16
    assert [(trial["size"], trial["fits"]) for trial in finder.trials] == [
        (2, True), (4, True), (8, True), (16, True), (32, False),
    ]  # fmt: skip
    assert result.failures == ()
    assert result.clock.step == 16  # training was that of batches of 8


def test_a_binary_search_finds_the_very_size_and_leaves_a_margin() -> None:
    finder = BatchSizeFinder("binsearch", margin=0.0, plot=False)
    fit_hungry(finder, model=Hungry(most=21), max_duration="1st")
    assert finder.size == 21
    finder = BatchSizeFinder("binsearch", margin=0.2, plot=False)
    fit_hungry(finder, model=Hungry(most=21), max_duration="1st")
    assert finder.size == 16


def test_the_search_is_right_for_every_limit() -> None:
    wrong = []
    for limit in (*range(1, 40), 100, 1000):
        asked: list[int] = []

        def fits(size: int, limit: int = limit, asked: list[int] = asked) -> bool:
            asked.append(size)
            return size <= limit

        found = largest(fits, start=2, limit=4096, trials=99, bisect=True)
        twice = len(asked) - len(set(asked))
        power = largest(fits, start=2, limit=4096, trials=99, bisect=False)
        if (found, twice, power) != (limit, 0, 2 ** (limit.bit_length() - 1)):
            wrong.append((limit, found, twice, power))
    assert wrong == []


def test_the_search_is_bounded() -> None:
    assert largest(lambda size: True, start=2, limit=10**9, trials=4, bisect=False) == 16
    assert largest(lambda size: True, start=2, limit=100, trials=25, bisect=False) == 100
    assert largest(lambda size: False, start=8, limit=100, trials=25, bisect=True) is None


def test_it_goes_no_further_than_there_are_samples() -> None:
    finder = BatchSizeFinder(plot=False)
    fit_hungry(finder, max_duration="1st")
    assert finder.size == 64
    assert [trial["size"] for trial in finder.trials] == [2, 4, 8, 16, 32, 64]


def test_each_size_gets_whole_steps_and_a_speed() -> None:
    task = Hungry()
    finder = BatchSizeFinder(steps_per_trial=4, max_val=8, plot=False)
    fit_hungry(finder, model=task, max_duration="1st")
    assert task.seen == [2] * 4 + [4] * 4 + [8] * 4 + [8]
    assert all(trial["samples_per_second"] > 0 for trial in finder.trials)


@pytest.mark.parametrize("mode", ["power", "binsearch"])
def test_training_is_bitwise_what_it_is_without_it(mode: Any) -> None:
    plain = fit_hungry(log_every="1st")
    found = fit_hungry(BatchSizeFinder(mode, plot=False), model=Hungry(most=20, dropout=0.3), log_every="1st")
    assert same_tensors(found.model.state_dict(), plain.model.state_dict())
    assert plain.history["train/loss"] == found.history["train/loss"]
    assert plain.history["val/loss"] == found.history["val/loss"]


def test_apply_trains_with_the_size_that_was_found() -> None:
    finder, schedule = BatchSizeFinder(apply=True, plot=False), LRSchedule("linear")
    found = fit_hungry(schedule, finder, model=Hungry(most=20))
    by_hand = fit_hungry(LRSchedule("linear"), train=loader(batch_size=16))
    assert found.clock.step == by_hand.clock.step == 8
    assert schedule.lengths == {"total": 8}
    assert same_tensors(found.model.state_dict(), by_hand.model.state_dict())


def test_a_resume_uses_the_same_size_without_a_search(tmp_path: Path) -> None:
    straight = fit_hungry(BatchSizeFinder(apply=True, plot=False), model=Hungry(most=20))
    with pytest.raises(RuntimeError, match="planted"):
        fit_hungry(
            BatchSizeFinder(apply=True, plot=False),
            crash_at(5, "train_step_start"),
            Checkpointer("1st"),
            model=Hungry(most=20),
            folder=tmp_path / "run",
        )
    task, finder = Hungry(most=20), BatchSizeFinder(apply=True, plot=False)
    again = fit_hungry(finder, Checkpointer("1st"), model=task, folder=tmp_path / "run", resume="auto")
    assert task.seen == [16] * 3
    assert finder.size == 16
    assert [trial["fits"] for trial in finder.trials] == [True] * 4 + [False]
    assert same_tensors(again.model.state_dict(), straight.model.state_dict())


def test_another_error_is_not_taken_for_a_memory_error() -> None:
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        fit_hungry(BatchSizeFinder(apply=True, plot=False), model=Hungry(most=4, error="shapes do not fit"))
    assert not is_out_of_memory(ValueError("out of memory"))
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))


def test_nothing_fits() -> None:
    with pytest.raises(SetupError, match="at every batch size that was tried: 2, 1"):
        fit_hungry(BatchSizeFinder(apply=True, plot=False), model=Hungry(most=0))


def test_what_it_found_is_drawn_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hookline"):
        fit_hungry(BatchSizeFinder(), model=Hungry(most=20), folder=tmp_path / "run", max_duration="1st")
    assert "found a batch size of 16; the loader was not changed" in caplog.text
    assert (tmp_path / "run" / "batch_size_finder.png").read_bytes().startswith(b"\x89PNG")
    rows = list(map(from_json, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()))
    assert [row.name for row in rows if isinstance(row, ImageRow)] == ["plots/batch_size_finder"]
    (table,) = [row for row in rows if isinstance(row, TableRow)]
    assert [row[0] for row in table.rows] == [2, 4, 8, 16, 32]


class Own(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        x, y = tiny_data(batches=2)[index // 8]
        return x[index % 8], y[index % 8]


def test_the_new_loader_is_like_the_old_one() -> None:
    used: list[Any] = []
    given = DataLoader(Own(), batch_size=3, shuffle=True, drop_last=True, collate_fn=lambda items: _stack(items))
    note = LambdaCallback(on_train_start=lambda run: used.append(run.loaders["train"]))
    fit_hungry(BatchSizeFinder(apply=True, max_val=5, plot=False), note, train=given)
    (made,) = used
    assert (made.batch_size, made.drop_last, made.collate_fn) == (5, True, given.collate_fn)
    assert made.sampler is given.sampler


def _stack(items: Any) -> Any:
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def test_a_loader_that_cannot_be_made_anew_needs_a_function() -> None:
    with pytest.raises(SetupError, match="it is a list, not a plain DataLoader; say how with make_loader="):
        fit_hungry(BatchSizeFinder(apply=True, plot=False), train=tiny_data())
    asked: list[int] = []

    def make(size: int) -> Any:
        asked.append(size)
        return tiny_data(batches=3, batch_size=size)

    finder = BatchSizeFinder(apply=True, max_val=8, make_loader=make, plot=False)
    assert fit_hungry(finder, train=tiny_data(), max_duration="1ep").clock.step == 3
    assert asked == [2, 4, 8, 8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "linear"}, "'power' or 'binsearch'"),
        ({"init_val": 0}, r"BatchSizeFinder\((init_val|max_val|steps_per_trial).*\): must be"),
        ({"steps_per_trial": 1.5}, r"BatchSizeFinder\((init_val|max_val|steps_per_trial).*\): must be"),
        ({"max_val": True}, r"BatchSizeFinder\((init_val|max_val|steps_per_trial).*\): must be"),
        ({"margin": 1.0}, r"BatchSizeFinder\(margin=1\.0\): must be >= 0 and < 1\."),
        ({"make_loader": 3}, "a function"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        BatchSizeFinder(**options)
