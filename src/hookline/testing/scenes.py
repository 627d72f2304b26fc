"""The tiny runs in which the contract observes a callback."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from hookline.distributed.random_states import same_random_state
from hookline.events import Callback, Failure
from hookline.loop import Loop, Result, SupervisedTask, Trainer
from hookline.testing.drive import Item
from hookline.testing.surroundings import plain, random_states
from hookline.testing.tiny import TinyModel, tiny_data

if TYPE_CHECKING:
    from hookline.run import Run

TRAIN = tiny_data(batches=5, batch_size=4, last=3)
VAL = tiny_data(batches=2, batch_size=4, last=3, seed=1)
METRICS = {"train/loss": 0.5, "train/acc": 0.5}
EVAL_METRICS = {"val/loss": 0.5, "val/acc": 0.5}


class Classifier(SupervisedTask):
    """A task with dropout that logs ``loss`` and ``acc`` and counts samples and tokens."""

    def __init__(self) -> None:
        super().__init__(TinyModel(dropout=0.25), nn.CrossEntropyLoss(), _optimizer, _scheduler)

    def train_batch(self, run: Run, batch: Any) -> Any:
        loss = super().train_batch(run, batch)
        run.log({"acc": accuracy(run.outputs, batch[1])}, weight=len(batch[1]))
        return loss

    def eval_batch(self, run: Run, batch: Any) -> Any:
        found = super().eval_batch(run, batch)
        run.log({"acc": accuracy(found["outputs"], batch[1])}, weight=len(batch[1]))
        return found

    def count(self, batch: Any) -> tuple[int, int | None]:
        return len(batch[1]), 4 * len(batch[1])


def _optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _scheduler(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)


def accuracy(outputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(-1) == classes).float().mean()


class Watcher(Callback):
    """Record random states, modes and grad mode at every event, after all other callbacks."""

    reads = ("*",)

    def __init__(self) -> None:
        self.random: dict[tuple[Any, ...], Any] = {}
        self.modes: dict[tuple[Any, ...], Any] = {}

    def on_event(self, event: str, run: Run) -> None:
        key = (event, run.clock.step, run.clock.batch, run.stage)
        if run.stage == "train":  # An evaluation restores the random states.
            self.random.setdefault(key, random_states())
        modes = {name or "the model": part.training for name, part in run.model.named_modules()}
        self.modes.setdefault(key, {**modes, "grad mode": torch.is_grad_enabled()})


class Fit:
    """A trainer and its task, to fit once or more."""

    def __init__(self, callbacks: Sequence[Callback], folder: Path | Literal[False] = False, **options: Any) -> None:
        self.task = Classifier()
        defaults: dict[str, Any] = {
            "max_duration": "2ep",
            "log_every": "2st",
            "device": "cpu",
            "seed": 0,
            "folder": folder,
        }
        self.trainer = Trainer(callbacks=callbacks, **defaults | options)

    def __call__(self, extend: str | None = None) -> Result:
        return self.trainer.fit(self.task, TRAIN, VAL, VAL, extend=extend)

    def evaluate(self) -> None:
        self.trainer.evaluate(self.task, VAL)
        self.trainer.test(self.task, VAL)

    def predict(self) -> None:
        self.trainer.predict(self.task, VAL)

    @property
    def failures(self) -> tuple[Failure, ...]:
        loop = self.trainer._loop
        return () if loop is None else tuple(loop.engine.line.failures)

    def weights(self) -> dict[str, Any]:
        """Return the bits of the weights and of the optimizer."""
        loop = self.trainer._loop
        optimizers = {} if loop is None else loop.engine.state.optimizers
        state = {f"{name} (optimizer)": optimizer.state_dict() for name, optimizer in optimizers.items()}
        return {name: plain(value) for name, value in {**self.task.state_dict(), **state}.items()}


def own_loop(callback: Callback, folder: Path, *, leave: bool = False) -> tuple[Failure, ...]:
    """Run a custom loop with an evaluation. With ``leave``, the body exits by ``break``."""
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.functional.cross_entropy
    with Loop(
        model, optimizer, callbacks=[callback], max_duration="2ep", accumulate=2, folder=folder, device="cpu"
    ) as loop:
        for x, y in loop.batches(TRAIN):
            outputs = model(x)
            loop.run.log({"acc": accuracy(outputs, y)}, weight=len(y))
            loop.backward(loss(outputs, y), outputs=outputs)
            loop.step()
            if loop.eval_due:
                for x_val, y_val in loop.eval_batches(VAL):
                    outputs = loop.run.outputs = model(x_val)
                    logged = {"loss": loss(outputs, y_val), "acc": accuracy(outputs, y_val)}
                    loop.run.log(logged, weight=len(y_val))
            if leave and loop.engine.clock.batch == 7:
                break
    return tuple(loop.engine.line.failures)


@contextmanager
def tried_out() -> Iterator[Path]:
    """Provide a run folder and another working directory; isolate output and random states."""
    threads = torch.get_num_threads()
    with TemporaryDirectory(prefix="hookline-contract-") as folder:
        here = Path(folder) / "here"
        here.mkdir()
        with chdir(here), same_random_state(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            torch.set_num_threads(1)  # For such tiny models, more threads are many times slower.
            try:
                yield Path(folder) / "run"
            finally:
                torch.set_num_threads(threads)


def files_here() -> list[str]:
    """Return the files in the working directory."""
    return sorted(os.listdir())


def every_event(checkpoint: Path) -> list[Item]:
    """Return every event and scope of the table, in an order that a run could have."""
    batch: list[Item] = [*["train_batch_start", "forward_start", "forward_end", "loss_ready"]]
    batch += ["backward_start", "backward_end", "train_batch_end"]
    update: list[Item] = [
        "gradients_ready",
        "optimizer_step_start",
        "optimizer_step_end",
        "scheduler_step",
        "zero_grad",
    ]
    fetch: list[Item] = ["batch_fetch_start", "batch_fetch_end"]
    eval_batch: list[Item] = [*fetch, "eval_batch_start", "forward_start", "forward_end", "eval_batch_end"]
    evaluation: Item = (
        "around_eval",
        [
            "eval_start",
            "eval_loader_start",
            *eval_batch,
            ("eval_loader_end", {"metrics": EVAL_METRICS}),
            ("eval_end", {"metrics": EVAL_METRICS}),
        ],
    )
    saved = {"checkpoint": checkpoint}
    step: Item = ("around_step", ["train_step_start", ("around_batch", batch), *update, "train_step_end"])
    epoch: list[Item] = [
        "train_epoch_start",
        *fetch,
        step,
        ("metrics_ready", {"metrics": METRICS}),
        ("train_epoch_end", {"metrics": METRICS}),
        evaluation,
        "epoch_end",
        "step_settled",
        ("around_save", ["checkpoint_save", ("checkpoint_saved", saved)]),
    ]
    skipped: Item = ("around_step", ["train_step_start", ("around_batch", batch), "step_skipped", "zero_grad"])
    train: list[Item] = [
        "train_start",
        ("around_epoch", epoch),
        ("around_epoch", ["train_epoch_start", *fetch, skipped, "rollback", "train_epoch_end", "epoch_end"]),
        ("around_save", ["checkpoint_save", "checkpoint_failed"]),
        "interrupt",
        "preempt",
        "stop",
        "train_end",
    ]
    predict: list[Item] = ["predict_start", *fetch, "predict_batch_start", "predict_batch_end", "predict_end"]
    fit: list[Item] = ["fit_start", "sanity_check_start", "sanity_check_end", ("around_train", train), "fit_end"]
    return [
        "setup",
        ("checkpoint_rejected", saved),
        ("checkpoint_loaded", saved),
        "model_ready",
        ("around_fit", fit),
        "callback_disabled",
        ("around_predict", predict),
        "exception",
        "teardown",
    ]
