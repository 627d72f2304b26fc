"""What ranks do in the tests of those that are lost: killed while their workers live on, or gone before the others."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hookline as hl
from hookline.distributed import Group, this_process
from hookline.loop import Trainer
from hookline.testing import TinyModel
from tests.support import fit

BUSY = 400.0
"""Seconds that a worker is busy with one sample, unless the test is over before."""


one_epoch = partial(fit, max_duration="1ep", eval_every=None)


class Busy(Dataset[tuple[Tensor, Tensor]]):
    """From some sample on, a worker of rank ``who`` is busy until the file ``over`` is there."""

    def __init__(self, folder: str, who: int) -> None:
        self.folder, self.mine = Path(folder), int(os.environ["RANK"]) == who

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        until = time.monotonic() + BUSY
        while self.mine and index > 30 and time.monotonic() < until and not (self.folder / "over").exists():
            (self.folder / "busy").touch()
            time.sleep(0.05)
        return torch.ones(4), torch.tensor(1)


def killed_with_busy_workers(folder: str, who: int, **options: Any) -> None:
    def kill(run: Any) -> None:
        if run.rank == who and run.clock.step == 2:
            while not Path(folder, "busy").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

    busy = DataLoader(Busy(folder, who), 4, num_workers=2)
    one_epoch(hl.LambdaCallback(on_train_step_end=kill), train=busy, **options)


class WithConnection(Dataset[tuple[Tensor, Tensor]]):
    """Has connections of its own, opened before the workers are there, which use them."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            self.client = socket.create_connection(door.getsockname())
            self.server = door.accept()[0]
        self.pair = socket.socketpair()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.client.sendall(b"x")
        self.pair[0].sendall(b"x")
        assert self.server.recv(1) == self.pair[1].recv(1) == b"x"
        return torch.ones(4), torch.tensor(1)


class Inherited(WithConnection):
    """How many connections a worker holds besides those of the data set."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        super().__getitem__(index)
        return torch.full((4,), float(connections() - 2)), torch.tensor(1)


def connections() -> int:
    """Of this process, over the network: torch hands tensors on through sockets of another kind."""
    families = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:  # no socket, or that of the folder
            families.append(found.family)
    return sum(family in (socket.AF_INET, socket.AF_INET6) for family in families)


def connections_of_workers() -> dict[str, float]:
    """Those of the main process, and the most that a worker was seen to hold, besides those of its data."""
    seen: list[float] = []
    here: list[int] = []

    def look(run: Any) -> None:
        seen.append(run.batch[0].max().item())
        here.append(connections() - 2)

    one_epoch(hl.LambdaCallback(on_train_step_end=look), train=DataLoader(Inherited(), 2, num_workers=1))
    return {"here": max(here), "workers": max(seen)}


class WithBuffers(TinyModel):
    """Numbers of all kinds."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        for kind in KINDS:
            self.register_buffer(f"of_{kind}", torch.full((3, 2), 1 + rank).to(getattr(torch, kind)))
        edges = torch.full((3, 2), 1.0 + rank)
        self.register_buffer("of_edges", edges.to_sparse(), persistent=False)
        self.register_buffer("of_rows", edges.to_sparse_csr(), persistent=False)
        self.register_buffer("of_columns", edges.to_sparse_csc(), persistent=False)


KINDS = ["int16", "uint16", "uint32", "float8_e4m3fn", "float8_e5m2", "complex64", "bool", "bfloat16", "int64"]


def with_buffers(strategy: str) -> dict[str, list[float]]:
    """Rank zero's buffers, which all have after the run."""
    model, data = WithBuffers(int(os.environ["RANK"])), [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(4)]
    Trainer(max_duration="1ep", eval_every=None, folder=False, strategy=strategy).fit(  # type: ignore[arg-type]
        model, data, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
    )
    found = {kind: model.get_buffer(f"of_{kind}").to(torch.complex64).real for kind in KINDS}
    sparse = {kind: model.get_buffer(f"of_{kind}").to_dense() for kind in ("edges", "rows", "columns")}
    return {kind: buffer.flatten().tolist() for kind, buffer in (found | sparse).items()}


def refused_by_torch() -> dict[str, Any]:
    """A collective that torch refuses, for what it was given: the connections are whole. One more, that it does not."""
    group = Group(this_process(os.environ), torch.device("cpu"), timedelta(minutes=5))
    error = ""
    try:
        group.total(torch.ones(2, dtype=torch.int16))
    except RuntimeError as raised:
        error = f"{type(raised).__name__}: {raised}"
    found = group.total(torch.ones(1)).item()
    group.close()
    return {"error": error.splitlines()[0], "sum": found}


