"""A training script of the kind that its first argument names: ``recipe.py KIND FOLDER``."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

import hookline as hl
from hookline.records.control import ControlRequest

KIND, FOLDER, *MORE = sys.argv[1:]
IS_REPLAY = "HOOKLINE_REPLAY" in os.environ
SAMPLES = 320
LOSS = nn.CrossEntropyLoss()
BAD_AT_31 = 268
"""Index of a sample of the batch of step 31, with the seed of the recipes."""


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Samples with random noise on the inputs, if they are augmented. One of them may be bad."""

    def __init__(self, *, augments: bool = False, bad: int | None = None, value: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(SAMPLES, 6, generator=generator)
        self.targets = torch.randint(0, 3, (SAMPLES,), generator=generator)
        self.augments = augments
        if bad is not None:
            self.inputs[bad] = value

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(6) * random.random() if self.augments else 0.0
        return self.inputs[index] + noise, self.targets[index]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """The same samples one after the other, divided among the workers."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker, samples = get_worker_info(), Samples()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return (samples[index] for index in range(first, SAMPLES, step))


class Unsteady(Sampler[int]):
    """An order that no seed gives again."""

    def __init__(self) -> None:
        self.order = random.SystemRandom().sample(range(SAMPLES), SAMPLES)

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)


class Drift(hl.Callback):
    """Adds to each loss a number that differs between two processes."""

    def on_loss_ready(self, run: hl.Run) -> None:
        if run.clock.step >= 12:
            run.loss = run.loss * (1 + random.SystemRandom().random() * 1e-3)


class Person(hl.Callback):
    """Asks from outside for another learning rate, once."""

    def __init__(self, step: int, lr: float) -> None:
        self.step, self.lr, self.has_asked = step, lr, False

    def on_train_step_end(self, run: hl.Run) -> None:
        if run.clock.step == self.step and run.folder is not None and not self.has_asked:
            self.has_asked = True
            ControlRequest.new("set", {"lr": self.lr}).write(run.folder)
            run.loop.engine.requests.ask_control()  # The thread of the run does this within a second.


class Adversarial(hl.Task[tuple[Tensor, Tensor]]):
    """Two models with an optimizer each, in turn on every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = build(6), nn.Linear(3, 3)

    def configure_optimizers(self, run: hl.Run) -> Any:
        return {
            "first": torch.optim.Adam(self.first.parameters(), lr=0.01),
            "second": torch.optim.SGD(self.second.parameters(), lr=0.1, momentum=0.9),
        }

    def train_batch(self, run: hl.Run, batch: tuple[Tensor, Tensor]) -> None:
        inputs, targets = batch
        hidden = self.first(inputs)
        run.loop.backward(LOSS(self.second(hidden.detach()), targets), run.optimizers["second"])
        run.loop.step(run.optimizers["second"])
        run.loop.backward(LOSS(self.second(hidden), targets), run.optimizers["first"])
        run.loop.step(run.optimizers["first"])


def build(inputs: int = 6, *, normalizes: bool = True) -> nn.Module:
    norm = nn.BatchNorm1d(16) if normalizes else nn.Identity()
    return nn.Sequential(nn.Linear(inputs, 16), norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def loader(samples: Dataset[Any] | None = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(samples or Samples(augments=True), batch_size=8, **({"shuffle": True} | options))


def momentum(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@dataclass
class Recipe:
    """What a script gives to the trainer."""

    model: Any = field(default_factory=build)
    train: Any = field(default_factory=loader)
    callbacks: list[Any] = field(default_factory=lambda: [hl.Checkpointer("15st", keep_last=None)])
    options: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=lambda: {"loss": LOSS, "optimizer": torch.optim.AdamW})


def ema(recipe: Recipe) -> None:
    recipe.callbacks += [hl.EMA(decay=0.9), hl.SaveBest("val/loss"), hl.EarlyStopping("val/loss", patience=50)]
    recipe.given["val"] = DataLoader(Samples(), batch_size=64)
    recipe.options["eval_every"] = "9st"


def accumulation(recipe: Recipe) -> None:
    recipe.options["accumulate"] = 3
    recipe.callbacks.append(hl.GradientClip(norm=0.5))


def optimizers(recipe: Recipe) -> None:
    recipe.model, recipe.given = Adversarial(), {}


def schedule(recipe: Recipe) -> None:
    optimizer = recipe.given["optimizer"] = momentum(recipe.model)
    recipe.given["scheduler"] = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)


def rollback(recipe: Recipe) -> None:
    """A bad sample, which comes at step 31, takes back the steps since the snapshot of step 24."""
    recipe.model = build(normalizes=False)
    recipe.train = loader(Samples(bad=BAD_AT_31, value=1e6))
    recipe.callbacks.append(hl.SpikeGuard(action="rollback", snapshot_every="12st", warmup=5))


def bad_sample(recipe: Recipe) -> None:
    recipe.model = build(normalizes=False)
    recipe.train = loader(Samples(bad=int(MORE[0]), value=float(MORE[1])))
    recipe.callbacks += [hl.StopOnNaN()] if MORE[2:] == ["guarded"] else []
    recipe.options.update({"accumulate": 4} if MORE[2:] == ["accumulated"] else {})


def control(recipe: Recipe) -> None:
    """A person sets another learning rate at step 34. The replay must find it in the record, and not ask again."""
    schedule(recipe)
    if not IS_REPLAY:
        recipe.callbacks.append(Person(34, lr=0.3))


def control_undone(recipe: Recipe) -> None:
    """A person sets another learning rate at a step that is taken back later, and made again."""
    rollback(recipe)
    if not IS_REPLAY:
        recipe.callbacks.append(Person(27, lr=0.002))


CHANGES: dict[str, Callable[[Recipe], object]] = {
    "workers": lambda recipe: setattr(recipe, "train", loader(num_workers=2, persistent_workers=True)),
    "augmentation": lambda recipe: None,
    "ema": ema,
    "accumulation": accumulation,
    "optimizers": optimizers,
    "bf16": lambda recipe: recipe.options.update(precision="bf16"),
    "custom loop": lambda recipe: None,
    "schedule": schedule,
    "iterable": lambda recipe: setattr(recipe, "train", loader(Stream(), shuffle=None, num_workers=2)),
    "rollback": rollback,
    "control": control,
    "control undone": control_undone,
    "bad sample": bad_sample,
    "unsteady order": lambda recipe: setattr(recipe, "train", loader(Samples(), shuffle=None, sampler=Unsteady())),
    "unsteady loss": lambda recipe: recipe.callbacks.append(Drift()),
    "no record": lambda recipe: recipe.options.update(log_every=None),
    "prune": lambda recipe: setattr(recipe, "callbacks", [hl.Checkpointer("15st", keep_last=1)]),
}


def main() -> None:
    torch.manual_seed(3)
    recipe = Recipe()
    CHANGES[KIND](recipe)
    options = {"max_duration": "60st", "folder": FOLDER, "seed": 3, "log_every": "7st", **recipe.options}
    if KIND == "custom loop":
        with hl.Loop(recipe.model, torch.optim.AdamW, callbacks=recipe.callbacks, **options) as loop:
            for inputs, targets in loop.batches(recipe.train):
                loop.backward(LOSS(recipe.model(inputs), targets))
                loop.step()
    else:
        trainer = hl.Trainer(callbacks=recipe.callbacks, progress=False, **options)
        trainer.fit(recipe.model, recipe.train, **recipe.given)
    print("after the fit")


if __name__ == "__main__":
    main()
