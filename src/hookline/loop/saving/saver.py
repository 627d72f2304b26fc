"""Saving: the checkpoints of a run, written at the edges of steps, by the plans that callbacks have made."""

from __future__ import annotations

import logging
import uuid
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.checkpoint import Checkpoint, FolderLock, Store
from hookline.checkpoint.agreement import by_zero
from hookline.checkpoint.encode import check
from hookline.checkpoint.plan import FOLDER, SavePlan
from hookline.checkpoint.request import Resume, has_checkpoint
from hookline.checkpoint.retention import best
from hookline.errors import CheckpointError, Preempted, SetupError, StateError, add_secondary, words_of
from hookline.loop.engine.signals import signal_name
from hookline.loop.record.media import rewind_rows_and_media
from hookline.loop.record.notices import say_interrupted, unsavable_is_said
from hookline.loop.saving.rank_slots import RankTarget
from hookline.loop.saving.slots import Target
from hookline.loop.saving.snapshots import take_snapshot
from hookline.loop.saving.tree import callback_states, capture_state, load_callback_states
from hookline.loop.saving.verification import AtSteps, Verification
from hookline.loop.world.ranks import Ranks
from hookline.loop.world.world import World
from hookline.progress import Schedule
from hookline.run import MISSING, StopRequest

if TYPE_CHECKING:
    from hookline.loop.loop import Loop

logger = logging.getLogger("hookline")

OWN_PLAN = SavePlan(at_end=False)
"""A run with a folder saves when it is asked or told to leave, also if no callback saves in it."""


