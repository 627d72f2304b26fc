"""Live tensors, memory of the host, and recordings of memory use."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from hookline.callbacks._memory import sizes_in
from hookline.callbacks._text import format_size
from hookline.callbacks._trees import walk

OTHER = "other"

OURS = (tracemalloc.__file__, __file__)


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
    """Yield the tensors in nested containers with their paths, down to a depth."""
    for path, leaf in walk(value, depth=depth):
        if isinstance(leaf, torch.Tensor):
            yield name + "".join(f"[{key!r}]" for key in path), leaf


def table(groups: list[Group], most: int = 20) -> list[str]:
    """Format the largest groups as lines, and the rest as one line."""
    lines = [f"{'size':>12} {'count':>6}  {'what':<15} {'device':<7} {'type':<9} shape"]
    lines += [
        f"{format_size(g.nbytes, 3):>12} {g.count:>6}  {g.kind:<15} {g.device:<7} {g.dtype:<9} {g.shape}"
        for g in groups[:most]
    ]
    rest = groups[most:]
    if rest:
        size, count = sum(group.nbytes for group in rest), sum(group.count for group in rest)
        lines.append(f"{format_size(size, 3):>12} {count:>6}  in {len(rest)} smaller groups")
    total, number = sum(group.nbytes for group in groups), sum(group.count for group in groups)
    lines.append(f"{format_size(total, 3):>12} {number:>6}  in all")
    return lines


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


def host_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> dict[str, float]:
    """Return sizes in bytes by description, as far as they are known on this machine."""
    process, machine = sizes_in(proc / "self" / "status"), sizes_in(proc / "meminfo")
    found = {
        "this process": process.get("VmRSS"),
        "this process at most": process.get("VmHWM"),
        "free on the machine": machine.get("MemAvailable"),
        "of the machine": machine.get("MemTotal"),
        "limit of the container": _number(cgroup / "memory.max"),
        "limit of the process": _address_space(),
    }
    return {name: size for name, size in found.items() if size is not None}


def _number(path: Path) -> float | None:
    """Return the number in a file, or ``None``."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        # The file does not exist, or it contains "max", which means no limit.
        return None


def _address_space() -> float | None:
    """Return the limit of the address space in bytes, or ``None``."""
    # The module exists only on Unix.
    with suppress(ImportError):
        resource = import_module("resource")
        limit: int = resource.getrlimit(resource.RLIMIT_AS)[0]
        return None if limit == resource.RLIM_INFINITY else float(limit)
    return None


class CudaRecording:
    """Record every allocation and release on CUDA devices with its stack trace.

    ``memory`` is ``torch.cuda.memory``.
    """

    def __init__(self, max_entries: int, memory: Any = torch.cuda.memory) -> None:
        self._max_entries, self._memory = max_entries, memory

    def begin(self) -> None:
        """Start recording."""
        self._memory._record_memory_history(max_entries=self._max_entries)

    def write(self, folder: Path, name: str) -> str:
        """Write the snapshot for https://pytorch.org/memory_viz and return a note about it."""
        path = folder / f"{name}.pickle"
        self._memory._dump_snapshot(str(path))
        return f"{path.name}: open it at https://pytorch.org/memory_viz"

    def end(self) -> None:
        """Stop recording."""
        self._memory._record_memory_history(enabled=None)


class HostRecording:
    """Record growth on the host: tensors by shape, and Python memory by line.

    Garbage is collected before both measurements, because it is not a leak.
    """

    def __init__(self, model: torch.nn.Module, optimizers: Mapping[str, torch.optim.Optimizer], rows: int) -> None:
        self._model, self._optimizers, self._rows = model, optimizers, rows
        self._traced_before = False

    def begin(self) -> None:
        """Start recording."""
        self._traced_before = tracemalloc.is_tracing()
        gc.collect()
        self._tensors = live_tensors(self._model, self._optimizers)
        self._process = host_memory().get("this process", 0.0)
        if not self._traced_before:
            tracemalloc.start()
        self._lines = tracemalloc.take_snapshot()

    def write(self, folder: Path | None, name: str) -> str:
        """Write the report and return its text."""
        gc.collect()
        lines = tracemalloc.take_snapshot()
        tensors = live_tensors(self._model, self._optimizers)
        process = host_memory().get("this process", 0.0)
        text = [
            f"this process: {format_size(process, 3)}, {format_size(process - self._process, 3, sign=True)}",
            "",
            "tensors that there are more or less of:",
            *(tensor_growth(self._tensors, tensors)[: self._rows] or ["none"]),
            "",
            "memory of Python that was taken and is still held, by the line that took it:",
            *(line_growth(self._lines, lines)[: self._rows] or ["none"]),
            "",
            "tensors at the end:",
            *table(tensors, self._rows),
            "",
        ]
        if folder is not None:
            (folder / f"{name}.txt").write_text("\n".join(text))
        return "\n".join(text)

    def end(self) -> None:
        """Stop recording."""
        if not self._traced_before:
            tracemalloc.stop()


def tensor_growth(before: list[Group], after: list[Group]) -> list[str]:
    """Return the groups whose count or size has changed, largest change first."""
    earlier, later = ({group.key: group for group in groups} for groups in (before, after))
    changes = []
    for key in earlier | later:
        old, new = earlier.get(key), later.get(key)
        count = (new.count if new else 0) - (old.count if old else 0)
        nbytes = (new.nbytes if new else 0) - (old.nbytes if old else 0)
        if count or nbytes:
            changes.append((nbytes, count, key))
    changes.sort(key=lambda change: -abs(change[0]))
    return [
        f"{format_size(nbytes, 3, sign=True):>14} {count:>+6}  {kind:<15} {device:<7} {dtype:<9} {shape}"
        for nbytes, count, (kind, device, dtype, shape) in changes
    ]


def line_growth(before: tracemalloc.Snapshot, after: tracemalloc.Snapshot) -> list[str]:
    """Return the source lines that hold more memory than before, largest first, without our own."""
    filters = [tracemalloc.Filter(False, path) for path in OURS]
    found = after.filter_traces(filters).compare_to(before.filter_traces(filters), "lineno")
    grown = sorted((stat for stat in found if stat.size_diff > 0), key=lambda stat: -stat.size_diff)
    return [f"{format_size(s.size_diff, 3, sign=True):>14} {s.count_diff:>+6}  {s.traceback}" for s in grown]
