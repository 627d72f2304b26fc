"""``Engine``: the parts of a run, put together once; and the story of one call, from ``setup`` to ``teardown``."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any

from torch import nn

from hookline.distributed.guard import guarded
from hookline.errors import Preempted, ScopeError, StopTraining, error_text
from hookline.events import Line, Member, Messages, Scopes
from hookline.loop.data.batches import no_batches, to_device
from hookline.loop.data.fetcher import Fetcher
from hookline.loop.data.loaders import check_loader, named_loaders
from hookline.loop.data.training_data import TrainingData
from hookline.loop.engine.agenda import Agenda
from hookline.loop.engine.control import Control
from hookline.loop.engine.edge import Edge
from hookline.loop.engine.joining import may_skip
from hookline.loop.engine.opening import Opening
from hookline.loop.engine.signals import Signals
from hookline.loop.engine.steps import Steps
from hookline.loop.engine.training import Training
from hookline.loop.engine.window import AccumulationWindow
from hookline.loop.evaluation.eval_loader import without_intervals
from hookline.loop.evaluation.evaluate import Evaluator, Outcome
from hookline.loop.evaluation.handles import Handles, batches_twice
from hookline.loop.evaluation.sanity import sanity_check
from hookline.loop.evaluation.tasks import TaskRunner
from hookline.loop.metrics.book import MetricBook
from hookline.loop.model.buffers import BuffersAsBuilt
from hookline.loop.model.optimizers import watch_optimizers
from hookline.loop.model.precision import Precision
from hookline.loop.model.scheduler_steps import SchedulerSteps
from hookline.loop.model.schedulers import given_schedulers
from hookline.loop.model.weights import Weights
from hookline.loop.record.folder import place
from hookline.loop.record.media import LoopMedia
from hookline.loop.record.monitors import check_monitors, warn_of_still_plateau
from hookline.loop.record.notices import log_finished, log_preempted, log_script_continues, reached_already
from hookline.loop.record.records import Records
from hookline.loop.record.run_file import RunRecord
from hookline.loop.result import Result
from hookline.loop.saving.replay import VARIABLE as REPLAY
from hookline.loop.saving.replay import ReplayEnd, ReplayRequest
from hookline.loop.saving.resume import CheckpointLoader, ResumePoint
from hookline.loop.saving.rollback import MemorySnapshots
from hookline.loop.saving.saver import Saver
from hookline.loop.saving.tree import RunTree
from hookline.loop.saving.verification import VARIABLE, Verification
from hookline.loop.settings import Settings
from hookline.loop.tasks.supervised import SupervisedTask, loss_of_task, title_of
from hookline.loop.tasks.task import counter
from hookline.loop.tasks.task_methods import no_model
from hookline.loop.world.joining import find_place, make_world
from hookline.progress import Clock, Duration
from hookline.run import MISSING, History, Requests, Run, RunState
from hookline.run.state import FIT

USER = "the user"
"""Who asked to stop, if it was Ctrl-C."""


class Engine:
    """The parts of a run.

    Args:
        model: The model.
        task: The task, or ``None`` for a custom loop.
        optimizer: The optimizer as it was given.
        scheduler: The scheduler as it was given.
        callbacks: The callbacks of the run.
        settings: The options of the run.
        loop: The ``Loop``, for ``run.loop``.
        verification: What ``hookline verify-resume`` asks for.
        replayed: What ``hookline replay`` asks for.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Any,
        optimizer: Any,
        scheduler: Any,
        callbacks: Iterable[object],
        settings: Settings,
        loop: Any,
        verification: Verification | None,
        replayed: ReplayRequest | None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise no_model(model)
        self.settings, self._verification, self._replayed = settings, verification, replayed
        here, started = find_place(), datetime.now().astimezone()
        project, name, folder = place(settings, started)
        self.line: Line[Run] = Line(
            lambda member: Run(self.state, member),
            where=lambda: self.state.where(),
            stop=lambda reason, by: self.state.stop_at_once(reason, by.name, by.key),
            rank=here.rank,
            local_rank=here.local_rank,
            world_size=here.world_size,
            guard=guarded if here.world_size > 1 else None,
        )
        self.clock, self.requests = Clock(), Requests()
        self.state = state = RunState(
            line=self.line,
            requests=self.requests,
            metrics=MISSING,  # type: ignore[arg-type]  # The parts that follow need the state.
            answers=MISSING,  # type: ignore[arg-type]
            media=MISSING,  # type: ignore[arg-type]
            loop=loop,
            model=model,
            device=settings.device,
            project=project,
            name=name,
            folder=folder,
            started=started,
            config=dict(settings.config),
            max_duration=settings.max_duration,
            clock=self.clock,
            history=History(),
            messages=Messages(),
            optimizers={},
            schedulers=[],
            loaders={},
            task=MISSING if task is None else task,
            rank=here.rank,
            world_size=here.world_size,
            remote_folder=settings.remote,
        )
        self.world = make_world(here, self.requests, self.clock, is_custom_loop=task is None)
        self.scopes = Scopes(self.line)
        self.data = TrainingData(self.clock, here.rank, state.loaders)
        self.records = Records(state, settings.sinks, self.data.take_digest)
        self.book = MetricBook(state, self.world, self.records.write)
        self.fetcher = Fetcher(state, self.world)
        self.precision = Precision(settings.precision, settings.device)
        self.weights = Weights(model, self.clock)
        self.buffers = BuffersAsBuilt()
        self.schedulers = SchedulerSteps(state, self.book, self.world)
        self.loss_weights = task.loss_weights if isinstance(task, SupervisedTask) else None
        self.agenda = Agenda(
            self.clock, self.line.sampler, settings.log_every, settings.eval_every, settings.max_duration
        )
        self.window, self.handles = AccumulationWindow(), Handles(self.requests)
        self.edge = Edge(
            state=state,
            world=self.world,
            scopes=self.scopes,
            book=self.book,
            records=self.records,
            agenda=self.agenda,
            weights=self.weights,
            schedulers=self.schedulers,
            window=self.window,
            handles=self.handles,
        )
        count = counter(task)
        move = None if settings.device.type == "cpu" else self.move
        self.steps = Steps(
            state=state,
            world=self.world,
            scopes=self.scopes,
            book=self.book,
            records=self.records,
            fetcher=self.fetcher,
            data=self.data,
            precision=self.precision,
            weights=self.weights,
            loss_weights=self.loss_weights,
            schedulers=self.schedulers,
            agenda=self.agenda,
            edge=self.edge,
            window=self.window,
            handles=self.handles,
            count=count,
            move=move,
            keeps_losses=settings.log_every is not None and not getattr(task, "drives_updates", False),
            accumulate=settings.accumulate,
        )
        self.run = Run(state, Member(loop, is_task=True))
        state.connect(self.book, LoopMedia(state, self.book, self.records))
        self.tree = RunTree(
            state=state,
            world=self.world,
            settings=settings,
            data=self.data,
            book=self.book,
            records=self.records,
            precision=self.precision,
            weights=self.weights,
            buffers=self.buffers,
            edge=self.edge,
            steps=self.steps,
            why_over=self._why_over,
        )
        self.saver = Saver(
            tree=self.tree,
            state=state,
            world=self.world,
            records=self.records,
            scopes=self.scopes,
            settings=settings,
            agenda=self.agenda,
            why_over=self._why_over,
            repeats_evaluation=lambda: self.edge.evaluate is not None,
        )
        self._loader = CheckpointLoader(self.tree, self.saver, state, self.world, self.records, settings)
        self.snapshots = MemorySnapshots(self.tree, self.saver, state, self.records)
        self.record = RunRecord()
        self.control = Control(state, self.world, self.records, self.agenda, self.record.set_control)
        self.edge.connect(self.saver, self.control, self._roll_back)
        self.evaluator = Evaluator(
            state=state,
            world=self.world,
            scopes=self.scopes,
            book=self.book,
            records=self.records,
            fetcher=self.fetcher,
            data=self.data,
            precision=self.precision,
            handles=self.handles,
            count=count,
            move=move,
            can_be_left=self._can_leave_evaluation,
            when_broken=self._note_evaluation,
        )
        self.line.add(callbacks, task=task)
        if task is not None:
            self.run = self.line.members[0].view
        self.tasks = TaskRunner(state, self.run, self.world, self.book, self.loss_weights, self.evaluator)
        self.training = Training(
            state=state,
            settings=settings,
            world=self.world,
            scopes=self.scopes,
            data=self.data,
            precision=self.precision,
            agenda=self.agenda,
            edge=self.edge,
            steps=self.steps,
            window=self.window,
            handles=self.handles,
            saver=self.saver,
            count=count,
        )
        self.opening = Opening(
            state=state,
            settings=settings,
            world=self.world,
            scopes=self.scopes,
            book=self.book,
            records=self.records,
            fetcher=self.fetcher,
            data=self.data,
            buffers=self.buffers,
            run=self.run,
            optimizer=optimizer,
            scheduler=scheduler,
        )
        self.signals = Signals(self.requests, self._interrupt)
        self._resume = settings.resume
        self.entry_point, self.is_open = "fit", False
        self.extend: Duration | None = None
        """How much longer than before a fit trains."""
        self.loaded_reason: str | None = None
        """Why the run had ended, if the checkpoint that was loaded is that of a finished run."""
        self.loaded_finished = False
        """The checkpoint that was loaded is that of a finished run."""

    def move(self, batch: Any) -> Any:
        """Move a batch to the device of the run."""
        device = self.state.device
        return batch if device.type == "cpu" else to_device(batch, device)

    def prepare(self, entry_point: str, extend: Duration | None = None) -> None:
        """Set what the next call is.

        Args:
            entry_point: ``"fit"``, ``"train"``, ``"evaluate"``, ``"test"`` or ``"predict"``.
            extend: How much longer than before a fit trains.
        """
        self.entry_point, self.extend = entry_point, extend

    @property
    def is_custom(self) -> bool:
        """True if the body of the loop is the user's, and not a trainer's."""
        return self.state.task is MISSING

    # -- opening and closing ---------------------------------------------------------------------

    def open(self) -> None:
        """Open the run for one call of the entry point."""
        if self.is_open:
            raise ScopeError("this loop is open already; one `with` at a time")
        self.is_open = True
        self.requests.clear()
        self.data.reset_plans()
        self.edge.open()
        self.signals.listen(stops_on_interrupt=self.entry_point in FIT)
        try:
            self.opening.open(self.entry_point, self.extend, take_folder=self._take_folder, load=self._load)
            self.evaluator.join_world()
            self.steps.open()
            if self.state.in_fit:
                self.scopes.enter(self.line.hooks.around_fit)
                self.line.emit(self.line.hooks.fit_start)
                self.opening.restore.enter_context(self._watch_optimizers())
        except BaseException as error:
            raised = self._close(error) or error
            raise raised from raised.__cause__  # Not from the error that it replaces.

    def _watch_optimizers(self) -> AbstractContextManager[None]:
        """Watch the optimizers. The pre-flight of a new run reports what is wrong with them itself."""
        is_checked = self.settings.preflight is not False and not self.clock.step
        return watch_optimizers(self.state, title_of(self.state.module), warns=not is_checked)

    def close(self, error: BaseException | None) -> bool:
        """Close the run. Return whether the error was a stop of training, which is not raised."""
        is_stop = isinstance(error, StopTraining) and self._stops_here()
        if isinstance(error, StopTraining) and is_stop:
            self.state.ask_stop(error.reason, "the body of the loop")
            self.requests.set_leave_evaluation(True)  # An evaluation that is open has no end hooks and no metrics.
        raised = self._close(None if is_stop else error)
        if raised is not None and raised is not error:
            raise raised
        stop = self.requests.agreed.stop
        if raised is None and self.state.in_fit and stop is not None and stop.by_user:  # Not `TimeLimit`.
            if self.settings.interrupt == "raise":
                raise KeyboardInterrupt
            log_script_continues(self.state)
        return is_stop

    def _stops_here(self) -> bool:
        """True if a ``StopTraining`` that has left the body is a request to stop. Elsewhere it is raised.

        It is raised in ``evaluate``, ``test`` and ``predict``, where half an answer is a wrong one, and after training.
        It is raised on one rank of several, unless its body was left in order: the other ranks would wait.
        """
        trains = self.state.in_fit and not self.requests.is_trained
        return trains and (self.world.is_alone or (self.is_custom and not self.world.broken))

    def _close(self, error: BaseException | None) -> BaseException | None:
        """Send the end hooks after a normal end, then always ``teardown``. Return the error to raise."""
        if self.records.is_forked:  # The hooks, the files and the workers of the run are those of the parent process.
            self.signals.restore()
            return error
        error = error if error is None else self.opening.failed(error)
        self.handles.close(because=error)
        if error is None:
            try:
                self._end()
            except BaseException as late:
                error = self.opening.failed(late)
        self.steps.drop()
        self.is_open = False
        self.state.close()
        self.evaluator.leave_world()
        try:
            error = self.opening.close(error, self._finish_saves)
            if error is None and self.requests.agreed.preempt is not None:  # It came when all was done.
                error = Preempted(self.requests.agreed.preempt)
            if isinstance(error, Preempted):
                error.checkpoint = error.checkpoint or self.saver.of_this_step()
                error.result = self.result()
                log_preempted(self.state, error, self.saver.latest)
            return error
        finally:
            self.signals.restore()
            self.records.steps.close()
            self.data.close()
            self.control.close(is_saved=self.saver.is_saved)
            try:
                self.record.end(
                    self.state,
                    error,
                    reason=self.stop_reason(),
                    plans=self.saver.plans,
                    sinks=self.records.stream.reports,
                    newest=self.book.newest,
                )
            finally:
                self.saver.close()

    def _end(self) -> None:
        """The call has come to its normal end."""
        in_fit = self.state.in_fit
        self.handles.send_end_hooks()
        if in_fit:
            self.line.emit(self.line.hooks.fit_end)
            self.book.end_interval()
            self.scopes.leave()
        self.edge.vote()  # A signal may have come to one rank in the last batches or hooks.
        if in_fit and self.requests.is_interrupted:
            self.saver.save_after_interrupt()
        elif in_fit and not self.loaded_finished:
            warn_of_still_plateau(self.state, self.settings.eval_every, has_evaluated=self.edge.has_evaluated)
            self.saver.save_final()

    def begin_call(self, verb: str) -> None:
        """Refuse a call outside of ``with``, and finish what the body has left."""
        if not self.is_open:
            raise ScopeError(f"loop.{verb}(): the loop is not open; use it inside `with hl.Loop(…) as loop:`")
        self.handles.send_end_hooks()
        self.edge.advance_to_evaluation()

    def _interrupt(self) -> None:
        """The first Ctrl-C: ask to stop."""
        self.state.ask_stop("keyboard interrupt", USER, interrupt=True, by_user=True)

    def _take_folder(self) -> None:
        self.control.begin()
        self.saver.open()
        folder = None if self.state.rank else self.state.folder
        self.records.steps.open(folder)
        self.data.record_samples(folder is not None and self.steps.keeps_losses)
        if self._verification is not None:
            os.environ.pop(VARIABLE, None)  # Only the first run of a script is verified.
            self.saver.verify(self._verification)
        if self._replayed is not None:
            os.environ.pop(REPLAY, None)  # Only the first run of a script is replayed.
            self.saver.end_replay_at(ReplayEnd(self._replayed, self.records.steps))

    def _load(self) -> None:
        """After ``setup``: load the checkpoint to continue from, once, and find how long the run is."""
        self.saver.start_fit()
        self.record.look_back(self.state)
        generation, skipped = 0, ""
        if self._resume is not None:
            point = self._loader.load(self._resume, is_extended=self.extend is not None)
            if point is not None:
                self._continue_from(point)
                generation, skipped = point.generation, point.skipped
                if self._replayed is None:
                    self.control.resume(self.record.earlier_requests, generation)
            self._resume = None  # Not before: a fit after one that could not continue must not start from scratch.
        if self._replayed is not None:
            self.control.resume(self._replayed.recorded_requests(), generation, evaluates=True)
        if self.extend is not None:
            done = self.clock.elapsed(self.extend.unit)
            self.state.set_max_duration(self.extend + Duration(done, self.extend.unit) if done else self.extend)
            self.loaded_finished, self.loaded_reason = False, None
        self.saver.check_states()
        self.record.begin(
            self.state,
            self.settings,
            run_id=self.saver.run_id,
            seed=self.data.seed,
            plans=self.saver.plans,
            loss=loss_of_task(self.state.task),
            schedulers=given_schedulers(self.state.schedulers),
            control=self.control.entries,
            live=self.control.live(),
        )
        self.records.start(self.saver.run_id)
        self.records.note("resume" if self.clock.step else "start", skipped)
        self.control.open()

    def _continue_from(self, point: ResumePoint) -> None:
        """A checkpoint is loaded: training continues where it was saved."""
        self.training.resume_with(dict(point.random))
        if point.is_eval_pending:
            self.edge.resume_before_evaluation()
        self.loaded_finished, self.loaded_reason = point.is_finished, point.ended

    @property
    def will_resume(self) -> bool:
        """Before ``setup``: whether a checkpoint is about to be loaded."""
        return self._resume is not None and self.saver.will_go_on(self._resume)

    def _finish_saves(self, error: BaseException | None) -> list[BaseException]:
        """Before ``teardown``: save after an error, and wait for saves in the background. Return their errors."""
        if not self.state.in_fit:
            return []
        if error is not None and not isinstance(error, Preempted):
            self.saver.failed(error, exact=error is self.fetcher.failed)
        return self.saver.wait()

    # -- training --------------------------------------------------------------------------------

    def batches(self, loader: Any) -> Generator[Any, None, Any]:
        """Give the batches of training to the body of a custom loop."""
        if not self.prepare_training(loader):
            return self.handles.track(no_batches())
        return self.handles.track(self.training.with_body())

    def prepare_training(self, loader: Any) -> bool:
        """Check the loader. Return whether there is anything to train."""
        self.begin_call("batches")
        state = self.state
        loader = self.data.loader_of("train", loader)
        if state.is_training:
            raise batches_twice(state.max_duration)
        check_loader(loader, "training")
        is_reached = state.max_duration is not None and self.clock.reached(state.max_duration)
        if is_reached and self.clock.step == self.saver.began_at and not self.training.is_resumed:
            raise reached_already(state, is_custom_loop=self.is_custom)
        state.loaders["train"] = loader
        if self.loaded_finished:
            log_finished(state, self.stop_reason(), is_custom_loop=self.is_custom)
            return False
        self.training.open_data()  # Its errors come before the first hook of training.
        return True

    def _roll_back(self) -> bool:
        """Roll back if a callback has asked for it. Return whether one has."""
        asked = self.requests.take_rollback()
        if asked is not None:
            self.records.steps.flush()  # The rows of the undone steps stay, because a replay makes these steps as well.
            self.snapshots.roll_back(*asked)
            self.control.rolled_back(self.saver.generation)
            self.requests.note_change(f"run.roll_back() to step {self.clock.step}", "it")
        return asked is not None

    def eval_due(self) -> bool:
        """Go through the edge up to the evaluation, and return whether one is due."""
        if self.window.has_batch and self.window.driven:
            self.steps.step()
        self.begin_call("eval_due")
        self.control.note_eval_due()
        return self.edge.is_eval_due

    # -- evaluation and prediction ---------------------------------------------------------------

    def evaluate(self, loaders: Any, stage: str = "val") -> Generator[Any, None, dict[str, Any]]:
        """Give the batches of an evaluation, which is made up after a resume if a signal leaves it."""
        loaders, intervals = without_intervals(self.data.loader_of(stage, loaders), stage)
        named = named_loaders(loaders, stage)
        self.state.loaders[stage] = loaders
        if intervals:
            self.agenda.loaders.set_intervals(intervals, self.state.max_duration)
            self.line.expect(f"{stage}/{name}/*" for name in intervals)
        return self.handles.track(self._evaluate(named, stage))

    def _evaluate(self, loaders: dict[str | None, Any], stage: str) -> Generator[Any, None, dict[str, Any]]:
        states, was_interrupted = self.saver.states_before_evaluation(), self.requests.is_interrupted
        if stage == "val" and self.state.is_training and not self.edge.is_over:
            loaders = {name: loaders[name] for name in self.agenda.loaders.due(loaders, self.clock)}
        with self._saved_if_preempted(stage, states):
            outcome: Outcome = yield from self.evaluator.evaluate(loaders, stage)
        if outcome.is_left and self.requests.is_interrupted and not was_interrupted and states is not None:
            self.saver.as_before_evaluation(states)  # As after another signal.
            self.saver.save_after_interrupt(pending_eval=stage == "val")
        if not outcome.is_left:
            self.agenda.loaders.evaluated(loaders, self.clock)
        self._note_evaluation(stage, outcome.is_left)
        return outcome.metrics

    def prediction_loaders(self, given: Any) -> dict[str | None, Any]:
        """Show the loaders of a prediction as ``run.loaders["predict"]``, and return them by name."""
        loaders = self.data.loader_of("predict", given)
        named = named_loaders(loaders, "predict")
        self.state.loaders["predict"] = loaders
        return named

    def predict(self, loader: Any, name: str | None = None) -> Generator[Any, None, None]:
        """Give the batches of a prediction."""
        return self.handles.track(self._predict(loader, name))

    def _predict(self, loader: Any, name: str | None) -> Generator[Any, None, None]:
        with self._saved_if_preempted("predict", None):
            yield from self.evaluator.predict(loader, name=name)

    def _note_evaluation(self, stage: str, is_left: bool) -> None:
        if stage == "val" and self.state.in_fit:
            self.edge.note_evaluation(is_left=is_left)

    def check_sanity(self, loaders: dict[str | None, Any]) -> None:
        """Before step 1: try the evaluation, and check that every monitored metric is logged."""
        with self._saved_if_preempted("val", None):
            logged, seen = sanity_check(self.evaluator, self.tasks, self.state, self.book, loaders)
        self.edge.vote()  # One rank may have asked to stop.
        if self.requests.agreed.stop is None:  # Else the check may have been left, and nothing is trained.
            doubts = check_monitors(
                self.state,
                logged,
                seen=seen,
                all_loaders=len(loaders),
                logs_losses=bool(self.settings.log_every),
                task_logs=type(self.state.task) is not SupervisedTask,
            )
            self.edge.doubt(doubts)

    def _can_leave_evaluation(self) -> bool:
        """True if a signal may end an evaluation: in training, only one that a resume makes up."""
        return self.saver.can_leave_evaluation or not (self.state.in_fit and self.state.is_training)

    @contextmanager
    def _saved_if_preempted(self, stage: str, states: dict[str, Any] | None) -> Iterator[None]:
        """After a signal in an evaluation: save callbacks as they were before it. A resume makes it up."""
        try:
            yield
        except Preempted as preempted:
            if not self.requests.may_save:
                raise  # A second signal, on this rank alone: nothing is saved, and the other ranks are not waited for.
            is_saved = preempted.checkpoint is not None
            is_sanity_check = self.state.in_fit and not self.state.is_training and not self.clock.step
            if states is not None and not is_saved:
                self.saver.as_before_evaluation(states)
                raise self.saver.save_and_leave(pending_eval=stage == "val") from None
            if is_sanity_check or not self.state.in_fit:
                raise self.saver.save_and_leave() from None
            raise

    # -- callbacks that come and go ----------------------------------------------------------------

    def added(self, member: Member[Run]) -> None:
        """A callback joined a run that is open: set it up."""
        if self.is_open:
            if self.state.in_fit:
                self.line.begin_training(member, self.clock)
            self.opening.move_held_modules(member)
            self._send(self.line.fast.setup, member)
            if self.state.in_fit:
                self.line.check_states(member)
            if may_skip(member, self.line):
                self.world.expect_skips()

    def removed(self, member: Member[Run]) -> None:
        """A callback leaves a run that is open: it undoes what it has done."""
        if self.is_open:
            self._send(self.line.fast.teardown, member)

    def _send(self, heard: Iterable[Any], member: Member[Run]) -> None:
        """Send an event to one callback."""
        for hook, run in [pair for pair in heard if pair[1] is member.view]:
            hook(run)

    # -- the end ---------------------------------------------------------------------------------

    def stop_reason(self) -> str:
        """Return why training ended."""
        if self.loaded_reason is not None:
            return self.loaded_reason
        if self.requests.agreed.stop is not None:
            return self.requests.agreed.stop.reason
        if self.agenda.is_duration_reached:
            return f"max_duration ({self.state.max_duration}) reached"
        error = self.state.exception
        return "not trained" if error is MISSING else error_text(error)

    def _why_over(self) -> str | None:
        return self.stop_reason() if self.edge.is_over else None

    def result(self) -> Result:
        """Return how the run ended, and what it found."""
        state, stop = self.state, self.requests.agreed.stop
        return Result(
            model=state.model,
            history=state.history,
            metrics=dict(self.run.metrics),
            clock=self.clock,
            stop_reason=self.stop_reason(),
            stopped_by=None if stop is None else stop.by,
            interrupted=stop is not None and stop.interrupt,
            _folder=state.folder,
            best_checkpoint=self.saver.best(),
            costs=self.line.costs(),
            failures=tuple(self.line.failures),
            sinks=self.records.stream.reports,
        )
