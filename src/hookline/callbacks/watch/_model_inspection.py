"""Layers of a model as a table: sizes, output shapes and FLOPs of one batch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from hookline.callbacks._text import format_count
from hookline.callbacks._trees import map_tensors, tensors
from hookline.distributed.random_states import same_random_state

if TYPE_CHECKING:
    from torch._subclasses import FakeTensorMode

MAX_COUNTED_MODULES = 5000
"""FLOPs are not counted in a model with more modules: it would take longer than a minute."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

MB = 1e6
MAX_PRINTED_LAYERS = 60
"""Maximum number of layers to print. The logged table has all layers."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a module from outside of the model. The arguments are tensors without data."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class Seen:
    """Results by the name of the module."""

    outputs: dict[str, list[str]] = field(default_factory=dict)
    """Output shapes of each call."""
    flops: dict[str, int] = field(default_factory=dict)
    """FLOPs of the forward pass of all calls."""
    backward: int | None = None
    """FLOPs of the backward pass of the whole model. ``None`` if they could not be counted."""


class Observer:
    """Hooks that record output shapes and the calls of the model. They change nothing.

    Compiled modules are not observed inside, because the hooks would cause a recompilation. Only their calls
    are recorded.
    """

    def __init__(self, model: nn.Module) -> None:
        from torch._subclasses import FakeTensorMode  # A private import: if torch moves it, only this fails.

        self._model = model
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._detach: list[Callable[[], None]] = []
        self._depth = 0
        self._error: Exception | None = None
        self.active = True
        """False during a backward pass, in which activation checkpointing calls modules again."""
        self.seen = Seen()
        self.calls: list[Call] = []

    def attach(self) -> None:
        """Register the hooks."""
        inside: tuple[str, ...] = ()
        for name, part in self._model.named_modules():
            if name.startswith(inside):
                continue
            if part._compiled_call_impl is not None:
                self._wrap_compiled(name, part)
            else:
                before = part.register_forward_pre_hook(self._before(name), with_kwargs=True)
                after = part.register_forward_hook(self._after(name), always_call=True)
                self._detach += [before.remove, after.remove]
            if part._compiled_call_impl is not None or hasattr(part, "_orig_mod"):
                inside += (f"{name}." if name else "",)

    def detach(self) -> None:
        """Remove the hooks."""
        while self._detach:
            self._detach.pop()()

    def _before(self, name: str) -> Callable[..., None]:
        """Return the forward pre-hook of a module."""

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.active and not self._depth:
                self._note_call(name, module, args, kwargs)
            self._depth += 1

        return note

    def _after(self, name: str) -> Callable[..., None]:
        """Return the forward hook of a module."""

        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self._depth -= 1
            if self.active and output is not None:
                with suppress(Exception):  # An error here would appear in the user's forward.
                    self.seen.outputs.setdefault(name, []).append(shapes(output))

        return note

    def _wrap_compiled(self, name: str, part: nn.Module) -> None:
        """Record the calls of a compiled module, which does not call hooks."""
        compiled: Any = part._compiled_call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.active and not self._depth:
                self._note_call(name, part, args, kwargs)
            return compiled(*args, **kwargs)

        part._compiled_call_impl = call
        self._detach.append(lambda: setattr(part, "_compiled_call_impl", compiled))

    def _note_call(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call. Keep an error for ``count``."""
        try:
            with torch.no_grad():
                self.calls.append(Call(name, module, *without_data((args, kwargs), self._mode)))
        except Exception as error:
            self._error = error

    def count(self) -> Seen:
        """Return the results with FLOPs, by repeating the calls on copies without data.

        Nothing is computed, so this is fast and needs no memory. Weights, statistics, gradients and random
        states do not change. A model whose ``forward`` depends on values of tensors raises an error.
        """
        if self._error is not None:
            raise self._error
        if (modules := sum(1 for _ in self._model.modules())) > MAX_COUNTED_MODULES:
            raise ValueError(
                f"the model has {modules} modules, and it would take too long with more than {MAX_COUNTED_MODULES}"
            )
        for call in self.calls:
            _count_call(call, self._mode, self.seen)
        return self.seen


