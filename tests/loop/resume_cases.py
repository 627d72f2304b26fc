"""The cases of the resume matrix: how they are chosen, what a run of one is made of, and what is seen of it."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

import hookline as hl
from hookline.checkpoint import About, Snapshot
from hookline.checkpoint.compare import compare
from tests.support import json_lines
from tests.support.inside import weights_and_state

# -- which cases there are -----------------------------------------------------------------------

AXES: dict[str, tuple[Any, ...]] = {
    "where": ("mid-epoch", "before the edge", "edge", "evaluation", "last step", "window", "early stop"),
    "workers": ((0, 0), (2, 2), (2, 0), (0, 2), (0, 3)),
    "scheduler": ("step", "epoch", "plateau", None),
    "how": ("raise", "SIGTERM", "path"),
    "precision": ("fp32", "bf16", "fp16"),
    "order": ("shuffle", "as it is", "weighted"),
    "way": ("Trainer", "fit", "Loop"),
    "optimizer": ("AdamW", "SGD", "two"),
    "accumulate": (1, 4),
    "ema": (False, True),
    "dropout": (False, True),
    "augment": (False, True),
    "eval_every": ("1ep", "2st"),
    "save_every": ("1st", "3st"),
}
Case = dict[str, Any]
COUNT = 60


def possible(case: Case) -> bool:
    """Only a step of several batches has a window to be inside of."""
    return case.get("where") != "window" or case.get("accumulate") != 1


def choose(count: int = COUNT) -> list[Case]:
    """Every pair of values of two axes is in one of the cases; what is left of the count is drawn. Always the same.

    Greedy: a case begins with a pair that is missing, and each other axis, in a drawn order, takes the value that
    makes most of the pairs that are missing.
    """
    draw = random.Random(0)
    names = list(AXES)
    values = [(name, value) for name in names for value in AXES[name]]
    missing = [
        (one, other) for one, other in combinations(values, 2) if one[0] != other[0] and possible(dict((one, other)))
    ]
    wanted = dict.fromkeys(missing)  # in order, unlike a set
    chosen: list[Case] = []
    while wanted or len(chosen) < count:
        case: Case = dict(next(iter(wanted), ()))
        for name in draw.sample(names, len(names)):
            if name in case:
                continue
            fitting = [value for value in AXES[name] if possible({**case, name: value})]
            draw.shuffle(fitting)
            case[name] = max(fitting, key=lambda value: len(_pairs({**case, name: value}) & wanted.keys()))
        chosen.append({name: case[name] for name in names})
        for pair in _pairs(chosen[-1]):
            wanted.pop(pair, None)
    return chosen


def _pairs(case: Case) -> set[Any]:
    return set(combinations([(name, case[name]) for name in AXES if name in case], 2))


def name_of(case: Case) -> str:
    """All that is not the first value of its axis."""
    words = [case["where"], case["how"], case["way"], "{} to {} workers".format(*case["workers"])]
    words += [str(case[name]) for name in ("scheduler", "precision", "order", "optimizer", "eval_every", "save_every")]
    words += [f"accumulate {case['accumulate']}", *(name for name in ("ema", "dropout", "augment") if case[name])]
    return ", ".join(words)


# -- what a run is made of -----------------------------------------------------------------------

SAMPLES, BATCH, EPOCHS = 22, 4, 3
BATCHES = -(-SAMPLES // BATCH)


class Numbers(Dataset[Any]):
    """Each sample says which one it is; it is changed at random in all three ways, or not at all."""

    def __init__(self, augment: bool, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.classes = torch.randint(3, (SAMPLES,), generator=generator)
        self.values = torch.randn(SAMPLES, 3, generator=generator)
        self.augment = augment

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        values = self.values[index].clone()
        values[self.classes[index]] += 2
        if self.augment:
            values += torch.tensor([torch.rand(()).item(), random.random(), np.random.rand()]) + np.random.randn()
        return torch.cat([torch.tensor([index / SAMPLES]), values]), self.classes[index]


class Net(nn.Module):
    """Keeps every batch that it was trained on, as it came."""

    def __init__(self, *, dropout: bool, seed: int) -> None:
        super().__init__()
        self.hidden, self.norm, self.out = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.3 if dropout else 0.0)
        self.seen: list[Any] = []
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(x.tolist())
        return self.out(self.drop(torch.relu(self.norm(self.hidden(x)))))  # type: ignore[no-any-return]


class Pair(nn.Module):
    """A critic, and a generator that draws its noise: two losses, two optimizers."""

    def __init__(self, *, dropout: bool, seed: int) -> None:
        super().__init__()
        self.critic, self.maker = Net(dropout=dropout, seed=seed), nn.Linear(2, 4)

    @property
    def seen(self) -> list[Any]:
        return self.critic.seen

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {
            "critic": torch.optim.AdamW(self.critic.parameters(), lr=0.02),
            "maker": torch.optim.SGD(self.maker.parameters(), lr=0.05, momentum=0.9),
        }

    def made(self, count: int) -> Tensor:
        return self.critic(self.maker(torch.randn(count, 2)))  # type: ignore[no-any-return]

    def losses(self, batch: Any) -> Iterator[tuple[str, Tensor]]:
        x, y = batch
        yield "critic", loss_of(self.critic(x), y) + loss_of(self.made(len(y)).detach(), torch.zeros_like(y))
        yield "maker", loss_of(self.made(len(y)), torch.ones_like(y))

    def forward(self, x: Tensor) -> Tensor:
        return self.critic(x)  # type: ignore[no-any-return]


loss_of = nn.functional.cross_entropy


def train_both(loop: Any, model: Pair, batch: Any) -> None:
    for name, loss in model.losses(batch):
        loop.backward(loss, loop.run.optimizers[name])
        loop.step(loop.run.optimizers[name])


class OwnTask(hl.Task[Any]):
    """The same computation as a task."""

    def __init__(self, case: Case, model: Any) -> None:
        super().__init__()
        self.case, self.model = case, model

    def configure_optimizers(self, run: Any) -> Any:
        optimizers = optimizers_of(self.case, self.model)
        return optimizers, schedulers_of(self.case, optimizers)

    def train_batch(self, run: Any, batch: Any) -> Any:
        if isinstance(self.model, Pair):
            train_both(run.loop, self.model, batch)
            return None
        return loss_of(self.model(batch[0]), batch[1])

    def eval_batch(self, run: Any, batch: Any) -> Any:
        return loss_of(self.model(batch[0]), batch[1])


def optimizers_of(case: Case, model: Any) -> Any:
    if case["optimizer"] == "two":
        return model.optimizers()
    if case["optimizer"] == "SGD":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def schedulers_of(case: Case, optimizers: Any) -> list[Any]:
    rules = torch.optim.lr_scheduler
    every = optimizers.values() if isinstance(optimizers, dict) else [optimizers]
    if case["scheduler"] == "step":
        return [rules.CosineAnnealingLR(one, 17) for one in every]
    if case["scheduler"] == "epoch":
        return [hl.Scheduler(rules.ExponentialLR(one, 0.7), every="1ep") for one in every]
    if case["scheduler"] == "plateau":
        return [rules.ReduceLROnPlateau(one, factor=0.8, patience=0, threshold=0.2) for one in every]
    return []


class Ema(hl.Callback):
    """The mean of the weights, held as a module; evaluations are made with it."""

    def __init__(self) -> None:
        self.mean: nn.Module | None = None

    def on_setup(self, run: Any) -> None:
        self.mean = deepcopy(run.model)

    def on_train_step_end(self, run: Any) -> None:
        with torch.no_grad():
            for mean, own in zip(self.mean.parameters(), run.model.parameters(), strict=True):  # type: ignore[union-attr]
                mean.lerp_(own, 0.2)

    def around_eval(self, run: Any) -> Iterator[None]:
        with run.swap_weights(dict(self.mean.named_parameters())):  # type: ignore[union-attr]
            yield


class Counter(hl.Callback):
    """A state of plain values and a tensor, with something of every kind of event in it, random numbers also."""

    state = ("counts", "total")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.total = torch.zeros(2)

    def _count(self, event: str) -> None:
        self.counts = {**self.counts, event: self.counts.get(event, 0) + 1}
        torch.rand(1)

    def on_train_epoch_start(self, run: Any) -> None:
        self._count("epochs begun")

    def on_train_step_end(self, run: Any) -> None:
        self._count("steps")
        self.total = self.total + torch.tensor([run.clock.sample, 1.0])

    def on_metrics_ready(self, run: Any) -> None:
        self._count("intervals")

    def on_eval_start(self, run: Any) -> None:
        self._count("evaluations begun")

    def on_eval_batch_end(self, run: Any) -> None:
        self._count("batches evaluated")

    def on_eval_end(self, run: Any) -> None:
        self._count("evaluations")
        run.log({"val/counted": float(self.counts["evaluations"])})

    def on_epoch_end(self, run: Any) -> None:
        self._count("epochs")

    def on_step_settled(self, run: Any) -> None:
        self._count("settled")

    def on_stop(self, run: Any) -> None:
        self._count("stops")


class Quiet(Counter):
    """Hears only what leaves steps plain, so that they are."""

    def __init__(self) -> None:
        super().__init__()
        self.on_step_settled = None  # type: ignore[assignment]


class Witness(hl.Callback):
    """What is seen of a run from outside, and all of its state at its end."""

    def __init__(self) -> None:
        self.rates: list[Any] = []
        self.resumed_at: int | None = None
        self.snapshot: Snapshot | None = None
        self.rows: list[Any] = []

    def on_checkpoint_loaded(self, run: Any) -> None:
        self.resumed_at = run.clock.batch
        self.resumed_step = run.clock.step

    def on_train_step_end(self, run: Any) -> None:
        rates = [group["lr"] for optimizer in run.optimizers.values() for group in optimizer.param_groups]
        self.rates.append((run.clock.step, rates))

    def on_teardown(self, run: Any) -> None:
        about = About(step=0, epoch=0, batch=0, sample=0, seconds=0, run="")
        self.snapshot = Snapshot(about, *weights_and_state(run))
        self.rows = [shown(vars_of(row)) for row in run.history.rows()]


def vars_of(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("name", "step", "epoch", "value", "kind")}


def shown(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row without its time, in a form in which NaN is NaN."""
    if row["kind"] not in ("step", "epoch", "eval"):
        return tuple(repr(value) for name, value in row.items() if name != "seconds")
    return row["name"], row["step"], row["epoch"], repr(_number(row["value"])), row["kind"]


