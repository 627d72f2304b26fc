"""The base class of all callbacks: what it declares, its identity and its state."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from hookline.errors import RegistrationError
from hookline.events.foreign_names import ARGUMENTS, advice_for
from hookline.events.hooks import Hooks
from hookline.events.spec import Event
from hookline.records.redact import HIDDEN, redact

Ranks = Literal["all", "zero", "local_zero"] | frozenset[int] | set[int]

PLAIN = (str, int, float, bool, type(None))


class _SignatureOfInit:
    """Makes ``inspect.signature`` and ``help`` show the parameters of ``__init__``, not those of ``__new__``."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        init: Any = owner.__init__  # type: ignore[misc]
        if init is object.__init__:
            return inspect.Signature()
        signature = inspect.signature(init)
        return signature.replace(
            parameters=list(signature.parameters.values())[1:], return_annotation=inspect.Signature.empty
        )


class Callback(Hooks):
    """Override the hooks that you need; each gets ``run`` and nothing else.

    >>> class EpochMonitor(Callback):
    ...     def on_train_epoch_start(self, run):
    ...         print(run.clock.epoch)
    >>> EpochMonitor().state_key
    'EpochMonitor()'
    """

    name: str = ""
    """What it is called in messages and in ``before`` / ``after``; the class's name if empty."""
    optional: bool = False
    """An optional callback that fails is switched off and reported; a required one stops the run."""
    ranks: Ranks = "all"
    """The processes in which it runs."""
    reads: tuple[str, ...] = ()
    """Metrics (``"val/loss"``, ``"val/*"``) and resources that it reads; ``"*"`` runs last."""
    writes: tuple[str, ...] = ()
    """Metrics and resources (``"weights"``, ``"gradients"``, …) that it writes."""
    role: str = ""
    """Its effect on the model or the optimizers, such as ``"average"``; callbacks run in the order of ``ROLES``."""
    before: tuple[str | type, ...] = ()
    after: tuple[str | type, ...] = ()
    events: ClassVar[tuple[Event, ...]] = ()
    """Events of its own, fired with ``run.emit``."""
    state: ClassVar[tuple[str, ...]] = ()
    """The attributes that a checkpoint saves and restores: plain values, tensors, and what has a ``state_dict``."""
    state_depends_on: ClassVar[tuple[str, ...]] = ()
    """The attributes that give the state its meaning, such as ``"monitor"``; ``__init__`` sets them.

    If the value of one of them is not that of the checkpoint, the callback starts without its saved state.
    """
    reports_on_resume: ClassVar[bool] = False
    """The callback itself logs which of its changed options take effect after a resume."""
    per_rank_state: ClassVar[bool] = False
    shares_state: ClassVar[bool] = False
    """Instances that are made alike have equal states, such as the step of the last row: they need no names."""
    commutes: ClassVar[bool] = False
    """Two of its class may write the same resource in any order: the order of the list decides."""
    structural: ClassVar[bool] = False
    """It changes what the model or the optimizers are made of: on a resume its state is loaded before theirs."""

    handles_nan: ClassVar[bool] = False
    """It acts on losses that are not finite: Hookline does not warn of them as well."""

    _arguments: dict[str, object]

    if not TYPE_CHECKING:  # editors would show its parameters and text for every callback, not those of the class
        __signature__ = _SignatureOfInit()

        def __new__(cls, *args: object, **kwargs: object) -> Self:
            # With the class, the plain constructor arguments are the callback's identity.
            self = super().__new__(cls)
            self._arguments = _plain_arguments(cls, args, kwargs)
            return self

    @property
    def declares_state(self) -> bool:
        """True if its class saves a separate state; modules that an instance holds are saved in addition."""
        saves = bool(self.state) or type(self).state_dict is not Callback.state_dict
        return saves and not self.shares_state

    @property
    def state_key(self) -> str:
        """Under this name its state is saved: the class and its plain constructor arguments, without secrets."""
        kind = type(self).__qualname__
        if self.name:
            return f"{kind}[{self.name}]"
        return f"{kind}({', '.join(f'{key}={_shown(key, value)}' for key, value in self._arguments.items())})"

    def state_dict(self) -> dict[str, Any]:
        if missing := [key for key in self.state if not hasattr(self, key)]:
            raise RegistrationError(
                f"{self.state_key}.state lists {missing[0]!r}, which it lacks: set self.{missing[0]} in __init__"
            )
        values = {key: getattr(self, key) for key in self.state}
        return {key: value.state_dict() if _saves_itself(value) else value for key, value in values.items()}

    def snapshot_dict(self) -> dict[str, Any]:
        """What ``run.snapshot()`` keeps of it. Whoever keeps snapshots leaves them out, or each would hold the last."""
        return self.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        missing = [key for key in self.state if key not in state]
        if missing:
            raise RegistrationError(
                f"{self.state_key}: the saved state lacks {', '.join(missing)}; it has {', '.join(state) or 'nothing'}"
            )
        for key in self.state:
            part: Any = getattr(self, key, None)
            saved = state[key]
            if not _saves_itself(part):
                setattr(self, key, saved)
            elif saved is not part:  # else the loop restores it, as it does with every module
                part.load_state_dict(saved)

    def __repr__(self) -> str:
        return self.state_key


