"""What an event costs when nobody, one callback or ten hear it."""

from __future__ import annotations

import statistics
from timeit import Timer
from typing import Any

from table import Figure, Section, verdict

from hookline.events import Callback, Line, Member

LIMIT_NS = 100
UNROLLED = 100
"""So many copies of a statement in one turn of the timer's loop, so that the loop itself costs nothing."""


class View:
    """Stands for ``run``, which knows whose it is."""

    def __init__(self, member: Member[Any]) -> None:
        self.member = member


class Hearing(Callback):
    def on_train_step_end(self, run: Any) -> None:
        pass


def line_of(callbacks: int) -> Line[Any]:
    line: Line[Any] = Line(View, where=lambda: "nowhere", stop=lambda reason, by: None)
    heard = [Hearing() for _ in range(callbacks)]
    for index, callback in enumerate(heard):
        callback.name = str(index)
    line.add(heard)
    return line


def event_cost(repeats: int) -> Section:
    test = "if hooks.train_step_end: line.emit(hooks.train_step_end)"
    cases = [
        ("nobody hears it", test, 0, LIMIT_NS),
        ("nobody, through line.hooks", "if line.hooks.train_step_end: pass", 0, LIMIT_NS),
        ("one callback", test, 1, None),
        ("ten callbacks", test, 10, None),
    ]
    return Section(
        "An event (ns)",
        [_figure(*case, repeats) for case in cases],
        f"`{test}`, {UNROLLED} times in a row, the code in the cache; the callbacks' hooks are empty. "
        f"Median of {repeats} repeats, and the quickest.",
    )


def _figure(what: str, statement: str, callbacks: int, limit: int | None, repeats: int) -> Figure:
    line = line_of(callbacks)
    timer = Timer("\n".join([statement] * UNROLLED), globals={"line": line, "hooks": line.hooks})
    number = 1000 if callbacks == 0 else 100
    times = [seconds / number / UNROLLED * 1e9 for seconds in timer.repeat(repeats, number)]
    value = statistics.median(times)
    return Figure(
        what,
        f"{value:.0f} ns",
        f"quickest {min(times):.0f} ns",
        "" if limit is None else f"< {limit} ns",
        "" if limit is None else verdict(value < limit),
    )
