"""Callbacks of Hookline do in the trainer of transformers what they do in Hookline, with bitwise the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: `make interop` runs these tests")

import hookline as hl
from hookline.errors import NotAvailableError, RegistrationError, SetupError
from tests.interop.test_transformers import (
    Config,
    InOrder,
    Net,
    arguments,
    in_hookline,
    in_transformers,
    optimizer_of,
    same,
    samples,
    scheduler_of,
    weights,
)

pytestmark = pytest.mark.filterwarnings("ignore")

EVENTS = (
    *("train_start", "train_epoch_start", "train_step_start", "train_batch_start", "train_batch_end"),
    *("gradients_ready", "optimizer_step_start", "optimizer_step_end", "train_step_end", "metrics_ready"),
    *("train_epoch_end", "eval_start", "eval_batch_end", "eval_end", "epoch_end", "stop", "train_end", "fit_end"),
)


class EpochMonitor(hl.Callback):
    """It notes the events in their order, with the clock, and the norms of gradients and metrics."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.values: list[float] = []

    def on_event(self, event: str, run: hl.Run) -> None:
        clock = run.clock
        if event in EVENTS:
            self.rows.append((event, run.stage, clock.epoch, clock.step, clock.batch, clock.sample))
        if event == "gradients_ready":
            self.values.append(sum(float(p.grad.norm()) for p in run.model.parameters() if p.grad is not None))
        if event == "metrics_ready":
            self.values.append(run.metrics["train/loss"])
        if event == "eval_end":
            self.values += [run.metrics["val/loss"], clock.eval.batch]


CASES: dict[str, Callable[[], list[Any]]] = {
    "EpochMonitor": lambda: [EpochMonitor()],
    "EarlyStopping": lambda: [hl.EarlyStopping("val/loss", min_delta=0.1, patience=1), EpochMonitor()],
    "EMA": lambda: [hl.EMA(0.7), EpochMonitor()],
    "GradientClip": lambda: [hl.GradientClip(0.1), EpochMonitor()],
    "an evaluation": lambda: [hl.on("train_step_end", at="5st")(lambda run: run.request_eval()), EpochMonitor()],
    "all": lambda: [hl.EarlyStopping("val/loss", min_delta=0.1), hl.EMA(0.7), hl.GradientClip(0.1), EpochMonitor()],
}
LONG = {"num_train_epochs": 6}, {"max_duration": "6ep"}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_guest_does_the_same(name: str, accumulate: int, tmp_path: Path) -> None:
    there, here = CASES[name](), CASES[name]()
    guest = hl.interop.to_transformers(*there)
    trainer = in_transformers([guest], tmp_path / "there", gradient_accumulation_steps=accumulate, **LONG[0])
    model, result = in_hookline(here, tmp_path / "here", accumulate=accumulate, **LONG[1])
    assert result.clock.step == trainer.state.global_step
    assert same(weights(trainer.model), weights(model))
    assert there[-1].rows == here[-1].rows
    assert there[-1].values == pytest.approx(here[-1].values)
    if "GradientClip" in name:
        assert "grad_clip/norm" in trainer.state.log_history[1]


def test_a_stop_in_an_epoch_ends_training_after_the_step(tmp_path: Path) -> None:
    """In transformers the evaluation follows the end of the epoch, which it precedes in Hookline."""
    stop = hl.on("train_step_end", at="6st")(lambda run: run.stop("now"))
    there, here = EpochMonitor(), EpochMonitor()
    trainer = in_transformers([hl.interop.to_transformers(stop, there)], tmp_path / "there")
    model, _ = in_hookline([stop, here], tmp_path / "here")
    assert there.rows[-1] == here.rows[-1] == ("fit_end", "train", 1, 6, 6, 48)
    assert sorted(row[0] for row in there.rows) == sorted(row[0] for row in here.rows)
    assert same(weights(trainer.model), weights(model))


def test_another_trainer_that_starts_from_scratch_is_another_run(tmp_path: Path) -> None:
    guests = CASES["EMA"]()
    guest = hl.interop.to_transformers(*guests)
    first, second = (in_transformers([guest], tmp_path / name) for name in ("first", "second"))
    assert same(weights(second.model), weights(first.model))
    rows = guests[-1].rows
    assert rows[len(rows) // 2 :] == rows[: len(rows) // 2]


def test_guests_continue_after_a_resume(tmp_path: Path) -> None:
    def guests() -> list[Any]:
        return [hl.EMA(0.7), hl.EarlyStopping("val/loss", min_delta=0.1, patience=2), EpochMonitor()]

    def train(callbacks: list[Any], folder: Path, **options: Any) -> Any:
        model = Net(Config())
        optimizer = optimizer_of(model)
        trainer = InOrder(
            model,
            arguments(folder, num_train_epochs=6, save_strategy="steps", save_steps=6),
            train_dataset=samples(),
            eval_dataset=samples(2, seed=2),
            callbacks=[hl.interop.to_transformers(*callbacks)],
            optimizers=(optimizer, scheduler_of(optimizer)),
        )
        trainer.train(**options)
        return trainer

    whole, rest = guests(), guests()
    expected = train(whole, tmp_path)
    found = train(rest, tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert same(weights(found.model), weights(expected.model))
    assert (rest[1].best, rest[1].waited) == (whole[1].best, whole[1].waited)
    assert rest[2].rows[-6:] == whole[2].rows[-6:]


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (hl.Checkpointer, "Checkpointer"),
        (hl.LRFinder, "LRFinder"),
        (lambda: hl.LimitBatches(train=1), r"LimitBatches\.on_eval_loader_start: transformers has no such event"),
        (lambda: hl.on("loss_ready")(print), "transformers has no such event"),
    ],
)
def test_a_callback_that_needs_hookline_is_refused(callback: Callable[[], Any], message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        hl.interop.to_transformers(callback())


@pytest.mark.parametrize(
    ("ask", "name"), [(lambda run: run.evaluate(), r"run\.evaluate"), (lambda run: run.loop.step(), r"run\.loop\.step")]
)
def test_the_engine_is_not_there(ask: Callable[[Any], Any], name: str, tmp_path: Path) -> None:
    with pytest.raises(NotAvailableError, match=rf"{name}: transformers drives this run, and not Hookline"):
        in_transformers([hl.interop.to_transformers(hl.on("train_start")(ask))], tmp_path)


def test_an_evaluation_that_was_not_announced_is_an_error_if_weights_are_swapped(tmp_path: Path) -> None:
    trainer = in_transformers([hl.interop.to_transformers(hl.EMA(0.7))], tmp_path / "ema")
    with pytest.raises(SetupError, match=r"callbacks such as hl\.EMA could not swap the weights"):
        trainer.evaluate()
    trainer = in_transformers([hl.interop.to_transformers(EpochMonitor())], tmp_path / "plain")
    assert "eval_loss" in trainer.evaluate()
