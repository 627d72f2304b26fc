"""``LoadWeights``: a run begins with weights from a file of any kind, once, and never runs what is in it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import hookline as hl
from hookline.errors import CheckpointError, CheckpointMismatchError, CheckpointNotFoundError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, same_tensors, sgd, signal_arrived, state_of, train_loop, wait_until

GIVEN = TinyModel(seed=7)
fit_epoch = partial(fit, max_duration="1ep")


def weights() -> dict[str, Tensor]:
    return state_of(GIVEN)


class First(hl.Callback):
    """The weights with which training begins."""

    def on_train_start(self, run: Any) -> None:
        self.weights = state_of(run.model)


def begins_with(*callbacks: object, **options: Any) -> dict[str, Tensor]:
    first = First()
    fit_epoch(*callbacks, first, **options)
    return first.weights


# -- kinds of files --------------------------------------------------------------------------------


def run_folder(folder: Path) -> Path:
    model = TinyModel(seed=3)
    model.load_state_dict(weights())
    fit(hl.Checkpointer(), model=model, optimizer=partial(sgd, lr=0.0), folder=folder / "run", max_duration="1st")
    return folder / "run"


def one_checkpoint(folder: Path) -> Path:
    return run_folder(folder) / "checkpoints" / "step-00000001"


def safetensors_file(folder: Path) -> Path:
    save_file(weights(), folder / "w.safetensors")
    return folder / "w.safetensors"


def torch_file(folder: Path) -> Path:
    torch.save(weights(), folder / "w.pt")
    return folder / "w.pt"


def training_file(folder: Path) -> Path:
    torch.save({"model_state_dict": weights(), "epoch": 3}, folder / "w.pth")
    return folder / "w.pth"


def hugging_face(folder: Path) -> Path:
    save_file(weights(), folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def hugging_face_in_shards(folder: Path) -> Path:
    names = list(weights())
    places = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    for shard in set(places.values()):
        save_file({name: tensor for name, tensor in weights().items() if places[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


KINDS = [one_checkpoint, run_folder, safetensors_file, torch_file, training_file, hugging_face, hugging_face_in_shards]


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_each_kind_of_file_is_what_training_begins_with(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    assert same_tensors(begins_with(hl.LoadWeights(make(tmp_path))), weights())


def test_a_lightning_checkpoint_is_read_without_its_prefix(tmp_path: Path) -> None:
    named = {f"model.{name}": tensor for name, tensor in weights().items()}
    torch.save({"state_dict": named, "epoch": 1, "pytorch-lightning_version": "2.5"}, tmp_path / "l.ckpt")
    with pytest.raises(CheckpointMismatchError, match=r"give prefix='model\.'"):
        fit_epoch(hl.LoadWeights(tmp_path / "l.ckpt"))
    assert same_tensors(begins_with(hl.LoadWeights(tmp_path / "l.ckpt", prefix="model.")), weights())


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_a_file_that_would_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    torch.save({"state_dict": weights(), "hyper": Payload(tmp_path / "ran")}, tmp_path / "evil.ckpt")
    with pytest.raises(CheckpointError, match="which Hookline refuses because a file could run any code"):
        fit_epoch(hl.LoadWeights(tmp_path / "evil.ckpt"))
    assert not (tmp_path / "ran").exists()


def test_a_file_that_is_not_there_is_said_before_training(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="does not exist"):
        fit_epoch(hl.LoadWeights(tmp_path / "nothing.pt"))


# -- what does not fit -----------------------------------------------------------------------------


def other_head(folder: Path) -> Path:
    found = weights()
    found["out.weight"] = torch.zeros(10, 8)
    found["extra"] = torch.zeros(1)
    del found["out.bias"]
    save_file(found, folder / "head.safetensors")
    return folder / "head.safetensors"


def test_strict_lists_everything_that_does_not_fit_and_changes_nothing(tmp_path: Path) -> None:
    model = TinyModel()
    with pytest.raises(CheckpointMismatchError) as caught:
        fit_epoch(hl.LoadWeights(other_head(tmp_path)), model=model)
    assert "2 of 4 fit; missing 1: out.bias; unexpected 1: extra; of another shape 1: out.weight" in str(caught.value)
    assert same_tensors(model.state_dict(), TinyModel().state_dict())


def test_without_strict_what_fits_is_loaded_and_the_rest_is_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = begins_with(hl.LoadWeights(other_head(tmp_path), strict=False))
    fresh = TinyModel().state_dict()
    assert torch.equal(found["hidden.weight"], weights()["hidden.weight"])
    assert torch.equal(found["out.weight"], fresh["out.weight"])
    assert torch.equal(found["out.bias"], fresh["out.bias"])
    assert "missing 1: out.bias; unexpected 1: extra; of another shape 1: out.weight" in caplog.text


def test_weights_that_do_not_fit_at_all_are_an_error_also_without_strict(tmp_path: Path) -> None:
    save_file({"encoder.layer": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointMismatchError, match="0 of 4 fit"):
        fit_epoch(hl.LoadWeights(tmp_path / "x.safetensors", strict=False))


class Tied(nn.Module):
    """Embedding and head share one tensor, as in most language models."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(3, 4)
        self.head = nn.Linear(4, 3)
        self.head.weight = self.embedding.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs)  # type: ignore[no-any-return]


