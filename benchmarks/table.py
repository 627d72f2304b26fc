"""The table that is printed."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console
from rich.table import Table

MISSED = "missed"
LIBRARIES = ("torch", "pytorch-ignite", "lightning", "tensorboard")


@dataclass(frozen=True, slots=True)
class Figure:
    """One row."""

    what: str
    measured: str
    checks: str = ""
    target: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark: its rows, and how it was measured."""

    title: str
    figures: list[Figure]
    how: str


def console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=140)


def show(sections: Iterable[Section], load_before: tuple[float, float, float]) -> None:
    out = console()
    table = Table(title="Hookline's benchmarks", title_justify="left", show_lines=False)
    table.add_column("what")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("spread and other estimates")
    table.add_column("target", no_wrap=True)
    table.add_column("", no_wrap=True)
    sections = list(sections)
    for section in sections:
        table.add_row(f"[bold]{section.title}")
        for figure in section.figures:
            table.add_row(f"  {figure.what}", figure.measured, figure.checks, figure.target, _coloured(figure.verdict))
        table.add_section()
    out.print(table)
    for section in sections:
        out.print(f"[bold]{section.title}.[/] {section.how}")
    out.print(f"[bold]Machine.[/] {_machine(load_before)}")


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def verdict(met: bool) -> str:
    return "met" if met else MISSED


def judged(value: float, limit: float, bare: float, set_at: float) -> str:
    """By the limit itself; or, where a bare step takes longer than where the limit was set, by its share of one."""
    if value <= limit:
        return verdict(True)
    return "met by share" if value / bare <= limit / set_at else MISSED


def _coloured(verdict: str) -> str:
    return f"[bold red]{verdict}[/]" if verdict == MISSED else f"[green]{verdict}[/]"


def _machine(load_before: tuple[float, float, float]) -> str:
    loads = f"load average {load_before[0]:.1f} before, {os.getloadavg()[0]:.1f} after"
    versions = ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    return f"{os.cpu_count()} cores, {loads}; Python {platform.python_version()}, {versions}."


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
