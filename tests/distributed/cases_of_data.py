"""What ranks do in ``test_data.py`` and ``test_evaluation_data.py``: read numbered samples, and say which they saw."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler

import hookline as hl
from hookline.loop import Trainer
from tests.support import is_padding
from tests.support.inside import trial_of


class Numbered(Dataset[Any]):
    """Sample ``i`` is ``i`` and a random number. It remembers which samples were asked for."""

    def __init__(self, size: int) -> None:
        self.size, self.read = size, list[int]()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        self.read.append(index)
        return torch.tensor([float(index), torch.rand(()).item() + random.random()])


class Stream(IterableDataset[Any]):
    """Samples in an order that is drawn at random; or, if it says so, this rank's own ``sizes[rank]`` of them."""

    def __init__(self, size: int, sizes: list[int] | None = None, rank: int = 0) -> None:
        self.size, self.sizes, self.rank = size, sizes, rank
        if sizes is not None:
            self.sharded = True

    def __iter__(self) -> Iterator[Tensor]:
        if self.sizes is None:
            order = torch.randperm(self.size).tolist()
        else:
            begin = sum(self.sizes[: self.rank])
            order = list(range(begin, begin + self.sizes[self.rank]))
        for index in order:
            yield torch.tensor([float(index), torch.rand(()).item()])


class Shard(Numbered):
    """A data set that is read by index, and is this rank's own."""

    sharded = True

    def __init__(self, sizes: list[int], rank: int) -> None:
        super().__init__(sizes[rank])
        self.begin = sum(sizes[:rank])

    def __getitem__(self, index: int) -> Tensor:
        return super().__getitem__(self.begin + index)


class HiddenShares(IterableDataset[Any]):
    """Gives each rank its own share and does not say so."""

    def __iter__(self) -> Iterator[Tensor]:
        rank = torch.distributed.get_rank()
        yield from (torch.tensor([float(index), 0.0]) for index in range(rank, 40, 2))


class Stateful:
    """A loader that saves its own position."""

    def __init__(self, count: int) -> None:
        self.count, self.at = count, 0
        self.loaded: list[int] = []

    def __iter__(self) -> Iterator[Tensor]:
        start, self.at = self.at, 0
        for number in range(start, self.count):
            self.at = number + 1
            yield torch.tensor([[float(2 * number), 0.0], [float(2 * number + 1), 0.0]])
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]
        self.loaded.append(self.at)


class ByRank(Sampler[int]):
    """A sampler that draws from a generator of its own, which is seeded by the rank: no two ranks agree."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.own = random.Random(place()[0])

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.size))
        self.own.shuffle(order)
        return iter(order)


class Growing(Sampler[list[int]]):
    """A batch sampler of the user's own: batches of 1, 2, 3 … samples."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        start, count = 0, 1
        while start < self.size:
            yield list(range(start, min(start + count, self.size)))
            start, count = start + count, count + 1


class Own:
    """A loader of the user's own, without a length."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Tensor]:
        for number in range(self.batches):
            yield torch.tensor([[float(2 * number), 0.0], [float(2 * number + 1), 0.0]])


def batches_of(count: int, size: int = 2) -> list[Tensor]:
    return [torch.tensor([[float(size * b + i), 0.0] for i in range(size)]) for b in range(count)]


def make(kind: str, *, samples: int = 23, batch: int = 4, workers: int = 0, rank: int = 0, world: int = 1) -> Any:
    """A loader by its name; all have the samples 0 to samples - 1."""
    data = Numbered(samples)
    shards = [samples - samples // 3, samples // 3]
    makers: dict[str, Callable[[], Any]] = {
        "list": lambda: batches_of(samples // 2),
        "own loader": lambda: Own(samples // 2),
        "generator": lambda: iter(Own(samples // 2)),
        "stateful": lambda: Stateful(samples // 2),
        "stream": lambda: DataLoader(Stream(samples), batch_size=batch, num_workers=workers),
        "sharded": lambda: DataLoader(Stream(samples, shards, rank), batch_size=batch),
        "sharded, by index": lambda: DataLoader(Shard(shards, rank), batch_size=batch, shuffle=True),
        "hidden": lambda: DataLoader(HiddenShares(), batch_size=batch),
        "by rank": lambda: DataLoader(data, batch_size=batch, sampler=ByRank(samples)),
        "own batches": lambda: DataLoader(data, batch_sampler=Growing(samples)),
        "single": lambda: DataLoader(data, batch_size=None),
        "distributed": lambda: DataLoader(
            data, batch_size=batch, sampler=DistributedSampler(data, world, rank), num_workers=workers
        ),
        "distributed, batched": lambda: DataLoader(
            data, batch_sampler=BatchSampler(DistributedSampler(data, world, rank, shuffle=False), batch, False)
        ),
        "in order": lambda: DataLoader(data, batch_size=batch, num_workers=workers),
        "last dropped": lambda: DataLoader(data, batch_size=batch, shuffle=True, drop_last=True),
        "shuffled": lambda: DataLoader(data, batch_size=batch, shuffle=True, num_workers=workers),
    }
    return makers[kind]()


class Seeing(hl.Task[Any]):
    """Notes the samples of each batch that counts, by epoch; with dropout, so that random states matter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.seen: list[tuple[int, list[list[float]], bool]] = []
        self.evaluated: list[list[float]] = []
        self.loader_name: Any = None

    def train_batch(self, run: Any, batch: Tensor) -> Any:
        rows = [batch.tolist()] if batch.ndim == 1 else batch.tolist()
        self.seen.append((run.clock.epoch, rows, not is_padding(run)))
        return (self.model(batch / 10) ** 2).mean()

    def eval_batch(self, run: Any, batch: Tensor) -> Any:
        if not is_padding(run):
            self.evaluated.append([row[0] for row in batch.tolist()])
        run.log({"first": float(batch[0][0])}, reduce="last")
        return (batch[:, 0] * 1.0).mean() + self.model(batch).sum() * 0

    def predict_batch(self, run: Any, batch: Tensor) -> Any:
        self.model(batch)
        return {"number": batch[:, 0] * 10, "names": ["a"]} if self.loader_name == "odd" else batch[:, 0] * 10

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)


