"""What ranks do in ``test_agreement.py``: runs in which one rank is given something else than the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, SequentialLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.loop import Trainer

RANK = int(os.environ.get("RANK", "0"))
ODD = RANK == 1
"""Whether this is the rank that differs."""


def data(samples: int = 32, **options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(samples, 4, generator=generator), torch.randn(samples, 1, generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=4, **options)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def weights(module: nn.Module) -> list[float]:
    return [value for p in module.parameters() for value in p.detach().double().reshape(-1).tolist()]


def groups(net: nn.Module, swap: bool) -> list[dict[str, Any]]:
    """Two parameter groups of the same size, with the parameters in another order where ``swap``."""
    first, second = list(net[0].parameters()), list(net[2].parameters())  # type: ignore[index]
    return [{"params": second if swap else first}, {"params": first if swap else second, "lr": 0.1}]


def table(net: nn.Module, folder: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """What rank 1 alone has another one of: the arguments of the trainer, and those of ``fit``."""
    sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
    parts = [{"params": list(net.parameters())}] if ODD else groups(net, swap=False)
    checkpoint = Path(folder, "checkpoints", "step-00000001" if ODD else "step-00000002")
    return {
        "max_duration": ({"max_duration": "2ep" if ODD else "1ep"}, {}),
        "extend": ({}, {"extend": "2ep" if ODD else "1ep"}),
        "eval_every": ({"eval_every": None if ODD else "1ep"}, {}),
        "log_every": ({"log_every": "2st" if ODD else "4st"}, {}),
        "precision": ({"precision": "bf16" if ODD else "fp32"}, {}),
        "accumulate": ({"accumulate": 1 + ODD}, {}),
        "seed": ({"seed": None if ODD else 1}, {}),
        "strategy arguments": ({"strategy": hl.DDP(timeout="2m", find_unused_parameters=ODD)}, {}),
        "callbacks": ({"callbacks": [hl.EarlyStopping("train/loss", patience=2 + ODD)]}, {}),
        "val": ({}, {"val": data() if ODD else None}),
        "names of val": ({}, {"val": {"a": data(), "b" if ODD else "c": data()}}),
        "test": ({}, {"test": None if ODD else data()}),
        "loss": ({}, {"loss": nn.L1Loss() if ODD else nn.MSELoss()}),
        "option of the loss": ({}, {"loss": nn.HuberLoss(delta=1.0 + ODD)}),
        "weight": ({}, {"weight": (lambda outputs, batch: 1.0) if ODD else None}),
        "resume": ({"folder": folder, "resume": "auto" if ODD else None}, {}),
        "path to resume from": ({"resume": checkpoint}, {}),
        "lr": ({}, {"optimizer": lambda parameters: adamw(parameters, lr=0.01 if ODD else 0.001)}),
        "lr as a tensor": ({}, {"optimizer": lambda its: adamw(its, lr=torch.tensor(0.5 if ODD else 0.25))}),
        "betas": ({}, {"optimizer": lambda parameters: adamw(parameters, betas=(0.9, 0.99 if ODD else 0.999))}),
        "optimizer class": ({}, {"optimizer": adamw if ODD else adam}),
        "parameter groups": ({}, {"optimizer": sgd(parts, lr=0.1)}),
        "parameters of a group": ({}, {"optimizer": sgd(groups(net, swap=ODD), lr=0.1)}),
        "scheduler": ({}, {"scheduler": (lambda optimizer: StepLR(optimizer, 2)) if ODD else None}),
        "scheduler argument": ({}, {"scheduler": two_schedulers}),
        "scheduler every": (
            {},
            {"scheduler": lambda optimizer: hl.Scheduler(StepLR(optimizer, 2), every="1ep" if ODD else "1st")},
        ),
    }


def two_schedulers(optimizer: Any) -> SequentialLR:
    parts = [StepLR(optimizer, 2), StepLR(optimizer, 3, gamma=0.5 if ODD else 0.1)]
    return SequentialLR(optimizer, parts, milestones=[4])


def differs(what: str, folder: str) -> None:
    """A fit in which rank 1 alone has another ``what``."""
    net = model()
    usual: dict[str, Any] = {"loss": nn.MSELoss(), "optimizer": torch.optim.SGD}
    if what == "path to resume from":
        Trainer(max_duration="2st", folder=folder, callbacks=[hl.Checkpointer(every="1st")]).fit(net, data(), **usual)
    options, fit = table(net, folder)[what]
    trainer = Trainer(**{"max_duration": "1ep", "folder": False, "strategy": hl.DDP(timeout="2m"), **options})
    trainer.fit(net, data(), **(usual | fit))


class OnZero(hl.Callback):
    """Rank zero's alone, as a progress bar is."""

    ranks = "zero"
    state = ("heard",)

    def __init__(self) -> None:
        self.heard = 0

    def on_train_step_start(self, run: Any) -> None:
        self.heard += 1


