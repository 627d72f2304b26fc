"""All benchmarks, in one table: ``make bench``, or ``make bench ARGS="--quick"``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dispatch import event_cost
from imports import import_time
from memory import memory_growth
from record_stream import record_stream
from report_size import report_size
from rich.console import Console
from rich.progress import Progress
from run_list import run_list
from table import Section, show


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    repeats: int
    processes: int
    epochs: int
    steps: int
    """Of a run with sinks in trouble."""
    records: int


FULL = Sizes(rounds=60, repeats=50, processes=15, epochs=100, steps=30_000, records=1_000_000)
QUICK = Sizes(rounds=6, repeats=10, processes=3, epochs=2, steps=1_000, records=50_000)


def _step(sizes: Sizes, rounds: int) -> Section:
    from steps import step_overhead  # it needs torch, which takes seconds that the others can do without

    return step_overhead(lambda label: _bar(label, rounds))


def _engine(sizes: Sizes, rounds: int) -> Section:
    from engine_cost import engine_cost

    return engine_cost(lambda label: _bar(label, rounds))


def _recipes(sizes: Sizes, rounds: int) -> Section:
    from recipes import recipe_cost

    return recipe_cost(lambda label: _bar(label, min(sizes.processes, rounds)))


def _null(sizes: Sizes, rounds: int) -> Section:
    from steps import own_python

    return own_python(lambda label: _bar(label, rounds))


def _event(sizes: Sizes, rounds: int) -> Section:
    return event_cost(sizes.repeats)


def _import(sizes: Sizes, rounds: int) -> Section:
    return import_time(lambda label: _bar(label, min(sizes.processes, rounds)))


def _memory(sizes: Sizes, rounds: int) -> Section:
    return memory_growth(sizes.epochs)


def _feed(sizes: Sizes, rounds: int) -> Section:
    from feed import feed_cost

    return feed_cost(lambda label: _bar(label, min(sizes.processes, rounds)))


def _save(sizes: Sizes, rounds: int) -> Section:
    from checkpoints import checkpoint_cost

    return checkpoint_cost(lambda label: _bar(label, min(sizes.processes, rounds)))


def _background(sizes: Sizes, rounds: int) -> Section:
    from async_saves import async_saves

    return async_saves(_bar("background saves", min(sizes.processes, rounds)))


def _logging(sizes: Sizes, rounds: int) -> Section:
    from logging_cost import logging_cost

    return logging_cost(lambda label: _bar(label, rounds))


def _sinks(sizes: Sizes, rounds: int) -> Section:
    from sink_trouble import sink_trouble

    return sink_trouble(sizes.steps, _bar("sinks in trouble", min(sizes.processes, rounds)))


def _callbacks(sizes: Sizes, rounds: int) -> Section:
    from callback_cost import callback_cost

    return callback_cost(min(200, sizes.steps // 50), _bar)


def _foreign(sizes: Sizes, rounds: int) -> Section:
    from foreign_hooks import foreign_hooks

    return foreign_hooks(sizes.repeats)


def _stream(sizes: Sizes, rounds: int) -> Section:
    return record_stream(sizes.records)


def _steps(sizes: Sizes, rounds: int) -> Section:
    from step_record import step_record

    return step_record(min(sizes.repeats, rounds))


def _report(sizes: Sizes, rounds: int) -> Section:
    return report_size(sizes.records, min(3, rounds))


def _list(sizes: Sizes, rounds: int) -> Section:
    return run_list(1000 if sizes is FULL else 50, min(5, rounds))


def _ranks(sizes: Sizes, rounds: int) -> Section:
    from ranks import ranks_cost

    number = min(sizes.processes, rounds)
    return ranks_cost(lambda label: _bar(label, number), number, quick=sizes is QUICK)


BENCHMARKS: dict[str, Callable[[Sizes, int], Section]] = {
    "step": _step,
    "engine": _engine,
    "recipes": _recipes,
    "null": _null,
    "event": _event,
    "import": _import,
    "memory": _memory,
    "feed": _feed,
    "save": _save,
    "background": _background,
    "logging": _logging,
    "sinks": _sinks,
    "callbacks": _callbacks,
    "foreign": _foreign,
    "stream": _stream,
    "record": _steps,
    "list": _list,
    "report": _report,
    "ranks": _ranks,
}


def _bar(label: str, rounds: int) -> Iterator[int]:
    """Drawn between two rounds and by no thread, which would take time from what is measured."""
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        yield from progress.track(range(rounds), description=label)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure Hookline against a bare loop, ignite and Lightning.")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"runs per row ({FULL.rounds}; quick: {QUICK.rounds})")
    parser.add_argument("--only", choices=BENCHMARKS, action="append", help="one benchmark; may be given several times")
    parser.add_argument("--quick", action="store_true", help="a minute instead of many: too noisy to judge by")
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds: at least 1")
    load, sizes = os.getloadavg(), QUICK if options.quick else FULL
    rounds = options.rounds or sizes.rounds
    show([run(sizes, rounds) for name, run in BENCHMARKS.items() if not options.only or name in options.only], load)


if __name__ == "__main__":
    main()
