"""Batches of any kind: moved to the device, counted; and what is known of a loader's length."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from hookline.errors import StopTraining

END: Any = object()
"""Stands for the end of a loader's data."""
LEFT: Any = object()
"""Stands for a wait for data that a signal or ``StopTraining`` has left."""


def to_device(batch: Any, device: torch.device) -> Any:
    """Move every tensor in a batch: in dicts, lists, tuples, dataclasses, and objects with ``.to``."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        moved = batch.to(device)
        return batch if moved is None else moved  # some move themselves in place and return nothing
    if isinstance(batch, Mapping):
        return _remake(batch, {key: to_device(value, device) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: to_device(getattr(batch, f.name), device) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **fields)
    return batch


def _remake(batch: Mapping[Any, Any], moved: dict[Any, Any]) -> Any:
    """A mapping of the same kind: a ``defaultdict`` keeps its default, an own class its attributes."""
    if type(batch) is dict:
        return moved
    if isinstance(batch, MutableMapping):
        remade = copy(batch)
        remade.update(moved)
        return remade
    return type(batch)(moved)  # type: ignore[call-arg]


def count(batch: Any) -> tuple[int, int | None]:
    """The number of samples, the first dimension of the first tensor; tokens are not known.

    >>> count({"x": torch.zeros(8, 3), "y": torch.zeros(8)})
    (8, None)
    """
    kind = type(batch)
    if (kind is tuple or kind is list) and batch:  # the two cases of nearly every loader, kept fast
        first = batch[0]
        if type(first) is Tensor and first.ndim:
            return first.size(0), None
    tensor = first_tensor(batch)
    return (tensor.shape[0] if tensor is not None and tensor.ndim else 1), None


def first_tensor(batch: Any) -> Tensor | None:
    """The first tensor found in a batch, in its own order."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        parts: Iterable[Any] = batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        parts = (getattr(batch, f.name) for f in dataclasses.fields(batch))
    elif hasattr(batch, "__dict__"):
        parts = vars(batch).values()
    else:
        return None
    for part in parts:
        found = first_tensor(part) if isinstance(part, Tensor | Mapping | list | tuple) else None
        if found is not None:
            return found
    return None


def length(loader: Any) -> int | None:
    """How many batches a loader says that it has, for bars and estimates."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def sure_length(loader: Any) -> int | None:
    """The number of batches where it can be relied on; ``None`` for iterable data, whose length may lie."""
    if not isinstance(loader, DataLoader):
        return len(loader) if isinstance(loader, Sequence) else None
    if isinstance(loader.dataset, IterableDataset) or type(loader).__iter__ is not DataLoader.__iter__:
        return None
    # The length of a sampler of the user's own, such as one that groups by tokens, may be an estimate.
    samplers = (loader.sampler, loader.batch_sampler)
    return length(loader) if all(type(s).__module__.startswith(("torch.", "builtins")) for s in samplers) else None


def is_one_shot(loader: Any) -> bool:
    """A generator or other iterator: what is taken from it is gone."""
    return isinstance(loader, Iterator)


def begun(begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """The iterator that ``begin`` makes. ``StopTraining`` in an ``__iter__`` comes with the first batch instead."""
    try:
        return begin()
    except StopTraining as stop:
        return _stopping(stop)


def reason_of(stop: StopTraining) -> str:
    r"""The reason as it was given; torch hands on what rises in a worker process as the text of its traceback.

    >>> reason_of(StopTraining("Caught StopTraining in …\nOriginal Traceback …\nhookline.errors.StopTraining: done"))
    'done'
    """
    if not stop.reason.startswith(f"Caught {type(stop).__name__} in "):
        return stop.reason
    shown = re.split(rf"^(?:[\w.<>]+\.)?{type(stop).__name__}(?:: |$)", stop.reason, flags=re.MULTILINE)
    return shown[-1].strip()


def no_batches() -> Generator[Any, None, None]:
    """The batches of a run that is finished."""
    yield from ()


def _stopping(stop: StopTraining) -> Iterator[Any]:
    raise stop
    yield


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a sampler that shuffles by epoch which one begins."""
    for part in _parts(loader):
        tell = getattr(part, "set_epoch", None)
        if tell is not None:
            tell(epoch)


def generators(loader: Any) -> list[torch.Generator]:
    """The generators that a loader draws from, besides the global ones."""
    found = [getattr(part, "generator", None) for part in _parts(loader)]
    return [generator for generator in found if isinstance(generator, torch.Generator)]


def _parts(loader: Any) -> list[Any]:
    """A loader and its samplers, once each."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    found = [loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    return [part for index, part in enumerate(found) if not any(part is other for other in found[:index])]


@contextmanager
def second_iterator(loader: Any) -> Iterator[None]:
    """Iterate over a loader that is in use: one with persistent workers would reset its only iterator.

    Nor does it keep the second one, whose workers are ended.
    """
    if not hasattr(loader, "_iterator"):
        yield
        return
    held, loader._iterator = loader._iterator, None
    try:
        yield
    finally:
        loader._iterator = held