class LeftError(Exception):
    """How a run is left."""


class Outcome:
    """A run that has ended, in whatever way."""

    def __init__(self, model: Any, witness: Witness, folder: Path, error: BaseException | None, result: Any) -> None:
        self.seen, self.witness, self.folder, self.error, self.result = model.seen, witness, folder, error, result
        path = folder / "metrics.jsonl"
        self.rows = [shown(row) for row in (json_lines(path) if path.exists() else [])]


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def run_case(
    case: Case,
    folder: Path,
    *,
    leave: hl.Callback | None = None,
    resume: Any = None,
    workers: int | None = None,
    save_every: str | None = None,
    seed: int = 5,
) -> Outcome:
    """One run of a case with objects of its own. One that is resumed begins with other weights and another seed."""
    again = resume is not None
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    made = Pair if case["optimizer"] == "two" else Net
    model = made(dropout=case["dropout"], seed=seed)
    train = loader_of(case, case["workers"][again] if workers is None else workers)
    val = DataLoader(Numbers(case["augment"], seed=1), batch_size=13, shuffle=case["order"] == "shuffle")
    witness, saver = Witness(), hl.Checkpointer(every=save_every or case["save_every"], keep_last=None)
    saver.name = "saver"  # its state is saved by this name, however often it saves
    callbacks: list[Any] = [
        Counter() if case["save_every"] == "1st" else Quiet(),
        saver,
        hl.ProgressBar(style=None),
        *([Ema()] if case["ema"] else []),
        *([hl.EarlyStopping("val/loss", patience=1, min_delta=50.0)] if case["where"] == "early stop" else []),
    ]
    callbacks = [*(reversed(callbacks) if again else callbacks), *([leave] if leave else []), witness]
    options = {
        "max_duration": f"{EPOCHS}ep",
        "eval_every": case["eval_every"],
        "log_every": "2st",
        "accumulate": case["accumulate"],
        "precision": case["precision"],
        "device": "cpu",
        "seed": seed,
        "folder": folder,
        "resume": resume,
    }
    result = error = None
    try:
        result = WAYS[case["way"]](case, model, train, val, callbacks, options)
    except (LeftError, hl.Preempted) as left:
        error = left
    return Outcome(model, witness, folder, error, result)


