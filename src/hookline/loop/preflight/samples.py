"""The samples of a data set that is in memory, and which samples a loader reads."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, SequentialSampler, Subset, TensorDataset
from torch.utils.data.dataloader import default_collate

from hookline.loop.data.batches import is_one_shot, sure_length

MAX_SAMPLES: Final = 1_000_000
MAX_BYTES: Final = 128 * 2**20
ROWS_PER_CHUNK: Final = 16_384
Path = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """The tensors of a data set that is in memory, by their path in a batch."""

    tensors: Mapping[Path, Tensor]
    is_whole: bool = True
    """False if the data set is larger than the limits, so that only its start was read."""

    def __len__(self) -> int:
        return min((len(tensor) for tensor in self.tensors.values()), default=0)


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """The facts about a loader that need no batch of it."""

    name: str
    """``"train"``, ``"val"``, ``"val/easy"`` or ``"test"``."""
    loader: Any
    samples: int | None = None
    batch_size: int | None = None
    batches: int | None = None
    drops_last: bool = False
    is_in_order: bool = False
    """True if the loader reads the samples one after the other, from the first on."""
    source: Any = None
    """The data set under all subsets."""
    indices: Tensor | None = None
    """The samples of ``source`` that the loader reads. ``None``: all."""
    columns: Columns = field(default_factory=lambda: Columns({}))

    @property
    def rest(self) -> int:
        """Number of samples of the last batch, if it is smaller than the others. Else 0."""
        if self.samples is None or not self.batch_size or self.drops_last or self.samples <= self.batch_size:
            return 0
        return self.samples % self.batch_size


def facts_of(name: str, loader: Any, *, is_full: bool = False) -> LoaderFacts:
    """Return what is known of a loader.

    Args:
        name: Name of the loader.
        loader: The loader.
        is_full: True to read data sets in memory without limits.
    """
    limits = (sys.maxsize, sys.maxsize) if is_full else (MAX_SAMPLES, MAX_BYTES)
    if type(loader) in (list, tuple):
        return LoaderFacts(name, loader, batches=len(loader), is_in_order=True, columns=_of_batches(loader, *limits))
    if type(loader) is not DataLoader or is_one_shot(loader) or sure_length(loader) is None:
        return LoaderFacts(name, loader)
    dataset, sampler = loader.dataset, loader.sampler
    source, indices = _source_of(dataset)
    chosen = getattr(sampler, "indices", None)
    if isinstance(chosen, Sequence | Tensor) and len(chosen) <= MAX_SAMPLES:
        picked = torch.as_tensor(chosen, dtype=torch.int64)
        indices = picked if indices is None else indices[picked]
    is_plain = loader.collate_fn is default_collate
    return LoaderFacts(
        name,
        loader,
        samples=len(cast("Any", sampler)) if loader.batch_size is not None else None,
        batch_size=loader.batch_size,
        batches=len(loader),
        drops_last=bool(loader.drop_last),
        is_in_order=type(sampler) is SequentialSampler,
        source=source,
        indices=indices,
        columns=_columns_of(source, indices, *limits) if is_plain else Columns({}),
    )


def labels_of(facts: LoaderFacts) -> Tensor | None:
    """Return the attribute ``targets`` or ``labels`` of a data set, for the samples that the loader reads."""
    for name in ("targets", "labels"):
        found = getattr(facts.source, name, None)
        try:
            labels = torch.as_tensor(found) if isinstance(found, list | tuple | Tensor) or _is_array(found) else None
        except (TypeError, ValueError, RuntimeError):
            continue
        if labels is not None and labels.ndim == 1 and not labels.is_floating_point():
            return labels if facts.indices is None else labels[facts.indices]
    return None


def _source_of(dataset: Any) -> tuple[Any, Tensor | None]:
    """Return the data set under all subsets, and the samples that are left of it."""
    indices: Tensor | None = None
    while type(dataset) is Subset:
        own = torch.as_tensor(list(dataset.indices), dtype=torch.int64)
        indices = own if indices is None else own[indices]
        dataset = dataset.dataset
    return dataset, indices


def _columns_of(source: Any, indices: Tensor | None, max_samples: int, max_bytes: int) -> Columns:
    """Return the tensors of a data set that is in memory. Empty for any other data set."""
    if type(source) is TensorDataset:
        tensors: dict[Path, Tensor] = {(number,): tensor for number, tensor in enumerate(source.tensors)}
    elif type(source) is ConcatDataset and all(type(part) is TensorDataset for part in source.datasets):
        parts: list[Any] = source.datasets
        tensors = {}
        for number, column in enumerate(zip(*(part.tensors for part in parts), strict=False)):
            if len({tensor.shape[1:] for tensor in column}) == 1:
                tensors[(number,)] = torch.cat(column)
    elif type(source) in (list, tuple) and source:
        return _of_samples(source, indices, max_samples, max_bytes)
    elif _is_array(source) or isinstance(source, Tensor):
        tensors = {(): torch.as_tensor(source)}
    else:
        return Columns({})
    tensors = {path: tensor for path, tensor in tensors.items() if tensor.device.type == "cpu" and tensor.ndim}
    count = min((len(tensor) for tensor in tensors.values()), default=0) if indices is None else len(indices)
    of_one = sum(tensor[:1].numel() * tensor.element_size() for tensor in tensors.values())
    most = min(count, max_samples, max_bytes // max(1, of_one))
    read = {path: tensor[:most] if indices is None else tensor[indices[:most]] for path, tensor in tensors.items()}
    return Columns(read, is_whole=most == count)


def _of_samples(source: Sequence[Any], indices: Tensor | None, max_samples: int, max_bytes: int) -> Columns:
    """Return the columns of a list of samples. A column whose samples differ in shape is left out."""
    chosen = range(len(source)) if indices is None else indices.tolist()
    first = source[chosen[0]] if len(chosen) else None
    paths: list[Path] = [()]
    if isinstance(first, tuple | list):
        paths = [(number,) for number in range(len(first))]
    elif isinstance(first, Mapping):
        paths = [(key,) for key in first]
    found, is_whole = {}, True
    for path in paths:
        values: list[Any] = []
        size = 0
        try:
            for index in chosen:
                value = source[index][path[0]] if path else source[index]
                size += value.nbytes if hasattr(value, "nbytes") else 8
                if len(values) == max_samples or size > max_bytes:
                    is_whole = False
                    break
                values.append(value)
            if all(isinstance(value, Tensor) for value in values):
                found[path] = torch.stack(values)
            elif all(type(value) in (int, float, bool) for value in values) or all(map(_is_array, values)):
                found[path] = torch.as_tensor(values) if type(values[0]) is not type(None) else torch.empty(0)
        except (TypeError, ValueError, RuntimeError, KeyError, IndexError):
            continue
    return Columns(found, is_whole)


def _of_batches(loader: Sequence[Any], max_samples: int, max_bytes: int) -> Columns:
    """Return the columns of a list of batches."""
    if not loader or not all(isinstance(batch, tuple | list) and len(batch) == len(loader[0]) for batch in loader):
        return Columns({})
    found: dict[Path, Tensor] = {}
    for number in range(len(loader[0])):
        parts, size, count = [], 0, 0
        for batch in loader:
            part = batch[number]
            if not isinstance(part, Tensor) or not part.ndim or part.device.type != "cpu":
                break
            size, count = size + part.nbytes, count + len(part)
            if size > max_bytes or count > max_samples:
                break
            parts.append(part.detach())
        if parts and len({part.shape[1:] for part in parts}) == 1 and len({part.dtype for part in parts}) == 1:
            found[(number,)] = torch.cat(parts)
    return Columns(found)


def hashes_of(columns: Columns) -> Tensor:
    """Return a 64-bit hash of each sample, over all columns."""
    found = torch.zeros(len(columns), dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    for tensor in columns.tensors.values():
        rows = tensor[: len(found)].reshape(len(found), -1)
        for start in range(0, len(found), ROWS_PER_CHUNK):
            chunk = rows[start : start + ROWS_PER_CHUNK].contiguous().view(torch.uint8)
            padded = torch.nn.functional.pad(chunk, (0, -chunk.shape[1] % 8)).view(torch.int64)
            generator.manual_seed(padded.shape[1])
            factors = torch.randint(1, 2**62, (padded.shape[1],), generator=generator) | 1
            mixed = (padded ^ (padded >> 29)) * factors
            part = found[start : start + ROWS_PER_CHUNK]
            part.mul_(31).add_((mixed ^ (mixed >> 31)).sum(1))
    return found


def _is_array(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf"
