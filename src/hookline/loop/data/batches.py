"""Batches of any kind: move them to a device and count samples. The length of a loader."""

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
"""Marks the end of a loader's data."""
LEFT: Any = object()
"""Marks a wait for data that a signal or ``StopTraining`` has ended."""


def to_device(batch: Any, device: torch.device) -> Any:
    """Move all tensors in a batch of dicts, lists, tuples, dataclasses and objects with ``.to``."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        moved = batch.to(device)
        return batch if moved is None else moved  # Some classes move their tensors in place and return None.
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
    """Return a mapping of the same class, with its attributes, such as a default factory."""
    if type(batch) is dict:
        return moved
    if isinstance(batch, MutableMapping):
        remade = copy(batch)
        remade.update(moved)
        return remade
    return type(batch)(moved)  # type: ignore[call-arg]


def count(batch: Any) -> tuple[int, int | None]:
    """Return the number of samples: the first dimension of the first tensor.

    The number of tokens is not known.

    >>> count({"x": torch.zeros(8, 3), "y": torch.zeros(8)})
    (8, None)
    """
    kind = type(batch)
    if (kind is tuple or kind is list) and batch:  # a fast path for nearly every loader
        first = batch[0]
        if type(first) is Tensor and first.ndim:
            return first.size(0), None
    tensor = first_tensor(batch)
    return (tensor.shape[0] if tensor is not None and tensor.ndim else 1), None


def first_tensor(batch: Any) -> Tensor | None:
    """Return the first tensor in a batch. ``None`` if there is none."""
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
    """Return the length of a loader, for progress bars and estimates. ``None`` if it has none."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def sure_length(loader: Any) -> int | None:
    """Return the number of batches if it is reliable. ``None`` for iterable data, among others."""
    if not isinstance(loader, DataLoader):
        return len(loader) if isinstance(loader, Sequence) else None
    if isinstance(loader.dataset, IterableDataset) or type(loader).__iter__ is not DataLoader.__iter__:
        return None
    # The length of a user's sampler, such as one that groups by tokens, may be an estimate.
    samplers = (loader.sampler, loader.batch_sampler)
    return length(loader) if all(type(s).__module__.startswith(("torch.", "builtins")) for s in samplers) else None


def is_one_shot(loader: Any) -> bool:
    """True for a generator or another iterator, which can be read only once."""
    return isinstance(loader, Iterator)


def begun(begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Return the iterator of ``begin``.

    If it raises ``StopTraining``, the first batch raises it instead.
    """
    try:
        return begin()
    except StopTraining as stop:
        return _stopping(stop)


def reason_of(stop: StopTraining) -> str:
    r"""Return the reason of a stop.

    Torch replaces the message of an error in a worker by its traceback.

    >>> reason_of(StopTraining("Caught StopTraining in …\nOriginal Traceback …\nhookline.errors.StopTraining: done"))
    'done'
    """
    if not stop.reason.startswith(f"Caught {type(stop).__name__} in "):
        return stop.reason
    shown = re.split(rf"^(?:[\w.<>]+\.)?{type(stop).__name__}(?:: |$)", stop.reason, flags=re.MULTILINE)
    return shown[-1].strip()


def no_batches() -> Generator[Any, None, None]:
    """Return an empty generator, for a run that is finished."""
    yield from ()


def _stopping(stop: StopTraining) -> Iterator[Any]:
    raise stop
    yield


def set_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` of a loader and its samplers, which shuffle by epoch."""
    for part in _parts(loader):
        set_epoch = getattr(part, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def generators(loader: Any) -> list[torch.Generator]:
    """Return the generators of a loader and its samplers, other than the global ones."""
    found = [getattr(part, "generator", None) for part in _parts(loader)]
    return [generator for generator in found if isinstance(generator, torch.Generator)]


def _parts(loader: Any) -> list[Any]:
    """Return a loader and its samplers, each once."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    found = [loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    return [part for index, part in enumerate(found) if not any(part is other for other in found[:index])]


@contextmanager
def second_iterator(loader: Any) -> Iterator[None]:
    """Allow a second iterator over a loader that is in use inside the block.

    A loader with persistent workers would reset its only iterator. It does not keep the second iterator, whose workers
    end.
    """
    if not hasattr(loader, "_iterator"):
        yield
        return
    held, loader._iterator = loader._iterator, None
    try:
        yield
    finally:
        loader._iterator = held
