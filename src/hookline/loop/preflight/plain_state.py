"""``PlainState``: restore the Python state that user code may change in a trial, or say why this is not certain."""

from __future__ import annotations

import dis
import functools
import logging
import os
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import chain
from pathlib import PurePath
from random import Random
from typing import Any, Final, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Children = list[tuple[Any, str]]
"""Values that another one holds, each with the name under which a message shows it."""

MAX_BYTES: Final = 256 * 2**20
"""Largest size of all arrays and tensors that are copied."""
MAX_VALUES: Final = 20_000
"""Largest number of values that are looked at one by one."""
MAX_LENGTH: Final = 200_000
"""Largest length of a collection."""

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
    | {"dvclive", "requests", "httpx", "urllib", "subprocess", "socket", "sqlite3", "shutil", "tempfile"}
    | {"multiprocessing", "ctypes", "posix", "nt"}
)
"""Modules whose functions act outside of the process."""
EFFECTS_OF_OS: Final = vars(os).keys() - {"path", "sep", "fspath", "listdir", "scandir", "getpid", "cpu_count"}
"""Names of ``os`` with which code may do so."""
OBJECTS: Final = LIBRARIES - sys.stdlib_module_names
"""Libraries whose objects are copied also if only code names them."""
EFFECTS: Final = frozenset(
    {"tofile", "rename", "symlink_to", "hardlink_to", "all_reduce", "all_gather", "barrier"}
    | {
        "save",
        "savez",
        "savez_compressed",
        "savetxt",
        "savefig",
        "save_image",
        "save_file",
        "imwrite",
        "imsave",
        "dump",
    }
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
    """The Python state that objects hold in attributes and collections, for ``restore``.

    Code may also reach state that nothing restores, because other threads may change it as well: variables of
    modules and closures, and attributes of classes. ``doubt`` names the first one that code may change, the first
    thing that cannot be restored, or a call with an effect outside of the process. A caller then must not run
    the code.

    Args:
        held: Objects that something else restores, such as parameters.
    """

    def __init__(self, held: Iterable[object] = ()) -> None:
        self.doubt = ""
        """Why ``restore`` is not certain to undo all changes. Empty if it is."""
        self._seen: dict[int, object] = {id(each): each for each in held}
        self._restores: list[Callable[[], None]] = []
        self._code: Children = []  # Functions and classes that are not yet read.
        self._names: set[str] = set(ENTRIES)
        self._waiting: dict[str, Children] = {}  # Parts of classes whose names no code that was read has used.
        self._of_classes: set[str] = set()
        self._stored: set[str] = set()  # Attributes that code sets, maybe of a class.
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
        while stack and not self.doubt:
            value, path = stack.pop()
            if type(value) in FIXED or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            children = self._children(value, path)
            self._values += len(children)
            if self._values > MAX_VALUES:
                self.refuse(f"{path} holds more than {MAX_VALUES:,} values")
            stack += children

    def read_code(self) -> None:
        """Look for effects that ``restore`` does not undo, in the functions and classes of all that was added."""
        named: Children = []
        while (self._code or named) and not self.doubt:
            if named:
                named += self._named(*named.pop())
                continue
            value, _ = self._code.pop()
            named += self._read_function(value) if isinstance(value, types.FunctionType) else self._read_class(value)
            named += chain.from_iterable(self._waiting.pop(name) for name in self._names & self._waiting.keys())
        if both := self._stored & self._of_classes:
            self.refuse(f"code sets {min(both)!r} of a class")

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
        """Return what a callable holds. Functions and classes are read later."""
        compiled = getattr(value, "_torchdynamo_orig_callable", None)
        if compiled is not None:
            return [(compiled, path)]
        if isinstance(value, types.FunctionType | type):
            self._code.append((value, path))
            return []
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
        if len(value) > MAX_LENGTH:
            self.refuse(f"{path} holds more than {MAX_LENGTH:,} values")
            return []
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
        """Keep the attributes of an object, also those in slots. Return them, and its class."""
        children: Children = [(type(value), path)]
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            held = {name: each for name, each in attributes.items() if name not in but}
            children += [(each, f"{path}.{name}") for name, each in held.items() if type(each) not in FIXED]

            def restore() -> None:
                for name in attributes.keys() - held.keys() - but:
                    del attributes[name]
                for name, each in held.items():
                    if name not in attributes or attributes[name] is not each:
                        attributes[name] = each

            self._restores.append(restore)
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

    def _read_function(self, function: types.FunctionType) -> Children:
        """Return what a function reaches by name: its closure, its defaults, and globals."""
        found, title = function.__globals__, function.__qualname__
        named = [(each, title) for each in (*vars(function).values(), *(function.__defaults__ or ()))]
        named += [(each, title) for each in (function.__kwdefaults__ or {}).values()]
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=False):
            with suppress(ValueError):  # It is empty.
                named.append((cell.cell_contents, name))
        if str(found.get("__name__", "")).partition(".")[0] in LIBRARIES:
            return named
        code = CodeNames.of(function.__code__)
        values = [(found[name], name) for name in code.free & found.keys()]
        effects = (code.names & (EFFECTS | OUTSIDE)) | (code.free & EFFECTS_OF_GLOBALS) | code.rebound
        if "run" in function.__code__.co_varnames:
            effects |= code.names & EFFECTS_OF_RUN
        if any(value is os for value, _ in values):
            effects |= code.names & EFFECTS_OF_OS
        modules: list[types.ModuleType] = []
        for module, _ in values:  # It grows by what the modules of the user hold.
            is_users = isinstance(module, types.ModuleType) and module.__name__.partition(".")[0] not in LIBRARIES
            if is_users and module not in modules:
                modules.append(module)
                effects |= code.stored & vars(module).keys()
                values += [(vars(module)[name], name) for name in code.names & vars(module).keys()]
        if effects:
            self.refuse(f"{title} uses {min(effects)!r}")
        if _opens_to_write(function.__code__):
            self.refuse(f"{title} opens a file to write")
        self._names |= code.names
        classes = {"cls", "__class__", "type"} & {*function.__code__.co_varnames, *code.names}
        if classes or any(isinstance(value, type) and name != "__class__" for value, name in (*values, *named)):
            self._stored |= code.stored
        return [(value, name) for value, name in named + values if not _is_only_read(function.__code__, name, value)]

    def _named(self, value: Any, path: str) -> Children:
        """Refuse a value that code names if the code may change it. Return what the value holds."""
        name = value.__name__ if isinstance(value, types.ModuleType) else _package(value)
        if name.partition(".")[0] in OUTSIDE:
            self.refuse(f"code uses {path}, which may act outside of the process")
        if type(value) in FIXED or isinstance(value, FIXED_BASES) or id(value) in self._seen:
            return []
        if isinstance(value, tuple | frozenset):
            return _not_fixed(value, path)
        if isinstance(value, staticmethod | classmethod | property | functools.cached_property):
            return [(getattr(value, name, None), path) for name in ("__func__", "fget", "func")]
        if isinstance(value, Tensor | nn.Module | Random) or _package(type(value)) in OBJECTS:
            self.add(value, path)
        elif callable(value) and not self._is_plain(type(value)):
            self._seen[id(value)] = value
            return self._of_callable(value, path)
        else:
            self.refuse(f"code uses {path}, {_kind(value)}, which it may change")
        return []

    def _read_class(self, kind: type) -> Children:
        """Return the bases of a class, and its parts that code may use. Methods follow when code names them."""
        if _package(kind) in LIBRARIES:
            return []
        found: Children = [(base, base.__name__) for base in kind.__bases__]
        for name, value in vars(kind).items():
            if name in NEVER or type(value).__module__ == "_abc":
                continue
            if not name.startswith("__"):
                self._of_classes.add(name)
            if type(value) in FIXED:
                continue
            pair = (value, f"{kind.__name__}.{name}")
            is_method = isinstance(value, types.FunctionType | staticmethod | classmethod | property)
            if name in self._names or (name.startswith("__") and is_method):
                found.append(pair)
            elif not name.startswith("__"):
                self._waiting.setdefault(name, []).append(pair)
        return found

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