def each(name: str, given: list[dict[str, Any]]) -> list[Any]:
    """One of the cases below several times, one after another in the same processes."""
    return [globals()[name](**arguments) for arguments in given]


def place() -> tuple[int, int]:
    from hookline.distributed import this_process

    here = this_process()
    return here.rank, here.world_size


def told(task: Seeing, run: Any = None, loader: Any = None) -> dict[str, Any]:
    """What a rank has seen: the samples of each batch that counted, by epoch, and how many did not."""
    epochs: dict[str, list[list[int]]] = {}
    for epoch, rows, counts in task.seen:
        if counts:
            epochs.setdefault(str(epoch), []).append([int(row[0]) for row in rows])
    found: dict[str, Any] = {
        "epochs": epochs,
        "rows": [rows for _, rows, counts in task.seen if counts],
        "idle": sum(not counts for _, _, counts in task.seen),
        "batches": len(task.seen),
    }
    if run is not None:
        found["step"], found["sample"], found["batch"] = run.clock.step, run.clock.sample, run.clock.batch
    data = getattr(loader, "dataset", None)
    if isinstance(data, Numbered):
        found["read"] = sorted(set(data.read))
    return found


def train(kind: str, duration: str = "2ep", most: int | None = None, **made: Any) -> dict[str, Any]:
    """A fit, and which samples this rank saw."""
    rank, world = place()
    accumulate, strategy = made.pop("accumulate", 1), made.pop("strategy", "auto")
    callbacks: list[Any] = [hl.LimitBatches(train=most)] if most else []
    callbacks += [hl.OverfitBatches(1)] if made.pop("overfit", False) else []
    loader, task = make(kind, rank=rank, world=world, **made), Seeing()
    trainer = Trainer(
        max_duration=duration, folder=False, seed=3, callbacks=callbacks, accumulate=accumulate, strategy=strategy
    )
    result = trainer.fit(task, loader)
    return {**told(task, result, loader), "weights": weights(task)}


class Copies(hl.DDP):
    """As in a tensor-parallel group: all ranks have the same data."""

    def shares(self) -> tuple[int, int]:
        return 1, 0


def train_copies() -> dict[str, Any]:
    loader, task = make("shuffled"), Seeing()
    result = Trainer(max_duration="1ep", folder=False, seed=3, strategy=Copies()).fit(task, loader)
    return told(task, result, loader)


def weights(task: nn.Module) -> list[float]:
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in task.parameters()]
    return torch.cat([p.detach().flatten() for p in whole]).tolist()


def train_in(folder: str, kind: str, duration: str, **made: Any) -> dict[str, Any]:
    """The same in a folder; from the checkpoint that is there, if there is one, for ``duration`` longer."""
    rank, world = place()
    loader, task = make(kind, rank=rank, world=world, **made), Seeing()
    goes_on = Path(folder).exists()
    saves = [hl.Checkpointer(every="1st")]
    trainer = Trainer(max_duration=duration, folder=Path(folder), resume="auto", seed=3, callbacks=saves)
    result = trainer.fit(task, loader, extend=duration if goes_on else None)
    return {**told(task, result, loader), "weights": weights(task), "loaded": getattr(loader, "loaded", [])}


