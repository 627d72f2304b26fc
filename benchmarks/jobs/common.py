"""What the scripts of all libraries share: the data, the models, and the checks that a job was done."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, STEPS_PER_EPOCH, MAX_EPOCHS = 5, 45, 100
KILLED_AT = 3 * STEPS_PER_EPOCH + 10

_images, _labels = load_digits(return_X_y=True)  # 1,797 handwritten digits, 8 by 8 pixels
_inputs, _targets = torch.tensor(_images, dtype=torch.float32) / 16, torch.tensor(_labels)
train_set = TensorDataset(_inputs[:1437], _targets[:1437])
val_set = TensorDataset(_inputs[1437:], _targets[1437:])
train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
val_loader = DataLoader(val_set, batch_size=len(val_set))


class Net(nn.Sequential):
    """Counts its training batches. With ``KILL_JOB`` the process is killed in the fourth epoch."""

    batches = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            Net.batches += torch.is_grad_enabled()
            if os.environ.get("KILL_JOB") and Net.batches == KILLED_AT:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def make_model() -> Net:
    torch.manual_seed(0)
    return Net(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))


def check_accuracy(model: nn.Module) -> None:
    """The model has learned the digits."""
    with torch.no_grad():
        outputs = model.eval()(val_set.tensors[0])
    accuracy = (outputs.argmax(-1) == val_set.tensors[1]).float().mean().item()
    assert accuracy > 0.85, f"accuracy {accuracy:.3f}"


def check_stopped(model: nn.Module, best_loss: float) -> None:
    """Training ended early, and the model has the best weights: it has the best loss on the validation data."""
    assert EPOCHS * STEPS_PER_EPOCH < Net.batches < MAX_EPOCHS * STEPS_PER_EPOCH, f"{Net.batches} batches"
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model.eval()(val_set.tensors[0]), val_set.tensors[1]).item()
    assert abs(loss - best_loss) < 0.01, f"the loss is {loss:.4f}, and the best was {best_loss:.4f}"


def check_resumed(model: nn.Module) -> None:
    """The second start did not begin again: it trained at most three of the five epochs."""
    assert 0 < Net.batches <= (EPOCHS - 2) * STEPS_PER_EPOCH + 5, f"{Net.batches} batches"
    check_accuracy(model)


def check_csv(file: str | Path, *names: str) -> None:
    """The file has a line for each epoch, and the names."""
    text = Path(file).read_text()
    missing = [name for name in names if name not in text]
    assert not missing, f"{missing} not in {text[:300]!r}"
    assert len(text.splitlines()) >= EPOCHS, text


NOISE = 8
BATCH = 256


def _layers(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)]


def _ring(number: int) -> torch.Tensor:
    angle = 2 * math.pi * torch.rand(number)
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.05 * torch.randn(number, 2)


torch.manual_seed(0)
ring_set = TensorDataset(_ring(BATCH * 100))
ring_loader = DataLoader(ring_set, batch_size=BATCH, shuffle=True)
GAN_EPOCHS = 6


def make_generator() -> nn.Module:
    return nn.Sequential(*_layers(NOISE, 2))


def make_discriminator() -> nn.Module:
    return nn.Sequential(*_layers(2, 1))


def check_generator(generator: nn.Module) -> None:
    """Its points are near the ring with radius 2. Without training they are near the centre."""
    with torch.no_grad():
        radius = generator.eval()(torch.randn(1000, NOISE)).norm(dim=1).mean().item()
    assert 1.2 < radius < 2.8, f"radius {radius:.2f}"
