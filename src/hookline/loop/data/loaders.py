"""Check the loaders that a user passes: they must give batches, and not samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hookline.errors import DataError, kind_of
from hookline.loop.data.batches import sure_length

LOADERS = {"train": "training", "val": "val", "test": "test", "predict": "prediction"}
"""Names of the loaders in messages, by stage."""


def check_loader(loader: Any, what: str) -> None:
    """Raise an error if a loader cannot be iterated over, is empty, or is a data set of samples.

    Args:
        loader: The loader.
        what: Name of the loader in messages.
    """
    if isinstance(loader, Dataset) and not isinstance(loader, Iterable):
        raise DataError(
            f"the {what} loader is {kind_of(loader)}, a dataset, which gives one sample at a time: write "
            f"DataLoader(dataset, batch_size=32), or batch_size=None if each of its items is a whole batch"
        )
    if type(loader) in (list, tuple) and any(isinstance(item, DataLoader) for item in loader):
        several = "evaluate on several as a dict of named ones, such as val={'easy': …, 'hard': …}"
        raise DataError(f"the {what} loader is {kind_of(loader)} of loaders, not of batches; {several}")
    if _is_inputs_and_targets(loader):
        kind = "tensors" if isinstance(loader[0], Tensor) else "arrays"
        convert = "x, y" if kind == "tensors" else "torch.as_tensor(x), torch.as_tensor(y)"
        raise DataError(
            f"the {what} loader is {kind_of(loader)} of {len(loader)} {kind}, not of batches: write "
            f"DataLoader(TensorDataset({convert}), batch_size=32)"
        )
    if hasattr(loader, "dtype") and hasattr(loader, "shape"):
        raise DataError(
            f"the {what} loader is {kind_of(loader)} of shape {tuple(loader.shape)}, not of batches: write "
            f"DataLoader(TensorDataset(x, y), batch_size=32), or list(x) if each of its rows is a batch"
        )
    if isinstance(loader, str | bytes):
        raise DataError(f"the {what} loader is {loader[:80]!r}; pass a DataLoader or a list of batches")
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


def _is_inputs_and_targets(loader: Any) -> bool:
    """True for the full data as ``(x, y)``: two arrays of one length that differ in kind.

    Batches of inputs have the same dtype and number of dimensions. In a list they may have several lengths, as
    sequences of tokens do.
    """
    if type(loader) not in (tuple, list) or len(loader) != 2 or not all(hasattr(part, "dtype") for part in loader):
        return False
    one, other = (tuple(part.shape) for part in loader)
    if not one or not other or one[0] != other[0]:
        return False
    differ = one != other if type(loader) is tuple else len(one) != len(other)
    return bool(differ or loader[0].dtype != loader[1].dtype)


def named_loaders(loaders: Any, what: str) -> dict[str | None, Any]:
    """Return loaders by name. A single loader has the name ``None``.

    Args:
        loaders: A loader, or a dict of loaders.
        what: Name of the loaders in messages.
    """
    if isinstance(loaders, Mapping):
        if not loaders:
            raise DataError(f"{what}={{}}: no loaders; pass one, or a dict of named ones")
        named: dict[str | None, Any] = dict(loaders)
    else:
        named = {None: loaders}
    for name, loader in named.items():
        check_loader(loader, what if name is None else f"{what}/{name}")
    return named
