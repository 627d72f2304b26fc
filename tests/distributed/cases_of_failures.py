"""What ranks do in the tests of failures, hangs, signals and the guard: a small run, with trouble on one rank."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hookline as hl
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support.inside import signal_arrived_here

EPOCHS = 2
STEPS = 12
"""Of two ranks, in all epochs."""
BEFORE_STEPS = (
    "on_setup",
    "on_model_ready",
    "on_fit_start",
    "on_sanity_check_start",
    "on_sanity_check_end",
    "on_train_start",
)
"""Hooks that come once, before the first step."""


class Planted(Exception):  # noqa: N818 (what a user might raise)
    """The trouble itself."""


class Unprintable(Planted):
    """As one that lost its attributes on the way out of a worker."""

    def __str__(self) -> str:
        raise AttributeError("detail")


class Trouble:
    """On rank ``who``, from step ``at`` on, at ``place``: do ``action``, once."""

    def __init__(self, place: str, action: str, who: int, at: int, folder: str | None) -> None:
        self.place, self.action, self.at = place, action, at
        self.mine = int(os.environ.get("RANK", 0)) == who
        self.folder = None if folder is None else Path(folder)
        self.run: Any = None
        self.leave = False

    def reached(self, place: str) -> None:
        if place != self.place or not self.mine or (self.run is not None and self.run.clock.step < self.at):
            return
        self.mine = False
        self.act()

    def act(self) -> None:
        if self.action == "raise":
            raise Planted("no luck")
        if self.action == "raise without a text":
            raise Unprintable
        if self.action == "raise half a letter":  # of a file's name, say
            raise Planted(b"no luck \xff".decode(errors="surrogateescape"))
        if self.action == "exit":
            sys.exit(3)
        if self.action == "sleep":
            time.sleep(600)
        if self.action == "stop":
            self.run.stop("enough")
        if self.action == "break":
            self.leave = True
        for name in self.action.split("SIG")[1:]:
            os.kill(os.getpid(), getattr(signal, f"SIG{name}"))
        if self.action == "wait":  # for a signal from outside
            self.note("here")
            self.wait_for("sent")
        if self.action == "wait for SIGTERM":  # that comes through another process, some time after it was sent
            self.note("here")
            while not signal_arrived_here(self.run):
                time.sleep(0.01)

    def note(self, name: str) -> None:
        assert self.folder is not None
        (self.folder / name).touch()

    def wait_for(self, name: str) -> None:
        assert self.folder is not None
        while not (self.folder / name).exists():
            time.sleep(0.01)


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Points of three classes."""

    def __init__(self, count: int, trouble: Trouble) -> None:
        generator = torch.Generator().manual_seed(count)
        self.classes = torch.randint(3, (count,), generator=generator)
        self.points = nn.functional.one_hot(self.classes, 4).float() + torch.randn(count, 4, generator=generator)
        self.trouble = trouble

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.trouble.reached("data")
        return self.points[index], self.classes[index]


class Task(hl.SupervisedTask):
    """With trouble in its own methods."""

    trouble: Trouble

    def train_batch(self, run: Any, batch: Any) -> Any:
        self.trouble.reached("train_batch")
        return super().train_batch(run, batch)

    def eval_batch(self, run: Any, batch: Any) -> Any:
        self.trouble.reached("eval_batch")
        return super().eval_batch(run, batch)


