"""The names under which metrics are shown. Inside the metric book each keeps the one under which it is logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from hookline.errors import MetricError

Thing = TypeVar("Thing")


class MetricNames:
    """Who was renamed: rows, history, sinks and ``run.metrics`` know a metric by its new name.

    >>> names = MetricNames()
    >>> names.rename("train/loss", "train/nll")
    >>> names.rows({"train/loss": 0.5, "train/acc": 0.9})
    {'train/nll': 0.5, 'train/acc': 0.9}
    >>> names.rows({"train/loss": 0.5}, "_epoch")
    {'train/nll_epoch': 0.5}
    """

    __slots__ = ("_inner", "_shown")

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, ...]] = {}  # by the name inside
        self._inner: dict[str, str] = {}  # by a name that is shown

    def rename(self, old: str, new: str, *, keep: bool = False) -> None:
        """Show a metric as ``new`` from now on, with ``keep`` under both names; ``old`` may be a new name itself."""
        inner = self.inner(old)
        if self._inner.get(new, inner) != inner:
            raise MetricError(f"{old} is to be called {new}, and so is {self._inner[new]}; use two names")
        shown = self.shown(inner)
        if new not in shown:
            shown = (*shown, new) if keep else tuple(new if name == old else name for name in shown)
        self._shown[inner] = shown
        self._inner = {name: inside for inside, names in self._shown.items() for name in names}

    def forget(self) -> None:
        """A new run has its own callbacks."""
        self._shown.clear()
        self._inner.clear()

    def inner(self, name: str) -> str:
        """The name inside the book of a metric that is shown by this one."""
        return self._inner.get(name, name)

    def is_hidden(self, name: str) -> bool:
        """Whether it was given away: the metric of this name is shown by another."""
        return name in self._shown and name not in self._inner

    def shown(self, name: str) -> tuple[str, ...]:
        return self._shown.get(name, (name,))

    def rows(self, values: Mapping[str, Thing], suffix: str = "") -> dict[str, Thing]:
        """Values by the names of their rows; those of an epoch have a ``suffix``, and may have a name of their own."""
        if not self._shown and not suffix:
            return dict(values)
        found: dict[str, Thing] = {}
        for name, value in values.items():
            for shown in self.shown(name):
                for row in self.shown(f"{shown}{suffix}") if suffix else (shown,):
                    if row in found:
                        raise MetricError(f"{name} is called {row}, which is logged, too; use two names")
                    found[row] = value
        return found