def evaluated_by(who: int, timeout: str, over: str | None = None) -> None:
    """After a fit of all ranks one evaluates alone; the others end, or stay until it has ended."""
    data = [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(4)]
    trainer = Trainer(max_duration="1ep", eval_every=None, folder=False, strategy=hl.DDP(timeout=timeout))
    model, loss = TinyModel(), nn.CrossEntropyLoss()
    trainer.fit(model, data, loss=loss, optimizer=torch.optim.SGD)
    if int(os.environ["RANK"]) == who:
        try:
            trainer.evaluate(model, data, loss=loss)
        finally:
            if over is not None:
                Path(over).touch()
    while over is not None and not Path(over).exists():
        time.sleep(0.05)


def hangs_in(entry: str) -> None:
    """Rank one sleeps in the second batch of an evaluation or a prediction."""

    def sleep(run: Any) -> None:
        if run.rank == 1 and run.clock.eval.batch >= 1:
            time.sleep(600)

    data = [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(8)]
    hooks: dict[str, Any] = {f"on_{'eval' if entry == 'evaluate' else entry}_batch_start": sleep}
    strategy = hl.DDP(hang_after="4s", timeout="5m")
    trainer = Trainer(folder=False, callbacks=[hl.LambdaCallback(**hooks)], strategy=strategy)
    if entry == "predict":
        trainer.predict(TinyModel(), [x for x, _ in data])
    else:
        trainer.evaluate(TinyModel(), data, loss=nn.CrossEntropyLoss())


def hangs_while_watchdog_is_late() -> None:
    """Rank one sleeps before the first step, for longer than ``timeout``, and its watchdog looks only later."""
    from hookline.distributed import watchdog

    watchdog.LOOKS_EVERY = 6.0  # type: ignore[misc]

    def sleep(run: Any) -> None:
        if run.rank == 1:
            time.sleep(600)

    data = [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(8)]
    one_epoch(hl.LambdaCallback(on_fit_start=sleep), train=data, strategy=hl.DDP(hang_after="5m", timeout="4s"))


def hangs_after_an_error(hook: str) -> None:
    """Rank zero fails; rank one, which hears of it, never comes to its end."""

    def fail(run: Any) -> None:
        if run.rank == 0 and run.clock.step == 2:
            raise ValueError("no luck")

    def sleep(run: Any) -> None:
        if run.rank == 1:
            time.sleep(600)

    data = [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(8)]
    callback = hl.LambdaCallback(on_train_step_end=fail, **{hook: sleep})  # type: ignore[arg-type]
    one_epoch(callback, train=data, strategy=hl.DDP(hang_after="2s", timeout="4s"))


class Unused(TinyModel):
    """The loss does not reach all of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(4, 4)


def with_unused_parameters(**options: Any) -> int:
    data = [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(8)]
    trainer = Trainer(max_duration="1ep", eval_every=None, folder=False, strategy=hl.DDP(**options))
    result = trainer.fit(Unused(), data, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    step: int = result.clock.step
    return step


def is_stopped_for_longer_than_the_limit(hook: str, folder: str) -> int:
    """Rank one is stopped from outside in a hook, and is at work again afterwards."""

    def fail(run: Any) -> None:
        if run.rank == 0 and run.clock.step == 2 and hook == "on_teardown":
            raise ValueError("no luck")

    def work(run: Any) -> None:
        if run.rank == 1 and run.clock.step >= 2 and not Path(folder, "here").exists():
            time.sleep(1.5)  # the watchdog has seen the last progress
            Path(folder, "here").touch()
            while not Path(folder, "sent").exists():
                time.sleep(0.01)
            time.sleep(1.0)  # still at work when the watchdog looks for the first time

    data = [(torch.randn(4, 4), torch.randint(3, (4,))) for _ in range(8)]
    callbacks = {"on_train_step_end": fail, hook: work}
    limits = {"hang_after": "4s", "timeout": "4s" if hook == "on_teardown" else "5m"}
    strategy = hl.DDP(**limits)  # type: ignore[arg-type]
    step: int = one_epoch(hl.LambdaCallback(**callbacks), train=data, strategy=strategy).clock.step  # type: ignore[arg-type]
    return step
