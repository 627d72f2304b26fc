"""``run.roll_back``: the steps since a snapshot are taken back, their data is not read again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookline.callbacks import Checkpointer
from hookline.checkpoint import Store
from hookline.errors import ScopeError
from hookline.events import Callback
from hookline.loop import Scheduler, Trainer
from hookline.sinks import CSV, Memory
from hookline.testing import TinyModel, tiny_data


class GoBack(Callback):
    """Takes a snapshot after ``keep`` batches, and goes back to it in the step of batch ``at``, once."""

    state = ("went",)

    def __init__(self, keep: int, at: int, hook: str = "gradients_ready") -> None:
        self.keep, self.at, self.hook = keep, at, hook
        self.snapshot: Any = None
        self.went = 0

    def on_step_settled(self, run: Any) -> None:
        if run.clock.batch == self.keep:
            self.snapshot = run.snapshot()

    def on_gradients_ready(self, run: Any) -> None:
        self._maybe(run, "gradients_ready", run.clock.batch)

    def on_train_step_end(self, run: Any) -> None:
        self._maybe(run, "train_step_end", run.clock.batch)

    def _maybe(self, run: Any, hook: str, batch: int) -> None:
        if hook == self.hook and batch == self.at and not self.went:
            self.went += 1
            run.roll_back(self.snapshot)


class Counts(Callback):
    state = ("steps",)

    def __init__(self) -> None:
        self.steps = 0
        self.events: list[str] = []

    def on_train_step_end(self, run: Any) -> None:
        self.steps += 1

    def on_rollback(self, run: Any) -> None:
        self.events.append(f"rollback to {run.clock.step}")


def fit(data: list[Any], callbacks: list[Any], folder: Any = False, duration: str = "14st", **options: Any) -> Any:
    trainer = Trainer(max_duration=duration, folder=folder, seed=1, log_every="1st", callbacks=callbacks, **options)
    return trainer.fit(
        TinyModel(seed=4),
        data,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda p: torch.optim.Adam(p, lr=0.05),
        scheduler=lambda o: Scheduler(torch.optim.lr_scheduler.ExponentialLR(o, 0.9)),
    )


@pytest.mark.parametrize("hook", ["gradients_ready", "train_step_end"])
def test_it_ends_as_a_run_that_never_saw_these_batches(hook: str) -> None:
    data = tiny_data(batches=20)
    result = fit(data, [GoBack(5, 9, hook)])
    clean = fit([*data[:5], *data[9:]], [])
    assert result.clock.step == clean.clock.step == 14
    assert result.clock.batch == 14 + 4
    for name, weight in clean.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], weight), name
    assert result.history["train/loss"] == clean.history["train/loss"]
    assert result.history.steps("train/loss") == list(range(1, 15))


def test_other_callbacks_go_back_and_hear_of_it() -> None:
    counts = Counts()
    fit(tiny_data(batches=20), [counts, GoBack(5, 9)])
    assert counts.events == ["rollback to 5"]
    assert counts.steps == 14


def test_rows_are_in_files_and_sinks_once(tmp_path: Path) -> None:
    memory = Memory()
    fit(tiny_data(batches=20), [GoBack(5, 9)], tmp_path / "run", sinks=[CSV(), memory])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(Counter((row["name"], row["step"]) for row in rows).values()) == 1
    steps = [row["step"] for row in rows if row["name"] == "train/loss"]
    assert steps == list(range(1, 15))
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert len(lines) == 1 + 14, lines
    assert [row.step for row in memory.metrics("train/loss")] == list(range(1, 15))
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"rollback"' in events
    assert "by GoBack: 3 steps taken back" in events


def test_the_checkpoint_after_a_rollback_is_newer_than_those_before(tmp_path: Path) -> None:
    """Its step is lower: without a generation of its own, a resume would go on from what was taken back."""
    seen: list[tuple[int, int]] = []

    class Watch(Callback):
        def on_checkpoint_saved(self, run: Any) -> None:
            latest = Store(tmp_path / "run" / "checkpoints").latest()
            assert latest is not None
            assert latest.path == run.checkpoint
            seen.append((latest.about.generation, latest.about.step))

    callbacks = [Checkpointer(every="2st", keep_last=None), GoBack(5, 9), Watch()]
    fit(tiny_data(batches=20), callbacks, tmp_path / "run", duration="9st")
    assert seen == [(0, 2), (0, 4), (0, 6), (0, 8), (1, 6), (1, 8), (1, 9)]


def test_a_resume_after_a_rollback_is_exact(tmp_path: Path) -> None:
    data = tiny_data(batches=20)
    whole = fit(data, [Checkpointer(every="1st", keep_last=None), GoBack(5, 9)], tmp_path / "whole")
    saved = [c for c in Store(tmp_path / "whole" / "checkpoints").checkpoints() if c.about.generation == 1]
    middle = next(c.path for c in saved if c.about.step == 8)
    again = fit(data, [Checkpointer(every="1st"), GoBack(5, 9)], tmp_path / "again", resume=middle)
    assert again.clock.batch == whole.clock.batch
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weight), name
    assert again.history["train/loss"] == whole.history["train/loss"]


def test_over_the_edge_of_an_epoch_the_data_goes_on_and_steps_are_made_anew() -> None:
    data = tiny_data(batches=7)
    result = fit(data, [GoBack(5, 9)], duration="2ep")
    assert result.clock.epoch == 2
    assert result.clock.batch == 14
    assert result.clock.step == 5 + 5
    assert result.history.steps("train/loss") == list(range(1, 11))


def test_a_snapshot_inside_a_step_is_refused() -> None:
    class Inside(Callback):
        def on_gradients_ready(self, run: Any) -> None:
            run.snapshot()

    with pytest.raises(ScopeError, match="inside a step"):
        fit(tiny_data(batches=3), [Inside()], duration="1ep")
