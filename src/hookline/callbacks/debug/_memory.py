"""List live tensors: their number, their sizes and their purposes."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

OTHER = "other"


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors of the same kind, device, dtype and shape. Tensors that share memory count once."""

    kind: str
    device: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    nbytes: int

    @property
    def key(self) -> tuple[str, str, str, tuple[int, ...]]:
        """Identity of the group, without count and size."""
        return self.kind, self.device, self.dtype, self.shape


def live_tensors(model: torch.nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> list[Group]:
    """Return all tensors that Python can see, in groups, largest group first.

    Tensors that only the autograd graph holds are not included.
    """
    found: dict[tuple[str, str, str, tuple[int, ...]], list[int]] = {}
    seen: set[tuple[str, int]] = set()
    for kind, tensor in (*_owned(model, optimizers), *_others()):
        memory = _memory(tensor)
        if memory is None or memory[:2] in seen:
            continue
        seen.add(memory[:2])
        key = (kind, memory[0], str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        sizes = found.setdefault(key, [0, 0])
        sizes[0] += 1
        sizes[1] += memory[2]
    groups = [Group(*key, count, nbytes) for key, (count, nbytes) in found.items()]
    return sorted(groups, key=lambda group: -group.nbytes)


def tensors_in(value: Any, name: str = "", depth: int = 4) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested dicts, lists, tuples and dataclasses, with their paths."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, f"{name}[{key!r}]", depth - 1)
    elif depth and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{name}[{index}]", depth - 1)
    elif depth and hasattr(value, "__dataclass_fields__"):
        for field in value.__dataclass_fields__:
            yield from tensors_in(getattr(value, field, None), f"{name}.{field}", depth - 1)


def table(groups: list[Group], most: int = 20) -> list[str]:
    """Format the largest groups as lines, and the rest as one line."""
    lines = [f"{'size':>12} {'count':>6}  {'what':<15} {'device':<7} {'type':<9} shape"]
    lines += [
        f"{megabytes(g.nbytes):>12} {g.count:>6}  {g.kind:<15} {g.device:<7} {g.dtype:<9} {g.shape}"
        for g in groups[:most]
    ]
    rest = groups[most:]
    if rest:
        size, count = sum(group.nbytes for group in rest), sum(group.count for group in rest)
        lines.append(f"{megabytes(size):>12} {count:>6}  in {len(rest)} smaller groups")
    total, number = sum(group.nbytes for group in groups), sum(group.count for group in groups)
    lines.append(f"{megabytes(total):>12} {number:>6}  in all")
    return lines


def megabytes(size: float) -> str:
    """Format a size in MB (10⁶ bytes)."""
    return f"{size / 1e6:,.3f} MB"


def _owned(
    model: torch.nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of the model and the optimizers, with their kinds."""
    for parameter in model.parameters():
        yield "weights", parameter
    for buffer in model.buffers():
        yield "buffers", buffer
    for parameter in model.parameters():
        if parameter.grad is not None:
            yield "gradients", parameter.grad
    for optimizer in optimizers.values():
        for state in optimizer.state.values():
            for _, tensor in tensors_in(state):
                yield "optimizer state", tensor


def _others() -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all tensors that the garbage collector tracks."""
    # There are many objects but few types, so the check is cached by type.
    kinds: dict[type, bool] = {}
    for thing in gc.get_objects():
        # `isinstance` would trigger `__class__` of proxy objects.
        kind = type(thing)
        if kind not in kinds:
            kinds[kind] = issubclass(kind, torch.Tensor)
        if kinds[kind]:
            yield OTHER, thing


def _memory(tensor: torch.Tensor) -> tuple[str, int, int] | None:
    """Return device, address and size of a tensor's storage, or ``None`` if it has no storage."""
    try:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    except Exception:
        # Fake tensors, uninitialized tensors and some subclasses have no storage.
        return None
    return (str(tensor.device), address, size) if address and size else None
