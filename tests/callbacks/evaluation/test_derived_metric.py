"""``DerivedMetric``: at the step of what it is made of, in the right order, and what happens when it cannot be."""

from __future__ import annotations

import logging
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.callbacks import EarlyStopping
from hookline.callbacks.evaluation import DerivedMetric
from hookline.errors import ArgumentError, MetricError
from hookline.loop import Trainer
from hookline.testing import TinyModel, drive, tiny_data
from tests.support import CE, crash_at, fit, is_quiet

fit_with_val = partial(fit, val=tiny_data(2, seed=1), log_every="2st")


def perplexity(stage: str = "val", **options: Any) -> DerivedMetric:
    return DerivedMetric("perplexity", lambda m: math.exp(m[f"{stage}/loss"]), reads=(f"{stage}/loss",), **options)


def gap() -> DerivedMetric:
    reads = ("val/loss", "train/loss_epoch")
    return DerivedMetric("val/gap", lambda m: m["val/loss"] - m["train/loss_epoch"], reads=reads)


def rows(result: Any, name: str) -> dict[int, Any]:
    return dict(zip(result.history.steps(name), result.history[name], strict=True))


# -- when ----------------------------------------------------------------------------------------------


def test_after_an_evaluation_it_has_the_step_of_what_it_is_made_of() -> None:
    result = fit_with_val(perplexity(), eval_every="3st")
    assert rows(result, "val/perplexity") == {step: math.exp(v) for step, v in rows(result, "val/loss").items()}
    assert {row.kind for row in result.history.rows() if row.name == "val/perplexity"} == {"eval"}


def test_after_an_interval_it_has_the_step_of_what_it_is_made_of() -> None:
    result = fit_with_val(perplexity("train"), log_every="3st")
    assert rows(result, "train/perplexity") == {step: math.exp(v) for step, v in rows(result, "train/loss").items()}
    assert list(rows(result, "train/perplexity")) == [3, 4, 6, 8]


class Rarely(hl.Callback):
    """Measures in every third step, or once an epoch with steps of its own; with ``late``, after the interval."""

    writes = ("own/rare",)

    def __init__(self, late: bool = False, dated: bool = False) -> None:
        self.late, self.dated = late, dated

    def on_train_step_end(self, run: hl.Run) -> None:
        if not self.late and run.clock.step % 3 == 0:
            run.log({"own/rare": float(run.clock.step)}, step=run.clock.step * 100 if self.dated else None)

    def on_metrics_ready(self, run: hl.Run) -> None:
        if self.late and run.clock.step % 3 == 0:
            run.log({"own/rare": float(run.clock.step)})


@pytest.mark.parametrize("options", [{}, {"late": True}, {"dated": True}])
def test_after_an_interval_that_measured_nothing_of_it_there_is_no_row(
    options: dict[str, bool], tmp_path: Path
) -> None:
    def derived() -> DerivedMetric:
        return DerivedMetric("own/double", lambda m: 2 * m["own/rare"], reads=("own/rare",))

    whole = fit_with_val(Rarely(**options), derived(), log_every="1st")
    assert rows(whole, "own/double") == {3: 6.0, 6: 12.0}
    saved = {"log_every": "1st", "folder": tmp_path / "run", "resume": "auto"}
    with pytest.raises(RuntimeError, match="planted"):
        fit_with_val(Rarely(**options), derived(), hl.Checkpointer(every="4st"), crash_at(5), **saved)
    again = fit_with_val(Rarely(**options), derived(), hl.Checkpointer(every="4st"), **saved)
    assert rows(again, "own/double") == rows(whole, "own/double")


def test_a_second_fit_does_not_repeat_what_the_first_has_derived() -> None:
    class Once(hl.Callback):
        writes = ("own/x",)

        def on_train_step_end(self, run: hl.Run) -> None:
            if run.clock.step == 3:
                run.log({"own/x": 7.0})

    double = DerivedMetric("own/y", lambda m: 2 * m["own/x"], reads=("own/x",))
    model = TinyModel()
    for _ in range(2):  # also of a second trainer, whose steps are the same
        trainer = hl.Trainer(max_duration="1ep", log_every="2st", callbacks=[Once(), double], folder=False)
        fit(trainer=trainer, model=model, train=tiny_data(6))
        result = fit(trainer=trainer, model=model, train=tiny_data(6), extend="1ep")
        assert result.history.steps("own/y") == result.history.steps("own/x") == [4]


