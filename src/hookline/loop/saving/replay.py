"""The part of ``hookline replay`` that runs inside the script that it replays."""

from __future__ import annotations

import json
import os
import sys
from ast import Call, literal_eval, parse
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Self

from hookline.checkpoint.request import Resume
from hookline.errors import ArgumentError
from hookline.loop.record.folder import is_inside
from hookline.loop.record.steps import StepRecord
from hookline.loop.settings import Settings
from hookline.progress import Clock
from hookline.records.run_file import ControlEntry, RunFile

VARIABLE = "HOOKLINE_REPLAY"


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Options of the command: the run, where to write, where to start, and which steps to make."""

    run: Path
    """The folder of the original run. Nothing is written to it."""
    folder: Path
    checkpoint: Path | None
    """``None``: start at step 0."""
    last_step: int
    rows: int
    """The number of rows in ``steps.bin`` of the run up to the last step. 0 if the run has none."""
    callbacks: tuple[str, ...]
    """The callbacks to add, such as ``"watch:Watch(every=2)"``."""

    @classmethod
    def asked_for(cls) -> Self | None:
        """Read the environment. Return ``None`` outside of ``hookline replay``."""
        given = os.environ.get(VARIABLE)
        if given is None:
            return None
        wanted = json.loads(given)
        checkpoint = wanted["checkpoint"]
        return cls(
            run=Path(wanted["run"]),
            folder=Path(wanted["folder"]),
            checkpoint=None if checkpoint is None else Path(checkpoint),
            last_step=int(wanted["last_step"]),
            rows=int(wanted["rows"]),
            callbacks=tuple(wanted["callbacks"]),
        )

    def settings(self, given: Settings) -> Settings:
        """Return the options of the script with the folder and the checkpoint of the replay, and without its sinks."""
        resume = given.resume
        if self.checkpoint is not None:
            resume = Resume(self.checkpoint)
        elif resume is not None and (resume.path == "auto" or is_inside(Path(resume.path), self.run)):
            resume = None
        return replace(given, folder=self.folder, resume=resume, sinks=(), remote=None)

    def recorded_requests(self) -> tuple[ControlEntry, ...]:
        """Return what ``hookline set`` and ``hookline eval`` asked of the run, to be repeated at their steps."""
        return RunFile.read(self.run).control

    def callbacks_with(self, given: list[object]) -> list[object]:
        """Return the callbacks of the script, and those to add.

        Callbacks of the script with ``in_replay = False`` are left out.
        """
        kept = [callback for callback in given if getattr(callback, "in_replay", True)]
        return [*kept, *map(named_callback, self.callbacks)]


class ReplayEnd:
    """The end of a replay: the last step is made, and so are all the rollbacks before it.

    It has the methods of ``Schedule``, so that the engine looks at the last step.

    Args:
        request: The options of the command.
        steps: The record of the steps. On rank zero it has the rows of the original run up to the checkpoint.
    """

    every = None

    def __init__(self, request: ReplayRequest, steps: StepRecord) -> None:
        self._last_step, self._rows, self._steps = request.last_step, request.rows, steps

    def due(self, clock: Clock) -> bool:
        """True if the last step is reached. A rollback that follows may undo it."""
        return clock.step >= self._last_step

    def fired(self, clock: Clock) -> None:
        """Do nothing: it stays due."""

    def next_step(self, clock: Clock) -> float:
        """Return the step at which the replay may be over."""
        return max(clock.step, self._last_step)

    def is_reached(self, clock: Clock) -> bool:
        """True if all steps are made. Call it on rank zero, at the end of a step."""
        return self.due(clock) and self._steps.rows >= self._rows


def named_callback(name: str) -> Any:
    """Return the callback that ``module:Name`` or ``file.py:Name`` names.

    A class is called. Plain keyword arguments may follow: ``watch:Watch(every=2)``.

    >>> named_callback("hookline.callbacks:EMA(decay=0.9)").decay
    0.9

    Raises:
        ArgumentError: If there is no such callback.
    """
    source, _, call = name.partition(":")
    try:
        parsed = parse(call, mode="eval").body
        is_call = isinstance(parsed, Call)
        attribute = call[: call.index("(")] if is_call else call
        arguments = (
            {str(key.arg): literal_eval(key.value) for key in parsed.keywords} if isinstance(parsed, Call) else {}
        )
        found = getattr(_module(source), attribute.strip())
    except (SyntaxError, ValueError, ImportError, OSError, AttributeError) as error:
        raise ArgumentError(
            f"hookline replay --callback {name!r}: {error}. Write module:Name or file.py:Name."
        ) from error
    return found(**arguments) if isinstance(found, type) or is_call else found


def _module(source: str) -> Any:
    """Import a module by its name, or by the path of its file."""
    if not source.endswith(".py"):
        return import_module(source)
    path = Path(source).absolute()
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module
