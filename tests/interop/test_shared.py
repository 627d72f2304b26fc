"""Callbacks of other libraries are recognized without an import, and what is missing is an error."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hookline as hl
from hookline.errors import RegistrationError
from hookline.interop.facade import Facade


class View(Facade):
    __slots__ = ()

    stands_for = "another library's trainer"
    epoch = 3

    @property
    def should_stop(self) -> bool:
        return False


def test_an_attribute_that_is_not_offered_is_an_error() -> None:
    assert View(None).epoch == 3
    with pytest.raises(AttributeError, match=r"View\.optimizer: Hookline does not offer this attribute of another"):
        _ = View(None).optimizer
    with pytest.raises(
        AttributeError, match=r"View\.global_step: .* read run\.clock\.step in a hook of a hl\.Callback"
    ):
        _ = View(None).global_step
    for name in ("epoch", "should_stop", "other"):
        with pytest.raises(AttributeError, match=rf"View\.{name} = …: Hookline does not offer"):
            setattr(View(None), name, 1)


def test_an_object_of_no_library_is_refused() -> None:
    with pytest.raises(RegistrationError, match=r"hl\.interop\.adapt\(3\): an int is not a callback of .*lightning"):
        hl.interop.adapt(3)


def test_a_run_without_foreign_callbacks_imports_no_adapter() -> None:
    script = (
        "import sys; from tests.support import fit; fit();"
        "from hookline.events.foreign_classes import CALLBACKS;"
        "foreign = ('hookline.interop', *{package.split('.')[0] for package, _ in CALLBACKS});"
        "print([name for name in sys.modules if name.startswith(foreign)])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("[]")
