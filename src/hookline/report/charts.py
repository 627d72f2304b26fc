"""Which curves go into which chart: training and validation of one metric together, learning rates together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hookline.report.downsample import POINTS, downsample
from hookline.report.series import Series

STAGES = ("train", "val", "test")
METRICS = "metrics"
TITLES = {
    METRICS: "Metrics",
    "lr": "Learning rate",
    "momentum": "Momentum",
    "weight_decay": "Weight decay",
    "speed": "Throughput",
    "throughput": "Throughput",
    "time": "Time",
    "memory": "Memory",
    "device": "Device",
}
"""The sections, in their order; others follow by name."""
TOGETHER = frozenset({"lr", "momentum", "weight_decay", "time", "memory"})
"""Sections whose curves have one unit and go into one chart,"""
MOST = 8
"""as long as they are not more than this."""
FEW = 3
"""So many metrics of one's own make a section."""
ALL_POINTS = 120_000
"""Of all curves of a page together; each gets its share."""


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of a chart."""

    name: str
    label: str
    stage: str
    """One of ``STAGES``, or empty."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves that are drawn over one another."""

    section: str
    title: str
    lines: tuple[Line, ...]


def plan(names: Iterable[str]) -> list[Chart]:
    """The charts for metrics with these names.

    >>> [(chart.title, [line.label for line in chart.lines]) for chart in plan(["val/loss", "train/loss", "lr/SGD"])]
    [('loss', ['train', 'val']), ('lr', ['SGD'])]
    """
    names = sorted(names)
    sizes = Counter(map(_section, names))
    groups: dict[tuple[str, str], list[Line]] = {}
    for name in names:
        section = _section(name)
        title, line = _title(name, section, sizes[section]), _line(name, section)
        if section not in TITLES and sizes[section] < FEW:
            section, title = METRICS, name  # a section of its own would be an empty row
        groups.setdefault((section, title), []).append(line)
    charts = [Chart(section, title, _sorted(lines)) for (section, title), lines in groups.items()]
    return sorted(charts, key=_place)


def by_name(names: Iterable[str]) -> list[Chart]:
    """One chart for each name, where several runs are drawn over one another: evaluations first."""
    charts = [Chart(_section(name), name, (_line(name, _section(name)),)) for name in names]
    stages = ("val", "train", "test", "")
    return sorted(charts, key=lambda chart: (*_place(chart)[:3], stages.index(chart.lines[0].stage), chart.title))


def section_title(section: str) -> str:
    return TITLES.get(section, section)


def is_epoch(name: str) -> bool:
    """Whether it is the mean over an epoch of what is also logged at intervals."""
    return name.endswith("_epoch") and name.startswith("train/")


def _section(name: str) -> str:
    first, slash, _ = name.partition("/")
    return METRICS if first in STAGES or not slash else first


def _title(name: str, section: str, size: int) -> str:
    first, _, rest = name.partition("/")
    if section != METRICS:
        return section if section in TOGETHER and size <= MOST else rest
    if first == "train":
        return rest.removesuffix("_epoch")
    return rest.rpartition("/")[2] if first in STAGES else name  # `val/<loader>/loss` beside `train/loss`


def _line(name: str, section: str) -> Line:
    first, _, rest = name.partition("/")
    if section != METRICS:
        return Line(name, rest, "")
    if first == "train":
        return Line(name, "train, by epoch" if is_epoch(name) else "train", "train")
    if first in STAGES:
        loader = rest.rpartition("/")[0]
        return Line(name, f"{first} {loader}" if loader else first, first)
    return Line(name, name, "")


def _sorted(lines: list[Line]) -> tuple[Line, ...]:
    order = {stage: place for place, stage in enumerate(STAGES)}
    return tuple(sorted(lines, key=lambda line: (order.get(line.stage, 9), line.label)))


def _place(chart: Chart) -> tuple[int, str, bool, int, str]:
    sections = list(TITLES)
    place = sections.index(chart.section) if chart.section in sections else len(sections)
    stages = {line.stage for line in chart.lines}
    is_loss = chart.lines[0].stage != "" and chart.title.rpartition("/")[2] == "loss"
    return place, chart.section, not is_loss, -len(stages), chart.title


# -- the curves, as plain values ---------------------------------------------------------------------


def share(curves: int) -> int:
    """How many points each of so many curves may have."""
    return max(28, min(POINTS, ALL_POINTS // max(1, curves)))


def curve(series: Series, limit: int) -> dict[str, Any]:
    """The points of a curve: steps as differences, values with six digits; NaN and infinities as texts.

    Where not every value is drawn, ``mean`` has the means over buckets, for a smooth line that is right.
    """
    series = series.ordered()
    sample = downsample(series.values, limit)
    found: dict[str, Any] = {
        "count": len(series),
        "kind": series.kind,
        "x": differences([series.steps[place] for place in sample.places]),
        "y": [short(series.values[place]) for place in sample.places],
    }
    if sample.means:
        steps = [series.steps[place] for place, _ in sample.means]
        found["mean"] = {"x": differences(steps), "y": [short(value) for _, value in sample.means]}
    return found


def differences(steps: list[int]) -> list[int]:
    """The first one, and how far each is from the one before.

    >>> differences([100, 200, 350])
    [100, 100, 150]
    """
    return [step - before for step, before in zip(steps, [0, *steps], strict=False)]


def short(value: float) -> float | str:
    """Six digits, which is more than a chart can show."""
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)
