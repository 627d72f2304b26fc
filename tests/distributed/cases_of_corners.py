"""What ranks do in ``test_corners.py``."""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import hookline as hl
from hookline.loop import Trainer
from tests.support.inside import trial_of

RANK = int(os.environ.get("RANK", "0"))
SIZE = int(os.environ.get("WORLD_SIZE", "1"))


def data(samples: int = 64, batch_size: int = 4, **options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(samples, 4, generator=generator), torch.randn(samples, 1, generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, **options)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def weights(module: nn.Module) -> list[float]:
    return [value for p in module.parameters() for value in p.detach().double().reshape(-1).tolist()]


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.05)


class Weighted(hl.Task[Any]):
    """Weights that differ much, on each rank another."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def configure_optimizers(self, run: Any) -> Any:
        return still(self.parameters())

    def train_batch(self, run: Any, batch: Any) -> dict[str, Any]:
        x, y = batch
        each = (self.net(x) - y).square().squeeze(1)
        counts = 1 + 100 * x[:, 0].square()
        return {"loss": (each * counts).sum() / counts.sum(), "weight": counts.sum()}


def still(parameters: Any) -> Any:
    """Weights do not move, so that a step that overflows leaves the next ones as they are."""
    return torch.optim.SGD(parameters, lr=0.0)


def gradients(precision: str, weighted: bool) -> dict[str, list[float]]:
    """The gradients by step; in fp16, of the steps that did not overflow."""
    found: dict[str, list[float]] = {}

    @hl.on("optimizer_step_start")
    def keep(run: Any) -> None:
        its = [value for p in run.model.parameters() for value in p.grad.double().reshape(-1).tolist()]
        found[str(run.clock.step)] = its

    options: dict[str, Any] = {"precision": precision, "max_duration": "2ep", "folder": False, "callbacks": [keep]}
    if weighted:
        Trainer(**options).fit(Weighted(), data(58, batch_size=8 // SIZE))
    else:
        Trainer(**options).fit(model(), data(58, batch_size=8 // SIZE), loss=nn.MSELoss(), optimizer=still)
    return found


def thawed() -> list[float]:
    """The first layer is frozen for an epoch of two."""
    net = model()
    callbacks = [hl.Freeze("0", until="1ep")]
    Trainer(max_duration="2ep", folder=False, callbacks=callbacks).fit(net, data(), loss=nn.MSELoss(), optimizer=sgd)
    return weights(net)


def plateau() -> list[float]:
    """The learning rate follows a metric of training that is read inside an interval."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    follows = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    scheduler = hl.Scheduler(follows, monitor="train/loss")
    trainer = Trainer(max_duration="30st", folder=False, log_every="33st", eval_every="5st")
    trainer.fit(net, data(), data(), loss=nn.MSELoss(), optimizer=optimizer, scheduler=scheduler)
    return [*weights(net), optimizer.param_groups[0]["lr"]]


def resumed_without_a_folder(folder: str) -> int:
    first = Trainer(max_duration="4st", folder=folder, callbacks=[hl.Checkpointer(every="2st")])
    first.fit(model(), data(), loss=nn.MSELoss(), optimizer=sgd)
    again = Trainer(max_duration="6st", folder=False, resume=f"{folder}/checkpoints/step-00000002")
    return again.fit(model(), data(), loss=nn.MSELoss(), optimizer=sgd).clock.step


class SlowStart(hl.Callback):
    ranks = "zero"

    def on_train_start(self, run: Any) -> None:
        time.sleep(1.2)


def evaluated_by_time() -> list[int]:
    """An evaluation is due by rank zero's time when training begins, and not by that of the others."""
    at: list[int] = []
    note = hl.on("eval_start")(lambda run: at.append(run.clock.step))
    trainer = Trainer(max_duration="10st", eval_every="1s", folder=False, callbacks=[SlowStart(), note])
    trainer.fit(model(), data(), data(), loss=nn.MSELoss(), optimizer=sgd)
    return at


