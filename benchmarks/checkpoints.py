"""What a checkpoint costs: against writing, hashing and reading the same bytes with nothing around it."""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from table import Figure, Section, quartiles, verdict
from torch import Tensor

from hookline.checkpoint import About, Checkpoint, Snapshot, Store
from hookline.checkpoint.hashed_file import CHUNK
from hookline.checkpoint.tensor_bytes import memory

MEGABYTES = 100
LAYERS = 24
MOST_SAVE, MOST_VERIFY, MOST_LOAD, MOST_MB, MOST_LISTING = 1.3, 1.1, 1.3, 10, 1.0
LISTED = 1000


def checkpoint_cost(bar: Callable[[str], Iterable[int]]) -> Section:
    snapshot = model_and_adam()
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        figures = [
            *_times(snapshot, Path(folder), bar("checkpoints")),
            _memory(snapshot, Path(folder)),
            _listing(folder),
        ]
    return Section(
        f"A checkpoint of {MEGABYTES} MB",
        figures,
        f"Weights and the two moments of Adam, {LAYERS} layers, {MEGABYTES} MB in all, on the disk of the working "
        "directory. In each round both sides once, in turn: the same bytes hashed with hashlib and written with "
        "os.write in pieces of 1 MB and one fsync; hashed with "
        "hashlib.file_digest; read into memory and hashed. The median of the ratios.",
    )


def model_and_adam() -> Snapshot:
    count = MEGABYTES * 2**20 // 4 // 3 // LAYERS
    weights: dict[str, Tensor] = {f"layers.{index}.weight": torch.randn(count) for index in range(LAYERS)}
    moments = {index: {"exp_avg": torch.randn(count), "exp_avg_sq": torch.rand(count)} for index in range(LAYERS)}
    about = About(step=0, epoch=0, batch=0, sample=0, seconds=0.0, run="bench", metrics={"loss": 0.5})
    return Snapshot(about, weights, {"optimizer": {"state": moments}, "rng": tuple(range(625))})


def _tensors(snapshot: Snapshot) -> list[Tensor]:
    state = snapshot.state or {}
    moments = [moment for both in state["optimizer"]["state"].values() for moment in both.values()]
    return [*snapshot.weights.values(), *moments]


def _times(snapshot: Snapshot, folder: Path, rounds: Iterable[int]) -> list[Figure]:
    store, plain, tensors = Store(folder / "checkpoints"), folder / "plain", _tensors(snapshot)
    ratios: dict[str, list[float]] = {"save": [], "verify": [], "load": []}
    took: dict[str, list[float]] = {name: [] for name in ratios}
    saved: list[Checkpoint] = []
    sides = {
        "save": (lambda: saved.append(store.save(snapshot)), lambda: _write(plain, tensors)),
        "verify": (lambda: store.verify(saved[-1]), lambda: _hash(plain)),
        "load": (lambda: store.load(saved[-1]), lambda: _read(plain)),
    }
    for round_ in rounds:
        for name, (ours, bare) in sides.items():
            times = {act: _seconds(act) for act in ((ours, bare) if round_ % 2 else (bare, ours))}
            ratios[name].append(times[ours] / times[bare])
            took[name].append(times[ours])
        store.delete(saved[-1])
        plain.unlink()
    labels = {
        "save": ("save, to write + fsync + hash", MOST_SAVE),
        "verify": ("verify, to hashlib.file_digest", MOST_VERIFY),
        "load": ("load, to read + hash", MOST_LOAD),
    }
    return [_ratio(what, ratios[name], took[name], most) for name, (what, most) in labels.items()]


def _ratio(what: str, ratios: list[float], took: list[float], most: float) -> Figure:
    value, (low, high) = statistics.median(ratios), quartiles(ratios)
    checks = f"half of them {low:.2f} to {high:.2f}; {MEGABYTES / statistics.median(took):,.0f} MB/s"
    return Figure(what, f"{value:.2f} times", checks, f"<= {most} times", verdict(value <= most))


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _write(path: Path, tensors: list[Tensor]) -> None:
    digest = hashlib.sha256()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    for tensor in tensors:
        view = memory(tensor)
        for start in range(0, len(view), CHUNK):
            digest.update(view[start : start + CHUNK])
            os.write(file, view[start : start + CHUNK])
    os.fsync(file)
    os.close(file)


def _hash(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        hashlib.file_digest(file, "sha256")


def _read(path: Path) -> None:
    digest, data = hashlib.sha256(), torch.empty(path.stat().st_size, dtype=torch.uint8)
    view = memory(data)
    with path.open("rb", buffering=0) as file:
        start = 0
        while count := file.readinto(view[start : start + CHUNK]):
            digest.update(view[start : start + count])
            start += count


def _memory(snapshot: Snapshot, folder: Path) -> Figure:
    """The peak of a save beyond what was resident before it, as the kernel counts it."""
    store = Store(folder / "memory")
    store.delete(store.save(snapshot))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before = _resident("VmRSS")
    store.save(snapshot)
    more = _resident("VmHWM") - before
    return Figure("memory that a save adds", f"{more:.1f} MB", "peak", f"< {MOST_MB} MB", verdict(more < MOST_MB))


def _resident(what: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def _listing(folder: str) -> Figure:
    store = Store(Path(folder) / "many")
    small = {"weight": torch.zeros(8)}
    for step in range(LISTED):
        about = About(step=step, epoch=0, batch=0, sample=0, seconds=0.0, run="bench", metrics={"loss": 0.5})
        store.save(Snapshot(about, small, {"lr": 0.1}))
    times = [_seconds(store.checkpoints) for _ in range(3)]
    value = statistics.median(times)
    return Figure(
        f"listing {LISTED:,} checkpoints",
        f"{value:.2f} s",
        f"{value / LISTED * 1e6:.0f} µs each",
        f"< {MOST_LISTING:.0f} s",
        verdict(value < MOST_LISTING),
    )
