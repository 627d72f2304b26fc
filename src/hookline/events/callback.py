"""The base class of all callbacks: declarations, identity and state."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from hookline.errors import RegistrationError
from hookline.events.arguments import checked_init, parameters_of, refuse_unknown, shown
from hookline.events.hooks import Hooks
from hookline.events.spec import Event

if TYPE_CHECKING:
    from hookline.records.finding import Finding
    from hookline.run import Run

Ranks = Literal["all", "zero", "local_zero"] | frozenset[int] | set[int]

PLAIN = (str, int, float, bool, type(None))


class _ConstructorCall(NamedTuple):
    """Arguments as they were passed. ``repr`` does not show them, because they may be secrets."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __repr__(self) -> str:
        return "(...)"


class _SignatureOfInit:
    """Descriptor that makes ``inspect.signature`` show ``__init__`` instead of ``__new__``."""

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
    """Base class of callbacks: override the hooks that you need.

    Every hook gets ``run``. Hooks of custom events also get the values that the event declares.

    Example:
        >>> class EpochMonitor(Callback):
        ...     def on_train_epoch_start(self, run):
        ...         print(run.clock.epoch)
        >>> EpochMonitor().state_key
        'EpochMonitor()'
    """

    name: str = ""
    """Name in messages and in ``before`` / ``after``. If empty, the class name is used."""
    optional: bool = False
    """True if Hookline disables the callback when it fails. Otherwise a failure stops the run."""
    ranks: Ranks = "all"
    """Processes on which the callback runs: ``"all"``, ``"zero"``, ``"local_zero"`` or ranks such as ``{0, 2}``."""
    reads: tuple[str, ...] = ()
    """Metrics (``"val/loss"``, ``"val/*"``) and resources (``"weights"``, …) that the callback reads.

    A callback that reads ``"*"`` runs last. ``__init__`` sets the attribute if it depends on an argument.
    """
    writes: tuple[str, ...] = ()
    """Metrics that the callback logs with ``run.log``, and resources that it changes.

    The resources are ``"weights"``, ``"gradients"``, ``"optimizer"``, ``"batch"`` and ``"loss"``. Images, figures,
    texts, tables, histograms and files are not metrics and are not listed. A class that sets ``writes = ()`` declares
    that it logs no metric. ``__init__`` sets the attribute if it depends on an argument.
    """
    role: str = ""
    """Position among the callbacks that change the model or the optimizers, or write files.

    Callbacks with a role run in the order ``"load"``, ``"plan"``, ``"structure"``, ``"schedule"``, ``"guard"``,
    ``"average"``, ``"restore"``, ``"constrain"``, ``"select"``, ``"convert"``, ``"plot"``, ``"send"``.
    """
    before: tuple[str | type, ...] = ()
    """Classes or names of callbacks that run later than this one."""
    after: tuple[str | type, ...] = ()
    """Classes or names of callbacks that run earlier than this one."""
    host: ClassVar[type[Callback] | None] = None
    """Class of a callback that the run adds before this one, once for all callbacks that name it."""
    events: ClassVar[tuple[Event, ...]] = ()
    """Custom events that the callback sends with ``run.emit``."""
    state: ClassVar[tuple[str, ...]] = ()
    """Attributes that a checkpoint saves and restores.

    Each attribute holds plain values, tensors, or an object with ``state_dict`` and ``load_state_dict``.
    """
    state_depends_on: ClassVar[tuple[str, ...]] = ()
    """Attributes that give the state its meaning, such as ``"monitor"``; ``__init__`` sets them.

    The callback starts without its saved state if one of these values differs from the checkpoint.
    """
    reports_on_resume: ClassVar[bool] = False
    """True if the callback itself logs which changed options take effect after a resume."""
    per_rank_state: ClassVar[bool] = False
    """True if the state differs between ranks. A checkpoint then saves the state of every rank."""
    shares_state: ClassVar[bool] = False
    """True if instances with equal arguments have equal states, so that they need no names.

    An example of such a state is the step of the last row.
    """
    commutes: ClassVar[bool] = False
    """True if two callbacks of this class may write the same resource in any order.

    They run in list order.
    """
    structural: ClassVar[bool] = False
    """True if the callback changes the structure of the model or the optimizers.

    On resume, Hookline loads its state before the states of the model and the optimizers.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    """Arguments that ``hookline set`` may change while the run trains.

    Each one is an argument of ``__init__`` and an attribute of the same name, which hooks read when they need it.
    The constructor checks a new value, all ranks change it after the same step, and a resume repeats it.
    """
    in_replay: ClassVar[bool] = True
    """False if ``hookline replay`` leaves the callback out, because it sends messages or files."""

    handles_nan: ClassVar[bool] = False
    """True if the callback handles non-finite losses. Hookline then does not warn about them."""

    _arguments: dict[str, object]
    _constructor_call: _ConstructorCall
    """The arguments as they were passed, of a class with a state or with ``settings``."""
    _trained_in: object = None
    """Clock of the last training run that has used the callback. It identifies the run."""

    # Editors would show the signature and the docstring of this `__new__` for every callback.
    if not TYPE_CHECKING:
        __signature__ = _SignatureOfInit()

        def __new__(cls, *args: object, **kwargs: object) -> Self:
            # The class and its plain constructor arguments identify the callback in a checkpoint.
            self = super().__new__(cls)
            self._arguments = _plain_arguments(cls, args, kwargs)
            if cls.settings or _has_state(cls):
                self._constructor_call = _ConstructorCall(args, kwargs)
            return self

        def __init_subclass__(cls, **options: Any) -> None:
            super().__init_subclass__(**options)
            if cls.__module__.startswith("hookline.callbacks.") and "__init__" in vars(cls):
                setattr(cls, "__init__", checked_init(cls.__init__))  # noqa: B010 (editors would follow an assignment)

    @property
    def declares_state(self) -> bool:
        """True if the class saves a separate state.

        Hookline also saves the modules that an instance holds.
        """
        return _has_state(type(self)) and not self.shares_state

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint: the class and its plain arguments, without secrets."""
        kind = type(self).__qualname__
        if self.name:
            return f"{kind}[{self.name}]"
        return f"{kind}({', '.join(f'{key}={shown(key, value)}' for key, value in self._arguments.items())})"

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves: the attributes that ``state`` lists."""
        check_state(self)
        values = {key: getattr(self, key) for key in self.state}
        return {key: value.state_dict() if _saves_itself(value) else value for key, value in values.items()}

    def snapshot_dict(self) -> dict[str, Any]:
        """Return the state for ``run.snapshot()``.

        A callback that keeps snapshots must leave them out, or each snapshot would contain the previous one.
        """
        return self.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the attributes named in ``state``.

        Args:
            state: Result of ``state_dict``.

        Raises:
            RegistrationError: If the saved state lacks an attribute.
        """
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
            elif saved is not part:  # The loop passes a module that it restores itself as the saved value.
                part.load_state_dict(saved)

    def reset_state(self) -> None:
        """Return to the state of a new instance.

        Hookline calls this method before a training run that does not continue the last training run of the callback.
        If the class has a state, the method calls ``__init__`` again with the same arguments. Attributes that are
        named like an argument and are not in ``state`` keep their values. Override it to keep more.
        """
        if not _has_state(type(self)):
            return
        own = vars(self)
        kept = {name: own[name] for name in parameters_of(type(self)) if name in own and name not in self.state}
        for name in self.state:
            own.pop(name, None)  # The initial value may be an attribute of the class.
        args, kwargs = self._constructor_call
        self.__init__(*args, **kwargs)  # type: ignore[misc]
        own.update(kept)

    def preflight(self, run: Run) -> Iterable[Finding]:
        """Return the probable mistakes that the callback sees before step 1. The method changes nothing.

        Args:
            run: The ``run`` of the hooks.
        """
        return ()

    def __repr__(self) -> str:
        return self.state_key


