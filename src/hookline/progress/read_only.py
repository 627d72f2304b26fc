"""Read-only mapping. The error of an assignment says what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from hookline.errors import NotAvailableError

Value = TypeVar("Value")


class ReadOnly(Mapping[str, Value]):
    """Live, read-only view of a mapping.

    Args:
        items: The mapping.
        name: Expression for the mapping in a hook, such as ``run.optimizers``.
        instead: Advice that ends the error message of an assignment.
    """

    __slots__ = ("_instead", "_items", "_name")

    def __init__(self, items: Mapping[str, Value], name: str, instead: str) -> None:
        self._items = items
        self._name = name
        self._instead = instead

    def __getitem__(self, key: str) -> Value:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __setitem__(self, key: str, value: Any) -> NoReturn:
        raise NotAvailableError(f"{self._name}[{key!r}] = …: it cannot be replaced. {self._instead}")

    def __delitem__(self, key: str) -> NoReturn:
        raise NotAvailableError(f"del {self._name}[{key!r}]: it cannot be removed. {self._instead}")

    def __repr__(self) -> str:
        return repr(dict(self))