def callback_name(callback: object) -> str:
    """How a callback or task is named in messages."""
    name = getattr(callback, "name", "")
    # A task is a module: what it calls ``name`` may be anything.
    return name if isinstance(name, str) and name else type(callback).__qualname__


def identity_of(callback: Callback) -> dict[str, Any]:
    """Return the strings by which a checkpoint recognizes a callback whose options have changed, without secrets."""
    defaults = {
        name: parameter.default
        for name, parameter in parameters_of(type(callback)).items()
        if parameter.default is not parameter.empty and _is_plain(parameter.default)
    }
    return {
        "class": type(callback).__qualname__,
        "name": callback.name,
        "arguments": {name: _shown(name, value) for name, value in (defaults | callback._arguments).items()},
        "depends_on": {name: _described(name, getattr(callback, name)) for name in callback.state_depends_on},
    }


def names_of(callback: object) -> tuple[str, ...]:
    """The names by which a callback can be found: its own, and those of its class."""
    return callback_name(callback), type(callback).__qualname__, type(callback).__name__


def _plain_arguments(cls: type, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    init: Any = cls.__init__  # type: ignore[misc]
    if init is object.__init__:
        return {}
    try:
        signature = inspect.signature(init)
        bound = signature.bind_partial(None, *args, **kwargs)
    except (TypeError, ValueError):  # __init__ is about to say the same with a better traceback, or has no signature
        _refuse_unknown(cls, kwargs)
        return {}
    given = dict(list(bound.arguments.items())[1:])
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given.update(given.pop(parameter.name, {}))
    # A copy: a list that is changed later must not change under which name the state is saved.
    return {key: deepcopy(value) for key, value in given.items() if _is_plain(value)}


def parameters_of(cls: type) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    except ValueError:  # written in C, without a signature
        return {}


def _described(name: str, value: object) -> str:
    """A string that is the same in the next process: no addresses, no order of a set."""
    if _is_plain(value):
        return _shown(name, value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_described(str(key), item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_described(name, item) for item in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(_described(name, item) for item in value)) + "}"
    if isinstance(qualname := getattr(value, "__qualname__", None), str):  # a class or a function
        return qualname
    return _shown(name, re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)))


def _refuse_unknown(cls: type, given: Mapping[str, object]) -> None:
    """Raise for a keyword that the constructor does not take, where it is known what was meant."""
    takes = [name for name in parameters_of(cls) if name != "self"]
    if not takes:
        return
    unknown = next((name for name in given if name not in takes), None)
    if unknown is None:
        return
    known: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        known |= ARGUMENTS.get(base.__name__, {}) if base.__module__.startswith("hookline.") else {}
    close = get_close_matches(unknown, takes, n=1, cutoff=0.75)
    if unknown in known:
        advice = advice_for(known[unknown], given[unknown])
        hint = f"{advice[0].upper()}{advice[1:]}." if advice.startswith("leave") else f"Write {advice}."
    elif close:
        hint = f"Did you mean {close[0]}?"
    else:
        return
    raise RegistrationError(f"{cls.__name__}({unknown}={given[unknown]!r:.40}): no such argument. {hint}")


def _shown(name: str, value: object) -> str:
    """A checkpoint may go where a token must not: to a colleague, to a bucket, to a hub."""
    hidden = repr(redact(value, name))
    return hidden if HIDDEN in hidden else repr(value)


def _saves_itself(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, PLAIN)