class Witness(hl.Callback):
    """Shows that the run was closed, and gives the trouble its ``run``."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble

    def on_setup(self, run: Any) -> None:
        self.trouble.run = run

    def on_exception(self, run: Any) -> None:
        print(f"exception: {type(run.exception).__name__}", flush=True)

    def on_teardown(self, run: Any) -> None:
        print("teardown", flush=True)


def watch_saves(trouble: Trouble) -> None:
    """Trouble between two files of a checkpoint."""
    real = os.fsync

    def fsync(file: Any) -> None:
        trouble.reached("save")
        real(file)

    os.fsync = fsync


def in_hook(trouble: Trouble) -> list[Any]:
    """A callback with one hook or one scope, named by the place; ``after`` a scope is the part after its ``yield``."""
    place = trouble.place
    if place.startswith("on_"):
        return [hl.LambdaCallback(name="Culprit", **{place: lambda run: trouble.reached(place)})]
    if not place.startswith(("around_", "after around_")):
        return []

    def around(run: Any) -> Iterator[None]:
        if place.startswith("around_"):
            trouble.reached(place)
        yield
        if place.startswith("after"):
            trouble.reached(place)

    return [hl.LambdaCallback(name="Culprit", **{place.removeprefix("after "): around})]


def strategy_of(name: str, **limits: Any) -> Any:
    limits = {"timeout": "5m", "hang_after": "5m", **limits}
    return hl.FSDP(**limits) if name == "fsdp" else hl.DDP(**limits)


def train(
    place: str = "",
    action: str = "raise",
    *,
    who: int = 1,
    at: int = 2,
    strategy: str = "ddp",
    own_loop: bool = False,
    folder: str | None = None,
    saves: bool = False,
    optional: bool = False,
    workers: int = 0,
    limits: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """One fit, with an evaluation every three steps, in which the trouble comes."""
    trouble = Trouble(place, action, who, at, folder)
    torch.manual_seed(0)
    model = TinyModel()
    loader = DataLoader(Points(4 * STEPS, trouble), 4, shuffle=True, num_workers=workers)
    val = DataLoader(Points(13, Trouble("", "", -1, 0, None)), 4)
    callbacks: list[Any] = [Witness(trouble), *in_hook(trouble)]
    if place == "save":
        watch_saves(trouble)
    if saves:
        callbacks.append(hl.Checkpointer("2st", background=False))
    given: dict[str, Any] = {
        "max_duration": f"{EPOCHS}ep",
        "eval_every": "3st",
        "log_every": "4st",
        "seed": 1,
        "folder": False if folder is None else folder,
        "device": "cpu",
        "strategy": strategy_of(strategy, **(limits or {})),
        **options,
    }
    if own_loop:
        result = _own_loop(model, loader, callbacks, trouble, given)
    else:
        task = Task(model, nn.CrossEntropyLoss(), torch.optim.AdamW)
        task.trouble = trouble
        result = Trainer(callbacks=callbacks, **given).fit(task, loader, val)
    return told(result)


def _own_loop(model: nn.Module, loader: Any, callbacks: list[Any], trouble: Trouble, given: dict[str, Any]) -> Any:
    optimizer = torch.optim.AdamW(model.parameters())
    with hl.Loop(model, optimizer, callbacks=callbacks, **{**given, "eval_every": None}) as loop:
        for x, y in loop.batches(loader):
            trouble.reached("body")
            loop.backward(nn.functional.cross_entropy(model(x), y))
            loop.step()
    return loop.result()


def told(result: Any) -> dict[str, Any]:
    return {
        "step": result.clock.step,
        "reason": result.stop_reason,
        "interrupted": result.interrupted,
        "weights": digest(result.model),
    }


def digest(model: nn.Module) -> str:
    """The same on all ranks if the weights are: of the whole ones, also where they are sharded."""
    found = hashlib.sha256()
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        found.update(name.encode() + whole.detach().numpy().tobytes())
    return found.hexdigest()


# -- the guard -------------------------------------------------------------------------------------


def _all_reduce(run: Any, held: Any) -> None:
    dist.all_reduce(torch.ones(1))


def _barrier(run: Any, held: Any) -> None:
    dist.barrier()


def _objects(run: Any, held: Any) -> None:
    dist.all_gather_object([None, None], {"a": 1})


def _evaluate(run: Any, held: Any) -> None:
    run.evaluate("val")


def _whole_weights(run: Any, held: Any) -> None:
    for parameter in run.model.parameters():
        parameter.full_tensor()


def _redistribute(run: Any, held: Any) -> None:
    weight = next(run.model.parameters())
    weight.detach().add(weight.detach().sum()).sum().item()  # sums over all ranks, by itself


def _backward(run: Any, held: Any) -> None:
    held(torch.ones(2, 4)).sum().backward()


ASKS: dict[str, Callable[[Any, Any], None]] = {
    "all_reduce": _all_reduce,
    "barrier": _barrier,
    "all_gather_object": _objects,
    "run.evaluate": _evaluate,
    "full_tensor": _whole_weights,
    "an operation on a DTensor": _redistribute,
    "the backward of another DDP model": _backward,
}


def ask(what: str, kind: str = "callback", ranks: Any = "zero", strategy: str = "ddp") -> dict[str, Any]:
    """A collective in a hook that runs on some ranks only."""
    held: list[Any] = []

    def act(run: Any) -> None:
        ASKS[what](run, held[0] if held else None)

    class Zero(hl.Callback):
        def on_train_step_end(self, run: Any) -> None:
            act(run)

    class Around(hl.Callback):
        def around_epoch(self, run: Any) -> Iterator[None]:
            yield
            act(run)

    class Any_(hl.Callback):  # noqa: N801
        def on_event(self, event: str, run: Any) -> None:
            if event == "train_step_end":
                act(run)

    which = frozenset(ranks) if isinstance(ranks, list) else ranks
    if kind == "function":
        callback: Any = hl.on("train_step_end", ranks=which, every="2st")(act)
    else:
        callback = {"callback": Zero, "scope": Around, "any event": Any_}[kind]()
        callback.ranks = which

    def prepare(run: Any) -> None:
        if what.startswith("the backward"):
            held.append(nn.parallel.DistributedDataParallel(nn.Linear(4, 4)))

    loader = [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(8)]
    result = Trainer(
        callbacks=[hl.LambdaCallback(on_fit_start=prepare), callback],
        max_duration="1ep",
        eval_every=None,
        folder=False,
        strategy=strategy_of(strategy),
    ).fit(TinyModel(), loader, loader[:2], loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    return told(result)


# -- joining ---------------------------------------------------------------------------------------


def several_runs() -> dict[str, Any]:
    """All that a script may do one after another in one process."""
    from hookline.loop import Trainer

    loader = [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(8)]
    torch.manual_seed(0)
    model, options = TinyModel(), {"folder": False, "device": "cpu", "seed": 1}
    trainer = Trainer(max_duration="1ep", **options)
    first = trainer.fit(model, loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    step = first.clock.step
    more = trainer.fit(model, loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, extend="1ep")
    other = Trainer(max_duration="2ep", **options)
    again = other.fit(model, loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    measured = other.evaluate(model, loader, loss=nn.CrossEntropyLoss())
    predicted = other.predict(model, [x for x, _ in loader])
    return {
        "steps": [step, more.clock.step, again.clock.step],
        "loss": measured["val/loss"],
        "predicted": len(predicted),
        "weights": digest(model),
        "group": dist.is_initialized(),
    }


def with_own_group(fail: bool = False, forget: bool = False) -> dict[str, Any]:
    """Somebody else has set up the process group, as Ray Train does: it is used, and is there after the run.

    ``forget``: by an address of its own, and not by variables that a run can see.
    """
    dist.init_process_group("gloo")
    if forget:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]
    group = dist.group.WORLD
    try:
        train("on_train_step_end" if fail else "")
    except (Planted, hl.errors.RankError) as error:
        found = type(error).__name__
    else:
        found = ""
    same = dist.is_initialized() and dist.group.WORLD is group
    if not fail:
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    return {"error": found, "same": same}


def fit_after_failure() -> list[str]:
    """A failed fit cannot be followed by another in the same processes: their connections are cut."""
    found = []
    for _ in range(2):
        try:
            train("on_train_step_end")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def speak() -> list[str]:
    """What each rank logs: the same on all, something of its own, and the same again."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    def say(run: Any) -> None:
        logger = logging.getLogger("hookline")
        for _ in range(2):
            logger.warning("the disk is %s", "slow")
        logger.warning("rank %d is special", run.rank)

    logging.getLogger("hookline").addHandler(Keep())
    loader = [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(2)]
    Trainer(max_duration="1ep", folder=False, callbacks=[hl.LambdaCallback(on_fit_start=say)]).fit(
        TinyModel(), loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
    )
    return [line for line in lines if "disk" in line or "special" in line]


