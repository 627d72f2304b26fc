"""What ranks do in ``test_own_loop.py`` and ``test_votes.py``."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hookline as hl
from hookline.loop import Trainer
from tests.support import set_time
from tests.support.inside import restart_clock, votes_of, watch_votes

RANK = int(os.environ.get("RANK", "0"))
SIZE = int(os.environ.get("WORLD_SIZE", "1"))


def model_and_data(samples: int = 64, batch_size: int = 4) -> tuple[nn.Module, DataLoader[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    data = TensorDataset(torch.randn(samples, 6), torch.randint(0, 3, (samples,)))
    return model, DataLoader(data, batch_size=batch_size)


def digest(model: nn.Module) -> str:
    """Of all weights, bit by bit; of a sharded model, of the whole."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        found.update(whole.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


# -- the custom loop ---------------------------------------------------------------------------------


def hand_written(accumulate: int = 1, batch_size: int = 4) -> str:
    """What people write themselves: DDP, and each rank's share of each group of batches."""
    torch.distributed.init_process_group("gloo")
    model, loader = model_and_data(16 * batch_size, batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    wrapped = nn.parallel.DistributedDataParallel(model)
    batches = list(loader)[RANK::SIZE]
    for _ in range(2):
        for index, (x, y) in enumerate(batches):
            last = (index + 1) % accumulate == 0
            wrapped.require_backward_grad_sync = last
            loss = cross_entropy(wrapped(x), y)
            (loss if accumulate == 1 else loss / accumulate).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    found = digest(model)
    torch.distributed.barrier()
    del wrapped
    torch.distributed.destroy_process_group()
    return found


def own_loop(accumulate: int = 1, batch_size: int = 4) -> str:
    """The same as a custom loop, as it is written for one process."""
    model, loader = model_and_data(16 * batch_size, batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with hl.Loop(model, optimizer, max_duration="2ep", folder=False, accumulate=accumulate, strategy="ddp") as loop:
        for x, y in loop.batches(loader):
            loop.backward(cross_entropy(model(x), y))
            loop.step()
    return digest(model)


def moved_by_an_early_optimizer() -> bool:
    """Whether an optimizer that was made before ``fully_shard`` moves the weights."""
    model, loader = model_and_data()
    before = digest(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Trainer(max_duration="2st", folder=False, strategy="fsdp").fit(
        model, loader, loss=nn.CrossEntropyLoss(), optimizer=optimizer
    )
    return digest(model) != before


def early_optimizer_with_state() -> None:
    model, loader = model_and_data()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    Trainer(max_duration="2st", folder=False, strategy="fsdp").fit(
        model, loader, loss=nn.CrossEntropyLoss(), optimizer=optimizer
    )


# -- votes -------------------------------------------------------------------------------------------


class Asks(hl.Callback):
    """Asks for something in one hook of one rank, at one step."""

    def __init__(self, hook: str, verb: str, rank: int = 1, step: int = 3) -> None:
        self.what = (hook, verb, rank, step)
        self.seen: list[str] = []
        self.asked = False

    def on_event(self, event: str, run: Any) -> None:
        hook, verb, rank, step = self.what
        if event in ("step_skipped", "eval_start", "stop"):
            self.seen.append(f"{event} after {run.clock.step}")
        if event == hook and run.rank == rank and run.clock.step == step and not self.asked:
            self.asked = True
            getattr(self, f"ask_{verb}")(run)

    def ask_stop(self, run: Any) -> None:
        run.stop("enough")

    def ask_raise_stop(self, run: Any) -> None:
        raise hl.StopTraining("enough")

    def ask_evaluate(self, run: Any) -> None:
        run.request_eval()

    def ask_skip(self, run: Any) -> None:
        run.skip_step()


def asked(hook: str, verb: str, rank: int = 1, strategy: str = "ddp", log_every: str = "100st") -> dict[str, Any]:
    """A fit in which one rank asks; steps are long, so that there is a vote in each."""
    model, loader = model_and_data()
    callback = Asks(hook, verb, rank)
    callbacks = [callback, hl.on("train_step_start")(lambda run: time.sleep(0.06))]
    trainer = Trainer(
        max_duration="7st", folder=False, callbacks=callbacks, eval_every="1ep", log_every=log_every, strategy=strategy
    )
    result = trainer.fit(model, loader, loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.AdamW)
    return {
        "reason": result.stop_reason,
        "step": result.clock.step,
        "samples": result.clock.sample,
        "batches": result.clock.batch,
        "seen": callback.seen,
        "weights": digest(model),
    }


def short_steps() -> dict[str, Any]:
    """Steps of half a millisecond, by the run's own clock: votes are rare, and the numbers are right all the same."""
    model, loader = model_and_data(samples=1200, batch_size=4)
    now = [0.0]
    model.register_forward_pre_hook(lambda *_: now.append(now.pop() + 0.0005))  # a callback would have a vote
    time = hl.LambdaCallback(on_setup=lambda run: set_time(run, lambda: now[0]))
    trainer = Trainer(max_duration="2ep", folder=False, log_every="50st", callbacks=[time])
    votes: list[int] = []
    count = hl.on("train_end")(lambda run: votes.append(votes_of(run)))
    result = trainer.fit(
        model, loader, loss=nn.MultiMarginLoss(), optimizer=torch.optim.AdamW, callbacks=[count] if SIZE > 1 else []
    )
    return {
        "weights": [p.double().sum().item() for p in model.parameters()],
        "samples": result.clock.sample,
        "steps": result.clock.step,
        "votes": votes,
    }


def gathered(strategy: str) -> list[Any]:
    """What ``run.gather`` gives in a hook, and whether the model is sharded."""
    model, loader = model_and_data()
    found: list[Any] = []
    gather = hl.on("train_step_end", at="2st")(lambda run: found.extend([run.gather({"rank": RANK}), run.is_sharded]))
    trainer = Trainer(max_duration="3st", folder=False, callbacks=[gather], strategy=strategy)
    trainer.fit(model, loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.AdamW)
    return found


class Seams(hl.Callback):
    """A callback of another package, on ranks of which one has a batch more than the other."""

    writes = ("train/counted", "train/made", "optimizer")

    def __init__(self) -> None:
        self.found: dict[str, Any] = {"padding": [], "shards": []}

    def on_train_batch_end(self, run: hl.Run) -> None:
        self.found["padding"].append(run.is_padding)
        run.log({"train/counted": 1.0}, reduce="sum")
        run.log({"train/made": 1.0}, reduce="sum", padding=True)

    def on_gradients_ready(self, run: hl.Run) -> None:
        if run.clock.epoch == 1:
            run.skip_step(together=True)
            run.stop(run.gather(f"rank {run.rank} has enough")[1], together=True)

    def on_eval_batch_end(self, run: hl.Run) -> None:
        self.found["shards"].append(run.eval_shard)

    def on_train_end(self, run: hl.Run) -> None:
        tensors = [torch.full((2,), float(run.rank))]
        self.found["reduced"] = [run.reduce(run.rank + 1, op) for op in ("sum", "mean", "max", "min")]
        self.found["unchanged"] = (
            run.reduce(tensors[0]).tolist() == [1.0, 1.0] and tensors[0].tolist() == [run.rank] * 2
        )
        run.broadcast(tensors)
        self.found["broadcast"] = tensors[0].tolist()
        self.found["batches"] = [run.num_batches("train"), run.num_batches("val"), run.data_parallel_size]
        self.found["ending"] = None if run.ending is None else [run.ending.kind, run.ending.reason, run.ending.step]


def used_seams() -> dict[str, Any]:
    """What a callback finds that uses all of ``run`` that is about ranks."""
    model, loader = model_and_data(samples=20)
    trainer = Trainer(max_duration="2ep", folder=False, callbacks=[seams := Seams()], log_every="1st")
    result = trainer.fit(model, list(loader), loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    logged = [result.history[name] for name in ("train/counted", "train/made")]
    return {**seams.found, "logged": logged, "steps": result.clock.step}


def vote_steps() -> list[int]:
    """The steps of half a millisecond, by the run's clock, in which the ranks vote: no interval, no edge."""
    model, loader = model_and_data(samples=1200, batch_size=4)
    now, clock, found = [0.0], [], []
    model.register_forward_pre_hook(lambda *_: now.append(now.pop() + 0.0005))
    watch_votes(lambda: found.append(clock[0].step))
    setup = hl.LambdaCallback(on_setup=lambda run: (set_time(run, lambda: now[0]), clock.append(run.clock)))
    trainer = Trainer(max_duration="150st", folder=False, log_every=None, eval_every=None, callbacks=[setup])
    trainer.fit(model, loader, loss=nn.MultiMarginLoss(), optimizer=torch.optim.AdamW)
    return [step for step in found if step < 149]


def time_limit() -> int:
    """Ranks whose clocks differ end by rank zero's, at the same step."""
    model, loader = model_and_data()
    slow = hl.on("train_step_end")(lambda run: time.sleep(0.02))
    trainer = Trainer(max_duration="1s", folder=False, callbacks=[slow])
    late = hl.on("model_ready")(lambda run: time.sleep(0.3 * RANK) or restart_clock(run))
    result = trainer.fit(model, loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, callbacks=[late])
    return result.clock.step


def different_callbacks() -> None:
    model, loader = model_and_data()
    callbacks = [hl.LambdaCallback()] if RANK else []
    Trainer(max_duration="1ep", folder=False, callbacks=callbacks).fit(
        model, loader, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
    )


class StopsInside(hl.Task[Any]):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 3)

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_batch(self, run: Any, batch: Any) -> Tensor:
        if RANK == 1 and run.clock.step == 2:
            raise hl.StopTraining("enough")
        return cross_entropy(self.net(batch[0]), batch[1])


def stop_in_a_task() -> None:
    _, loader = model_and_data()
    Trainer(max_duration="1ep", folder=False).fit(StopsInside(), loader)


class StoppingData(Dataset[Any]):
    """Of one rank: it raises in the middle of the epoch."""

    def __init__(self, data: Dataset[Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        if RANK == 1 and index > len(self) // 2:
            raise hl.StopTraining("no more data")
        return self.data[index]


def stop_in_data(stage: str) -> None:
    model, loader = model_and_data()
    stopping = DataLoader(StoppingData(loader.dataset), batch_size=loader.batch_size)
    train, val = (stopping, loader) if stage == "train" else (loader, stopping)
    trainer = Trainer(max_duration="1ep", folder=False, eval_every="2st")
    trainer.fit(model, train, val, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)


class StopsInIter:
    """The ``__iter__`` of one rank raises, from its second evaluation on; the first is the sanity check."""

    def __init__(self, batches: list[Any], everywhere: bool) -> None:
        self.batches, self.stops, self.begun = batches, everywhere or RANK == 1, 0

    def __iter__(self) -> Any:
        self.begun += 1
        if self.stops and self.begun > 1:
            raise hl.StopTraining("no more data")
        return iter(self.batches)


def stop_in_iter(everywhere: bool) -> None:
    model, loader = model_and_data()
    trainer = Trainer(max_duration="8st", folder=False, eval_every="2st", strategy=hl.DDP(hang_after="8s"))
    val = StopsInIter(list(loader), everywhere)
    trainer.fit(model, loader, val, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)


class StoppingOptimizer(torch.optim.SGD):
    """Of one rank: its third step."""

    made = 0

    def step(self, closure: Any = None) -> Any:
        self.made += 1
        if RANK == 1 and self.made == 3:
            raise hl.StopTraining("enough")
        return super().step(closure)


class StopsBetween(StopsInside):
    """Where it is neither in a hook nor in the computation of a batch."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.counted = where, 0

    def configure_optimizers(self, run: Any) -> Any:
        stops = StoppingOptimizer if self.where == "optimizer" else torch.optim.SGD
        return stops(self.parameters(), lr=0.1)

    def train_batch(self, run: Any, batch: Any) -> Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])

    def count(self, batch: Any) -> tuple[int, int | None]:
        self.counted += 1
        if self.where == "count" and RANK == 1 and self.counted == 3:
            raise hl.StopTraining("enough")
        return len(batch[0]), None


def stop_between(where: str, scope: bool = False) -> None:
    _, loader = model_and_data()
    around = [AroundTraining()] if scope else []
    trainer = Trainer(max_duration="2ep", folder=False, strategy=hl.DDP(hang_after="8s"), callbacks=around)
    trainer.fit(StopsBetween(where), loader)


class AroundTraining(hl.Callback):
    """A scope that is left on the way out."""

    def around_train(self, run: Any) -> Any:
        yield


def stop_in_the_update_of_an_own_loop() -> None:
    model, loader = model_and_data()
    optimizer = StoppingOptimizer(model.parameters(), lr=0.1)
    with hl.Loop(model, optimizer, max_duration="8st", folder=False, strategy=hl.DDP(hang_after="8s")) as loop:
        for x, y in loop.batches(loader):
            loop.backward(cross_entropy(model(x), y))
            loop.step()


# -- several optimizers ------------------------------------------------------------------------------


class Two(hl.Task[Any]):
    """A generator and a critic, each stepped by its own optimizer inside the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = nn.Linear(6, 6), nn.Linear(6, 1)

    def configure_optimizers(self, run: Any) -> Any:
        return {
            "generator": torch.optim.SGD(self.generator.parameters(), lr=0.05),
            "critic": torch.optim.SGD(self.critic.parameters(), lr=0.05),
        }

    def train_batch(self, run: Any, batch: Any) -> None:
        x, loop = batch[0], run.loop
        made = self.generator(x)
        loss = mse_loss(self.critic(made.detach()), torch.zeros(len(x), 1)) + mse_loss(
            self.critic(x), torch.ones(len(x), 1)
        )
        loop.backward(loss, run.optimizers["critic"])
        loop.step(run.optimizers["critic"])
        loop.backward(mse_loss(self.critic(made), torch.ones(len(x), 1)), run.optimizers["generator"])
        loop.step(run.optimizers["generator"])


def two_optimizers(strategy: str = "ddp", accumulate: int = 1) -> list[float]:
    """A batch of one process is that of all ranks together: what is stepped inside it sees the same weights."""
    torch.manual_seed(0)
    task = Two()
    _, loader = model_and_data(samples=44, batch_size=8 // SIZE)
    Trainer(max_duration="1ep", folder=False, strategy=strategy, accumulate=accumulate).fit(task, loader)
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in task.parameters()]
    return [value for p in whole for value in p.detach().double().reshape(-1).tolist()]
