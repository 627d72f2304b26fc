"""What ranks do in ``test_left_evaluations.py``."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

import hookline as hl
from hookline.loop import Trainer

RANK = int(os.environ.get("RANK", "0"))
HANG = "8s"


class Task(hl.SupervisedTask):
    """``trouble`` comes in the third batch of an evaluation, on rank one, before its forward."""

    def __init__(self, trouble: str = "", pause: float = 0.0) -> None:
        super().__init__(model(), nn.MSELoss(), torch.optim.SGD)
        self._trouble, self._pause = trouble, pause

    def eval_batch(self, run: Any, batch: Any) -> Any:
        time.sleep(self._pause)
        if self._trouble and run.rank == 1 and run.clock.step and run.clock.eval.batch == 2:
            trouble, self._trouble = self._trouble, ""
            if trouble == "stop":
                raise hl.StopTraining("enough")
            os.kill(os.getpid(), signal.Signals[trouble])
        return super().eval_batch(run, batch)


class StopInHook(hl.Callback):
    """Raises in one hook of an evaluation, on rank one."""

    def __init__(self, hook: str) -> None:
        self._hook = hook

    def on_event(self, event: str, run: Any) -> None:
        if event == self._hook and run.rank == 1 and run.clock.step:
            raise hl.StopTraining("enough")


class Batches(hl.Callback):
    """How many batches this rank has evaluated, and which evaluations were told the end of."""

    def __init__(self) -> None:
        self.seen = self.ended = 0

    def on_eval_batch_end(self, run: Any) -> None:
        self.seen += 1

    def on_eval_end(self, run: Any) -> None:
        self.ended += 1


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def batches(count: int) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 4, generator=generator), torch.randn(4, 1, generator=generator)) for _ in range(count)]


def strategy_of(name: str) -> Any:
    return (hl.DDP if name == "ddp" else hl.FSDP)(hang_after=HANG)


def fit_with_trouble(
    strategy: str, trouble: str = "", hook: str = "", pause: float = 0.0, folder: str = ""
) -> dict[str, Any]:
    """Four steps with an evaluation of 30 batches a rank after each two."""
    counter, task = Batches(), Task(trouble, pause)
    callbacks: list[Any] = [counter, *([StopInHook(hook)] if hook else [])]
    trainer = Trainer(
        max_duration="4st",
        eval_every="2st",
        folder=folder or False,
        callbacks=callbacks,
        strategy=strategy_of(strategy),
    )
    code, step, reason = 0, -1, ""
    try:
        result = trainer.fit(task, batches(16), batches(60))
        step, reason = result.clock.step, result.stop_reason
    except hl.Preempted as preempted:
        code = preempted.code
    return {"code": code, "step": step, "reason": str(reason), "ended": counter.ended, "seen": counter.seen}


def stop_in_the_sanity_check() -> dict[str, Any]:
    """On rank one, with somebody who waits for a metric."""

    class Stops(Task):
        def eval_batch(self, run: Any, batch: Any) -> Any:
            if run.rank == 1:
                raise hl.StopTraining("nothing to measure")
            return super().eval_batch(run, batch)

    waits = hl.EarlyStopping("val/loss", patience=2)
    trainer = Trainer(max_duration="4st", folder=False, callbacks=[waits], strategy=strategy_of("ddp"))
    result = trainer.fit(Stops(), batches(16), batches(60))
    return {"reason": result.stop_reason, "step": result.clock.step}


def numbers(net: nn.Module) -> float:
    total = 0.0
    for parameter in net.parameters():
        value: Any = parameter.detach()
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        total += float(value.double().sum())
    return total


class Unsaveable(hl.Callback):
    """A signal comes, and then there is a state that cannot be saved, on rank one."""

    per_rank_state = True
    gone = False

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.step == 2:
            self.gone = True
            os.kill(os.getpid(), signal.SIGTERM)

    def state_dict(self) -> dict[str, Any]:
        return {"found": object() if self.gone and RANK == 1 else None}


def preempted_without_a_state(folder: str) -> dict[str, Any]:
    trainer = Trainer(max_duration="8st", folder=folder, callbacks=[Unsaveable()])
    try:
        trainer.fit(Task(), batches(32))
    except hl.Preempted as preempted:
        return {"code": preempted.code, "saved": preempted.checkpoint is not None}
    return {"code": 0}


def told(folder: str) -> dict[str, Any]:
    """An evaluation of a minute: a signal from outside comes in the middle of it."""

    class Tell(hl.Callback):
        def on_eval_batch_end(self, run: Any) -> None:
            if run.clock.eval.batch == 3:
                (Path(folder) / f"here-{run.rank}").touch()

    counter = Batches()
    trainer = Trainer(max_duration="4st", eval_every="2st", folder=folder, callbacks=[counter, Tell()])
    try:
        trainer.fit(Task(pause=0.25), batches(16), batches(480))
    except hl.Preempted as preempted:
        saved = Path(str(preempted.checkpoint)).name
        return {"code": preempted.code, "seen": counter.seen, "ended": counter.ended, "saved": saved}
    return {"code": 0}


class TwoRoots(hl.Task[Any]):
    """Two modules whose forward is called, of which one may be called twice, or only in evaluations."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.first, self.second, self._case, self._batches = nn.Linear(4, 8), nn.Linear(8, 1), case, 0
        self._skipped = False

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_batch(self, run: Any, batch: Any) -> Any:
        if self._case == "only evaluated":
            if RANK == 1 and run.clock.step == 3 and not self._skipped:
                self._skipped = True
                return run.skip_step()
            return self.first(batch[0]).square().mean()
        return nn.functional.mse_loss(self.second(self.first(batch[0])).float(), batch[1])

    def eval_batch(self, run: Any, batch: Any) -> Any:
        self._batches += bool(run.clock.step) or self._case == "first batch"  # not those of the sanity check
        leaves = RANK == 1 and self._batches == (1 if self._case == "first batch" else 3)
        if leaves and self._case in ("called twice", "first batch"):
            raise hl.StopTraining("enough")
        hidden = self.first(batch[0])
        if leaves and self._case == "between two":
            raise hl.StopTraining("enough")
        hidden = hidden + self.first(batch[0] + 1) if self._case == "called twice" else hidden
        return nn.functional.mse_loss(self.second(hidden).float(), batch[1])