def without_one(samples: list[Any]) -> Any:
    """A sample that cannot be read is left out."""
    return default_collate([s for s in samples if float(s[0][0]) < 1.5] or samples[:1])


def odd_batches() -> dict[str, Any]:
    net = model()
    loader = data(800, collate_fn=without_one)
    result = Trainer(max_duration="2ep", folder=False).fit(net, loader, loss=nn.MSELoss(), optimizer=sgd)
    return {"samples": result.clock.sample, "weights": weights(net)}


class Skips(hl.Callback):
    def __init__(self, hook: str) -> None:
        self.hook, self.count = hook, 0

    def on_train_step_start(self, run: Any) -> None:
        self._at("train_step_start", run)

    def on_backward_end(self, run: Any) -> None:
        self._at("backward_end", run)

    def _at(self, hook: str, run: Any) -> None:
        self.count += hook == self.hook
        if hook == self.hook and run.rank == 1 and self.count == 60:
            run.skip_step()


def skipped(hook: str) -> dict[str, Any]:
    net = model()
    trainer = Trainer(max_duration="100st", folder=False, callbacks=[Skips(hook)])
    result = trainer.fit(net, data(), loss=nn.MSELoss(), optimizer=sgd)
    return {"step": result.clock.step, "batch": result.clock.batch, "weights": weights(net)}


class SkipsItself(Weighted):
    """A task that gives no weights, and asks to skip once steps have become short."""

    def train_batch(self, run: Any, batch: Any) -> Tensor:  # type: ignore[override]
        if RANK == 1 and run.clock.step == 90:
            run.skip_step()
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])


def skipped_by_the_task() -> None:
    Trainer(max_duration="150st", folder=False).fit(SkipsItself(), data())


def batch_norm(samples: int) -> int:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    result = Trainer(max_duration="1ep", folder=False).fit(net, data(samples), loss=nn.MSELoss(), optimizer=sgd)
    return result.clock.sample


class LateSignal(hl.Callback):
    def __init__(self, hook: str) -> None:
        self.hook = hook

    def on_event(self, event: str, run: Any) -> None:
        if event == self.hook and run.rank == 1:
            os.kill(os.getpid(), 15)


def signalled_at_the_end(hook: str, folder: str) -> None:
    trainer = Trainer(max_duration="4st", folder=folder, callbacks=[LateSignal(hook)])
    trainer.fit(model(), data(), loss=nn.MSELoss(), optimizer=sgd)


def signalled_at_the_end_of(entry: str, hook: str) -> None:
    trainer = Trainer(folder=False, callbacks=[LateSignal(hook)])
    if entry == "predict":
        trainer.predict(model(), [torch.randn(2, 4) for _ in range(4)])
    else:
        getattr(trainer, entry)(model(), data(), loss=nn.MSELoss())


