"""Checks that find mistakes when a callback is registered, and suggest a correction."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partialmethod
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any

from hookline.errors import RegistrationError, kind_of
from hookline.events.arguments import parameters_of
from hookline.events.callback import Callback, callback_name
from hookline.events.foreign import ForeignHook, our_name
from hookline.events.foreign_classes import adapter_module
from hookline.events.foreign_names import PARAMETERS, UNMISTAKABLE
from hookline.events.hooks import Hooks
from hookline.events.order import ROLES
from hookline.events.spec import BY_NAME, SCOPES, Event, is_resource
from hookline.events.when import FunctionCallback

SCOPE_HOOKS = tuple(scope.hook for scope in SCOPES)
FOREIGN_PARAMETERS = {
    **{name: f"run.{name}" for name in ("batch", "loss", "outputs", "model", "optimizer", "metrics")},
    **dict.fromkeys(("epoch", "epoch_idx"), "run.clock.epoch"),
    **dict.fromkeys(("step", "global_step"), "run.clock.step"),
    **dict.fromkeys(("batch_idx", "batch_index"), "run.clock.batch_in_epoch"),
    "logs": "run.metrics",
    "pl_module": "run.task",
    "trainer": "run, with the engine at run.loop",
}
"""Names of the first parameter of a hook in other libraries, and the value in Hookline."""
MISSPELT = 0.8
"""Smallest similarity at which an unknown name counts as misspelt."""
TAKEN = ("self", "event", "run")
"""Parameters of every hook and of ``on_event``. A payload cannot use these names."""


def check_kind(callback: object) -> Callback:
    """Return the callback if it is an instance of ``Callback``, or an adapter for a callback of another library.

    Args:
        callback: The object that the user gave as a callback.

    Raises:
        RegistrationError: If it is anything else. The message says how to make it a callback.
    """
    if isinstance(callback, Callback):
        return callback
    if adapter_module(callback if inspect.isclass(callback) else type(callback)) is not None:
        adapted: Callback = import_module("hookline.interop").adapt(callback)
        return adapted
    if inspect.isclass(callback) and issubclass(callback, Callback):
        raise RegistrationError(f"{callback.__name__} is a class, not a callback; write {callback.__name__}(…)")
    if inspect.isroutine(callback):
        raise RegistrationError(
            f"{callback.__name__} is a function; say when it runs: hl.on('train_step_end')({callback.__name__})"
        )
    raise RegistrationError(
        f"{callback!r} is {kind_of(callback)}, not a callback; make its class a subclass of hl.Callback"
    )


def known_events(members: Iterable[object]) -> dict[str, Event]:
    """Return the built-in events and those that tasks and callbacks declare.

    Args:
        members: Callbacks and tasks.

    Returns:
        The events by name.

    Raises:
        RegistrationError: If a declaration is invalid.
    """
    known = dict(BY_NAME)
    for member in members:
        declared = getattr(type(member), "events", ())  # An instance may use this name for something else.
        if isinstance(declared, Event):
            raise RegistrationError(
                f"{callback_name(member)}.events is one Event; make it a tuple: events = (hl.Event({declared.name!r}),)"
            )
        if not isinstance(declared, tuple | list):
            raise RegistrationError(
                f"{callback_name(member)}.events is {declared!r}; make it a tuple: events = (hl.Event('name'),)"
            )
        for event in declared:
            _check_declared_event(callback_name(member), event, known)
            known.setdefault(event.name, event)
    return known


def _check_declared_event(who: str, event: object, known: Mapping[str, Event]) -> None:
    if not isinstance(event, Event):
        raise RegistrationError(f"{who}.events holds {event!r}; use hl.Event('name', gives=(…))")
    if not _is_name(event.name) or event.name == "event" or event.name.startswith(("_", "around_")):
        raise RegistrationError(f"{who}: an event cannot be called {event.name!r}")
    gives = event.gives
    if isinstance(gives, str) or not all(_is_name(name) and name not in TAKEN for name in gives):
        raise RegistrationError(
            f"{who}: hl.Event({event.name!r}, gives={gives!r}): give a tuple of names for the keywords that follow run"
        )
    if event.name in BY_NAME and event != BY_NAME[event.name]:
        raise RegistrationError(f"{who}.events declares {event.name!r}, which is an event of every run already")
    if event.name in known and known[event.name].gives != gives:
        raise RegistrationError(f"{who}.events declares {event.name!r}, which exists already with other keywords")


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier()


def check_hooks(member: object, known: Mapping[str, Event], *, has_task: bool = True) -> None:
    """Check that every ``on_*`` and ``around_*`` is a known hook with the right parameters.

    Args:
        member: The callback or task.
        known: The known events by name.
        has_task: False if the task, which may declare more events, is not known yet. An unknown event is then an error
            only if another library has such a hook, or if its name resembles that of a known event.

    Raises:
        RegistrationError: If a hook or another declaration is invalid.
    """
    if isinstance(member, FunctionCallback):
        if member.event in known:
            _check_hook(f"hl.on({member.event!r}) on {member.name}", member.function, known[member.event].gives)
            _check_stage(member, known[member.event].stages)
        else:
            _refuse_unknown(f"hl.on({member.event!r})", member.event, known, prefix="", has_task=has_task)
        _check_declarations(member)
        return
    _check_decorated(member)
    if isinstance(member, Callback):
        _check_declarations(member)
    for attribute in _own_names(member):
        where = f"{callback_name(member)}.{attribute}"
        if attribute == "on_event":
            _check_hook(where, member.on_event, (), event_first=True)  # type: ignore[attr-defined]
        elif attribute.startswith("on_"):
            event = known.get(attribute.removeprefix("on_"))
            if event is None:
                _refuse_unknown(where, attribute, known, has_task=has_task)
            else:
                _check_hook(where, getattr(member, attribute), event.gives)
        elif attribute.startswith("around_"):
            _check_scope(where, getattr(member, attribute), attribute)
        elif isinstance(member, Callback):
            _check_foreign(where, attribute, getattr(member, attribute), known)


def _refuse_unknown(
    where: str, written: str, known: Mapping[str, Event], *, prefix: str = "on_", has_task: bool
) -> None:
    """Raise for an unknown event. Without the task, raise only for a likely mistake."""
    name = written.removeprefix("on_")
    error = RegistrationError(f"{where}: no such event{suggestion(written, known, prefix=prefix)}")
    if has_task:
        raise error
    if name in known or _foreign(written) or get_close_matches(name, known, n=1, cutoff=MISSPELT):
        error.add_note(f"If the task declares {name!r}, list it in the events of the callback as well.")
        raise error


def _check_stage(member: FunctionCallback, stages: tuple[str, ...]) -> None:
    """Raise if the stage filter excludes all stages of the event: the hook would never run."""
    wanted = member.when.stage
    if wanted and stages and not set(wanted) & set(stages):
        raise RegistrationError(
            f"hl.on({member.event!r}, stage={wanted[0]!r}) on {member.name} would never run: "
            f"{member.event} is sent in the stage {' or '.join(stages)}"
        )


def _check_decorated(member: object) -> None:
    """Raise if ``hl.on`` decorates a method: Hookline would never call such a callback."""
    for cls in type(member).__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, FunctionCallback):
                raise RegistrationError(
                    f"{callback_name(member)}.{name}: hl.on makes a callback of a function, and nothing would run "
                    f"that of a method; write on_{value.event}(self, run) and look at run.clock in it, or put a "
                    f"function outside of the class into the list of callbacks"
                )


def overridden(member: object, hook: str) -> Callable[..., Any] | None:
    """Return the bound hook if the member overrides it, otherwise ``None``."""
    bound = getattr(member, hook, None)
    if bound is None or getattr(bound, "__func__", bound) is getattr(Hooks, hook, None):
        return None
    return bound  # type: ignore[no-any-return]


def _check_declarations(callback: Callback) -> None:
    """Raise if a declaration of a callback is invalid.

    A string in place of a tuple, for example, would be read letter by letter.
    """
    for field in ("reads", "writes", "state", "state_depends_on"):
        value = getattr(callback, field)
        if isinstance(value, str):
            raise RegistrationError(
                f"{callback_name(callback)}.{field} = {value!r} is one text; make it a tuple: {field} = ({value!r},)"
            )
    if missing := [name for name in callback.state_depends_on if not hasattr(callback, name)]:
        raise RegistrationError(
            f"{callback_name(callback)}.state_depends_on lists {missing[0]!r}, which it lacks: "
            f"set self.{missing[0]} in __init__"
        )
    _check_settings(callback)
    if not isinstance(callback.name, str):
        raise RegistrationError(f"{type(callback).__qualname__}.name = {callback.name!r}; a name is a text")
    if not isinstance(callback.optional, bool):
        raise RegistrationError(f"{callback_name(callback)}.optional = {callback.optional!r}; use True or False")
    if callback.role and callback.role not in ROLES:
        close = get_close_matches(callback.role, ROLES, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Use one of {', '.join(ROLES)}."
        raise RegistrationError(f"{callback_name(callback)}.role = {callback.role!r}: there is no such role. {hint}")
    written = [name for name in callback.writes if is_resource(name)]
    if callback.optional and written:
        raise RegistrationError(
            f"{callback_name(callback)} is optional and writes {written[0]!r}: the run would depend on one that may be "
            f"switched off; set optional = False"
        )


def _check_settings(callback: Callback) -> None:
    settings, takes = type(callback).settings, parameters_of(type(callback))
    if not isinstance(settings, tuple):
        raise RegistrationError(
            f"{callback_name(callback)}.settings = {settings!r:.80}: must be a tuple of arguments of __init__, such as "
            f"settings = ('patience',)."
        )
    if unknown := [name for name in settings if name not in takes or not hasattr(callback, name)]:
        raise RegistrationError(
            f"{callback_name(callback)}.settings lists {unknown[0]!r}, which is not both an argument of __init__ and "
            f"an attribute. Store the argument as self.{unknown[0]}."
        )
    if fixed := [name for name in settings if name in callback.state_depends_on]:
        raise RegistrationError(
            f"{callback_name(callback)}.settings lists {fixed[0]!r}, which gives the saved state its meaning "
            f"(state_depends_on). Remove it from one of them."
        )


def _own_names(member: object) -> list[str]:
    """Return the names of the callables that the member or its own classes define, and of values in place of hooks."""
    owned = {
        name
        for cls in type(member).__mro__
        if cls not in (Callback, Hooks) and not cls.__module__.startswith("torch.")
        for name, value in vars(cls).items()
        if callable(value) or isinstance(value, classmethod | partialmethod) or _is_value_as_hook(name, value)
    }
    owned |= {
        name
        for name, value in vars(member).items()
        if (name.startswith(("on_", "around_")) and callable(value)) or _is_value_as_hook(name, value)
    }
    return sorted(name for name in owned if not name.startswith("_"))


def _is_value_as_hook(name: str, value: object) -> bool:
    """True for ``on_eval_start = 3``. A subclass may write ``None`` to disable an inherited hook."""
    return name.startswith("on_") and value is not None and not callable(value) and hasattr(Hooks, name)


def suggestion(written: str, known: Mapping[str, Event], prefix: str = "on_") -> str:
    """Return a hint for an unknown event, such as ``; did you mean on_train_step_end?``.

    Args:
        written: The name that the user wrote, which may be a hook of another library.
        known: The known events by name.
        prefix: Prefix of the suggested name: ``"on_"`` for a hook, empty for an event.
    """
    name = written.removeprefix("on_")
    if not prefix and name in known:
        return f"; did you mean {name}?"
    foreign = _foreign(written)
    if foreign:
        ways = "; ".join(
            f"{row.system}'s {row.hook} is {prefix}{row.event} here{f' ({row.note})' if row.note else ''}"
            for row in foreign
        )
        return f"; {ways}"
    close = get_close_matches(name, known, n=1, cutoff=0.6) or [
        event for event in known if event.replace("_", "") == name.replace("_", "")
    ]
    if close:
        return f"; did you mean {prefix}{close[0]}?"
    return "; `hookline events` lists them, and a new one is declared with events = (hl.Event(…),)"


def _foreign(written: str) -> tuple[ForeignHook, ...]:
    """Return the hooks of other libraries with this name, with or without ``on_``."""
    name = written.removeprefix("on_")
    return our_name(written) or our_name(f"on_{name}") or our_name(name)


def _check_foreign(where: str, name: str, method: Any, known: Mapping[str, Event]) -> None:
    """Raise for a hook of another library, and for a Hookline hook without ``on_``.

    The parameters decide: a callback may define ``close(self)``, ``setup(self, path)`` or ``setup(self, args)``.
    """
    rows = our_name(name)
    if not rows and name not in known:
        return
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return
    takes = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    is_foreign = len(takes) > 1 or not set(takes).isdisjoint(UNMISTAKABLE)
    if rows and is_foreign and set(takes) <= set(PARAMETERS):
        raise RegistrationError(f"{where}: no such hook{suggestion(name, known)}")
    is_ours = is_foreign or takes == ["run"]
    if name in known and is_ours and set(takes) <= {"run", *known[name].gives, *PARAMETERS}:
        raise RegistrationError(f"{where}: a hook starts with on_; did you mean on_{name}?")


def _check_scope(where: str, bound: Callable[..., Any], name: str) -> None:
    if name not in SCOPE_HOOKS:
        # Compare without the prefix, because the prefix makes all names similar.
        close = get_close_matches(name.removeprefix("around_"), [scope.name for scope in SCOPES], n=1, cutoff=0.5)
        hint = f"did you mean around_{close[0]}?" if close else f"the scopes are {', '.join(SCOPE_HOOKS)}"
        raise RegistrationError(f"{where}: no such scope; {hint}")
    if not inspect.isgeneratorfunction(bound):
        raise RegistrationError(
            f"{where}: must be a generator with one yield: what is before it runs first, the rest last"
        )
    _check_arity(where, bound, ())


def _takes_exactly(hook: Callable[..., Any], wanted: list[str]) -> bool:
    """True for a method with exactly these parameters. Its code is faster to read than ``inspect.signature``."""
    if not isinstance(hook, MethodType) or not isinstance(hook.__func__, FunctionType):
        return False
    code = hook.__func__.__code__
    names = list(code.co_varnames[1 : code.co_argcount])
    return names == wanted and not code.co_kwonlyargcount and not hasattr(hook.__func__, "__wrapped__")


def _check_hook(where: str, hook: Callable[..., Any], gives: tuple[str, ...], *, event_first: bool = False) -> None:
    if hook is not None and not callable(hook):
        raise RegistrationError(f"{where} is {hook!r}, not a method: a name that starts with on_ is a hook")
    if inspect.isgeneratorfunction(hook):
        raise RegistrationError(
            f"{where}: is a generator, of which nothing would run; use one of {', '.join(SCOPE_HOOKS)}"
        )
    if inspect.iscoroutinefunction(hook) or inspect.isasyncgenfunction(hook):
        raise RegistrationError(f"{where}: is async, of which nothing would run; make it a plain function")
    _check_arity(where, hook, gives, event_first=event_first)


def _check_arity(where: str, hook: Callable[..., Any], gives: tuple[str, ...], *, event_first: bool = False) -> None:
    wanted = ["event", "run"] if event_first else ["run", *gives]
    if _takes_exactly(hook, wanted):
        return
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):  # Some built-in callables have no signature. They fail when called.
        return
    try:
        signature.bind(*([None] * (len(wanted) - len(gives))), **dict.fromkeys(gives))
    except TypeError as error:
        parameters = ", ".join(signature.parameters) or "nothing"
        raise RegistrationError(
            f"{where} takes ({parameters}) and is called with ({', '.join(wanted)}): {error}; "
            f"everything else (batch, loss, model, clock, …) is on run"
        ) from None
    first = next(iter(signature.parameters), "")
    if not event_first and first in FOREIGN_PARAMETERS:
        parameters = ", ".join(map(str, signature.parameters.values()))
        raise RegistrationError(
            f"{where} takes ({parameters}), and its first argument is the run: write (self, {', '.join(wanted)}); "
            f"what {first} is elsewhere, is {FOREIGN_PARAMETERS[first]} here"
        )
