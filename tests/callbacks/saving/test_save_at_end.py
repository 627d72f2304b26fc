"""What is left of a finished run is complete, belongs together, and can be read by others."""

from __future__ import annotations

import json
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hookline.callbacks.saving._source import packed
from hookline.callbacks.saving.checkpointer import Checkpointer
from hookline.callbacks.saving.save_at_end import SaveAtEnd
from hookline.callbacks.saving.save_best import SaveBest
from hookline.errors import ArgumentError, SetupError
from hookline.events import on
from hookline.loop import SupervisedTask, Task, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, at_step, crash_at, fit, press_ctrl_c, same_tensors

TRAIN, VAL, TEST = tiny_data(4), tiny_data(3, last=3, seed=1), tiny_data(2, seed=2)


def fit_and_test(*callbacks: object, **options: Any) -> Any:
    return fit(*callbacks, **{"model": TinyModel(dropout=0.2), "train": TRAIN, "val": VAL, "test": TEST, **options})


def predicted(model: nn.Module, data: Any) -> Tensor:
    with torch.no_grad():
        return torch.cat([model.eval()(x) for x, _ in data])


def test_weights_predictions_labels_metrics_and_settings_of_the_final_model_are_there(tmp_path: Path) -> None:
    config = {"lr": 0.001, "api_key": "very secret", "layers": [8, 3]}
    result = fit_and_test(SaveAtEnd(), folder=tmp_path, config=config, name="digits/first")
    final = tmp_path / "final"
    assert same_tensors(load_file(final / "model.safetensors"), result.model.state_dict())
    for stage, data in (("val", VAL), ("test", TEST)):
        found = load_file(final / f"predictions-{stage}.safetensors")
        assert torch.equal(found["predictions"], predicted(result.model, data))
        assert torch.equal(found["labels"], torch.cat([y for _, y in data]))
    metrics = json.loads((final / "metrics.json").read_text())
    assert metrics["metrics"] == dict(result.metrics)
    assert metrics["history"]["val/loss"] == {"steps": [4, 8], "values": result.history["val/loss"]}
    assert (metrics["step"], metrics["stop_reason"]) == (8, "max_duration (2ep) reached")
    settings = json.loads((final / "settings.json").read_text())
    assert (settings["project"], settings["name"], settings["max_duration"]) == ("digits", "first", "2ep")
    assert settings["config"] == {**config, "api_key": "[redacted]", "seed": 0}
    assert not [path.name for path in final.iterdir() if path.name.startswith(".")]


def test_it_is_the_model_that_a_save_best_has_loaded_in_any_order(tmp_path: Path) -> None:
    for name, order in {"a": (SaveAtEnd(), SaveBest()), "b": (SaveBest(), SaveAtEnd())}.items():
        result = fit_and_test(*order, folder=tmp_path / name, max_duration="3ep")
        assert same_tensors(load_file(tmp_path / name / "final" / "model.safetensors"), result.model.state_dict())
        assert same_tensors(load_file(tmp_path / name / "best.safetensors"), result.model.state_dict())
        found = load_file(tmp_path / name / "final" / "predictions-val.safetensors")
        assert torch.equal(found["predictions"], predicted(result.model, VAL))


def test_loaders_whose_names_give_one_file_are_refused_before_one_replaces_the_other(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"SaveAtEnd: the val loaders 'a b' and 'a/b' .* 'val-a-b'; give one"):
        fit_and_test(SaveAtEnd(source=False), folder=tmp_path / "a", val={"a b": VAL, "a/b": TEST}, test=None)
    fit_and_test(
        SaveAtEnd(source=False, predictions="test"),
        folder=tmp_path / "b",
        val={"a b": VAL, "a/b": TEST},
    )
    fit_and_test(SaveAtEnd(source=False), folder=tmp_path / "c", val={"a b": VAL, "a_b": TEST}, test=None)
    names = {path.name for path in (tmp_path / "c" / "final").glob("predictions-*")}
    assert names == {"predictions-val-a-b.safetensors", "predictions-val-a_b.safetensors"}


def test_two_with_one_folder_are_refused_before_one_replaces_the_files_of_the_other(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"two SaveAtEnd write to .*final.*another folder"):
        fit_and_test(SaveAtEnd(), SaveAtEnd(predictions="train"), folder=tmp_path)


def test_labels_belong_to_their_predictions_also_if_the_loader_shuffles(tmp_path: Path) -> None:
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, torch.arange(32) % 3)
    loader = DataLoader(data, batch_size=5, shuffle=True)
    result = fit_and_test(SaveAtEnd(labels=lambda batch: batch[0]), folder=tmp_path, val=loader, test=None)
    found = load_file(tmp_path / "final" / "predictions-val.safetensors")
    assert torch.allclose(found["predictions"], predicted(result.model, [(found["labels"], None)]), atol=1e-6)
    assert not torch.equal(found["labels"], x)


def test_named_loaders_have_a_file_each(tmp_path: Path) -> None:
    fit_and_test(SaveAtEnd(source=False), folder=tmp_path, val={"easy": VAL, "a/b": TEST}, test=None)
    names = sorted(path.name for path in (tmp_path / "final").glob("predictions-*"))
    assert names == ["predictions-val-a-b.safetensors", "predictions-val-easy.safetensors"]


class Words(SupervisedTask):
    """Predicts a tensor, a tuple of tensors, and texts."""

    def predict_batch(self, run: Any, batch: Any) -> Any:
        found = super().predict_batch(run, batch)
        return {"logits": found, "pair": (found[:, 0], found[:, 1]), "words": [f"class {i}" for i in found.argmax(1)]}


