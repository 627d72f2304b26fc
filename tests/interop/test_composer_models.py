"""A ``ComposerModel`` ends in Hookline with bitwise the weights and metrics of Composer's own trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import hookline as hl
from hookline.loop import Trainer
from tests.interop.test_composer import Model, data, in_composer, in_hookline, optimizer_of, same, weights

pytestmark = pytest.mark.filterwarnings("ignore")


class Losses(Model):
    """It returns its losses in a dict, and evaluates in its own way."""

    def loss(self, outputs: Any, batch: Any) -> Any:
        return {"entropy": cross_entropy(outputs, batch[1]), "norm": outputs.square().mean(1) * 0.1}

    def eval_forward(self, batch: Any, outputs: Any = None) -> Any:
        return (self(batch) if outputs is None else outputs) * 0.5


class Total(Losses):
    """One of its losses is the total."""

    def loss(self, outputs: Any, batch: Any) -> Any:
        parts = super().loss(outputs, batch)
        return {**parts, "total": parts["entropy"] + 2.0 * parts["norm"].mean()}


class Sequence(Losses):
    """It returns its losses in a list."""

    def loss(self, outputs: Any, batch: Any) -> Any:
        return list(super().loss(outputs, batch).values())


class Names(Model):
    """Its batches are dicts, from which it takes the targets, and it logs."""

    def forward(self, batch: Any) -> Any:
        return self.head(self.backbone(batch["x"]))

    def loss(self, outputs: Any, batch: Any) -> Any:
        self.logger.log_metrics({"own/mean": outputs.mean().item()})
        return cross_entropy(outputs, batch["y"])

    def eval_forward(self, batch: Any, outputs: Any = None) -> Any:
        self.labels = batch.pop("y")
        return super().eval_forward(batch, outputs)

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        metric.update(outputs, self.labels)


def named(batches: int = 4, seed: int = 1) -> Any:
    (x, y) = data(batches, seed).dataset.tensors
    rows = [{"x": one, "y": other} for one, other in zip(x, y, strict=True)]
    return torch.utils.data.DataLoader(rows, batch_size=8)


def metrics_there(trainer: Any) -> dict[str, list[float]]:
    """The metrics that Composer has logged, with our names."""
    rows = trainer.logger.destinations[0].data
    found = {}
    for name, values in rows.items():
        if name.startswith("metrics/eval/"):
            found[f"val/{name.removeprefix('metrics/eval/')}"] = [float(value) for _, value in values]
        elif name.startswith("metrics/train/"):  # At the end of an epoch it logs the last batch again.
            by_step = {stamp.batch.value - (stamp.batch_in_epoch.value == 4): value for stamp, value in values}
            found[f"train/{name.removeprefix('metrics/train/')}"] = [float(value) for value in by_step.values()]
        elif name.startswith("loss/train/") and name != "loss/train/total":
            found[f"train/{name.removeprefix('loss/train/')}"] = [float(value) for _, value in values]
        elif name == "loss/train/total":
            found["train/loss"] = [float(value) for _, value in values]
        elif name.startswith("own/"):
            found[name] = [float(value) for _, value in values]
    return found


@pytest.mark.parametrize("kind", [Model, Losses, Total, Sequence])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_model_ends_with_the_same_weights_and_metrics(kind: Any, accumulate: int) -> None:
    expected, trainer = in_composer([], kind(), device_train_microbatch_size=8 // accumulate)
    model, result = in_hookline([], make=kind, train=data(size=8 // accumulate), accumulate=accumulate)
    assert same(weights(model), weights(expected))
    there = metrics_there(trainer)
    assert {name for name in there if name.startswith("val/")} == {"val/loss", "val/accuracy"}
    for name, values in there.items():
        if name.startswith("val/"):
            assert result.history[name] == values, name
        else:
            assert result.history[name] == pytest.approx(values, abs=1e-6), name


def test_a_model_of_dicts_logs_and_keeps_its_batches() -> None:
    expected, trainer = in_composer([], Names(), train=named(), eval_dataloader=named(2, 2))
    model = Names()
    result = Trainer(max_duration="3ep", folder=False, log_every="1st", device="cpu").fit(
        model,
        named(),
        named(2, 2),
        optimizer=(optimizer := optimizer_of(model)),
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5),
    )
    assert same(weights(model), weights(expected))
    for name, values in metrics_there(trainer).items():
        assert result.history[name] == pytest.approx(values, abs=1e-6), name
    assert model.logger is None


def test_a_model_is_evaluated_tested_and_predicts() -> None:
    torch.manual_seed(0)
    model = Model()
    trainer = Trainer(folder=False, device="cpu")
    found = trainer.evaluate(model, {"hard": data(1, seed=3), "easy": data(2, seed=2)})
    assert found.keys() == {f"val/{label}/{name}" for label in ("hard", "easy") for name in ("loss", "accuracy")}
    assert trainer.test(model, data(2, seed=2))["test/loss"] == found["val/easy/loss"]
    model.eval()
    with torch.no_grad():
        assert torch.equal(trainer.predict(model, data(1)), model(next(iter(data(1)))))


def test_a_resumed_model_ends_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    pause = hl.on("train_step_end", at="6st")(lambda run: run.pause("later"))
    expected, whole = in_hookline([hl.Checkpointer()], tmp_path / "whole", make=Model)
    in_hookline([pause, hl.Checkpointer()], tmp_path / "cut", make=Model)
    model, result = in_hookline([hl.Checkpointer()], tmp_path / "cut", make=Model, resume="auto")
    assert same(weights(model), weights(expected))
    assert result.history["val/accuracy"][-1] == whole.history["val/accuracy"][-1]
