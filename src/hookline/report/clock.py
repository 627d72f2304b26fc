"""Which epoch and which second a step was: the other two axes of a chart."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from hookline.report.series import Series

POINTS = 1_000
STAGES = ("train/", "val/", "test/")


def of_the_loop(series: Mapping[str, Series]) -> list[Series]:
    """Those whose steps are the run's: of training if there are any, else of a stage, else all.

    ``run.log(step=…)`` takes any number for a step, and no row says that it is one of these.
    """
    for wanted in (("train/",), STAGES, ("",)):
        found = [one for name, one in series.items() if name.startswith(wanted) and len(one)]
        if found:
            return found
    return []


def clock_of(series: Iterable[Series]) -> dict[str, list[Any]]:
    """Steps with their epoch (as a fraction) and seconds of training; between them it is a straight line.

    >>> series = Series("train/loss", "step")
    >>> for step, epoch in ((10, 0), (20, 1), (30, 1)):
    ...     series.add(step, epoch, step / 10, 0.0)
    >>> clock_of([series])
    {'step': [0, 10, 20, 30], 'epoch': [0.0, 0.5, 1.0, 1.5], 'seconds': [0.0, 1.0, 2.0, 3.0]}
    """
    seconds: dict[int, float] = {0: 0.0}
    edges: dict[int, int] = {0: 0}
    for one in series:
        for place in _some(len(one)):
            step = one.steps[place]
            seconds[step] = min(one.seconds[place], seconds.get(step, one.seconds[place]))
        for place in _changes(one.epochs):
            step, epoch = one.steps[place], one.epochs[place]
            edges[epoch] = min(step, edges.get(epoch, step))
            seconds.setdefault(step, one.seconds[place])
    steps = sorted(seconds)
    steps = [steps[place] for place in _some(len(steps))]
    times = _growing([seconds[step] for step in steps])
    return {
        "step": steps,
        "epoch": [round(epoch, 4) for epoch in _fractions(steps, edges)],
        "seconds": [round(time, 3) for time in times],
    }


def _some(count: int) -> list[int]:
    """At most so many places, the first and the last among them."""
    if count <= POINTS:
        return list(range(count))
    return sorted({place * (count - 1) // (POINTS - 1) for place in range(POINTS)})


def _changes(epochs: array[int]) -> list[int]:
    """Where a new epoch number begins."""
    places: list[int] = []
    place = 0
    while place < len(epochs) and len(places) < POINTS:
        places.append(place)
        place = bisect_right(epochs, epochs[place], lo=place)
    return places


def _growing(times: list[float]) -> list[float]:
    for place in range(1, len(times)):
        times[place] = max(times[place], times[place - 1])
    return times


def _fractions(steps: list[int], edges: dict[int, int]) -> list[float]:
    """``edges``: at which step each epoch was complete. One that is not yet is as long as the one before."""
    marks = [(step, float(epoch)) for epoch, step in sorted(edges.items())]
    marks = [mark for place, mark in enumerate(marks) if place == 0 or mark[0] > marks[place - 1][0]]
    if len(marks) > 1:
        (before, earlier), (last, epoch) = marks[-2:]
        end = max(last + (last - before) / (epoch - earlier), steps[-1] + 1)
        marks.append((round(end), epoch + 1))
    else:
        marks.append((max(marks[0][0], steps[-1]) + 1, marks[0][1]))
    found: list[float] = []
    place = 0
    for step in steps:
        while place < len(marks) - 2 and step >= marks[place + 1][0]:
            place += 1
        (start, low), (end, high) = marks[place], marks[place + 1]
        found.append(low + (high - low) * (step - start) / (end - start))
    return found
