"""``PlainState``: restore the Python state that user code may change in a trial, or say why this is not certain."""

from __future__ import annotations

import dis
import functools
import logging
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import chain
from pathlib import PurePath
from random import Random
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Children = list[tuple[Any, str]]
"""Values that another one holds, each with the name under which a message shows it."""

MAX_BYTES: Final = 256 * 2**20
"""Largest size of all arrays and tensors that are copied."""
MAX_VALUES: Final = 200_000
"""Largest number of values that are looked at one by one."""

FIXED: Final = frozenset(
    {str, int, float, bool, complex, bytes, type(None), slice, range, type(...), type(NotImplemented)}
)
"""Types whose values never change and hold no other values."""
FIXED_BASES: Final = (
    *(Enum, PurePath, re.Pattern, date, time, timedelta, tzinfo, Decimal, Fraction, weakref.ref, logging.Logger),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, types.CodeType, types.ModuleType, BaseException),
    *(types.GenericAlias, types.MemberDescriptorType, types.GetSetDescriptorType),
    *(type(threading.Lock()), type(threading.RLock())),
)
"""Bases of values that never change, or whose changes no result depends on."""
READ_ONLY: Final = frozenset({"pyarrow", "tokenizers", "sentencepiece"})
"""Libraries whose objects do not change when data is read from them."""
LIBRARIES: Final = sys.stdlib_module_names | {
    *("torch", "torchvision", "torchaudio", "torchmetrics", "torchtext", "torchao", "numpy", "scipy", "sklearn"),
    *("hookline", "transformers", "timm", "einops", "tokenizers", "datasets", "PIL", "safetensors", "torch_geometric"),
    *("peft", "sentence_transformers", "albumentations", "cv2", "kornia", "open_clip", "monai", "jaxtyping"),
}
"""Libraries whose functions keep no state in their modules, except for random numbers."""
OUTSIDE: Final = frozenset(
    {"wandb", "mlflow", "neptune", "comet_ml", "clearml", "aim", "tensorboard", "tensorboardX", "trackio", "swanlab"}
    | {
        "dvclive",
        "requests",
        "httpx",
        "urllib",
        "subprocess",
        "socket",
        "sqlite3",
        "shutil",
        "multiprocessing",
        "ctypes",
    }
)
"""Modules whose functions act outside of the process."""
EFFECTS: Final = frozenset(
    {"save", "savez", "savez_compressed", "savetxt", "savefig", "save_image", "save_file", "imwrite", "imsave", "dump"}
    | {"write", "writelines", "write_text", "write_bytes", "writerow", "to_csv", "to_parquet", "to_json", "mkdir"}
    | {"makedirs", "unlink", "rmtree", "rmdir", "touch", "system", "popen", "Popen", "environ", "_exit", "Thread"}
    | {"set_trace", "set_default_dtype", "set_default_device", "set_num_threads", "use_deterministic_algorithms"}
    | {"set_float32_matmul_precision", "add_save_plan", "request_save", "request_eval", "roll_back", "log_file"}
)
"""Names of functions and attributes with which a step acts on more than the objects that it holds."""
EFFECTS_OF_GLOBALS: Final = frozenset({"input", "exec", "globals", "breakpoint", "exit", "quit"})
"""The same for functions that are built in. Attributes of these names are harmless."""
EFFECTS_OF_RUN: Final = frozenset({"stop", "pause", "skip_step", "emit", "max_duration"})
"""The same for functions with an argument ``run``."""
ENTRIES: Final = frozenset({"forward", "train_batch", "step", "backward", "loss", "transform", "collate", "collate_fn"})
"""Names of methods that a step or a loader calls itself. So are all with two underscores."""
NEVER: Final = frozenset({"__init__", "__new__", "__del__", "__reduce__", "__reduce_ex__", "__getstate__", "__repr__"})
CONTAINERS: Final = (OrderedDict, dict, list, deque, set, bytearray)