@dataclass(frozen=True, slots=True)
class CodeNames:
    """The names that a function and the functions in it use.

    >>> sorted(CodeNames.of((lambda x: len(x.data)).__code__).names)
    ['data', 'len']
    """

    names: frozenset[str]
    free: frozenset[str]
    """Names of globals."""
    rebound: frozenset[str]
    """Globals, and variables of an outer function, that it sets."""
    stored: frozenset[str]
    """Attributes that it sets."""

    @classmethod
    def of(cls, code: types.CodeType) -> Self:
        """Return the names of a function."""
        found: dict[str, set[str]] = {}
        for each in dis.get_instructions(code):
            found.setdefault(each.opname, set()).add(each.argval)

        def used(*instructions: str) -> set[str]:
            return set().union(*(found.get(each, ()) for each in instructions))

        free, stored = used("LOAD_GLOBAL", "LOAD_NAME"), used("STORE_ATTR", "DELETE_ATTR")
        names = set(code.co_names)
        rebound = used("STORE_DEREF", "DELETE_DEREF") & set(code.co_freevars)
        rebound |= used("STORE_GLOBAL", "DELETE_GLOBAL")
        for inner in map(cls.of, _inner(code)):
            names, free, stored = names | inner.names, free | inner.free, stored | inner.stored
            rebound |= inner.rebound - set(code.co_cellvars)
        return cls(frozenset(names), frozenset(free), frozenset(rebound), frozenset(stored))


def _is_only_read(code: types.CodeType, name: str, value: Any) -> bool:
    """True if the code only reads single settings of a dict or an object, such as ``config["width"]``."""
    settings = value if type(value) is dict else getattr(value, "__dict__", None)
    if type(settings) is not dict or not {type(each) for each in settings.values()} <= FIXED:
        return False
    uses = list(_uses(code, name))
    if type(value) is not dict:
        return bool(uses) and all(first.opname == "LOAD_ATTR" and first.argval in settings for first, _ in uses)
    return bool(uses) and all(
        first.opname == "LOAD_CONST" and (second.opname == "BINARY_SUBSCR" or second.argrepr == "[]")
        for first, second in uses
    )


def _uses(code: types.CodeType, name: str) -> Iterator[tuple[dis.Instruction, dis.Instruction]]:
    """Yield the two instructions after each one that loads a variable of an outer scope."""
    found = [each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "EXTENDED_ARG")]
    for number, each in enumerate(found):
        if each.argval == name and each.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            yield found[number + 1], found[min(number + 2, len(found) - 1)]
    for inner in _inner(code):
        yield from _uses(inner, name)


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
