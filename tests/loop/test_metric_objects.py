"""torchmetrics objects in ``run.log``: right over intervals, epochs and loaders, and exact after a resume."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics as tm
from torch import Tensor, nn
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassPrecision,
    MulticlassROC,
)
from torchmetrics.wrappers import ClasswiseWrapper

import hookline as hl
from hookline.errors import HooklineWarning, MetricError, Preempted
from hookline.loop import Loop, SupervisedTask, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, json_lines, loop_of, sgd

TRAIN = tiny_data(5, 8, last=3)
VAL = tiny_data(3, 8, last=5, seed=1)
OTHER = tiny_data(2, 8, last=1, seed=2)

train_measured = partial(fit, train=TRAIN, log_every="2st")


def accuracy() -> MulticlassAccuracy:
    return MulticlassAccuracy(3, average="micro")


class Measured(SupervisedTask):
    """Logs one object in training and one in evaluations, which may be the same."""

    def __init__(self, train: Any = None, val: Any = None, *, name: str | None = "score", **model: Any) -> None:
        super().__init__(TinyModel(**model), CE, lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9))
        self.train_metric, self.val_metric, self.name = train, val, name
        self.seen: list[tuple[Tensor, Tensor]] = []

    def measure(self, run: Any, metric: Any, outputs: Tensor, batch: Any) -> None:
        if metric is not None:
            self.seen.append((outputs.detach().clone(), batch[1]))
            metric.update(outputs, batch[1])
            run.log({self.name: metric} if self.name else metric)

    def train_batch(self, run: Any, batch: Any) -> Any:
        loss = super().train_batch(run, batch)
        self.measure(run, self.train_metric, run.outputs, batch)
        return loss

    def eval_batch(self, run: Any, batch: Any) -> Any:
        found = super().eval_batch(run, batch)
        self.measure(run, self.val_metric, found["outputs"], batch)
        return found


def rows(result: Any, name: str) -> list[tuple[int, Any]]:
    history = result.history
    return list(zip(history.steps(name), history[name], strict=True))


def over(batches: list[tuple[Tensor, Tensor]], make: Callable[[], Any] = accuracy) -> Any:
    metric = make()
    for outputs, classes in batches:
        metric.update(outputs, classes)
    return metric.compute()


# -- training ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [accuracy, lambda: MulticlassF1Score(3), lambda: MulticlassConfusionMatrix(3)])
def test_a_row_is_of_its_interval_and_that_of_the_epoch_of_all_of_it(make: Callable[[], Any]) -> None:
    """The mean of the intervals would be wrong: they are uneven, and F1 is no mean."""
    task = Measured(make())
    result = train_measured(model=task)
    expected = {2: (0, 2), 4: (2, 4), 5: (4, 5), 6: (5, 6), 8: (6, 8), 10: (8, 10)}
    found = dict(rows(result, "train/score"))
    assert found == {step: over(task.seen[slice(*part)], make).tolist() for step, part in expected.items()}
    epochs = {5: over(task.seen[:5], make).tolist(), 10: over(task.seen[5:], make).tolist()}
    assert dict(rows(result, "train/score_epoch")) == epochs


def test_the_forward_of_a_metric_measures_as_its_update_does() -> None:
    class Forward(Measured):
        def measure(self, run: Any, metric: Any, outputs: Tensor, batch: Any) -> None:
            metric(outputs, batch[1])
            run.log({"score": metric})

        def eval_batch(self, run: Any, batch: Any) -> Any:
            return SupervisedTask.eval_batch(self, run, batch)

    assert rows(train_measured(model=Forward(accuracy())), "train/score") == rows(
        train_measured(model=Measured(accuracy())), "train/score"
    )


def test_two_batches_a_step_are_both_measured() -> None:
    task = Measured(accuracy())
    result = train_measured(model=task, accumulate=2, max_duration="1ep", log_every="1st")
    expected = [over(task.seen[:2]), over(task.seen[2:4]), over(task.seen[4:])]
    assert result.history["train/score"] == [value.item() for value in expected]


def test_one_whose_states_cannot_be_merged_gets_a_row_of_each_epoch_and_this_is_said_once() -> None:
    class Last(tm.Metric):
        """What it saw last, which nobody can merge."""

        def __init__(self) -> None:
            super().__init__()
            self.add_state("last", torch.tensor(0.0), dist_reduce_fx=None)
            self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, outputs: Tensor, classes: Tensor) -> None:
            self.last = outputs.mean()
            self.count += len(classes)

        def compute(self) -> dict[str, Tensor]:
            return {"last": self.last, "count": self.count}

    with pytest.warns(HooklineWarning, match="train/score: the states of a Last cannot be merged") as caught:
        result = train_measured(model=Measured(Last()))
    assert len(caught) == 1
    assert rows(result, "train/score/count_epoch") == [(5, 35.0), (10, 35.0)]
    assert "train/score/count" not in result.history


def test_one_that_is_logged_at_the_end_of_the_epoch_is_of_the_whole_epoch() -> None:
    class AtTheEnd(Measured):
        def measure(self, run: Any, metric: Any, outputs: Tensor, batch: Any) -> None:
            if metric is not None:
                self.seen.append((outputs.detach(), batch[1]))
                metric.update(outputs, batch[1])

        def on_train_epoch_end(self, run: Any) -> None:
            run.log({"score": self.train_metric})

    task = AtTheEnd(accuracy())
    assert rows(train_measured(model=task), "train/score") == [
        (5, over(task.seen[:5]).item()),
        (10, over(task.seen[5:]).item()),
    ]


def test_to_read_a_metric_in_between_changes_no_row() -> None:
    task, other, read = Measured(accuracy()), Measured(accuracy()), []
    reader = hl.on("train_step_end")(lambda run: read.append(run.metrics["train/score"]))
    result = train_measured(reader, model=task, log_every="3st")
    assert read[:2] == [over(task.seen[:1]).item(), over(task.seen[:2]).item()]
    assert [r.value for r in result.history.rows()] == [
        r.value for r in train_measured(model=other, log_every="3st").history.rows()
    ]


def test_a_compute_that_draws_random_numbers_does_not_change_what_is_trained() -> None:
    class Drawing(MulticlassAccuracy):
        def compute(self) -> Tensor:
            torch.rand(7)
            return super().compute()

    task, bare = Measured(Drawing(3), dropout=0.5), Measured(dropout=0.5)
    train_measured(model=task), train_measured(model=bare)
    assert all(torch.equal(one, two) for one, two in zip(task.parameters(), bare.parameters(), strict=True))


# -- evaluation ------------------------------------------------------------------------------------------


def test_an_evaluation_is_computed_once_over_all_of_it() -> None:
    task = Measured(val=MulticlassF1Score(3))
    result = train_measured(model=task, val=VAL)
    task.seen = task.seen[2:]  # those of the sanity check
    expected = [over(task.seen[i : i + 3], lambda: MulticlassF1Score(3)).item() for i in (0, 3)]
    assert rows(result, "val/score") == [(5, expected[0]), (10, expected[1])]
    assert task.val_metric.update_count == 0


def test_one_object_for_training_and_evaluation_mixes_nothing() -> None:
    """With others this is the classic mistake: the accuracy of training runs into that of the evaluation."""
    one, apart = accuracy(), Measured(accuracy(), accuracy())
    together = Measured(one, one)
    options = {"val": VAL, "eval_every": "3st", "log_every": "2st"}
    expected, found = (train_measured(model=task, **options).history.rows() for task in (apart, together))
    assert [(r.name, r.step, r.value) for r in found] == [(r.name, r.step, r.value) for r in expected]


def test_what_training_has_measured_but_not_logged_is_no_part_of_an_evaluation() -> None:
    class Forgotten(Measured):
        """Logs the value of each batch in training, and so never resets the object."""

        def train_batch(self, run: Any, batch: Any) -> Any:
            loss = SupervisedTask.train_batch(self, run, batch)
            run.log({"score": self.val_metric(run.outputs, batch[1])}, weight=len(batch[1]))
            return loss

    apart, task = Measured(val=accuracy()), Forgotten(val=accuracy())
    assert rows(train_measured(model=task, val=VAL), "val/score") == rows(
        train_measured(model=apart, val=VAL), "val/score"
    )


def test_an_answer_in_the_middle_of_an_interval_leaves_what_training_has_measured() -> None:
    one, answers = accuracy(), []
    ask = hl.on("train_step_end", at="3st")(lambda run: answers.append(run.evaluate("val")["val/score"]))
    task = Measured(one, one)
    asked = train_measured(ask, model=task, val=VAL, eval_every="1ep")
    plain = train_measured(model=Measured(accuracy(), accuracy()), val=VAL)
    assert rows(asked, "train/score") == rows(plain, "train/score")
    assert rows(asked, "train/score_epoch") == rows(plain, "train/score_epoch")
    assert answers == [over(task.seen[2 + 3 : 2 + 3 + 3]).item()]


def test_the_sanity_check_leaves_metrics_alone_that_a_task_computes_itself() -> None:
    """Their owner resets them in ``on_eval_end``, which the check does not send."""

    class Own(Measured):
        def measure(self, run: Any, metric: Any, outputs: Tensor, batch: Any) -> None:
            if metric is not None:
                metric.update(outputs, batch[1])

        def on_eval_end(self, run: Any) -> None:
            run.log({"score": self.val_metric.compute()})
            self.val_metric.reset()

    assert rows(train_measured(model=Own(val=accuracy()), val=VAL), "val/score") == rows(
        train_measured(model=Measured(val=accuracy()), val=VAL), "val/score"
    )


def test_one_object_measures_several_loaders_in_turn() -> None:
    task = Measured(val=accuracy())
    result = train_measured(model=task, val={"here": VAL, "there": OTHER}, max_duration="1ep")
    seen = task.seen[4:]
    assert result.metrics["val/here/score"] == over(seen[:3]).item()
    assert result.metrics["val/there/score"] == over(seen[3:]).item()


def test_a_name_with_a_slash_is_measured_over_all_loaders() -> None:
    task = Measured(val=accuracy(), name="val/all")
    result = train_measured(model=task, val={"here": VAL, "there": OTHER}, max_duration="1ep")
    assert result.metrics["val/all"] == over(task.seen[4:]).item()


def test_the_value_can_be_read_when_the_evaluation_ends() -> None:
    read = []

    class Reader(hl.Callback):
        reads = ("val/score",)

        def on_eval_end(self, run: Any) -> None:
            read.append(run.metrics["val/score"])
            assert "val/score" in set(run.metrics)

    result = train_measured(Reader(), model=Measured(val=accuracy()), val=VAL)
    assert read == result.history["val/score"]


def test_evaluate_and_test_give_the_values_too() -> None:
    task = Measured(val=accuracy())
    found = Trainer(folder=False, device="cpu").test(task, VAL)
    assert found["test/score"] == over(task.seen).item()


def test_an_object_that_was_never_updated_gives_no_row() -> None:
    class Never(Measured):
        def measure(self, run: Any, metric: Any, outputs: Tensor, batch: Any) -> None:
            run.log({"score": metric})

    result = train_measured(
        hl.on("train_step_end")(lambda run: dict(run.metrics)), model=Never(accuracy(), accuracy()), val=VAL
    )
    assert not [name for name in result.history if "score" in name]


def test_an_evaluation_that_fails_puts_everything_back() -> None:
    class Fails(Measured):
        fails = True

        def eval_batch(self, run: Any, batch: Any) -> Any:
            found = super().eval_batch(run, batch)
            if run.clock.step and self.fails:
                raise RuntimeError("out of luck")
            return found

    one = accuracy()
    task = Fails(one, one)
    trainer = Trainer(max_duration="1ep", log_every="9st", eval_every="3st", folder=False, device="cpu", seed=0)
    with pytest.raises(RuntimeError, match="out of luck"):
        trainer.fit(task, TRAIN, VAL)
    assert loop_of(trainer).run.history["train/score"] == [over(task.seen[2:5]).item()]


# -- collections, dicts and arrays -------------------------------------------------------------------------


def collection(**options: Any) -> tm.MetricCollection:
    metrics = {"acc": accuracy(), "f1": MulticlassF1Score(3), "precision": MulticlassPrecision(3)}
    return tm.MetricCollection(metrics, **options)


def test_a_collection_that_is_logged_as_a_whole_is_named_by_its_keys() -> None:
    task = Measured(collection(), collection(), name=None)
    result = train_measured(model=task, val=VAL, max_duration="1ep")
    assert {"val/acc", "val/f1", "val/precision", "train/f1", "train/f1_epoch"} <= set(result.history)
    assert result.metrics["val/f1"] == over(task.seen[2 + 5 :], lambda: MulticlassF1Score(3)).item()
    assert result.metrics["train/f1_epoch"] == over(task.seen[2 : 2 + 5], lambda: MulticlassF1Score(3)).item()


def test_a_prefix_with_a_slash_is_the_full_name() -> None:
    result = train_measured(model=Measured(val=collection(prefix="val/own_"), name=None), val=VAL, max_duration="1ep")
    assert "val/own_f1" in result.history


def test_a_collection_under_a_name_puts_it_before_its_keys() -> None:
    result = train_measured(model=Measured(val=collection()), val={"here": VAL}, max_duration="1ep")
    assert {"val/here/score/acc", "val/here/score/f1"} <= set(result.history)


def test_a_metric_per_class_has_a_row_for_each_and_can_be_read() -> None:
    read: list[float] = []
    make = lambda: ClasswiseWrapper(MulticlassAccuracy(3, average=None), labels=["cat", "dog", "fish"])  # noqa: E731
    reader = hl.on("eval_end")(lambda run: read.append(run.metrics["val/score/multiclassaccuracy_dog"]))
    result = train_measured(reader, model=Measured(val=make()), val=VAL)
    assert len([name for name in result.history if name.startswith("val/score/")]) == 3
    assert read == result.history["val/score/multiclassaccuracy_dog"]


def test_a_vector_is_an_array_and_not_the_mean_of_samples() -> None:
    result = train_measured(model=Measured(val=MulticlassAccuracy(3, average=None)), val=VAL)
    assert len(result.metrics["val/score"]) == 3


def test_large_counts_stay_exact_beside_other_numbers() -> None:
    class Many(MulticlassConfusionMatrix):
        def compute(self) -> Tensor:
            return super().compute() * 0 + 2**24 + 1

    assert train_measured(model=Measured(val=Many(3)), val=VAL).metrics["val/score"][0][0] == 2**24 + 1


# -- what is refused ------------------------------------------------------------------------------------


def test_one_object_under_two_names_is_refused() -> None:
    class Twice(Measured):
        def measure(self, run: Any, metric: Any, outputs: Tensor, batch: Any) -> None:
            metric.update(outputs, batch[1])
            run.log({"acc": metric, "accuracy": metric})

    with pytest.raises(MetricError, match="train/accuracy: this MulticlassAccuracy is logged as train/acc already"):
        train_measured(model=Twice(accuracy()))


def test_another_object_each_time_is_refused() -> None:
    class Anew(Measured):
        def measure(self, run: Any, metric: Any, outputs: Tensor, batch: Any) -> None:
            metric = accuracy()
            metric.update(outputs, batch[1])
            run.log({"acc": metric})

    with pytest.raises(MetricError, match="train/acc: another MulticlassAccuracy is logged under this name"):
        train_measured(model=Anew(accuracy()))


def test_a_name_is_a_number_or_an_object() -> None:
    log = hl.on("train_batch_end")(lambda run: run.log({"score": 0.5}))
    with pytest.raises(MetricError, match="train/score: a number is logged, and before it was a metric object"):
        train_measured(log, model=Measured(accuracy()))


def test_a_key_of_a_collection_that_is_logged_as_a_number_is_refused() -> None:
    """One of the two would be lost."""
    with pytest.raises(MetricError, match="val/loss: a metric object is logged, and before it was a number"):
        train_measured(model=Measured(val=tm.MetricCollection({"loss": accuracy()}), name=None), val=VAL)


def test_an_object_has_no_step_of_its_own_and_one_alone_needs_a_name() -> None:
    class Dated(Measured):
        def measure(self, run: Any, metric: Any, outputs: Tensor, batch: Any) -> None:
            run.log({"score": metric}, step=3)

    with pytest.raises(MetricError, match="leave step= out"):
        train_measured(model=Dated(accuracy()))
    with pytest.raises(MetricError, match="give it a name"):
        train_measured(model=Measured(accuracy(), name=None))


def test_what_is_no_number_is_refused_with_its_name() -> None:
    class Words(MulticlassAccuracy):
        def compute(self) -> Any:
            return {"verdict": "good"}

    with pytest.raises(MetricError, match="val/score/verdict: 'good' is a str, not a number"):
        train_measured(model=Measured(val=Words(3)), val=VAL)
    with pytest.raises(MetricError, match=r"val/score: .* is a tuple"):
        train_measured(model=Measured(val=MulticlassROC(3)), val=[(torch.eye(4)[:3], torch.arange(3))])


def test_an_error_in_compute_names_the_metric() -> None:
    class Broken(MulticlassAccuracy):
        def compute(self) -> Tensor:
            raise ZeroDivisionError("nothing to divide")

    with pytest.raises(ZeroDivisionError) as caught:
        train_measured(model=Measured(val=Broken(3)), val=VAL)
    assert "in compute() of the Broken that is logged as 'val/score'" in caught.value.__notes__


# -- the own loop ------------------------------------------------------------------------------------------


def own_loop(folder: Any = False, *, leave: int | None = None, resume: Any = None) -> list[tuple[str, int, Any]]:
    """A metric that only the body knows; with ``leave`` the body raises at this step."""
    model = TinyModel()
    train, val = accuracy(), collection()
    options = {"max_duration": "2ep", "log_every": "4st", "device": "cpu", "seed": 0}
    saver = [hl.Checkpointer("1st")] if folder else []
    with Loop(model, sgd, callbacks=saver, folder=folder, resume=resume, **options) as loop:
        for x, y in loop.batches(TRAIN):
            outputs = model(x)
            train.update(outputs, y)
            loop.run.log({"acc": train})
            loop.backward(CE(outputs, y))
            loop.step()
            if loop.run.clock.step == leave:
                raise KeyError("left")
            if loop.eval_due:
                for x_val, y_val in loop.eval_batches(VAL):
                    val.update(model(x_val), y_val)
                    loop.run.log(val)
    return [(row.name, row.step, row.value) for row in loop.run.history.rows()]


def test_the_body_of_an_own_loop_logs_objects_too() -> None:
    names = {name for name, _, _ in own_loop()}
    assert {"train/acc", "train/acc_epoch", "val/acc", "val/f1"} <= names


def test_an_object_that_only_the_body_knows_goes_on_after_a_resume(tmp_path: Path) -> None:
    """It is in no module that is saved: its state waits for the first time that it is logged."""
    straight = own_loop(tmp_path / "straight")
    with pytest.raises(KeyError, match="left"):
        own_loop(tmp_path / "left", leave=3)
    assert own_loop(tmp_path / "left", resume="auto") == straight


def test_an_evaluation_that_is_left_by_break_counts_what_it_measured() -> None:
    model, metric, seen = TinyModel(), accuracy(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Loop(model, optimizer, max_duration="1ep", folder=False, device="cpu") as loop:
        for x, y in loop.batches(TRAIN):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
            if loop.eval_due:
                for x_val, y_val in loop.eval_batches(VAL):
                    seen.append((model(x_val), y_val))
                    metric.update(*seen[-1])
                    loop.run.log({"acc": metric})
                    break
    assert loop.run.history["val/acc"] == [over(seen).item()]
    assert metric.update_count == 0


# -- saved -------------------------------------------------------------------------------------------------


class Leave(hl.Callback):
    """Ends the process, or what stands for it, at a step."""

    def __init__(self, step: int, event: str, act: Callable[[], None]) -> None:
        self.step, self.act = step, act
        vars(self)[f"on_{event}"] = self.leave

    def leave(self, run: Any) -> None:
        if run.clock.step == self.step and run.clock.batch:
            self.act()


def fail() -> None:
    raise KeyError("left")


class Listed(Measured):
    """Its metrics are in a plain list, which torch does not see."""

    def __init__(self, train: Any, val: Any) -> None:
        super().__init__(None, None)
        self.metrics = [train, val]

    def train_batch(self, run: Any, batch: Any) -> Any:
        loss = SupervisedTask.train_batch(self, run, batch)
        self.measure(run, self.metrics[0], run.outputs, batch)
        return loss

    def eval_batch(self, run: Any, batch: Any) -> Any:
        found = SupervisedTask.eval_batch(self, run, batch)
        self.measure(run, self.metrics[1], found["outputs"], batch)
        return found


class Callbacks(hl.Callback):
    """A callback that holds its metrics."""

    def __init__(self) -> None:
        self.train_f1, self.val_f1 = MulticlassF1Score(3), MulticlassF1Score(3)

    def on_train_batch_end(self, run: Any) -> None:
        self.train_f1.update(run.outputs, run.batch[1])
        run.log({"f1": self.train_f1})

    def on_eval_batch_end(self, run: Any) -> None:
        self.val_f1.update(run.outputs, run.batch[1])
        run.log({"f1": self.val_f1})


TASKS: dict[str, Callable[[], Any]] = {
    "in the task": lambda: Measured(accuracy(), accuracy(), dropout=0.2),
    "one for both": lambda: (lambda metric: Measured(metric, metric))(MulticlassAUROC(3, thresholds=5)),
    "a collection": lambda: Measured(collection(), collection(), name=None),
    "a list": lambda: Listed(accuracy(), accuracy()),
    "not mergeable": lambda: Measured(tm.MetricCollection({"r": Correlation(), "acc": accuracy()})),
}


class Correlation(tm.PearsonCorrCoef):
    """Of the first output and the class."""

    def update(self, outputs: Tensor, classes: Tensor) -> None:
        super().update(outputs.detach()[:, 0], classes.float())


def train_saved(kind: str, folder: Path, *callbacks: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*cannot be merged", HooklineWarning)
        saver = hl.Checkpointer("1st", keep_last=None)
        options = {"model": TASKS[kind](), "val": VAL, "log_every": "3st", "eval_every": "4st", **options}
        return train_measured(Callbacks(), *callbacks, saver, folder=folder, **options)


def values_in(folder: Path) -> list[tuple[int, str, Any]]:
    rows = json_lines(folder / "metrics.jsonl")
    return sorted(((row["step"], row["name"], row["value"]) for row in rows if "value" in row), key=lambda row: row[:2])


def values_of(result: Any) -> list[tuple[str, int, Any]]:
    return [(row.name, row.step, row.value) for row in result.history.rows()]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Any]]:
    """The rows of a run that was not left, in its history and in its file."""

    @cache
    def train(kind: str) -> tuple[Any, Any]:
        folder = tmp_path_factory.mktemp("straight") / "run"
        return values_of(train_saved(kind, folder)), values_in(folder)

    return train


@pytest.mark.parametrize("step", [2, 5, 8])
@pytest.mark.parametrize("kind", TASKS)
def test_a_resumed_run_has_the_very_rows_of_one_that_was_not_left(
    kind: str, step: int, straight: Callable[[str], tuple[Any, Any]], tmp_path: Path
) -> None:
    """Saved in the middle of an interval, of an epoch, and at its edge."""
    with pytest.raises(KeyError, match="left"):
        train_saved(kind, tmp_path / "left", Leave(step, "train_step_start", fail))
    resumed = train_saved(kind, tmp_path / "left", resume="auto")
    assert (values_of(resumed), values_in(tmp_path / "left")) == straight(kind)


def test_an_evaluation_that_a_signal_left_is_made_up_with_the_right_value(tmp_path: Path) -> None:
    one = accuracy()
    straight = train_measured(model=Measured(accuracy(), accuracy()), val=VAL, folder=tmp_path / "straight")
    leave = Leave(5, "eval_batch_end", lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Preempted):
        train_measured(leave, model=Measured(one, one), val=VAL, folder=tmp_path / "left")
    two = accuracy()
    resumed = train_measured(model=Measured(two, two), val=VAL, folder=tmp_path / "left", resume="auto")
    assert values_of(resumed) == values_of(straight)


def test_one_that_nobody_saves_and_nobody_can_merge_is_said_to_be_lost(tmp_path: Path) -> None:
    def run(*callbacks: Any, **options: Any) -> Any:
        task = Listed(Correlation(), None)
        return train_measured(
            *callbacks, hl.Checkpointer("1st"), model=task, folder=tmp_path, log_every="3st", **options
        )

    with pytest.raises(KeyError, match="left"), pytest.warns(HooklineWarning, match="cannot be merged"):
        run(Leave(4, "train_step_start", fail))
    with pytest.warns(HooklineWarning) as caught:
        run(resume="auto")
    assert any(
        "train/score: what this Correlation had measured before the resume is lost" in str(w.message) for w in caught
    )


class Broken(tm.Metric):
    """Its ``compute`` fails, which is long after it was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("seen", torch.zeros(()), dist_reduce_fx="sum")

    def update(self) -> None:
        self.seen += 1

    def compute(self) -> torch.Tensor:
        raise ArithmeticError("no mean of nothing")


class LogsBroken(hl.Callback):
    def __init__(self, hook: str, optional: bool) -> None:
        self.hook, self.optional = hook, optional
        self.metric = Broken()

    def on_train_step_end(self, run: Any) -> None:
        self._log(run, "train_step_end")

    def on_eval_batch_end(self, run: Any) -> None:
        self._log(run, "eval_batch_end")

    def _log(self, run: Any, hook: str) -> None:
        if hook == self.hook:
            self.metric.update()
            run.log({"broken": self.metric})


@pytest.mark.parametrize("hook", ["train_step_end", "eval_batch_end"])
def test_a_metric_of_an_optional_callback_that_cannot_be_computed_ends_no_run(hook: str) -> None:
    def run(optional: bool) -> Any:
        data = tiny_data(4)
        return fit(LogsBroken(hook, optional), train=data, val=data, log_every="2st")

    result = run(optional=True)
    assert result.clock.epoch == 2
    (failure,) = result.failures
    assert (failure.callback, failure.hook) == ("LogsBroken", "compute")
    assert "no mean of nothing" in str(failure.error)
    with pytest.raises(ArithmeticError, match="no mean of nothing"):
        run(optional=False)