class PlainState:
    """The Python state that some objects hold or reach, for ``restore``.

    It follows attributes, collections, closures, the globals that functions of the user name, and attributes of the
    user's classes. ``doubt`` names the first thing that cannot be restored, or a call with an effect outside of
    the process. A caller then must not run code that may change it.

    Args:
        held: Objects that something else restores, such as parameters.
        follows_code: False to follow attributes and collections only. Functions may share objects with callbacks,
            whose hooks are called in an evaluation.
    """

    def __init__(self, held: Iterable[object] = (), *, follows_code: bool = True) -> None:
        self.doubt = ""
        """Why ``restore`` is not certain to undo all changes. Empty if it is."""
        self._seen: dict[int, object] = {id(each): each for each in held}
        self._follows_code = follows_code
        self._restores: list[Callable[[], None]] = []
        self._names: set[str] = set(ENTRIES)
        self._waiting: dict[str, Children] = {}  # Methods whose names no code that was read has used.
        self._plain: dict[type, bool] = {}
        self._slots: dict[type, list[tuple[str, Any]]] = {}
        self._bytes = self._values = 0

    def add(self, value: object, path: str, but: Iterable[str] = ()) -> None:
        """Copy the state of an object and of everything that it holds.

        Args:
            value: The object.
            path: Name of the object in messages.
            but: Attributes of the object that something else restores.
        """
        if id(value) in self._seen:
            return
        stack: Children = [(value, path)]
        if but:
            self._seen[id(value)] = value
            stack = self._keep_attributes(value, path, frozenset(but))
        while stack:
            value, path = stack.pop()
            if type(value) in FIXED or id(value) in self._seen:
                continue
            self._values += 1
            if self._values > MAX_VALUES:
                self.refuse(f"{path} holds more than {MAX_VALUES:,} values")
                return
            self._seen[id(value)] = value
            stack += self._children(value, path)
            if self._names & self._waiting.keys():
                stack += [pair for name in self._names & self._waiting.keys() for pair in self._waiting.pop(name)]

    def restore(self) -> None:
        """Restore everything that was copied."""
        for restore in self._restores:
            restore()

    # -- kinds of values ---------------------------------------------------------------------------

    def _children(self, value: Any, path: str) -> Children:
        """Keep the state of one value, and return the values that it holds."""
        if isinstance(value, FIXED_BASES):
            return []
        if isinstance(value, Tensor):
            return self._keep_tensor(value, path)
        if isinstance(value, CONTAINERS):
            return [*self._keep_items(value, path), *self._keep_attributes(value, path)]
        if isinstance(value, tuple | frozenset):
            return _not_fixed(value, path)
        if isinstance(value, torch.Generator | Random) or _package(type(value)) == "numpy":
            return self._keep_numbers(value, path)
        if isinstance(value, types.FunctionType | type) or (callable(value) and not self._is_plain(type(value))):
            return self._of_callable(value, path)
        if isinstance(value, staticmethod | classmethod | property | functools.cached_property):
            return [(getattr(value, name, None), path) for name in ("__func__", "fget", "func")]
        package = _package(type(value))
        if package in READ_ONLY or (package == "hookline" and not isinstance(value, nn.Module)):
            return []
        if type(value).__name__ == "OptimizedModule":  # The snapshot of its module is all that it has.
            return [(value._modules, path)]
        if isinstance(value, nn.Module | torch.optim.Optimizer) or self._is_plain(type(value)):
            return self._keep_attributes(value, path)
        self.refuse(f"{path} is {_kind(value)}, whose state cannot be restored")
        return []

    def _of_callable(self, value: Any, path: str) -> Children:
        """Keep the state of a function, a class, or another callable in C."""
        if not self._follows_code:
            return []
        compiled = getattr(value, "_torchdynamo_orig_callable", None)
        if compiled is not None:
            return [(compiled, path)]
        if isinstance(value, types.FunctionType):
            return self._keep_function(value, path)
        if isinstance(value, type):
            return self._keep_class(value)
        if isinstance(value, types.MethodType):
            return [(value.__self__, path), (value.__func__, path)]
        if isinstance(value, functools.partial):
            return [(value.func, path), *_not_fixed(value.args, path), *_not_fixed(value.keywords.values(), path)]
        if isinstance(value, nn.Module):
            return self._keep_attributes(value, path)
        if isinstance(value, types.BuiltinFunctionType):
            return [] if isinstance(value.__self__, type | types.ModuleType) else [(value.__self__, path)]
        if type(value).__module__ in ("builtins", "functools", "torch._C", "operator", "_operator"):
            return [(getattr(value, "__wrapped__", None), path)]
        self.refuse(f"{path} is {_kind(value)}, whose state cannot be restored")
        return []

    def _keep_tensor(self, tensor: Tensor, path: str) -> Children:
        if tensor.layout != torch.strided or tensor.is_meta or is_lazy(tensor) or not self._has_space(tensor.nbytes):
            self.refuse(f"{path} is {'a large' if tensor.layout == torch.strided else 'a sparse'} tensor")
            return []
        held, gradient = tensor.detach().clone(), tensor.grad if tensor.is_leaf else None

        def restore() -> None:
            if tensor.is_leaf:
                tensor.grad = gradient
            if not _same_values(tensor.detach(), held):
                with torch.no_grad():
                    if tensor.shape != held.shape:
                        tensor.data = held
                    tensor.copy_(held)

        self._restores.append(restore)
        return [(gradient, path), *self._keep_attributes(tensor, path)]

    def _keep_items(self, value: Any, path: str) -> Children:
        kind: Any = next(each for each in CONTAINERS if isinstance(value, each))
        held = _items(kind, value)

        def restore() -> None:
            now = _items(kind, value)
            if len(held) == len(now) and all(map(_is_same, held, now)):
                return
            if isinstance(value, list | bytearray):
                kind.__setitem__(value, slice(None), held)
            else:
                kind.clear(value)
                kind.extend(value, held) if kind is deque else kind.update(value, held)

        self._restores.append(restore)
        return _not_fixed((item[1] for item in held) if isinstance(value, dict) else held, path)

    def _keep_attributes(self, value: Any, path: str, but: frozenset[str] = frozenset()) -> Children:
        """Keep the attributes of an object, also those in slots, and its class."""
        children: Children = [(type(value), path)]
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            pairs = [pair for pair in attributes.items() if pair[0] not in but]
            children += [(each, f"{path}.{name}") for name, each in pairs if type(each) not in FIXED]
            self._keep_names(attributes, None, but)
        for name, slot in self._slots.get(type(value), ()):
            try:
                each = slot.__get__(value)
            except AttributeError:
                continue
            self._restores.append(functools.partial(slot.__set__, value, each))
            children.append((each, f"{path}.{name}"))
        return children

    def _keep_numbers(self, value: Any, path: str) -> Children:
        """Keep a random generator, or an array of NumPy."""
        if isinstance(value, torch.Generator):
            self._restores.append(functools.partial(_set_state, value, value.get_state()))
        elif isinstance(value, Random):
            self._restores.append(functools.partial(value.setstate, value.getstate()))
        elif hasattr(value, "get_state"):
            self._restores.append(functools.partial(value.set_state, value.get_state(legacy=False)))
        elif hasattr(value, "bit_generator"):
            bits = value.bit_generator
            self._restores.append(functools.partial(setattr, bits, "state", bits.state))
        elif not hasattr(value, "flags") or not hasattr(value, "tobytes") or not value.shape:
            pass  # A type, a function or a number of NumPy.
        elif not value.flags.writeable:
            pass
        elif not self._has_space(value.nbytes) or value.dtype.hasobject:
            self.refuse(f"{path} is a large array" if not value.dtype.hasobject else f"{path} is an array of objects")
        else:
            held = value.copy()
            self._restores.append(lambda: value.__setitem__(..., held))
        return []

    # -- the code of the user ----------------------------------------------------------------------

    def _keep_function(self, function: types.FunctionType, path: str) -> Children:
        """Keep what a function reaches: its closure, its defaults, and the globals that it names."""
        children: Children = _not_fixed(vars(function).values(), path)
        children += _not_fixed(function.__defaults__ or (), path)
        children += _not_fixed((function.__kwdefaults__ or {}).values(), path)
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=False):
            try:
                value = cell.cell_contents
            except ValueError:
                continue  # It is empty.
            self._restores.append(functools.partial(setattr, cell, "cell_contents", value))
            children.append((value, name))
        found = function.__globals__
        if str(found.get("__name__", "")).partition(".")[0] in LIBRARIES:
            return children
        names, free = names_in(function.__code__)
        effects = (names & (EFFECTS | OUTSIDE)) | (free & EFFECTS_OF_GLOBALS)
        if "run" in function.__code__.co_varnames:
            effects |= names & EFFECTS_OF_RUN
        if effects:
            self.refuse(f"{function.__qualname__} uses {min(effects)!r}")
        if _opens_to_write(function.__code__):
            self.refuse(f"{function.__qualname__} opens a file to write")
        self._names |= names
        self._keep_names(found, free)
        for name in free & found.keys():
            value = found[name]
            if _package(value) in OUTSIDE:
                self.refuse(f"{function.__qualname__} uses {name!r}")
            elif isinstance(value, types.ModuleType):
                children += self._keep_module(value, names)
            else:
                children.append((value, name))
        return children

    def _keep_names(self, found: dict[str, Any], names: Iterable[str] | None, but: Iterable[str] = ()) -> None:
        """Keep which values some names of a namespace have. ``None``: all names."""
        chosen = None if names is None else set(names)
        held = {name: value for name, value in found.items() if (chosen is None or name in chosen) and name not in but}

        def restore() -> None:
            for name in [name for name in found if name not in held and (chosen is None or name in chosen)]:
                if name not in but:
                    del found[name]
            for name, value in held.items():
                if name not in found or found[name] is not value:
                    found[name] = value

        self._restores.append(restore)

    def _keep_module(self, module: types.ModuleType, names: set[str]) -> Children:
        """Keep the attributes of a module of the user that some code names."""
        if module.__name__.partition(".")[0] in LIBRARIES or id(module) in self._seen:
            return []
        self._seen[id(module)] = module
        self._keep_names(vars(module), names)
        held = [(name, value) for name, value in vars(module).items() if name in names]
        inner = [
            each for _, value in held if isinstance(value, types.ModuleType) for each in self._keep_module(value, names)
        ]
        return [*inner, *((value, name) for name, value in held if not isinstance(value, types.ModuleType))]

    def _keep_class(self, kind: type) -> Children:
        """Keep the attributes of a class of the user. Its methods follow when code names them."""
        children: Children = [(base, base.__name__) for base in kind.__bases__]
        if _package(kind) in LIBRARIES:
            return children
        held = dict(vars(kind))

        def restore() -> None:
            for name in [name for name in vars(kind) if name not in held]:
                type.__delattr__(kind, name)
            for name, value in held.items():
                if vars(kind).get(name) is not value and not name.startswith("__"):
                    type.__setattr__(kind, name, value)

        self._restores.append(restore)
        for name, value in held.items():
            path = f"{kind.__name__}.{name}"
            if name in NEVER or type(value) in FIXED or type(value).__module__ == "_abc":
                continue
            if isinstance(value, types.FunctionType | staticmethod | classmethod | property):
                if name in self._names or name.startswith("__"):
                    children.append((value, path))
                else:
                    self._waiting.setdefault(name, []).append((value, path))
            elif not name.startswith("__"):
                children.append((value, path))
        return children

    def _is_plain(self, kind: type) -> bool:
        """True if all state of the instances is in attributes: no class in C is among the bases."""
        if kind not in self._plain:
            self._plain[kind] = all(base is object or _is_python(base) for base in kind.__mro__)
            if slots := _slots_of(kind):
                self._slots[kind] = slots
        return self._plain[kind]

    def _has_space(self, size: int) -> bool:
        self._bytes += size
        return self._bytes <= MAX_BYTES

    def refuse(self, reason: str) -> None:
        """Note why the state cannot be restored for certain, if nothing is noted yet.

        Args:
            reason: The reason.
        """
        self.doubt = self.doubt or reason


