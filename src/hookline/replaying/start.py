"""``replay``: start the script of a past run again at a checkpoint, and compare its steps with the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from hookline.checkpoint import Checkpoint
from hookline.errors import HooklineError, SetupError
from hookline.loop.saving.replay import VARIABLE
from hookline.records.run_file import RunFile
from hookline.records.steps import StepRow, read_steps
from hookline.replaying.compare import changes, explain, first_difference
from hookline.replaying.found import STARTED, Found, read_found
from hookline.replaying.original import Original, Until
from hookline.replaying.report import write_report

BEFORE = 20
"""Number of steps before a bad step that ``until`` replays."""
START = "hookline.replaying.search:ReplayStart(start={start}, callbacks={callbacks})"
SEARCH = "hookline.replaying.search:BadStep(at={at})"
REDACTED = "[redacted]"


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay.

    Example:
        >>> row = StepRow(step=801, samples=7, loss=0.5)
        >>> result = Replay(Path("runs/mine"), Path("/tmp/replay"), 800, 801, 800, (row,), (row,))
        >>> result.is_equal, result.verdict
        (True, 'replayed 1 step, equal in every bit')
    """

    run: Path
    """The folder of the original run."""
    folder: Path
    """The folder of the replay, with its metrics and the files that its callbacks have written."""
    first_step: int
    """The step after which the steps that were asked for begin."""
    last_step: int
    resumed_from: int
    """The step of the checkpoint, or 0."""
    recorded: tuple[StepRow, ...]
    """The steps of the run from the checkpoint on, including those that a rollback has undone."""
    made: tuple[StepRow, ...]
    """The steps of the replay, in the same order."""
    differences: tuple[str, ...] = ()
    """The first step that differs, and then settings and versions that differ. Empty if all steps are equal."""
    found: Found | None = None
    """With ``until``: the module and the samples that made the step bad."""
    report: Path | None = None
    """The report of the steps, as one HTML file."""
    exit_code: int = 0
    """The exit code of the script."""

    @property
    def is_equal(self) -> bool:
        """True if the run recorded each step of the replay, with the same samples and the same bits of the loss."""
        return bool(self.made) and not self.differences and len(self.recorded) >= len(self.made)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        count = sum(row.step > self.first_step for row in self.made)
        steps = f"replayed {count:,} step{'' if count == 1 else 's'}"
        if self.differences:
            return f"{steps}, different: {self.differences[0]}"
        if not self.recorded:
            return "not compared: the run recorded no losses"
        if not self.is_equal:
            return f"{steps}, equal in every bit up to step {self.recorded[-1].step}, the last that the run recorded"
        return f"{steps}, equal in every bit"


