"""One row per callback of Hookline, from the classes."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from importlib import import_module

from hookline.callbacks import FAMILIES
from hookline.events import Callback


@dataclass(frozen=True, slots=True)
class CallbackRow:
    """One row of the table of callbacks."""

    name: str
    family: str
    what: str
    """First sentence of the docstring."""
    optional: bool
    ranks: str
    page: str
    """Name of the page under ``docs/callbacks``."""


def callback_rows() -> list[CallbackRow]:
    """Return the rows of all callbacks, by family."""
    rows = []
    for family in FAMILIES:
        module = import_module(f"hookline.callbacks.{family}")
        for name in sorted(module.__all__):
            cls = getattr(module, name)
            if inspect.isclass(cls) and issubclass(cls, Callback):
                page = cls.__module__.rpartition(".")[2]
                rows.append(CallbackRow(name, family, _first_sentence(cls), cls.optional, str(cls.ranks), page))
    return rows


def _first_sentence(cls: type) -> str:
    text = " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())
    sentence = re.match(r".*?\.(?=\s|$)", text)
    return (sentence.group() if sentence else text).replace("``", "`")