class Moved(nn.Module):
    """Notes what lies on this rank each time that it is moved to a device (``to`` of a parent comes in here)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 64)
        self.held: list[int] = []

    def _apply(self, *args: Any, **options: Any) -> Any:
        self.held.append(sum(_part(p).numel() for p in self.parameters()))
        return super()._apply(*args, **options)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x).mean(1, keepdim=True)
        return found


def _part(parameter: Any) -> Tensor:
    found: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return found


def moved(strategy: str) -> list[int]:
    net = Moved()
    Trainer(max_duration="1st", folder=False, strategy=strategy).fit(net, data(), loss=nn.MSELoss(), optimizer=sgd)
    return net.held


def given_by_rank_zero(counts: list[int]) -> bool:
    """More numbers than are sent at once, in tensors of many sizes and two kinds."""
    from hookline.distributed import Group, this_process
    from hookline.distributed import group as module

    module.BUNCH = 100
    tensors = [torch.full((count,), float(RANK)) for count in counts]
    tensors += [torch.full((count, 2), RANK) for count in counts]
    group = Group(this_process(), torch.device("cpu"), hl.DDP().timeout)
    group.broadcast(tensors)
    group.close()
    return all(bool((tensor == 0).all()) for tensor in tensors)


class Moving(Weighted):
    def configure_optimizers(self, run: Any) -> Any:
        return sgd(self.parameters())


def resumed_in_the_middle(folder: str, kind: str) -> bool:
    """Whether a run that goes on from its 20th step ends as one that was never stopped, bit by bit."""
    dtype = torch.float64 if kind == "fp64" else torch.float32
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(61, size, generator=generator, dtype=dtype) for size in (4, 1))
    options: dict[str, Any] = {"accumulate": 2 if kind == "fp64" else 1, "seed": 0}
    options["precision"] = "fp16" if kind.startswith("fp16") else "fp32"
    found = []
    for resume in (None, f"{folder}/checkpoints/step-00000020"):
        task = Moving() if kind == "fp16 weighted" else hl.SupervisedTask(model().to(dtype), nn.MSELoss(), sgd)
        place: dict[str, Any] = {"folder": folder, "callbacks": [hl.Checkpointer(every="20st")]}
        trainer = Trainer(max_duration="30st", **({"folder": False, "resume": resume} if resume else place), **options)
        trainer.fit(task, DataLoader(TensorDataset(x, y), batch_size=6))
        found.append(weights(task))
    return found[0] == found[1]


def tried(precision: str) -> list[float]:
    """How far the weights move in steps of a trial, most of which have no vote."""

    class Tries(hl.Callback):
        moved: ClassVar[list[float]] = []

        def on_train_start(self, run: Any) -> None:
            with trial_of(run) as trial:
                for batch in trial.batches(60):
                    before = weights(run.model)
                    trial.step(batch)
                    after = weights(run.model)
                    self.moved.append(sum(abs(a - b) for a, b in zip(after, before, strict=True)))

    tries = Tries()
    trainer = Trainer(max_duration="1st", folder=False, precision=precision, callbacks=[tries])  # type: ignore[arg-type]
    trainer.fit(model(), data(480, batch_size=8), loss=nn.MSELoss(), optimizer=sgd)
    return tries.moved


def averaged_statistics(strategy: str) -> dict[str, Any]:
    """``SWA`` of a model with batch norm, over data that gives one rank a batch more than another."""
    swa = hl.SWA(start="1st", every="1st")
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(4))
        net[0].bias.zero_()
    trainer = Trainer(max_duration="1ep", folder=False, strategy=strategy, callbacks=[swa], device="cpu")
    trainer.fit(net, data(20), data(20), loss=nn.MSELoss(), optimizer=still)
    return {name.split(".")[1]: its.tolist() for name, its in swa.weights.items() if name.startswith("1.running")} | {
        "batches": int(swa.weights["1.num_batches_tracked"])
    }


class WithHead(hl.Task):
    """A task whose second batch norm is used in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.BatchNorm1d(4)

    def train_batch(self, run: Any, batch: Any) -> Tensor:
        return self.head(self.body(batch[0])).pow(2).mean()  # type: ignore[no-any-return]

    def eval_batch(self, run: Any, batch: Any) -> Tensor:
        return self.body(batch[0]).mean()  # type: ignore[no-any-return]


def statistics_of_unused() -> list[float]:
    """Of a batch norm that no batch of an evaluation goes through, after ``SWA``."""
    swa, task = hl.SWA(start="1st", every="1st"), WithHead()
    trainer = Trainer(max_duration="1ep", folder=False, callbacks=[swa], device="cpu")
    trainer.fit(task, data(20), data(20), optimizer=still)
    return [*task.head.running_mean.tolist(), *task.head.running_var.tolist()]


