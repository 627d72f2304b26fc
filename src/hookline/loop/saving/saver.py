"""``Saver``: writes the checkpoints of a run at the end of steps, by the plans of callbacks."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

from hookline.checkpoint import Checkpoint, FolderLock, Snapshot, Store
from hookline.checkpoint.agreement import by_zero
from hookline.checkpoint.encode import check
from hookline.checkpoint.plan import FOLDER, SavePlan
from hookline.checkpoint.request import Resume, has_checkpoint
from hookline.checkpoint.retention import best
from hookline.errors import CheckpointError, Preempted, SetupError, StateError, add_secondary, error_text
from hookline.events import Scopes
from hookline.loop.record.media import rewind_rows_and_media
from hookline.loop.record.records import Records
from hookline.loop.saving.replay import ReplayEnd
from hookline.loop.saving.slots import RankSlot, SaveSchedule, Slot
from hookline.loop.saving.tree import RunTree
from hookline.loop.saving.verification import AtSteps, Verification, told_to_command
from hookline.loop.settings import Settings
from hookline.loop.world.ranks import Ranks
from hookline.loop.world.world import World
from hookline.progress import Schedule
from hookline.run import RunState, StopRequest
from hookline.run.requests import signal_name

logger = logging.getLogger("hookline")

OWN_PLAN = SavePlan(at_end=False)
"""Plan of a run without a saving callback: save on request, and when a signal ends the run."""


class Agenda(Protocol):
    """The steps at which the engine checks whether something is due."""

    @property
    def saves(self) -> list[SaveSchedule]:
        """The schedules of the checkpoints."""

    def wake_now(self) -> None:
        """Check at the end of this step whether anything is due."""


class Saver:
    """Save checkpoints: by schedule, on request, after a signal or an error, and at the end.

    Args:
        tree: The state of the run, as a tree.
        state: The state of the run.
        world: The processes of the run.
        records: The rows and the timeline of the run.
        scopes: The open scopes of callbacks.
        settings: The options of the run.
        agenda: The steps at which the engine checks whether something is due.
        why_over: Function that returns why training is over, or ``None`` while it is not.
        repeats_evaluation: Function that returns whether a resume can repeat an evaluation. It cannot repeat one in the
            body of a custom loop.
    """

    def __init__(
        self,
        tree: RunTree,
        state: RunState,
        world: World,
        records: Records,
        scopes: Scopes,
        settings: Settings,
        agenda: Agenda,
        why_over: Callable[[], str | None],
        repeats_evaluation: Callable[[], bool],
    ) -> None:
        self._tree, self._state, self._world, self._records = tree, state, world, records
        self._scopes, self._settings, self._agenda = scopes, settings, agenda
        self._why_over, self._repeats_evaluation = why_over, repeats_evaluation
        self._slots: list[Slot] = []
        self._own: Slot | None = None
        self._locks: list[FolderLock] = []
        self._uncopyable = False
        self._verification: Verification | None = None
        self._replay_end: ReplayEnd | None = None
        self._is_asked_to_save = False  # True if a callback saves the full state.
        self._resumes: bool | None = None  # Whether rank zero has found a checkpoint.
        self._reported: Path | None = None  # The checkpoint that was logged after Ctrl-C.
        self._cost = state.line.cost_of("(checkpoints)", "saving")  # The time in this thread, without the hooks.
        self.run_id = uuid.uuid4().hex
        self.generation = 0
        self.began_at = 0
        """The step at which this fit started."""
        records.stream.continue_on_full_disk_if(self.continues_on_full_disk)

    # -- opening and closing -----------------------------------------------------------------------

    def open(self) -> None:
        """Lock the folder, and remove the remains of a killed run. All ranks must call it."""
        folder, resume, group = self._state.folder, self._settings.resume, self._world.group
        self._slots, self._own = [], None
        self._agenda.saves.clear()
        self._state.requests.set_can_save(folder is not None)
        if folder is None:
            return
        by_zero(group, lambda: self._lock(folder))  # Rank zero holds the folder for all ranks.
        self._resumes = by_zero(group, lambda: resume is not None and has_checkpoint(folder, resume))

    def _lock(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)  # It may have been removed since the last fit.
        self._locks = [FolderLock(folder).acquire()]
        checkpoints = (folder / FOLDER).resolve()
        if checkpoints.is_dir() and not checkpoints.is_relative_to(folder.resolve()):
            # It is a link to another disk: lock it also for runs that reach it by another path.
            try:
                self._locks.append(FolderLock(checkpoints).acquire())
            except BaseException:
                self._locks.pop().close()
                raise
        Store(folder / FOLDER).sweep()

    def verify(self, verification: Verification) -> None:
        """Save only the checkpoints that ``hookline verify-resume`` compares."""
        folder, schedule = self._state.folder, AtSteps(verification.save_at)
        if folder is not None:
            self._verification = verification
            self._agenda.saves.append(schedule)
            self._slots.append(self._slot(SavePlan(at_end=False), folder, schedule))

    def end_replay_at(self, end: ReplayEnd) -> None:
        """Save no checkpoint by the plans of callbacks, and leave the process at the end of a replay."""
        self._replay_end = end
        self._agenda.saves.append(end)

    @property
    def _ignores_plans(self) -> bool:
        """True in ``hookline verify-resume`` and ``hookline replay``."""
        return self._verification is not None or self._replay_end is not None

    def _slot(self, plan: SavePlan, folder: Path, schedule: SaveSchedule | None) -> Slot:
        if isinstance(self._world, Ranks):
            return RankSlot(plan, folder, schedule, self._world)
        return Slot(plan, folder, schedule, self._state.requests.call_attention)

    def add(self, plan: SavePlan) -> Slot:
        """Add a callback's plan for this fit. Callbacks call it in ``on_setup``.

        Args:
            plan: The plan.

        Raises:
            SetupError: If the run has no folder, or another callback saves in the same folder.
        """
        folder = self._folder()
        self._is_asked_to_save |= not plan.weights_only
        if self._ignores_plans:
            return self._slot(plan, folder, None)  # It never saves.
        if any(slot.plan.folder == plan.folder for slot in self._slots):
            raise SetupError(
                f"two callbacks save in {plan.folder!r}, and each would delete what the other keeps; "
                f"give one of them another folder"
            )
        if not self._state.rank:
            self._check_found(plan, folder)
        schedule = None
        if plan.every is not None:
            schedule = Schedule.of(plan.every, self._state.max_duration)
            schedule.fired(self._state.clock)
            self._agenda.saves.append(schedule)
            self._agenda.wake_now()  # It may be due before everything else on the agenda.
        slot = self._slot(plan, folder, schedule)
        slot.sweep()
        self._slots.append(slot)
        return slot

    def _folder(self) -> Path:
        if self._state.folder is None:
            raise SetupError("this run writes nothing (folder=False), so it cannot save; give it a folder")
        return self._state.folder

    def _check_found(self, plan: SavePlan, folder: Path) -> None:
        """Raise if ``resume="auto"`` finds nothing, but this run has saved in another folder."""
        resume = self._settings.resume
        asked = resume is not None and resume.path == "auto" and not self._state.clock.step
        if asked and not plan.weights_only and not plan.is_resumed and not Store(folder / FOLDER).latest():
            found = Store(folder / plan.folder).latest()
            if found is not None:
                raise SetupError(
                    f"resume='auto' looks in {str(folder / FOLDER)!r}, where there is nothing, and this run has saved "
                    f"in {str(found.path.parent)!r}: give resume={str(found.path.parent)!r}, or leave out folder"
                )

    def check_states(self) -> None:
        """Raise before the first step if the state cannot be saved.

        If all callbacks save weights only, log a warning instead.

        Raises:
            StateError: If a callback saves the full state, and the state cannot be saved.
        """
        if not self._slots:
            return
        try:
            check(self._tree.capture(), spread=not self._world.is_alone)
        except StateError as error:
            if any(not slot.plan.weights_only for slot in self._slots):
                raise
            logger.warning("only weights can be saved, also when a signal comes: %s", error)

    def wait(self) -> list[BaseException]:
        """Wait for background saves at the end of the run. Return their errors."""
        errors: list[BaseException] = []
        for slot in self._slots:
            try:
                self._cost.timed(slot.close)
            except Exception as error:
                try:
                    self._failed(slot, error)
                except Exception as raised:
                    errors.append(raised)
        return errors

    def close(self) -> None:
        """Unlock the folder.

        If an interrupt has left a background save, its thread unlocks the folder when the save ends.
        """
        locks, self._locks = self._locks, []
        writing = [slot for slot in self._slots if slot.is_writing]
        for lock in locks:
            for slot in writing:
                slot.when_written(lock.close)
            if not writing:
                lock.close()

    # -- the identity of the run -------------------------------------------------------------------

    def start_fit(self) -> None:
        """Record the current step as the start of a fit."""
        self.began_at = self._state.clock.step

    def continue_run(self, run_id: str, generation: int) -> None:
        """Continue the run of a checkpoint.

        Args:
            run_id: The identity of the run.
            generation: The generation of the checkpoints that follow.
        """
        self.run_id, self.generation = run_id, generation

    def start_generation(self) -> None:
        """Start a new generation of checkpoints, after a rollback."""
        self.generation += 1

    # -- questions ---------------------------------------------------------------------------------

    def will_go_on(self, resume: Resume) -> bool:
        """True if there is a checkpoint to resume from. With several ranks, rank zero decides."""
        return has_checkpoint(self._state.folder, resume) if self._resumes is None else self._resumes

    def continues_on_full_disk(self) -> bool:
        """True if a callback saves with ``on_error="warn"`` and none with ``"raise"``."""
        return bool(self._slots) and all(plan.on_error == "warn" for plan in self.plans)

    @property
    def plans(self) -> list[SavePlan]:
        """The plans of the callbacks that save in this fit."""
        return [slot.plan for slot in self._slots]

    @property
    def folders(self) -> list[Path]:
        """The folders in which callbacks save in this fit."""
        return [slot.store.folder for slot in self._slots]

    @property
    def saves_state(self) -> bool:
        """True if a callback or ``verify-resume`` saves the full state, which a resume needs."""
        return self._is_asked_to_save or self._verification is not None

    @property
    def due(self) -> bool:
        """True if a checkpoint is due or requested at this step."""
        return self._state.requests.agreed.save or any(slot.is_due(self._state.clock) for slot in self._slots)

    @property
    def is_saved(self) -> bool:
        """True if the current step is saved, by all plans."""
        slots = self._slots or ([] if self._own is None else [self._own])
        return bool(slots) and all(slot.is_saved(self._state.clock) for slot in slots)

    @property
    def is_deferred(self) -> bool:
        """True if a save was due at the last step, and comes when the run is closed."""
        return any(slot.deferred for slot in self._slots)

    @property
    def is_used(self) -> bool:
        """True if a callback saves in this run, or if the run was resumed."""
        return bool(self._slots) or self.began_at > 0

    @property
    def can_leave_evaluation(self) -> bool:
        """True if a signal may end an evaluation, because a resume repeats it."""
        return self._state.folder is not None and self._repeats_evaluation() and not self._uncopyable

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint of this run that another process can resume from."""
        slots = [slot for slot in (*self._slots, self._own) if slot is not None]
        found = [checkpoint for slot in slots for checkpoint in slot.store.checkpoints()]
        whole = [checkpoint for checkpoint in found if checkpoint.about.exact and not checkpoint.weights_only]
        return max(whole, key=lambda checkpoint: (checkpoint.about.generation, checkpoint.about.step), default=None)

    def of_this_step(self) -> Path | None:
        """Return the newest checkpoint if it is of the current step.

        A second signal may have come after the checkpoint was written, and before it was reported.
        """
        newest = self.latest() if self._state.in_fit else None
        return None if newest is None or newest.about.step != self._state.clock.step else newest.path

    def best(self) -> Path | None:
        """Return the best checkpoint by the metric that a callback monitors."""
        for slot in self._slots:
            plan = slot.plan
            if plan.monitor is not None:
                found = best(slot.store.checkpoints(), plan.monitor, plan.mode, 1)
                return found[0].path if found else None
        return None

    # -- when --------------------------------------------------------------------------------------

    def ask(self, plan: SavePlan) -> bool:
        """Ask for a save by a plan at the end of this step.

        ``hookline verify-resume`` and ``hookline replay`` ignore the request.

        Returns:
            False if the plan was not added in this fit.
        """
        slot = next((slot for slot in self._slots if slot.plan == plan), None)
        if slot is not None:
            slot.ask()
            self._state.requests.ask_plan()
        return slot is not None or self._ignores_plans

    def save_due(self) -> None:
        """Finish background saves, then make the saves that are due or requested.

        All ranks must call it at the end of a step.
        """
        requests, clock = self._state.requests, self._state.clock
        for slot in self._slots:
            self._guarded(slot, slot.poll)
        if requests.take_plan():
            self._agree_on_plans()
        everywhere = requests.take_save()  # `run.request_save()` names no plan.
        is_last = self._why_over() is not None
        due = [slot for slot in self._slots if everywhere or slot.is_due(clock)]
        for slot in due or ([self._own_slot()] if everywhere else []):
            # After Ctrl-C this step may be saved as it was before an evaluation, which a resume makes up.
            is_left = requests.is_interrupted and slot.is_saved(clock)
            if slot.take_due(clock, is_last=is_last) and not is_left:
                self._save(slot)
        if due:
            self._world.vote()  # The hooks of a save may have made requests.
        if self._verification is not None and clock.step >= self._verification.stop_at:
            raise _left_in_order()
        if self._replay_end is not None:
            self._leave_replay(self._replay_end, is_over=is_last)

    def finish_writing(self) -> None:
        """Wait for background saves. All ranks must call it."""
        for slot in self._slots:
            self._guarded(slot, slot.wait)

    def _leave_replay(self, end: ReplayEnd, *, is_over: bool) -> None:
        """Leave the process if the steps of a replay are made or training is over. All ranks must call it."""
        clock, is_reached = self._state.clock, False
        if end.due(clock):
            is_reached = self._world.group.from_zero(end.is_reached(clock))  # Only rank zero has the rows.
        if is_reached or is_over:
            raise _left_in_order()

    def _agree_on_plans(self) -> None:
        """Request on all ranks the saves that any rank has requested. All ranks must call it."""
        for answers in self._world.group.exchange([slot.asked for slot in self._slots]):
            for slot, asked in zip(self._slots, answers, strict=True):
                if asked:
                    slot.ask()

    def save_after_interrupt(self, *, pending_eval: bool = False) -> None:
        """Save after Ctrl-C, so that another process can resume. All ranks must call it.

        Args:
            pending_eval: True if the resume must repeat the evaluation of this step.
        """
        requests = self._state.requests
        slots = [slot for slot in self._slots if slot.plan.is_resumed]
        if (requests.agreed.preempt is not None or requests.agreed.save) and self._state.folder is not None:
            slots = slots or [self._own_slot()]  # A signal in the last hooks and `run.pause()` save without a plan.
        for slot in slots:
            with _unsavable_logged():
                found = self._save_once(slot, pending_eval=pending_eval)
                # The saver may save twice: before an evaluation that is left, and after it.
                if found is not None and found != self._reported:
                    self._reported = found
                    if not self._state.rank:
                        stop = requests.agreed.stop
                        logger.warning("%s: saved %s", "interrupted" if stop is None else stop.reason, found)

    def save_and_leave(self, *, pending_eval: bool = False) -> Preempted:
        """Save after a signal, so that another process can resume. All ranks must call it.

        Args:
            pending_eval: True if the resume must repeat the evaluation of this step.

        Returns:
            The error to raise.
        """
        state, line, requests, found = self._state, self._state.line, self._state.requests, None
        number, earlier = requests.agreed.preempt or 0, requests.agreed.stop
        stop = earlier or StopRequest(signal_name(number), "the system", state.clock.step)
        requests.leave_because_of_signal()
        requests.set_signal_as_reason(stop)
        line.emit(line.hooks.preempt)
        requests.set_signal_as_reason(earlier)  # The signal stops this process, not the run.
        if state.in_fit and state.folder is not None:
            slot = next((slot for slot in self._slots if slot.plan.is_resumed), None) or self._own_slot()
            with _unsavable_logged():
                found = self._save_once(slot, pending_eval=pending_eval)
        requests.set_signal_as_reason(stop)
        return Preempted(number, checkpoint=found)

    def save_final(self) -> None:
        """Make the last save of a fit that ends without an error. All ranks must call it."""
        requests = self._state.requests
        self._world.vote()  # A signal or a request may have come in the last hooks.
        if requests.take_plan():
            self._agree_on_plans()
        is_over = self._why_over() is not None
        if self._state.clock.step == self.began_at and not is_over:
            return
        if self._replay_end is not None:  # The code after `fit` belongs to the original run.
            raise _left_in_order()
        stop = requests.agreed.stop
        is_finished = is_over and not (stop is not None and stop.goes_on)
        # A request or a signal in the last hooks saves also without a Checkpointer.
        asked = requests.take_save() or requests.agreed.preempt is not None or self._verification is not None
        for slot in self._slots or ([self._own_slot()] if asked else []):
            if slot.take_final(asked=asked):
                self._save(slot, finished=is_finished)
        for slot in self._slots if is_finished and requests.agreed.preempt is None else ():
            self._guarded(slot, slot.wait)
            self._guarded(slot, slot.prune_finished)

    def failed(self, error: BaseException, *, exact: bool) -> None:
        """Save after an error, for plans with ``on_exception``.

        Errors of these saves become notes on the error.

        Args:
            error: The error that ends the run.
            exact: True if the error came between two steps, so that a resume is exact.
        """
        if self._state.clock.step == self.began_at or not self._world.is_alone:
            return  # There is nothing new, or other ranks would have to take part.
        for slot in self._slots:
            if slot.plan.on_exception or slot.deferred:
                try:
                    self._save(slot, exact=exact or slot.deferred)
                except Exception as late:
                    add_secondary(error, late)

    # -- an evaluation that a signal leaves ----------------------------------------------------------

    def states_before_evaluation(self) -> dict[str, Any] | None:
        """Copy the states of callbacks and the size of the rows before an evaluation.

        All ranks must call it.

        Returns:
            The copy for ``as_before_evaluation``, or ``None`` if a signal has to wait for the end of the evaluation.
        """
        if not self.can_leave_evaluation:
            return None
        states = None
        try:
            states = deepcopy(self._tree.callbacks.capture())
        except Exception as error:  # Such a state cannot be saved either, so a signal waits for the evaluation.
            logger.info("a signal will wait for the end of an evaluation: %s", error)
        states = states if all(self._world.group.exchange(states is not None)) else None  # All ranks leave, or none.
        self._uncopyable = states is None
        return None if states is None else {"callbacks": states, "rows": self._records.size}

    def as_before_evaluation(self, states: dict[str, Any]) -> None:
        """Undo an evaluation that a signal has left, because a resume repeats it.

        Args:
            states: The copy that ``states_before_evaluation`` returned.
        """
        self._tree.callbacks.load(states["callbacks"])
        rows = self._records.stream.rows
        if rows is not None and rows.size > states["rows"]:  # The evaluation has logged images or texts.
            rewind_rows_and_media(rows, states["rows"])

    # -- how ---------------------------------------------------------------------------------------

    def _own_slot(self) -> Slot:
        """Return the slot of a run in which no callback saves the full state."""
        self._own = self._own or self._slot(OWN_PLAN, self._folder(), None)
        return self._own

    def _save_once(self, slot: Slot, *, pending_eval: bool = False) -> Path | None:
        """Save unless this step is saved. Return the checkpoint's path, or ``None`` on failure."""
        clock = self._state.clock
        self._guarded(slot, slot.wait)
        if not slot.is_saved(clock) or pending_eval:
            self._save(slot, pending_eval=pending_eval, at_once=True)
        newest = slot.newest()
        return newest if slot.is_saved(clock) else None

    def _save(self, slot: Slot, *, at_once: bool = False, **about: Any) -> None:
        line, scopes, cost = self._state.line, self._scopes, self._cost
        if self._records.is_forked:
            return
        if not self._state.requests.may_save:
            logger.warning("not saved: a second signal came, and what it interrupted may be half done")
            return
        mark = len(scopes)
        self._guarded(slot, lambda: cost.timed(slot.wait))  # An error of the last save is not an error of this one.
        try:
            scopes.enter(line.hooks.around_save)
            line.emit(line.hooks.checkpoint_save)
            snapshot = cost.timed(lambda: self._snapshot(weights_only=slot.plan.weights_only, **about))
            slot.mark_saved(self._state.clock)
            cost.count_call()
            if not slot.background or at_once or about:  # The last save of a run is not written in the background.
                self._guarded(slot, lambda: self._saved(cost.timed(lambda: slot.write(snapshot))))
            else:
                self._guarded(slot, lambda: cost.timed(lambda: slot.submit(snapshot, self._saved)))
        except BaseException as error:
            scopes.leave(mark, because=error)
            raise
        scopes.leave(mark)

    def _snapshot(self, *, weights_only: bool, **about: Any) -> Snapshot:
        """Return the content of a checkpoint at the end of a step, without copying tensors.

        All ranks must call it.
        """
        self._records.steps.flush()
        facts = self._tree.about(self.run_id, self.generation, **about)
        self._world.before_evaluation()  # Batch norm statistics are those of rank zero, as in an evaluation.
        state = None if weights_only else self._tree.capture_all(save_due=self.due)
        if state is not None and self._verification is not None:
            state["verification"] = told_to_command(self._state, saves=self._is_asked_to_save)
        return Snapshot(facts, self._tree.weights(), state)

    def _saved(self, checkpoint: Checkpoint) -> None:
        line = self._state.line
        with self._state.showing_checkpoint(checkpoint.path):
            self._records.note("checkpoint", checkpoint.path.name)
            line.emit(line.hooks.checkpoint_saved)

    def _guarded(self, slot: Slot, act: Callable[[], object]) -> None:
        try:
            act()
        except (CheckpointError, StateError) as error:
            self._failed(slot, error)

    def _failed(self, slot: Slot, error: Exception) -> None:
        line = self._state.line
        with self._state.showing_exception(error):
            self._records.note("checkpoint_failed", error_text(error))
            line.emit(line.hooks.checkpoint_failed)
        slot.mark_failed()
        if slot.plan.on_error == "raise" or not isinstance(error, CheckpointError | StateError):
            raise error
        logger.warning("a checkpoint could not be saved, and the run continues: %s", error)


def _left_in_order() -> Preempted:
    """Return the error that ends the process with the exit code 0."""
    leave = Preempted(0)
    leave.code = 0
    return leave


@contextmanager
def _unsavable_logged() -> Iterator[None]:
    """Log the error if the state cannot be saved.

    If no callback saves, ``check_states`` has not checked the state.
    """
    try:
        yield
    except StateError as error:
        logger.error("not saved: %s", error)