def _set_state(generator: torch.Generator, state: Tensor) -> None:
    generator.set_state(state)


def _items(kind: Any, value: Any) -> list[Any]:
    """Return the items of a collection, without a call of a method that a subclass has."""
    return list(kind.items(value) if issubclass(kind, dict) else kind.__iter__(value))


def _not_fixed(values: Iterable[Any], path: str) -> Children:
    """Return the values that may change, with their path. Long lists of plain rows are looked at as a whole."""
    values = list(values)
    kinds = set(map(type, values))
    if kinds <= FIXED or (kinds <= {tuple} and set(map(type, chain.from_iterable(values))) <= FIXED):
        return []
    return [(value, path) for value in values if type(value) not in FIXED]


def _package(value: Any) -> str:
    """Return the top-level module in which a class or a function is defined, or the class of another value."""
    module = getattr(value, "__module__", None)
    return (module if isinstance(module, str) else type(value).__module__).partition(".")[0]


def _is_python(base: type) -> bool:
    in_c = (
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.BuiltinFunctionType,
        types.GetSetDescriptorType,
    )
    own = {name: value for name, value in vars(base).items() if name not in ("__dict__", "__weakref__", "__new__")}
    is_heap = bool(base.__flags__ & 1 << 9)
    return is_heap and not any(
        isinstance(value, in_c) or type(value).__name__ == "instancemethod" for value in own.values()
    )


