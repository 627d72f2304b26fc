"""Buffers that are not persistent: a resume is exact although no state dict has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

import hookline as hl
from hookline.checkpoint import Store
from hookline.errors import CheckpointMismatchError
from hookline.testing import tiny_data
from tests.support import crash_at, fit, sgd

Change = Callable[["Net"], None]


class Net(nn.Module):
    """Its output depends on a buffer that no state dict has, and that each training batch changes."""

    def __init__(self, change: Change | None) -> None:
        super().__init__()
        self.change = change
        self.linear = nn.Linear(4, 3)
        self.register_buffer("memory", torch.zeros(3), persistent=False)
        self.register_buffer("late", None, persistent=False)
        self.register_buffer("table", torch.arange(4096.0), persistent=False)
        self.register_buffer("row", torch.arange(3.0).expand(2, 3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(x) + self.memory.sum() + self.row.sum()
        if self.late is not None:
            outputs = outputs * self.late
        if self.training and self.change is not None:
            self.change(self)
        return outputs + self.table[1] - 1


def in_place(net: Net) -> None:
    net.memory.mul_(0.5).add_(net.linear.bias.detach(), alpha=0.3)


def through_data(net: Net) -> None:
    net.memory.data.add_(net.linear.bias.detach(), alpha=0.3)


def another_tensor(net: Net) -> None:
    net.memory = 0.9 * net.memory + net.linear.bias.detach()


def longer(net: Net) -> None:
    net.memory = torch.cat([net.memory, 0.1 * net.linear.bias.detach()[:1]])


def made_late(net: Net) -> None:
    net.late = 1 + 0.1 * net.linear.bias.detach()[:1]


def expanded(net: Net) -> None:
    net.row = (0.1 * net.linear.bias.detach()).expand(2, 3)


CHANGES: list[Change] = [in_place, through_data, another_tensor, longer, made_late, expanded]


def train_net(
    folder: Path, change: Change | None, *callbacks: Any, seed: int = 1, kind: type[Net] = Net, **options: Any
) -> Any:
    torch.manual_seed(seed)
    saver = hl.Checkpointer(every="3st", keep_last=2)
    options = {"val": tiny_data(2), "max_duration": "3ep", "log_every": "1st", "folder": folder, **options}
    return fit(saver, *callbacks, model=kind(change), optimizer=partial(sgd, lr=0.5), **options)


def outcome(result: Any) -> dict[str, Any]:
    tensors = {**result.model.state_dict(), **dict(result.model.named_buffers())}
    return {name: value.tolist() for name, value in tensors.items()} | {"loss": result.metrics["train/loss"]}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_resumed_run_is_bitwise_the_one_that_never_stopped(change: Change, tmp_path: Path) -> None:
    whole = train_net(tmp_path / "whole", change)
    for at, seed in ((5, 1), (10, 3)):  # the second time, a resumed run is resumed
        with pytest.raises(RuntimeError, match="planted"):
            train_net(tmp_path / "left", change, crash_at(at, "train_step_start"), seed=seed, resume="auto")
    resumed = train_net(tmp_path / "left", change, seed=2, resume="auto")
    assert outcome(resumed) == outcome(whole)
    assert outcome(train_net(tmp_path / "other", None)) != outcome(whole), "the buffer counts"


@pytest.mark.parametrize("change", [in_place, None], ids=["changes", "constant"])
def test_only_what_has_changed_is_saved_and_not_among_the_weights(change: Change | None, tmp_path: Path) -> None:
    train_net(tmp_path, change)
    latest = Store(tmp_path / "checkpoints").latest()
    assert latest is not None
    with safe_open(latest.path / "model.safetensors", "pt") as weights:
        assert set(weights.keys()) == {"linear.weight", "linear.bias"}
    state = Store(tmp_path / "checkpoints").load(latest).state
    assert state is not None
    assert list(state["model"]["buffers"]) == ([] if change is None else ["model.memory"])


class Lazy(Net):
    """Registers its buffer in the first forward, as caches often are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "cache"):
            self.register_buffer("cache", torch.zeros(3), persistent=False)
        self.cache.add_(self.linear.bias.detach())
        outputs: torch.Tensor = super().forward(x) + self.cache
        return outputs


def test_a_buffer_that_is_registered_in_the_first_forward_resumes(tmp_path: Path) -> None:
    lazy: Any = {"kind": Lazy, "val": None, "resume": "auto"}
    whole = train_net(tmp_path / "whole", None, **lazy)
    with pytest.raises(RuntimeError, match="planted"):
        train_net(tmp_path / "left", None, crash_at(5, "train_step_start"), **lazy)
    assert outcome(train_net(tmp_path / "left", None, **lazy)) == outcome(whole)


def test_a_buffer_that_this_model_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        train_net(tmp_path, in_place, crash_at(5, "train_step_start"))

    class Other(Net):
        def __init__(self) -> None:
            super().__init__(None)
            memory = self.memory
            del self.memory
            self.memory = memory  # a plain attribute

    with pytest.raises(CheckpointMismatchError, match=r"buffer 'model.memory'.*persistent=False"):
        fit(model=Other(), folder=tmp_path, resume="auto", max_duration="3ep")


def test_one_that_has_changed_and_cannot_be_saved_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Sparse(Net):
        def __init__(self) -> None:
            super().__init__(None)
            self.register_buffer("edges", torch.eye(3).to_sparse(), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.edges = self.edges * 2
            return super().forward(x)

    fit(hl.Checkpointer(every="2st"), model=Sparse(), folder=tmp_path, max_duration="6st")
    said = [r.getMessage() for r in caplog.records if "'model.edges'" in r.getMessage()]
    assert len(said) == 1
    assert "resume" in said[0]


def test_a_rollback_puts_them_back_whatever_has_become_of_them() -> None:
    seen: list[Any] = []

    class Back(hl.Callback):
        def on_train_step_end(self, run: hl.Run) -> None:
            if run.clock.step == 2 and not seen:
                seen.append(run.snapshot())
                seen.append(run.model.memory.tolist())
            elif run.clock.step == 4 and len(seen) == 2:
                run.roll_back(seen[0])

        def on_rollback(self, run: hl.Run) -> None:
            seen.append(run.model.memory.tolist())

    fit(Back(), model=Net(longer), max_duration="6st")
    assert seen[1] == seen[2]