def loader_of(case: Case, workers: int) -> DataLoader[Any]:
    data, order = Numbers(case["augment"]), case["order"]
    sampler = WeightedRandomSampler([1.0 + index % 5 for index in range(SAMPLES)], SAMPLES)
    return DataLoader(
        data,
        batch_size=BATCH,
        shuffle=True if order == "shuffle" else None,
        sampler=sampler if order == "weighted" else None,
        num_workers=workers,
        persistent_workers=workers > 0 and case["ema"],
    )


def _with_trainer(case: Case, model: Any, train: Any, val: Any, callbacks: list[Any], options: Any) -> Any:
    trainer = hl.Trainer(callbacks=callbacks, **options)
    if case["optimizer"] == "two":
        return trainer.fit(OwnTask(case, model), train, val)
    optimizer = optimizers_of(case, model)
    schedulers = schedulers_of(case, optimizer)
    return trainer.fit(model, train, val, loss=nn.CrossEntropyLoss(), optimizer=optimizer, scheduler=schedulers or None)


def _with_fit(case: Case, model: Any, train: Any, val: Any, callbacks: list[Any], options: Any) -> Any:
    return hl.fit(OwnTask(case, model), train, val, callbacks=callbacks, **options)


def _with_loop(case: Case, model: Any, train: Any, val: Any, callbacks: list[Any], options: Any) -> Any:
    optimizers = optimizers_of(case, model)
    schedulers = schedulers_of(case, optimizers)
    with hl.Loop(model, optimizers, scheduler=schedulers, callbacks=callbacks, **options) as loop:
        for batch in loop.batches(train):
            if isinstance(model, Pair):
                train_both(loop, model, batch)
            else:
                loop.backward(loss_of(model(batch[0]), batch[1]))
            loop.step()
            if loop.eval_due:
                for x, y in loop.eval_batches(val):
                    loop.run.log({"val/loss": loss_of(model(x), y)}, weight=len(y))
    return loop.result()


