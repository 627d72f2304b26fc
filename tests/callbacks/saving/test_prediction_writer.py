"""Every sample is in the files once, in order, with its index; also after a kill."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hookline.callbacks.debug import LimitBatches
from hookline.callbacks.saving import _predictions
from hookline.callbacks.saving.prediction_writer import PredictionWriter
from hookline.errors import ArgumentError, DataError, SetupError
from hookline.events import Callback, on
from hookline.loop import Loop, SupervisedTask, Trainer
from hookline.testing import TinyModel, start_script, tiny_data
from tests.support import fit, press_ctrl_c
from tests.support.inside import set_entry_point

DATA = tiny_data(batches=5, batch_size=4, last=3, seed=1)
fit_and_test = partial(fit, val=DATA, test=DATA)
HANG = 300
"""Seconds for what takes a few, so that a busy machine is no failure."""


def expected(model: nn.Module | None = None) -> Tensor:
    with torch.no_grad():
        return torch.cat([(model or TinyModel()).eval()(x) for x, _ in DATA])


def predict(folder: Path, *callbacks: object, model: nn.Module | None = None, data: Any = DATA) -> Any:
    return Trainer(folder=folder, callbacks=callbacks, device="cpu").predict(model or TinyModel(), data)


def read(path: Path) -> dict[str, Any]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {name: torch.as_tensor(file[name]) for name in file.files}
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return {name: torch.tensor(table[name].to_pylist()) for name in table.column_names}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {name: torch.tensor([float(row[name]) for row in rows]) for name in rows[0]}
    wide = [name for name in found if name.startswith("prediction.")]
    return {"index": found["index"].long(), "prediction": torch.stack([found[name] for name in wide], 1)}


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*"))


# -- files ---------------------------------------------------------------------------------------


def test_batches_that_are_limited_are_all_written(tmp_path: Path) -> None:
    predict(tmp_path, PredictionWriter(), LimitBatches(predict=2))
    (file,) = (path for path in tmp_path.rglob("*") if path.suffix in (".npz", ".parquet", ".csv"))
    assert read(file)["index"].tolist() == list(range(8))


@pytest.mark.parametrize("format", ["parquet", "csv", "npz"])
def test_an_epoch_is_one_file_with_every_sample_in_order(tmp_path: Path, format: str) -> None:
    given = predict(tmp_path, PredictionWriter(format=format))
    found = read(tmp_path / "predictions" / f"predict.{format}")
    assert found["index"].tolist() == list(range(19))
    assert torch.equal(found["prediction"].float(), expected())
    assert torch.equal(given, expected())
    assert [path.name for path in (tmp_path / "predictions").iterdir()] == [f"predict.{format}"]


@pytest.mark.parametrize("format", ["parquet", "csv", "npz"])
@pytest.mark.parametrize(("per_file", "count"), [(1, 5), (2, 3), (9, 1)])
def test_parts_hold_every_sample_once_and_their_names_are_in_order(
    tmp_path: Path, format: str, per_file: int, count: int
) -> None:
    predict(tmp_path, PredictionWriter(interval="batch", format=format, batches_per_file=per_file))
    files = parts(tmp_path / "predictions" / "predict")
    found = [read(path) for path in files]
    assert len(files) == count
    assert [int(path.stem.removeprefix("part-")) for path in files] == [its["index"][0].item() for its in found]
    assert torch.cat([its["index"] for its in found]).tolist() == list(range(19))
    assert torch.equal(torch.cat([its["prediction"] for its in found]).float(), expected())


def test_a_folder_of_parquet_parts_is_one_data_set_for_other_tools(tmp_path: Path) -> None:
    predict(tmp_path, PredictionWriter(interval="batch"))
    files = parts(tmp_path / "predictions" / "predict")
    table = pq.read_table([str(path) for path in files])
    assert table["index"].to_pylist() == list(range(19))
    assert table.schema.field("prediction").type.list_size == 3
    assert str(table.schema.field("prediction").type.value_type) == "float"


def test_an_own_writer_gets_the_columns_and_its_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    seen: list[bool] = []

    def write(path: Path, columns: Any) -> None:
        torch.save(dict(columns), path)
        seen.append((tmp_path / "predictions" / "predict.pt").exists())

    predict(tmp_path, PredictionWriter(format=write, suffix=".pt"))
    found = torch.load(tmp_path / "predictions" / "predict.pt", weights_only=True)
    assert seen == [False]
    assert torch.equal(found["prediction"], expected())


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    def write(path: Path, columns: Any) -> None:
        path.write_text("half")
        if fails:
            raise OSError(28, "No space left on device")

    fails: list[bool] = []
    predict(tmp_path, PredictionWriter(format=write, suffix=".txt"))
    fails.append(True)
    with pytest.raises(OSError, match="No space"):
        predict(tmp_path, PredictionWriter(format=write, suffix=".txt"))
    assert os.listdir(tmp_path / "predictions") == ["predict.txt"]


# -- columns -------------------------------------------------------------------------------------


@dataclass
class Found:
    logits: Tensor
    rest: dict[str, Any]


class Rich(SupervisedTask):
    def predict_batch(self, run: Any, batch: Any) -> Any:
        logits = super().predict_batch(run, batch)
        flags = {"sure": logits.amax(1) > 1, "words": [f'it\'s {i}, "so"' for i in logits.argmax(1).tolist()]}
        return Found(logits.bfloat16(), {**flags, "grid": logits[:, None, :].repeat(1, 2, 1), "none": None})


def test_dicts_dataclasses_texts_booleans_and_more_dimensions_are_columns(tmp_path: Path) -> None:
    task = Rich(TinyModel())
    for format in ("parquet", "csv", "npz"):
        Trainer(folder=tmp_path, callbacks=[PredictionWriter(format=format)], device="cpu").predict(task, DATA)
    wanted = expected()
    table = pq.read_table(tmp_path / "predictions" / "predict.parquet")
    assert table.column_names == ["index", "logits", "rest.sure", "rest.words", "rest.grid"]
    assert torch.equal(torch.tensor(table["logits"].to_pylist()), wanted.bfloat16().float())
    assert table["rest.sure"].to_pylist() == (wanted.amax(1) > 1).tolist()
    assert table["rest.words"].to_pylist()[0] == f'it\'s {wanted[0].argmax()}, "so"'
    assert torch.equal(torch.tensor(table["rest.grid"].to_pylist()), wanted[:, None, :].repeat(1, 2, 1))
    with (tmp_path / "predictions" / "predict.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["index", "logits.0", "logits.1", "logits.2", "rest.sure", "rest.words", "rest.grid"]
    assert [row["rest.words"] for row in rows] == table["rest.words"].to_pylist()
    assert torch.tensor(json.loads(rows[3]["rest.grid"])).shape == (2, 3)
    with np.load(tmp_path / "predictions" / "predict.npz", allow_pickle=False) as file:
        assert file["rest.words"].tolist() == table["rest.words"].to_pylist()


class Pair(SupervisedTask):
    def predict_batch(self, run: Any, batch: Any) -> Any:
        logits = super().predict_batch(run, batch)
        return logits.argmax(1), logits.amax(1)


def test_parts_of_a_tuple_are_numbered(tmp_path: Path) -> None:
    Trainer(folder=tmp_path, callbacks=[PredictionWriter(format="npz")]).predict(Pair(TinyModel()), DATA)
    found = read(tmp_path / "predictions" / "predict.npz")
    assert list(found) == ["index", "prediction.0", "prediction.1"]
    assert torch.equal(found["prediction.0"], expected().argmax(1))


def test_own_columns_and_own_indices_are_taken(tmp_path: Path) -> None:
    writer = PredictionWriter(
        format="npz",
        columns=lambda run: {"target": run.batch[1], "label": run.outputs.argmax(1)},
        index=lambda run: run.batch[1] + 100,
    )
    predict(tmp_path, writer)
    found = read(tmp_path / "predictions" / "predict.npz")
    targets = torch.cat([y for _, y in DATA])
    assert list(found) == ["index", "target", "label"]
    assert torch.equal(found["index"], targets + 100)
    assert torch.equal(found["target"], targets)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (lambda run: {"a": run.outputs[:1], "b": run.outputs}, "a has 1, b has 4"),
        (lambda run: {"mean": run.outputs.mean()}, "'mean' is one number"),
        (lambda run: {"text": "word"}, "'text' is a str"),
        (lambda run: {}, "there are none"),
        (lambda run: {"c": run.outputs.to(torch.complex64)}, "complex"),
    ],
)
def test_what_is_no_column_is_named(tmp_path: Path, columns: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        predict(tmp_path, PredictionWriter(columns=columns))


@pytest.mark.parametrize("name", ["file", "allow_pickle"])
def test_a_name_that_numpy_has_taken_is_refused_with_the_first_batch(tmp_path: Path, name: str) -> None:
    def columns(run: Any) -> Any:
        return {name: run.outputs}

    seen: list[int] = []
    count = on("predict_batch_start")(lambda run: seen.append(run.clock.eval.batch))
    with pytest.raises(DataError, match=rf"a column called '{name}'; give it another name"):
        predict(tmp_path, count, PredictionWriter(format="npz", columns=columns))
    assert len(seen) == 1
    predict(tmp_path, PredictionWriter(columns=columns))
    assert pq.read_table(tmp_path / "predictions" / "predict.parquet").column_names == ["index", name]


def test_rows_of_several_lengths_say_how_to_write_them(tmp_path: Path) -> None:
    def ragged(run: Any) -> Any:
        return {"tokens": run.outputs[:, : 2 + run.clock.eval.batch % 2]}

    with pytest.raises(DataError, match="several shapes"):
        predict(tmp_path, PredictionWriter(columns=ragged))
    predict(tmp_path, PredictionWriter(columns=lambda run: {"tokens": ragged(run)["tokens"].tolist()}))
    table = pq.read_table(tmp_path / "predictions" / "predict.parquet")
    assert {len(row) for row in table["tokens"].to_pylist()} == {2, 3}


def test_a_csv_with_thousands_of_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3,001 columns; use format='parquet'"):
        predict(tmp_path, PredictionWriter(format="csv", columns=lambda run: {"x": run.outputs.repeat(1, 1000)}))


# -- going on ------------------------------------------------------------------------------------


class DiesError(Exception):
    pass


def die_at(batch: int) -> Any:
    @on("predict_batch_start")
    def die(run: Any) -> None:
        if run.clock.eval.batch == batch:
            raise DiesError

    return die


def test_parts_of_an_earlier_prediction_are_replaced(tmp_path: Path) -> None:
    writer = PredictionWriter(interval="batch", format="npz")
    folder = tmp_path / "predictions" / "predict"
    with pytest.raises(DiesError):
        predict(tmp_path, writer, die_at(3))
    assert len(parts(folder)) == 3
    predict(tmp_path, writer, data=DATA[:2], model=TinyModel(seed=5))
    found = torch.cat([read(path)["prediction"] for path in parts(folder)])
    assert len(parts(folder)) == 2
    assert torch.equal(found, expected(TinyModel(seed=5))[: len(found)])


def test_a_process_that_is_killed_leaves_whole_files(tmp_path: Path) -> None:
    source = """
    import sys, time
    from hookline.callbacks.saving.prediction_writer import PredictionWriter
    from hookline.events import Callback, on
    from hookline.loop import Trainer
    from hookline.testing import TinyModel, tiny_data

    @on("predict_batch_end")
    def wait(run):
        batch = run.clock.eval.batch
        print("batch", batch, flush=True)
        if batch == 7:
            time.sleep(600)  # until it is killed

    writer = PredictionWriter(interval="batch", format="npz")
    data = tiny_data(batches=20, batch_size=4, seed=1)
    Trainer(folder=sys.argv[1], callbacks=[writer, wait]).predict(TinyModel(), data)
    """
    with start_script(source, args=[tmp_path]) as script:
        script.wait_for("batch 7", timeout=HANG)
        script.send(signal.SIGKILL)
        script.finish(HANG)
    found = [read(path) for path in parts(tmp_path / "predictions" / "predict")]
    assert 6 <= len(found) < 20
    assert torch.cat([its["index"] for its in found]).tolist() == list(range(4 * len(found)))


def test_a_prediction_in_another_format_stays(tmp_path: Path) -> None:
    predict(tmp_path, PredictionWriter(interval="batch", format="csv"))
    predict(tmp_path, PredictionWriter(interval="batch", format="npz"))
    assert len(parts(tmp_path / "predictions" / "predict")) == 10


def test_columns_that_change_from_part_to_part_are_an_error_as_they_are_in_one_file(tmp_path: Path) -> None:
    def columns(run: Any) -> Any:
        return {"early" if run.clock.eval.batch < 3 else "late": run.outputs}

    for interval in ("batch", "epoch"):
        with pytest.raises(DataError, match="the columns of one batch are"):
            predict(tmp_path, PredictionWriter(interval=interval, columns=columns))  # type: ignore[arg-type]


def test_a_loader_that_shuffles_needs_indices(tmp_path: Path) -> None:
    x = torch.randn(12, 4)
    loader = DataLoader(TensorDataset(x, torch.arange(12)), batch_size=4, shuffle=True)
    with pytest.raises(SetupError, match="shuffles"):
        predict(tmp_path, PredictionWriter(), data=loader)
    predict(tmp_path, PredictionWriter(format="npz", index=lambda run: run.batch[1]), data=loader)
    found = read(tmp_path / "predictions" / "predict.npz")
    assert sorted(found["index"].tolist()) == list(range(12))
    with torch.no_grad():
        assert torch.allclose(found["prediction"], TinyModel()(x)[found["index"]], atol=1e-6)


# -- evaluations ---------------------------------------------------------------------------------


def test_evaluations_are_written_by_step_and_loader_if_asked_for(tmp_path: Path) -> None:
    result = fit_and_test(
        PredictionWriter(format="npz", stages=("val", "test")), folder=tmp_path, val={"a": DATA, "b": DATA[:2]}
    )
    names = sorted(path.name for path in (tmp_path / "predictions").iterdir())
    assert names == [
        "test-step-00000008.npz",
        "val-a-step-00000004.npz",
        "val-a-step-00000008.npz",
        "val-b-step-00000004.npz",
        "val-b-step-00000008.npz",
    ]
    assert torch.equal(read(tmp_path / "predictions" / names[0])["prediction"], expected(result.model))
    assert read(tmp_path / "predictions" / names[3])["index"].tolist() == list(range(8))


def test_loaders_whose_names_give_one_file_are_refused_before_one_replaces_the_other(tmp_path: Path) -> None:
    words = r"PredictionWriter: the val loaders 'a b' and 'a/b' .* 'val-a-b'; give one"
    named = {"a b": DATA, "a/b": DATA[:2]}
    with pytest.raises(SetupError, match=words):
        fit_and_test(PredictionWriter(stages="val"), folder=tmp_path / "a", val=named)
    fit_and_test(PredictionWriter(), folder=tmp_path / "b", val=named)
    loop = Loop(TinyModel(), callbacks=[PredictionWriter(stages="val")], folder=tmp_path / "c", device="cpu")
    set_entry_point(loop, "evaluate")
    with loop, pytest.raises(SetupError, match=words):
        next(loop.eval_batches(named))


def test_two_with_one_file_are_refused_and_two_formats_or_stages_are_not(tmp_path: Path) -> None:
    for one, other in (
        (PredictionWriter(format="csv"), PredictionWriter(format="csv", stages=("test", "predict"))),
        (PredictionWriter(format="csv", interval="batch"), PredictionWriter(format="npz", interval="batch")),
    ):
        with pytest.raises(SetupError, match=r"two PredictionWriter write to .*predict.*another folder"):
            predict(tmp_path, one, other)
    predict(tmp_path, PredictionWriter(format="csv"), PredictionWriter(format="csv", stages="test"))
    predict(tmp_path, PredictionWriter(format="csv"), PredictionWriter(format="csv", interval="batch"))
    assert {path.name for path in (tmp_path / "predictions").iterdir()} == {"predict.csv", "predict"}


def test_nothing_is_written_in_evaluations_by_default(tmp_path: Path) -> None:
    fit_and_test(PredictionWriter(), folder=tmp_path)
    assert not (tmp_path / "predictions").exists()


def test_an_evaluation_without_outputs_says_how_to_give_them(tmp_path: Path) -> None:
    class Mute(SupervisedTask):
        def eval_batch(self, run: Any, batch: Any) -> Any:
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    task = Mute(TinyModel(), nn.CrossEntropyLoss(), torch.optim.SGD)
    with pytest.raises(SetupError, match="finds no outputs"):
        fit(PredictionWriter(stages="val"), model=task, val=DATA, folder=tmp_path)


def test_an_evaluation_that_is_left_leaves_no_file(tmp_path: Path) -> None:
    @on("eval_batch_end")
    def press(run: Any) -> None:
        if run.clock.eval.batch == 2:
            press_ctrl_c()

    fit_and_test(press, PredictionWriter(stages="val"), folder=tmp_path)
    assert not (tmp_path / "predictions").exists()


def test_a_loop_of_ones_own_that_breaks_off_has_no_complete_prediction(tmp_path: Path) -> None:
    model = TinyModel().eval()

    def run(stop: int | None, interval: Any) -> None:
        loop = Loop(model, callbacks=[PredictionWriter(interval=interval)], folder=tmp_path, device="cpu")
        set_entry_point(loop, "predict")
        with loop:
            for number, (x, _) in enumerate(loop.predict_batches(DATA)):
                loop.run.outputs = model(x)
                if number == stop:
                    break

    run(2, "epoch")
    assert not list(tmp_path.rglob("*.parquet"))
    run(2, "batch")
    run(None, "batch")
    table = pq.read_table([str(path) for path in parts(tmp_path / "predictions" / "predict")])
    assert table["index"].to_pylist() == list(range(19))
    assert torch.equal(torch.tensor(table["prediction"].to_pylist()), expected())


def test_swapped_weights_are_what_is_predicted_with(tmp_path: Path) -> None:
    class Half(Callback):
        writes = ("weights",)

        def around_predict(self, run: Any) -> Iterator[None]:
            with run.swap_weights({name: p.detach() / 2 for name, p in run.model.named_parameters()}):
                yield

    predict(tmp_path, PredictionWriter(interval="batch", format="npz"), Half())
    half = TinyModel()
    with torch.no_grad():
        for parameter in half.parameters():
            parameter.div_(2)
    found = torch.cat([read(path)["prediction"] for path in parts(tmp_path / "predictions" / "predict")])
    assert torch.equal(found, expected(half))


# -- what is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"interval": "step"}, r"PredictionWriter\(interval='step'\): must be 'batch' or 'epoch'\."),
        ({"format": "excel"}, "'parquet', 'csv', 'npz', or a function"),
        ({"stages": ()}, r"PredictionWriter\(stages="),
        ({"stages": "train"}, r"PredictionWriter\(stages="),
        ({"batches_per_file": 0}, r"PredictionWriter\(batches_per_file=0\): must be >= 1\."),
    ],
)
def test_a_wrong_argument_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        PredictionWriter(**given)


def test_a_missing_package_is_named_before_anything_is_predicted(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(_predictions, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"needs pyarrow: pip install 'hookline\[parquet\]'"):
        predict(tmp_path, PredictionWriter())
    predict(tmp_path, PredictionWriter(format="csv"))


def test_a_place_that_cannot_be_written_is_named_before_anything_is_predicted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="is a file"):
        predict(tmp_path, PredictionWriter(tmp_path / "file" / "below"))
    with pytest.raises(SetupError, match="folder=False"):
        Trainer(folder=False, callbacks=[PredictionWriter()]).predict(TinyModel(), DATA)
