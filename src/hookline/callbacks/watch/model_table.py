"""Table of the layers of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookline.callbacks.watch._model_inspection import Seen

MB = 1e6
MOST = 60
"""Maximum number of layers to print. The logged table has all layers."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One row of the table. Unknown values are ``None``."""

    name: str
    kind: str
    output: str | None
    parameters: int | None
    trainable: int | None
    megabytes: float | None
    """Size of parameters and buffers."""
    flops: int | None
    """FLOPs of the forward pass per sample."""
    shares: bool = False
    """True if the layer shares weights with a layer above, where they are counted."""

    @property
    def cells(self) -> dict[str, Any]:
        """Values by column."""
        return {
            "layer": self.name,
            "type": self.kind,
            "output": self.output,
            "parameters": self.parameters,
            "trainable": self.trainable,
            "MB": self.megabytes,
            "FLOPs": self.flops,
        }


@dataclass(slots=True)
class Size:
    """Size of a module including its submodules."""

    tensors: int = 0
    """Number of parameter tensors."""
    parameters: int = 0
    trainable: int = 0
    bytes: int = 0
    is_known: bool = True


def layers(model: nn.Module, depth: int | None, seen: Seen, samples: int) -> list[Layer]:
    """Return a row per module down to the given depth. The last row is the whole model."""
    sizes = _sizes(model)
    whole = sum(_outermost(seen.flops).values()) if seen.flops else None
    found = [
        _layer(name, part, sizes.get(name, Size()), seen.outputs.get(name, ()), seen.flops.get(name), samples)
        for name, part in model.named_modules()
        if name and (depth is None or name.count(".") < depth)
    ]
    return [*found, _layer("total", model, sizes.get("", Size()), seen.outputs.get("", ()), whole, samples)]


def _sizes(model: nn.Module) -> dict[str, Size]:
    """Return the size of each module by name.

    A shared weight counts only in the first module that has it, and in the modules around that one.
    """
    sizes: dict[str, Size] = {}
    known: set[int] = set()
    for name, part in model.named_modules():
        around = _around(name)
        for tensors, is_weight in ((part._parameters, True), (part._buffers, False)):
            for tensor in tensors.values():
                if tensor is not None and id(tensor) not in known:
                    known.add(id(tensor))
                    for place in around:
                        _add(sizes.setdefault(place, Size()), tensor, is_weight)
    return sizes


def _add(size: Size, tensor: Tensor, is_weight: bool) -> None:
    """Add a parameter or buffer to a size."""
    size.tensors += is_weight
    if is_lazy(tensor):
        size.is_known = False
        return
    size.bytes += tensor.numel() * tensor.element_size()
    size.parameters += tensor.numel() if is_weight else 0
    size.trainable += tensor.numel() if is_weight and tensor.requires_grad else 0


def _layer(title: str, part: nn.Module, size: Size, outputs: Sequence[str], flops: int | None, samples: int) -> Layer:
    """Return the row of a module."""
    known = size.is_known
    return Layer(
        title,
        type(part).__name__,
        _words(outputs),
        size.parameters if known else None,
        size.trainable if known else None,
        size.bytes / MB if known else None,
        None if flops is None or not samples else round(flops / samples),
        size.tensors < sum(1 for _ in part.parameters()),
    )


def _outermost(flops: dict[str, int]) -> dict[str, int]:
    """Return the modules that are not inside another counted module.

    Together they are the whole model.
    """
    return {name: count for name, count in flops.items() if not any(other in flops for other in _around(name)[:-1])}


def _around(name: str) -> list[str]:
    """Return the names of the enclosing modules, followed by the name itself.

    Example:
        >>> _around("a.b.c"), _around("")
        (['', 'a', 'a.b', 'a.b.c'], [''])
    """
    return ["", *(name[:end] for end, letter in enumerate(f"{name}.") if letter == ".")] if name else [""]