WAYS: dict[str, Callable[..., Any]] = {"Trainer": _with_trainer, "fit": _with_fit, "Loop": _with_loop}

# -- how it is left ------------------------------------------------------------------------------


class Leave(hl.Callback):
    """Leaves once, at an event, when a condition holds: by an error or by a signal."""

    def __init__(self, event: str, condition: Callable[[Any], bool], how: str) -> None:
        self.condition, self.how, self.done = condition, how, False
        setattr(self, f"on_{event}", self._leave)

    def _leave(self, run: Any) -> None:
        if self.done or run.stage == "test" or not self.condition(run):
            return
        self.done = True
        if self.how == "raise":
            raise LeftError
        signal.raise_signal(signal.SIGTERM)


def leave_of(case: Case, how: str) -> Leave:
    """The moment that the case says: in the second of three epochs, or at the end."""
    steps = BATCHES if case["accumulate"] == 1 else -(-BATCHES // case["accumulate"])
    by_error = how == "raise"
    where = case["where"]
    if where == "mid-epoch":
        step = steps + steps // 3 + by_error  # a signal finishes the step
        return Leave("train_step_start", lambda run: run.clock.step == step, how)
    if where == "before the edge":
        return Leave("train_step_end", lambda run: run.clock.step == 2 * steps, how)
    if where == "edge":
        event = "train_epoch_start" if by_error else "epoch_end"
        return Leave(event, lambda run: run.clock.epoch == 2, how)
    if where == "evaluation":
        return Leave("eval_batch_start", lambda run: run.clock.step > steps and run.clock.eval.batch == 1, how)
    if where == "last step":
        return Leave("train_end" if by_error else "train_step_end", lambda run: run.clock.step == 3 * steps, how)
    if where == "window":
        return Leave("train_batch_start", lambda run: run.clock.batch == BATCHES + case["accumulate"] + 1, how)
    return Leave("stop" if by_error else "eval_end", lambda run: "val/loss" in run.history, how)  # the second one


# -- what must be equal --------------------------------------------------------------------------

ALWAYS_DIFFERENT = ("*/seconds", "state/history/bytes", "state/callbacks/Checkpointer[[]saver]/arguments")
"""Wall time, the size of a file that contains it as a string, and when the resumed run saves."""


def differences(whole: Outcome, other: Outcome, *, finished: bool = False) -> list[str]:
    """All that is not the same in a run that was resumed; the batches and rates from the resume on."""
    one, two = whole.witness, other.witness
    assert one.snapshot is not None
    assert two.snapshot is not None
    # A run that had ended does not train: it has no stop of its own, and nothing is drawn.
    ignored = (*ALWAYS_DIFFERENT, *(("state/ended", "state/course", "state/random", "state/data") if finished else ()))
    found = [str(each) for each in compare(one.snapshot, two.snapshot, ignored)]
    assert two.resumed_at is not None
    passes = len(whole.seen) // max(1, one.snapshot.state["clock"]["batch"])  # type: ignore[index]
    if other.seen != whole.seen[two.resumed_at * passes :]:
        found.append(f"batches: {len(other.seen)} after the resume at {two.resumed_at}, {len(whole.seen)} in all")
    if two.rates != [each for each in one.rates if each[0] > two.resumed_step]:
        found.append(f"learning rates: {two.rates} and {one.rates}")
    for what, first, second in (("history", one.rows, two.rows), ("metrics.jsonl", whole.rows, other.rows)):
        if first != second:
            found.append(f"{what}: {sorted({*first} ^ {*second})[:6]}")
        if len({row[:2] for row in second}) != len(second):
            found.append(f"{what}: a metric has two values at one step")
    if (whole.result.stop_reason, whole.result.metrics) != (other.result.stop_reason, other.result.metrics):
        found.append(f"result: {whole.result.stop_reason, other.result.stop_reason, other.result.metrics}")
    return found
