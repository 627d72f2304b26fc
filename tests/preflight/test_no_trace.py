"""A run after a pre-flight is bitwise the run without it."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hookline as hl
from hookline.loop import Trainer


class Noisy(Dataset[Any]):
    """Samples with noise from a generator of their own, from global ones, and with a count."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(size)
        self.x, self.y = torch.randn(size, 4, generator=generator), torch.randint(0, 3, (size,), generator=generator)
        self.rng, self.python, self.read = np.random.default_rng(0), random.Random(0), 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read += 1
        noise = float(self.rng.normal()) + self.python.random() + torch.rand(()) + random.random()
        return self.x[index] + 0.01 * noise + 0.001 * (self.read % 7), self.y[index]


class Net(nn.Module):
    """Everything that a step changes: weights, statistics, random numbers, a buffer, plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.last = nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.calls, self.sizes, self.cache = 0, [0], {"last": 0}

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
            self.calls += 1
            self.sizes.append(len(x))
            self.cache["last"] = len(x)
        return self.last(self.drop(self.norm(self.first(x)))) + 0.01 * (self.seen + self.calls + len(self.sizes))


class Pair(hl.Task[Any]):
    """Two optimizers that the task drives itself."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Net(), Net()

    def configure_optimizers(self, run: Any) -> Any:
        return {"one": torch.optim.Adam(self.one.parameters()), "other": torch.optim.Adam(self.other.parameters())}

    def train_batch(self, run: Any, batch: Any) -> None:
        x, y = batch
        for name, net in (("one", self.one), ("other", self.other)):
            run.loop.backward(nn.functional.cross_entropy(net(x), y), run.optimizers[name])
            run.loop.step(run.optimizers[name])

    def eval_batch(self, run: Any, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self.one(batch[0]), batch[1])


class Seen(hl.Callback):
    """Keeps every batch."""

    reads = ("weights",)

    def __init__(self) -> None:
        self.batches: list[Tensor] = []

    def on_train_batch_end(self, run: Any) -> None:
        self.batches.append(run.batch[0].clone())


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"accumulate": 3},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "workers": {"workers": 2},
    "two optimizers": {"task": Pair},
    "momentum and a scheduler": {
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99),
    },
}


def trained(folder: Path, *, preflight: bool, max_duration: str = "2ep", resume: Any = None, **case: Any) -> Any:
    """Train, and return everything that may differ."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    task, workers = case.pop("task", None), case.pop("workers", 0)
    optimizer, scheduler = case.pop("optimizer", torch.optim.AdamW), case.pop("scheduler", None)
    model = Net() if task is None else task()
    given = {"loss": nn.CrossEntropyLoss(), "optimizer": optimizer, "scheduler": scheduler} if task is None else {}
    train, val, seen = Noisy(84), Noisy(20), Seen()
    trainer = Trainer(
        max_duration=max_duration,
        device="cpu",
        folder=folder,
        resume=resume,
        callbacks=[seen, hl.EMA(0.9), hl.Checkpointer(every="1ep", keep_last=None)],
        preflight=preflight,
        log_every="1st",
        **case,
    )
    loader = DataLoader(train, batch_size=8, shuffle=True, num_workers=workers)
    result = trainer.fit(model, loader, DataLoader(val, batch_size=8), **given)
    nets = [part for part in model.modules() if isinstance(part, Net)]
    return {
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "buffers": [net.seen.clone() for net in nets],
        "attributes": [(net.calls, net.sizes, net.cache) for net in nets],
        "optimizers": [optimizer.state_dict() for optimizer in trainer._loop.run.optimizers.values()],  # type: ignore[union-attr]
        "batches": seen.batches,
        "history": {name: list(series) for name, series in result.history.items() if not name.startswith("time")},
        "data": (train.read, train.rng.random(), train.python.random()) if not workers else (),
        "random": (random.random(), float(np.random.rand()), torch.rand(3)),
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
    }


def assert_same(one: Any, other: Any, path: str = "") -> None:
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, path
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for index, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{path}/{index}")
    else:
        assert one == other or one != one, path


@pytest.mark.filterwarnings("ignore:The pre-flight has found")  # Workers copy the generators of the data set.
@pytest.mark.parametrize("case", CASES)
def test_the_run_is_bitwise_the_run_without_a_preflight(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookline")
    assert_same(*(trained(tmp_path / str(on), preflight=on, **CASES[case]) for on in (False, True)))
    assert "makes no training step" not in caplog.text


def test_a_resumed_run_is_bitwise_the_run_without_a_preflight(tmp_path: Path) -> None:
    found = []
    for on in (False, True):
        folder = tmp_path / str(on)
        trained(folder, preflight=on, max_duration="1ep")
        found.append(trained(folder, preflight=on, max_duration="3ep", resume="auto"))
    assert_same(*found)
