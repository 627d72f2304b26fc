"""What editors, notebooks and ``help()`` show of the public names."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from itertools import pairwise
from typing import Any

import jedi
import pytest

import hookline as hl
from hookline.callbacks import __all__ as CALLBACKS
from hookline.events.order import ROLES
from hookline.loop import Trainer
from hookline.progress.clock import Clock, EvalClock
from hookline.run.ending import Ending
from hookline.testing import TinyModel


def test_a_callback_shows_its_own_parameters_and_text() -> None:
    """Not those of ``Callback.__new__``, which every callback inherits."""
    for kind in [getattr(hl, name) for name in CALLBACKS]:
        assert inspect.getdoc(kind.__new__) == inspect.getdoc(object.__new__), kind
        given = inspect.signature(kind.__init__).parameters
        assert list(inspect.signature(kind).parameters.items()) == list(given.items())[1:], kind


def test_a_callback_without_init_takes_no_arguments() -> None:
    class Mine(hl.Callback):
        """Prints."""

    assert (str(inspect.signature(Mine)), inspect.getdoc(Mine)) == ("()", "Prints.")


def test_an_editor_shows_a_callback_as_its_class_says() -> None:
    """Jedi reads the source as an editor does, without running it."""
    code = 'import hookline as hl\nclass Mine(hl.Callback):\n    """Prints."""\nMine('
    (shown,) = jedi.Script(code).get_signatures()
    assert shown.docstring() == "Mine()\n\nPrints."


@pytest.mark.parametrize("kind", [hl.Run, hl.Clock, hl.Loop, hl.Result])
def test_the_text_of_a_property_is_that_of_reading_it(kind: type) -> None:
    """An editor shows the first text that it finds: that of a setter says how to replace, not what the value is."""
    properties = {name: value for name, value in inspect.getmembers(kind) if isinstance(value, property)}
    public = {name: value for name, value in properties.items() if not name.startswith("_")}
    assert [name for name, value in public.items() if not inspect.getdoc(value)] == []
    assert [name for name, value in public.items() if value.fset is not None and value.fset.__doc__] == []


def texts_of(kind: type) -> dict[str, str]:
    """The texts below the fields of a class, which an editor shows."""
    body = next(node for node in ast.walk(ast.parse(inspect.getsource(kind))) if isinstance(node, ast.ClassDef)).body
    return {
        ast.unparse(declared.target): ast.literal_eval(text.value)
        for declared, text in pairwise(body)
        if isinstance(declared, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


@pytest.mark.parametrize("kind", [Clock, EvalClock])
def test_a_counter_of_the_clock_shows_the_same_text_in_help_and_in_an_editor(kind: Any) -> None:
    """``help()`` takes it from ``__slots__``, and an editor from the source."""
    shown, counters = texts_of(kind), [name for name in kind.__slots__ if not name.startswith("_")]
    assert shown == {name: inspect.getdoc(getattr(kind, name)) for name in counters}
    assert all(shown.values())


def test_an_editor_explains_each_field_of_an_ending() -> None:
    assert list(texts_of(Ending)) == [field.name for field in fields(Ending)]


def test_an_editor_shows_the_roles_in_their_order() -> None:
    assert re.findall(r"``\"(\w+)\"``", texts_of(hl.Callback)["role"]) == list(ROLES)


def test_help_of_a_running_clock_explains_its_counters() -> None:
    """``run.clock`` is a view, whose counters are other objects than those of ``hl.Clock``."""
    view = type(hl.Loop(TinyModel(), folder=False).run.clock)
    names = [name for name in vars(hl.Clock) if not name.startswith("_")]
    assert [name for name in names if not inspect.getdoc(getattr(view, name))] == []
    assert inspect.getdoc(view.step) == inspect.getdoc(hl.Clock.step)


# -- the parameters of the entry points --------------------------------------------------------------

OPTIONS = [name for name in inspect.signature(hl.Trainer).parameters if name != "callbacks"]
METHODS = {name: getattr(hl.Trainer, name) for name in ("fit", "train", "evaluate", "test", "predict")}
FUNCTIONS = {name: getattr(hl, name) for name in METHODS}
ENTRY_POINTS: dict[str, Any] = {
    "Trainer": hl.Trainer,
    "loop.Trainer": Trainer,
    "Loop": hl.Loop,
    **{f"Trainer.{name}": method for name, method in METHODS.items()},
    **FUNCTIONS,
}


def parameters_of(shown: Any) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(shown).parameters
    return {name: parameter for name, parameter in parameters.items() if name != "self"}


def documented(shown: Any) -> dict[str, str]:
    """The entries of the section ``Args:`` of a docstring."""
    text = (inspect.getdoc(shown) or "").partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^    (?=\w)", text, flags=re.MULTILINE)[1:]
    return {entry.partition(":")[0]: " ".join(entry.partition(":")[2].split()) for entry in entries}


def test_every_parameter_is_explicit_typed_and_documented() -> None:
    for name, shown in ENTRY_POINTS.items():
        parameters = parameters_of(shown)
        kinds = {parameter.kind for parameter in parameters.values()}
        assert kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}, name
        assert [key for key, parameter in parameters.items() if parameter.annotation is parameter.empty] == [], name
        assert list(documented(shown)) == list(parameters), name


@pytest.mark.parametrize("name", ["loop.Trainer", "Loop", *FUNCTIONS])
def test_an_option_is_the_same_wherever_it_is_given(name: str) -> None:
    """``hl.Trainer`` is the one source of types, defaults and texts."""
    source, texts = parameters_of(hl.Trainer), documented(hl.Trainer)
    parameters, found = parameters_of(ENTRY_POINTS[name]), documented(ENTRY_POINTS[name])
    shared = [option for option in (*OPTIONS, "callbacks") if option in parameters]
    all_options = {*OPTIONS, "callbacks"} - ({"progress"} if name == "Loop" else set())  # A custom loop has no bar.
    assert set(shared) >= (all_options if name not in ("evaluate", "test", "predict") else {"device", "progress"})
    for option in shared:
        assert parameters[option] == source[option]
        assert found[option] == texts[option]


@pytest.mark.parametrize("name", METHODS)
def test_a_function_takes_the_arguments_of_the_method_and_options(name: str) -> None:
    method, function = parameters_of(METHODS[name]), parameters_of(FUNCTIONS[name])
    texts, found = documented(METHODS[name]), documented(FUNCTIONS[name])
    assert set(function) - set(method) <= set(OPTIONS)
    assert {key: function[key] for key in method} == method
    for key in method.keys() - {"callbacks"}:  # of a method: for this call only
        assert found[key] == texts[key]


@pytest.mark.parametrize("name", ["Trainer", "Loop", "Trainer.fit", "fit"])
def test_an_editor_shows_the_same_parameters(name: str) -> None:
    (shown,) = jedi.Script(f"import hookline\nhookline.{name}(").get_signatures()
    names = [parameter.name for parameter in shown.params if parameter.name not in ("self", "*")]
    assert names == list(parameters_of(ENTRY_POINTS[name]))
