"""Map steps to epochs and seconds, the other two x-axes of a chart."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from hookline.report.series import Series

POINTS = 1_000
STAGES = ("train/", "val/", "test/")


def of_the_loop(series: Mapping[str, Series]) -> list[Series]:
    """Return the series whose steps are those of the run: of training, else of a stage, or all.

    ``run.log(step=…)`` accepts any integer as a step, and the rows do not record that.
    """
    for wanted in (("train/",), STAGES, ("",)):
        found = [one for name, one in series.items() if name.startswith(wanted) and len(one)]
        if found:
            return found
    return []


def clock_of(series: Iterable[Series]) -> dict[str, list[Any]]:
    """Return steps with their epoch (as a fraction) and seconds, to interpolate linearly.

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
    """Return at most ``POINTS`` indices, including the first and the last."""
    if count <= POINTS:
        return list(range(count))
    return sorted({place * (count - 1) // (POINTS - 1) for place in range(POINTS)})


def _changes(epochs: array[int]) -> list[int]:
    """Return the indices at which the epoch changes."""
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
    """Return the epoch of each step as a fraction.

    Args:
        steps: The steps.
        edges: Step at which each epoch was complete. The current epoch is assumed as long as the previous one.
    """
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
