"""What a user gives as a loader, checked: batches, and not the samples of a dataset."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset, IterableDataset

from hookline.errors import DataError
from hookline.loop import data


def check_loader(loader: Any, what: str) -> None:
    """A loader can be iterated over, is not known to be empty, and is no dataset, whose items are samples."""
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise DataError(
            f"the {what} loader is a {type(loader).__name__}, a dataset, which gives one sample at a time: write "
            f"DataLoader(dataset, batch_size=32), or batch_size=None if each of its items is a whole batch"
        )
    data.check_loader(loader, what)


def named_loaders(loaders: Any, what: str) -> dict[str | None, Any]:
    """One loader without a name, or several by name."""
    named = data.named_loaders(loaders, what)
    for name, loader in named.items():
        check_loader(loader, what if name is None else f"{what}/{name}")
    return named
