"""What ranks do in the tests about checkpoints."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.checkpoint import Store
from hookline.loop import Trainer
from tests.support import earlier_version, full_tensor, is_padding
from tests.support.inside import save_now

RANK = int(os.environ.get("RANK", "0"))


class Net(nn.Module):
    """Sizes that two and four ranks cannot share evenly, dropout, statistics, and a part that nothing shares."""

    def __init__(self, *, dropout: float = 0.2, norm: bool = True, counts: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)])
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(6, 3)
        self.counts = counts
        self.register_buffer("calls", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.counts and self.training:  # a buffer that no state dict has, and that counts
            self.calls = self.calls * 1.05
            x = x * self.calls
        for block in self.blocks:
            x = block(x)
        return self.head(self.drop(self.norm(x)))


def data(samples: int = 44) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    return TensorDataset(
        torch.randn(samples, 6, generator=generator), torch.randint(0, 3, (samples,), generator=generator)
    )


def digest(values: Any) -> str:
    """Every bit of a tree of tensors and values; of tensors that are spread, all ranks take part."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            plain = full_tensor(value).cpu().contiguous()
            found.update(
                f"{plain.dtype}{tuple(plain.shape)}".encode() + plain.reshape(-1).view(torch.uint8).numpy().tobytes()
            )
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                found.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        else:
            found.update(repr(value).encode())

    add(values)
    return found.hexdigest()[:16]


class Looking(hl.Callback):
    """Notes what there is right after a checkpoint is loaded, and which events came."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}
        self.events: list[str] = []

    def on_checkpoint_loaded(self, run: hl.Run) -> None:
        self.loaded = state_of(run)
        self.events.append("loaded")

    def on_checkpoint_save(self, run: hl.Run) -> None:
        self.events.append(f"save {run.clock.step}")

    def on_checkpoint_saved(self, run: hl.Run) -> None:
        self.events.append(f"saved {run.clock.step} {run.checkpoint.name}")

    def on_checkpoint_failed(self, run: hl.Run) -> None:
        self.events.append(f"failed {run.clock.step} {type(run.exception).__name__}")

    def on_checkpoint_rejected(self, run: hl.Run) -> None:
        self.events.append(f"rejected {run.checkpoint.name}")


def state_of(run: hl.Run) -> dict[str, Any]:
    others = {
        type(callback).__name__: digest(callback.state_dict())
        for callback in run.callbacks
        if type(callback).__name__ in ("EMA", "SaveBest", "EarlyStopping", "SWA")
    }
    return {
        "weights": digest(run.model.state_dict()),
        "optimizer": digest([optimizer.state_dict()["state"] for optimizer in run.optimizers.values()]),
        "schedulers": digest([scheduler.scheduler.state_dict() for scheduler in run.schedulers]),
        "step": run.clock.step,
        **others,
    }


def callbacks_of(names: list[str]) -> list[Any]:
    made: dict[str, Any] = {
        "ema": lambda: hl.EMA(0.9),
        "best": lambda: hl.SaveBest("val/loss"),
        "stop": lambda: hl.EarlyStopping("val/loss", patience=50),
        "swa": lambda: hl.SWA(start="1st", every="1st"),
        "clip": lambda: hl.GradientClip(0.5),
        "monitor": lambda: hl.GradientMonitor(),
        "freeze": lambda: hl.Freeze("blocks.0.*"),
    }
    return [made[name]() for name in names]


def strategy_of(name: str, model: nn.Module) -> Any:
    if name == "hsdp":
        from torch.distributed.device_mesh import init_device_mesh

        return hl.FSDP(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    if name == "tp":  # two ranks share each layer, and two such pairs the data
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"blocks.0.0": ColwiseParallel(), "blocks.1.0": RowwiseParallel()})
        return hl.FSDP(mesh=mesh["dp"])
    if name == "bf16":
        return hl.FSDP(param_dtype=torch.bfloat16)
    return name


def train(
    folder: str,
    *,
    strategy: str = "auto",
    duration: str = "2ep",
    every: str | None = None,
    resume: str | None = None,
    with_callbacks: list[str] | None = None,
    dropout: float = 0.2,
    workers: int = 0,
    on_error: str = "raise",
    background: bool = False,
    keep_last: int | None = None,
    evaluate: bool = True,
    batch: int = 4,
    trouble: str = "",
    at: int = 0,
    precision: str | None = None,
    norm: bool = True,
    samples: int = 44,
    counts: bool = False,
    skip: list[str] | None = None,
) -> dict[str, Any]:
    """One fit; what it ends with, and what was there when a checkpoint was loaded."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    looking = Looking()
    callbacks: list[Any] = [looking, *callbacks_of(with_callbacks or [])]
    if every is not None:
        callbacks.append(
            hl.Checkpointer(every, keep_last=keep_last, on_error=on_error, background=background)  # type: ignore[arg-type]
        )
    if trouble:
        callbacks.append(Trouble(trouble, at))
    ends: dict[str, Any] = {}

    @hl.on("train_end")
    def note(run: hl.Run) -> None:
        ends.update(state_of(run), model=digest(run.model.state_dict()))

    options: dict[str, Any] = {} if precision is None else {"precision": precision}
    model = Net(dropout=dropout, norm=norm, counts=counts)
    trainer = Trainer(
        max_duration=duration,
        folder=folder,
        callbacks=[*callbacks, note],
        strategy=strategy_of(strategy, model),
        resume=resume if resume is None else hl.Resume(resume, skip=skip or ()),
        seed=11,
        log_every="3st",
        eval_every="2st",
        **options,
    )
    train_loader = DataLoader(data(samples), batch_size=batch, shuffle=True, num_workers=workers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = trainer.fit(
            model,
            train_loader,
            DataLoader(data(10), batch_size=4) if evaluate else None,
            loss=nn.CrossEntropyLoss(),
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
            scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9),
        )
    return {
        "loaded": looking.loaded,
        "ends": ends,
        "events": looking.events,
        "step": result.clock.step,
        "sample": result.clock.sample,
        "losses": result.history["train/loss"],
        "reason": result.stop_reason,
        "warned": [str(w.message) for w in caught if issubclass(w.category, hl.HooklineWarning)],
        "names": [found.name for found in Store(Path(folder) / "checkpoints").checkpoints()],
    }