def begin_training(callback: Callback, clock: object) -> None:
    """Note the run that trains with a callback. Reset the callback first if the last one was another run.

    Args:
        callback: The callback.
        clock: The clock of the run, which identifies the run.
    """
    if callback._trained_in is not None and callback._trained_in is not clock:
        callback.reset_state()
    callback._trained_in = clock


def check_state(callback: Callback) -> None:
    """Raise if ``state`` lists an attribute that the callback does not have.

    Args:
        callback: A callback that is set up.

    Raises:
        RegistrationError: If an attribute is missing.
    """
    for name in callback.state:
        if not hasattr(callback, name):
            raise RegistrationError(
                f"{callback.state_key}.state lists {name!r}, which it lacks: set self.{name} in __init__"
            )


def callback_name(callback: object) -> str:
    """Return the name of a callback or task for messages."""
    name = getattr(callback, "name", "")
    # A task is a module, whose attribute `name` may hold anything.
    return name if isinstance(name, str) and name else type(callback).__qualname__


def with_settings(callback: Callback, settings: Mapping[str, object]) -> Callback:
    """Return a new callback with the same arguments, except for some of its ``settings``.

    The constructor checks the new values. The returned callback has no state.

    Args:
        callback: The callback.
        settings: The new values by argument.
    """
    args, kwargs = callback._constructor_call
    bound = inspect.signature(type(callback).__init__).bind(callback, *args, **kwargs)
    bound.arguments.update(settings)
    return type(callback)(*bound.args[1:], **bound.kwargs)


