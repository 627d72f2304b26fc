"""What ranks do where trouble comes at any place: a run in which that hook or scope comes, whatever it takes."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cases_of_failures import Points, Task, Trouble, Witness, digest, in_hook, strategy_of
from places import BEFORE_STEPS, PREDICTS, SAVES
from torch import nn
from torch.utils.data import DataLoader

import hookline as hl
from hookline.loop import Trainer
from hookline.testing import TinyModel

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
QUIET = Trouble("", "", -1, 0, None)


class Brings(hl.Callback):
    """Sees to it that what is rare happens: on all ranks alike, or on rank zero where that is enough."""

    def __init__(self, place: str) -> None:
        self.place, self.snapshot, self.write, self.is_full = place, None, os.write, False

    def on_train_step_end(self, run: Any) -> None:
        step = run.clock.step
        if self.place == "on_rollback" and step == 2:
            self.snapshot = run.snapshot()
        elif self.place == "on_rollback" and step == 4 and self.snapshot is not None:
            snapshot, self.snapshot = self.snapshot, None  # once
            run.roll_back(snapshot)
        elif self.place == "on_stop" and step == 4:
            run.stop("as planned")
        elif self.place == "on_exception" and step == 3 and not RANK:
            raise ValueError("first")
        elif self.place in ("on_preempt", "on_interrupt") and step == 3 and not RANK:
            os.kill(os.getpid(), signal.SIGTERM if self.place == "on_preempt" else signal.SIGINT)

    def on_checkpoint_save(self, run: Any) -> None:
        if self.place == "on_checkpoint_failed" and run.clock.step == 4 and not RANK and not self.is_full:
            self.is_full = True  # the next save finds room again

            def write(file: int, part: Any) -> int:
                raise OSError(28, "No space left on device")

            os.write = write

    def on_checkpoint_failed(self, run: Any) -> None:
        os.write = self.write


class Skips(hl.Callback):
    """One step. Only where it is asked for: with it there is a vote in every step, and without it votes are few."""

    def on_train_step_start(self, run: Any) -> None:
        if run.clock.step == run.clock.batch == 2:
            run.skip_step()


class Fails(hl.Callback):
    """Is switched off."""

    optional = True

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.step == 3:
            raise ValueError("on all ranks")


class Shard:
    """The batches of this rank. Where ``trouble`` has come, they end once before the last of them."""

    sharded = True

    def __init__(self, trouble: Trouble) -> None:
        self.trouble, self.read, self.has_ended = trouble, 0, False
        generator = torch.Generator().manual_seed(RANK)
        self.batches = [
            (torch.randn(4, 4, generator=generator), torch.randint(3, (4,), generator=generator)) for _ in range(6)
        ]

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.batches):
            # Not at once: what the run that it goes on with had read is given again.
            if number >= 3 and self.trouble.leave and not self.has_ended:
                self.has_ended = True
                return
            self.read += 1
            yield batch


def at(
    place: str,
    action: str = "raise",
    *,
    folder: str | None,
    shape: str = "fit",
    strategy: str = "ddp",
    limits: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Trouble at a place of the last rank, in a fit, in an ``own loop``, or where each rank reads a ``shard``."""
    first = place in BEFORE_STEPS or place in PREDICTS
    action = "break" if action == "out of data" else action  # both are only noted in the hook
    trouble = Trouble(place, action, SIZE - 1, 0 if first else 2, folder)
    given: dict[str, Any] = {"max_duration": "2ep", "eval_every": "3st", "log_every": "4st", "seed": 1, "device": "cpu"}
    given.update(folder=folder or False, strategy=strategy_of(strategy, **(limits or {})))
    saves = hl.Checkpointer("2st", background=False, on_error="warn")
    if place in ("on_checkpoint_loaded", "on_checkpoint_rejected"):
        run(QUIET, [saves], {**given, "max_duration": "4st"}, shape)
        if not RANK:
            newest = Path(str(folder)) / "checkpoints" / "step-00000004"
            if place == "on_checkpoint_rejected":
                (newest / "manifest.json").write_bytes(b"?")
            else:  # that of the end, after which there is nothing to go on with
                shutil.rmtree(newest)
        dist.barrier()
        given["resume"] = "auto"
    callbacks: list[Any] = [Witness(trouble), Brings(place), *in_hook(trouble)]
    callbacks += [Skips()] if place == "on_step_skipped" else []
    callbacks += [Fails()] if place == "on_callback_disabled" else []
    callbacks += [saves] if place in SAVES else []
    try:
        found = run(trouble, callbacks, given, shape)
    except hl.Preempted as left:
        checkpoint = None if left.checkpoint is None else Path(str(left.checkpoint)).name
        found = {**told(left.result), "code": left.code, "checkpoint": checkpoint}
    return {**found, "came": not trouble.mine}


def run(trouble: Trouble, callbacks: list[Any], given: dict[str, Any], shape: str) -> dict[str, Any]:
    """The run itself."""
    torch.manual_seed(0)
    model = TinyModel()
    train: Any = DataLoader(Points(48, QUIET), 4, shuffle=True)
    val: Any = DataLoader(Points(29, QUIET), 4)
    if shape == "own loop":
        return own_loop(model, train, val, trouble, callbacks, given)
    if shape == "shard":
        train, val = Shard(trouble), Shard(trouble)
    if trouble.place in PREDICTS:
        found = Trainer(callbacks=callbacks, **given).predict(model, val)
        ended = {"code": 0, "count": len(found), "sum": sum(its.sum().item() for its in found)}
    else:
        ended = train_halving(model, train, val, callbacks, given)
    return {**ended, "read": [train.read, val.read]} if shape == "shard" else ended


def train_halving(
    model: nn.Module, train: Any, val: Any, callbacks: list[Any], given: dict[str, Any]
) -> dict[str, Any]:
    task = Task(model, nn.CrossEntropyLoss(), torch.optim.AdamW, halving)
    task.trouble = QUIET
    result = Trainer(callbacks=callbacks, **given).fit(task, train, val)
    return {**told(result), "loss": result.metrics.get("val/loss")}


def halving(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def own_loop(
    model: nn.Module, train: Any, val: Any, trouble: Trouble, callbacks: list[Any], given: dict[str, Any]
) -> dict[str, Any]:
    """With evaluations, and a prediction at one step. A rank to which ``trouble`` came leaves it in its next batch."""
    optimizer = torch.optim.AdamW(model.parameters())
    with hl.Loop(model, optimizer, scheduler=halving, callbacks=callbacks, **given) as loop:
        for x, y in loop.batches(train):
            if trouble.leave:
                break
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
            if loop.eval_due:
                for x_val, y_val in loop.eval_batches(val):
                    loop.run.log({"loss": nn.functional.cross_entropy(model(x_val), y_val)}, weight=len(y_val))
            if loop.run.clock.step == 3 and trouble.place in PREDICTS:
                for x_val, _ in loop.predict_batches(val):
                    loop.run.outputs = model(x_val)
    return told(loop.result())


def told(result: Any) -> dict[str, Any]:
    return {
        "code": 0,
        "step": result.clock.step,
        "epoch": result.clock.epoch,
        "reason": result.stop_reason,
        "interrupted": result.interrupted,
        "weights": digest(result.model),
    }


def each(places: list[str], action: str, folder: str, saves: bool = False, **options: Any) -> dict[str, Any]:
    """At one place after another, of which no error comes: how each run has ended."""
    kept = {place: str(Path(folder) / place) if saves or place in SAVES else None for place in places}
    return {place: at(place, action, folder=kept[place], **options) for place in places}