def test_of_an_epoch_it_has_one_row_an_epoch() -> None:
    half = DerivedMetric("train/half", lambda m: m["train/loss_epoch"] / 2, reads=("train/loss_epoch",))
    result = fit_with_val(half)
    assert rows(result, "train/half") == {step: v / 2 for step, v in rows(result, "train/loss_epoch").items()}


def test_the_gap_between_training_and_evaluation_is_of_the_evaluation() -> None:
    result = fit_with_val(gap())
    train, val = rows(result, "train/loss_epoch"), rows(result, "val/loss")
    assert rows(result, "val/gap") == {step: val[step] - train[step] for step in (4, 8)}


def test_it_waits_for_what_is_missing() -> None:
    """Before the end of the first epoch there is no mean over one."""
    assert list(rows(fit_with_val(gap(), eval_every="3st"), "val/gap")) == [6, 8]


def test_the_final_test_does_not_derive_again_from_an_old_evaluation() -> None:
    result = fit_with_val(perplexity(), perplexity("test"), test=tiny_data(1, seed=4))
    assert result.metrics["test/perplexity"] == math.exp(result.metrics["test/loss"])
    assert len(result.history["val/perplexity"]) == 2


def test_evaluate_gives_it_too() -> None:
    trainer = Trainer(callbacks=[perplexity()], folder=False, device="cpu")
    found = trainer.evaluate(TinyModel(), tiny_data(), loss=CE)
    assert found["val/perplexity"] == math.exp(found["val/loss"])


def test_a_pattern_gives_all_that_match() -> None:
    worst = DerivedMetric("val/worst", lambda m: max(m.values()), reads=("val/*/loss",))
    val = {"clean": tiny_data(1, seed=1), "noisy": tiny_data(1, seed=2)}
    result = fit_with_val(worst, val=val)
    both = [result.history[f"val/{name}/loss"] for name in val]
    assert result.history["val/worst"] == [max(values) for values in zip(*both, strict=True)]


def test_a_monitor_finds_it_before_the_first_step_and_reads_it_after_it_is_derived() -> None:
    stopper = EarlyStopping("val/perplexity", patience=1, min_delta=100.0)
    result = fit_with_val(stopper, perplexity(), max_duration="9ep")  # the list is in the wrong order on purpose
    assert result.stopped_by == "EarlyStopping"


def test_one_derived_metric_can_read_another() -> None:
    log = DerivedMetric("val/log", lambda m: math.log(m["val/perplexity"]), reads=("val/perplexity",))
    result = fit_with_val(log, perplexity())
    assert result.history["val/log"] == pytest.approx(result.history["val/loss"])


def test_it_listens_to_no_event_of_a_step() -> None:
    """That would make every step slower, for a value that changes once an interval."""
    trainer = Trainer(callbacks=[perplexity("train")], max_duration="1ep", folder=False, device="cpu")
    fit(trainer=trainer)
    assert is_quiet(trainer)


def test_a_resumed_run_has_the_same_rows(tmp_path: Path) -> None:
    def run(*callbacks: Any, **options: Any) -> Any:
        return fit_with_val(
            perplexity(), perplexity("train"), *callbacks, hl.Checkpointer("1st"), log_every="3st", **options
        )

    straight = run(folder=tmp_path / "straight")
    with pytest.raises(RuntimeError, match="planted"):
        run(crash_at(5, "train_step_start"), folder=tmp_path / "left")
    resumed = run(folder=tmp_path / "left", resume="auto")
    for name in ("val/perplexity", "train/perplexity"):
        assert rows(resumed, name) == rows(straight, name)


