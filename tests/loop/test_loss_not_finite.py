"""A loss that is NaN or infinite: the run warns once, and its end does not look like a good one."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.records.run_file import RunFile
from hookline.report.about import status_of
from hookline.report.read import RunData
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, sgd

Data = list[tuple[torch.Tensor, torch.Tensor]]

train_logged = partial(fit, log_every="1st")


def bad_data(batch: int, value: float = float("nan")) -> Data:
    """Four batches; the loss is not finite from this one on."""
    data: Data = tiny_data(4)
    data[batch][0].fill_(value)
    return data


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of values that are not finite."""
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and "StopOnNaN" in r.getMessage()]


@pytest.mark.parametrize(
    ("train", "val", "log_every", "says"),
    [
        (2, None, "1st", "train/loss is nan at step 3"),
        (2, None, "2st", "train/loss is nan at step 4"),
        (2, 0, "1st", "train/loss is nan at step 3"),
        (None, 1, "1st", "val/loss is nan at step 4"),
        (None, 1, None, "val/loss is nan at step 4"),
    ],
)
def test_the_run_warns_once_and_names_metric_step_and_remedy(
    train: int | None, val: int | None, log_every: str | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    good: Data = tiny_data(4)
    train_logged(
        train=good if train is None else bad_data(train),
        val=good if val is None else bad_data(val),
        log_every=log_every,
    )
    (warning,) = warnings_of(caplog)
    assert warning.startswith(says)


def test_an_infinite_loss_is_one_too(caplog: pytest.LogCaptureFixture) -> None:
    class Infinite(hl.SupervisedTask):
        def train_batch(self, run: hl.Run, batch: Any) -> torch.Tensor:
            loss: torch.Tensor = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            return loss + float("inf") if run.clock.step == 1 else loss

    train_logged(model=Infinite(TinyModel(), nn.CrossEntropyLoss(), sgd), max_duration="3st")
    (warning,) = warnings_of(caplog)
    assert warning.startswith("train/loss is inf at step 2")


def test_each_of_several_optimizers_has_a_loss_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    model = TinyModel()
    optimizers = {
        "hidden": sgd(model.hidden.parameters()),
        "out": sgd(model.out.parameters()),
    }
    with hl.Loop(model, optimizers, max_duration="1ep", log_every="1st", folder=False, device="cpu") as loop:
        for x, y in loop.batches(bad_data(1)):
            for optimizer in optimizers.values():
                loop.backward(nn.functional.cross_entropy(model(x), y), optimizer)
            loop.step()
    (warning,) = warnings_of(caplog)
    assert warning.startswith("train/hidden/loss is nan at step 2")


class OwnGuard(hl.Callback):
    handles_nan = True


@pytest.mark.parametrize("guard", [hl.StopOnNaN(every="8st"), hl.SpikeGuard(), OwnGuard()], ids=repr)
def test_nothing_is_said_where_a_callback_looks_after_it(guard: Any, caplog: pytest.LogCaptureFixture) -> None:
    train_logged(guard, train=bad_data(2), val=bad_data(0))
    assert [text for text in warnings_of(caplog) if "/loss is nan" in text] == []


def test_a_metric_that_is_no_loss_may_be_nan(caplog: pytest.LogCaptureFixture) -> None:
    train_logged(hl.on("train_step_end")(lambda run: run.log({"train/auc": float("nan")})))
    assert warnings_of(caplog) == []


class Last:
    """A display that keeps what it was given last."""

    def __init__(self) -> None:
        self.note = ""

    def start(self, run: Any) -> None: ...

    def update(self, progress: Any) -> None:
        self.note = progress.note

    def close(self) -> None: ...


@pytest.mark.parametrize(("batch", "key"), [(2, "nan"), (None, "finished")])
def test_the_end_of_such_a_run_is_not_plainly_finished(batch: int | None, key: str, tmp_path: Path) -> None:
    display = Last()
    data: Data = tiny_data(4) if batch is None else bad_data(batch)
    train_logged(hl.ProgressBar(style=display), train=data, folder=tmp_path / "run")
    file = RunFile.read(tmp_path / "run")
    status = status_of(RunData(tmp_path / "run", file))
    assert (file.status, status["key"]) == ("finished", key)
    assert ("train/loss is nan" in status["reason"]) == ("train/loss is nan" in display.note) == (key == "nan")
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert ('"name":"nan"' in events.replace(" ", "")) == (key == "nan")
