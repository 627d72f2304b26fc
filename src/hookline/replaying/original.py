"""``Original``: what a past run recorded. It is read, and never written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hookline.callbacks.stopping._spikes import UsualValues
from hookline.checkpoint import Checkpoint, Store
from hookline.checkpoint.plan import FOLDER
from hookline.errors import CheckpointCorruptError, SetupError
from hookline.records import EventRow, from_json
from hookline.records.run_file import RunFile
from hookline.records.steps import StepRow, read_steps

Until = Literal["nan", "spike"]
EVENTS = "events.jsonl"


@dataclass(frozen=True, slots=True)
class Original:
    """The records of a past run."""

    folder: Path
    file: RunFile
    steps: tuple[StepRow, ...]
    """The rows of ``steps.bin``, in the order in which the steps were made."""
    events: tuple[EventRow, ...]

    @classmethod
    def read(cls, folder: Path) -> Original:
        """Read a run.

        Args:
            folder: The folder of the run.

        Raises:
            SetupError: If the folder does not hold a run.
        """
        try:
            file = RunFile.read(folder)
        except (OSError, ValueError) as error:
            raise SetupError(
                f"{folder} holds no run that can be replayed: {error}. Give the folder of a run."
            ) from error
        return cls(folder.absolute(), file, tuple(read_steps(folder)), tuple(_events(folder / EVENTS)))

    @property
    def last_step(self) -> int:
        """The last step that the run made, as far as its records show."""
        sessions = [session.last_step for session in self.file.sessions]
        return max([row.step for row in self.steps[-1:]] + sessions[-1:], default=0)

    @property
    def longest_replay(self) -> float:
        """The last step that a replay can be asked for.

        A run that was killed has made more steps than it has recorded, and one that failed was in its next step.
        """
        if self.file.status in ("running", "killed"):
            return math.inf
        return self.last_step + (self.file.status == "failed")

    @property
    def processes(self) -> int:
        """The number of processes of the run."""
        return int(self.file.settings.get("processes", 1))

    def rows_until(self, step: int) -> int:
        """Return the number of rows up to a step. If the step was made again after a rollback, the last time counts."""
        for index in range(len(self.steps) - 1, -1, -1):
            if self.steps[index].step == step:
                return index + 1
        return len(self.steps)

    def checkpoint_before(self, step: int, say: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest valid checkpoint of a step or of an earlier one, from which the run continued to its end.

        Args:
            step: The step.
            say: Called with a line for each damaged checkpoint.
        """
        store = Store(self.folder / FOLDER)
        found = [its for its in store.checkpoints() if its.about.exact and not its.weights_only]
        kept = _of_this_history(found, self.events)
        usable = [its for its in kept if its.about.step <= step and not (its.about.finished and its.about.step == step)]
        for checkpoint in sorted(usable, key=lambda its: (its.about.step, its.about.generation), reverse=True):
            try:
                store.verify(checkpoint)
            except CheckpointCorruptError as error:
                say(f"{error} The replay starts at an earlier step.")
            else:
                return checkpoint
        return None

    def first_bad_step(self, until: Until) -> int:
        """Return the first step whose loss is not finite or spikes.

        A step that ``StopOnNaN`` or ``SpikeGuard`` has skipped has no row. It is known from the timeline.

        Args:
            until: ``"nan"`` for a loss that is not finite, ``"spike"`` also for one far above the losses before it.

        Raises:
            SetupError: If there is no such step.
        """
        usual = UsualValues("zscore", threshold=8.0, window=200, warmup=10)
        found = [row.step + 1 for row in self.events if row.name == "step_skipped" and row.text.startswith("by ")]
        for row in self.steps:
            if not math.isfinite(row.loss) or (until == "spike" and usual.judge(row.loss).spike):
                found.append(row.step)
                break
            usual.add(row.loss)
        if self.file.status == "failed" and until == "nan":
            found.append(self.last_step + 1)  # The error may have come before the loss was recorded.
        if not found:
            what = "NaN or infinite" if until == "nan" else "NaN, infinite or far above the losses before it"
            raise SetupError(
                f"replay(until={until!r}): no loss of {self.folder} is {what} ({len(self.steps):,} steps recorded). "
                f"Give the steps: --from and --to."
            )
        return min(found)


def _of_this_history(found: Iterable[Checkpoint], events: Iterable[EventRow]) -> list[Checkpoint]:
    """Return the checkpoints without those whose steps were dropped by a resume from an older checkpoint."""
    dropped: set[str] = set()
    steps = {its.name: its.about.step for its in found}
    saved: list[str] = []
    for row in events:
        if row.name == "checkpoint":
            saved.append(row.text)
            dropped.discard(row.text)
        elif row.name in ("start", "resume"):
            dropped.update(name for name in saved if steps.get(name, 0) > row.step)
    return [its for its in found if its.name not in dropped]


def _events(path: Path) -> Iterable[EventRow]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # The last line may be incomplete.
            row = from_json(line)
            if isinstance(row, EventRow):
                yield row
