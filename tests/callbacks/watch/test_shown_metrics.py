"""Which metrics a progress bar and the list of ``hookline watch`` show: what is decided by, and nothing old."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.report.serve_runs import Glance
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, sgd

MANY = [f"val/metric_{number}" for number in range(9)]


class Shown:
    """A display that keeps each update."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []

    def start(self, run: Any) -> None: ...

    def update(self, progress: Any) -> None:
        self.updates.append(dict(progress.metrics))

    def close(self) -> None: ...


class LogsMany(hl.Callback):
    writes = (*MANY, "fid/score")

    def on_eval_end(self, run: hl.Run) -> None:
        run.log({name: float(number) for number, name in enumerate(MANY)} | {"fid/score": 3.0})


class OnMetric(hl.Callback):
    """Of a user: it says what it reads."""

    reads = ("fid/score",)


def plateau(optimizer: Any) -> Any:
    return hl.Scheduler(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), monitor="val/metric_5")


@pytest.mark.parametrize(
    ("callbacks", "scheduler", "first"),
    [
        (lambda: [hl.EarlyStopping("val/metric_7", mode="max")], None, "val/metric_7"),
        (lambda: [hl.Checkpointer(monitor="val/metric_8", mode="max")], None, "val/metric_8"),
        (lambda: [hl.SaveBest("val/metric_6", mode="max")], None, "val/metric_6"),
        (lambda: [OnMetric()], None, "fid/score"),
        (list, plateau, "val/metric_5"),
        (list, None, None),
    ],
)
def test_a_metric_that_is_decided_by_is_shown_first(
    callbacks: Callable[[], list[Any]], scheduler: Any, first: str | None, tmp_path: Path
) -> None:
    display = Shown()
    options: Any = {"val": tiny_data(1), "scheduler": scheduler, "log_every": "1st", "folder": tmp_path}
    fit(LogsMany(), *callbacks(), hl.ProgressBar(style=display), **options)
    bar, listed = list(display.updates[-1]), list(Glance(tmp_path, "x").look().metrics)
    if first is None:
        assert bar == ["train/loss", "val/loss", "val/metric_0", "val/metric_1"]
        assert listed == ["val/loss", "val/metric_0", "val/metric_1", "val/metric_2"]
    else:
        assert bar[0] == listed[0] == first
        assert {"train/loss", "val/loss"} <= set(bar)
        assert len(listed) == 4


@pytest.mark.parametrize("log_every", ["2st", None])
def test_a_task_with_several_optimizers_shows_no_loss_that_nobody_measures(log_every: str | None) -> None:
    display, model = Shown(), TinyModel()
    optimizers = {
        "hidden": sgd(model.hidden.parameters()),
        "out": sgd(model.out.parameters()),
    }
    bar = hl.ProgressBar(style=display, every="1st")
    loop = hl.Loop(
        model, optimizers, max_duration="6st", log_every=log_every, folder=False, device="cpu", callbacks=[bar]
    )
    last: list[float] = []
    with loop:
        for x, y in loop.batches(tiny_data(6)):
            for optimizer in optimizers.values():
                loss = nn.functional.cross_entropy(model(x), y)
                loop.backward(loss, optimizer)
            last.append(loss.item())
            loop.step()
    if log_every is None:  # then it is the loss of the step that is shown, never that of an earlier one
        shown = [update["train/loss"] for update in display.updates if "train/loss" in update]
        assert len(shown) >= 6
        assert shown == pytest.approx([*last, *last[-1:] * (len(shown) - 6)])
        return
    assert list(display.updates[-1]) == ["train/hidden/loss", "train/out/loss"]
    first = next(number for number, update in enumerate(display.updates) if "train/out/loss" in update)
    assert all("train/loss" not in update for update in display.updates[first:])


def test_names_that_were_asked_for_are_shown_as_they_were() -> None:
    display = Shown()
    bar = hl.ProgressBar(("train/loss",), style=display)
    fit(hl.EarlyStopping("val/loss"), bar, val=tiny_data(1), max_duration="1ep")
    assert list(display.updates[-1]) == ["train/loss"]