class Trouble(hl.Callback):
    """Something goes wrong on rank 1, or on the only one, at a step, or asks for something there."""

    def __init__(self, what: str, at: int) -> None:
        self.what, self.at = what, at

    def on_train_step_end(self, run: hl.Run) -> None:
        if run.rank == min(1, run.world_size - 1) and run.clock.step == self.at:
            if self.what == "preempt":
                os.kill(os.getpid(), 15)
            elif self.what == "raise":
                raise ValueError("boom")
            elif self.what == "request_save":
                run.request_save()
            elif self.what == "ask":
                (plan,) = [c for c in run.callbacks if isinstance(c, hl.Checkpointer)]
                save_now(run, plan)

    def on_checkpoint_save(self, run: hl.Run) -> None:
        kind, _, rank = self.what.partition("@")
        if kind == "full" and run.rank == int(rank) and run.clock.step == self.at:
            _fill_the_disk()
        if kind.startswith("kill") and run.rank == int(rank) and run.clock.step == self.at:
            number = int(kind.removeprefix("kill"))
            _die_at(number) if number >= 0 else _die_when_written()

    def on_checkpoint_failed(self, run: hl.Run) -> None:
        _empty_the_disk()


_write = os.write


def _fill_the_disk() -> None:
    def write(file: int, part: Any) -> int:
        raise OSError(28, "No space left on device")

    os.write = write


def _die_at(number: int) -> None:
    """SIGKILL at the so manyth operation on a file from now on; at once for zero."""
    left = number

    def counted(act: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), 9)
            return act(*args, **kwargs)

        return call

    if not number:
        os.kill(os.getpid(), 9)
    for name in ("open", "write", "fsync", "mkdir", "rename"):
        setattr(os, name, counted(getattr(os, name)))


def _die_when_written() -> None:
    """SIGKILL when its own file is whole and synced, before anybody knows."""
    from hookline.checkpoint import together

    write = together.write_shard

    def write_and_die(*args: Any) -> Any:
        write(*args)
        os.kill(os.getpid(), 9)

    together.write_shard = write_and_die


def _empty_the_disk() -> None:
    os.write = _write


