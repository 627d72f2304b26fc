"""Draw the images of the callback pages into ``docs/callbacks/pictures``. ``make images`` calls it.

Each function trains a small model with the callback and saves what the callback draws or changes. The name of the
function is the name of the image.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
import torchmetrics
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

IMAGES = Path(__file__).parents[1] / "callbacks" / "pictures"
BLUE, ORANGE, GREEN, RED, GREY = "#4c78a8", "#f58518", "#54a24b", "#e45756", "#777777"
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
train_set, val_set = TensorDataset(images[:1024], labels[:1024]), TensorDataset(images[1024:], labels[1024:])
val_loader = DataLoader(val_set, batch_size=256)


def network(*, dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 10))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def fit(
    model: nn.Module,
    *callbacks: object,
    data: Any = None,
    val: Any = val_loader,
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] | None = None,
    max_duration: str = "5ep",
    seed: int = 0,
    **options: Any,
) -> hl.Result:
    """Train on the digits, without a progress bar."""
    trainer = hl.Trainer(max_duration=max_duration, seed=seed, progress=False, callbacks=callbacks, **options)
    return trainer.fit(
        model,
        data or DataLoader(train_set, batch_size=64, shuffle=True),
        val,
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=1e-2)),
    )


def accuracy(outputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) == classes).float()


def subplots(rows: int, columns: int, width: float = 6.0, height: float = 3.0, *, share: bool = False) -> Any:
    """Return a figure and its axes with a light grid, and without a frame at the top and on the right."""
    shown, panels = plt.subplots(
        rows, columns, figsize=(width, height), layout="constrained", squeeze=False, sharex=share, sharey=share
    )
    for axes in panels.flat:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return shown, panels


def batch_size_finder() -> Any:
    finder = hl.BatchSizeFinder(max_val=1024, steps_per_trial=40)
    fit(convolutions(), finder)
    return finder.figure()


def lr_finder() -> Any:
    finder = hl.LRFinder(min_lr=1e-5, max_lr=10.0)
    fit(network(), finder)
    return finder.figure()


def early_stopping() -> Any:
    stopper = hl.EarlyStopping("val/loss", patience=6, restore_best=True)
    result = fit(network(), stopper, max_duration="100ep")
    steps, losses = result.history.steps("val/loss"), result.history["val/loss"]
    best = min(range(len(losses)), key=losses.__getitem__)
    shown, [[axes]] = subplots(1, 1)
    axes.plot(steps, losses, "o-", color=ORANGE, markersize=4)
    axes.plot(steps[best], losses[best], "o", color=GREEN, markersize=9)
    axes.annotate(
        "best: restored at the end", (steps[best], losses[best]), (0, 28), textcoords="offset points", color=GREEN,
        ha="center", arrowprops={"arrowstyle": "-", "color": GREEN},
    )  # fmt: skip
    axes.axvline(steps[-1], color=RED, linestyle="--", linewidth=1)
    axes.annotate("stop: 6 evaluations\nwithout improvement", (steps[-1], max(losses)), (-6, -18),
                  textcoords="offset points", color=RED, ha="right")  # fmt: skip
    axes.set(xlabel="step", ylabel="val/loss")
    return shown


def ema() -> Any:
    shown, [[axes]] = subplots(1, 1)
    for name, callbacks, colour in (("weights of the step", [], GREY), ("EMA(0.99)", [hl.EMA(0.99)], ORANGE)):
        torch.manual_seed(0)
        result = fit(
            network(dropout=0.2),
            *callbacks,
            data=DataLoader(train_set, batch_size=8, shuffle=True),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
            max_duration="1500st",
            eval_every="25st",
        )
        axes.plot(result.history.steps("val/loss"), result.history["val/loss"], color=colour, label=name)
    axes.set(xlabel="step", ylabel="val/loss", ylim=(0.1, 0.8))
    axes.legend(frameon=False)
    return shown


def spike_guard() -> Any:
    batches = list(DataLoader(train_set, batch_size=32))
    batches[12] = [batches[12][0] * 1000, batches[12][1]]
    shown, [[axes]] = subplots(1, 1)
    for name, callbacks, colour in (("without", [], RED), ("with SpikeGuard", [hl.SpikeGuard(warmup=8)], BLUE)):
        torch.manual_seed(0)
        result = fit(network(), *callbacks, data=batches * 3, max_duration="1ep", log_every="1st")
        axes.plot(result.history.steps("train/loss"), result.history["train/loss"], color=colour, label=name)
    axes.set(xlabel="step", ylabel="train/loss", yscale="log")
    axes.legend(frameon=False)
    return shown


def lr_schedule() -> Any:
    shapes: dict[str, dict[str, Any]] = {
        "constant": {"warmup": 0.1},
        "linear": {"warmup": 0.1},
        "cosine": {"warmup": 0.1},
        "cosine_restarts": {"cycles": 3},
        "wsd": {"warmup": 0.1, "decay": "0.3dur"},
        "one_cycle": {},
    }
    shown, panels = subplots(2, 3, 7.5, 3.4, share=True)
    for (shape, options), axes in zip(shapes.items(), panels.flat, strict=True):
        schedule = hl.LRSchedule(shape, **options)  # type: ignore[arg-type]
        result = fit(network(), schedule, hl.LRMonitor(), max_duration="100st", log_every="1st")
        axes.plot(result.history.steps("lr/AdamW"), result.history["lr/AdamW"], color=BLUE)
        given = ", ".join([repr(shape), *(f"{name}={value!r}" for name, value in options.items())])
        axes.set_title(given, fontsize=8, family="monospace")
    shown.supxlabel("step", fontsize=9)
    shown.supylabel("learning rate", fontsize=9)
    return shown


def gradient_plot() -> Path:
    result = fit(convolutions(), hl.GradientPlot(every="2ep"), max_duration="2ep")
    return newest(result, "media/gradients/distribution/*.png")


def history_plot() -> Path:
    measured = hl.Metrics({"acc": accuracy}, stages=("train", "val"))
    result = fit(network(dropout=0.3), measured, hl.HistoryPlot(), max_duration="15ep", log_every="8st", name="digits")
    return newest(result, "plots/*.png")


def image_samples() -> Path:
    classes = [str(digit) for digit in range(10)]
    shuffled = DataLoader(val_set, batch_size=256, shuffle=True)
    samples = hl.ImageSamples(count=12, classes=classes)
    result = fit(network(), samples, val=shuffled, max_duration="1ep")
    return newest(result, "media/val/samples/*.png")


def image_samples_masks() -> Path:
    torch.manual_seed(0)
    row, column = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    centres, corners = torch.randint(8, 24, (256, 2, 1, 1)), torch.randint(2, 20, (256, 2, 1, 1))
    disc = (row - centres[:, 0]) ** 2 + (column - centres[:, 1]) ** 2 < 40
    square = (row >= corners[:, 0]) & (row < corners[:, 0] + 10) & (column >= corners[:, 1])
    square &= column < corners[:, 1] + 10
    masks = torch.where(disc, 1, torch.where(square, 2, 0))
    scans = (0.45 * disc + 0.9 * (square & ~disc) + 0.15 * torch.randn(256, 32, 32)).clamp(0, 1).unsqueeze(1)
    data = DataLoader(TensorDataset(scans, masks), batch_size=16)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 3, 1)
    )
    result = fit(model, hl.ImageSamples(count=6), data=data, val=data, max_duration="2ep")
    return newest(result, "media/val/samples/*.png")


def activation_monitor() -> Any:
    shown, [panels] = subplots(1, 2, 7.5, 2.8)
    for lr, axes in zip((0.003, 0.1), panels, strict=True):
        torch.manual_seed(0)
        result = fit(
            convolutions(), hl.ActivationMonitor(every="4st", layers=("1", "3", "7")), max_duration="160st",
            optimizer=lambda parameters, lr=lr: torch.optim.AdamW(parameters, lr=lr),
        )  # fmt: skip
        for layer, colour in (("1", BLUE), ("3", ORANGE), ("7", RED)):
            name = f"activations/zeros/{layer}"
            axes.plot(result.history.steps(name), result.history[name], color=colour, label=name)
        axes.set(xlabel="step", ylim=(0, 1.03), title=f"learning rate {lr}")
    panels[0].set_ylabel("fraction of zeros after ReLU")
    panels[0].legend(frameon=False, fontsize=8)
    return shown


def gradient_monitor() -> Any:
    torch.manual_seed(0)
    result = fit(convolutions(), hl.GradientMonitor(every="1st"), max_duration="100st")
    names = [name for name in result.history if name.startswith("grad_norm/")]
    shown, [[axes]] = subplots(1, 1)
    for name in names:
        axes.plot(result.history.steps(name), result.history[name], label=name, linewidth=1.2)
    axes.set(xlabel="step", ylabel="norm of the gradient", yscale="log")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return shown


def metrics() -> Any:
    confusion = torchmetrics.ConfusionMatrix("multiclass", num_classes=10)
    result = fit(network(), hl.Metrics({"confusion": confusion}), max_duration="2ep")
    matrix = torch.as_tensor(result.metrics["val/confusion"])
    shown, [[axes]] = subplots(1, 1, 4.2, 4.0)
    axes.imshow(matrix.float().sqrt().numpy(), cmap="Blues")
    for truth, row in enumerate(matrix.tolist()):
        for found, count in enumerate(row):
            dark = count > matrix.max() / 3
            axes.text(found, truth, int(count) or "", ha="center", va="center", fontsize=7, color="w" if dark else "k")
    axes.grid(visible=False)
    axes.set(xticks=range(10), yticks=range(10), xlabel="predicted class", ylabel="true class", title="val/confusion")
    return shown


def mix_up() -> Any:
    return mixed(hl.MixUp(alpha=1.0), seed=1)


def cut_mix() -> Any:
    return mixed(hl.CutMix(), seed=9)


def mixed(callback: hl.Callback, *, seed: int) -> Any:
    """Draw eight images before and after the callback has mixed them."""
    batches: dict[str, torch.Tensor] = {}

    @hl.on("train_step_start")
    def before(run: hl.Run) -> None:
        batches.setdefault("batch", run.batch[0][:8].clone())

    @hl.on("forward_end")
    def after(run: hl.Run) -> None:
        batches.setdefault("mixed", run.batch[0][:8].clone())

    data = DataLoader(train_set, batch_size=8)
    fit(network(), before, callback, after, data=data, val=None, max_duration="1st", seed=seed)
    shown, panels = subplots(2, 8, 7.0, 2.0)
    for (name, row), line in zip(batches.items(), panels, strict=True):
        for image, axes in zip(row, line, strict=True):
            axes.imshow(image[0].numpy(), cmap="gray_r", vmin=0, vmax=1)
            axes.grid(visible=False)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(True)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    return shown


def newest(result: hl.Result, pattern: str) -> Path:
    assert result.folder is not None
    return sorted(result.folder.glob(pattern))[-1]


DRAWN = (
    *(activation_monitor, batch_size_finder, cut_mix, early_stopping, ema, gradient_monitor, gradient_plot),
    *(history_plot, image_samples, image_samples_masks, lr_finder, lr_schedule, metrics, mix_up, spike_guard),
)


def draw(names: Iterable[str] = ()) -> None:
    """Draw some images, or all of them. Runs write into a temporary folder."""
    wanted = list(names)
    with tempfile.TemporaryDirectory() as folder:
        here = Path.cwd()
        os.chdir(folder)
        try:
            for function in DRAWN:
                if not wanted or function.__name__ in wanted:
                    torch.manual_seed(0)
                    save(function(), IMAGES / f"{function.__name__}.png")
        finally:
            os.chdir(here)


def save(drawn: Any, path: Path) -> None:
    """Save a figure, or copy the file that a callback has written."""
    print(path.name, file=sys.stderr)
    if isinstance(drawn, Path):
        shutil.copy(drawn, path)
    else:
        drawn.savefig(path, dpi=110)
        plt.close("all")


if __name__ == "__main__":
    draw(sys.argv[1:])
