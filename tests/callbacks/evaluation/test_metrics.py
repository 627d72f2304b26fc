"""``Metrics``: right over uneven batches, stages and loaders, declared in time, and clear where it cannot measure."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics as tm
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score
from torchmetrics.wrappers import ClasswiseWrapper

import hookline as hl
from hookline.callbacks import EarlyStopping
from hookline.callbacks.evaluation import Metrics
from hookline.errors import ArgumentError, MetricError
from hookline.loop import SupervisedTask, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, is_quiet, same_tensors

TRAIN = tiny_data(5, 8, last=3)
VAL = tiny_data(3, 8, last=5, seed=1)
OTHER = tiny_data(2, 8, last=1, seed=2)


def hits(outputs: Tensor, classes: Tensor) -> Tensor:
    return (outputs.argmax(1) == classes).float()


def mean_hits(outputs: Tensor, classes: Tensor) -> Tensor:
    return hits(outputs, classes).mean()


def f1() -> MulticlassF1Score:
    return MulticlassF1Score(3)


fit_with_val = partial(fit, train=TRAIN, val=VAL, log_every="2st")


def expected(model: nn.Module, data: Any, make: Callable[[], Any] = f1) -> float:
    """Over all of the data at once."""
    metric = make()
    with torch.no_grad():
        metric.update(torch.cat([model(x) for x, _ in data]), torch.cat([y for _, y in data]))
    return metric.compute().item()  # type: ignore[no-any-return]


# -- what it measures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [hits, mean_hits])
def test_functions_are_averaged_over_samples_and_not_over_batches(function: Any) -> None:
    """The last batch is smaller: the mean of the means would be another number."""
    model = TinyModel()
    result = fit_with_val(Metrics({"acc": function}), model=model)
    accuracy = expected(model, VAL, lambda: MulticlassAccuracy(3, average="micro"))
    assert result.metrics["val/acc"] == pytest.approx(accuracy, abs=1e-6)


def test_objects_are_computed_over_the_whole_evaluation() -> None:
    model = TinyModel()
    result = fit_with_val(Metrics({"f1": f1(), "auc": MulticlassAUROC(3)}), model=model, test=OTHER * 2)
    assert result.metrics["val/f1"] == pytest.approx(expected(model, VAL), abs=1e-6)
    assert result.metrics["test/f1"] == pytest.approx(expected(model, OTHER * 2), abs=1e-6)
    assert len(result.history["val/auc"]) == 2


def test_each_loader_has_its_own() -> None:
    model = TinyModel()
    result = fit_with_val(Metrics({"f1": f1(), "acc": hits}), model=model, val={"here": VAL, "there": OTHER})
    assert result.metrics["val/here/f1"] == pytest.approx(expected(model, VAL), abs=1e-6)
    assert result.metrics["val/there/f1"] == pytest.approx(expected(model, OTHER), abs=1e-6)
    assert {"val/here/acc", "val/there/acc"} <= set(result.history)


def test_the_object_that_was_given_is_left_alone() -> None:
    given = f1()
    given.update(torch.eye(3), torch.arange(3))
    fit_with_val(Metrics({"f1": given}, stages=("train", "val")))
    assert given.update_count == 1


def test_training_is_measured_when_it_is_asked_for() -> None:
    """By interval, and by epoch over all of it."""
    seen: list[tuple[Tensor, Tensor]] = []
    note = hl.on("train_batch_end")(lambda run: seen.append((run.outputs.detach(), run.batch[1])))
    result = fit_with_val(note, Metrics({"f1": f1(), "acc": hits}, stages=("train", "val")))

    def of(batches: list[tuple[Tensor, Tensor]]) -> float:
        metric = f1()
        for batch in batches:
            metric.update(*batch)
        return metric.compute().item()  # type: ignore[no-any-return]

    assert result.history["train/f1"][:3] == [of(seen[:2]), of(seen[2:4]), of(seen[4:5])]
    assert result.history["train/f1_epoch"] == [of(seen[:5]), of(seen[5:])]
    every = torch.cat([hits(*batch) for batch in seen[:5]])
    assert result.history["train/acc_epoch"][0] == pytest.approx(every.mean().item(), abs=1e-6)
    assert "val/f1" in result.history


def test_without_training_it_hears_no_step() -> None:
    """To hear the batches of training would make every step slower."""
    for stages, plain in ((("val", "test"), True), (("train", "val"), False)):
        callbacks = [Metrics({"acc": hits}, stages=stages)]
        trainer = Trainer(callbacks=callbacks, max_duration="1ep", folder=False, device="cpu")
        fit(train=TRAIN, val=VAL, trainer=trainer)
        assert is_quiet(trainer) is plain


def test_measuring_changes_no_weight_and_keeps_no_graph() -> None:
    kept: list[Tensor] = []

    def keep(outputs: Tensor, classes: Tensor) -> float:
        kept.append(outputs)
        return 0.0

    model, bare = TinyModel(dropout=0.5), TinyModel(dropout=0.5)
    fit_with_val(Metrics({"f1": f1(), "keep": keep}, stages=("train", "val")), model=model)
    fit_with_val(model=bare)
    assert same_tensors(model.state_dict(), bare.state_dict())
    assert not any(outputs.requires_grad for outputs in kept)


def test_a_collection_is_named_by_its_keys() -> None:
    model = TinyModel()
    metrics = tm.MetricCollection({"f1": f1(), "acc": MulticlassAccuracy(3, average="micro")})
    result = fit_with_val(Metrics(metrics, stages=("train", "val")), model=model)
    assert result.metrics["val/f1"] == pytest.approx(expected(model, VAL), abs=1e-6)
    assert {"val/acc", "train/acc", "train/acc_epoch"} <= set(result.history)


def test_a_dict_has_a_row_for_each_key() -> None:
    per_class = ClasswiseWrapper(MulticlassAccuracy(3, average=None), labels=["a", "b", "c"])
    result = fit_with_val(Metrics({"acc": per_class, "more": tm.MetricCollection({"f1": f1()})}))
    assert {"val/acc/multiclassaccuracy_a", "val/acc/multiclassaccuracy_c", "val/more/f1"} <= set(result.history)


def test_a_second_run_begins_anew() -> None:
    """A run that was stopped inside an interval must not leave its half in the next one."""
    metrics = Metrics({"f1": f1()}, stages=("train",))
    fit_with_val(metrics, max_duration="3st", log_every="2st")
    again = fit_with_val(metrics, max_duration="3st", log_every="2st")
    new = fit_with_val(Metrics({"f1": f1()}, stages=("train",)), max_duration="3st")
    assert again.history["train/f1"] == new.history["train/f1"]


def test_evaluate_gives_it_too() -> None:
    model = TinyModel()
    trainer = Trainer(callbacks=[Metrics({"f1": f1()})], folder=False, device="cpu")
    found = trainer.evaluate(model, VAL, loss=CE)
    assert found["val/f1"] == pytest.approx(expected(model, VAL), abs=1e-6)


@pytest.mark.parametrize("step", [3, 7])
def test_a_resumed_run_has_the_same_rows(step: int, tmp_path: Path) -> None:
    def run(*callbacks: Any, **options: Any) -> Any:
        metrics = Metrics({"f1": f1(), "auc": MulticlassAUROC(3, thresholds=5), "acc": hits}, stages=("train", "val"))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "No positive samples")  # in an interval as short as these
            return fit_with_val(metrics, *callbacks, hl.Checkpointer("1st"), log_every="4st", **options)

    straight = run(folder=tmp_path / "straight")
    with pytest.raises(RuntimeError, match="planted"):
        run(crash_at(step, "train_step_start"), folder=tmp_path / "left")
    resumed = run(folder=tmp_path / "left", resume="auto")
    assert {name: resumed.history[name] for name in resumed.history} == {
        name: straight.history[name] for name in straight.history
    }


# -- who waits for it ------------------------------------------------------------------------------------


def test_a_monitor_is_found_before_the_first_step_and_comes_after_it() -> None:
    stopper = EarlyStopping("val/f1", patience=1, min_delta=1.0)
    # The list is in the wrong order on purpose.
    result = fit_with_val(stopper, Metrics({"f1": f1()}), max_duration="9ep")
    assert result.stopped_by == "EarlyStopping"


NAMES: dict[str, tuple[Any, str, Any]] = {
    "of a loader": ({"f1": f1()}, "val/here/f1", {"here": VAL}),
    "of a collection": ({"all": tm.MetricCollection({"f1": f1()})}, "val/all/f1", VAL),
    "of a collection without a name": (tm.MetricCollection({"f1": f1()}), "val/f1", VAL),
    "of a dict": ({"acc": ClasswiseWrapper(MulticlassAccuracy(3, average=None))}, "val/acc/multiclassaccuracy_1", VAL),
    "of training": ({"f1": f1()}, "train/f1_epoch", VAL),
}


@pytest.mark.parametrize("what", NAMES)
def test_every_name_that_it_gives_can_be_monitored(what: str) -> None:
    metrics, name, val = NAMES[what]
    stopper = EarlyStopping(name, mode="max", patience=1, min_delta=10.0)
    result = fit_with_val(stopper, Metrics(metrics, stages=("train", "val")), val=val, max_duration="9ep")
    assert result.stopped_by == "EarlyStopping"


def test_a_misspelt_monitor_is_an_error_before_the_first_step() -> None:
    with pytest.raises(MetricError, match=r"monitors 'val/f2', but .* Did you mean 'val/f1'\?"):
        fit_with_val(EarlyStopping("val/f2", mode="max"), Metrics({"f1": f1()}))


def test_two_of_them_can_be_in_one_run() -> None:
    result = fit_with_val(Metrics({"f1": f1()}), Metrics({"acc": hits}, outputs=lambda run: run.outputs.softmax(1)))
    assert {"val/f1", "val/acc"} <= set(result.history)


# -- outputs and targets ---------------------------------------------------------------------------------


class Dicts(SupervisedTask):
    """Batches are dicts, as those of language models are."""

    key = "labels"

    def __init__(self) -> None:
        super().__init__(TinyModel(), None, torch.optim.SGD)

    def call(self, batch: Any) -> Any:
        outputs = self.model(batch["x"])
        return {"loss": nn.functional.cross_entropy(outputs, batch[self.key]), "outputs": outputs}

    def train_batch(self, run: Any, batch: Any) -> Any:
        return self.call(batch)

    def eval_batch(self, run: Any, batch: Any) -> Any:
        return self.call(batch)


@pytest.mark.parametrize("key", ["target", "labels", "y"])
def test_the_targets_of_a_dict_are_found(key: str) -> None:
    task = Dicts()
    task.key = key
    train, val = ([{"x": x, key: y} for x, y in data] for data in (TRAIN, VAL))
    result = fit_with_val(Metrics({"f1": f1()}, stages=("train", "val")), model=task, train=train, val=val)
    assert result.metrics["val/f1"] == pytest.approx(expected(task.model, VAL), abs=1e-6)


def test_outputs_and_targets_can_be_given_as_functions_of_run() -> None:
    task = Dicts()
    task.key = "class"
    train, val = ([{"x": x, "class": y} for x, y in data] for data in (TRAIN, VAL))
    flipped = Metrics({"f1": f1()}, outputs=lambda run: -run.outputs, targets=lambda run: run.batch["class"])
    result = fit_with_val(flipped, model=task, train=train, val=val)

    class Flipped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return -task.model(x)  # type: ignore[no-any-return]

    assert result.metrics["val/f1"] == pytest.approx(expected(Flipped(), VAL), abs=1e-6)


def test_of_more_than_two_parts_the_last_is_the_target_as_in_the_loss() -> None:
    class Both(TinyModel):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x + y)

    data = [(x, torch.zeros_like(x), y) for x, y in TRAIN]
    assert "val/f1" in fit_with_val(Metrics({"f1": f1()}), model=Both(), train=data, val=data).history


def test_a_batch_without_known_targets_is_an_error_that_says_what_to_do() -> None:
    class Alone(SupervisedTask):
        def compute_loss(self, outputs: Any, batch: Any) -> Any:
            return outputs.square().mean()

    task = Alone(TinyModel(), None, torch.optim.SGD)
    data = [x for x, _ in TRAIN]
    with pytest.raises(MetricError, match=r"no targets in a batch that is a Tensor; give .*targets=lambda run"):
        fit_with_val(Metrics({"f1": f1()}), model=task, train=data, val=data)


def test_a_task_without_outputs_is_an_error_that_says_what_to_do() -> None:
    class Silent(SupervisedTask):
        def eval_batch(self, run: Any, batch: Any) -> Any:
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    task = Silent(TinyModel(), nn.CrossEntropyLoss(), torch.optim.SGD)
    with pytest.raises(MetricError, match=r"let eval_batch return \{'loss': …, 'outputs': …\}"):
        fit_with_val(Metrics({"f1": f1()}), model=task)


def test_an_error_in_a_metric_names_it_and_what_it_was_given() -> None:
    with pytest.raises(ValueError, match="preds") as caught:
        fit_with_val(Metrics({"wrong": MulticlassAccuracy(7)}))
    note = next(note for note in caught.value.__notes__ if "Metrics" in note)
    assert note == "in 'wrong' of Metrics, with a tensor of (8, 3) (float32) and a tensor of (8,) (int64)"


def test_a_name_that_the_task_logs_as_a_number_is_refused() -> None:
    with pytest.raises(MetricError, match="val/loss: a metric object is logged, and before it was a number"):
        fit_with_val(Metrics({"loss": f1()}))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: Metrics({}), "must be metrics by name"),
    "a list": (lambda: Metrics([f1()]), "must be a dict"),  # type: ignore[arg-type]
    "one without a name": (lambda: Metrics(f1()), "must be metrics by name"),  # type: ignore[arg-type]
    "a class": (lambda: Metrics({"f1": MulticlassF1Score}), r"Write MulticlassF1Score\(…\)"),
    "a text": (lambda: Metrics({"f1": "f1"}), "Give a torchmetrics object"),
    "a name with its stage": (lambda: Metrics({"val/f1": f1()}), "Hookline adds the stage"),
    "an unknown stage": (lambda: Metrics({"f1": f1()}, stages=("validation",)), "use one or more of train, val, test"),
    "no stage": (lambda: Metrics({"f1": f1()}, stages=()), "use one or more of train, val, test"),
    "targets that are no function": (
        lambda: Metrics({"f1": f1()}, targets="labels"),  # type: ignore[arg-type]
        "must be a function or None",
    ),
}


def test_what_means_nothing_is_refused_at_once() -> None:
    wrong: dict[str, str] = {}
    for what, (make, message) in WRONG.items():
        try:
            wrong[what] = f"gives {make()!r}"
        except ArgumentError as error:
            if not re.search(message, str(error)):
                wrong[what] = str(error)
    assert wrong == {}