def _slots_of(kind: type) -> list[tuple[str, Any]]:
    pairs = [pair for base in kind.__mro__ if _is_python(base) for pair in vars(base).items()]
    return [(name, value) for name, value in pairs if isinstance(value, types.MemberDescriptorType)]


def names_in(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Return the names that a function and the functions in it use, and those of them that are globals.

    >>> sorted(names_in((lambda x: len(x.data)).__code__)[0])
    ['data', 'len']
    """
    free = {
        each.argval
        for each in dis.get_instructions(code)
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
    }
    names = set(code.co_names)
    for inner in _inner(code):
        more, its_free = names_in(inner)
        names, free = names | more, free | its_free
    return names, free


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [each for each in code.co_consts if isinstance(each, types.CodeType)]


def _opens_to_write(code: types.CodeType) -> bool:
    """True if a function may open a file to write: it calls ``open`` with a constant that is such a mode."""
    modes = [each for each in code.co_consts if isinstance(each, str) and re.fullmatch(r"[rwxabt+]{1,3}", each)]
    writes = "open" in code.co_names and any(set(mode) & set("wxa+") for mode in modes)
    return writes or any(map(_opens_to_write, _inner(code)))


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is tuple and len(one) == 2 and one[0] is other[0] and one[1] is other[1])


def _same_values(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(0.5), other.nan_to_num(0.5))


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
