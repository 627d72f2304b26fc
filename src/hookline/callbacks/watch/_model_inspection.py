"""Output shapes and FLOPs of a model in one batch, without computing the batch again."""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from torch._subclasses import FakeTensorMode

LARGEST = 5000
"""FLOPs are not counted in a model with more modules: it would take longer than a minute."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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
        if (modules := sum(1 for _ in self._model.modules())) > LARGEST:
            raise ValueError(f"the model has {modules} modules, and it would take too long with more than {LARGEST}")
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
    """Return the same arguments with tensors that have a shape but no data."""
    if isinstance(value, Tensor):
        return mode.from_tensor(value.detach()).requires_grad_(value.requires_grad)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(without_data(item, mode) for item in value))
    if type(value) in (list, tuple):
        return type(value)(without_data(item, mode) for item in value)
    if type(value) is dict:
        return {key: without_data(item, mode) for key, item in value.items()}
    return value  # FakeTensorMode converts tensors in other objects when they are used.


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in the output of a module."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from tensors(getattr(value, part.name))


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
    python, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    try:
        with torch.random.fork_rng(), warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