def two_roots(kind: str) -> str:
    precision = "bf16" if kind == "between two" else "fp32"
    options: dict[str, Any] = {"eval_every": "2st", "folder": False, "precision": precision}
    hears = hl.LambdaCallback(on_train_step_start=lambda run: None)  # so that there is a vote in each step
    trainer = Trainer(max_duration="6st", strategy=strategy_of("fsdp"), callbacks=[hears], **options)
    return str(trainer.fit(TwoRoots(kind), batches(32), batches(40)).stop_reason)


def stop_in_prediction() -> None:
    class Stops(hl.SupervisedTask):
        made = 0

        def predict_batch(self, run: Any, batch: Any) -> Any:
            self.made += 1
            if RANK == 1 and self.made == 5:
                raise hl.StopTraining("enough")
            return super().predict_batch(run, batch)

    task = Stops(model(), nn.MSELoss(), torch.optim.SGD)
    Trainer(folder=False, strategy=strategy_of("ddp")).predict(task, batches(40))


class Uneven(Task):
    """The second batch of an evaluation takes no time, as one that a worker has ready."""

    seen = 0

    def eval_batch(self, run: Any, batch: Any) -> Any:
        self.seen += bool(run.clock.step)
        time.sleep(0.2 if run.clock.step and self.seen != 2 else 0.0)
        if self.seen == 3 and RANK == 1:
            raise hl.StopTraining("enough")
        return hl.SupervisedTask.eval_batch(self, run, batch)


def uneven() -> int:
    task = Uneven()
    Trainer(max_duration="2st", eval_every="2st", folder=False).fit(task, batches(8), batches(120))
    return task.seen


def left_after_an_answer(strategy: str) -> dict[str, Any]:
    """A hook of an evaluation asks for a prediction, on all ranks; then one of them leaves the evaluation."""

    class Answers(hl.Callback):
        lengths: ClassVar[list[int]] = []

        def on_eval_batch_end(self, run: Any) -> None:
            if run.clock.step and run.clock.eval.batch == 2:
                self.lengths.append(len(run.predict("val")))

    counter, answers = Batches(), Answers()
    options: dict[str, Any] = {"eval_every": "2st", "folder": False, "strategy": strategy_of(strategy)}
    trainer = Trainer(max_duration="4st", callbacks=[counter, answers], **options)
    result = trainer.fit(Task("stop"), batches(16), batches(20))
    return {"step": result.clock.step, "answers": answers.lengths, "ended": counter.ended}


def interrupted_after_break() -> dict[str, Any]:
    """All ranks break out of their evaluation, and Ctrl-C comes to rank one before its next call."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    options: dict[str, Any] = {"folder": False, "eval_every": "1st", "strategy": strategy_of("ddp")}
    with hl.Loop(net, optimizer, max_duration="6st", **options) as loop:
        for x, y in loop.batches(batches(24)):
            loop.backward(nn.functional.mse_loss(net(x), y))
            loop.step()
            if loop.eval_due:
                for x_val, _ in loop.eval_batches(batches(12)):
                    net(x_val)
                    if loop.run.clock.step == 2:
                        break
                if RANK == 1 and loop.run.clock.step == 2:
                    os.kill(os.getpid(), signal.SIGINT)
    result = loop.result()
    return {"step": loop.run.clock.step, "reason": result.stop_reason, "sum": numbers(net)}


def stop_at_the_end_of_a_left_loader(strategy: str) -> dict[str, Any]:
    """All ranks break out of their evaluation, and then a hook of the loader's end stops the run on rank one."""

    class Stops(hl.Callback):
        def on_eval_loader_end(self, run: Any) -> None:
            if RANK == 1 and run.clock.step == 2:
                raise hl.StopTraining("enough")

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    options: dict[str, Any] = {"folder": False, "eval_every": "1st", "strategy": strategy_of(strategy)}
    with hl.Loop(net, optimizer, max_duration="6st", callbacks=[Stops()], **options) as loop:
        for x, y in loop.batches(batches(24)):
            loop.backward(nn.functional.mse_loss(net(x), y))
            loop.step()
            if loop.eval_due:
                for number, (x_val, _) in enumerate(loop.eval_batches(batches(12))):
                    net(x_val)
                    if number == 2:
                        break
    return {"step": loop.run.clock.step, "reason": loop.result().stop_reason, "sum": numbers(net)}


def slow_end() -> int:
    """A sink of rank zero takes longer to close than a rank may be silent for."""

    class Slow:
        def log(self, values: dict[str, Any], step: int) -> None:
            pass

        def close(self) -> None:
            time.sleep(8)

    options: dict[str, Any] = {"log_every": "1st", "sinks": [Slow()], "strategy": hl.DDP(hang_after="4s")}
    return Trainer(max_duration="2st", folder=False, **options).fit(Task(), batches(8)).clock.step