def may_differ(folder: str) -> dict[str, Any]:
    """Folders, workers, sinks and callbacks of rank zero, and functions, which cannot be compared."""
    net, heard = model(), OnZero()
    trainer = Trainer(
        max_duration="2ep",
        folder=folder if RANK == 0 else False,
        name="a" if RANK == 0 else None,
        sinks=[hl.sinks.CSV(), hl.sinks.TensorBoard(graph=True)] if RANK == 0 else [],
        callbacks=[heard] if RANK == 0 else [],
    )
    options: dict[str, Any] = {
        "loss": nn.MSELoss(),
        "optimizer": torch.optim.SGD,
        "scheduler": lambda optimizer: LambdaLR(optimizer, lambda step: 0.5**step),
    }
    result = trainer.fit(net, data(num_workers=RANK), data(), **options)
    return {"step": result.clock.step, "heard": heard.heard, "weights": weights(net)}


class Nudge(hl.Callback):
    """Changes the smallest bit of one weight, of those that are trained or of one that is frozen, on the last rank."""

    def __init__(self, where: str) -> None:
        self.where = where

    def on_train_step_end(self, run: Any) -> None:
        if run.rank == run.world_size - 1 and run.clock.step == 2:
            parameter = dict(run.model.named_parameters())[self.where]
            parameter.data.reshape(-1)[-1:].view(torch.int32).add_(1)


def drifts(how: str, folder: str | None = None) -> dict[str, Any]:
    """Weights drift apart after the run was opened; ``how`` says by what."""
    net, options, last = model(), {}, int(os.environ["WORLD_SIZE"]) - 1 == RANK
    net.register_parameter("fixed", nn.Parameter(torch.ones(3), requires_grad=False))
    callbacks: list[hl.Callback] = [] if folder is None else [hl.Checkpointer(every="1ep")]
    if how in ("2.bias", "fixed", "allowed"):
        callbacks.append(Nudge("2.bias" if how == "allowed" else how))
    elif how == "function":
        options["scheduler"] = lambda optimizer: LambdaLR(optimizer, lambda step: 0.25 if last and step else 0.5)
    strategy = hl.DDP(compare_parameters=how != "allowed")
    trainer = Trainer(max_duration="2ep", folder=folder or False, strategy=strategy, callbacks=callbacks)
    result = trainer.fit(net, data(), loss=nn.MSELoss(), optimizer=torch.optim.SGD, **options)
    return {"step": result.clock.step, "weights": weights(net)}


