"""What is logged after the end of a step: where it counts, and that no step has two rows of one metric."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from hookline.callbacks import Checkpointer
from hookline.errors import HooklineWarning, MetricError
from hookline.events import Callback
from hookline.loop import Loop, SupervisedTask, Task
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, json_lines, same_tensors, sgd


def rows(folder: Path) -> list[dict[str, Any]]:
    return json_lines(folder / "metrics.jsonl")


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("log_every", ["1st", "2st", "100st"])
def test_an_own_loop_that_logs_after_its_step_has_every_batch_in_the_mean(
    log_every: str, evaluates: bool, tmp_path: Path
) -> None:
    """At the edge of an epoch, too: the last batch was missing in its mean, and had a second row."""
    model, data = TinyModel(), tiny_data(batches=5)
    folder, number = tmp_path / "run", 0
    with Loop(model, sgd, max_duration="2ep", folder=folder, log_every=log_every, eval_every="1ep") as loop:
        for x, y in loop.batches(data):
            loop.backward(CE(model(x), y))
            loop.step()
            number += 1
            loop.run.log({"number": float(number)})
            if evaluates and loop.eval_due:
                for _ in loop.eval_batches(data):
                    loop.run.log({"val/zero": 0.0})
    found = rows(folder)
    assert max(Counter((row["name"], row["step"]) for row in found).values()) == 1
    means = {row["step"]: row["value"] for row in found if row["name"] == "train/number_epoch"}
    assert means == {5: 3.0, 10: 8.0}
    if log_every == "1st":
        each = {row["step"]: row["value"] for row in found if row["name"] == "train/number"}
        assert each == {step: float(step) for step in range(1, 11)}


def test_a_body_that_breaks_after_the_last_step_of_an_epoch_has_completed_it(tmp_path: Path) -> None:
    model, data = TinyModel(), tiny_data(batches=3)
    with Loop(model, sgd, max_duration="9ep", folder=tmp_path / "run") as loop:
        for x, y in loop.batches(data):
            loop.backward(CE(model(x), y))
            loop.step()
            if loop.run.clock.step == 3:
                break
    assert loop.run.clock.epoch == 1
    assert loop.result().history.steps("train/loss_epoch") == [3]


class Twice(Callback):
    """Logs one name at each step, and again at the end of the epoch."""

    def on_train_step_end(self, run: Any) -> None:
        run.log({"train/x": 1.0})

    def on_epoch_end(self, run: Any) -> None:
        run.log({"train/x": 5.0})


def test_a_second_row_of_a_step_is_left_out_and_said(tmp_path: Path) -> None:
    with pytest.warns(HooklineWarning, match="train/x was logged again for step 4") as warned:
        fit(Twice(), folder=tmp_path / "run", log_every="1st")
    assert len(warned) == 1
    found = [(row["step"], row["value"]) for row in rows(tmp_path / "run") if row["name"] == "train/x"]
    assert found == [(step, 1.0) for step in range(1, 9)]


def test_what_is_logged_at_the_end_of_an_epoch_alone_has_its_row(tmp_path: Path) -> None:
    class Once(Callback):
        def on_epoch_end(self, run: Any) -> None:
            run.log({"train/x": float(run.clock.epoch)})

    fit(Once(), folder=tmp_path / "run", log_every="1st")
    found = [(row["step"], row["value"]) for row in rows(tmp_path / "run") if row["name"] == "train/x"]
    assert found == [(4, 1.0), (8, 2.0)]


def test_a_row_with_a_step_of_its_own_that_exists_by_then_is_left_out(tmp_path: Path) -> None:
    class Dated(Callback):
        def on_train_step_end(self, run: Any) -> None:
            if run.clock.step == 1:
                run.log({"train/x": 7.0}, step=2)
            run.log({"train/x": 1.0})

    with pytest.warns(HooklineWarning, match="logged again for step 2"):
        fit(Dated(), max_duration="4st", folder=tmp_path / "run", log_every="2st")
    found = Counter(row["step"] for row in rows(tmp_path / "run") if row["name"] == "train/x")
    assert max(found.values()) == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_loss_of_a_skipped_step_is_in_no_mean(accumulate: int, tmp_path: Path) -> None:
    """One batch of NaN that is skipped would make the whole interval NaN."""
    data = list(tiny_data(batches=4))
    data[1] = (data[1][0] * float("nan"), data[1][1])

    class Skip(Callback):
        def on_gradients_ready(self, run: Any) -> None:
            if bool(torch.isnan(next(run.model.parameters()).grad).any()):
                run.skip_step()

    fit(Skip(), train=data, max_duration="1ep", folder=tmp_path / "run", accumulate=accumulate)
    losses = {row["name"]: row["value"] for row in rows(tmp_path / "run") if row["name"].startswith("train/loss")}
    assert set(losses) == {"train/loss", "train/loss_epoch"}
    assert all(0 < value < 10 for value in losses.values())


def test_a_run_with_lbfgs_resumes(tmp_path: Path) -> None:
    def train(folder: str, **options: Any) -> Any:
        saves = Checkpointer(every="1st", keep_last=None)
        return fit(saves, optimizer=torch.optim.LBFGS, max_duration="4st", folder=tmp_path / folder, **options)

    whole = train("one")
    again = train("two", resume=tmp_path / "one" / "checkpoints" / "step-00000002")
    assert same_tensors(again.model.state_dict(), whole.model.state_dict())


def test_what_a_scope_logs_when_its_epoch_ends_is_of_that_epoch(tmp_path: Path) -> None:
    """It came with the next interval: the time of one epoch under the step of another."""

    class Timed(Callback):
        def around_epoch(self, run: Any) -> Any:
            yield
            run.log({"time/epoch": float(run.clock.epoch)})

    fit(Timed(), train=tiny_data(5), max_duration="3ep", log_every="2st", folder=tmp_path / "run")
    found = {row["step"]: row["value"] for row in rows(tmp_path / "run") if row["name"] == "time/epoch"}
    assert found == {5: 1.0, 10: 2.0, 15: 3.0}


def test_a_hook_of_both_stages_leaves_one_row_of_a_step(tmp_path: Path) -> None:
    """A table by step could not be made of two."""

    class Fetches(Callback):
        def on_batch_fetch_end(self, run: Any) -> None:
            run.log({"time/fetch": 0.1})

    with pytest.warns(HooklineWarning, match="time/fetch was logged again for step 4"):
        fit(Fetches(), val=tiny_data(2), log_every="2st", folder=tmp_path / "run")
    counts = Counter((row["name"], row["step"]) for row in rows(tmp_path / "run"))
    assert max(counts.values()) == 1
    assert counts["time/fetch", 4] == 1


@pytest.mark.parametrize("stage", ["train", "val"])
def test_a_loss_that_is_logged_and_returned_is_refused(stage: str) -> None:
    """The two would be averaged with different weights, and the sum is neither."""

    class Both(Task[Any]):
        def __init__(self) -> None:
            super().__init__()
            self.net = TinyModel()

        def configure_optimizers(self, run: Any) -> Any:
            return sgd(self.parameters())

        def train_batch(self, run: Any, batch: Any) -> Any:
            loss = CE(self.net(batch[0]), batch[1])
            if run.stage == stage:
                run.log({"loss": loss})
            return loss

        eval_batch = train_batch

    with pytest.raises(MetricError, match=rf"{stage}/loss: the loop logs the loss that is returned under this name"):
        fit(model=Both(), train=tiny_data(3), val=tiny_data(2), max_duration="1ep")


def test_a_callback_that_logs_the_loss_of_an_evaluation_again_is_named() -> None:
    class Again(Callback):
        def on_eval_batch_end(self, run: Any) -> None:
            run.log({"loss": 1.0})

    with pytest.raises(MetricError, match="val/loss") as caught:
        fit(Again(), train=tiny_data(3), val=tiny_data(2), max_duration="1ep")
    assert any("Again" in note for note in caught.value.__notes__)


def test_an_evaluation_whose_batches_return_nothing_may_log_its_loss() -> None:
    class Own(SupervisedTask):
        def eval_batch(self, run: Any, batch: Any) -> None:
            run.log({"loss": 2.0})

    task = Own(TinyModel(), CE, sgd)
    assert fit(model=task, train=tiny_data(3), val=tiny_data(2), max_duration="1ep").metrics["val/loss"] == 2.0
