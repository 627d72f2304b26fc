"""Find the settings and final metrics that differ between runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from hookline.records.redact import HIDDEN
from hookline.report.about import call, config_settings, flat, trainer_settings
from hookline.report.charts import epoch_of
from hookline.report.read import RunData
from hookline.report.units import DIGITS, MAX_DIGITS, with_unit

MISSING = "—"
"""Shown if a run does not have a setting or metric."""


class Absent:
    """A missing setting or metric, as opposed to one that is ``None``."""

    def __repr__(self) -> str:
        return MISSING


ABSENT = Absent()


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting or metric that differs between runs."""

    group: str
    name: str
    values: tuple[Any, ...]
    """One value per run. ``ABSENT`` if the run does not have it."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Formatted values. Values that differ look different, with all digits if necessary.

        >>> Difference("val", "val/loss", (0.123456789, 0.5, ABSENT)).texts
        ('0.123457', '0.5', '—')
        >>> Difference("val", "val/loss", (0.123456789, 0.123456788)).texts
        ('0.123456789', '0.123456788')
        """
        if isinstance(self.values[0], list) and all(isinstance(value, list) for value in self.values):
            return tuple(_array(value, self.values[0]) for value in self.values)
        for digits in range(DIGITS, MAX_DIGITS + 2):
            found = tuple(_short(value, self.name, digits) for value in self.values)
            if not self._look_alike(found):
                return found
        return tuple(map(repr, self.values))

    def _look_alike(self, texts: Sequence[str]) -> bool:
        pairs = combinations(range(len(texts)), 2)
        return any(texts[a] == texts[b] and not _equal(self.values[a], self.values[b]) for a, b in pairs)


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences, and the number of equal values. Redacted values cannot be compared."""

    rows: tuple[Difference, ...]
    same: int
    hidden: int = 0


def differing_settings(runs: Sequence[RunData]) -> Differences:
    """Return the settings that differ.

    Compared are hyper-parameters, options of the trainer, callbacks, command line, versions, machine and commit.

    Args:
        runs: The runs to compare.
    """
    return _differences([_settings(run) for run in runs])


def differing_metrics(runs: Sequence[RunData]) -> Differences:
    """Return the metrics whose last values differ.

    If all runs have the value of a metric over full epochs, only that value is compared: an interval may be a few
    batches.

    Args:
        runs: The runs to compare.
    """
    sides = [_finals(run) for run in runs]
    names = {name for side in sides for _, name in side}
    over = {name for name in names if all(name not in run or epoch_of(name) in run for run in map(_names, runs))}
    return _differences([{key: value for key, value in side.items() if key[1] not in over} for side in sides])


def _short(value: Any, name: str = "", digits: int = DIGITS) -> str:
    if isinstance(value, list):
        return f"array of {'x'.join(map(str, _shape(value)))}"
    if isinstance(value, float):
        return with_unit(name, value, digits) or f"{value:.{digits + 3}g}"
    return str(value)


def _array(value: Any, first: Any) -> str:
    """Format an array and the number of elements that differ from the first run."""
    if _shape(value) != _shape(first) or _equal(value, first):
        return _short(value)
    pairs = list(zip(_numbers(value), _numbers(first), strict=True))
    different = sum(not _equal(one, other) for one, other in pairs)
    return f"{_short(value)}, {different} of {len(pairs)} numbers differ"


def _shape(value: Any) -> list[int]:
    return [len(value), *(_shape(value[0]) if value else [])] if isinstance(value, list) else []


def _numbers(value: Any) -> list[Any]:
    return [number for item in value for number in _numbers(item)] if isinstance(value, list) else [value]


Named = Mapping[tuple[str, str], Any]


def _differences(sides: Sequence[Named]) -> Differences:
    groups = list(dict.fromkeys(group for side in sides for group, _ in side))
    names = sorted(dict.fromkeys(key for side in sides for key in side), key=lambda key: groups.index(key[0]))
    rows, hidden = [], 0
    for group, name in names:
        values = tuple(side.get((group, name), ABSENT) for side in sides)
        if not all(_equal(values[0], value) for value in values[1:]):
            rows.append(Difference(group, name, values))
        elif isinstance(values[0], str) and HIDDEN in values[0]:
            hidden += 1
    return Differences(tuple(rows), len(names) - len(rows) - hidden, hidden)


def _equal(one: Any, other: Any) -> bool:
    """Return True for equal values: NaN equals NaN, 1 equals 1.0, ``True`` differs from 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other or (one != one and other != other))


def _settings(run: RunData) -> dict[tuple[str, str], Any]:
    file = run.file
    if file is None:
        return {}
    found = {("config", name): value for name, value in config_settings(file)}
    found |= {("trainer", name): value for name, value in trainer_settings(file)}
    found |= {("callbacks", name): value for name, value in _callbacks(run).items()}
    found[("command", "arguments")] = " ".join(map(str, file.arguments))
    found |= {("model", name): value for name, value in flat(file.model)}
    found |= {("versions", name): value for name, value in flat(file.versions)}
    found |= {("machine", name): value for name, value in flat(file.platform)}
    found |= {("git", name): value for name, value in flat(file.git or {})}
    return found


def _callbacks(run: RunData) -> dict[str, str]:
    """Return each callback as source code, and the order in which they run."""
    entries = run.file.callbacks if run.file else ()
    found: dict[str, str] = {}
    for entry in entries:
        name, number = str(entry.name), 1
        while name in found:
            number += 1
            name = f"{entry.name} ({number})"
        found[name] = call(entry)
    return {**found, "order": " → ".join(str(entry.name) for entry in entries)}


def _names(run: RunData) -> Set[str]:
    return run.series.keys() | run.arrays.keys()


def _finals(run: RunData) -> dict[tuple[str, str], Any]:
    order = {"test": 0, "val": 1, "train": 2}
    finals: dict[str, Any] = {name: series.ordered().values[-1] for name, series in run.series.items()}
    finals |= {name: rows.newest.value for name, rows in run.arrays.items()}
    names = sorted(finals, key=lambda name: (order.get(name.partition("/")[0], 3), name))
    return {(name.partition("/")[0] if "/" in name else "", name): finals[name] for name in names}