class Walked(nn.Sequential):
    """Counts how often somebody goes through all its parts; its forward puts another buffer in the place of its own."""

    walks = 0

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        self.walks += 1
        return super().named_modules(*args, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + x.mean()
        return super().forward(x)  # type: ignore[no-any-return]


class Late(nn.Module):
    """Counts what it sees in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.detach().sum()
        return x


def walked(strategy: str, late: bool = False) -> dict[str, Any]:
    """Ten steps: how many walks there were in them, and what a buffer was at the beginning of each.

    ``late``: that of a part that a hook has put into the model.
    """
    net, seen, counts = Walked(nn.Linear(4, 8), nn.Linear(8, 1)), [], []
    net.register_buffer("mean", torch.zeros(()))
    if late:
        add = hl.on("fit_start")(lambda run: net.insert(1, Late()))
        note = hl.on("forward_start")(lambda run: seen.append(float(net[1].total)))
        trainer = Trainer(max_duration="10st", folder=False, strategy=strategy, callbacks=[add, note], device="cpu")
        trainer.fit(net, data(96), loss=nn.MSELoss(), optimizer=sgd)
        return {"seen": seen}
    note = hl.on("forward_start")(lambda run: (seen.append(float(net.mean)), counts.append(net.walks)))
    trainer = Trainer(max_duration="10st", folder=False, strategy=strategy, callbacks=[note], device="cpu")
    trainer.fit(net, data(96), loss=nn.MSELoss(), optimizer=sgd)
    return {"walks": counts[-1] - counts[2], "seen": seen}  # not in the first steps, where torch does so, too


class Words(nn.Module):
    """A table of which each batch needs a few rows."""

    def __init__(self, bag: bool) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.table = nn.EmbeddingBag(10, 4, sparse=True) if bag else nn.Embedding(10, 4, sparse=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(x[:, None]) if isinstance(self.table, nn.EmbeddingBag) else self.table(x)
        found: Tensor = self.head(rows)
        return found


def sparse(bag: bool = False, accumulate: int = 1) -> dict[str, Any]:
    """A custom loop over uneven data."""
    words = torch.randint(0, 10, (25,), generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(words, words % 3), 8 // SIZE)
    net, kinds = Words(bag), set()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with hl.Loop(net, optimizer, max_duration="2ep", accumulate=accumulate, folder=False, device="cpu") as loop:
        for x, y in loop.batches(loader):
            loop.backward(nn.functional.cross_entropy(net(x), y))
            kinds.add(net.table.weight.grad.is_sparse)
            loop.step()
    return {"step": loop.run.clock.step, "weights": weights(net), "kinds": list(kinds)}


def folder_of_a_prediction(where: str) -> str:
    """Each rank has another working directory, so the default folders differ."""
    os.makedirs(f"{where}/{RANK}")
    os.chdir(f"{where}/{RANK}")
    found: list[str] = []
    note = hl.LambdaCallback(on_predict_start=lambda run: found.append(str(run.folder)))
    Trainer(callbacks=[note]).predict(model(), data())
    return found[0]


def replaced(stage: str, only: int | None) -> dict[str, Any]:
    """A loader is replaced in the first epoch, on all ranks or on one; batches by epoch and stage, and the weights."""
    seen: list[list[Any]] = []

    def replace(run: Any) -> None:
        if run.clock.epoch == 0 and run.clock.step == 1 and only in (None, RANK):
            run.loaders[stage] = data(samples=24, batch_size=2)

    note = hl.LambdaCallback(
        on_train_step_end=replace,
        on_train_batch_start=lambda run: seen.append([run.clock.epoch, "train", len(run.batch[0])]),
        on_eval_batch_start=lambda run: seen.append([run.clock.epoch, "val", len(run.batch[0])]),
    )
    net = model()
    trainer = Trainer(max_duration="2ep", folder=False, callbacks=[note], seed=0)
    trainer.fit(net, data(), data(samples=16), loss=nn.MSELoss(), optimizer=sgd)
    return {"seen": seen, "weights": weights(net)}