def second_fit(kind: str, first: str, longer: str) -> dict[str, Any]:
    """A fit that ends inside an epoch, and one after it in the same process."""
    rank, world = place()
    loader, task = make(kind, rank=rank, world=world), Seeing()
    trainer = Trainer(max_duration=first, folder=False, seed=3)
    trainer.fit(task, loader)
    result = trainer.fit(task, loader, extend=longer)
    return told(task, result, loader)


def own_loop(kind: str = "shuffled", **made: Any) -> dict[str, Any]:
    """A loop of the user's own, written for one process."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader, val = make(kind, **made), make("in order", samples=7, batch=2)
    seen, evaluated, idle = [], [], 0
    with hl.Loop(model, optimizer, max_duration="2ep", folder=False, seed=3, eval_every="1ep") as loop:
        for batch in loop.batches(loader):
            loop.backward((model(batch) ** 2).mean())
            loop.step()
            seen.append([int(row[0]) for row in batch.tolist()])
            if loop.eval_due:
                for part in loop.eval_batches(val):
                    loop.run.log({"mean": part[:, 0].mean()}, weight=len(part))
                    idle += is_padding(loop.run)
                    if not is_padding(loop.run):
                        evaluated.append([int(row[0]) for row in part.tolist()])
        mean = loop.run.metrics["val/mean"]
    return {"seen": seen, "evaluated": evaluated, "idle": idle, "mean": mean, "step": loop.run.clock.step}


class Hearing(hl.Callback):
    """Writes down which events of an evaluation come."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.batches: list[int] = []

    def on_batch_fetch_start(self, run: Any) -> None:
        self.heard += ["fetch"] if run.stage != "train" else []

    def on_batch_fetch_end(self, run: Any) -> None:
        self.heard += ["fetched"] if run.stage != "train" else []

    def on_eval_batch_start(self, run: Any) -> None:
        self.heard.append("start")

    def on_eval_batch_end(self, run: Any) -> None:
        self.heard.append("end")

    def on_eval_end(self, run: Any) -> None:
        self.batches = [run.clock.eval.batch, run.clock.eval.sample]


def evaluate(kinds: dict[str, str], strategy: Any = "auto", most: int | None = None, **made: Any) -> dict[str, Any]:
    """An evaluation over one loader or over several."""
    rank, world = place()
    task, hearing = Seeing(), Hearing()
    loaders = {name: make(kind, rank=rank, world=world, **made) for name, kind in kinds.items()}
    callbacks: list[Any] = [hearing, *([hl.LimitBatches(val=most)] if most else [])]
    trainer = Trainer(folder=False, seed=3, callbacks=callbacks, strategy=strategy)
    metrics = trainer.evaluate(task, loaders if len(loaders) > 1 else next(iter(loaders.values())))
    data = [getattr(loader, "dataset", None) for loader in loaders.values()]
    read = [sorted(set(each.read)) if isinstance(each, Numbered) else [] for each in data]
    return {
        "seen": [[int(i) for i in batch] for batch in task.evaluated],
        "heard": hearing.heard,
        "clock": hearing.batches,
        "metrics": {name: value for name, value in metrics.items() if isinstance(value, float)},
        "read": read,
    }


def left_evaluation(kind: str) -> dict[str, Any]:
    """A custom loop whose evaluation all ranks leave by ``break`` in the first batch; then they train on."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    val = make(kind, samples=40)
    with hl.Loop(model, optimizer, max_duration="1ep", folder=False, seed=3) as loop:
        for batch in loop.batches(make("list", samples=16)):
            loop.backward((model(batch) ** 2).mean())
            loop.step()
            if loop.run.clock.step == 2:
                for part in loop.eval_batches(val):
                    loop.run.log({"rows": float(len(part))}, reduce="sum")
                    break
        rows = loop.run.metrics["val/rows"]
    return {"step": loop.run.clock.step, "rows": rows}


def predict(kind: str, odd: bool = False, strategy: Any = "auto", **made: Any) -> Any:
    rank, world = place()
    task = Seeing()
    task.loader_name = "odd" if odd else None
    found = Trainer(folder=False, seed=3, strategy=strategy).predict(task, make(kind, rank=rank, world=world, **made))
    return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in found.items()} if odd else found.tolist()


def predict_pairs(samples: int) -> Any:
    """Two loaders, whose samples are numbers with ten times the number as target."""
    numbers = torch.arange(float(samples)).unsqueeze(1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(numbers, 10 * numbers), batch_size=2)
    found = Trainer(folder=False).predict(nn.Identity(), {"a": loader, "b": loader}, targets=True)
    return {name: [part.flatten().tolist() for part in pair] for name, pair in found.items()}


class Unsendable(Seeing):
    def predict_batch(self, run: Any, batch: Tensor) -> Any:
        return object()


def predict_objects() -> Any:
    return Trainer(folder=False).predict(Unsendable(), make("in order"))


def write_predictions(folder: str, kind: str, interval: Any, **made: Any) -> Any:
    """With a ``PredictionWriter``: the files, and the indices and numbers in them."""
    import csv

    rank, world = place()
    writer = hl.PredictionWriter(format="csv", interval=interval)
    trainer = Trainer(folder=Path(folder), callbacks=[writer])
    trainer.predict(Seeing(), make(kind, rank=rank, world=world, **made))
    torch.distributed.barrier()
    found = {}
    for path in sorted(Path(folder, "predictions").rglob("*.csv")):
        with path.open() as file:
            found[str(path.relative_to(Path(folder, "predictions")))] = [
                [int(row["index"]), float(row["prediction"])] for row in csv.DictReader(file)
            ]
    return found


class Asking(hl.Callback):
    """Asks for answers in the middle of training."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def on_train_epoch_end(self, run: Any) -> None:
        self.found.append([run.predict("val").tolist(), run.evaluate("val")["val/loss"]])


