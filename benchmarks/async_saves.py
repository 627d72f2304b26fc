"""How long a background save stops training, against the copies that it cannot do without."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from measure import on_one_core
from table import Figure, Section, quartiles, verdict

from hookline.checkpoint.background import BackgroundWriter
from hookline.checkpoint.snapshot import About, Snapshot

LIMIT = 1.5
WIDTH, LAYERS = 1024, 8
"""Eight square layers with their moments of Adam and its counters of steps: 100 MB in 64 tensors."""


def async_saves(rounds: Iterable[int]) -> Section:
    """The pause of ``submit`` as a ratio to a clone (first save) and to ``copy_`` (later saves)."""
    first: list[tuple[float, float]] = []
    later: list[tuple[float, float]] = []
    with on_one_core():
        snapshot = adam_snapshot()
        tensors = [*snapshot.weights.values(), *_moments(snapshot)]
        kept = [tensor.clone() for tensor in tensors]
        for round_ in rounds:
            first.append(_pair(lambda: _first_submit(snapshot), lambda: _clone(tensors), round_))
            later.append(_pair(lambda: _later_submit(snapshot), lambda: _copy(kept, tensors), round_))
    size = sum(tensor.nbytes for tensor in tensors)
    return Section(
        "A background save stops training for",
        [_figure("the first time, against a clone", first), _figure("later, against copy_", later)],
        f"The pause of submit() for {size / 1e6:.0f} MB in {len(tensors)} tensors, weights and the moments of AdamW, "
        f"as a ratio to copying the same tensors just before or after it, in turn; the writer itself writes nothing. "
        f"Median of {len(first)} rounds.",
    )


def adam_snapshot() -> Snapshot:
    """A model and its optimizer, as a run would save them."""
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    about = About(step=1, epoch=0, batch=1, sample=1, seconds=0.0, run="benchmark")
    return Snapshot(about, model.state_dict(), {"optimizer": optimizer.state_dict()})


def _moments(snapshot: Snapshot) -> list[torch.Tensor]:
    state: Any = snapshot.state
    entries = state["optimizer"]["state"].values()
    return [value for entry in entries for value in entry.values() if isinstance(value, torch.Tensor)]


def _first_submit(snapshot: Snapshot) -> float:
    writer: BackgroundWriter[None] = BackgroundWriter(lambda _: None)
    _forget_freed_memory()
    taken = _seconds(lambda: writer.submit(snapshot))
    writer.close()
    return taken


def _later_submit(snapshot: Snapshot) -> float:
    writer: BackgroundWriter[None] = BackgroundWriter(lambda _: None)
    writer.submit(snapshot)
    writer.wait()
    taken = _seconds(lambda: writer.submit(snapshot))
    writer.close()
    return taken


def _clone(tensors: list[torch.Tensor]) -> float:
    _forget_freed_memory()
    return _seconds(lambda: [tensor.clone() for tensor in tensors])


def _copy(kept: list[torch.Tensor], tensors: list[torch.Tensor]) -> float:
    return _seconds(lambda: [into.copy_(tensor) for into, tensor in zip(kept, tensors, strict=True)])


def _forget_freed_memory() -> None:
    """Without this, whoever happens to get the pages that the other has freed is three times as fast."""
    ctypes.CDLL(None).malloc_trim(0)


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    result = act()
    taken = time.perf_counter() - start
    del result  # freeing is not a part of it
    return taken


def _pair(own: Callable[[], float], bare: Callable[[], float], round_: int) -> tuple[float, float]:
    """Both, one right after the other; which is the first changes with the round."""
    if round_ % 2:
        other = bare()
        return own(), other
    return own(), bare()


def _figure(what: str, pairs: list[tuple[float, float]]) -> Figure:
    ratios = [own / bare for own, bare in pairs]
    ratio = statistics.median(ratios)
    low, high = quartiles(ratios)
    pauses = statistics.median(own for own, _ in pairs), statistics.median(bare for _, bare in pairs)
    return Figure(
        what,
        f"{ratio:.2f} times",
        f"half of the rounds in {low:.2f} to {high:.2f}; {pauses[0] * 1e3:.1f} ms against {pauses[1] * 1e3:.1f} ms",
        f"<= {LIMIT} times",
        verdict(ratio <= LIMIT),
    )
