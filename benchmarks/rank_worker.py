"""One of two processes that ``ranks.py`` starts with torchrun: bare loops and Hookline in turn, timed and counted.

``python -m torch.distributed.run --standalone --nproc-per-node 2 rank_worker.py FOLDER ROUNDS [--quick]``. A line is
printed for each round, and rank zero writes what it found to ``FOLDER/found.json``.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from hookline.distributed.links import Links
from hookline.distributed.votes import FIELDS
from hookline.loop import Trainer

COLLECTIVES = ("c10d", "_c10d_functional")
NUMBERS = itertools.count()
SEND = Links.send
TINY, SHORT, LONG = "2 ms", "10 ms", "60 ms"
TURN = 4
"""Steps."""


@dataclass(frozen=True, slots=True)
class Size:
    """A model whose step takes about as long as its name says on the machine where the targets were set."""

    width: int
    depth: int
    batch: int
    steps: int
    warm_up: int
    log_every: int
    """Less than the warm-up: in the first interval ranks tell one another the names of their metrics, once."""

    def shorter(self) -> Size:
        """Too short to judge by."""
        return replace(self, steps=self.steps // 10, warm_up=self.warm_up // 10, log_every=self.log_every // 20)

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(self.width, self.width), nn.ReLU()) for _ in range(self.depth)]
        return nn.Sequential(*blocks)


SIZES = {
    TINY: Size(width=96, depth=4, batch=64, steps=100, warm_up=60, log_every=50),
    SHORT: Size(width=320, depth=4, batch=192, steps=60, warm_up=32, log_every=30),
    LONG: Size(width=640, depth=4, batch=448, steps=40, warm_up=22, log_every=20),
}


class Samples(Dataset[Any]):
    """In memory, read by index as those of any data set.

    Only such data has votes that are thinned: of batches in a list nobody knows how large those of the others are, and
    a ``collate_fn`` of one's own might leave samples out.
    """

    def __init__(self, size: Size, steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._kept = [
            [
                (x, y)
                for x, y in zip(
                    torch.randn(size.batch, size.width, generator=generator),
                    torch.randn(size.batch, size.width, generator=generator),
                    strict=True,
                )
            ]
            for _ in range(4)
        ]
        self._world, self._rank = dist.get_world_size(), dist.get_rank()
        self._first, self._last = size.warm_up, size.warm_up + steps
        self._batch = size.batch
        self.steps = steps

    def __len__(self) -> int:
        return (self._last + 1) * self._world * self._batch

    def __getitems__(self, indices: list[int]) -> Any:
        number = indices[0] // self._batch
        step, rank = divmod(number, self._world)
        if rank == self._rank:
            self.before_step(step)
        return self._kept[number % len(self._kept)]

    def before_step(self, step: int) -> None:
        """The batch of this rank is asked for."""

    def whole(self) -> DataLoader[Any]:
        """As a user has it: Hookline gives each rank its part."""
        return DataLoader(self, batch_size=self._batch)

    def own(self) -> DataLoader[Any]:
        """The batches of this rank, for a loop that takes its part by hand."""
        starts = range(self._rank * self._batch, len(self), self._world * self._batch)
        parts = [list(range(start, start + self._batch)) for start in starts]
        return DataLoader(self, batch_sampler=parts)


class Stamped(Samples):
    """Notes when the measured steps begin and end."""

    def __init__(self, size: Size, steps: int, counter: Collectives) -> None:
        super().__init__(size, steps)
        self._counter = counter
        self._began = self._ended = 0.0

    def before_step(self, step: int) -> None:
        if step == self._first:
            self._began, self._counter.on = time.perf_counter(), True
        elif step == self._last:
            self._ended, self._counter.on = time.perf_counter(), False

    def seconds(self) -> float:
        """Of a measured step."""
        return (self._ended - self._began) / self.steps


class InTurn(Samples):
    """A few steps of a bare loop, with a model of its own, then as many of the contender, and so on.

    What slows the machine for a second slows both. All ranks meet before each turn: what one is late by at its end is
    of that turn.
    """

    def __init__(self, strategy: str, size: Size, steps: int) -> None:
        super().__init__(size, steps)
        if steps % TURN:
            raise ValueError(f"{steps} steps are no whole turns of {TURN}")
        self._step = bare_step(strategy, size, Samples(size, size.warm_up + steps).own())
        self._began = 0.0
        self.bare_turns: list[float] = []
        """Seconds of each turn."""
        self.turns: list[float] = []

    def before_step(self, step: int) -> None:
        if step < self._first:
            self._step()
        elif (step - self._first) % TURN == 0:
            ended = _meet()
            if step > self._first:
                self.turns.append(ended - self._began)
            if step < self._last:
                for _ in range(TURN):
                    self._step()
                self._began = _meet()
                self.bare_turns.append(self._began - ended)

    def ratio(self) -> float:
        return sum(self.turns) / sum(self.bare_turns)


def _meet() -> float:
    dist.barrier()
    return time.perf_counter()


class Collectives(TorchDispatchMode):
    """Counts what is sent while ``on``: how often, and how many bytes of this rank go in."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.on and func.namespace in COLLECTIVES and func.__name__ not in NO_COLLECTIVE:
            sent = [value for value in _tensors(args) if value.numel()]
            kind = _kind(func.__name__, sent)
            self.calls[kind] += 1
            self.bytes[kind] += max((value.numel() * value.element_size() for value in sent), default=0)
        return func(*args, **(kwargs or {}))

    def send(self, links: Links, values: Sequence[float]) -> int:
        """In place of ``Links.send``, of which torch sees nothing."""
        if self.on:
            self.calls["vote"] += 1
            self.bytes["vote"] += 8 * len(values)
        return SEND(links, values)