def adopt_settings(callback: Callback, changed: Callback, names: Iterable[str]) -> None:
    """Give a callback the settings of another one.

    Args:
        callback: The callback to change.
        changed: What ``with_settings`` returned for it.
        names: The settings.
    """
    for name in names:
        setattr(callback, name, getattr(changed, name))
    callback._constructor_call = changed._constructor_call


def identity_of(callback: Callback) -> dict[str, Any]:
    """Return the strings that identify a callback in a checkpoint, without secrets.

    A resume compares them to recognize a callback whose options have changed.
    """
    defaults = {
        name: parameter.default
        for name, parameter in parameters_of(type(callback)).items()
        if parameter.default is not parameter.empty and _is_plain(parameter.default)
    }
    return {
        "class": type(callback).__qualname__,
        "name": callback.name,
        "arguments": {name: shown(name, value) for name, value in (defaults | callback._arguments).items()},
        "depends_on": {name: _described(name, getattr(callback, name)) for name in callback.state_depends_on},
    }


def names_of(callback: object) -> tuple[str, ...]:
    """Return the names that refer to a callback: its name and the names of its class."""
    return callback_name(callback), type(callback).__qualname__, type(callback).__name__


def _plain_arguments(cls: type, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    init: Any = cls.__init__  # type: ignore[misc]
    if init is object.__init__:
        return {}
    try:
        signature = inspect.signature(init)
        bound = signature.bind_partial(None, *args, **kwargs)
    except (TypeError, ValueError):  # `__init__` has no signature, or raises the same with a better traceback.
        refuse_unknown(cls, kwargs)
        return {}
    given = dict(list(bound.arguments.items())[1:])
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given.update(given.pop(parameter.name, {}))
    # Copy the values, because a later change to a list must not change the key of the state.
    return {key: deepcopy(value) for key, value in given.items() if _is_plain(value)}


def _described(name: str, value: object) -> str:
    """Return a string that is equal in every process: no memory addresses, sets sorted."""
    if _is_plain(value):
        return shown(name, value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_described(str(key), item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_described(name, item) for item in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(_described(name, item) for item in value)) + "}"
    if isinstance(qualname := getattr(value, "__qualname__", None), str):  # The value is a class or a function.
        return qualname
    return shown(name, re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)))


def _has_state(cls: type[Callback]) -> bool:
    return bool(cls.state) or cls.state_dict is not Callback.state_dict


def _saves_itself(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, PLAIN)
