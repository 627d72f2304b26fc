"""A deprecated name warns at the user's line, and is removed in the version that its warning names."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import hookline
from hookline.errors import HooklineDeprecationWarning

SOURCE = Path(hookline.__file__).parent
PACKAGE = """
from functools import wraps
from hookline.errors import warn_deprecated

def checked(function):
    @wraps(function)
    def call(**options):
        return function(**options)
    return call

@checked
def fit(*, epochs):
    warn_deprecated("fit(epochs=…)", instead="max_duration='3ep'", removed_in="0.3")
    return epochs
"""


def test_the_warning_names_the_replacement_at_the_line_of_the_user() -> None:
    package: dict[str, object] = {"__name__": "hookline.loop.fitting"}
    exec(PACKAGE, package)
    user = compile("\n\nresult = fit(epochs=3)", "train.py", "exec")
    names = {"__name__": "__main__", "fit": package["fit"]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        exec(user, names)
    assert names["result"] == 3
    (warning,) = caught
    assert (warning.filename, warning.lineno) == ("train.py", 3)
    assert warning.category is HooklineDeprecationWarning
    assert str(warning.message) == "fit(epochs=…) is deprecated, and Hookline 0.3 removes it. Use max_duration='3ep'."


def removals(source: str) -> list[tuple[int, ...]]:
    """Return the versions in which the names that this code deprecates are removed."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    found = [call for call in calls if getattr(call.func, "id", getattr(call.func, "attr", "")) == "warn_deprecated"]
    return [
        tuple(map(int, ast.literal_eval(option.value).split(".")))
        for call in found
        for option in call.keywords
        if option.arg == "removed_in"
    ]


def test_no_deprecated_name_is_left_in_the_version_that_removes_it() -> None:
    assert removals(PACKAGE) == [(0, 3)]
    version = tuple(map(int, hookline.__version__.split(".")[:3]))
    overdue = [path for path in SOURCE.rglob("*.py") for removal in removals(path.read_text()) if removal <= version]
    assert overdue == []