def replay(
    script: str | Path,
    arguments: Sequence[str] | None = None,
    *,
    run: str | Path,
    first_step: int | None = None,
    last_step: int | None = None,
    until: Until | None = None,
    callbacks: Sequence[str] = (),
    folder: str | Path | None = None,
    processes: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Replay:
    """Start the script of a past run again at a checkpoint, with more callbacks, and compare its steps with the run.

    The script runs in its own process and writes to another folder. The folder of the run does not change.

    Args:
        script: Path of the script that trained the run.
        arguments: Arguments of the script. ``None``: those that ``run.json`` of the run has.
        run: Folder of the run.
        first_step: The step after which the steps begin. The replay starts at the last checkpoint up to this step.
        last_step: The last step to make. ``None``: the last step of the run.
        until: ``"nan"``: replay up to the first step whose loss is not finite, and find the module and the samples.
            ``"spike"``: the same, also for a loss that is far above the losses before it.
        callbacks: Callbacks to add, such as ``"watch:Watch"`` or ``"watch.py:Watch(every=2)"``.
        folder: Folder to write to. ``None``: a new temporary folder.
        processes: Number of processes, which torchrun starts. ``None``: as many as in the run.
        say: Called with lines about the progress.

    Raises:
        SetupError: If the arguments do not fit the run.
        HooklineError: If the script fails before its first step.
    """
    original = Original.read(Path(run))
    first, last = _range(original, first_step, last_step, until)
    checkpoint = original.checkpoint_before(first, say)
    command = _command(original, Path(script), arguments, processes)
    target = Path(tempfile.mkdtemp(prefix="hookline-replay-") if folder is None else folder).absolute()
    _check_folder(target, original.folder)
    say(_announced(original, first, last, checkpoint, until))
    added = [*callbacks, *([] if until is None else [SEARCH.format(at=last)])]
    wanted = {
        "run": str(original.folder),
        "folder": str(target),
        "checkpoint": None if checkpoint is None else str(checkpoint.path),
        "last_step": last,
        "rows": original.rows_until(last),
        "callbacks": [START.format(start=first, callbacks=added)],
    }
    code = _start(command, wanted)
    result = _result(original, target, first, last, code)
    if until is not None:
        result = replace(result, found=read_found(target, until, last))
    return replace(result, report=write_report(result))


def _range(original: Original, first: int | None, last: int | None, until: Until | None) -> tuple[int, int]:
    """Return the step after which the steps begin, and the last step."""
    if until is not None:
        if until not in get_args(Until):
            raise SetupError(f"replay(until={until!r}): must be 'nan' or 'spike'.")
        if last is not None:
            raise SetupError(f"replay(until={until!r}, last_step={last}): give one of them.")
        last = original.first_bad_step(until)
        first = max(0, last - BEFORE) if first is None else first
    elif last is not None and last > original.longest_replay:
        raise SetupError(f"replay(last_step={last}): the run ended at step {original.last_step}. Give an earlier step.")
    if first is None:
        raise SetupError("replay(): give the step after which the steps begin, or until. On the command line: --from.")
    if first >= max(original.last_step, 1):
        raise SetupError(
            f"replay(first_step={first}): the run ended at step {original.last_step}. Give an earlier step."
        )
    last = original.last_step if last is None else last
    if not 0 <= first < last:
        raise SetupError(f"replay(first_step={first}, last_step={last}): first_step must be >= 0 and below last_step.")
    return first, last


def _command(original: Original, script: Path, arguments: Sequence[str] | None, processes: int | None) -> list[str]:
    """Return the command that starts the script."""
    if not script.is_file():
        raise SetupError(f"{script} is not a file. Give the Python file that trained the run.")
    given = list(original.file.arguments[1:] if arguments is None else arguments)
    if arguments is None and any(REDACTED in argument for argument in given):
        raise SetupError(
            f"run.json has the arguments {' '.join(given)} without their secrets. Give the arguments of the script: "
            f"--args."
        )
    count = original.processes if processes is None else processes
    start = [sys.executable]
    if count > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    return [*start, str(script), *given]


def _check_folder(target: Path, run: Path) -> None:
    """Raise an error if the replay would write into the run, or among other files."""
    if target.resolve().is_relative_to(run.resolve()):
        raise SetupError(
            f"replay(folder={str(target)!r}): is inside the run, which must not change. Give another folder."
        )
    if target.is_dir() and any(target.iterdir()):
        raise SetupError(f"replay(folder={str(target)!r}): is not empty. Give a new folder.")
    target.mkdir(parents=True, exist_ok=True)


def _announced(original: Original, first: int, last: int, checkpoint: Checkpoint | None, until: Until | None) -> str:
    """Return from where the replay starts, and how many steps this costs."""
    start = 0 if checkpoint is None else checkpoint.about.step
    name = "step 0, because there is no earlier checkpoint" if checkpoint is None else checkpoint.name
    name = "step 0" if checkpoint is None and not first else name
    extra = first - start
    cost = f"; the {extra:,} step{'' if extra == 1 else 's'} up to step {first} come first" if extra else ""
    lines = [f"replaying steps {first + 1} to {last} of {original.folder}, from {name}{cost}"]
    if until is not None:
        lines.insert(0, f"step {last} is the first whose loss {'is not finite' if until == 'nan' else 'spikes'}")
    return "\n".join(lines)


def _start(command: Sequence[str], wanted: Mapping[str, object]) -> int:
    """Start the script, wait for its end, and return its exit code."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()]))
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, VARIABLE: json.dumps(wanted)})
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _result(original: Original, target: Path, first: int, last: int, code: int) -> Replay:
    """Compare the steps of a replay that has ended with those of the run."""
    if not (target / STARTED).is_file():
        if code:
            raise HooklineError(f"The script ended with exit code {code} before its first step. Its error is above.")
        raise HooklineError(
            "The script ended before its first step. It must train with Hookline, in the processes that hookline "
            "replay starts."
        )
    started = json.loads((target / STARTED).read_text())
    rows = started["rows"]
    made = tuple(read_steps(target)[rows:])
    recorded = original.steps[rows : max(rows + len(made), original.rows_until(last))]
    differences: list[str] = []
    index = first_difference(recorded, made)
    if index is not None:
        differences.append(explain(recorded[index], made[index]))
        if index == 0 and rows and recorded[index].samples == made[index].samples:
            differences.append(
                "the first step after the checkpoint differs: hookline verify-resume finds what is not saved"
            )
        differences += changes(original.file, RunFile.read(target))
    elif len(made) < len(recorded):
        step = made[-1].step if made else started["step"]
        reason = RunFile.read(target).sessions[-1].reason
        differences.append(f"the replay ended after step {step}, the run did not: {reason}")
    return Replay(
        run=original.folder,
        folder=target,
        first_step=first,
        last_step=last,
        resumed_from=started["step"],
        recorded=tuple(recorded),
        made=made,
        differences=tuple(differences),
        exit_code=code,
    )
