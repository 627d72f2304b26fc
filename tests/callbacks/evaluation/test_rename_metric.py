"""``RenameMetric``: everybody sees the new name, in time, and nobody loses a metric in silence."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hookline as hl
from hookline.callbacks import EarlyStopping
from hookline.callbacks.evaluation import DerivedMetric, RenameMetric
from hookline.errors import ArgumentError, MetricError, RegistrationError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, json_lines, sgd

fit_with_val = partial(fit, val=tiny_data(2, seed=1), log_every="2st")


def test_history_rows_files_and_metrics_know_only_the_new_name(tmp_path: Path) -> None:
    plain = fit_with_val()
    result = fit_with_val(RenameMetric({"val/loss": "val/nll", "train/loss": "train/nll"}), folder=tmp_path)
    assert set(result.history) == {"train/nll", "train/nll_epoch", "val/nll"}
    for old, new in (("val/loss", "val/nll"), ("train/loss", "train/nll"), ("train/loss_epoch", "train/nll_epoch")):
        assert result.history[new] == plain.history[old]
        assert result.history.steps(new) == plain.history.steps(old)
    assert "val/nll" in result.metrics
    assert "val/loss" not in result.metrics
    assert {row["name"] for row in json_lines(tmp_path / "metrics.jsonl") if "value" in row} == set(result.history)


def test_both_names_have_the_values_with_keep() -> None:
    result = fit_with_val(RenameMetric({"val/loss": "val/nll"}, keep=True))
    assert result.history["val/nll"] == result.history["val/loss"]
    assert len(result.history["val/nll"]) == 2


def test_hooks_read_the_new_name_while_it_is_still_being_averaged() -> None:
    read: list[Any] = []

    class Reader(hl.Callback):
        reads = ("val/nll",)

        def on_train_step_end(self, run: Any) -> None:
            read.append(run.metrics["train/nll"])

        def on_eval_end(self, run: Any) -> None:
            read.append(run.metrics["val/nll"])
            assert "val/loss" not in run.metrics
            assert "val/loss" not in set(run.metrics)
            with pytest.raises(MetricError, match="no metric 'val/loss'"):
                run.metrics["val/loss"]

    result = fit_with_val(Reader(), RenameMetric({"val/loss": "val/nll", "train/loss": "train/nll"}))
    assert result.history["val/nll"][0] in read
    assert len(read) == 8 + 2


def test_early_stopping_watches_the_new_name() -> None:
    stopper = EarlyStopping("val/score", mode="min", patience=1, min_delta=10.0)
    result = fit_with_val(stopper, RenameMetric({"val/loss": "val/score"}), max_duration="9ep")
    assert result.stopped_by == "EarlyStopping"


def test_a_name_that_a_callback_gives_can_be_renamed_and_the_order_is_kept() -> None:
    """What is derived is logged late in the evaluation; who watches it by its new name still comes after."""
    derived = DerivedMetric("val/double", lambda m: 2 * m["val/loss"], reads=("val/loss",))
    stopper = EarlyStopping("val/twice", mode="min", patience=1, min_delta=10.0)
    result = fit_with_val(stopper, RenameMetric({"val/double": "val/twice"}), derived, max_duration="9ep")
    assert result.stopped_by == "EarlyStopping"
    assert result.history["val/twice"] == [2 * value for value in result.history["val/loss"]]


def test_a_callback_that_reads_a_name_which_vanishes_is_named_before_the_first_step() -> None:
    with pytest.raises(RegistrationError, match=r"EarlyStopping\(\) reads 'val/loss', .* calls 'val/nll'"):
        fit_with_val(EarlyStopping(), RenameMetric({"val/loss": "val/nll"}))
    fit_with_val(EarlyStopping(), RenameMetric({"val/loss": "val/nll"}, keep=True))


def test_a_misspelt_old_name_is_an_error_before_the_first_step() -> None:
    with pytest.raises(MetricError, match=r"monitors 'val/los', but .* Did you mean 'val/loss'\?"):
        fit_with_val(RenameMetric({"val/los": "val/nll"}))


def test_a_new_name_that_somebody_logs_is_refused() -> None:
    logs = hl.on("eval_end")(lambda run: run.log({"val/nll": 1.0}))
    with pytest.raises(MetricError, match="val/nll, which is also logged"):
        fit_with_val(logs, RenameMetric({"val/loss": "val/nll"}))


def test_one_of_several_loaders_can_be_renamed() -> None:
    val = {"clean": tiny_data(1, seed=1), "noisy": tiny_data(1, seed=2)}
    result = fit_with_val(RenameMetric({"val/clean/loss": "val/loss"}), val=val)
    assert {"val/loss", "val/noisy/loss"} <= set(result.history)


def test_evaluate_gives_the_new_name() -> None:
    trainer = Trainer(callbacks=[RenameMetric({"val/loss": "val/nll"})], folder=False, device="cpu")
    found = trainer.evaluate(TinyModel(), tiny_data(), loss=CE)
    assert list(found) == ["val/nll"]


def test_a_second_fit_without_it_has_the_old_names() -> None:
    model, data = TinyModel(), (tiny_data(), tiny_data(1))
    trainer, rename = Trainer(max_duration="1ep", folder=False, device="cpu"), RenameMetric({"val/loss": "val/nll"})
    assert "val/nll" in trainer.fit(model, *data, loss=CE, optimizer=sgd, callbacks=[rename]).history
    assert "val/loss" in fit_with_val(model=model, max_duration="1ep").history


def test_a_resumed_run_goes_on_under_the_new_name(tmp_path: Path) -> None:
    def run(*callbacks: Any, **options: Any) -> Any:
        rename = RenameMetric({"train/loss": "train/nll", "val/loss": "val/nll"})
        return fit_with_val(rename, *callbacks, hl.Checkpointer("1st"), **options)

    straight = run(folder=tmp_path / "straight", log_every="3st")
    with pytest.raises(RuntimeError, match="planted"):
        run(crash_at(3, "train_step_start"), folder=tmp_path / "left", log_every="3st")
    resumed = run(folder=tmp_path / "left", resume="auto", log_every="3st")
    assert {name: resumed.history[name] for name in resumed.history} == {
        name: straight.history[name] for name in straight.history
    }


WRONG: dict[str, tuple[Any, str]] = {
    "nothing": ({}, r"RenameMetric\(names="),
    "no dict": ("val/acc", r"RenameMetric\(names="),
    "no stage": (
        {"acc": "val/accuracy"},
        r"RenameMetric\(names=…\): 'acc' is not a full name\. Write for example 'val/accuracy'\.",
    ),
    "no stage in the new one": (
        {"val/acc": "accuracy"},
        r"RenameMetric\(names=…\): 'accuracy' is not a full name\. Write for example 'val/accuracy'\.",
    ),
    "a pattern": (
        {"val/*": "val/x"},
        r"RenameMetric\(names=…\): 'val/\*' is not a full name\. Write for example 'val/accuracy'\.",
    ),
    "one new name twice": ({"a/x": "a/z", "a/y": "a/z"}, r"RenameMetric\(names="),
    "to and fro": ({"a/x": "a/y", "a/y": "a/x"}, r"RenameMetric\(names="),
}


@pytest.mark.parametrize("what", WRONG)
def test_names_that_mean_nothing_are_refused_at_once(what: str) -> None:
    names, message = WRONG[what]
    with pytest.raises(ArgumentError, match=message):
        RenameMetric(names)


def test_two_of_them_can_be_in_one_run() -> None:
    result = fit_with_val(RenameMetric({"val/loss": "val/nll"}), RenameMetric({"train/loss": "train/nll"}))
    assert {"val/nll", "train/nll"} <= set(result.history)
