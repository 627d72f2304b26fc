"""What ranks do in ``test_endings.py``."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hookline as hl
from hookline.distributed import Group
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data

RANK = int(os.environ.get("RANK", "0"))
WORDS = "could not read shard 7: Connection reset by peer"


class Remote(Dataset[Any]):
    """Its own connection is lost on rank one."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        if RANK == 1 and index > 20:
            raise RuntimeError(WORDS)
        return torch.ones(4), torch.tensor(1)


def own_connection(where: str) -> None:
    """An error of the user's on rank one that says what gloo says of a rank that is gone."""

    class Task(hl.SupervisedTask):
        def train_batch(self, run: Any, batch: Any) -> Any:
            if where == "task" and RANK == 1 and run.clock.step == 3:
                raise RuntimeError(WORDS)
            return super().train_batch(run, batch)

    data: Any = tiny_data(16) if where == "task" else DataLoader(Remote(), 4, num_workers=where == "worker")
    task = Task(TinyModel(), nn.CrossEntropyLoss(), torch.optim.SGD)
    Trainer(max_duration="1ep", folder=False).fit(task, data)


def interrupted_in_an_exchange() -> dict[str, Any]:
    """Ctrl-C on rank one, while the ranks tell one another who has asked for a step to be skipped."""
    real = Group.exchange
    done: list[bool] = []

    def exchange(self: Group, value: Any) -> list[Any]:
        found = real(self, value)
        if RANK == 1 and not done and isinstance(value, dict) and "skip" in value:
            done.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return found

    def skip(run: Any) -> None:
        if RANK == 0 and run.clock.step == 5 and not done:
            done.append(True)
            run.skip_step()

    Group.exchange = exchange  # type: ignore[method-assign]
    trainer = Trainer(max_duration="200st", folder=False, callbacks=[hl.LambdaCallback(on_loss_ready=skip)])
    result = trainer.fit(TinyModel(), tiny_data(16), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    return {"reason": result.stop_reason, "step": result.clock.step}


def failed_in_their_group() -> dict[str, Any]:
    """The process group is the user's; rank one fails before a backward in which the other waits for it."""
    dist.init_process_group("gloo")
    ended = []

    class Task(hl.SupervisedTask):
        def train_batch(self, run: Any, batch: Any) -> Any:
            if RANK == 1 and run.clock.step == 3:
                raise ValueError("mine")
            return super().train_batch(run, batch)

        def on_teardown(self, run: Any) -> None:
            ended.append("teardown")

    data = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(3, (64,))), 4)
    try:
        task = Task(TinyModel(), nn.CrossEntropyLoss(), torch.optim.SGD)
        Trainer(max_duration="1ep", folder=False).fit(task, data)
    except (ValueError, hl.errors.RankError) as error:
        ended.append(type(error).__name__)
    dist.barrier()  # their group is whole
    dist.destroy_process_group()
    return {"ended": ended}
