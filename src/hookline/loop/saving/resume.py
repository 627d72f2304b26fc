"""Resume a run: load a checkpoint, and report the differences between it and this run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hookline.checkpoint import Checkpoint
from hookline.checkpoint.agreement import by_zero
from hookline.checkpoint.names import STATE
from hookline.checkpoint.request import Resume
from hookline.errors import HooklineWarning
from hookline.loop.record.folder import is_inside
from hookline.loop.record.records import Records
from hookline.loop.saving.callback_matching import for_this_run
from hookline.loop.saving.finding import Found, find_checkpoint
from hookline.loop.saving.partial import skipped_text, without
from hookline.loop.saving.placing import rooms
from hookline.loop.saving.remote import local_copy
from hookline.loop.saving.resharding import of_this_rank
from hookline.loop.saving.rows import drop_rows, restore_rows
from hookline.loop.saving.saver import Saver
from hookline.loop.saving.state_shape import named_in_errors
from hookline.loop.saving.tree import RunTree
from hookline.loop.settings import Settings
from hookline.loop.world.world import World
from hookline.progress import Duration
from hookline.records.redact import redact_text
from hookline.run import MISSING, RunState

logger = logging.getLogger("hookline")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The point from which the engine continues the run of a checkpoint."""

    checkpoint: Path
    """The checkpoint that was loaded."""
    random: Mapping[str, Any]
    """The random states, which the engine sets when the data of the epoch is open."""
    is_eval_pending: bool
    """True if the run was left inside an epoch, before or in the evaluation of a step."""
    is_finished: bool
    """True if the run had ended, and does not train longer now."""
    ended: str | None
    """Why a finished run had ended."""
    generation: int
    """The generation of the checkpoint."""
    skipped: str
    """The parts that were not restored, for the timeline."""


