"""What ranks do in ``test_slow_rank_monitor.py``."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

import hookline as hl
from hookline.loop import SupervisedTask, Trainer
from hookline.testing import TinyModel, tiny_data

NAP = 0.4
"""Seconds: many times what a step of this model takes, also on a busy machine."""


class SlowData(torch.utils.data.Dataset[Any]):
    """Each sample takes its time on one rank."""

    def __init__(self, slow: bool) -> None:
        self.slow = slow
        self.samples = [(x, y) for xs, ys in tiny_data(batches=16, batch_size=4) for x, y in zip(xs, ys, strict=True)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        if self.slow:
            time.sleep(NAP / 4)
        return self.samples[index]


class SlowTask(SupervisedTask):
    """Its forward takes its time on one rank."""

    def train_batch(self, run: hl.Run, batch: Any) -> Any:
        if run.rank == 1:
            time.sleep(NAP)
        return super().train_batch(run, batch)


class Breaks(hl.SlowRankMonitor):
    """A monitor that fails on one rank, in the middle of the run."""

    def on_metrics_ready(self, run: hl.Run) -> None:
        if run.rank == 1 and run.clock.step == 4:
            raise ValueError("planted")
        super().on_metrics_ready(run)


def train(*, where: str, strategy: str = "ddp", breaks: bool = False) -> dict[str, Any]:
    """Eight steps, of which two are an interval."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else hl.distributed.this_process().rank
    kind = Breaks if breaks else hl.SlowRankMonitor
    task = (SlowTask if where == "forward" else SupervisedTask)(TinyModel(), nn.CrossEntropyLoss(), torch.optim.SGD)
    loader = torch.utils.data.DataLoader(SlowData(where == "data" and rank == 1), batch_size=4)
    trainer = Trainer(
        max_duration="8st", log_every="2st", folder=False, strategy=strategy, callbacks=[kind(factor=1.5, patience=2)]
    )
    result = trainer.fit(task, loader)
    names = ("ranks/slowest", "ranks/slowdown", "ranks/waiting", "ranks/work")
    return {
        "step": result.clock.step,
        "failures": [str(failure) for failure in result.failures],
        **{name: result.history.get(name, []) for name in names},
        "steps": result.history.steps("ranks/slowest") if "ranks/slowest" in result.history else [],
    }
