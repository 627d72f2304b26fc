"""``StopOnConstantPredictions``: what counts as the same prediction, over a whole evaluation."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.callbacks.stopping import StopOnConstantPredictions
from hookline.errors import ArgumentError, SetupError
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import at_step, fit, interrupt


class Says(hl.Task):
    """Gives out what it is told to: one list of batches for each evaluation."""

    def __init__(self, *evaluations: list[Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.evaluations = list(evaluations)

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_batch(self, run: Any, batch: Any) -> Any:
        return self.weight * 1.0

    def eval_batch(self, run: Any, batch: Any) -> Any:
        number = min(run.clock.epoch - 1, len(self.evaluations) - 1)  # the sanity check comes before the first
        return {"loss": torch.zeros(()), "outputs": self.evaluations[max(number, 0)][batch]}


def fit_says(task: Says, *callbacks: object, **options: Any) -> Any:
    """Epochs of one step, each with an evaluation."""
    batches = list(range(len(task.evaluations[0])))
    options = {"max_duration": f"{len(task.evaluations)}ep", "val": batches, **options}
    return fit(*callbacks, model=task, train=[0], **options)


def classes(*numbers: int) -> torch.Tensor:
    """Outputs whose largest is that of the class; the others differ from sample to sample."""
    generator = torch.Generator().manual_seed(sum(numbers))
    outputs = torch.rand(len(numbers), 3, generator=generator)
    outputs[range(len(numbers)), list(numbers)] += 2
    return outputs


SAME = [classes(1, 1), classes(1, 1, 1)]
ONE_OTHER = [classes(1, 1), classes(1, 2, 1)]
numbers = torch.tensor

CASES: dict[str, tuple[dict[str, Any], list[Any], str | None]] = {
    # options, the batches of an evaluation, the reason
    "one class": ({}, SAME, "all 5 predictions are 1"),
    "one other, in the second batch": ({}, ONE_OTHER, None),
    "each batch has its own": ({}, [classes(1, 1), classes(2, 2)], None),
    "the class that was asked for": ({"value": 1}, SAME, "all 5 predictions are 1"),
    "another class than that": ({"value": 0}, SAME, None),
    "numbers": ({}, [numbers([0.5, 0.5]), numbers([0.5])], "all 3 predictions are 0.5"),
    "numbers in a column": ({}, [numbers([[0.5], [0.5]])], "all 2 predictions are 0.5"),
    "numbers that differ a little": ({}, [numbers([0.5, 0.5001])], None),
    "numbers within the tolerance": ({"tolerance": 1e-3}, [numbers([0.5, 0.5001])], "all 2 predictions are 0.5"),
    "a value within the tolerance": (
        {"value": 0.4, "tolerance": 0.2},
        [numbers([0.3, 0.5])],
        "all 2 predictions are 0.3",
    ),
    "a value not within it": ({"value": 0.4, "tolerance": 0.05}, [numbers([0.3, 0.5])], None),
    "zero, which is a value too": ({"value": 0.0}, [numbers([0.0, 0.0])], "all 2 predictions are 0"),
    "not a number": ({}, [numbers([math.nan, math.nan])], None),
    "every pixel": ({}, [torch.zeros(2, 3, 4, 4)], "all 32 predictions are 0"),
    "texts of different lengths": ({}, [torch.zeros(2, 3, 5), torch.zeros(2, 3, 7)], "all 24 predictions are 0"),
    "whole numbers": ({}, [numbers([3, 3])], "all 2 predictions are 3"),
    "rows of one's own": (
        {"predictions": lambda outputs: outputs},
        [numbers([[1.0, 2.0], [1.0, 2.0]])],
        "all 2 predictions are (1, 2)",
    ),
    "rows that differ in one column": ({"predictions": lambda outputs: outputs}, [numbers([[1.0, 2], [1, 3]])], None),
    "out of a dict": (
        {"predictions": lambda outputs: outputs["logits"].argmax(-1)},
        [{"logits": classes(2, 2)}],
        "all 2 predictions are 2",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_constant(name: str) -> None:
    options, outputs, reason = CASES[name]
    result = fit_says(Says(outputs, outputs), StopOnConstantPredictions(**options))
    assert result.stopped_by == ("StopOnConstantPredictions" if reason else None)
    if reason:
        assert (result.clock.epoch, result.stop_reason) == (1, reason)


def test_patience_is_a_number_of_evaluations_in_a_row() -> None:
    result = fit_says(Says(SAME, ONE_OTHER, SAME, SAME, SAME), StopOnConstantPredictions(patience=2))
    assert (result.clock.epoch, result.stop_reason) == (4, "all 5 predictions are 1 in 2 evaluations")


def test_warn_says_it_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hookline"):
        result = fit_says(Says(SAME, ONE_OTHER, SAME), StopOnConstantPredictions(action="warn"))
    assert (result.clock.epoch, result.stopped_by) == (3, None)
    assert [record.getMessage() for record in caplog.records] == [
        f"StopOnConstantPredictions: all 5 predictions are 1, at step {step}" for step in (1, 3)
    ]


def test_a_dead_model_is_found_and_a_live_one_is_not() -> None:
    dead = TinyModel()
    with torch.no_grad():
        dead.hidden.bias.fill_(-100.0)  # no unit ever fires
    for model, stopped in ((dead, "StopOnConstantPredictions"), (TinyModel(), None)):
        assert fit(StopOnConstantPredictions(), model=model, val=tiny_data()).stopped_by == stopped


def test_all_named_loaders_of_an_evaluation_count_together() -> None:
    task = Says([classes(1, 1), classes(2, 2)])
    trainer = Trainer(callbacks=[StopOnConstantPredictions()], max_duration="1ep", folder=False)
    assert trainer.fit(task, [0], {"easy": [0], "hard": [1]}).stopped_by is None
    assert trainer.fit(Says([classes(1), classes(1)]), [0], {"easy": [0], "hard": [1]}).stopped_by is not None


def test_the_test_at_the_end_and_a_separate_evaluation_decide_nothing() -> None:
    stopper, task = StopOnConstantPredictions(), Says(ONE_OTHER)
    trainer = Trainer(callbacks=[stopper], max_duration="1ep", folder=False)
    assert trainer.fit(task, [0], [0, 1], [0]).stopped_by is None
    trainer.evaluate(task, [0])
    assert stopper.in_a_row == 0


def test_in_the_own_loop() -> None:
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Loop(model, optimizer, callbacks=[StopOnConstantPredictions()], max_duration="9ep", folder=False) as loop:
        for x, y in loop.batches(tiny_data(2)):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
            if loop.eval_due:
                for _ in loop.eval_batches(tiny_data(1)):
                    loop.run.outputs = torch.zeros(4, 3)
    assert (loop.run.clock.epoch, loop.result().stop_reason) == (1, "all 4 predictions are 0")


@pytest.mark.parametrize("left", [1, 2])
def test_a_run_that_is_left_and_resumed_stops_where_the_other_does(tmp_path: Path, left: int) -> None:
    def part(*callbacks: object, resume: Any = None) -> Any:
        task = Says(SAME, SAME, SAME, SAME, SAME)
        stopper = StopOnConstantPredictions(patience=3)
        return fit_says(task, stopper, hl.Checkpointer("1ep"), *callbacks, folder=tmp_path, resume=resume)

    assert part(at_step(left, interrupt, "epoch_end")).interrupted
    result = part(resume="auto")
    assert (result.clock.epoch, result.stop_reason) == (3, "all 5 predictions are 1 in 3 evaluations")


def test_without_anything_to_evaluate_on_it_is_an_error_at_the_start() -> None:
    with pytest.raises(SetupError, match="pass a validation loader to fit"):
        fit_says(Says(SAME), StopOnConstantPredictions(), val=None)


@pytest.mark.parametrize(
    ("options", "outputs", "message"),
    [
        ({}, [{"logits": classes(1)}], "the outputs are a dict, not a tensor .*; give predictions="),
        ({}, [torch.zeros(())], "not a tensor with one row for each sample"),
        (
            {"predictions": lambda outputs: outputs},
            [torch.zeros(2, 3), torch.zeros(2, 4)],
            "rows of 4 numbers after rows of 3; give predictions=",
        ),
    ],
)
def test_outputs_that_say_no_predictions_are_an_error_that_says_what_to_do(
    options: dict[str, Any], outputs: list[Any], message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        fit_says(Says(outputs), StopOnConstantPredictions(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": "print"}, r"StopOnConstantPredictions\(action='print'\): must be 'stop' or 'warn'\."),
        ({"patience": 0}, r"StopOnConstantPredictions\(patience.*\): must be"),
        ({"patience": "2ep"}, r"StopOnConstantPredictions\(patience.*\): must be"),
        ({"tolerance": -1.0}, r"StopOnConstantPredictions\(tolerance=-1\.0\): must be >= 0\."),
        ({"value": math.nan}, r"StopOnConstantPredictions\(value=nan\): must be a number or None\."),
        ({"predictions": "argmax"}, r"StopOnConstantPredictions\(predictions='argmax'\): must be a function or None\."),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_to_write(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        StopOnConstantPredictions(**options)