def answers(strategy: Any = "auto") -> Any:
    asking = Asking()
    trainer = Trainer(max_duration="2ep", folder=False, seed=3, callbacks=[asking], strategy=strategy)
    trainer.fit(Seeing(), make("shuffled"), make("in order", samples=9, batch=2))
    return asking.found


def sanity() -> Any:
    """A fit with an evaluation; the check before it reads two batches in all."""
    task, hearing = Seeing(), Hearing()
    val = make("in order", samples=20, batch=2)
    trainer = Trainer(max_duration="1st", folder=False, seed=3, callbacks=[hearing], eval_every="1ep")
    trainer.fit(task, make("shuffled"), val)
    return {"evaluated": [[int(i) for i in b] for b in task.evaluated], "heard": hearing.heard}


def plain() -> Any:
    """One process among one: nothing is joined."""
    task = Seeing()
    result = Trainer(max_duration="1ep", folder=False, seed=3).fit(task, make("shuffled"))
    return {**told(task, result), "joined": torch.distributed.is_initialized(), "world": place()[1]}


class Going(hl.Callback):
    """Takes one step back, once."""

    def __init__(self) -> None:
        self.moment: Any = None
        self.went = False

    def on_train_step_start(self, run: Any) -> None:
        if run.clock.step == 1 and self.moment is None:
            self.moment = run.snapshot()

    def on_step_settled(self, run: Any) -> None:
        if run.clock.step == 2 and not self.went:
            self.went = True
            run.roll_back(self.moment)


def rolled_back() -> Any:
    task = Seeing()
    result = Trainer(max_duration="1ep", folder=False, seed=3, callbacks=[Going()]).fit(task, make("shuffled"))
    return told(task, result)


def tried() -> Any:
    """A learning-rate finder runs trial steps on all ranks; training is what it would have been."""
    task = Seeing()

    class Trying(hl.Callback):
        def on_train_start(self, run: Any) -> None:
            with trial_of(run) as trial:
                for batch in trial.batches(4):
                    trial.step(batch)

    result = Trainer(max_duration="1ep", folder=False, seed=3, callbacks=[Trying()]).fit(task, make("shuffled"))
    tried, task.seen = task.seen[:4], task.seen[4:]
    return {
        **told(task, result),
        "tried": [[int(r[0]) for r in rows] for _, rows, _ in tried],
        "weights": weights(task),
    }


def predict_then_stop(strategy: str) -> dict[str, Any]:
    """Two predictions of a model with batch norm after the evaluation of an epoch, and then a stop."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(4, 4, generator=generator), torch.randn(4, 1, generator=generator)) for _ in range(8)]
    counts = {"evaluations": 0, "predictions": 0}

    @hl.on("epoch_end")
    def predict(run: Any) -> None:
        counts["predictions"] = len(run.predict("val")) + len(run.predict("val"))
        run.stop("enough")

    @hl.on("eval_end")
    def note(run: Any) -> None:
        counts["evaluations"] += 1

    trainer = Trainer(
        max_duration="3ep",
        folder=False,
        device="cpu",
        callbacks=[predict, note],
        strategy=(hl.DDP if strategy == "ddp" else hl.FSDP)(hang_after="8s"),
    )
    trainer.fit(net, batches, batches, loss=nn.MSELoss(), optimizer=torch.optim.SGD)
    return counts
