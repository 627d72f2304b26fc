"""The benchmarks run and print their table. What they measure is never tested: see ``benchmarks/``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = {
    "step": ("Step overhead", "of it, by the 30"),
    "engine": ("one callback on gradients_ready", "accumulate=2, per batch", "a fit of one step, with the pre-flight"),
    "recipes": ("GradientClip", "EMA", "the whole recipe, of a transformer's step"),
    "null": ("The loop's own Python",),
    "event": ("nobody hears it",),
    "import": ("import hookline.events",),
    "memory": ("growth from step 10,000 to 20,000",),
    "feed": ("a batch of a DataLoader with", "a batch of a loader with", "the same without a permutation"),
    "save": ("save, to write + fsync + hash",),
    "background": ("later, against copy_",),
    "logging": (
        "Hookline, every 50 steps",
        "to the bare loop that does, too",
        "in a terminal",
        "reads, Hookline, every 100 steps",
    ),
    "sinks": ("it raises in each write", "its server goes away in the middle", "the end of a short run waits"),
    "callbacks": ("EarlyStopping (stopping)", "EMA, to torch's AveragedModel alone"),
    "foreign": ("lightning, on_train_batch_end", "composer, batch_end"),
    "stream": ("TensorBoard, 50,000 records", "LogObject, 50,000 records"),
    "record": ("in the step: its loss and its position", "all, with 32 samples"),
    "list": ("reading and parsing each line once", "opening the list of"),
    "report": ("A report over 50,0", "the file", "opened, until a chart is drawn"),
    "ranks": ("DDP, a step of about 60 ms", "FSDP2, 2 ms: sent in a step", "the guard, a call of a hook"),
}
GROUPS = {
    "loop": ("step", "engine", "null", "event", "import", "memory", "feed", "save", "background"),
    "logging": ("logging",),
    "callbacks": ("callbacks", "recipes", "foreign"),
    "records": ("sinks", "stream", "record", "list", "report"),
    "ranks": ("ranks",),
}


@pytest.mark.timeout(600)  # a minute each when the machine is quiet: torch is imported ten times, Lightning once
@pytest.mark.parametrize("names", GROUPS.values(), ids=GROUPS)
def test_every_benchmark_has_its_rows_in_the_table(names: tuple[str, ...]) -> None:
    only = [word for name in names for word in ("--only", name)]
    command = [sys.executable, "benchmarks/run.py", "--quick", "--rounds", "1", *only]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = [row for name in names for row in ROWS[name]]
    missing = [row for row in [*expected, "Machine."] if row not in done.stdout]
    assert not missing, done.stdout


def test_a_new_benchmark_is_run_here_too() -> None:
    """It cannot rot unseen."""
    command = [sys.executable, "benchmarks/run.py", "--only", "?"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    named = done.stderr.partition("choose from")[2]
    known = {word.strip("')( \n") for word in named.split(",")}
    assert known == set(ROWS) == {name for names in GROUPS.values() for name in names}, done.stderr
