"""A tiny model and tiny data, for a fit that takes milliseconds and learns something."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TinyModel(nn.Module):
    """A classifier with four inputs and three classes.

    Args:
        dropout: Dropout probability, for randomness in training.
        seed: Seed of the initial weights.
    """

    def __init__(self, *, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.hidden = nn.Linear(4, 8)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(8, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(torch.relu(self.hidden(x))))  # type: ignore[no-any-return]


def tiny_data(
    batches: int = 4, batch_size: int = 8, *, last: int | None = None, seed: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """Return a list of ``(inputs, classes)`` batches that ``TinyModel`` can learn.

    Args:
        batches: Number of batches.
        batch_size: Number of samples per batch.
        last: Number of samples in the last batch. By default, ``batch_size``.
        seed: Seed of the data.

    Example:
        >>> [len(x) for x, y in tiny_data(batches=3, batch_size=4, last=1)]
        [4, 4, 1]
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = [batch_size] * (batches - 1) + [batch_size if last is None else last]
    directions = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0]])
    found = []
    for size in sizes:
        classes = torch.randint(3, (size,), generator=generator)
        found.append((directions[classes] + 0.3 * torch.randn(size, 4, generator=generator), classes))
    return found
