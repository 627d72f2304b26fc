"""A trial trains, and leaves no trace of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset

from hookline.callbacks import Checkpointer, LRMonitor
from hookline.errors import SetupError
from hookline.events import Callback
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import crash_at, fit, sgd
from tests.support.inside import trial_of


class Net(nn.Module):
    """Everything that a step changes: weights, statistics, random numbers, a buffer that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(4, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.3),
            nn.Linear(8, 3),
        )
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += self.training
        return self.last(self.drop(self.norm(self.first(x))) + 0.01 * self.seen)


class Trying(Callback):
    def __init__(self, hook: str = "train_start", steps: int = 7, fails: bool = False) -> None:
        self.hook, self.steps, self.fails = hook, steps, fails
        self.losses: list[float] = []

    def on_fit_start(self, run: Any) -> None:
        if self.hook == "fit_start":
            self.try_out(run)

    def on_train_start(self, run: Any) -> None:
        if self.hook == "train_start":
            self.try_out(run)

    def try_out(self, run: Any) -> None:
        try:
            with trial_of(run) as trial:
                for batch in trial.batches(self.steps):
                    self.losses.append(float(trial.step(batch)))
                if self.fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass


def train_net(*callbacks: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 4), torch.randint(0, 3, (24,)))
    loader = DataLoader(data, batch_size=5, shuffle=True)
    optimizer, scheduler = partial(torch.optim.Adam, lr=0.05), partial(ExponentialLR, gamma=0.9)
    data_and_model = {"model": Net(), "train": loader, "val": loader, "optimizer": optimizer, "scheduler": scheduler}
    return fit(*callbacks, max_duration="3ep", seed=3, log_every="2st", **data_and_model, **options)


def outcome(result: Any) -> dict[str, Any]:
    rows = [(row.name, row.step, row.epoch, row.value) for row in result.history.rows()]
    return (
        {"rows": rows, "clock": (result.clock.step, result.clock.batch, result.clock.sample)}
        | dict(result.model.named_buffers())
        | result.model.state_dict()
    )


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"precision": "bf16"}], ids=["plain", "windows", "bf16"])
@pytest.mark.parametrize("trying", [{}, {"hook": "fit_start"}, {"fails": True}], ids=["train", "fit", "error"])
def test_training_after_a_trial_is_bitwise_what_it_would_have_been(
    trying: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    tried = Trying(**trying)
    with_trial = outcome(train_net(LRMonitor(), tried, folder=tmp_path / "with", **options))
    without = outcome(train_net(LRMonitor(), folder=tmp_path / "without", **options))
    assert len(tried.losses) == 7
    assert len(set(tried.losses)) > 1
    for name, value in without.items():
        equal = torch.equal(value, with_trial[name]) if isinstance(value, torch.Tensor) else value == with_trial[name]
        assert equal, name


def test_a_trial_really_trains() -> None:
    tried = Trying(steps=60)
    fit(tried, optimizer=partial(sgd, lr=0.5), max_duration="1st")
    assert sum(tried.losses[-4:]) < sum(tried.losses[:4])


def test_a_checkpoint_after_a_trial_resumes_as_if_there_had_been_none(tmp_path: Path) -> None:
    train_net(Trying(), Checkpointer(every="4st", keep_last=None), folder=tmp_path / "run")
    train_net(Checkpointer(every="4st", keep_last=None), folder=tmp_path / "plain")
    for folder in sorted((tmp_path / "plain" / "checkpoints").iterdir()):
        twin = tmp_path / "run" / "checkpoints" / folder.name / "model.safetensors"
        assert twin.read_bytes() == (folder / "model.safetensors").read_bytes(), folder.name


def test_a_trial_can_be_made_after_a_fit_that_failed_inside_an_epoch() -> None:
    """The second fit of a trainer continues the first, which left its epoch open."""
    model, trying = TinyModel(), Trying("fit_start")
    trainer = Trainer(max_duration="2ep", folder=False, device="cpu")
    optimizer = sgd(model.parameters())

    def train(*callbacks: Any) -> Any:
        return trainer.fit(model, tiny_data(4), loss=nn.CrossEntropyLoss(), optimizer=optimizer, callbacks=callbacks)

    with pytest.raises(RuntimeError):
        train(crash_at(2))
    result = train(trying)
    assert len(trying.losses) == 7
    assert result.clock.epoch == 2


def test_an_own_loop_has_no_task_to_try() -> None:
    with (
        Loop(TinyModel(), sgd, max_duration="1ep", folder=False) as loop,
        pytest.raises(SetupError, match="needs a task"),
        trial_of(loop.run),
    ):
        raise AssertionError("it was opened")


def test_a_loader_that_can_be_read_once_is_not_used_up_by_a_trial() -> None:
    with pytest.raises(SetupError, match="only once"):
        fit(Trying(), train=iter(tiny_data()), max_duration="2st")