def test_outputs_of_many_parts_are_named_and_texts_are_kept_as_json(tmp_path: Path) -> None:
    task = Words(TinyModel(), CE, torch.optim.SGD)
    fit(SaveAtEnd("out"), model=task, val=VAL, folder=tmp_path, max_duration="1ep")
    found = load_file(tmp_path / "out" / "predictions-val.safetensors")
    assert sorted(found) == ["labels", "predictions.logits", "predictions.pair.0", "predictions.pair.1"]
    assert torch.equal(found["predictions.pair.1"], found["predictions.logits"][:, 1])
    words = json.loads((tmp_path / "out" / "predictions-val.json").read_text())["predictions.words"]
    assert [word for batch in words for word in batch] == [f"class {i}" for i in found["predictions.logits"].argmax(1)]


def test_the_script_is_kept_as_it_was_when_the_run_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, script = tmp_path / "code", tmp_path / "script.py"
    (code / "inner" / "__pycache__").mkdir(parents=True)
    (code / ".git").mkdir()
    for name in ("a.py", "inner/b.yaml", "inner/__pycache__/c.py", ".git/d.py", "weights.bin", ".env.py"):
        (code / name).write_text(name)
    script.write_text("trainer.fit()")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    edit = on("train_start")(lambda run: script.write_text("# edited while it ran"))
    fit(SaveAtEnd(source=code), edit, folder=tmp_path / "run", max_duration="1ep")
    assert script.read_text() == "# edited while it ran"
    with zipfile.ZipFile(tmp_path / "run" / "final" / "source.zip") as archive:
        assert sorted(archive.namelist()) == ["code/a.py", "code/inner/b.yaml", "script.py"]
        assert archive.read("script.py") == b"trainer.fit()"


def test_the_same_source_gives_the_same_bytes_and_two_files_of_one_name_are_both_kept(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(folder)
    paths = [tmp_path / "a" / "train.py", tmp_path / "b" / "train.py", tmp_path / "a" / "train.py"]
    first = packed(paths)
    assert first == packed(paths)
    with zipfile.ZipFile(BytesIO(first)) as archive:
        assert [archive.read(name) for name in archive.namelist()] == [b"a", b"b"]


def test_after_an_error_or_ctrl_c_there_is_the_source_and_no_final_model(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit_and_test(crash_at(3), SaveAtEnd(source=__file__), folder=tmp_path / "a")
    assert fit_and_test(at_step(3, press_ctrl_c), SaveAtEnd(source=__file__), folder=tmp_path / "b").interrupted
    for run in ("a", "b"):
        assert [path.name for path in (tmp_path / run / "final").iterdir()] == ["source.zip"]
        with zipfile.ZipFile(tmp_path / run / "final" / "source.zip") as archive:
            assert archive.read(Path(__file__).name) == Path(__file__).read_bytes()


def test_a_run_that_was_broken_off_and_goes_on_leaves_the_same_as_one_that_was_not(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit_and_test(
            crash_at(5, "step_settled"), SaveAtEnd(source=__file__), Checkpointer("2st"), folder=tmp_path / "a"
        )
    fit_and_test(SaveAtEnd(source=__file__), Checkpointer("2st"), folder=tmp_path / "a", resume="auto")
    fit_and_test(SaveAtEnd(source=__file__), Checkpointer("2st"), folder=tmp_path / "b")
    for name in ("model.safetensors", "predictions-val.safetensors", "predictions-test.safetensors", "source.zip"):
        assert (tmp_path / "a" / "final" / name).read_bytes() == (tmp_path / "b" / "final" / name).read_bytes()
    one, other = (json.loads((tmp_path / run / "final" / "metrics.json").read_text()) for run in "ab")
    assert one["history"] == other["history"]


def test_predicting_at_the_end_changes_nothing_of_a_fit_that_goes_on(tmp_path: Path) -> None:
    def twice(*callbacks: object) -> Any:
        trainer = Trainer(callbacks=callbacks, folder=tmp_path / str(len(callbacks)), max_duration="1ep", seed=0)
        model = TinyModel(dropout=0.3)
        loader = DataLoader(TensorDataset(*map(torch.cat, zip(*TRAIN, strict=True))), batch_size=8, shuffle=True)
        for extend in (None, "1ep"):
            fit(model=model, train=loader, val=VAL, trainer=trainer, extend=extend)
        return model.state_dict()

    assert same_tensors(twice(SaveAtEnd(predictions=("train", "val"))), twice())


@pytest.mark.parametrize("wrong", ["predict", ("val", "dev")])
def test_a_stage_that_does_not_exist_is_named(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="val, test, train"):
        SaveAtEnd(predictions=wrong)


class Silent(Task[Any]):
    """Cannot predict."""

    def __init__(self) -> None:
        super().__init__()
        self.net = TinyModel()

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_batch(self, run: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    eval_batch = train_batch


def test_predictions_that_cannot_be_made_are_refused_at_the_start_if_they_were_asked_for(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="predict_batch"):
        fit_and_test(SaveAtEnd(predictions="val"), folder=tmp_path / "a", model=Silent())
    with pytest.raises(SetupError, match="no such loader; it has train, val"):
        fit_and_test(SaveAtEnd(predictions="test"), folder=tmp_path / "b", test=None)
    with pytest.raises(SetupError, match=r"missing'.* is not there"):
        fit_and_test(SaveAtEnd(source=tmp_path / "missing"), folder=tmp_path / "c")
    fit(SaveAtEnd(source=False), model=Silent(), val=VAL, folder=tmp_path / "d", max_duration="1ep")
    names = sorted(path.name for path in (tmp_path / "d" / "final").iterdir())
    assert names == ["metrics.json", "model.safetensors", "settings.json"]
