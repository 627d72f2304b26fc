"""``Copies``: copy snapshots into buffers that are reused for the next snapshot."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from hookline.checkpoint import tensor_bytes
from hookline.checkpoint.snapshot import Snapshot
from hookline.errors import StateError

_ALIGNED: Final = 16
"""Alignment in bytes of each copied range: enough for the largest element type, complex128."""
_PLAIN: Final = frozenset({int, float, str, bytes, bool, complex, type(None)})

_Path: TypeAlias = tuple[Any, ...]
"""Position of a tensor in the snapshot: the keys and indices that lead to it."""
_Place: TypeAlias = tuple[int, torch.dtype, torch.Size, tuple[int, ...], torch.device]
"""The memory of a tensor and how the tensor views it."""
_Storage: TypeAlias = tuple[torch.device, int, int]
"""A storage: its device, address and size."""


@dataclass(slots=True)
class _Range:
    """The bytes of one storage that the tensors of a snapshot use."""

    path: _Path
    """Path of the first tensor in the range. The next snapshot usually has the same bytes there."""
    on_gpu: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Copied:
    """Destination of a tensor."""

    view: Tensor
    """The same tensor as a view of the copied bytes."""
    raw: Tensor | None
    """Its bytes, if torch cannot copy the tensor: it overlaps itself or has a rare dtype."""

    def fill(self, tensor: Tensor) -> None:
        if self.raw is None:
            self.view.copy_(tensor, non_blocking=True)
            return
        source = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        source.set_(tensor.untyped_storage(), _bytes(tensor)[0], (self.raw.numel(),), (1,))
        self.raw.copy_(source, non_blocking=True)


class Copies:
    """Copy snapshots, all into the same memory: each copy overwrites the previous one.

    Tensors that share memory are copied once and share memory in the copy. Unused parts of a storage are not copied.
    A run usually saves the same tensors again. Then each tensor is copied to the same position as before, without
    a new plan.

    Example:
        >>> from hookline.checkpoint.snapshot import About
        >>> weight = torch.arange(3)
        >>> copied = Copies().of(Snapshot(About(1, 0, 1, 1, 0.0, "run"), {"a": weight, "tied": weight}, {"n": [1]}))
        >>> weight.zero_(), copied.weights["a"], copied.weights["tied"] is copied.weights["a"]
        (tensor([0, 0, 0]), tensor([0, 1, 2]), True)
    """

    def __init__(self) -> None:
        self._buffers: dict[_Path, Tensor] = {}
        """Buffers by the path of the first tensor in them."""
        self._copied: dict[_Place, _Copied] = {}

    @property
    def size(self) -> int:
        """Total size of the buffers in bytes."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def clear(self) -> None:
        """Drop the buffers. Their memory is freed when the last copy is released."""
        self._buffers, self._copied = {}, {}

    def of(self, snapshot: Snapshot) -> Snapshot:
        """Return a copy of the snapshot. Later changes to the tensors do not affect it."""
        tensors: list[Tensor] = []
        _collect((snapshot.weights, snapshot.state), tensors)
        places = [_place(tensor) if _is_plain(tensor) else None for tensor in tensors]
        sources = {place: tensor for place, tensor in zip(places, tensors, strict=True) if place is not None}
        if sources.keys() != self._copied.keys():
            self._plan(snapshot)
        with torch.no_grad():
            for source, tensor in sources.items():
                self._copied[source].fill(tensor)
        for device in {place[-1] for place in sources if place[-1].type == "cuda"}:
            torch.cuda.synchronize(device)
        known: dict[int, Any] = {}  # By id(), as the memo of deepcopy.
        for place, tensor in zip(places, tensors, strict=True):
            if id(tensor) not in known:
                known[id(tensor)] = _clone(tensor) if place is None else self._copied[place].view
        weights = {name: known[id(tensor)] for name, tensor in snapshot.weights.items()}
        state = None if snapshot.state is None else _copy(dict(snapshot.state), "state", known)
        metrics, environment = dict(snapshot.about.metrics), copy.deepcopy(dict(snapshot.about.environment))
        return Snapshot(replace(snapshot.about, metrics=metrics, environment=environment), weights, state)

    def _plan(self, snapshot: Snapshot) -> None:
        """Assign each tensor a position in a buffer."""
        located = [pair for pair in _located((snapshot.weights, snapshot.state), ()) if _is_plain(pair[1])]
        ranges: dict[_Storage, _Range] = {}
        for path, tensor in located:
            first, last = _bytes(tensor)
            range_ = ranges.setdefault(_storage(tensor), _Range(path, tensor.device.type == "cuda", first, last))
            range_.start, range_.end = min(range_.start, first // _ALIGNED * _ALIGNED), max(range_.end, last)
        self._make_room(ranges.values())
        for _, tensor in located:
            range_ = ranges[_storage(tensor)]
            self._copied[_place(tensor)] = _aim(self._buffers[range_.path], range_.start, tensor)

    def _make_room(self, ranges: Collection[_Range]) -> None:
        """Allocate the buffers.

        Buffers of another size are freed first, so that memory never holds two copies.
        """
        self._copied = {}
        kept = {}
        for range_ in ranges:
            buffer = self._buffers.get(range_.path)
            if buffer is not None and buffer.nbytes == range_.end - range_.start:
                kept[range_.path] = buffer
        self._buffers = kept
        for range_ in ranges:
            if range_.path not in kept:
                # Pinned memory makes the copy from a GPU faster.
                size = range_.end - range_.start
                kept[range_.path] = torch.empty(size, dtype=torch.uint8, pin_memory=range_.on_gpu)


def _aim(buffer: Tensor, start: int, tensor: Tensor) -> _Copied:
    """Return the destination of a tensor in a buffer that holds its storage from byte ``start``."""
    first, last = _bytes(tensor)
    offset = (first - start) // tensor.element_size()
    view = torch.empty(0, dtype=tensor.dtype).set_(buffer.untyped_storage(), offset, tensor.shape, tensor.stride())
    # Copying bools as bools would change every byte to 0 or 1.
    common = tensor.dtype in tensor_bytes.STORED_AS and tensor.dtype is not torch.bool
    as_it_is = common and tensor_bytes.fills(tensor.shape, tensor.stride())
    return _Copied(view, None if as_it_is else buffer[first - start : last - start])


def _bytes(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte of its storage that a tensor uses, and the byte after the last."""
    first = int(tensor.storage_offset()) * tensor.element_size()
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (reach + 1) * tensor.element_size()


def _storage(tensor: Tensor) -> _Storage:
    storage = tensor.untyped_storage()
    return storage.device, storage.data_ptr(), storage.nbytes()


def _place(tensor: Tensor) -> _Place:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device


def _is_plain(tensor: Tensor) -> bool:
    """Return True if the tensor is only a view of bytes, unlike for example a sparse tensor."""
    if type(tensor) is not Tensor and type(tensor) is not nn.Parameter:
        return False
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return False
    return not tensor.is_conj() and not tensor.is_neg() and tensor.numel() > 0


def _clone(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().cpu()


def _collect(value: Any, found: list[Tensor]) -> None:
    """Append every tensor of a tree. ``_copy`` finds those inside other objects."""
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, Mapping):
        for part in value.values():
            if type(part) not in _PLAIN:
                _collect(part, found)
    elif isinstance(value, list | tuple | deque):
        for part in value:
            if type(part) not in _PLAIN:
                _collect(part, found)


def _located(value: Any, path: _Path) -> Iterator[tuple[_Path, Tensor]]:
    """Yield the same tensors with their paths, which takes longer."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _located(part, (*path, key))
    elif isinstance(value, list | tuple | deque):
        for index, part in enumerate(value):
            yield from _located(part, (*path, index))


def _copy(value: Any, path: str, known: dict[int, Any]) -> Any:
    """Return a copy of a tree, with the objects in ``known`` replaced by their copies."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if id(value) in known:
        return known[id(value)]
    if kind is dict or (isinstance(value, Mapping) and not isinstance(value, dict)):
        return {key: _copy(part, f"{path}.{key}", known) for key, part in value.items()}
    if kind is list or kind is tuple:
        if set(map(type, value)) <= _PLAIN:  # Long lists of numbers are common.
            return kind(value)
        return kind(_copy(part, f"{path}.{index}", known) for index, part in enumerate(value))
    try:
        return copy.deepcopy(value, known)
    except Exception as error:
        raise StateError(
            f"{path} is a {kind.__name__} and cannot be copied ({type(error).__name__}: {error}). "
            f"Save plain values and tensors, or set background=False."
        ) from error
