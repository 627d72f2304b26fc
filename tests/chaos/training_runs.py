"""The run that is killed and signalled: all that a resume has to bring back is in it. Told what to do by a dict.

Only the processes that ``tests/support/rank_server.py`` forks import it, so that torch is imported once for hundreds of
runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hookline as hl
from hookline.checkpoint.names import is_ours
from hookline.loop import Trainer

SAMPLES, BATCH_SIZE, EPOCHS = 42, 4, 3  # eleven batches an epoch, of which the last is short
FOR_EVER = 3600.0
LINGER = 0.5

Plan = dict[str, Any]


class Sender:
    """Sends the signals of a plan, from inside the process, when the run has come to the right point often enough."""

    def __init__(self, plan: Plan) -> None:
        asked = plan.get("signal") or {}
        self.point: str = asked.get("point", "")
        self.at: int = asked.get("at", 1)
        self.number: int = asked.get("number", signal.SIGTERM)
        self.times: int = asked.get("times", 1)
        self.group: bool = asked.get("group", False)
        self.wait: bool = asked.get("wait", False)
        self.folder = Path(plan["folder"])
        self.run: Any = None
        self._count = 0

    def reached(self, point: str) -> None:
        """The run is at this point."""
        if point != self.point or not point:
            return
        self._count += 1
        if self._count != self.at:
            return
        clock = None if self.run is None else self.run.clock
        moment = {"step": 0 if clock is None else clock.step, "batch": 0 if clock is None else clock.batch}
        path, text = self.folder / "signalled.json", json.dumps(moment)
        if self.wait:
            # The test sends the signal when it sees the file. A signal that arrives between Python's last look for
            # signals and the system call does not end the call, so the file appears when the call is under way.
            threading.Timer(LINGER, write, (path, text)).start()
            time.sleep(FOR_EVER)
        write(path, text)
        for _ in range(self.times):
            if self.group:
                os.killpg(os.getpgrp(), self.number)
                time.sleep(LINGER)  # a worker that dies of it is noticed here
            else:
                signal.raise_signal(self.number)


def write(path: Path, text: str) -> None:
    """Whole or not at all, for a reader in another process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.rename(path)


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Points of three classes, with noise that is drawn anew each time, in the worker."""

    def __init__(self, count: int, sender: Sender | None = None, *, noise: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(count)
        self.classes = torch.randint(3, (count,), generator=generator)
        self.points = nn.functional.one_hot(self.classes, 4).float() + torch.randn(count, 4, generator=generator)
        self.sender, self.noise = sender, noise

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.sender is not None:
            self.sender.reached("data")
        return self.points[index] + self.noise * torch.randn(4), self.classes[index]


class Model(nn.Module):
    """Dropout and batch norm: random numbers, and buffers that are no parameters."""

    def __init__(self, sender: Sender) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
        self.sender = sender

    def forward(self, x: Tensor) -> Tensor:
        run, where = self.sender.run, "forward"
        if not self.training:
            stage, step = ("", 0) if run is None else (run.stage, run.clock.step)
            in_the_middle = run is not None and run.clock.eval is not None and run.clock.eval.batch == 2
            where = "sanity check" if not step else f"{stage} evaluation" if in_the_middle else ""
            where = "any evaluation" if self.sender.point == "any evaluation" and in_the_middle else where
        self.sender.reached(where)
        return self.layers(x)  # type: ignore[no-any-return]


class Diary(hl.Callback):
    """A callback whose state depends on every step and every evaluation, and on random numbers of its own."""

    state = ("total", "steps", "evaluations", "drawn")

    def __init__(self) -> None:
        self.total, self.steps, self.evaluations, self.drawn = 0.0, 0, 0, [0.0]

    def on_train_step_end(self, run: Any) -> None:
        self.steps += 1
        self.total = 0.9 * self.total + run.loss.item()
        self.drawn = [*self.drawn[-3:], float(torch.rand(1))]

    def on_eval_start(self, run: Any) -> None:
        self.evaluations += 1

    def on_eval_end(self, run: Any) -> None:
        self.total += float(run.metrics[f"{run.stage}/loss"])


class Witness(hl.Callback):
    """Writes down what happened, for the test; nothing stale may be left once the fit has begun."""

    def __init__(self, sender: Sender) -> None:
        self.sender, self.folder = sender, sender.folder

    def note(self, what: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "events.txt").open("a") as file:
            file.write(f"{os.getpid()} {what}\n")

    def on_setup(self, run: Any) -> None:
        self.sender.run = run

    def on_fit_start(self, run: Any) -> None:
        kept = self.folder / "checkpoints"
        stale = [name for name in os.listdir(kept) if is_ours(name)] if kept.exists() else []
        if stale:
            raise AssertionError(f"left by a run that was killed: {stale}")

    def on_checkpoint_loaded(self, run: Any) -> None:
        self.note(f"loaded {run.clock.step}")

    def on_preempt(self, run: Any) -> None:
        self.note("preempt")

    def on_teardown(self, run: Any) -> None:
        self.note("teardown")


class InWindow(hl.Callback):
    """Between two batches of one window."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender

    def on_train_batch_end(self, run: Any) -> None:
        if run.clock.batch % 11 % 4 in (0, 1, 2) and run.clock.batch % 11 != 10:
            self.sender.reached("window")


