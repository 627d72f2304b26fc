"""Format checkpoints as tables or as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from hookline.checkpoint import Checkpoint, Rejected, Snapshot
from hookline.checkpoint.retention import resumable
from hookline.progress import Duration
from hookline.progress.counted import counted


def plain(text: str) -> str:
    r"""Replace characters of a file or folder name that could control the terminal.

    >>> plain("step-1\x1b[2J")
    'step-1?[2J'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def size(count: int) -> str:
    """Format a number of bytes.

    >>> [size(n) for n in (0, 999, 12_345, 4_200_000_000)]
    ['0 B', '999 B', '12.3 kB', '4.2 GB']
    """
    for unit, letter in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {letter}"
    return f"{count} B"


def age(seconds: float) -> str:
    """Format an age in its largest unit.

    >>> [age(s) for s in (3, 200, 7_300, 200_000)]
    ['3 s', '3 min', '2 h', '2 d']
    """
    for unit, letter in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds // unit:.0f} {letter}"
    return f"{max(0.0, seconds):.0f} s"


def marks(checkpoints: Sequence[Checkpoint], best: str | None) -> dict[str, list[str]]:
    """Return the marks of each checkpoint, by name. A resume would use the latest."""
    latest = [checkpoint.name for checkpoint in resumable(checkpoints)[-1:]]
    found = {}
    for checkpoint in checkpoints:
        about, name = checkpoint.about, checkpoint.name
        tests = (
            ("latest", name in latest),
            ("best", name == best),
            ("finished", about.finished),
            ("inexact", not about.exact),
            ("weights only", checkpoint.weights_only),
            ("evaluation pending", about.pending_eval),
        )
        found[name] = [mark for mark, holds in tests if holds]
    return found


