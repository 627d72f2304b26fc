"""The file and the model have the weights with the best value, whatever happened before or after them."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from hookline.callbacks.saving.checkpointer import Checkpointer
from hookline.callbacks.saving.save_best import SaveBest
from hookline.callbacks.weights import EMA, Pruning, QuantizationAwareTraining
from hookline.checkpoint import Store
from hookline.errors import ArgumentError, CheckpointWriteError, MetricError, SetupError
from hookline.events import Callback, on
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, press_ctrl_c, same_tensors, sgd, state_of

TRAIN, VAL, TEST = tiny_data(4), tiny_data(2, seed=1), tiny_data(2, seed=2)
sgd_momentum = partial(sgd, momentum=0.9)


class Scripted(Callback):
    """Logs values that are given beforehand, one an evaluation, and keeps the weights that were evaluated."""

    writes = ("val/score",)
    state = ("count",)
    name = "script"

    def __init__(self, *values: float) -> None:
        self.values, self.count = values, 0
        self.seen: list[dict[str, Tensor]] = []

    def on_eval_loader_end(self, run: Any) -> None:
        if run.stage == "val":
            run.log({"val/score": self.values[self.count % len(self.values)]})
            self.count += 1
            self.seen.append(state_of(run.model))


def averaged(model: nn.Module, steps: int, decay: float) -> dict[str, Tensor]:
    """A plain loop, and the average by hand."""
    optimizer, average = sgd_momentum(model.parameters()), {}
    for step in range(steps):
        x, y = TRAIN[step % len(TRAIN)]
        optimizer.zero_grad()
        CE(model(x), y).backward()
        optimizer.step()
        for name, value in model.state_dict().items():
            before = average.get(name, value)
            average[name] = decay * before + (1 - decay) * value
    return average


def fit_dropout(*callbacks: object, **options: Any) -> Any:
    """Four epochs of a model with dropout, and a test."""
    data = {"train": TRAIN, "val": VAL, "test": TEST}
    given = {"model": TinyModel(dropout=0.2), "max_duration": "4ep", "optimizer": sgd_momentum, **data}
    return fit(*callbacks, **given | options)


# -- which weights -------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "best"), [("max", 1), ("min", 2)])
def test_the_file_and_the_model_have_the_weights_of_the_best_evaluation(tmp_path: Path, mode: Any, best: int) -> None:
    values = (0.3, 0.9, 0.1, 0.5)
    script, saver = Scripted(*values), SaveBest("val/score", mode=mode)
    result = fit_dropout(script, saver, folder=tmp_path)
    assert (saver.best, saver.best_step) == (values[best], 4 * (best + 1))
    assert same_tensors(load_file(tmp_path / "best.safetensors"), script.seen[best])
    assert same_tensors(result.model.state_dict(), script.seen[best])
    assert not same_tensors(script.seen[best], script.seen[3])


def test_of_two_equal_values_the_first_stays(tmp_path: Path) -> None:
    saver = SaveBest("val/score")
    fit_dropout(Scripted(0.5, 0.5, 0.5, 0.5), saver, folder=tmp_path)
    assert saver.best_step == 4


def test_an_improvement_below_min_delta_is_none(tmp_path: Path) -> None:
    saver = SaveBest("val/score", min_delta=0.1)
    fit_dropout(Scripted(0.5, 0.55, 0.59, 0.61), saver, folder=tmp_path)
    assert (saver.best, saver.best_step) == (0.61, 16)


def test_a_first_value_that_is_nan_can_be_beaten_and_infinity_is_no_best(tmp_path: Path) -> None:
    saver = SaveBest("val/score")
    fit_dropout(Scripted(math.nan, 0.1, math.inf, 0.2), saver, folder=tmp_path)
    assert (saver.best, saver.best_step) == (0.2, 16)


def test_a_training_metric_decides_once_an_epoch(tmp_path: Path) -> None:
    saver = SaveBest("train/loss")
    result = fit_dropout(saver, folder=tmp_path, log_every="2st")
    assert saver.best_step in (4, 8, 12, 16)
    assert same_tensors(load_file(tmp_path / "best.safetensors"), result.model.state_dict())


def test_beside_an_ema_the_average_is_evaluated_saved_and_given_back(tmp_path: Path) -> None:
    for name, order in {"one": (SaveBest("val/score"), EMA(0.5)), "other": (EMA(0.5), SaveBest("val/score"))}.items():
        script = Scripted(0.1, 0.9, 0.2, 0.3)
        result = fit_dropout(script, *order, folder=tmp_path / name, model=TinyModel())
        found = load_file(tmp_path / name / "best.safetensors")
        assert same_tensors(found, script.seen[1])
        assert same_tensors(result.model.state_dict(), script.seen[1])
        for key, value in averaged(TinyModel(), 8, 0.5).items():
            torch.testing.assert_close(found[key], value)


def test_the_test_at_the_end_is_that_of_the_model_that_is_given_back(tmp_path: Path) -> None:
    result = fit_dropout(Scripted(0.1, 0.9, 0.2, 0.3), SaveBest("val/score"), EMA(0.5), folder=tmp_path)
    model = result.model.eval()
    loss = sum(nn.functional.cross_entropy(model(x), y).item() * len(y) for x, y in TEST) / sum(len(y) for _, y in TEST)
    assert result.metrics["test/loss"] == pytest.approx(loss)


def test_what_is_given_back_is_as_sparse_as_pruning_has_made_the_model_also_if_the_best_came_before(
    tmp_path: Path,
) -> None:
    script, pruning = Scripted(0.9, 0.1, 0.1, 0.1), Pruning(amount=0.5)
    result = fit_dropout(script, SaveBest("val/score"), pruning, folder=tmp_path)
    found, best, masks = result.model.state_dict(), script.seen[0], pruning.masks
    assert pruning.sparsity > 0.9
    assert all(not found[name][~mask].any() for name, mask in masks.items())
    assert any(best[name][~mask].any() for name, mask in masks.items())
    assert same_tensors(found, {name: value * masks.get(name, torch.tensor(True)) for name, value in best.items()})
    assert same_tensors(load_file(tmp_path / "best.safetensors"), best)
    model = result.model.eval()
    loss = sum(nn.functional.cross_entropy(model(x), y).item() * len(y) for x, y in TEST) / sum(len(y) for _, y in TEST)
    assert result.metrics["test/loss"] == pytest.approx(loss)


def test_weights_that_are_tied_are_given_back_pruned_under_both_names(tmp_path: Path) -> None:
    model, pruning = TinyModel(), Pruning(amount=0.5)
    model.again = model.out
    fit_dropout(Scripted(0.9, 0.1, 0.1, 0.1), SaveBest("val/score"), pruning, folder=tmp_path, model=model)
    assert not model.out.weight[~pruning.masks["out.weight"]].any()


def rounding() -> Any:
    pytest.importorskip("torchao")
    return QuantizationAwareTraining(4, None)


def test_with_quantization_the_best_weights_are_the_ones_that_are_converted(tmp_path: Path) -> None:
    script = Scripted(0.1, 0.9, 0.2, 0.3)
    result = fit_dropout(script, SaveBest("val/score"), rounding(), folder=tmp_path)
    best = script.seen[1]
    assert same_tensors(load_file(tmp_path / "best.safetensors"), best)
    wanted, last = (
        fit_dropout(rounding(), model=loaded(weights), max_duration="1st", optimizer=partial(sgd, lr=0.0)).model
        for weights in (best, script.seen[3])
    )
    x = VAL[0][0]
    assert torch.equal(result.model.eval()(x), wanted.eval()(x))
    assert not torch.equal(wanted(x), last.eval()(x))


def test_with_quantization_a_longer_fit_goes_on_from_the_last_weights_too(tmp_path: Path) -> None:
    values = (0.9, 0.1, 0.1, 0.1)
    script, whole = Scripted(*values), Scripted(*values)
    fit_twice(tmp_path / "twice", script, SaveBest("val/score"), rounding())
    fit_dropout(whole, SaveBest("val/score"), rounding(), folder=tmp_path / "once")
    assert same_tensors(script.seen[3], whole.seen[3])


def loaded(weights: dict[str, Tensor]) -> nn.Module:
    model = TinyModel(dropout=0.2)
    model.load_state_dict(weights)
    return model


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    fit_dropout(Scripted(0.1, 0.9, 0.2, 0.3), SaveBest("val/score", path="weights/top.safetensors"), folder=tmp_path)
    with safe_open(tmp_path / "weights" / "top.safetensors", framework="pt") as file:
        notes = file.metadata()
    assert (notes["step"], notes["monitor"], float(notes["value"])) == ("8", "val/score", 0.9)
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["top.safetensors"]


def test_tied_weights_are_written_once_and_come_back_tied(tmp_path: Path) -> None:
    model = TinyModel()
    model.again = model.out
    result = fit_dropout(SaveBest("val/loss", mode="min"), folder=tmp_path, model=model)
    assert result.model.again.weight is result.model.out.weight
    with safe_open(tmp_path / "best.safetensors", framework="pt") as file:
        assert len(list(file.keys())) == 4


# -- what comes after ----------------------------------------------------------------------------


def test_the_final_checkpoint_has_the_weights_of_the_last_step(tmp_path: Path) -> None:
    script = Scripted(0.9, 0.1, 0.1, 0.1)
    result = fit_dropout(script, SaveBest("val/score"), Checkpointer(), folder=tmp_path)
    last = Store(tmp_path / "checkpoints").load_newest()
    assert last is not None
    assert same_tensors(last[1].weights, script.seen[3])
    assert same_tensors(result.model.state_dict(), script.seen[0])


def test_weights_that_are_put_back_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit_dropout(Scripted(0.1, 0.9, 0.2, 0.2), SaveBest("val/score"), folder=tmp_path)
    said = [message for message in caplog.messages if "are restored" in message]
    assert said == ["the weights of step 8 are restored: val/score 0.9 was the best"]
    assert said[0] in (tmp_path / "events.jsonl").read_text()


def test_without_load_best_the_model_keeps_its_last_weights(tmp_path: Path) -> None:
    script = Scripted(0.9, 0.1, 0.1, 0.1)
    result = fit_dropout(script, SaveBest("val/score", load_best=False), folder=tmp_path)
    assert same_tensors(result.model.state_dict(), script.seen[3])
    assert same_tensors(load_file(tmp_path / "best.safetensors"), script.seen[0])


def fit_twice(folder: Path, *callbacks: object, touch: bool = False) -> Any:
    trainer = Trainer(folder=folder, callbacks=callbacks, max_duration="2ep", seed=0, device="cpu")
    model = TinyModel(dropout=0.2)
    fit(model=model, train=TRAIN, val=VAL, optimizer=sgd_momentum, trainer=trainer)
    if touch:
        with torch.no_grad():
            model.out.bias.fill_(7.0)
    return fit(model=model, train=TRAIN, val=VAL, optimizer=sgd_momentum, trainer=trainer, extend="2ep")


def test_a_longer_fit_goes_on_from_the_last_weights_and_not_from_the_best(tmp_path: Path) -> None:
    values = (0.9, 0.1, 0.1, 0.1)
    script, whole = Scripted(*values), Scripted(*values)
    result = fit_twice(tmp_path / "twice", script, SaveBest("val/score"))
    fit_dropout(whole, SaveBest("val/score"), folder=tmp_path / "once")
    assert same_tensors(script.seen[3], whole.seen[3])
    assert same_tensors(result.model.state_dict(), whole.seen[0])


def test_weights_that_the_user_has_changed_between_two_fits_stay_changed(tmp_path: Path) -> None:
    script = Scripted(0.9, 0.1, 0.1, 0.1)
    fit_twice(tmp_path, script, SaveBest("val/score"), touch=True)
    assert script.seen[2]["out.bias"].mean() > 3


def test_a_new_run_with_the_same_object_forgets_the_last_one(tmp_path: Path) -> None:
    saver = SaveBest("val/score")
    fit_dropout(Scripted(0.9, 0.1, 0.1, 0.1), saver, folder=tmp_path / "a")
    fit_dropout(Scripted(0.2, 0.3, 0.1, 0.1), saver, folder=tmp_path / "b")
    assert (saver.best, saver.best_step) == (0.3, 8)


def test_an_evaluation_between_two_fits_is_one_of_the_best_weights_and_the_longer_fit_goes_on_from_the_last(
    tmp_path: Path,
) -> None:
    values = (0.9, 0.1, 0.1, 0.1)
    script, whole = Scripted(*values), Scripted(*values)
    model = TinyModel(dropout=0.2)
    callbacks = [script, SaveBest("val/score")]
    trainer = Trainer(folder=tmp_path / "twice", callbacks=callbacks, max_duration="2ep", seed=0, device="cpu")
    fit(model=model, train=TRAIN, val=VAL, optimizer=sgd_momentum, trainer=trainer)
    trainer.predict(model, VAL)
    assert same_tensors(model.state_dict(), script.seen[0])
    fit(model=model, train=TRAIN, val=VAL, optimizer=sgd_momentum, trainer=trainer, extend="2ep")
    fit_dropout(whole, SaveBest("val/score"), folder=tmp_path / "once")
    assert same_tensors(script.seen[3], whole.seen[3])


def test_a_new_run_forgets_a_finished_run_that_the_same_object_has_only_opened(tmp_path: Path) -> None:
    fit_dropout(Scripted(0.9, 0.1, 0.1, 0.1), SaveBest("val/score"), Checkpointer(), folder=tmp_path / "a")
    saver, script = SaveBest("val/score"), Scripted(0.2, 0.3, 0.1, 0.1)
    fit_dropout(Scripted(0.0), saver, Checkpointer(), folder=tmp_path / "a", resume="auto")
    result = fit_dropout(script, saver, folder=tmp_path / "b", model=TinyModel(dropout=0.2, seed=7))
    assert (saver.best, saver.best_step) == (0.3, 8)
    assert same_tensors(result.model.state_dict(), script.seen[1])
    assert same_tensors(load_file(tmp_path / "b" / "best.safetensors"), script.seen[1])


def test_after_ctrl_c_the_model_has_the_best_weights_and_a_second_fit_goes_on_from_the_last(tmp_path: Path) -> None:
    @on("train_step_end")
    def press(run: Any) -> None:
        if run.clock.step == 10 and not pressed:
            pressed.append(True)
            press_ctrl_c()

    pressed: list[bool] = []
    script = Scripted(0.9, 0.1, 0.1, 0.1)
    trainer = Trainer(folder=tmp_path, callbacks=[press, script, SaveBest("val/score")], max_duration="4ep", seed=0)
    model = TinyModel(dropout=0.2)
    result = fit(model=model, train=TRAIN, val=VAL, optimizer=sgd_momentum, trainer=trainer)
    assert result.interrupted
    assert same_tensors(model.state_dict(), script.seen[0])
    fit(model=model, train=TRAIN, val=VAL, optimizer=sgd_momentum, trainer=trainer)
    whole = Scripted(0.9, 0.1, 0.1, 0.1)
    fit_dropout(whole)
    assert same_tensors(script.seen[-1], whole.seen[-1])


def test_after_an_error_the_weights_stay_as_they_are(tmp_path: Path) -> None:
    @on("train_step_end", at="10st")
    def fail(run: Any) -> None:
        kept.update(state_of(run.model))
        raise ZeroDivisionError

    kept: dict[str, Tensor] = {}
    model = TinyModel()
    with pytest.raises(ZeroDivisionError):
        fit_dropout(fail, Scripted(0.9, 0.1), SaveBest("val/score"), folder=tmp_path, model=model)
    assert same_tensors(model.state_dict(), kept)


# -- resume --------------------------------------------------------------------------------------


def test_a_run_that_goes_on_ends_as_one_that_was_never_stopped(tmp_path: Path) -> None:
    def run(folder: Path, *callbacks: object, **options: Any) -> tuple[SaveBest, Any]:
        saver, script = SaveBest("val/score"), Scripted(0.1, 0.9, 0.2, 0.3)
        return saver, fit_dropout(script, saver, Checkpointer("2st"), *callbacks, folder=folder, **options)

    whole, straight = run(tmp_path / "whole")
    for step in (2, 5, 9, 13, 15):
        folder = tmp_path / str(step)
        with pytest.raises(RuntimeError, match="planted"):
            run(folder, crash_at(step, "step_settled"))
        saver, resumed = run(folder, resume="auto")
        assert (saver.best, saver.best_step) == (whole.best, whole.best_step), step
        assert same_tensors(resumed.model.state_dict(), straight.model.state_dict()), step
        files = [(path / "best.safetensors").read_bytes() for path in (folder, tmp_path / "whole")]
        assert files[0] == files[1], step


def test_a_better_file_of_steps_that_were_taken_back_is_not_taken_for_the_best(tmp_path: Path) -> None:
    first = Scripted(0.5, 0.9)  # the best comes after the last checkpoint, and is lost with the process
    with pytest.raises(RuntimeError, match="planted"):
        fit_dropout(first, SaveBest("val/score"), Checkpointer("6st"), crash_at(8, "step_settled"), folder=tmp_path)
    second, saver = Scripted(0.5, 0.1, 0.2, 0.3), SaveBest("val/score")
    result = fit_dropout(second, saver, Checkpointer("6st"), folder=tmp_path, resume="auto")
    assert (saver.best, saver.best_step) == (0.5, 4)
    assert same_tensors(load_file(tmp_path / "best.safetensors"), first.seen[0])
    assert same_tensors(result.model.state_dict(), first.seen[0])


def test_a_resumed_run_that_dies_again_at_once_leaves_the_best_of_its_own_past(tmp_path: Path) -> None:
    first = Scripted(0.5, 0.9)
    with pytest.raises(RuntimeError, match="planted"):
        fit_dropout(first, SaveBest("val/score"), Checkpointer("6st"), crash_at(8, "step_settled"), folder=tmp_path)
    with pytest.raises(RuntimeError, match="planted"):
        fit_dropout(
            Scripted(0.5),
            SaveBest("val/score"),
            Checkpointer("6st"),
            crash_at(7, "step_settled"),
            folder=tmp_path,
            resume="auto",
        )
    assert same_tensors(load_file(tmp_path / "best.safetensors"), first.seen[0])


def test_a_finished_run_that_is_opened_again_gives_back_the_best_weights(tmp_path: Path) -> None:
    script = Scripted(0.9, 0.1, 0.1, 0.1)
    fit_dropout(script, SaveBest("val/score"), Checkpointer(), folder=tmp_path)
    (tmp_path / "best.safetensors").unlink()
    result = fit_dropout(Scripted(0.0), SaveBest("val/score"), Checkpointer(), folder=tmp_path, resume="auto")
    assert same_tensors(result.model.state_dict(), script.seen[0])
    assert same_tensors(load_file(tmp_path / "best.safetensors"), script.seen[0])


# -- what is wrong -------------------------------------------------------------------------------


def test_a_metric_that_nobody_logs_is_found_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match="val/acuracy"):
        fit_dropout(SaveBest("val/acuracy", mode="max"), folder=tmp_path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"monitor": "val/odd"}, r"SaveBest\(monitor="),
        ({"mode": "larger"}, r"SaveBest\(mode='larger'\): must be 'min', 'max' or None\."),
        ({"min_delta": -1.0}, "min_delta=-1.0"),
        ({"path": "best.pt"}, "safetensors"),
    ],
)
def test_a_wrong_argument_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        SaveBest(**given)


def test_two_with_one_path_are_refused_before_one_can_replace_the_file_of_the_other(tmp_path: Path) -> None:
    one, other = SaveBest("val/loss"), SaveBest("train/loss", path="x/../best.safetensors", load_best=False)
    with pytest.raises(SetupError, match=r"two SaveBest write to .*best\.safetensors.*another path"):
        fit_dropout(one, other, folder=tmp_path)
    fit_dropout(
        one, SaveBest("train/loss", path="train.safetensors", load_best=False), folder=tmp_path, max_duration="1ep"
    )
    assert {path.name for path in tmp_path.glob("*.safetensors")} == {"best.safetensors", "train.safetensors"}


def test_a_run_without_a_folder_needs_an_absolute_path(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="folder=False"):
        fit_dropout(SaveBest("val/loss"))
    fit_dropout(SaveBest("val/loss", path=tmp_path / "best.safetensors"))
    assert (tmp_path / "best.safetensors").exists()


def test_a_path_that_cannot_be_written_is_found_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="is a file"):
        fit_dropout(SaveBest(path=tmp_path / "file" / "best.safetensors"))
    (tmp_path / "best.safetensors").mkdir()
    with pytest.raises(SetupError, match="is a folder"):
        fit_dropout(SaveBest(path=tmp_path / "best.safetensors"))


def test_a_full_disk_says_what_is_needed_and_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    from hookline.callbacks.saving import _weights

    def full(path: Path, parts: Any) -> None:
        if calls.append(1) or len(calls) > 1:
            raise OSError(28, "No space left on device")
        real(path, parts)

    calls: list[int] = []
    real = _weights.write_parts
    monkeypatch.setattr(_weights, "write_parts", full)
    with pytest.raises(CheckpointWriteError, match="No space left"):
        fit_dropout(Scripted(0.1, 0.9), SaveBest("val/score"), folder=tmp_path)
    assert load_file(tmp_path / "best.safetensors")


def test_a_run_that_never_measured_it_says_that_nothing_was_saved(tmp_path: Path, caplog: Any) -> None:
    fit_dropout(Scripted(math.nan), SaveBest("val/score"), folder=tmp_path)
    assert "SaveBest has saved nothing: there was no finite val/score" in caplog.text
    assert not (tmp_path / "best.safetensors").exists()


def test_it_works_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    model, saver = TinyModel(), SaveBest("val/loss")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.functional.cross_entropy
    with Loop(model, optimizer, callbacks=[saver], max_duration="2ep", folder=tmp_path, eval_every="1ep") as loop:
        for x, y in loop.batches(TRAIN):
            loop.backward(loss(model(x), y))
            loop.step()
            if loop.eval_due:
                for x_val, y_val in loop.eval_batches(VAL):
                    loop.run.log({"loss": loss(model(x_val), y_val)}, weight=len(y_val))
    assert saver.best_step in (4, 8)
    assert same_tensors(load_file(tmp_path / "best.safetensors"), model.state_dict())