def in_hook(sender: Sender) -> list[hl.Callback]:
    """The signal comes while a callback is in the hook that the point names: ``on_backward_end``."""
    if not sender.point.startswith("on_"):
        return []
    return [hl.LambdaCallback(**{sender.point: lambda run: sender.reached(sender.point)})]  # type: ignore[arg-type]


def watch_saves(sender: Sender) -> None:
    """The signal comes between two files of a checkpoint, in the thread that writes it."""
    real = os.fsync

    def fsync(file: Any) -> None:
        sender.reached("save")
        real(file)

    os.fsync = fsync


def parts(plan: Plan, sender: Sender) -> tuple[Model, DataLoader[Any], DataLoader[Any], list[Any]]:
    if sender.point == "save":
        watch_saves(sender)
    torch.manual_seed(plan["seed"])
    model, workers = Model(sender), plan.get("workers", 0)
    train = DataLoader(
        Points(SAMPLES, sender, noise=0.1), BATCH_SIZE, shuffle=True, num_workers=workers, **plan.get("loader", {})
    )
    val = DataLoader(Points(20), BATCH_SIZE, num_workers=plan.get("eval_workers", 0))
    callbacks = [
        Diary(),
        hl.EarlyStopping("val/loss", patience=plan.get("patience", 3)),
        Witness(sender),
        *([InWindow(sender)] if sender.point == "window" else []),
        *in_hook(sender),
    ]
    if plan.get("checkpointer", True):
        callbacks.append(hl.Checkpointer("2st", keep_last=2, background=plan.get("background", False)))
    return model, train, val, callbacks


def options(plan: Plan) -> dict[str, Any]:
    return {
        "max_duration": f"{EPOCHS}ep",
        "eval_every": "5st",
        "log_every": "3st",
        "accumulate": plan.get("accumulate", 1),
        "seed": plan["seed"],
        "folder": plan["folder"],
        "resume": "auto",
        "device": "cpu",
    }


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.03)


def make_scheduler(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)


def train(plan: Plan) -> Any:
    """``Trainer.fit``, with a test at the end."""
    sender = Sender(plan)
    model, loader, val, callbacks = parts(plan, sender)
    callbacks += extra_callbacks(plan, sender)
    test = DataLoader(Points(17), BATCH_SIZE) if plan.get("test") else None
    return Trainer(callbacks=callbacks, **options(plan)).fit(
        model,
        loader,
        val,
        test,
        loss=nn.CrossEntropyLoss(),
        optimizer=make_optimizer(model),
        scheduler=make_scheduler,
    )


