"""The layers of a model as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookline.callbacks.watch.model_calls import Seen

MB = 1e6
MOST = 60
"""So many layers are shown; a table that was logged has all."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One row. What is not known is ``None``."""

    name: str
    kind: str
    output: str | None
    parameters: int | None
    trainable: int | None
    megabytes: float | None
    """Of parameters and buffers."""
    flops: int | None
    """Forward, of one sample."""
    shares: bool = False
    """Some of its weights belong to a layer above, too, where they are counted."""

    @property
    def cells(self) -> dict[str, Any]:
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
    """What a module and all that is inside it hold."""

    tensors: int = 0
    """How many parameters it has, each being a tensor."""
    parameters: int = 0
    trainable: int = 0
    bytes: int = 0
    is_known: bool = True


def layers(model: nn.Module, depth: int | None, seen: Seen, samples: int) -> list[Layer]:
    """The parts of a model down to a depth, each with all that is inside it; the last row is the whole."""
    sizes = _sizes(model)
    whole = sum(_outermost(seen.flops).values()) if seen.flops else None
    found = [
        _layer(name, part, sizes.get(name, Size()), seen.outputs.get(name, ()), seen.flops.get(name), samples)
        for name, part in model.named_modules()
        if name and (depth is None or name.count(".") < depth)
    ]
    return [*found, _layer("total", model, sizes.get("", Size()), seen.outputs.get("", ()), whole, samples)]


def _sizes(model: nn.Module) -> dict[str, Size]:
    """By the name of a module. Each weight counts once: for the first module that has it, and for those around it."""
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
    size.tensors += is_weight
    if is_lazy(tensor):
        size.is_known = False
        return
    size.bytes += tensor.numel() * tensor.element_size()
    size.parameters += tensor.numel() if is_weight else 0
    size.trainable += tensor.numel() if is_weight and tensor.requires_grad else 0


def _layer(title: str, part: nn.Module, size: Size, outputs: Sequence[str], flops: int | None, samples: int) -> Layer:
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
    """Those that are inside no other that was counted: together they are the whole."""
    return {name: count for name, count in flops.items() if not any(other in flops for other in _around(name)[:-1])}


def _around(name: str) -> list[str]:
    """The names of the modules that a module is in, and its own.

    >>> _around("a.b.c"), _around("")
    (['', 'a', 'a.b', 'a.b.c'], [''])
    """
    return ["", *(name[:end] for end, letter in enumerate(f"{name}.") if letter == ".")] if name else [""]


def _words(outputs: Sequence[str]) -> str | None:
    """The output of a layer that was called; of one that was called several times, all different ones."""
    if not outputs:
        return None
    different = list(dict.fromkeys(outputs))
    words = different[0] if len(different) == 1 else f"{different[0]} to {different[-1]}"
    return words if len(outputs) == 1 else f"{words} ({len(outputs)} calls)"


# -- as text ---------------------------------------------------------------------------------------

COLUMNS = ("layer", "type", "output", "parameters", "trainable", "MB", "FLOPs")
LESS = ("MB", "trainable", "type", "output")
"""What is left out, in this order, where a terminal is too narrow."""


def render(rows: Sequence[Layer], note: str, *, width: int, color: bool, ascii_only: bool) -> str:
    """The table as lines for a terminal or a log."""
    from rich.console import Console  # here, because rich takes long to import

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
    return any(row.output is not None for row in rows)


def _has_flops(rows: Sequence[Layer]) -> bool:
    return any(row.flops is not None for row in rows)


def _table(rows: Sequence[Layer], columns: Sequence[str], *, ascii_only: bool) -> Any:
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
    if not megabytes:
        return "?" if megabytes is None else "0"
    return "<0.01" if megabytes < 0.01 else f"{megabytes:,.2f}"


def short(count: float) -> str:
    """A large count with three digits.

    >>> [short(n) for n in (0, 999, 1234, 5_600_000, 8.2e9, 3e15)]
    ['0', '999', '1.23 k', '5.6 M', '8.2 G', '3 P']
    """
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:.0f}"
