"""Assign curves to charts, for example training and validation of one metric to one chart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hookline.report.downsample import POINTS, downsample
from hookline.report.series import Series
from hookline.report.units import unit_of

STAGES = ("train", "val", "test")
METRICS = "metrics"
EPOCH = "_epoch"
"""Suffix of a metric over a full epoch, next to the same metric per interval."""
BY_EPOCH = "by epoch"
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
"""Titles of the sections, in their order. Other sections follow by name."""
MACHINE = frozenset({"speed", "throughput", "time", "memory", "device"})
"""Sections about the hardware and the speed."""
TOGETHER = frozenset({"lr", "momentum", "weight_decay"})
"""Sections whose curves share one chart. So do the curves of a section with one unit."""
MAX_CURVES = 8
"""Maximum number of curves in such a chart."""
DIGITS = 6
FEW = 3
"""Minimum number of custom metrics that form a section."""
ALL_POINTS = 120_000
"""Maximum number of points of all curves of a page."""
LEAST = 8
"""Minimum number of points per curve: the first, lowest, highest and last of two halves."""
ALL_CHARACTERS = 3_600_000
"""Maximum number of characters of all curves and their names."""
A_CURVE, A_POINT = 400, 14
"""Approximate characters per curve and per point."""


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
    """Return the charts for metrics with these names.

    >>> [(chart.title, [line.label for line in chart.lines]) for chart in plan(["val/loss", "train/loss", "lr/SGD"])]
    [('loss', ['train', 'val']), ('lr', ['SGD'])]
    """
    names = sorted(names)
    known = frozenset(names)
    sizes = Counter(_section(name) for name in names if not is_epoch(name, known))
    groups: dict[tuple[str, str], list[Line]] = {}
    for name in names:
        section, by_epoch = _section(name), is_epoch(name, known)
        own = name.removesuffix(EPOCH) if by_epoch else name
        title, line = _title(own, section, sizes[section]), _line(name, own, section)
        if section not in TITLES and sizes[section] < FEW:
            section, title = METRICS, own  # A separate section would be a nearly empty row.
        groups.setdefault((section, title), []).append(line)
    charts = [Chart(section, title, _short_labels(_sorted(lines))) for (section, title), lines in groups.items()]
    return sorted(charts, key=_place)


def by_name(names: Iterable[str]) -> list[Chart]:
    """Return one chart per name, to draw several runs over one another; evaluations first."""
    charts = [Chart(_section(name), name, (_line(name, name, _section(name)),)) for name in names]
    stages = ("val", "train", "test", "")
    return sorted(charts, key=lambda chart: (*_place(chart)[:3], stages.index(chart.lines[0].stage), chart.title))


def join_equal(charts: Iterable[Chart], curves: Mapping[str, Series]) -> list[Chart]:
    """Put curves of a section that are the same into one chart, such as steps and batches per second.

    Args:
        charts: The charts. Only those with a single curve are joined.
        curves: The curves by name.
    """
    found: list[Chart] = []
    firsts: dict[tuple[str, bytes, bytes], int] = {}
    for chart in charts:
        if len(chart.lines) == 1:
            series = curves[chart.lines[0].name]
            place = firsts.setdefault((chart.section, series.steps.tobytes(), series.values.tobytes()), len(found))
            if place < len(found):
                twin = found[place]
                found[place] = replace(twin, title=f"{twin.title}, {chart.title}", lines=twin.lines + chart.lines)
                continue
        found.append(chart)
    return found


def section_title(section: str) -> str:
    return TITLES.get(section, section)


def is_epoch(name: str, names: Container[str]) -> bool:
    """Return True if the metric is the value of another metric over an epoch."""
    return name.endswith(EPOCH) and (name.removesuffix(EPOCH) in names or name.startswith("train/"))


def epoch_of(name: str) -> str:
    """Return the name of the same metric over full epochs."""
    return f"{name}{EPOCH}"


def _section(name: str) -> str:
    first, slash, _ = name.partition("/")
    return METRICS if first in STAGES or not slash else first


def _title(name: str, section: str, size: int) -> str:
    first, _, rest = name.partition("/")
    if section != METRICS:
        return section if size <= MAX_CURVES and (section in TOGETHER or unit_of(name)) else rest
    if first == "train":
        return rest
    return rest.rpartition("/")[2] if first in STAGES else name  # `val/<loader>/loss` goes with `train/loss`.


def _line(name: str, own: str, section: str) -> Line:
    """Return the curve of a metric. ``own`` is its name without the suffix for epochs."""
    first, _, rest = own.partition("/")
    by_epoch = "" if own == name else f", {BY_EPOCH}"
    if section != METRICS:
        return Line(name, f"{rest}{by_epoch}", "")
    if first not in STAGES:
        return Line(name, f"{own}{by_epoch}", "")
    loader = "" if first == "train" else rest.rpartition("/")[0]
    return Line(name, f"{first} {loader}{by_epoch}" if loader else f"{first}{by_epoch}", first)


def _short_labels(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """Shorten the labels of a custom metric and its value by epoch: the title has the name."""
    if len(lines) != 2 or lines[0].stage or epoch_of(lines[0].name) != lines[1].name:
        return lines
    return lines[0], replace(lines[1], label=BY_EPOCH)


def _sorted(lines: list[Line]) -> tuple[Line, ...]:
    order = {stage: place for place, stage in enumerate(STAGES)}
    return tuple(sorted(lines, key=lambda line: (order.get(line.stage, 9), line.label)))


def _place(chart: Chart) -> tuple[int, str, bool, int, bool, str]:
    sections = list(TITLES)
    place = sections.index(chart.section) if chart.section in sections else len(sections)
    stages = {line.stage for line in chart.lines}
    is_loss = chart.lines[0].stage != "" and chart.title.rpartition("/")[2] == "loss"
    evaluated = not stages.isdisjoint(("val", "test"))  # More important than training metrics alone.
    return place, chart.section, not is_loss, -len(stages), not evaluated, chart.title


# -- the curves, as plain values ---------------------------------------------------------------------


def share(curves: int) -> int:
    """Return the maximum number of points per curve."""
    room = (ALL_CHARACTERS // max(1, curves) - A_CURVE) // A_POINT
    return max(LEAST, min(POINTS, ALL_POINTS // max(1, curves), room))


def curve(series: Series, limit: int) -> dict[str, Any]:
    """Return the points of a curve as JSON values.

    Steps are differences. Values are rounded. NaN and infinities are strings.

    If not all values are drawn, ``mean`` has the means over buckets, for a correct smooth line.
    """
    series = series.ordered()
    sample, digits = downsample(series.values, limit), _digits(series)
    found: dict[str, Any] = {
        "count": len(series),
        "kind": series.kind,
        "x": differences([series.steps[place] for place in sample.places]),
        "y": [short(series.values[place], digits) for place in sample.places],
    }
    if sample.means:
        steps = [series.steps[place] for place, _ in sample.means]
        found["mean"] = {"x": differences(steps), "y": [short(value, digits) for _, value in sample.means]}
    return found


def differences(steps: list[int]) -> list[int]:
    """Return the first step, and the distance of each other step from the previous one.

    >>> differences([100, 200, 350])
    [100, 100, 150]
    """
    return [step - before for step, before in zip(steps, [0, *steps], strict=False)]


def short(value: float, digits: int = DIGITS) -> float | str:
    """Round to ``digits``. A chart that starts at zero cannot show more than six."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else str(value)


def _digits(series: Series) -> int:
    """Return more digits for values that are close together, such as 1,234,567 and 1,234,571."""
    low, high = series.lowest(), series.highest()
    if low is None or high is None or low == high:
        return DIGITS
    least, most = series.values[low], series.values[high]
    spread, size = most - least, max(abs(least), abs(most))
    return min(15, DIGITS + max(0, math.floor(math.log10(size / spread)))) if 0 < spread < math.inf else DIGITS