def extra_callbacks(plan: Plan, sender: Sender) -> list[Any]:
    if not plan.get("requeue"):
        return []

    def requeue(run: Any) -> None:
        there = sorted(path.name for path in (sender.folder / "checkpoints").glob("step-*"))
        with (sender.folder / "requeued.txt").open("a") as file:
            file.write(f"{there[-1] if there else 'nothing'}\n")

    return [hl.StopOnSignal("SIGUSR1", requeue=requeue)]


def own_loop(plan: Plan) -> Any:
    """The same in an own loop."""
    sender = Sender(plan)
    model, loader, val, callbacks = parts(plan, sender)
    optimizer, measure = make_optimizer(model), nn.CrossEntropyLoss()
    with hl.Loop(model, optimizer, scheduler=make_scheduler(optimizer), callbacks=callbacks, **options(plan)) as loop:
        for x, y in loop.batches(loader):
            loop.backward(measure(model(x), y))
            loop.step()
            if loop.eval_due:
                for a, b in loop.eval_batches(val):
                    loop.run.log({"loss": measure(model(a), b)})
    return loop.result()


def evaluate(plan: Plan) -> None:
    sender = Sender(plan)
    model, _, val, _ = parts(plan, sender)
    hl.evaluate(model, val, loss=nn.CrossEntropyLoss(), callbacks=[Witness(sender)], folder=False, device="cpu")


def predict(plan: Plan) -> None:
    sender = Sender(plan)
    model, _, val, _ = parts(plan, sender)
    inputs = [x for x, _ in val]
    hl.predict(model, inputs, callbacks=[Witness(sender)], folder=False, device="cpu")


def with_earlier_handler(plan: Plan) -> None:
    """The user handles SIGTERM already: called once by the run, and there again after it."""
    folder = Path(plan["folder"])

    def earlier(number: int, frame: Any) -> None:
        with (folder / "earlier.txt").open("a") as file:
            file.write(f"{number}\n")

    signal.signal(signal.SIGTERM, earlier)
    try:
        train(plan)
    finally:
        there = signal.getsignal(signal.SIGTERM) is earlier
        signal.raise_signal(signal.SIGTERM)
        write(folder / "after.json", json.dumps({"there again": there}))


def in_thread(plan: Plan) -> Any:
    """Not in the main thread: no handler is installed, and none is changed."""
    handlers, results = [], []

    class Look(hl.Callback):
        def on_train_start(self, run: Any) -> None:
            handlers.extend([signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)])

    def work() -> None:
        results.append(
            Trainer(callbacks=[Look(), hl.StopOnSignal("SIGUSR1")], max_duration="2st", folder=False).fit(
                nn.Linear(4, 3), DataLoader(Points(20), 4), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
            )
        )

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    same = before == handlers and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    write(Path(plan["folder"]) / "after.json", json.dumps({"steps": results[0].clock.step, "same handlers": same}))


KINDS = {
    "fit": train,
    "own loop": own_loop,
    "evaluate": evaluate,
    "predict": predict,
    "earlier handler": with_earlier_handler,
    "thread": in_thread,
}


def run(plan: Plan) -> None:
    """One run, in its own process; how it ended is in ``result.json``."""
    warnings.simplefilter("error")
    result = KINDS[plan.get("kind", "fit")](plan)
    if result is not None:
        digest = hashlib.sha256()
        for name, value in result.model.state_dict().items():
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + value.numpy().tobytes())
        told = {
            "reason": result.stop_reason,
            "interrupted": result.interrupted,
            "step": result.clock.step,
            "weights": digest.hexdigest(),
        }
        write(Path(plan["folder"]) / "result.json", json.dumps(told))


def warm_up() -> None:
    """Pay for everything that is imported late, before the first fork."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run({"folder": folder, "seed": 0})
        own_loop({"folder": f"{folder}/own", "seed": 0})