def resume_with_threads(folder: str, threads: int) -> list[str]:
    """Go on, as a process that torchrun has not started does, with more threads; the warnings of it."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # what Python shows by default
    torch.set_num_threads(threads)
    warned: list[str] = train(folder, resume="auto")["warned"]
    return warned


def stopped_and_extended(folder: str) -> dict[str, Any]:
    """A fit that a callback stops, then one that goes on with it for three steps more."""
    found = {}
    for resume, extend in ((None, None), ("auto", "3st")):
        stops = hl.LambdaCallback(on_train_step_end=lambda run: run.stop("enough") if run.clock.step == 2 else None)
        callbacks = [stops, hl.Checkpointer("9st")]
        trainer = Trainer(max_duration="2ep", folder=folder, callbacks=callbacks, resume=resume)
        loader = DataLoader(data(), batch_size=4)
        result = trainer.fit(Net(), loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, extend=extend)
        found[str(resume)] = {"step": result.clock.step, "reason": result.stop_reason}
    return found


def peek(folder: str) -> dict[str, Any]:
    """The newest checkpoint as one process reads it, whole."""
    store = Store(Path(folder) / "checkpoints")
    newest = store.latest()
    assert newest is not None
    snapshot = store.load(newest)
    assert snapshot.state is not None
    return {
        "weights": digest(dict(snapshot.weights)),
        "optimizer": digest([its["state"] for its in snapshot.state["optimizers"].values()]),
        "schedulers": digest(snapshot.state["schedulers"]),
        "files": sorted(newest.manifest.files),
        "step": newest.about.step,
        "callbacks": {key.partition("(")[0]: digest(its["state"]) for key, its in snapshot.state["callbacks"].items()},
        "ranks": len(snapshot.state.get("ranks", [])),
        "left": sorted(path.name for path in store.folder.iterdir() if ".tmp-" in path.name),
    }


def dropped(folder: str) -> list[float]:
    """Which numbers this rank draws in the first step after a resume."""
    drawn: list[float] = []

    @hl.on("train_step_start")
    def draw(run: hl.Run) -> None:
        if not drawn:
            drawn.extend(torch.rand(3).tolist())

    trainer = Trainer(max_duration="1ep", folder=folder, callbacks=[draw], resume="auto", seed=11)
    trainer.fit(
        Net(),
        DataLoader(data(), batch_size=4, shuffle=True),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9),
    )
    return drawn


def read_parts(folder: str) -> dict[str, Any]:
    """Which fraction of the bytes of the shards this rank reads to go on with its part; hashes not counted."""
    from hookline.checkpoint.hashed_file import HashedReader
    from hookline.checkpoint.names import is_shard
    from hookline.checkpoint.shard_reader import ShardReader

    read, plain, fill = [0], HashedReader.read_at, ShardReader._fill

    def counted(self: HashedReader, position: int, view: memoryview) -> None:
        read[0] += len(view)
        plain(self, position, view)

    def filled(self: ShardReader, *args: Any) -> None:
        HashedReader.read_at = counted  # type: ignore[method-assign]
        fill(self, *args)
        HashedReader.read_at = plain  # type: ignore[method-assign]

    ShardReader._fill = filled  # type: ignore[method-assign]
    train(folder, strategy="fsdp", resume="auto", duration="1ep", evaluate=False)
    (newest,) = Store(Path(folder) / "checkpoints").checkpoints()[-1:]
    files = newest.manifest.files
    return {"read": read[0], "all": sum(files[name].size for name in files if is_shard(name))}


class Seen(hl.Callback):
    """Which samples counted, by what is in them; the last rank gets a signal at a step."""

    def __init__(self, cut: int | None) -> None:
        self.samples: list[int] = []
        self.cut = cut

    def on_train_batch_end(self, run: hl.Run) -> None:
        if not is_padding(run):  # at an uneven end a rank goes along with a batch that does not count
            self.samples += [int(value) for value in run.batch[0][:, 0]]

    def on_train_step_end(self, run: hl.Run) -> None:
        if run.clock.step == self.cut and run.rank == run.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)


def seen(folder: str, strategy: str, samples: int, cut: int | None) -> list[int]:
    """The samples of one epoch that this rank trained on, until a signal ends the run."""
    look = Seen(cut)
    x = torch.arange(float(samples))[:, None].repeat(1, 6)
    loader = DataLoader(TensorDataset(x, torch.zeros(samples, dtype=torch.long)), 2, shuffle=True)
    callbacks = [look, hl.Checkpointer("1st", background=False)]
    trainer = Trainer(
        max_duration="1ep", folder=folder, strategy=strategy, resume="auto", callbacks=callbacks, seed=0, device="cpu"
    )
    with suppress(hl.Preempted):
        trainer.fit(Net(norm=False), loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    return look.samples


def of_earlier_version(folder: str, resume: str | None) -> dict[str, Any]:
    """The run of ``tests/data/earlier-version``, whole or from the checkpoint that an earlier version has saved."""
    return earlier_version.train(folder, resume=resume)
