"""Callbacks of Hookline do in Lightning's trainer what they do in Hookline, with bitwise the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.errors import NotAvailableError, RegistrationError
from tests.interop.test_lightning import data, in_hookline, in_lightning, module_for, same, weights
from tests.interop.test_lightning import pl as pl

pytestmark = pytest.mark.filterwarnings("ignore")


class EpochMonitor(hl.Callback):
    """What it sees of a run: events and clock, in order."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def note(self, event: str, run: hl.Run) -> None:
        self.rows.append((event, run.stage, run.clock.epoch, run.clock.step, run.clock.batch, run.clock.sample))

    def on_train_start(self, run: hl.Run) -> None:
        self.note("train_start", run)

    def on_train_epoch_start(self, run: hl.Run) -> None:
        self.note("train_epoch_start", run)

    def on_train_step_start(self, run: hl.Run) -> None:
        self.note("train_step_start", run)

    def on_gradients_ready(self, run: hl.Run) -> None:
        self.note("gradients_ready", run)
        self.rows.append(sum(float(p.grad.norm()) for p in run.model.parameters() if p.grad is not None))

    def on_optimizer_step_end(self, run: hl.Run) -> None:
        self.note("optimizer_step_end", run)

    def on_train_step_end(self, run: hl.Run) -> None:
        self.note("train_step_end", run)
        self.rows.append(float(run.loss))

    def on_train_epoch_end(self, run: hl.Run) -> None:
        self.note("train_epoch_end", run)

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
    found = [its.rows for its in callbacks if isinstance(its, EpochMonitor)]
    return found, [(its.best, its.waited) for its in callbacks if isinstance(its, hl.EarlyStopping)]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_guest_does_the_same(pl: Any, name: str, accumulate: int, tmp_path: Path) -> None:
    there, here = CASES[name](), CASES[name]()
    guest = hl.interop.to_lightning(*there)
    module, trainer = in_lightning(pl, [guest], tmp_path / "there", accumulate_grad_batches=accumulate)
    model, result = in_hookline(here, tmp_path / "here", accumulate=accumulate)
    assert result.clock.step == trainer.global_step
    assert same(weights(module), weights(model))
    (rows, stops), (own_rows, own_stops) = seen(there), seen(here)
    assert [[its for its in row if isinstance(its, tuple)] for row in rows] == [
        [its for its in row if isinstance(its, tuple)] for row in own_rows
    ]
    assert [value for row in rows for value in row if isinstance(value, float)] == pytest.approx(
        [value for row in own_rows for value in row if isinstance(value, float)]
    )
    assert [value for stop in stops for value in stop] == pytest.approx([value for stop in own_stops for value in stop])
    if "GradientClip" in name:
        assert "grad_clip/norm" in trainer.callback_metrics


def test_another_trainer_that_starts_from_scratch_is_another_run(pl: Any, tmp_path: Path) -> None:
    guests = CASES["all"]()
    guest = hl.interop.to_lightning(*guests)
    first, trainer = in_lightning(pl, [guest], tmp_path / "first")
    best = seen(guests)[1]
    second, again = in_lightning(pl, [guest], tmp_path / "second")
    assert again.global_step == trainer.global_step
    assert same(weights(second), weights(first))
    assert seen(guests)[1] == best


def test_guests_continue_after_a_resume(pl: Any, tmp_path: Path) -> None:
    def train(folder: Path, callbacks: list[Any], **options: Any) -> Any:
        module = module_for(pl)
        trainer = pl.Trainer(
            accelerator="cpu", max_epochs=4, default_root_dir=folder, logger=False, num_sanity_val_steps=0,
            enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks, limit_val_batches=2,
        )  # fmt: skip
        trainer.fit(module, data(), data(2, seed=2), **options)
        return module, trainer

    def guests() -> Any:
        return hl.interop.to_lightning(hl.EMA(0.7), hl.EarlyStopping("val/loss", min_delta=0.2, patience=3))

    whole, _ = train(tmp_path, [guests()])
    saver = pl.callbacks.ModelCheckpoint(tmp_path / "files", "{epoch}", save_top_k=-1, every_n_epochs=2)
    train(tmp_path, [guests(), saver])
    rest, _ = train(tmp_path, [guests()], ckpt_path=tmp_path / "files/epoch=1.ckpt")
    assert same(weights(rest), weights(whole))


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (hl.Checkpointer, "Checkpointer"),
        (hl.LRFinder, "LRFinder"),
        (lambda: hl.LimitBatches(train=1), r"LimitBatches calls run\.limit_batches\(\): Lightning drives this run"),
        (lambda: hl.on("forward_end")(print), "Lightning has no such event"),
    ],
)
def test_a_callback_that_needs_hookline_is_refused(pl: Any, callback: Callable[[], Any], message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        hl.interop.to_lightning(callback())


def test_the_engine_is_not_there(pl: Any, tmp_path: Path) -> None:
    for ask, name in (
        (lambda run: run.evaluate(), r"run\.evaluate"),
        (lambda run: run.loop.step(), r"run\.loop\.step"),
    ):
        callback = hl.on("train_start")(ask)
        with pytest.raises(NotAvailableError, match=rf"{name}: Lightning drives this run, and not Hookline"):
            in_lightning(pl, [hl.interop.to_lightning(callback)], tmp_path)