class CheckpointLoader:
    """Load the checkpoint that a run resumes from.

    Args:
        tree: The state of the run, as a tree.
        saver: The saver of the run, which continues the run of the checkpoint.
        state: The state of the run.
        world: The processes of the run.
        records: The rows and the timeline of the run.
        settings: The options of the run.
    """

    def __init__(
        self, tree: RunTree, saver: Saver, state: RunState, world: World, records: Records, settings: Settings
    ) -> None:
        self._tree, self._saver, self._state, self._world = tree, saver, state, world
        self._records, self._settings = records, settings

    def load(self, resume: Resume, *, is_extended: bool) -> ResumePoint | None:
        """Load the checkpoint, after ``setup`` and before ``model_ready``. All ranks must call it.

        Args:
            resume: The checkpoint, or the folder to look in.
            is_extended: True if the run trains longer than before, because of ``extend=``.

        Returns:
            The point to continue from, or ``None`` if there is no checkpoint.
        """
        self._warn_if_nothing_saves()
        with local_copy(resume, self._state.folder, self._world.group) as local:
            return self._load(local, str(resume.path) if resume.is_remote else "", is_extended=is_extended)

    def _load(self, resume: Resume, address: str, *, is_extended: bool) -> ResumePoint | None:
        """Load a local checkpoint, which may have been downloaded from an address."""
        state, group = self._state, self._world.group
        found = find_checkpoint(resume, state.folder, group, rooms(state.module, state.model, state.optimizers))
        if found is None:
            drop_rows(self._records, state.folder)
            return None
        with named_in_errors(found.checkpoint.path / STATE):
            point = self._restore(found, resume, is_extended=is_extended, is_downloaded=bool(address))
        if not state.rank and not point.is_finished:  # The engine reports a finished run later.
            shown = f"{redact_text(address)} ({point.checkpoint.name})" if address else str(point.checkpoint)
            skipped = f"; {point.skipped}" if point.skipped else ""
            logger.warning("resumed from %s: epoch %d, step %d%s", shown, state.clock.epoch, state.clock.step, skipped)
        for path in by_zero(group, lambda: list(map(str, found.passed_over(resume)))):
            with state.showing_checkpoint(Path(path)):
                state.line.emit(state.line.hooks.checkpoint_rejected)
        with state.showing_checkpoint(point.checkpoint):
            state.line.emit(state.line.hooks.checkpoint_loaded)
        return point

    def _restore(self, found: Found, resume: Resume, *, is_extended: bool, is_downloaded: bool) -> ResumePoint:
        state, group, tree, checkpoint = self._state, self._world.group, self._tree, found.checkpoint
        snapshot, about = found.snapshot, found.snapshot.about
        if snapshot.state is not None:
            own = of_this_rank(snapshot.state, about.step, rank=state.rank, size=state.world_size)
            own = without(own, resume.skip, state)
            tree.check_shape(own, checkpoint.path / STATE)
            snapshot = replace(snapshot, state=for_this_run(state.line.members, own, is_quiet=state.rank > 0))
        saved = tree.restore(snapshot, skip=resume.skip)
        if about.pending_eval and saved["save"]:
            state.requests.agree(save=True)  # The save was due after the evaluation that a signal has left.
        tree.callbacks.load(saved["callbacks"], structural=False)
        self._warn_of_environment(checkpoint)
        is_inside_folder = state.folder is not None and is_inside(checkpoint.path, state.folder, *self._saver.folders)
        is_own_run = is_inside_folder and not is_downloaded
        source = checkpoint.path.parent.parent
        restore_rows(self._records, state, group, source, saved["history"], is_own_run=is_own_run)
        if is_own_run:
            self._saver.continue_run(checkpoint.about.run, by_zero(group, found.next_generation))
        else:
            self._saver.continue_run(group.from_zero(self._saver.run_id), self._saver.generation)
        self._saver.start_fit()
        is_finished = checkpoint.about.finished and not is_extended and not self._asks_for_more(saved)
        if checkpoint.about.finished and not is_finished:
            state.requests.drop_stop()  # The run had stopped, and now it trains longer.
        return ResumePoint(
            checkpoint=checkpoint.path,
            random=saved["random"],
            is_eval_pending=about.pending_eval and not saved["course"]["edge_pending"],
            is_finished=is_finished,
            ended=saved["ended"] if is_finished else None,
            generation=about.generation,
            skipped=skipped_text(resume.skip),
        )

    def _asks_for_more(self, saved: Mapping[str, Any]) -> bool:
        """True if the script of a custom loop gives a longer ``max_duration`` than before.

        A custom loop has no ``extend=``. Hookline compares the durations in the scripts, not those that hooks have set:
        the same script, started again, does not train longer.
        """
        given = self._settings.max_duration
        if self._state.task is not MISSING or given is None or self._state.clock.reached(given):
            return False
        if "given_duration" not in saved:  # An older version saved the duration that hooks had set.
            stopped = saved["course"]["stop"] is not None
            return not stopped or saved.get("max_duration", str(given)) != str(given)
        before = None if saved["given_duration"] is None else Duration.parse(saved["given_duration"])
        return before is None or before.unit != given.unit or before < given

    # -- reports -----------------------------------------------------------------------------------

    def _warn_if_nothing_saves(self) -> None:
        """Warn if ``resume="auto"`` will find no checkpoint at the next start."""
        resume, state = self._settings.resume, self._state
        is_auto = resume is not None and resume.path == "auto"
        if is_auto and not self._saver.saves_state and not state.rank and state.in_fit:
            logger.warning(
                "resume='auto', and no callback saves this run: unless a hook calls run.request_save(), a restart "
                "starts from scratch. Add hl.Checkpointer()."
            )

    def _warn_of_environment(self, checkpoint: Checkpoint) -> None:
        """Warn if other versions or settings make the resumed run differ bitwise."""
        here, saved = self._tree.environment(), checkpoint.about.environment
        # `of_this_rank` has reported another number of processes. The number of threads follows from it: torchrun gives
        # one thread to each of several processes.
        left_out = {"world_size"} if saved.get("world_size") == here["world_size"] else {"world_size", "threads"}
        compared = [key for key in here if key in saved and key not in left_out]
        differs = [f"{key} {saved[key]} → {here[key]}" for key in compared if saved[key] != here[key]]
        if differs and not self._state.rank:
            _warn(f"the run resumes, but not bitwise as it would have continued: {', '.join(differs)}")


def _warn(text: str) -> None:
    warnings.warn(text, HooklineWarning, stacklevel=2)
