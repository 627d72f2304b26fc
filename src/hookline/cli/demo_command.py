"""``hookline demo``: train a small CNN with callbacks on 1,797 handwritten digits."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table

from hookline.errors import HooklineError
from hookline.progress.counted import counted


def register(commands: Any) -> None:
    parser = commands.add_parser("demo", help="train a small CNN on real handwritten digits")
    parser.add_argument("--epochs", type=int, default=30, help="maximum number of epochs (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, shuffling and dropout (default: 0)")
    parser.add_argument("--folder", type=Path, default=None, help="the run's folder (default: a new one in runs/demo)")
    parser.add_argument("--explain", action="store_true", help="print which hook runs when and why, without training")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    console = Console()
    try:
        from hookline.cli.digits import DigitsNet, digits, trainer
    except ModuleNotFoundError as error:
        if error.name not in ("sklearn", "numpy"):
            raise
        console.print("The demo needs scikit-learn for its images. Install it with: pip install 'hookline\\[demo]'")
        return 2
    if arguments.epochs < 1:
        console.print(f"--epochs {arguments.epochs}: must be 1 or more.")
        return 2
    demo = trainer(arguments.epochs, arguments.seed, arguments.folder)
    if arguments.explain:
        console.print(demo.explain(), highlight=False, markup=False, soft_wrap=True)  # Do not wrap lines in a pipe.
        return 0
    train, val, test = digits(arguments.seed)
    console.print(f"Training on {_size(train)} digits, validating on {_size(val)}, testing on {_size(test)}.")
    try:
        result = demo.fit(DigitsNet(arguments.seed), train, val, test)
    except HooklineError as error:
        console.print(f"[red]{type(error).__name__}[/red]: {error}")
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 130
    console.print(_summary(result))
    for what, path in (("folder", result.folder), ("report", f"{result.folder}/report.html")):
        console.print(f"The run's {what}: {path}", soft_wrap=True, highlight=False)  # On one line, to be copied.
    return 0


def _size(loader: Any) -> int:
    return len(loader.dataset)


def _summary(result: Any) -> Group:
    """Return the summary of a run."""
    clock = result.clock
    table = Table(box=box.SIMPLE, show_header=False, title="Result", title_style="bold", title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if "test/acc" in result.metrics:
        table.add_row("held-out accuracy", f"[bold green]{result.metrics['test/acc']:.4f}[/]")
    if "val/loss" in result.history:
        table.add_row("best val/loss", f"{min(result.history['val/loss']):.4f}")
    table.add_row("stopped because", result.stop_reason)
    table.add_row("stopped by", result.stopped_by or "the end of max_duration")
    counts = counted(clock.epoch, "epoch"), counted(clock.step, "step"), counted(clock.sample, "sample")
    table.add_row("trained", f"{', '.join(counts)}, {clock.seconds:.1f} s")
    for failure in result.failures:
        table.add_row("disabled", str(failure))
    return Group(table, _costs(result))


def _costs(result: Any) -> Table:
    table = Table(box=box.SIMPLE, title="Cost of each callback", title_style="bold", title_justify="left")
    table.add_column("callback", no_wrap=True, max_width=24)
    table.add_column("hook", no_wrap=True)
    for column in ("calls", "ms", "share"):
        table.add_column(column, justify="right", no_wrap=True, min_width=6)
    for row in result.costs[:8]:
        share = row.seconds / max(result.clock.seconds, 1e-9)
        table.add_row(row.callback, row.hook, f"{row.calls:,}", f"{row.seconds * 1e3:.1f}", f"{share:.2%}")
    return table
