"""What ranks do in ``test_exits.py``."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.testing import tiny_data
from tests.support import full_tensor

RANK = int(os.environ.get("RANK", "0"))


@dataclass
class Body:
    """The body of a custom loop, which is left at a ``place`` of one batch.

    ``"evaluation: before forward"`` is a place in an evaluation that follows the step of this batch.
    """

    place: str
    is_leaving: bool
    late: float
    loop: Any = None
    models: nn.ModuleDict = field(default_factory=nn.ModuleDict)

    def is_left(self, x: Any, y: Any, here: str) -> bool:
        """Compute a batch. True if the body is left, ``here``."""
        loop = self.loop
        if here == "before forward":
            time.sleep(self.late)
            return True
        for name, model in self.models.items():
            loss = cross_entropy(model(x), y)
            if here == "before backward":
                return True
            optimizer = loop.run.optimizers[name] if len(self.models) > 1 else None
            loop.backward(loss, optimizer)
            if optimizer is not None:
                loop.step(optimizer)
            if here == "between optimizers":
                return True
        if here == "before step":
            return True
        if "inside a step" in here:
            self.look()
        loop.step()
        if here == "StopTraining":
            raise hl.StopTraining("enough")
        return here == "after step" or (here.startswith(("evaluation:", "prediction:")) and self.look())

    def look(self) -> bool:
        """Evaluate on two loaders, or predict. True if the training is left with it."""
        part, _, where = self.place.partition(": ")
        data, evaluates = {"a": tiny_data(12), "b": tiny_data(4)}, part.startswith("evaluation")
        loop = self.loop
        for number, (x, _) in enumerate(loop.eval_batches(data) if evaluates else loop.predict_batches(data["a"])):
            here = where if self.is_leaving and number == 2 else ""
            if here == "return":
                return True
            if here == "StopTraining":
                raise hl.StopTraining("enough")
            if here == "before forward":
                break
            for model in self.models.values():
                model(x)
            if evaluates:
                loop.run.log({"count": 1}, reduce="sum")
            if here:
                break
        return False


def train(
    place: str, by: list[int], at: int = 4, late: float = 0.0, optimizers: int = 1, **options: Any
) -> dict[str, Any]:
    """Train with a custom loop that the ranks ``by`` leave, the last of them some seconds ``late``."""
    torch.manual_seed(0)
    models = nn.ModuleDict({name: nn.Linear(4, 3) for name in ["a", "b"][:optimizers]})
    by_name = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    body = Body(place, RANK in by, late if max(by) == RANK else 0.0, models=models)
    ends: list[str] = []
    notes = [
        hl.on(event)(lambda run, event=event: ends.append(f"{event} {run.clock.step}"))
        for event in ("eval_end", "predict_end", "train_end")
    ]
    options = {"max_duration": "8st", "eval_every": None, "folder": False, "callbacks": notes, **options}
    with hl.Loop(models, by_name, **options) as body.loop:
        for number, (x, y) in enumerate(body.loop.batches(tiny_data(16))):
            here = place if number == at and (body.is_leaving or ":" in place) else ""
            # With an evaluation of its own there is no call of the loop between it and the end of the batch.
            if body.is_left(x, y, here) or (":" not in place and body.loop.eval_due):
                break
    run, digest = body.loop.run, hashlib.sha256()
    for value in models.state_dict().values():
        digest.update(full_tensor(value).numpy().tobytes())
    return {
        "ended": [run.clock.step, run.clock.sample, body.loop.result().stop_reason],
        "ends": ends,
        "count": run.history.get("val/a/count", []),
        "weights": digest.hexdigest(),
    }


def before_and_after_the_step() -> dict[str, Any]:
    """Both ranks leave in the same batch, and only rank zero has made its step."""
    return train("before step" if RANK else "after step", by=[0, 1])


def stop_and_break(how: str, folder: str) -> list[Any]:
    """All ranks leave in the same batch, and rank zero has asked for another stop just before."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    data = DataLoader(TensorDataset(torch.randn(2048, 4), torch.randint(0, 3, (2048,))), 4)
    options: dict[str, Any] = {"folder": folder, "callbacks": [hl.Checkpointer("1000st")], "device": "cpu"}
    with hl.Loop(model, torch.optim.SGD(model.parameters()), max_duration="200st", **options) as loop:
        for number, (x, y) in enumerate(loop.batches(data), 1):
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
            if number == 97:
                if RANK == 0 and how == "stop":
                    loop.run.stop("enough")
                if RANK == 0 and how == "ctrl-c":
                    signal.raise_signal(signal.SIGINT)
                if RANK == 0 and how == "StopTraining":
                    raise hl.StopTraining("enough")
                break
    return [loop.run.clock.step, loop.result().stop_reason]


def late_requests(how: str) -> list[int]:
    """Short steps, of which the body skips some or gives weights for the first time after a hundred."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    data = DataLoader(TensorDataset(torch.randn(2048, 4), torch.randint(0, 3, (2048,))), 4)
    options: dict[str, Any] = {"max_duration": "120st", "folder": False, "device": "cpu"}
    batches = 0
    with hl.Loop(model, torch.optim.SGD(model.parameters()), **options) as loop:
        for x, y in loop.batches(data):
            batches += 1
            if how == "skip" and batches in (101, 102, 103):
                loop.run.skip_step()
                continue
            weight = 2.0 if how == "weight" and batches > 100 else None
            loop.backward(nn.functional.cross_entropy(model(x), y), weight=weight)
            loop.step()
    return [batches, loop.run.clock.step]


def skip_after_own_step() -> list[Any]:
    """A callback skips a step in which the body has stepped one of two optimizers before the vote ends."""
    torch.manual_seed(0)
    both = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)})
    optimizers = {name: torch.optim.SGD(part.parameters()) for name, part in both.items()}
    data = DataLoader(TensorDataset(torch.randn(256, 4), torch.randint(0, 3, (256,))), 4)
    skip = hl.on("train_step_start", at="3st")(lambda run: run.skip_step())
    with hl.Loop(both, optimizers, max_duration="6st", folder=False, device="cpu", callbacks=[skip]) as loop:
        for x, y in loop.batches(data):
            loop.backward(nn.functional.cross_entropy(both["a"](x), y), optimizers["a"])
            loop.step(optimizers["a"])
            loop.backward(nn.functional.cross_entropy(both["b"](x), y), optimizers["b"])
            loop.step()
    return [loop.run.clock.step, dict(loop.run.clock.updates)]
