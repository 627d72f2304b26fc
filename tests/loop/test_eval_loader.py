"""Evaluation loaders with their own interval: when they are used, on a resume, and for callbacks that wait for them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import hookline as hl
from hookline.callbacks import Checkpointer, EarlyStopping, LimitBatches, SaveBest
from hookline.errors import SetupError
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, sgd

SMALL, LARGE = tiny_data(1, seed=1), tiny_data(2, seed=2)


def loaders(every: str) -> dict[str, Any]:
    return {"small": SMALL, "large": hl.EvalLoader(LARGE, every=every)}


@pytest.mark.parametrize(
    ("every", "eval_every", "steps"),
    [
        ("2ep", "1ep", [8, 16, 20]),  # and at the end
        ("6st", "1ep", [8, 12, 20]),  # the first evaluation at or after each multiple
        ("64sp", "2st", [8, 16, 20]),
        ("0.5dur", "1ep", [12, 20]),
    ],
)
def test_it_takes_part_at_its_own_interval_and_at_the_end(every: str, eval_every: str, steps: list[int]) -> None:
    result = fit(val=loaders(every), eval_every=eval_every, max_duration="5ep")
    assert result.history.steps("val/large/loss") == steps
    assert len(result.history.steps("val/small/loss")) == (5 if eval_every == "1ep" else 10)


@pytest.mark.parametrize("crash", [5, 9, 13])
def test_a_resume_measures_it_where_the_run_would_have(crash: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"val": loaders("2ep"), "max_duration": "5ep"}
    straight = fit(**options)
    options["folder"] = tmp_path / "run"
    with pytest.raises(RuntimeError, match="planted"):
        fit(crash_at(crash), Checkpointer("3st"), **options)
    again = fit(Checkpointer("3st"), resume="auto", **options)
    for name in ("val/small/loss", "val/large/loss"):
        assert again.history.steps(name) == straight.history.steps(name)
        assert again.history[name] == straight.history[name]


def test_callbacks_and_schedulers_wait_for_its_metric(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    seen: list[int] = []

    class Stopping(EarlyStopping):
        def decide(self, run: Any, value: float) -> None:
            seen.append(run.clock.step)
            super().decide(run, value)

    best = SaveBest("val/large/loss")
    plateau = hl.callbacks.LRSchedule("plateau", monitor="val/large/loss", patience=5)
    with caplog.at_level(logging.WARNING, "hookline"):
        fit(
            *(Stopping("val/large/loss", patience=9), best, plateau),
            Checkpointer(keep_best=1, monitor="val/large/loss"),
            val=loaders("2ep"),
            max_duration="5ep",
            folder=tmp_path,
        )
    assert seen == [8, 16, 20]
    assert caplog.text == ""


def test_a_metric_that_it_never_has_is_an_error_before_training() -> None:
    with pytest.raises(hl.errors.MetricError, match="val/large/acc"):
        fit(EarlyStopping("val/large/acc", mode="max"), val=loaders("2ep"))


def test_a_custom_loop_and_evaluate_take_it() -> None:
    with hl.Loop(model := TinyModel(), sgd, max_duration="3ep", folder=False, device="cpu") as loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(CE(model(x), y))
            loop.step()
            if loop.eval_due:
                for x_val, y_val in loop.eval_batches(loaders("2ep")):
                    loop.run.log({"loss_of_mine": CE(model(x_val), y_val)})
    assert loop.run.history.steps("val/small/loss_of_mine") == [2, 4, 6]
    assert loop.run.history.steps("val/large/loss_of_mine") == [4, 6]
    metrics = hl.evaluate(model, loaders("2ep"), loss=CE, folder=False, progress=False)
    assert sorted(metrics) == ["val/large/loss", "val/small/loss"]


@pytest.mark.parametrize("val", [hl.EvalLoader(SMALL, "2ep"), {"a": hl.EvalLoader(SMALL, "2ep")}])
def test_at_least_one_loader_is_in_each_evaluation(val: Any) -> None:
    with pytest.raises(SetupError, match="eval_every="):
        fit(val=val)


def test_the_final_evaluation_can_be_without_the_limit() -> None:
    batches: list[int] = []
    count = hl.callbacks.LambdaCallback(on_eval_end=lambda run: batches.append(run.clock.eval.batch))
    fit(LimitBatches(val=2, final=False), count, val=tiny_data(4), max_duration="3ep")
    assert batches == [2, 2, 4]
    batches.clear()
    fit(LimitBatches(val=0.25, final=False), count, val=tiny_data(4), max_duration="3ep")
    assert batches == [1, 1, 4]
