"""What ranks do in ``test_loss_weights.py``: losses that are no mean over samples, and the same by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hookline as hl
from hookline.loop import Trainer

BATCH, SAMPLES, LENGTH, CLASSES, RATE = 3, 40, 5, 4, 0.5
KINDS = ("plain", "class weights", "-100 in flat targets", "tokens", "labels of a model")


def drawn() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def loss_of(kind: str) -> nn.Module | None:
    weights = torch.tensor([0.2, 1.0, 3.0, 0.5], dtype=torch.float64) if kind == "class weights" else None
    return None if kind == "labels of a model" else nn.CrossEntropyLoss(weight=weights)


class Net(nn.Module):
    """Classes of samples or of tokens; given ``labels`` it computes the loss of the next token itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.net(x)
        if labels is None:
            return logits.movedim(-1, 1)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


class Data(Dataset[Any]):
    def __init__(self, kind: str) -> None:
        of_tokens = kind in ("tokens", "labels of a model")
        shape = (SAMPLES, LENGTH) if of_tokens else (SAMPLES,)
        self.kind = kind
        self.x = torch.randn(*shape, 4, dtype=torch.float64, generator=drawn())
        self.y = torch.randint(0, CLASSES, shape, generator=drawn())
        if kind not in ("plain", "class weights"):
            self.y[torch.rand(shape, generator=drawn()) < 0.5] = -100
        if kind == "-100 in flat targets":
            self.y[:2] = torch.tensor([-100, 1])  # in the first batch of rank zero

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: Any) -> Any:
        x, y = self.x[index], self.y[index]
        return {"x": x, "labels": y} if self.kind == "labels of a model" else (x, y)


def full_loss(kind: str, net: Net, batch: Any) -> Tensor:
    compute = loss_of(kind)
    found: Tensor = net(**batch)["loss"] if compute is None else compute(net(batch[0]), batch[1])
    return found


def train(accumulate: int = 1, strategy: str = "ddp") -> dict[str, Any]:
    found = {}
    for kind in KINDS:
        net = Net()
        trainer = Trainer(
            max_duration="1ep",
            accumulate=accumulate,
            log_every="1st",
            folder=False,
            strategy=strategy,  # type: ignore[arg-type]
        )
        data = Data(kind)
        result = trainer.fit(
            net,
            DataLoader(data, BATCH),
            DataLoader(data, BATCH),
            loss=loss_of(kind),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=RATE),
        )
        found[kind] = {
            "weights": [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()],
            "losses": result.history["train/loss"],
            "val": result.metrics["val/loss"],
        }
        found[kind]["weights"] = torch.cat([p.detach().reshape(-1) for p in found[kind]["weights"]]).tolist()
    return found


def by_hand(ranks: int, accumulate: int = 1) -> dict[str, Any]:
    """One process, no Hookline: each window at once."""
    found = {}
    for kind in KINDS:
        net, data, losses = Net(), Data(kind), []
        size = BATCH * ranks * accumulate
        for start in range(0, SAMPLES, size):
            net.zero_grad()
            loss = full_loss(kind, net, data[start : start + size])
            loss.backward()
            losses.append(loss.item())
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= RATE * parameter.grad  # type: ignore[operator]
        with torch.no_grad():
            last = full_loss(kind, net, data[:]).item()
        weights = torch.cat([p.detach().reshape(-1) for p in net.parameters()]).tolist()
        found[kind] = {"weights": weights, "losses": losses, "val": last}
    return found


def train_on_flat(late: int) -> dict[str, Any]:
    """Flat targets, with -100 from step ``late`` on, and the same by hand."""
    net, expected = Net(), Net()
    y = torch.tensor([1, 2, 3, 0, 1, 2] * late + [-100, 1, 2, -100, -100, 3] * late)
    x = torch.randn(len(y), 4, dtype=torch.float64, generator=drawn())
    data, loss, right = TensorDataset(x, y), nn.CrossEntropyLoss(), []
    result = Trainer(max_duration="1ep", log_every="1st", folder=False, device="cpu").fit(
        net, DataLoader(data, BATCH), loss=loss, optimizer=partial(torch.optim.SGD, lr=0.01)
    )
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.01)
    for inputs, targets in DataLoader(data, 2 * BATCH):
        found = loss(expected(inputs), targets)
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        right.append(found.item())
    return {
        "losses": result.history["train/loss"],
        "right": right,
        "weights": torch.cat([p.detach().reshape(-1) for p in net.parameters()]).tolist(),
        "right weights": torch.cat([p.detach().reshape(-1) for p in expected.parameters()]).tolist(),
    }


def gather() -> None:
    """A loss that waits for the other ranks; on rank zero alone it is not a mean over samples."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        dist.all_reduce(torch.zeros(1))
        weight = torch.tensor([0.2, 1.0, 3.0, 0.5] if dist.get_rank() == 0 else [1.0] * CLASSES, dtype=torch.float64)
        return functional.cross_entropy(outputs, targets, weight=weight)

    data = Data("plain")
    trainer = Trainer(max_duration="2ep", folder=False, device="cpu")
    trainer.fit(Net(), DataLoader(data, BATCH), DataLoader(data, BATCH), loss=loss, optimizer=torch.optim.SGD)


def add_up() -> None:
    """``reduction="sum"`` in several processes."""
    hl.fit(
        Net(),
        DataLoader(Data("plain"), BATCH),
        loss=nn.CrossEntropyLoss(reduction="sum"),
        optimizer=torch.optim.SGD,
        max_duration="1ep",
        folder=False,
    )