# -- when it cannot be -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [lambda m: 1 / 0, lambda m: math.exp(1e9), lambda m: math.log(0.0)])
def test_a_number_that_does_not_exist_is_nan_and_said_once(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hookline"):
        result = fit_with_val(DerivedMetric("val/odd", wrong, reads=("val/loss",)))
    assert len(result.history["val/odd"]) == 2
    assert all(map(math.isnan, result.history["val/odd"]))
    said = [record.getMessage() for record in caplog.records if "val/odd" in record.getMessage()]
    assert len(said) == 1
    assert "is not a number at step 4" in said[0]


def test_none_logs_nothing() -> None:
    assert "val/some" not in fit_with_val(DerivedMetric("val/some", lambda m: None, reads=("val/loss",))).history


def test_a_metric_that_was_not_declared_is_an_error_that_says_so() -> None:
    undeclared = DerivedMetric("val/gap", lambda m: m["val/loss"] - m["train/loss"], reads=("val/loss",))
    with pytest.raises(MetricError, match=r"uses 'train/loss', and reads=\('val/loss',\); name it there"):
        fit_with_val(undeclared)


def test_any_other_error_ends_the_run_unless_it_is_optional() -> None:
    def broken() -> DerivedMetric:
        return DerivedMetric("val/odd", lambda m: m["val/loss"].item(), reads=("val/loss",))

    with pytest.raises(AttributeError, match="item"):
        fit_with_val(broken())
    optional = broken()
    optional.optional = True
    assert "val/odd" not in fit_with_val(optional).history


def test_a_metric_that_nobody_logs_is_an_error_before_the_first_step() -> None:
    with pytest.raises(MetricError, match=r"monitors 'val/los', but .* Did you mean 'val/loss'\?"):
        fit_with_val(DerivedMetric("val/x", lambda m: 0.0, reads=("val/los",)))


def test_nothing_is_derived_from_a_metric_whose_callback_was_switched_off() -> None:
    """Its last value is old."""

    class Odd(hl.Callback):
        optional = True
        writes = ("val/odd",)

        def on_eval_end(self, run: Any) -> None:
            if run.clock.epoch == 2:
                raise RuntimeError("no more")
            run.log({"odd": 1.0})

    result = fit_with_val(
        Odd(), DerivedMetric("val/twice", lambda m: 2 * m["val/odd"], reads=("val/odd",)), max_duration="3ep"
    )
    assert rows(result, "val/twice") == {4: 2.0}


def test_an_array_can_be_made_a_number() -> None:
    driven = drive(
        DerivedMetric(
            "val/trace", lambda m: m["val/confusion"][0][0] + m["val/confusion"][1][1], reads=("val/confusion",)
        ),
        ["setup", ("eval_end", {"metrics": {"val/confusion": torch.tensor([[3.0, 1.0], [0.0, 5.0]])}})],
    )
    assert driven.logged == {"val/trace": [8.0]}


# -- how it is made ----------------------------------------------------------------------------------------

WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "reads nothing": (("val/x", len, ()), r"DerivedMetric\(reads.*\): must be"),
    "reads no full name": (("val/x", len, ("loss",)), r"DerivedMetric\(reads.*\): must be"),
    "no function": (("val/x", 3, ("val/loss",)), r"DerivedMetric\(function=3\): must be a function\."),
    "no name": (("", len, ("val/loss",)), r"DerivedMetric\(name=''\): is empty\. Write for example 'val/perplexity'\."),
    "no stage, and several to choose from": (("gap", len, ("val/loss", "train/loss")), r"DerivedMetric\(name="),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_means_nothing_is_refused_at_once(what: str) -> None:
    arguments, message = WRONG[what]
    with pytest.raises(ArgumentError, match=message):
        DerivedMetric(*arguments)


def test_a_name_without_a_slash_gets_the_stage_of_what_it_reads() -> None:
    assert perplexity().writes == ("val/perplexity",)
    assert perplexity("train").writes == ("train/perplexity",)
    assert DerivedMetric("x", len, "val/loss").reads == ("val/loss",)
