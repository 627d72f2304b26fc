"""Right numbers: however the data is cut, what is logged equals the one number over all of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import hookline as hl
from hookline.loop import Trainer

SAMPLES, LENGTH, CLASSES = 22, 6, 5
EVEN, UNEVEN = [4, 4, 4, 4, 4, 2], [7, 1, 5, 3, 4, 2]


def tokens() -> tuple[Tensor, Tensor]:
    """Scores of a classifier of tokens for 22 texts of uneven length; what is beyond a text's end is -100."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, LENGTH, 8, generator=generator)
    classes = torch.randint(0, CLASSES, (SAMPLES, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (SAMPLES,), generator=generator)
    classes[torch.arange(LENGTH) >= lengths[:, None]] = -100
    return inputs, classes


class Tagger(hl.Task):
    """The weights do not move, so that all batches of an epoch meet the same model."""

    def __init__(self, by_tokens: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(8, CLASSES)
        self.by_tokens = by_tokens

    def configure_optimizers(self, run: hl.Run) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def train_batch(self, run: hl.Run, batch: Any) -> Any:
        loss, accuracy, weight = measure(self.net, *batch, by_tokens=self.by_tokens)
        run.log({"acc": accuracy}, weight=weight)
        return {"loss": loss, "weight": weight}

    def eval_batch(self, run: hl.Run, batch: Any) -> Any:
        loss, accuracy, weight = measure(self.net, *batch, by_tokens=self.by_tokens)
        run.log({"acc": accuracy, "loss": loss}, weight=weight)


def measure(net: nn.Module, inputs: Tensor, classes: Tensor, *, by_tokens: bool) -> tuple[Tensor, Tensor, Any]:
    """Loss and accuracy of a batch: the mean over its tokens, or the mean over its texts of what each text has."""
    scores = net(inputs)
    each = nn.functional.cross_entropy(scores.flatten(0, 1), classes.flatten(), reduction="none").view(classes.shape)
    right, real = (scores.argmax(-1) == classes).float(), classes != -100
    if by_tokens:
        return each[real].mean(), right[real].mean(), int(real.sum())
    counts = real.sum(1)
    return ((each * real).sum(1) / counts).mean(), ((right * real).sum(1) / counts).mean(), len(inputs)


def batches(sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    inputs, classes = tokens()
    return list(zip(inputs.split(sizes), classes.split(sizes), strict=True))


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("by_tokens", [False, True], ids=["mean", "by tokens"])
def test_loss_and_accuracy_equal_those_of_one_full_batch(accumulate: int, sizes: list[int], by_tokens: bool) -> None:
    task = Tagger(by_tokens)
    with torch.no_grad():
        loss, accuracy, _ = measure(task.net.double(), tokens()[0].double(), tokens()[1], by_tokens=by_tokens)
    task.net.float()
    trainer = Trainer(max_duration="1ep", accumulate=accumulate, log_every="2st", folder=False)
    result = trainer.fit(task, batches(sizes), batches(sizes))
    for stage, suffix in (("train", "_epoch"), ("val", "")):
        assert result.metrics[f"{stage}/loss{suffix}"] == pytest.approx(float(loss), abs=1e-6)
        assert result.metrics[f"{stage}/acc{suffix}"] == pytest.approx(float(accuracy), abs=1e-6)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_an_interval_is_the_mean_over_its_own_batches(accumulate: int) -> None:
    task, found = Tagger(by_tokens=True), batches(UNEVEN)
    trainer = Trainer(max_duration="1ep", accumulate=accumulate, log_every="1st", folder=False)
    history = trainer.fit(task, found).history
    windows = [found[at : at + accumulate] for at in range(0, len(found), accumulate)]
    with torch.no_grad():
        expected = [
            measure(task.net, *(torch.cat(parts) for parts in zip(*window, strict=True)), by_tokens=True)
            for window in windows
        ]
    assert history["train/loss"] == pytest.approx([float(loss) for loss, _, _ in expected], abs=1e-6)
    assert history["train/acc"] == pytest.approx([float(accuracy) for _, accuracy, _ in expected], abs=1e-6)


class Reads(TorchDispatchMode):
    """Counts what reads a number from a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class Logs(hl.Callback):
    """Five metrics in every step, as tensors and together."""

    def on_train_step_end(self, run: hl.Run) -> None:
        loss = run.loss.detach()
        run.log({"a": loss, "b": loss * 2, "c": loss * 3, "d": loss + 1, "e": loss - 1})
        run.log({"single": loss}, weight=torch.tensor(2.0))


@pytest.mark.parametrize("log_every", ["100st", "2000st"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_between_intervals_nothing_is_read_from_the_device(optimizer: Any, log_every: str) -> None:
    """Also in an interval so long that values are folded on the way."""
    steps = 1200 if log_every == "2000st" else 99
    net, data = nn.Linear(4, 2), [(torch.randn(8, 4), torch.randint(0, 2, (8,)))] * (steps + 10)
    with Reads() as bare:
        stepper = optimizer(net.parameters(), lr=0.1)
        for x, y in data[:steps]:
            nn.functional.cross_entropy(net(x), y).backward()
            stepper.step()
            stepper.zero_grad()
    seen: list[int] = []
    callbacks = [Logs(), hl.LRMonitor(), hl.SpeedMonitor(), hl.ProgressBar(style=None)]
    with Reads() as ours:
        look = hl.on("train_step_end", at=f"{steps}st")(lambda run: seen.append(ours.count))
        trainer = Trainer(
            max_duration=f"{steps + 5}st", log_every=log_every, folder=False, callbacks=[*callbacks, look]
        )
        trainer.fit(nn.Linear(4, 2), data, loss=nn.CrossEntropyLoss(), optimizer=lambda p: optimizer(p, lr=0.1))
    assert seen == [bare.count]
