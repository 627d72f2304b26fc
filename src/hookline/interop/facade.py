"""``Facade``: an object of another library as its callbacks see it in a run of Hookline."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar, Never

from hookline.events.foreign_names import ATTRIBUTES


def of_host(path: str) -> property:
    """Return an attribute of a facade with a value of its host.

    Args:
        path: Where the host has the value, such as ``"run.device"``.
    """
    read = attrgetter(path)
    return property(lambda facade: read(facade._host))


class Facade:
    """An object with those attributes of another library's object that Hookline can answer.

    Attributes are properties. An attribute that may be written has a setter. Any other read or write raises an
    ``AttributeError``, because a setting that nothing reads must not be accepted. A subclass keeps its own
    fields in ``__slots__`` and sets them in ``__init__`` with ``_set``.

    Args:
        host: The host of the run.
    """

    __slots__ = ("_host",)
    _host: Any

    stands_for: ClassVar[str]
    """The object and the library, with the versions that the tests run, such as ``"Lightning's Trainer (2.6)"``."""

    def __init__(self, host: Any) -> None:
        self._set(_host=host)

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Never:
        raise AttributeError(self._advice(name, f".{name}"), name=name, obj=self)

    def __setattr__(self, name: str, value: object) -> None:
        found = getattr(type(self), name, None)
        if not isinstance(found, property) or found.fset is None:
            raise AttributeError(self._advice(name, f".{name} = …"), name=name, obj=self)
        found.fset(self, value)

    def _advice(self, name: str, access: str) -> str:
        ours = ATTRIBUTES.get(name)
        instead = f"read {ours} in a hook of a hl.Callback" if ours else "write a hl.Callback for it"
        return (
            f"{type(self).__name__}{access}: Hookline does not offer this attribute of {self.stands_for} to callbacks. "
            f"Leave the callback out, or {instead}."
        )
