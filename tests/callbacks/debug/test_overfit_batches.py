"""``OverfitBatches``: the same batches each epoch, in training and in evaluations."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hookline as hl
from hookline.callbacks import Checkpointer, EarlyStopping
from hookline.callbacks.debug import LimitBatches, OverfitBatches
from hookline.errors import ArgumentError, SetupError
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, at_step, fit, same_tensors, sgd, weights_of


class Seen(hl.Callback):
    """The batches of each stage."""

    def __init__(self) -> None:
        self.batches: dict[str, list[list[float]]] = {}

    def on_train_batch_start(self, run: Any) -> None:
        self.batches.setdefault("train", []).append(run.batch[0].flatten().tolist())

    def on_eval_batch_start(self, run: Any) -> None:
        self.batches.setdefault(run.stage, []).append(run.batch[0].flatten().tolist())


def shuffled(samples: int = 40, batch_size: int = 4, **options: Any) -> DataLoader[Any]:
    x = torch.arange(samples * 4, dtype=torch.float32).reshape(samples, 4) / 100
    return DataLoader(TensorDataset(x, torch.arange(samples) % 3), batch_size=batch_size, shuffle=True, **options)


def fit_shuffled(*callbacks: Any, **options: Any) -> Any:
    """Three epochs of ten batches, which are shuffled in each epoch."""
    given: dict[str, Any] = {"train": shuffled(), "max_duration": "3ep", "optimizer": partial(sgd, momentum=0.9)}
    return fit(*callbacks, **given | options)


def test_each_epoch_has_the_batches_that_a_plain_run_begins_with() -> None:
    seen, plain = Seen(), Seen()
    fit_shuffled(OverfitBatches(2), seen)
    fit_shuffled(plain, max_duration="1ep")
    assert seen.batches["train"] == plain.batches["train"][:2] * 3


def test_evaluations_are_on_the_same_batches() -> None:
    seen = Seen()
    fit_shuffled(OverfitBatches(2), seen, val=tiny_data(5))
    assert seen.batches["val"] == seen.batches["train"]


def test_the_evaluation_measures_the_model_on_these_batches() -> None:
    model, train = TinyModel(dropout=0.5), tiny_data(6)
    result = fit_shuffled(OverfitBatches(2), model=model, train=train, val=tiny_data(3, seed=1))
    model.eval()
    with torch.no_grad():
        expected = sum(CE(model(x), y).item() for x, y in train[:2]) / 2
    assert result.metrics["val/loss"] == pytest.approx(expected)


def test_the_test_at_the_end_stays_what_it_is() -> None:
    seen, test = Seen(), tiny_data(5)
    fit_shuffled(OverfitBatches(2), seen, val=tiny_data(3), test=test)
    assert seen.batches["test"] == [x.flatten().tolist() for x, _ in test]


def test_a_fit_without_an_evaluation_gets_none() -> None:
    seen = Seen()
    result = fit_shuffled(OverfitBatches(2), seen)
    assert list(seen.batches) == ["train"]
    assert "val/loss" not in result.history


def test_it_changes_nothing_else_in_training() -> None:
    """With and without an evaluation the weights are those of a plain run on these batches."""
    batches = tiny_data(8)
    models = [TinyModel(dropout=0.3) for _ in range(3)]
    fit_shuffled(OverfitBatches(2), train=batches, model=models[0])
    fit_shuffled(OverfitBatches(2), train=batches, model=models[1], val=tiny_data(4))
    fit_shuffled(train=batches[:2], model=models[2])
    assert same_tensors(weights_of(models[0]), weights_of(models[1]))
    assert same_tensors(weights_of(models[0]), weights_of(models[2]))


class Noisy(Dataset[Any]):
    """Each look at a sample gives another one: an augmentation."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.randn(4), torch.tensor(index % 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_random_changes_are_the_same_in_each_epoch(workers: int) -> None:
    seen = Seen()
    fit_shuffled(
        OverfitBatches(2), seen, train=DataLoader(Noisy(), batch_size=3, num_workers=workers), val=tiny_data(2)
    )
    first, second, *rest = seen.batches["train"]
    assert first != second
    assert rest == [first, second] * 2
    assert seen.batches["val"] == [first, second] * 3


