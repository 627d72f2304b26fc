"""A signal leaves an evaluation, and the resume makes it up: every row is there, and none twice."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookline.callbacks import ImageSamples, LRMonitor, MemoryMonitor, TimeRemaining
from hookline.errors import Preempted
from hookline.events import Callback
from hookline.testing import tiny_data
from tests.support import fit, json_lines, press_ctrl_c


class Texts(Callback):
    def on_eval_batch_end(self, run: Any) -> None:
        if run.clock.eval.batch == 1:
            run.log_text("note", f"step {run.clock.step}")


class Leave(Callback):
    """Sends a signal once, in an evaluation."""

    def __init__(self, step: int, event: str) -> None:
        self.step, self.event = step, event

    def on_event(self, event: str, run: Any) -> None:
        if event == self.event and run.clock.step == self.step:
            signal.raise_signal(signal.SIGTERM)


def train_monitored(folder: Path, *callbacks: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    data = [(torch.rand(4, 1, 5, 5), torch.randint(0, 3, (4,))) for _ in range(4)]
    monitors = [ImageSamples(), LRMonitor(), MemoryMonitor(), TimeRemaining(), Texts()]
    model = nn.Sequential(nn.Flatten(), nn.Linear(25, 3))
    return fit(
        *monitors, *callbacks, model=model, train=data, val=data[:3], max_duration="3ep", folder=folder, **options
    )


def written(folder: Path) -> list[tuple[str, int]]:
    found = json_lines(folder / "metrics.jsonl")
    # What is left is not known before this process has made a step.
    return sorted((row["name"], row["step"]) for row in found if row["name"] != "time/remaining")


def test_a_signal_at_the_very_end_of_a_wait_for_data_leaves_the_evaluation(tmp_path: Path) -> None:
    """The batch is there, and the run has not noted yet that it waits no more."""

    def at_the_end_of_the_wait(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_name == "wait" and frame.f_locals.get("leave") is False:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGTERM)

    class Watch(Callback):
        def on_eval_start(self, run: Any) -> None:
            if run.clock.step == 8:
                sys.setprofile(at_the_end_of_the_wait)

    with pytest.raises(Preempted) as caught:
        train_monitored(tmp_path / "left", Watch())
    assert caught.value.checkpoint == tmp_path / "left" / "checkpoints" / "step-00000008"


@pytest.mark.parametrize("log_every", ["1st", "3st", None])
@pytest.mark.parametrize("event", ["eval_start", "eval_batch_end", "train_epoch_end"])
def test_each_row_is_there_once(event: str, log_every: str | None, tmp_path: Path) -> None:
    train_monitored(tmp_path / "straight", log_every=log_every)
    with pytest.raises(Preempted):
        train_monitored(tmp_path / "left", Leave(8, event), log_every=log_every)
    train_monitored(tmp_path / "left", log_every=log_every, resume="auto")
    expected = written(tmp_path / "straight")
    assert ("val/samples", 8) in expected
    assert ("val/note", 8) in expected
    assert ("lr/SGD", 8) in expected
    assert written(tmp_path / "left") == expected
    pictures = sorted(path.name for path in (tmp_path / "left" / "media").rglob("*.png"))
    assert pictures == sorted(path.name for path in (tmp_path / "straight" / "media").rglob("*.png"))


def test_ctrl_c_does_not_cut_an_answer_in_fit_start_short() -> None:
    """It passed for the sanity check: the hook got no metrics, and so did every later hook that asked."""
    answers = []
    data = tiny_data(3)

    class Interrupting(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            for number, batch in enumerate(super().__iter__()):
                if number == 1 and not answers:
                    press_ctrl_c()
                yield batch

    class Asks(Callback):
        def on_fit_start(self, run: Any) -> None:
            answers.append(run.evaluate(Interrupting(data)))
            answers.append(run.evaluate(data))

    result = fit(Asks(), val=data, max_duration="2ep")
    assert result.interrupted
    assert answers[0] == answers[1]
    assert "val/loss" in answers[0]