def listing(
    checkpoints: Sequence[Checkpoint], marks: Mapping[str, list[str]], now: float, first: str, *, wide: bool
) -> Table:
    """Return a table with one row per checkpoint, oldest first."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("name", overflow="fold", min_width=13)
    for column in ("step", "epoch", "age", "size"):
        table.add_column(column, justify="right", no_wrap=True)
    metrics = _key_metrics(checkpoints, first)[: 4 if wide else 1]
    for metric in metrics:
        table.add_column(Text(plain(metric)), justify="right", overflow="fold")
    table.add_column("marks")
    for checkpoint in checkpoints:
        about = checkpoint.about
        values = [_number(about.metrics.get(metric)) for metric in metrics]
        shown = ", ".join(marks[checkpoint.name])
        cells = (f"{about.step:,}", str(about.epoch), age(now - checkpoint.manifest.created), size(checkpoint.size))
        table.add_row(Text(plain(checkpoint.name)), *cells, *values, Text(shown, "green" if "latest" in shown else ""))
    return table


def total(checkpoints: Sequence[Checkpoint], folder: Path) -> Text:
    summed = size(sum(checkpoint.size for checkpoint in checkpoints))
    return Text(f"{counted(len(checkpoints), 'checkpoint')}, {summed}, in {plain(str(folder))}")


def chosen_by(metric: str, mode: str) -> Text:
    return Text(f"best: the {'lowest' if mode == 'min' else 'highest'} {plain(metric)}")


def damaged(rejected: Sequence[Rejected]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Not valid, not used", title_justify="left")
    table.add_column("name", overflow="fold", min_width=13)
    table.add_column("why", overflow="fold")
    for item in rejected:
        table.add_row(Text(plain(item.path.name), "red"), Text(plain(item.reason)))
    return table


def as_json(
    folder: Path, checkpoints: Sequence[Checkpoint], rejected: Sequence[Rejected], marks: Mapping[str, list[str]]
) -> dict[str, Any]:
    """Return the list of checkpoints with all metrics. NaN and infinities are strings."""
    return {
        "folder": str(folder),
        "checkpoints": [
            {
                "name": checkpoint.name,
                "path": str(checkpoint.path),
                "step": checkpoint.about.step,
                "epoch": checkpoint.about.epoch,
                "sample": checkpoint.about.sample,
                "seconds": checkpoint.about.seconds,
                "generation": checkpoint.about.generation,
                "run": checkpoint.about.run,
                "created": checkpoint.manifest.created,
                "bytes": checkpoint.size,
                "marks": marks[checkpoint.name],
                "metrics": {
                    name: value if math.isfinite(value) else str(value)
                    for name, value in checkpoint.about.metrics.items()
                },
            }
            for checkpoint in checkpoints
        ],
        "rejected": [{"path": str(item.path), "reason": item.reason} for item in rejected],
    }


def details(checkpoint: Checkpoint, snapshot: Snapshot, marks: Sequence[str], now: float) -> RenderableType:
    """Return all metadata of one checkpoint and a summary of its state."""
    about, written = checkpoint.about, age(now - checkpoint.manifest.created)
    seconds = Duration(round(about.seconds, 1), "s") if about.seconds >= 0.1 else "0s"
    head = {
        "marks": ", ".join(marks) or "none",
        "written": f"{written} ago, by run {about.run}, generation {about.generation}",
        "trained": f"{counted(about.step, 'step')}, {counted(about.epoch, 'epoch')}, "
        f"{counted(about.sample, 'sample')}, {seconds}",
        **{f"metric {name}": _number(value) for name, value in sorted(about.metrics.items())},
        **{f"environment {name}": short(value) for name, value in about.environment.items()},
    }
    state = snapshot.state or {}
    callbacks = state.get("callbacks")
    named = callbacks if isinstance(callbacks, Mapping) else {}
    rest = {name: short(value) for name, value in state.items() if value is not named}
    held = {"weights": _tensors(snapshot.weights), "state": _tensors(state)}
    files = {
        name: f"{size(file.size)}, SHA-256 {file.sha256[:16]}…" for name, file in checkpoint.manifest.files.items()
    }
    return Group(
        _pairs(plain(checkpoint.name), head),
        _pairs("Files, all verified", files),
        _pairs("Tensors", {name: f"{count:,} in {size(held_bytes)}" for name, (count, held_bytes) in held.items()}),
        *([_pairs("State", rest)] if rest else []),
        *([_pairs("Callbacks", {str(name): short(value) for name, value in named.items()})] if named else []),
    )


def short(value: Any, room: int = 200) -> str:
    """Format a value in one line.

    >>> import torch
    >>> short({"lr": 0.1, "moments": torch.zeros(2, 3), "seen": [1, 2, 3, 4, 5, 6, 7]})
    '{lr: 0.1, moments: float32 [2, 3], seen: [1, 2, 3, 4, … 7 in total]}'
    """
    if isinstance(value, Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    elif isinstance(value, Mapping):
        parts = [f"{key}: {short(part, 60)}" for key, part in list(value.items())[:8]]
        text = "{" + ", ".join(parts) + (f", … {len(value)} in total" if len(value) > 8 else "") + "}"
    elif isinstance(value, list | tuple):
        parts = [short(part, 30) for part in value[:4]]
        text = "[" + ", ".join(parts) + (f", … {len(value)} in total" if len(value) > 4 else "") + "]"
    else:
        text = repr(value)
    text = plain(text)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _pairs(title: str, pairs: Mapping[str, str]) -> Table:
    table = Table(box=box.SIMPLE, show_header=False, title=Text(title, "bold"), title_justify="left", pad_edge=False)
    table.add_column(overflow="fold", max_width=30)
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(Text(plain(name)), Text(plain(value)))
    return table


def _key_metrics(checkpoints: Sequence[Checkpoint], first: str) -> list[str]:
    """Return the monitored metric, then metrics of evaluations, then the rest."""
    names = {name for checkpoint in checkpoints for name in checkpoint.about.metrics}
    return sorted(names, key=lambda name: (name != first, not name.startswith("val/"), name))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _tensors(value: Any) -> tuple[int, int]:
    """Return the number of tensors and of their bytes."""
    if isinstance(value, Tensor):
        return 1, value.nbytes
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    found = [_tensors(part) for part in parts]
    return sum(count for count, _ in found), sum(held for _, held in found)