# -- hangs -----------------------------------------------------------------------------------------


def uneven_evaluation() -> dict[str, Any]:
    """Rank one is slow for longer than ``hang_after``, batch by batch; rank zero is done long before."""

    class Slow(hl.Callback):
        def on_eval_batch_end(self, run: Any) -> None:
            if run.rank == 1 and run.clock.step:
                time.sleep(2.0)

    generator = torch.Generator().manual_seed(0)
    loader = [(torch.randn(4, 4, generator=generator), torch.randint(3, (4,), generator=generator)) for _ in range(8)]
    result = Trainer(
        callbacks=[Slow()],
        max_duration="2st",
        eval_every="2st",
        folder=False,
        strategy=strategy_of("ddp", hang_after="6s"),
    ).fit(TinyModel(), loader, loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    return told(result)


def deadlock() -> None:
    """Each rank waits for the other in a group of its own choice: nothing in Hookline can do that, a user can."""
    groups: list[Any] = []

    def prepare(run: Any) -> None:
        groups.extend(dist.new_group([0, 1]) for _ in range(2))

    def wait(run: Any) -> None:
        if run.clock.step == 2:
            dist.barrier(group=groups[run.rank])

    loader = [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(8)]
    Trainer(
        callbacks=[hl.LambdaCallback(on_fit_start=prepare, on_train_step_end=wait)],
        max_duration="1ep",
        folder=False,
        strategy=strategy_of("ddp", hang_after="4s"),
    ).fit(TinyModel(), loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)


# -- signals and stops -----------------------------------------------------------------------------


def preempted(places: list[str], folder: str, strategy: str = "ddp", times: int = 1) -> list[dict[str, Any]]:
    """SIGTERM to this rank, if it is the one, at one place after another: how each run has ended."""
    found = []
    for place in places:
        early = place in BEFORE_STEPS
        try:
            train(
                place,
                "SIGTERM" * times,
                at=0 if early else 2,
                folder=str(Path(folder) / place),
                saves="checkpoint" in place,
                strategy=strategy,
            )
        except hl.Preempted as left:
            result: Any = left.result
            checkpoint = None if left.checkpoint is None else Path(str(left.checkpoint)).name
            found.append({"code": left.code, "step": result.clock.step, "checkpoint": checkpoint})
        else:
            found.append({"code": 0, "step": -1, "checkpoint": None})
    return found


def stopped(places: list[str], own_loop: bool = False) -> list[dict[str, Any]]:
    """``run.stop`` on one rank, at one place after another."""
    return [train(place, "stop", at=0 if place in BEFORE_STEPS else 2, own_loop=own_loop) for place in places]


def twice(folder: str, rank: int = 1, hook: str = "on_train_step_end") -> None:
    """SIGTERM, and some time later SIGTERM again, while the first waits for the end of the step or for a vote."""
    from hookline.loop.engine import signals

    signals.SAME = 0.2

    def act(run: Any) -> None:
        if run.rank == rank and run.clock.step == 2:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.5)

    loader = [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(8)]
    Trainer(
        callbacks=[hl.LambdaCallback(name="Culprit", **{hook: act})],
        max_duration="1ep",
        eval_every="2st",
        folder=folder,
        strategy=strategy_of("ddp"),
    ).fit(TinyModel(), loader, loader[:2], loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)


def again(folder: str) -> int:
    """A run that is finished, started again."""
    for _ in range(2):
        found = Trainer(max_duration="2st", folder=folder, resume="auto", callbacks=[hl.Checkpointer()]).fit(
            TinyModel(), tiny_data(4), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
        )
    return found.clock.step


# -- restarts --------------------------------------------------------------------------------------


def elastic(folder: str, kills: list[tuple[int, str, int]], action: str = "SIGKILL", **options: Any) -> dict[str, Any]:
    """Each time that torchrun starts it, the next of ``kills`` (rank, place, step) ends it, until none is left."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    who, place, at = kills[restarts] if restarts < len(kills) else (-1, "", 0)
    return train(place, action, who=who, at=at, folder=folder, saves=True, resume="auto", **options)