class Rich(nn.Module):
    """What could make the bits of ranks differ and must not: dropout, statistics, sparse gradients, unused parts."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4, sparse=sparse)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.sometimes = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)
        self.out = nn.Linear(4, 1, dtype=torch.float32)
        self.seen: Any
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.norm(self.embed(x[:, 0].abs().long() % 10) + x)
        self.seen += found.detach().mean(0)  # of this rank's data
        if x[0, 0] > 0:  # on some ranks only
            found = found + self.sometimes(found)
        return self.out(self.drop(found))  # type: ignore[no-any-return]


def stays(precision: str, sparse: bool) -> dict[str, Any]:
    """Ranks that do the same keep the same bits, whatever is in the model."""
    torch.manual_seed(0)
    net = Rich(sparse)
    strategy = hl.DDP(find_unused_parameters=True, broadcast_buffers=False)
    callbacks = [] if sparse else [hl.GradientClip(0.5)]
    trainer = Trainer(
        max_duration="3ep", folder=False, seed=3, precision=precision, strategy=strategy, callbacks=callbacks
    )
    optimizer = torch.optim.SGD if sparse else torch.optim.AdamW
    result = trainer.fit(net, data(58, shuffle=True), loss=nn.MSELoss(), optimizer=optimizer)
    return {"step": result.clock.step, "weights": weights(net), "seen": net.seen.tolist()}


class Counts(hl.Callback):
    """Counts the steps on the ranks that run it."""

    state = ("steps",)

    def __init__(self, ranks: list[int]) -> None:
        self.ranks, self.steps = set(ranks), 0

    def on_train_step_end(self, run: Any) -> None:
        self.steps += 1


def counted(on: list[int], steps: int, folder: str) -> int:
    """Steps that were counted up to now, in all processes before this one as well; it is saved at the end."""
    counts = Counts(on)
    trainer = Trainer(folder=folder, resume="auto", callbacks=[counts, hl.Checkpointer()])
    trainer.fit(model(), data(), loss=nn.MSELoss(), optimizer=torch.optim.SGD, extend=f"{steps}st")
    return counts.steps


class OneRankChanges(hl.Callback):
    """Changes how the run trains, on rank 1 only."""

    def __init__(self, what: str, hook: str) -> None:
        self.what, self.hook = what, hook
        self.snapshot: Any = None

    def on_fit_start(self, run: Any) -> None:
        self._maybe(run, "fit_start")

    def on_train_epoch_start(self, run: Any) -> None:
        self._maybe(run, "train_epoch_start")

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.step == 40:
            self.snapshot = run.snapshot()
        if run.clock.step == 61:
            self._maybe(run, "train_step_end")

    def _maybe(self, run: Any, hook: str) -> None:
        if run.rank == 1 and self.hook == hook:
            if self.what == "max_duration":
                run.max_duration = f"{max(run.clock.step, 1)}st"
            elif self.what == "accumulate":
                run.accumulate = 2
            elif self.what == "limit_batches":
                run.limit_batches("train", 80)
            else:
                run.roll_back(self.snapshot)


class VotesInEveryStep(hl.Callback):
    """A callback that may skip any step. Ranks that are not at the same step wait for each other after few steps."""

    def on_train_step_start(self, run: Any) -> None:
        pass


def changes_on_one_rank(what: str, hook: str, folder: str) -> None:
    callbacks: list[Any] = [VotesInEveryStep()] if what == "roll_back" else []
    callbacks += [OneRankChanges(what, hook), hl.Checkpointer("10st", background=what == "max_duration")]
    strategy = hl.DDP(timeout="2m", hang_after="2m")
    Trainer(max_duration="2ep", folder=folder, strategy=strategy, callbacks=callbacks).fit(
        model(), data(samples=4000), loss=nn.MSELoss(), optimizer=torch.optim.SGD
    )


class StopsOnOneRank(hl.Callback):
    """Asks to stop on one rank, in the step that is undone."""

    def on_train_step_end(self, run: Any) -> None:
        if ODD and run.clock.batch == 9:
            run.stop("seen too much")


class GoesBack(hl.Callback):
    """Returns to the snapshot of batch 5 in the step of batch 9, on all ranks. May ask to stop before, on one rank."""

    def __init__(self, *, stops: bool) -> None:
        self.stops = stops
        self.snapshot: Any = None

    def on_train_step_start(self, run: Any) -> None:  # Before the vote of the step.
        if self.stops and ODD and run.clock.batch == 8:
            run.stop("seen enough")

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.batch == 5:
            self.snapshot = run.snapshot()
        if run.clock.batch == 9:
            run.roll_back(self.snapshot)


def stop_of_an_undone_step(by_itself: bool) -> dict[str, Any]:
    callbacks: list[Any] = [GoesBack(stops=True)] if by_itself else [StopsOnOneRank(), GoesBack(stops=False)]
    trainer = Trainer(max_duration="12st", folder=False, strategy=hl.DDP(timeout="2m"), callbacks=callbacks)
    result = trainer.fit(model(), data(samples=256), loss=nn.MSELoss(), optimizer=torch.optim.SGD)
    return {"step": result.clock.step, "reason": result.stop_reason}


class SkipsOne(hl.Callback):
    def on_train_step_start(self, run: Any) -> None:
        if ODD and run.clock.batch == 190:
            run.skip_step()


class AddsLate(hl.Callback):
    def on_train_epoch_start(self, run: Any) -> None:
        if run.clock.epoch == 1:
            run.callbacks.add(SkipsOne())


def skips_with_a_late_callback() -> list[int]:
    trainer = Trainer(max_duration="2ep", folder=False, strategy=hl.DDP(timeout="2m"), callbacks=[AddsLate()])
    result = trainer.fit(model(), data(samples=1000), loss=nn.MSELoss(), optimizer=torch.optim.SGD)
    return [result.clock.batch, result.clock.step]
