"""``ckpt=`` of ``evaluate``, ``test`` and ``predict``: the weights of a checkpoint, for this call."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import hookline as hl
from hookline.errors import ArgumentError, CheckpointMismatchError, CheckpointNotFoundError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, same_tensors, sgd

TRAIN, VAL = tiny_data(4), tiny_data(2, seed=1)
fit_digits = partial(fit, train=TRAIN, val=VAL, max_duration="3ep")


class Worse(hl.Callback):
    """From the second epoch on the model gets worse, so that the best checkpoint is not the last one."""

    def on_train_epoch_start(self, run: hl.Run) -> None:
        if run.clock.epoch:
            with torch.no_grad():
                run.model.out.bias.add_(torch.tensor([9.0, 0.0, 0.0]))


def trained(folder: Path, *callbacks: object) -> tuple[Trainer, TinyModel]:
    checkpoints = hl.Checkpointer(monitor="val/loss", keep_last=None)
    trainer, model = (
        Trainer(max_duration="3ep", folder=folder, callbacks=[checkpoints, Worse(), *callbacks]),
        TinyModel(),
    )
    trainer.fit(model, TRAIN, VAL, loss=CE, optimizer=sgd)
    return trainer, model


def weights_at(folder: Path, step: int) -> Any:
    return load_file(folder / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def expected(folder: Path, step: int) -> tuple[float, torch.Tensor]:
    """The loss and the predictions of a checkpoint, computed by hand."""
    model = TinyModel()
    model.load_state_dict(weights_at(folder, step))
    with torch.no_grad():
        outputs = [model.eval()(x) for x, _ in VAL]
        loss = torch.stack([CE(output, y) for output, (_, y) in zip(outputs, VAL, strict=True)]).mean()
    return float(loss), torch.cat(outputs)


@pytest.mark.parametrize(("ckpt", "step"), [("best", 4), ("last", 12), ("checkpoints/step-00000008", 8)])
def test_a_call_uses_the_weights_of_a_checkpoint_and_the_model_keeps_its_own(
    tmp_path: Path, ckpt: str, step: int
) -> None:
    trainer, model = trained(tmp_path)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    given = tmp_path / ckpt if "/" in ckpt else ckpt
    loss, outputs = expected(tmp_path, step)
    assert trainer.evaluate(model, VAL, loss=CE, ckpt=given)["val/loss"] == pytest.approx(loss)
    assert trainer.test(model, VAL, loss=CE, ckpt=given)["test/loss"] == pytest.approx(loss)
    assert torch.equal(trainer.predict(model, VAL, ckpt=given), outputs)
    assert same_tensors(model.state_dict(), before)


def test_a_fit_continues_after_an_evaluation_of_the_best_as_without_it(tmp_path: Path) -> None:
    ends = []
    for folder in ("a", "b"):
        trainer, model = trained(tmp_path / folder)
        if folder == "a":
            trainer.evaluate(model, VAL, loss=CE, ckpt="best")
        trainer.fit(model, TRAIN, VAL, loss=CE, optimizer=sgd, extend="1ep")
        ends.append(model.state_dict())
    assert same_tensors(*ends)


def test_another_process_finds_the_best_of_a_folder(tmp_path: Path) -> None:
    trained(tmp_path)
    loss, outputs = expected(tmp_path, 4)
    options: dict[str, Any] = {"folder": tmp_path, "ckpt": "best", "progress": False}
    assert hl.evaluate(TinyModel(seed=5), VAL, loss=CE, **options)["val/loss"] == pytest.approx(loss)
    assert hl.test(TinyModel(seed=5), VAL, loss=CE, **options)["test/loss"] == pytest.approx(loss)
    assert torch.equal(hl.predict(TinyModel(seed=5), VAL, **options), outputs)


def test_an_average_of_the_last_fit_does_not_replace_the_weights_of_the_checkpoint(tmp_path: Path) -> None:
    trainer, model = trained(tmp_path, hl.EMA(decay=0.5))
    assert trainer.evaluate(model, VAL, loss=CE, ckpt="best")["val/loss"] == pytest.approx(expected(tmp_path, 4)[0])


def test_weights_are_restored_after_an_error(tmp_path: Path) -> None:
    trainer, model = trained(tmp_path)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    @hl.on("eval_batch_end")
    def fail(run: hl.Run) -> None:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        trainer.evaluate(model, VAL, loss=CE, ckpt="best", callbacks=[fail])
    assert same_tensors(model.state_dict(), before)


def test_without_a_best_checkpoint_the_error_names_the_callback(tmp_path: Path) -> None:
    fit_digits(hl.Checkpointer(), folder=tmp_path / "plain")
    test = partial(Trainer.test, model=TinyModel(), test=VAL, loss=CE)
    with pytest.raises(CheckpointNotFoundError, match=r"test\(ckpt='best'\): .*hl\.Checkpointer\(monitor='val/loss'\)"):
        test(Trainer(folder=tmp_path / "plain"), ckpt="best")
    with pytest.raises(CheckpointNotFoundError, match=r"test\(ckpt='best'\): .*no folder.*hl\.Checkpointer\("):
        test(Trainer(folder=False), ckpt="best")
    with pytest.raises(CheckpointNotFoundError, match=r"test\(ckpt='last'\): there is no checkpoint in .*Checkpointer"):
        test(Trainer(folder=tmp_path / "none"), ckpt="last")
    with pytest.raises(CheckpointMismatchError, match="hidden"):
        hl.test(torch.nn.Linear(4, 3), VAL, loss=CE, folder=tmp_path / "plain", ckpt="last", progress=False)
    with pytest.raises(ArgumentError, match=r"test\(ckpt=True\): must be 'best', 'last', or the path"):
        test(Trainer(folder=False), ckpt=True)
    with pytest.raises(ArgumentError, match=r"test\(ckpt_path='best'\): no such argument\. Write ckpt='best'"):
        test(Trainer(folder=False), ckpt_path="best")
