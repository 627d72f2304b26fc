"""Predictions with their targets, and of several loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.errors import DataError, SetupError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import at_step, fit, sgd

NUMBERS = torch.arange(10.0).unsqueeze(1)


def loader(begin: int = 0, end: int = 10, **options: Any) -> DataLoader[Any]:
    """Numbers as inputs, with ten times the number as target."""
    inputs = NUMBERS[begin:end]
    return DataLoader(TensorDataset(inputs, 10 * inputs), batch_size=4, **options)


def predict(given: Any, *callbacks: object, **options: Any) -> Any:
    trainer = Trainer(folder=options.pop("folder", False), callbacks=callbacks, device="cpu")
    return trainer.predict(nn.Identity(), given, **options)


def test_targets_belong_to_their_predictions_also_if_the_loader_shuffles() -> None:
    outputs, targets = predict(loader(), targets=True)
    assert torch.equal(outputs, NUMBERS)
    assert torch.equal(targets, 10 * NUMBERS)
    outputs, targets = predict(loader(shuffle=True), targets=True)
    assert not torch.equal(outputs, NUMBERS)
    assert torch.equal(targets, 10 * outputs)


def test_the_targets_of_dicts() -> None:
    batches = [
        {"x": torch.ones(2, 4), "label": torch.tensor([0, 1])},
        {"x": torch.ones(1, 4), "label": torch.tensor([2])},
    ]
    outputs, targets = hl.predict(TinyModel(), batches, targets=True, folder=False, progress=False)
    assert (outputs.shape, targets.tolist()) == ((3, 3), [0, 1, 2])


def test_a_batch_without_a_target_is_an_error() -> None:
    with pytest.raises(DataError, match=r"a batch that is a Tensor .*has no target"):
        predict([torch.ones(2, 4)], targets=True)


def test_a_callback_asks_for_predictions_with_targets() -> None:
    found: list[Any] = []

    def ask(run: Any) -> None:
        found.append((run.predict("val"), run.predict("val", targets=True)))

    val = tiny_data(2)
    fit(at_step(2, ask), val={"a": val, "b": val[:1]})
    alone, pairs = found[0]
    assert torch.equal(pairs["a"][0], alone["a"])
    assert torch.equal(pairs["a"][1], torch.cat([y for _, y in val]))
    assert torch.equal(pairs["b"][1], val[0][1])


def test_a_dict_and_a_list_of_loaders_give_a_dict_and_a_list() -> None:
    low, high = loader(0, 6), loader(6, 10)
    found = predict({"low": low, "high": high})
    assert {name: value.flatten().tolist() for name, value in found.items()} == {
        "low": [0, 1, 2, 3, 4, 5],
        "high": [6, 7, 8, 9],
    }
    assert [value.flatten().tolist() for value in predict([low, high])] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]


def test_each_loader_is_a_prediction_with_its_name_and_its_file(tmp_path: Path) -> None:
    names: list[Any] = []

    class Names(hl.Callback):
        def on_predict_start(self, run: Any) -> None:
            names.append(run.loader_name)

        def on_predict_end(self, run: Any) -> None:
            names.append(run.loader_name)

    def rows(run: Any) -> dict[str, Any]:
        return {"number": run.outputs.flatten(), "target": run.batch[1].flatten()}

    writer = hl.PredictionWriter(format="csv", columns=rows)
    loaders = {"low": loader(0, 2), "high": loader(6, 8)}
    predict(loaders, Names(), writer, folder=tmp_path)
    assert names == ["low", "low", "high", "high"]
    files = {path.name: path.read_text().split()[1:] for path in (tmp_path / "predictions").iterdir()}
    assert files == {
        "predict-low.csv": ["0,0.0,0.0", "1,1.0,10.0"],
        "predict-high.csv": ["0,6.0,60.0", "1,7.0,70.0"],
    }


def test_two_loaders_of_one_file_name_are_refused_before_a_file_is_written(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="would both be written to"):
        predict({"a/b": loader(), "a b": loader()}, hl.PredictionWriter(format="csv"), folder=tmp_path)
    assert not [*tmp_path.rglob("*.csv")]


def test_a_custom_loop_predicts_on_one_loader() -> None:
    with (
        hl.Loop(TinyModel(), sgd, folder=False, device="cpu") as loop,
        pytest.raises(DataError, match="Call it once for each"),
    ):
        next(loop.predict_batches({"a": loader()}))