@pytest.mark.parametrize("written", ["embedding.weight", "head.weight"])
def test_a_hugging_face_folder_of_a_model_with_tied_weights_is_loaded(tmp_path: Path, written: str) -> None:
    """``save_pretrained`` writes a shared tensor under one name and does not note the other."""
    given = Tied(seed=1)
    save_file(
        {written: given.head.weight, "head.bias": given.head.bias}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    first = First()
    fit_epoch(hl.LoadWeights(tmp_path), first, model=Tied(seed=2))
    assert all(torch.equal(first.weights[name], value) for name, value in given.state_dict().items())


def test_a_tensor_that_no_name_in_the_file_stands_for_is_still_missing(tmp_path: Path) -> None:
    save_file({"head.bias": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointMismatchError, match=r"missing 2: embedding\.weight, head\.weight"):
        fit_epoch(hl.LoadWeights(tmp_path), model=Tied(seed=2))


def two_values(path: Path, tied: bool) -> Path:
    values = {name: torch.ones(3, 4) for name in ("embedding.weight", "head.weight")}
    values["head.weight"][2, 3] = float("nan") if tied else 2.0
    values["embedding.weight"][2, 3] = float("nan") if tied else 1.0
    save_file({**values, "head.bias": torch.zeros(3)}, path / "model.safetensors")
    return path / "model.safetensors"


def test_two_values_for_tied_weights_are_an_error(tmp_path: Path) -> None:
    words = r"1 of 3 fit; tied in the model, but with different values here 2: embedding\.weight, head\.weight"
    with pytest.raises(CheckpointMismatchError, match=words):
        fit_epoch(hl.LoadWeights(two_values(tmp_path, tied=False)), model=Tied(seed=2))


def test_without_strict_two_values_for_tied_weights_leave_them_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Tied(seed=2)
    before, first = model.head.weight.detach().clone(), First()
    fit_epoch(hl.LoadWeights(two_values(tmp_path, tied=False), strict=False), first, model=model)
    assert torch.equal(first.weights["head.weight"], before)
    assert torch.equal(first.weights["head.bias"], torch.zeros(3))
    assert "with different values here 2: embedding.weight, head.weight" in caplog.text


def test_tied_weights_that_were_written_twice_are_loaded(tmp_path: Path) -> None:
    first = First()
    fit_epoch(hl.LoadWeights(two_values(tmp_path, tied=True)), first, model=Tied(seed=2))
    assert first.weights["head.weight"][0, 0] == first.weights["embedding.weight"][0, 0] == 1


def test_tied_weights_that_were_written_once_are_loaded(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight
            self.out = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.b(self.a(x)))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    trained, path = Tied(), tmp_path / "run"
    fit_epoch(hl.Checkpointer(), model=trained, folder=path)
    model = Tied()
    found = begins_with(hl.LoadWeights(path), model=model)
    assert same_tensors(found, dict(trained.state_dict()))
    assert model.a.weight is model.b.weight


# -- when ------------------------------------------------------------------------------------------


def test_a_resumed_run_keeps_what_it_has_learned(tmp_path: Path) -> None:
    path = safetensors_file(tmp_path)

    def leave(run: Any) -> None:
        if run.clock.step == 2:
            signal.raise_signal(signal.SIGTERM)
            wait_until(lambda: signal_arrived(run), "the signal")  # another thread may have got it first

    with pytest.raises(hl.Preempted):
        fit_epoch(hl.LoadWeights(path), hl.on("train_step_end")(leave), folder=tmp_path / "run", resume="auto")
    path.unlink()  # it is not needed any more
    went_on = fit_epoch(hl.LoadWeights(path), folder=tmp_path / "run", resume="auto")
    whole = fit_epoch(hl.LoadWeights(safetensors_file(tmp_path)))
    assert same_tensors(dict(went_on.model.state_dict()), dict(whole.model.state_dict()))


def test_a_second_fit_of_the_same_model_keeps_what_it_has_learned(tmp_path: Path) -> None:
    trainer = Trainer(folder=False, max_duration="2st", callbacks=[hl.LoadWeights(safetensors_file(tmp_path))])
    model, loss = TinyModel(), CE
    trainer.evaluate(model, tiny_data(1), loss=loss)
    trainer.fit(model, tiny_data(4), loss=loss, optimizer=torch.optim.SGD)
    learned = state_of(model)
    first = First()
    trainer.fit(model, tiny_data(4), loss=loss, optimizer=torch.optim.SGD, extend="2st", callbacks=[first])
    assert same_tensors(first.weights, learned)
    trainer.predict(model, tiny_data(1))
    assert not same_tensors(dict(model.state_dict()), weights())


def test_a_run_that_goes_on_is_not_set_back_by_one_that_joins_late(tmp_path: Path) -> None:
    trainer, model, loss = Trainer(folder=False, max_duration="2st"), TinyModel(), CE
    trainer.fit(model, tiny_data(4), loss=loss, optimizer=torch.optim.SGD)
    learned = state_of(model)
    late, first = hl.LoadWeights(safetensors_file(tmp_path)), First()
    trainer.fit(model, tiny_data(4), loss=loss, optimizer=torch.optim.SGD, extend="2st", callbacks=[late, first])
    assert same_tensors(first.weights, learned)


def test_each_model_of_a_sweep_begins_with_them(tmp_path: Path) -> None:
    first = First()
    trainer = Trainer(folder=False, max_duration="2st", callbacks=[hl.LoadWeights(safetensors_file(tmp_path)), first])
    for seed in (1, 2):
        trainer.fit(TinyModel(seed=seed), tiny_data(4), loss=CE, optimizer=torch.optim.SGD)
        assert same_tensors(first.weights, weights())


@pytest.mark.parametrize("entry", ["evaluate", "test", "predict"])
def test_an_evaluation_and_a_prediction_use_them(tmp_path: Path, entry: str) -> None:
    trainer, model = Trainer(folder=False, callbacks=[hl.LoadWeights(safetensors_file(tmp_path))]), TinyModel()
    loss = {} if entry == "predict" else {"loss": CE}
    getattr(trainer, entry)(model, tiny_data(1), **loss)
    assert same_tensors(dict(model.state_dict()), weights())


def test_an_own_loop_begins_with_them(tmp_path: Path) -> None:
    first = First()
    _, model = train_loop(hl.LoadWeights(safetensors_file(tmp_path)), first, max_duration="2st")
    assert same_tensors(first.weights, weights())
    assert not same_tensors(dict(model.state_dict()), weights())