def test_a_loader_that_is_shorter_is_used_as_it_is() -> None:
    seen = Seen()
    result = fit_shuffled(OverfitBatches(9), seen, train=shuffled(8), val=tiny_data(4))
    assert result.clock.step == 2 * 3
    assert seen.batches["val"] == seen.batches["train"]
    assert seen.batches["train"][:2] == seen.batches["train"][2:4]


def test_it_learns_a_batch_by_heart() -> None:
    result = fit_shuffled(OverfitBatches(1), train=tiny_data(10), val=tiny_data(2, seed=1), max_duration="100ep")
    assert result.metrics["val/loss"] < 0.02
    assert result.history["val/loss"][0] > 0.5


def test_a_limit_beside_it_counts_if_it_is_smaller() -> None:
    for callbacks in ([LimitBatches(train=1), OverfitBatches(3)], [OverfitBatches(3), LimitBatches(train=1)]):
        seen = Seen()
        fit_shuffled(*callbacks, seen, val=tiny_data(4))
        assert seen.batches["train"] == seen.batches["val"]
        assert len(seen.batches["train"]) == 3


def test_evaluate_and_predict_are_left_alone() -> None:
    made = Trainer(callbacks=[OverfitBatches(1)], folder=False)
    assert len(made.predict(TinyModel(), tiny_data(4))) == 32
    model, data = TinyModel(), tiny_data(4)
    with torch.no_grad():
        expected = sum(CE(model(x), y).item() for x, y in data) / 4
    assert made.evaluate(model, data, loss=CE)["val/loss"] == pytest.approx(expected)


def test_in_an_own_loop_training_is_repeated() -> None:
    model, seen = TinyModel(), Seen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    evaluated = []
    with Loop(
        model, optimizer, callbacks=[OverfitBatches(2), seen], max_duration="3ep", eval_every="1ep", folder=False
    ) as loop:
        for x, y in loop.batches(shuffled()):
            loop.backward(CE(model(x), y))
            loop.step()
            if loop.eval_due:
                evaluated.append(sum(1 for _ in loop.eval_batches(tiny_data(4))))
    assert seen.batches["train"] == seen.batches["train"][:2] * 3
    assert evaluated == [4, 4, 4]


@pytest.mark.parametrize("stopped_at", [3, 4])
def test_a_resume_goes_on_with_the_same_batches_and_ends_with_the_same_weights(tmp_path: Path, stopped_at: int) -> None:
    models = [TinyModel(dropout=0.3) for _ in range(3)]
    run: dict[str, Any] = {"val": tiny_data(4), "max_duration": "4ep"}
    expected = fit_shuffled(OverfitBatches(2), model=models[0], **run)
    stop = at_step(stopped_at + 1, lambda run: run.stop("now"))
    saver = Checkpointer(every=f"{stopped_at}st", at_end=False)
    fit_shuffled(OverfitBatches(2), saver, stop, model=models[1], folder=tmp_path, **run)
    found = fit_shuffled(
        OverfitBatches(2), Checkpointer(every="90st"), model=models[2], folder=tmp_path, resume="auto", **run
    )
    assert found.clock.step == expected.clock.step == 8
    assert found.history["val/loss"] == expected.history["val/loss"]
    assert same_tensors(weights_of(models[0]), weights_of(models[2]))


def test_named_validation_loaders_keep_their_names_so_that_what_monitors_them_still_works() -> None:
    val = {"clean": tiny_data(2, seed=1), "noisy": tiny_data(3, seed=2)}
    seen = Seen()
    result = fit_shuffled(OverfitBatches(2), EarlyStopping("val/noisy/loss", patience=99), seen, val=val)
    plain = fit_shuffled(OverfitBatches(2), val=tiny_data(2))
    assert result.history["val/clean/loss"] == result.history["val/noisy/loss"] == plain.history["val/loss"]
    assert seen.batches["val"] == seen.batches["train"][:2] * 6


def test_data_that_can_be_read_only_once_is_refused() -> None:
    with pytest.raises(SetupError, match="the training loader can be iterated over only once"):
        fit_shuffled(OverfitBatches(2), train=iter(tiny_data(4)), val=tiny_data(4))


@pytest.mark.parametrize("batches", [0, -1, 1.0, True, "2"])
def test_bad_arguments_are_refused_at_once(batches: Any) -> None:
    with pytest.raises(ArgumentError, match=r"OverfitBatches\(batches.*\): must be"):
        OverfitBatches(batches)
