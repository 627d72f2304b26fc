"""What ranks do in ``test_right_numbers.py``: a small training, and the same by hand on whole windows."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
import torchmetrics
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl
from hookline.loop import Trainer

BATCH, EPOCHS, RATE = 4, 2, 0.1
SAMPLES = {"even": 64, "uneven": 75, "one left": 65}
COMBINATIONS = list(product(SAMPLES, (1, 4), (False, True)))


def data(samples: int, seed: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 4, dtype=torch.float64, generator=draw)
    y = torch.randint(0, 3, (samples,), generator=draw)
    tokens = torch.randint(1, 6, (samples,), generator=draw).to(torch.float64)
    return TensorDataset(x, y, tokens)


def model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(torch.float64)


def loss_of(logits: Tensor, y: Tensor, tokens: Tensor, weighted: bool) -> tuple[Tensor, Tensor]:
    """The mean over samples or over tokens, and how many there are."""
    each = nn.functional.cross_entropy(logits, y, reduction="none")
    weights = tokens if weighted else torch.ones_like(tokens)
    return (each * weights).sum() / weights.sum(), weights.sum()


class Classify(hl.Task):
    """A task that logs its accuracy twice: as a number, and as a metric object."""

    def __init__(self, weighted: bool) -> None:
        super().__init__()
        self.net, self.weighted = model(), weighted
        self.seen = torchmetrics.classification.MulticlassAccuracy(num_classes=3, average="micro")

    def _batch(self, run: Any, batch: Any) -> dict[str, Any]:
        x, y, tokens = batch
        logits = self.net(x)
        loss, weight = loss_of(logits, y, tokens, self.weighted)
        self.seen.update(logits, y)
        run.log({"acc": (logits.argmax(1) == y).double().mean()}, weight=len(y))
        run.log({"seen": self.seen})
        return {"loss": loss, "weight": weight} if self.weighted else {"loss": loss}

    def train_batch(self, run: Any, batch: Any) -> dict[str, Any]:
        return self._batch(run, batch)

    def eval_batch(self, run: Any, batch: Any) -> dict[str, Any]:
        return self._batch(run, batch)

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=RATE)


class Gradients(hl.Callback):
    """Keeps what each update uses."""

    def __init__(self) -> None:
        self.found: list[list[float]] = []

    def on_gradients_ready(self, run: Any) -> None:
        gradients = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in run.model.parameters()]
        self.found.append(torch.cat([g.reshape(-1) for g in gradients]).tolist())


def train(strategy: str = "auto") -> list[dict[str, Any]]:
    """Every combination, one fit after another."""
    found = []
    for kind, accumulate, weighted in COMBINATIONS:
        gradients = Gradients()
        trainer = Trainer(
            max_duration=f"{EPOCHS}ep",
            log_every="1st",
            accumulate=accumulate,
            folder=False,
            callbacks=[gradients],
            strategy=strategy,  # type: ignore[arg-type]
            seed=3,
        )
        task = Classify(weighted)
        loader = DataLoader(data(SAMPLES[kind], 1), BATCH, shuffle=False)
        result = trainer.fit(task, loader, DataLoader(data(37, 2), BATCH))
        history = result.history
        found.append(
            {
                "gradients": gradients.found,
                "samples": result.clock.sample,
                "rows": {name: history[name] for name in sorted(history)},
                "newest": {name: result.metrics[name] for name in sorted(result.metrics)},
            }
        )
    return found


def by_hand(ranks: int) -> list[dict[str, Any]]:
    """One process, no Hookline: the gradient of each whole window at once, and means over all that it holds."""
    found = []
    for kind, accumulate, weighted in COMBINATIONS:
        net, train_set, val_set = model(), data(SAMPLES[kind], 1).tensors, data(37, 2).tensors
        size = BATCH * ranks * accumulate
        rows: dict[str, list[float]] = {}
        gradients = []
        for _ in range(EPOCHS):
            losses, hits = [], 0
            for start in range(0, SAMPLES[kind], size):
                x, y, tokens = (part[start : start + size] for part in train_set)
                logits = net(x)
                loss, weight = loss_of(logits, y, tokens, weighted)
                net.zero_grad()
                loss.backward()
                gradients.append(torch.cat([p.grad.reshape(-1) for p in net.parameters()]).tolist())
                right = int((logits.argmax(1) == y).sum())
                losses.append((float(loss), float(weight)))
                hits += right
                note(rows, {"train/loss": float(loss), "train/acc": right / len(y), "train/seen": right / len(y)})
                with torch.no_grad():
                    for parameter in net.parameters():
                        parameter -= RATE * parameter.grad
            whole = sum(value * weight for value, weight in losses) / sum(weight for _, weight in losses)
            accuracy = hits / SAMPLES[kind]
            note(rows, {"train/loss_epoch": whole, "train/acc_epoch": accuracy, "train/seen_epoch": accuracy})
            with torch.no_grad():
                x, y, tokens = val_set
                logits = net(x)
                accuracy = float((logits.argmax(1) == y).double().mean())
                loss = float(loss_of(logits, y, tokens, weighted)[0])
            note(rows, {"val/loss": loss, "val/acc": accuracy, "val/seen": accuracy})
        found.append({"gradients": gradients, "samples": EPOCHS * SAMPLES[kind], "rows": rows})
    return found


def note(rows: dict[str, list[float]], values: dict[str, float]) -> None:
    for name, value in values.items():
        rows.setdefault(name, []).append(value)
