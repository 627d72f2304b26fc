"""Callbacks of Hookline do in Composer's trainer what they do in Hookline, with bitwise the same weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.errors import NotAvailableError, RegistrationError
from tests.interop.test_composer import Model, composer, data, in_composer, in_hookline, same, weights

pytestmark = pytest.mark.filterwarnings("ignore")


class EpochMonitor(hl.Callback):
    """What it sees of a run: events and clock, in order."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def note(self, event: str, run: hl.Run) -> None:
        clock = run.clock
        counts = (clock.epoch, clock.step, clock.batch, clock.sample, clock.step_in_epoch)
        self.rows.append((event, run.stage, *counts))

    def on_train_start(self, run: hl.Run) -> None:
        self.note("train_start", run)

    def on_train_epoch_start(self, run: hl.Run) -> None:
        self.note("train_epoch_start", run)

    def on_train_step_start(self, run: hl.Run) -> None:
        self.note("train_step_start", run)

    def on_forward_start(self, run: hl.Run) -> None:
        self.note(f"forward_start {len(run.batch[0])}", run)

    def on_forward_end(self, run: hl.Run) -> None:
        self.note(f"forward_end {tuple(run.outputs.shape)}", run)

    def on_gradients_ready(self, run: hl.Run) -> None:
        self.note(f"gradients_ready {run.optimizer_name}", run)
        self.rows.append(sum(float(p.grad.norm()) for p in run.model.parameters() if p.grad is not None))

    def on_optimizer_step_end(self, run: hl.Run) -> None:
        self.note("optimizer_step_end", run)

    def on_train_step_end(self, run: hl.Run) -> None:
        self.note("train_step_end", run)
        self.rows.append(float(run.loss))

    def on_metrics_ready(self, run: hl.Run) -> None:
        self.note("metrics_ready", run)
        self.rows.append(run.metrics["train/loss"])

    def on_train_epoch_end(self, run: hl.Run) -> None:
        self.note("train_epoch_end", run)

    def on_eval_loader_start(self, run: hl.Run) -> None:
        self.note(f"eval_loader_start {run.loader_name}", run)

    def on_eval_batch_end(self, run: hl.Run) -> None:
        self.note("eval_batch_end", run)

    def on_eval_end(self, run: hl.Run) -> None:
        self.note("eval_end", run)
        self.rows.append(torch.tensor(run.metrics["val/loss"]).item())

    def on_epoch_end(self, run: hl.Run) -> None:
        self.note("epoch_end", run)

    def on_train_end(self, run: hl.Run) -> None:
        self.note("train_end", run)

    def on_fit_end(self, run: hl.Run) -> None:
        self.note("fit_end", run)


CASES: dict[str, Callable[[], list[Any]]] = {
    "EpochMonitor": lambda: [EpochMonitor()],
    "EarlyStopping": lambda: [hl.EarlyStopping("val/loss", min_delta=0.2, patience=1)],
    "EMA": lambda: [hl.EMA(0.7), EpochMonitor()],
    "GradientClip": lambda: [hl.GradientClip(norm=0.1), EpochMonitor()],
    "all": lambda: [hl.EarlyStopping("val/loss", min_delta=0.2), hl.EMA(0.7), hl.GradientClip(0.1), EpochMonitor()],
}


def seen(callbacks: list[Any]) -> Any:
    found = [row for its in callbacks if isinstance(its, EpochMonitor) for row in its.rows]
    stops = [value for its in callbacks if isinstance(its, hl.EarlyStopping) for value in (its.best, its.waited)]
    return [row for row in found if isinstance(row, tuple)], [row for row in found if not isinstance(row, tuple)], stops


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_guest_does_the_same(name: str, accumulate: int) -> None:
    there, here = CASES[name](), CASES[name]()
    guest = hl.interop.to_composer(*there)
    module, trainer = in_composer([guest], device_train_microbatch_size=8 // accumulate)
    model, result = in_hookline(here, make=Model, train=data(size=8 // accumulate), accumulate=accumulate)
    assert result.clock.step == trainer.state.timestamp.batch.value
    assert same(weights(module), weights(model))
    (rows, values, stops), (own_rows, own_values, own_stops) = seen(there), seen(here)
    assert rows == own_rows
    assert values == pytest.approx(own_values)
    assert stops == pytest.approx(own_stops)
    if "GradientClip" in name:
        assert "grad_clip/norm" in trainer.logger.destinations[0].data


def test_another_trainer_that_starts_from_scratch_is_another_run() -> None:
    guests = CASES["all"]()
    guest = hl.interop.to_composer(*guests)
    first, trainer = in_composer([guest])
    stops = seen(guests)[2]
    second, again = in_composer([guest])
    assert again.state.timestamp.batch == trainer.state.timestamp.batch
    assert same(weights(second), weights(first))
    assert seen(guests)[2] == stops


def test_guests_continue_after_a_resume(tmp_path: Path) -> None:
    def guests() -> Any:
        return hl.interop.to_composer(hl.EMA(0.7), hl.EarlyStopping("val/loss", min_delta=0.2, patience=3))

    whole, _ = in_composer([guests()], max_duration="4ep", run_name="a")
    in_composer([guests()], max_duration="2ep", run_name="a", save_folder=str(tmp_path))
    rest, _ = in_composer([guests()], max_duration="4ep", run_name="a", load_path=str(tmp_path / "latest-rank0.pt"))
    assert same(weights(rest), weights(whole))


def test_an_evaluation_and_a_prediction_alone_reach_a_guest() -> None:
    rows: list[Any] = []
    note = [
        hl.on(event)(lambda run, event=event: rows.append((event, run.entry_point, run.clock.eval.batch)))
        for event in ("eval_start", "eval_batch_end", "eval_end", "predict_batch_end", "predict_end")
    ]
    trainer = composer.Trainer(
        model=Model(),
        callbacks=[hl.interop.to_composer(*note)],
        device="cpu",
        progress_bar=False,
        eval_dataloader=data(2, seed=2),
    )
    trainer.eval()
    trainer.predict(data(1))
    trainer.close()
    assert rows == [
        ("eval_start", "evaluate", 0),
        ("eval_batch_end", "evaluate", 1),
        ("eval_batch_end", "evaluate", 2),
        ("eval_end", "evaluate", 2),
        ("predict_batch_end", "predict", 1),
        ("predict_end", "predict", 1),
    ]


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (hl.Checkpointer, "Checkpointer"),
        (hl.LRFinder, "LRFinder"),
        (lambda: hl.LimitBatches(train=1), r"LimitBatches calls run\.limit_batches\(\): Composer drives this run"),
        (lambda: hl.on("zero_grad")(print), "Composer has no such event"),
    ],
)
def test_a_callback_that_needs_hookline_is_refused(callback: Callable[[], Any], message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        hl.interop.to_composer(callback())


def test_the_engine_is_not_there() -> None:
    for ask, name in (
        (lambda run: run.evaluate(), r"run\.evaluate"),
        (lambda run: run.loop.step(), r"run\.loop\.step"),
    ):
        callback = hl.on("train_start")(ask)
        with pytest.raises(NotAvailableError, match=rf"{name}: Composer drives this run, and not Hookline"):
            in_composer([hl.interop.to_composer(callback)])


def test_composer_must_be_imported_first() -> None:
    script = "import hookline as hl; hl.interop.to_composer(hl.EMA())"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "Composer is not imported. Import composer first." in found.stderr
