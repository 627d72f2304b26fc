"""What ranks do in ``test_several_models.py``: own loops that train several modules, and models that differ."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from tests.support import full_tensor

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Nets(nn.Module):
    """Two models in one, which is never called itself."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.nets = nn.ModuleList([first, second])


def loader() -> DataLoader[Any]:
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(50, 6, dtype=torch.float64), torch.randint(0, 3, (50,)))
    return DataLoader(data, batch_size=8 // SIZE)


def trained(form: str, strategy: str = "auto", *, accumulate: int = 1) -> list[float]:
    """All weights after two epochs. ``beside``: the loop knows of the first model only, its optimizer of all.

    ``left over``: the optimizer also holds what nothing uses any more.
    """
    data = loader()
    torch.manual_seed(RANK)  # rank zero's weights count
    first, second = nn.Linear(6, 8).double(), nn.Linear(8, 3).double()
    scale = torch.full((1,), 0.5 + RANK, dtype=torch.float64, requires_grad=True)  # a plain tensor, as temperatures are
    models: dict[str, nn.Module] = {
        "beside": first,
        "dict": nn.ModuleDict({"first": first, "second": second}),
        "no forward": Nets(first, second),
        "left over": nn.ModuleDict({"first": first, "second": second}),
    }
    beside = [*second.parameters(), *([scale] if form in ("beside", "left over") else [])]
    optimizer = torch.optim.SGD([*first.parameters(), *beside], lr=0.1)
    options: dict[str, Any] = {"folder": False, "seed": 0, "accumulate": accumulate, "strategy": strategy}
    with hl.Loop(models[form], optimizer, max_duration="2ep", **options) as loop:
        for x, y in loop.batches(data):
            out = second(torch.tanh(first(x)))
            loop.backward(cross_entropy(out * scale if form == "beside" else out, y))
            loop.step()
    tensors = [*first.parameters(), *second.parameters()]
    return [float(number) for tensor in tensors for number in full_tensor(tensor).flatten()]


def other_on_the_last_rank(what: str, strategy: str) -> None:
    """Ranks that have made different models, or models without a size."""
    last = RANK == SIZE - 1
    width = {"wider": 12 if last else 8, "narrower": 8 if last else 12}.get(what, 8)
    model = nn.Sequential(nn.Linear(6, width), nn.LazyLinear(3))
    if what != "lazy":
        model(torch.randn(2, 6))
    if what == "buffer":
        model.register_buffer("mask", torch.ones(3 + last))
    if what == "one more" and last:
        model.append(nn.Linear(3, 3))
    if what == "frozen" and last:
        model[0].requires_grad_(False)
    data = TensorDataset(torch.randn(16, 6), torch.randint(0, 3, (16,)))
    trainer = hl.Trainer(max_duration="1ep", folder=False, strategy=strategy)
    trainer.fit(model, DataLoader(data, batch_size=4), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)


def slow_teardown(folder: str) -> list[str]:
    """Rank one is slow at the end of an evaluation; rank zero, which waits for it, gets Ctrl-C."""

    def slow(run: Any) -> None:
        if RANK:
            Path(folder, "there").touch()
            while not Path(folder, "sent").exists():
                time.sleep(0.01)

    def interrupt() -> None:
        while not Path(folder, "there").exists():
            time.sleep(0.01)
        time.sleep(0.5)  # it waits by now
        os.kill(os.getpid(), signal.SIGINT)
        Path(folder, "sent").touch()

    if not RANK:
        threading.Thread(target=interrupt).start()
    data = [(torch.randn(4, 6), torch.randint(0, 3, (4,))) for _ in range(4)]
    try:
        callbacks = [hl.LambdaCallback(on_teardown=slow)]
        hl.Trainer(callbacks=callbacks, folder=False).evaluate(nn.Linear(6, 3), data, loss=nn.CrossEntropyLoss())
        found = ""
    except BaseException as error:
        found = type(error).__name__
    return [found, *(thread.name for thread in threading.enumerate() if "watchdog" in thread.name)]