NO_COLLECTIVE = ("wait_tensor.default", "barrier.default")


def _tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [found for value in values for found in _tensors(value)]
    return []


def _kind(name: str, sent: list[Tensor]) -> str:
    """The model's own, the vote, or other numbers of metrics."""
    if sent and sent[0].dtype is torch.float64:
        return "vote" if sent[0].numel() == len(FIELDS) + 1 else "metrics"
    return name.partition(".")[0]


# -- contenders ----------------------------------------------------------------------------------------


def bare(strategy: str, size: Size, data: Samples, folder: Path) -> None:
    loader = data.own()
    step = bare_step(strategy, size, loader)
    for _ in range(len(loader)):
        step()


def bare_step(strategy: str, size: Size, loader: DataLoader[Any]) -> Callable[[], None]:
    """One step of a bare loop, of a model of its own."""
    model = size.model()
    if strategy == "fsdp":
        for block in model.children():
            fully_shard(block)
        fully_shard(model)
        called: nn.Module = model
    else:
        called = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(called.parameters(), lr=1e-3)
    loss_of, batches = nn.MSELoss(), iter(loader)

    def step() -> None:
        x, y = next(batches)
        loss_of(called(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ours(strategy: str, size: Size, data: Samples, folder: Path) -> None:
    trainer = Trainer(
        preflight=False,
        max_duration="1ep",
        folder=folder / f"run-{next(NUMBERS)}",
        log_every=f"{size.log_every}st",
        strategy=strategy,
    )
    trainer.fit(size.model(), data.whole(), loss=nn.MSELoss(), optimizer=lambda p: torch.optim.SGD(p, lr=1e-3))


Contend = Callable[[str, Size, Samples, Path], None]


def timed(contender: Contend, strategy: str, size: Size, steps: int, folder: Path) -> float:
    """Seconds a step."""
    gc.collect()
    data = Stamped(size, steps, Collectives())
    dist.barrier()
    contender(strategy, size, data, folder)
    return data.seconds()


def in_turn(contender: Contend, strategy: str, size: Size, steps: int, folder: Path) -> tuple[float, float]:
    """How long its steps take, to those of a bare loop; and a bare step in seconds."""
    gc.collect()
    data = InTurn(strategy, size, steps)
    dist.barrier()
    contender(strategy, size, data, folder)
    return data.ratio(), sum(data.bare_turns) / (len(data.bare_turns) * TURN)


def counted(contender: Contend, strategy: str, size: Size, steps: int, folder: Path) -> dict[str, list[float]]:
    """By kind: calls and bytes a step."""
    counter = Collectives()
    data = Stamped(size, steps, counter)
    dist.barrier()
    with counter, patch.object(Links, "send", lambda links, values: counter.send(links, values)):
        contender(strategy, size, data, folder)
    return {kind: [counter.calls[kind] / steps, counter.bytes[kind] / steps] for kind in counter.calls}


def main() -> None:
    folder, rounds, quick = Path(sys.argv[1]), int(sys.argv[2]), "--quick" in sys.argv
    torch.set_num_threads(1)
    logging.getLogger("hookline").setLevel(logging.ERROR)
    dist.init_process_group("gloo")
    sizes = {name: size.shorter() if quick else size for name, size in SIZES.items()}
    steps = {name: size.steps for name, size in sizes.items()}
    times: dict[str, dict[str, list[tuple[float, float, float]]]] = {
        strategy: {name: [] for name in SIZES} for strategy in ("ddp", "fsdp")
    }
    turns: dict[str, list[tuple[float, float, float]]] = {strategy: [] for strategy in times}
    for strategy in times:
        for contender in (bare, ours):  # lazy imports and cold code
            timed(contender, strategy, sizes[TINY], 10, folder)
    for number in range(rounds):
        for strategy, found in times.items():
            long = strategy, sizes[LONG], steps[LONG], folder
            (own, seconds), (control, _) = in_turn(ours, *long), in_turn(bare, *long)
            turns[strategy].append((own, control, seconds))
            if number % 3:  # the turns alone are judged
                continue
            for name, size in sizes.items():
                before = timed(bare, strategy, size, steps[name], folder)
                own = timed(ours, strategy, size, steps[name], folder)
                found[name].append((before, own, timed(bare, strategy, size, steps[name], folder)))
        if dist.get_rank() == 0:
            print("round", flush=True)
    counts = {
        strategy: {
            name: {
                what: counted(contender, strategy, size, steps[name], folder)
                for what, contender in (("bare", bare), ("ours", ours))
            }
            for name, size in sizes.items()
        }
        for strategy in times
    }
    if dist.get_rank() == 0:
        parameters = {name: sum(p.numel() for p in size.model().parameters()) for name, size in sizes.items()}
        every = {name: size.log_every for name, size in sizes.items()}
        found = {
            "times": times,
            "turns": turns,
            "counts": counts,
            "steps": steps,
            "parameters": parameters,
            "log_every": every,
        }
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