def _count_call(call: Call, mode: FakeTensorMode, seen: Seen) -> None:
    """Count the FLOPs of the forward and backward pass of one call."""
    inner = getattr(call.module, "_orig_mod", call.module)  # The module that torch.compile has wrapped.
    copied = copy_without_data(inner, mode)
    prefix = ".".join(part for part in (call.name, "_orig_mod" if inner is not call.module else "") if part)
    with _untouched(), torch.enable_grad(), mode:
        with FlopCounterMode(display=False) as forward:
            _count_parts(copied, prefix, forward, seen)
            output = copied(*call.args, **call.kwargs)
        if inner is not call.module:
            seen.flops[call.name] = seen.flops.get(call.name, 0) + forward.get_total_flops()
        with FlopCounterMode(display=False) as backward:
            ends = [tensor for tensor in tensors(output) if tensor.requires_grad]
            if ends:
                torch.autograd.backward(ends, [torch.ones_like(tensor) for tensor in ends])
        seen.backward = (seen.backward or 0) + backward.get_total_flops()


def _count_parts(copied: nn.Module, prefix: str, counter: FlopCounterMode, seen: Seen) -> None:
    """Register hooks on a copy that count FLOPs per module and record missing shapes."""
    unseen = {name for name, _ in copied.named_modules() if _join(prefix, name) not in seen.outputs}
    for name, part in copied.named_modules():
        path = _join(prefix, name)
        began: list[int] = []

        def before(module: nn.Module, args: Any, began: list[int] = began) -> None:
            began.append(counter.get_total_flops())

        def after(
            module: nn.Module, args: Any, output: Any, path: str = path, name: str = name, began: list[int] = began
        ) -> None:
            seen.flops[path] = seen.flops.get(path, 0) + counter.get_total_flops() - began.pop()
            if name in unseen:
                seen.outputs.setdefault(path, []).append(shapes(output))

        part.register_forward_pre_hook(before)
        part.register_forward_hook(after)


def copy_without_data(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return a copy of a module with shapes but without data. Hooks of the user are removed."""
    memo: dict[int, Any] = {id(t): mode.from_tensor(t) for t in (*module.parameters(), *module.buffers())}
    for part in module.modules():
        plain = [value for value in vars(part).values() if isinstance(value, Tensor)]  # For example a pruned weight.
        memo.update({id(tensor): mode.from_tensor(tensor.detach()) for tensor in plain})
        for kind in HOOKS:
            memo.update({id(hook): hook for hook in getattr(part, kind).values()})  # Copying would copy the owner.
    copied = copy.deepcopy(module, memo)
    for part in copied.modules():
        for kind in HOOKS:
            hooks = getattr(part, kind)
            for key, hook in list(hooks.items()):
                if not _is_of_torch(hook):
                    del hooks[key]
    return copied


def _is_of_torch(hook: Any) -> bool:
    """True for hooks of torch.

    The hook of ``torch.nn.utils.prune``, for example, computes the weight.
    """
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return str(module).startswith("torch.")


def without_data(value: Any, mode: FakeTensorMode) -> Any:
    """Return the same arguments with tensors that have a shape but no data.

    FakeTensorMode converts tensors in other objects when they are used.
    """
    return map_tensors(lambda tensor: mode.from_tensor(tensor.detach()).requires_grad_(tensor.requires_grad), value)


def shapes(value: Any) -> str:
    """Return the shapes of the tensors in an output as a string. Only the first two are listed.

    Example:
        >>> shapes((torch.zeros(8, 3), torch.zeros(()))), shapes(None)
        ('8 x 3, scalar', '')
    """
    found = [" x ".join(map(str, tensor.shape)) or "scalar" for tensor in tensors(value)]
    return ", ".join(found[:2] + (["..."] if len(found) > 2 else []))


def _join(prefix: str, name: str) -> str:
    """Join two parts of a module name."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


@contextmanager
def _untouched() -> Iterator[None]:
    """Restore random states and hide output: the first call has already printed and warned."""
    with same_random_state(), warnings.catch_warnings(action="ignore"), redirect_stdout(StringIO()):
        yield


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
        for held, is_weight in ((part._parameters, True), (part._buffers, False)):
            for tensor in held.values():
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
    for row in parts[:MAX_PRINTED_LAYERS]:
        table.add_row(*_texts(row, columns), style="dim" if row.trainable == 0 and row.parameters else None)
    if len(parts) > MAX_PRINTED_LAYERS:
        table.add_row(f"({len(parts) - MAX_PRINTED_LAYERS} more)")
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
        "FLOPs": "" if row.flops is None else format_count(row.flops),
    }
    return [texts[name] for name in columns]


def _size(megabytes: float | None) -> str:
    """Return a size in MB as a string."""
    if not megabytes:
        return "?" if megabytes is None else "0"
    return "<0.01" if megabytes < 0.01 else f"{megabytes:,.2f}"
