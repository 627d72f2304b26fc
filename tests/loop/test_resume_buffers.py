"""Buffers that are not persistent: a resume is exact although no state dict has them."""

from __future__ import annotations

from collections.abc import Callable
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


def fit(folder: Path, change: Change | None, *callbacks: Any, seed: int = 1, **options: Any) -> Any:
    torch.manual_seed(seed)
    trainer = hl.Trainer(max_duration="3ep", folder=folder, device="cpu", log_every="1st", **options)
    return trainer.fit(
        Net(change),
        tiny_data(4),
        tiny_data(2),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
        callbacks=[hl.Checkpointer(every="3st", keep_last=2), *callbacks],
    )


def crash(at: int) -> Any:
    @hl.on("train_step_start")
    def raise_there(run: hl.Run) -> None:
        if run.clock.step == at:
            raise RuntimeError("planted")

    return raise_there


def outcome(result: Any) -> dict[str, Any]:
    tensors = {**result.model.state_dict(), **dict(result.model.named_buffers())}
    return {name: value.tolist() for name, value in tensors.items()} | {"loss": result.metrics["train/loss"]}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_resumed_run_is_bitwise_the_one_that_never_stopped(change: Change, tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", change)
    for at, seed in ((5, 1), (10, 3)):  # the second time, a resumed run is resumed
        with pytest.raises(RuntimeError, match="planted"):
            fit(tmp_path / "left", change, crash(at), seed=seed, resume="auto")
    resumed = fit(tmp_path / "left", change, seed=2, resume="auto")
    assert outcome(resumed) == outcome(whole)
    assert outcome(fit(tmp_path / "other", None)) != outcome(whole), "the buffer counts"


@pytest.mark.parametrize("change", [in_place, None], ids=["changes", "constant"])
def test_only_what_has_changed_is_saved_and_not_among_the_weights(change: Change | None, tmp_path: Path) -> None:
    fit(tmp_path, change)
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
    def lazy(folder: Path, *callbacks: Any) -> Any:
        torch.manual_seed(1)
        trainer = hl.Trainer(max_duration="3ep", folder=folder, device="cpu", log_every="1st", resume="auto")
        given = {"loss": nn.CrossEntropyLoss(), "optimizer": lambda p: torch.optim.SGD(p, lr=0.5)}
        return trainer.fit(Lazy(None), tiny_data(4), **given, callbacks=[hl.Checkpointer(every="3st"), *callbacks])

    whole = lazy(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="planted"):
        lazy(tmp_path / "left", crash(5))
    assert outcome(lazy(tmp_path / "left")) == outcome(whole)


def test_a_buffer_that_this_model_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        fit(tmp_path, in_place, crash(5))

    class Other(Net):
        def __init__(self) -> None:
            super().__init__(None)
            memory = self.memory
            del self.memory
            self.memory = memory  # a plain attribute

    trainer = hl.Trainer(max_duration="3ep", folder=tmp_path, resume="auto", device="cpu")
    with pytest.raises(CheckpointMismatchError, match=r"buffer 'model.memory'.*persistent=False"):
        trainer.fit(Other(), tiny_data(4), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)


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

    trainer = hl.Trainer(max_duration="6st", folder=tmp_path, device="cpu", callbacks=[hl.Checkpointer(every="2st")])
    trainer.fit(Sparse(), tiny_data(4), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
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

    trainer = hl.Trainer(max_duration="6st", folder=False, device="cpu", callbacks=[Back()])
    trainer.fit(Net(longer), tiny_data(4), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    assert seen[1] == seen[2]
