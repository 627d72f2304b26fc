"""What a user gives as a loader, checked: batches, and not the samples of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset

from hookline.errors import DataError, kind_of
from hookline.loop.data import sure_length


def check_loader(loader: Any, what: str) -> None:
    """A loader can be iterated over, is not known to be empty, and is no dataset whose items are samples."""
    if isinstance(loader, Dataset) and not isinstance(loader, Iterable):
        raise DataError(
            f"the {what} loader is {kind_of(loader)}, a dataset, which gives one sample at a time: write "
            f"DataLoader(dataset, batch_size=32), or batch_size=None if each of its items is a whole batch"
        )
    if type(loader) in (list, tuple) and any(isinstance(item, DataLoader) for item in loader):
        several = "evaluate on several as a dict of named ones, such as val={'easy': …, 'hard': …}"
        raise DataError(f"the {what} loader is {kind_of(loader)} of loaders, not of batches; {several}")
    if isinstance(loader, Mapping):
        raise DataError(f"the {what} loader is a dict; named loaders are for evaluation, pass one loader here")
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise DataError(
            f"the {what} loader is {kind_of(loader)}, which cannot be iterated over; "
            f"pass a DataLoader or a list of batches"
        )
    if sure_length(loader) == 0:
        hint = (
            " (drop_last=True with fewer samples than the batch size?)" if getattr(loader, "drop_last", False) else ""
        )
        raise DataError(f"the {what} loader is empty: its length is 0{hint}")


def named_loaders(loaders: Any, what: str) -> dict[str | None, Any]:
    """One loader without a name, or several by name."""
    if isinstance(loaders, Mapping):
        if not loaders:
            raise DataError(f"{what}={{}}: no loaders; pass one, or a dict of named ones")
        named: dict[str | None, Any] = dict(loaders)
    else:
        named = {None: loaders}
    for name, loader in named.items():
        check_loader(loader, what if name is None else f"{what}/{name}")
    return named