class Saving:
    """Saves when asked: by a schedule, a callback, a signal, at the end, after an error."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.targets: list[Target] = []
        self._locks: list[FolderLock] = []
        self._own: Target | None = None
        self._uncopyable = False
        self.verification: Verification | None = None
        self.is_asked_to_save = False
        """A callback of the script saves all of the state; ``verify-resume`` says where none does."""
        self.run_id = uuid.uuid4().hex
        self.generation = 0
        self.began_at = 0
        """The step at which this fit began."""
        self._goes_on: bool | None = None
        self._told: Path | None = None  # what was saved after Ctrl-C
        self._cost = loop.line.cost_of("(checkpoints)", "saving")  # in this thread, and without the hooks
        loop.session.stream.continues_on_full_disk = self.continues_on_full_disk

    # -- opening and closing -------------------------------------------------------------------

    def open(self) -> None:
        """The folder of the run is ours alone from here on, and what a killed run left in it is swept away."""
        folder, resume, group = self._loop.state.folder, self._loop.settings.resume, self._world.group
        self.targets, self._own = [], None
        self._loop.course.agenda.saves.clear()
        self._loop.requests.can_save = folder is not None
        if folder is None:
            return
        by_zero(group, lambda: self._take(folder))  # rank zero holds the folder for all ranks
        self._goes_on = by_zero(group, lambda: resume is not None and has_checkpoint(folder, resume))

    def _take(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)  # someone may have removed it since the last fit
        self._locks = [FolderLock(folder).acquire()]
        checkpoints = (folder / FOLDER).resolve()
        if checkpoints.is_dir() and not checkpoints.is_relative_to(folder.resolve()):
            # A link to another disk: who comes to it over another path finds a lock there.
            try:
                self._locks.append(FolderLock(checkpoints).acquire())
            except BaseException:
                self._locks.pop().close()
                raise
        Store(folder / FOLDER).sweep()

    def will_go_on(self, resume: Resume) -> bool:
        """Whether there is a checkpoint to go on from; in several processes as rank zero has found it."""
        return has_checkpoint(self._loop.state.folder, resume) if self._goes_on is None else self._goes_on

    def verify(self, verification: Verification) -> None:
        """Save what ``hookline verify-resume`` compares, and nothing else."""
        folder, schedule = self._loop.state.folder, AtSteps(verification.save_at)
        if folder is not None:
            self.verification = verification
            self._loop.course.agenda.saves.append(schedule)
            self.targets.append(self._target(SavePlan(at_end=False), folder, schedule))

    @property
    def _world(self) -> World:
        """The processes of the run, until all is closed."""
        return self._loop.session.world

    def _target(self, plan: SavePlan, folder: Path, schedule: Schedule | AtSteps | None) -> Target:
        world = self._world
        if isinstance(world, Ranks):
            return RankTarget(plan, folder, schedule, world)
        return Target(plan, folder, schedule, self._wake)

    def add(self, plan: SavePlan) -> Target:
        """A callback's plan, for this fit; called in ``on_setup``."""
        folder = self._loop.state.folder
        if folder is None:
            raise SetupError("this run writes nothing (folder=False), so it cannot save; give it a folder")
        self.is_asked_to_save |= not plan.weights_only
        if self.verification is not None:
            return self._target(plan, folder, None)  # one that is never asked
        if any(target.plan.folder == plan.folder for target in self.targets):
            raise SetupError(
                f"two callbacks save in {plan.folder!r}, and each would delete what the other keeps; "
                f"give one of them another dirpath"
            )
        if not self._loop.state.rank:
            self._check_found(plan, folder)
        agenda, schedule = self._loop.course.agenda, None
        if plan.every is not None:
            schedule = Schedule.of(plan.every, self._loop.state.max_duration)
            schedule.fired(self._loop.clock)
            agenda.saves.append(schedule)
            agenda.wake = 0  # one that joins in the middle of a run may be due before anything else is
        target = self._target(plan, folder, schedule)
        target.sweep()
        self.targets.append(target)
        return target

    def _check_found(self, plan: SavePlan, folder: Path) -> None:
        """What ``resume="auto"`` does not find must not be begun anew in silence."""
        resume = self._loop.settings.resume
        asked = resume is not None and resume.path == "auto" and not self._loop.clock.step
        if asked and not plan.weights_only and not plan.is_resumed and not Store(folder / FOLDER).latest():
            found = Store(folder / plan.folder).latest()
            if found is not None:
                raise SetupError(
                    f"resume='auto' looks in {str(folder / FOLDER)!r}, where there is nothing, and this run has saved "
                    f"in {str(found.path.parent)!r}: give resume={str(found.path.parent)!r}, or leave out dirpath"
                )

    def check_states(self) -> None:
        """What cannot be saved is said before the first step, and is an error where a callback saves all of it."""
        if not self.targets:
            return
        try:
            check(capture_state(self._loop), spread=not self._world.is_alone)
        except StateError as error:
            if any(not target.plan.weights_only for target in self.targets):
                raise
            logger.warning("only weights can be saved, also when a signal comes: %s", error)

    def wait(self) -> list[BaseException]:
        """The run ends: wait for what is being written; the errors of it."""
        errors: list[BaseException] = []
        for target in self.targets:
            try:
                self._cost.timed(target.close)
            except Exception as error:
                try:
                    self._failed(target, error)
                except Exception as raised:
                    errors.append(raised)
        return errors

    def close(self) -> None:
        """Give the folder free; where an interrupt has left a save that is being written, when that has ended."""
        locks, self._locks = self._locks, []
        writing = [target.writer for target in self.targets if target.writer is not None and target.writer.in_flight]
        for lock in locks:
            for writer in writing:
                writer.when_ended(lock.close)
            if not writing:
                lock.close()

    def continues_on_full_disk(self) -> bool:
        """True if a callback saves with ``on_save_error="warn"`` and none with ``"raise"``."""
        return bool(self.targets) and all(target.plan.on_error == "warn" for target in self.targets)

    # -- when ----------------------------------------------------------------------------------

    def ask(self, target: Target) -> None:
        """Save for this plan at the end of this step."""
        if target in self.targets:
            target.asked = True
            self._loop.requests.ask_plan()

    def settle(self) -> None:
        """At the edge of a step: what was written behind our back, then what is due or asked for."""
        requests, clock = self._loop.requests, self._loop.clock
        for target in self.targets:
            self._guarded(target, target.poll)
        if requests.take_plan():
            self._agree_on_plans()
        everywhere = requests.take_save()  # `run.request_save()` names no plan
        over = self._loop.course.over
        due = [target for target in self.targets if everywhere or target.is_due(clock)]
        for target in due or ([self._own_target()] if everywhere else []):
            if target.schedule is not None:
                target.schedule.fired(clock)
            target.asked = False
            target.deferred = over and target.plan.at_end
            if not target.deferred:
                self._save(target)
        if due:
            self._world.vote()  # what was asked for in the hooks of a save
        if self.verification is not None and clock.step >= self.verification.stop_at:
            leave = Preempted(0)
            leave.code = 0
            raise leave

    def _agree_on_plans(self) -> None:
        """By all: a plan that is asked for on one rank is asked for on all of them."""
        for said in self._world.group.exchange([target.asked for target in self.targets]):
            for target, asked in zip(self.targets, said, strict=True):
                target.asked |= asked

    def interrupted(self, *, pending_eval: bool = False) -> None:
        """Ctrl-C: another process can go on where this one stops."""
        resumed = [target for target in self.targets if target.plan.is_resumed]
        if self._loop.requests.agreed.preempt is not None and self._loop.state.folder is not None:
            resumed = resumed or [self._own_target()]  # a signal came in the last hooks as well, and always saves
        for target in resumed:
            with unsavable_is_said():
                found = self._save_once(target, pending_eval=pending_eval)
                if found not in (None, self._told):  # once before an evaluation that is left, and once after it
                    self._told = found
                    say_interrupted(self._loop, found)

    def preempted(self, *, pending_eval: bool = False) -> Preempted:
        """A signal: save what can be gone on from; the error to raise."""
        loop, found = self._loop, None
        requests, number = loop.requests, loop.requests.agreed.preempt or 0
        requests.is_leaving = True
        earlier = requests.agreed.stop
        stop = earlier or StopRequest(signal_name(number), "the system", loop.clock.step)
        requests.set_signal_as_reason(stop)
        loop.line.emit(loop.line.hooks.preempt)
        requests.set_signal_as_reason(earlier)  # the signal stops this process, not the run
        if loop.state.entry_point in ("fit", "train") and loop.state.folder is not None:
            target = next((found for found in self.targets if found.plan.is_resumed), None) or self._own_target()
            with unsavable_is_said():
                found = self._save_once(target, pending_eval=pending_eval)
        requests.set_signal_as_reason(stop)
        return Preempted(number, checkpoint=found)

    def finished(self) -> None:
        """The run has come to its end."""
        loop = self._loop
        self._world.vote()  # on a signal or a request that came in the last hooks
        if loop.requests.take_plan():
            self._agree_on_plans()
        if loop.clock.step == self.began_at and not loop.course.over:
            return
        stop = loop.requests.agreed.stop
        finished = loop.course.over and not (stop is not None and stop.goes_on)
        # In one of the last hooks; or a signal came there: what is done is saved, Checkpointer or not.
        asked = loop.requests.take_save() or loop.requests.agreed.preempt is not None or self.verification is not None
        for target in self.targets or ([self._own_target()] if asked else []):
            if target.plan.at_end or target.asked or asked:
                target.asked = target.deferred = False
                self._save(target, finished=finished)
        for target in self.targets if finished and loop.requests.agreed.preempt is None else ():
            self._guarded(target, target.wait)
            self._guarded(target, target.prune_finished)

    def failed(self, error: BaseException, *, exact: bool) -> None:
        """The run ends with an error: save for those who asked for it; what goes wrong here is noted on the error."""
        if self._loop.clock.step == self.began_at or not self._world.is_alone:
            return  # there is nothing new; or other ranks, which would have to take part
        for target in self.targets:
            if target.plan.on_exception or target.deferred:
                try:
                    self._save(target, exact=exact or target.deferred)
                except Exception as late:
                    add_secondary(error, late)

    @property
    def can_leave_evaluation(self) -> bool:
        """Whether a resume can make an evaluation up; one in the body of an own loop it cannot."""
        loop = self._loop
        return loop.state.folder is not None and loop.course.evaluate is not None and not self._uncopyable

    def states_before_evaluation(self) -> dict[str, Any] | None:
        """A copy of what callbacks would save, and of the place in the records, for ``as_before_evaluation``."""
        if not self.can_leave_evaluation:
            return None
        states = None
        try:
            states = deepcopy(callback_states(self._loop))
        except Exception as error:  # only a state that cannot be saved either: then a signal waits for the evaluation
            logger.info("a signal will wait for the end of an evaluation: %s", error)
        states = states if all(self._world.group.exchange(states is not None)) else None  # all leave it, or none
        self._uncopyable = states is None
        return None if states is None else {"callbacks": states, "rows": self._loop.session.rows_written()}

    def as_before_evaluation(self, states: dict[str, Any]) -> None:
        """A signal has left the evaluation, and a resume makes it up: nothing of it stays."""
        load_callback_states(self._loop, states["callbacks"])
        rows = self._loop.session.stream.rows
        if rows is not None and rows.size > states["rows"]:  # pictures and texts
            rewind_rows_and_media(rows, states["rows"])

    @property
    def due(self) -> bool:
        """Whether a checkpoint is due or asked for at this step."""
        return self._loop.requests.agreed.save or any(target.is_due(self._loop.clock) for target in self.targets)

    @property
    def is_used(self) -> bool:
        """Whether a callback saves in this run, or it was resumed: then it matters what a resume can do."""
        return bool(self.targets) or self.began_at > 0

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint of this run that another process can go on from."""
        targets = [target for target in (*self.targets, self._own) if target is not None]
        found = [checkpoint for target in targets for checkpoint in target.store.checkpoints()]
        whole = [checkpoint for checkpoint in found if checkpoint.about.exact and not checkpoint.weights_only]
        return max(whole, key=lambda checkpoint: (checkpoint.about.generation, checkpoint.about.step), default=None)

    def of_this_step(self) -> Path | None:
        """The newest, if nothing was done since: a second signal may have come when it was written, before any word."""
        newest = self.latest() if self._loop.entry_point in ("fit", "train") else None
        return None if newest is None or newest.about.step != self._loop.clock.step else newest.path

    def best(self) -> Path | None:
        """The best checkpoint by the metric that a callback monitors."""
        for target in self.targets:
            plan = target.plan
            if plan.monitor is not None:
                found = best(target.store.checkpoints(), plan.monitor, plan.mode, 1)
                return found[0].path if found else None
        return None

    # -- how -----------------------------------------------------------------------------------

    def _own_target(self) -> Target:
        """For a run in which no callback saves all of the state, and which has a folder."""
        folder = self._loop.state.folder
        if folder is None:
            raise SetupError("this run writes nothing (folder=False), so it cannot save; give it a folder")
        self._own = self._own or self._target(OWN_PLAN, folder, None)
        return self._own

    def _save_once(self, target: Target, *, pending_eval: bool = False) -> Path | None:
        """Not again what was saved at this very step. Where it is, unless it could not be saved."""
        self._guarded(target, target.wait)
        now = (self._loop.clock.step, self._loop.clock.batch)
        if target.saved != now or pending_eval:
            self._save(target, pending_eval=pending_eval, at_once=True)
        newest = target.newest()
        return newest if target.saved == now else None

    def _save(self, target: Target, *, at_once: bool = False, **about: Any) -> None:
        loop, line, scopes, cost = self._loop, self._loop.line, self._loop.scopes, self._cost
        if loop.session.is_forked:
            return
        if not loop.requests.may_save:
            logger.warning("not saved: a second signal came, and what it interrupted may be half done")
            return
        mark = len(scopes)
        self._guarded(target, lambda: cost.timed(target.wait))  # an error of the one before is not one of this
        try:
            scopes.enter(line.hooks.around_save)
            line.emit(line.hooks.checkpoint_save)
            snapshot = cost.timed(lambda: take_snapshot(loop, weights_only=target.plan.weights_only, **about))
            target.saved, cost.calls = (loop.clock.step, loop.clock.batch), cost.calls + 1
            if not target.background or at_once or about:  # the last of a run: nothing goes on behind it
                self._guarded(target, lambda: self._saved(cost.timed(lambda: target.write(snapshot))))
            else:
                self._guarded(target, lambda: cost.timed(lambda: target.submit(snapshot, self._saved)))
        except BaseException as error:
            scopes.leave(mark, because=error)
            raise
        scopes.leave(mark)

    def _saved(self, checkpoint: Checkpoint) -> None:
        line, state = self._loop.line, self._loop.state
        state.checkpoint = checkpoint.path
        self._loop.session.note("checkpoint", checkpoint.path.name)
        line.emit(line.hooks.checkpoint_saved)
        state.checkpoint = MISSING

    def _guarded(self, target: Target, act: Any) -> None:
        try:
            act()
        except (CheckpointError, StateError) as error:
            self._failed(target, error)

    def _failed(self, target: Target, error: Exception) -> None:
        line, state = self._loop.line, self._loop.state
        earlier, state.exception = state.exception, error
        self._loop.session.note("checkpoint_failed", words_of(error))
        line.emit(line.hooks.checkpoint_failed)
        state.exception = earlier
        target.saved = None
        if target.plan.on_error == "raise" or not isinstance(error, CheckpointError | StateError):
            raise error
        logger.warning("a checkpoint could not be saved, and the run goes on: %s", error)

    def _wake(self) -> None:
        """From the thread of a save: it has ended, and the loop has to look."""
        self._loop.requests.attention = True