def _words(outputs: Sequence[str]) -> str | None:
    """Return the output shapes of a layer as a string, or ``None`` if it was not called."""
    if not outputs:
        return None
    different = list(dict.fromkeys(outputs))
    words = different[0] if len(different) == 1 else f"{different[0]} to {different[-1]}"
    return words if len(outputs) == 1 else f"{words} ({len(outputs)} calls)"


# -- as text ---------------------------------------------------------------------------------------

COLUMNS = ("layer", "type", "output", "parameters", "trainable", "MB", "FLOPs")
LESS = ("MB", "trainable", "type", "output")
"""Columns to leave out in a narrow terminal, in this order."""


def render(rows: Sequence[Layer], note: str, *, width: int, color: bool, ascii_only: bool) -> str:
    """Return the table as text for a terminal or a log."""
    from rich.console import Console  # Imported here because importing rich is slow.

    stream = StringIO()
    console = Console(
        file=stream, width=width, force_terminal=color, color_system="auto" if color else None,
        markup=False, emoji=False, highlight=False, legacy_windows=False,
    )  # fmt: skip
    unknown = [what for what, known in (("output", _has_outputs(rows)), ("FLOPs", _has_flops(rows))) if not known]
    for left_out in range(len(LESS) + 1):
        columns = [name for name in COLUMNS if name not in (*unknown, *LESS[:left_out])]
        table = _table(rows, columns, ascii_only=ascii_only)
        if console.measure(table, options=console.options.update(width=10_000)).maximum <= width:
            break
    console.print(table)
    if any(row.shares for row in rows):
        note += ("\n" if note else "") + "* weights of a layer above are in it, and are counted there"
    if note:
        console.print(note)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def _has_outputs(rows: Sequence[Layer]) -> bool:
    """True if any output shape is known."""
    return any(row.output is not None for row in rows)


def _has_flops(rows: Sequence[Layer]) -> bool:
    """True if any FLOPs are known."""
    return any(row.flops is not None for row in rows)


def _table(rows: Sequence[Layer], columns: Sequence[str], *, ascii_only: bool) -> Any:
    """Return the table for rich."""
    from rich import box
    from rich.table import Table

    lines = box.ASCII if ascii_only else box.SIMPLE
    table = Table(box=lines, show_edge=False, pad_edge=False, collapse_padding=True)
    for name in columns:
        table.add_column(name, justify="left" if name in ("layer", "type", "output") else "right", overflow="fold")
    *parts, total = rows
    for row in parts[:MOST]:
        table.add_row(*_texts(row, columns), style="dim" if row.trainable == 0 and row.parameters else None)
    if len(parts) > MOST:
        table.add_row(f"({len(parts) - MOST} more)")
    table.add_section()
    table.add_row(*_texts(total, columns), style="bold")
    return table


def _texts(row: Layer, columns: Sequence[str]) -> list[str]:
    """Return the cells of a row as strings."""
    texts = {
        "layer": row.name,
        "type": row.kind,
        "output": row.output or "",
        "parameters": ("?" if row.parameters is None else f"{row.parameters:,}") + ("*" if row.shares else ""),
        "trainable": "?" if row.trainable is None else f"{row.trainable:,}",
        "MB": _size(row.megabytes),
        "FLOPs": "" if row.flops is None else short(row.flops),
    }
    return [texts[name] for name in columns]


def _size(megabytes: float | None) -> str:
    """Return a size in MB as a string."""
    if not megabytes:
        return "?" if megabytes is None else "0"
    return "<0.01" if megabytes < 0.01 else f"{megabytes:,.2f}"


def short(count: float) -> str:
    """Return a large count with three digits and a unit prefix.

    Example:
        >>> [short(n) for n in (0, 999, 1234, 5_600_000, 8.2e9, 3e15)]
        ['0', '999', '1.23 k', '5.6 M', '8.2 G', '3 P']
    """
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:.0f}"
