"""``Loop``: your own loop, with the callbacks attached to it; and what ``Trainer`` is made of."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import nn

from hookline.checkpoint.request import Resume
from hookline.distributed.strategy import Strategy, StrategyName
from hookline.errors import Preempted, ScopeError, StopTraining, words_of
from hookline.events import explain
from hookline.loop.data.batches import no_batches
from hookline.loop.data.loaders import check_loader, named_loaders
from hookline.loop.engine.answers import LoopAnswers
from hookline.loop.engine.handles import batches_twice
from hookline.loop.engine.leaving import stops_here
from hookline.loop.engine.session import Session
from hookline.loop.engine.signals import Signals
from hookline.loop.engine.training import Training
from hookline.loop.engine.trial import Trial, trial
from hookline.loop.evaluation.evaluate import evaluation, prediction
from hookline.loop.keywords import checked
from hookline.loop.model.optimizers import watch_optimizers
from hookline.loop.model.schedulers import given_schedulers
from hookline.loop.record.monitors import warn_of_still_plateau
from hookline.loop.record.notices import log_finished, log_preempted, log_script_continues, reached_already
from hookline.loop.record.run_file import RunRecord
from hookline.loop.result import Result
from hookline.loop.saving.resume import load_checkpoint
from hookline.loop.saving.saver import Saving
from hookline.loop.saving.verification import VARIABLE, Verification
from hookline.loop.settings import InterruptName, PrecisionName, Settings, as_list, options_of
from hookline.loop.tasks.supervised import loss_of_task, title_of
from hookline.loop.world.leaving import stop_in_batch
from hookline.loop.world.world import Alone
from hookline.progress import Duration
from hookline.run import MISSING, Run

USER = "the user"
"""Who asked to stop, if it was Ctrl-C."""


class Loop(Training):
    """Adds callbacks, checkpoints and records to your own training loop.

    Args:
        model: A model or a ``Task``.
        optimizer: The optimizer: an instance, a class, a function of the parameters, or several in a list or dict.
        scheduler: Learning rate scheduler, or a function that makes one for the optimizer.
        callbacks: Callbacks of the run: instances of ``hl.Callback``, or functions decorated with ``hl.on``.
        task: The task that drives the loop. ``Trainer`` sets it; a custom loop has none.
        max_duration: How long to train: ``"5ep"``, ``"500st"``, ``"1e6tok"`` or ``"2h"``. Training needs it.
        eval_every: How often to evaluate on ``val``. ``None``: never.
        log_every: Interval over which training metrics are averaged. ``None``: only over epochs, without
            ``train/loss``.
        accumulate: Number of batches that make one step.
        precision: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        device: Device of the model. ``None``: the accelerator if this machine has one, else the CPU.
        compile: ``True``, or a dict of keyword arguments for ``torch.compile``. The model is compiled in place.
        strategy: How several processes train together: ``"auto"``, ``"ddp"``, ``"fsdp"``, ``hl.DDP(…)`` or
            ``hl.FSDP(…)``.
        seed: Seed for Python, NumPy and torch. ``None``: Hookline seeds nothing.
        folder: Folder of the run. ``None``: a new folder under ``runs/``. ``False``: write nothing.
        resume: ``"auto"``: continue from the newest checkpoint in ``folder``, if there is one. Or the path of a
            checkpoint.
        name: Name of the run: ``"run"`` or ``"project/run"``.
        config: Hyper-parameters to store with the run.
        sinks: Where records are sent in addition to the folder: ``[hl.sinks.TensorBoard()]``, or objects with
            ``log(dict, step)``.
        interrupt: What ``fit`` does after Ctrl-C, when the step is finished and saved: ``"return"`` the result, or
            ``"raise"`` ``KeyboardInterrupt``.

    Example:
        >>> import torch
        >>> from hookline.testing import TinyModel, tiny_data
        >>> model = TinyModel()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Loop(model, optimizer, max_duration="2ep", folder=False) as loop:
        ...     for x, y in loop.batches(tiny_data(batches=3)):
        ...         loop.backward(torch.nn.functional.cross_entropy(model(x), y))
        ...         moved = loop.step()
        >>> loop.run.clock.step
        6
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        *,
        scheduler: Any = None,
        callbacks: Iterable[object] = (),
        task: Any = None,
        max_duration: str | Duration | None = None,
        eval_every: str | Duration | None = "1ep",
        log_every: str | Duration | None = "100st",
        accumulate: int = 1,
        precision: PrecisionName = "fp32",
        device: str | torch.device | None = None,
        compile: bool | Mapping[str, Any] = False,
        strategy: StrategyName | Strategy = "auto",
        seed: int | None = None,
        folder: str | Path | Literal[False] | None = None,
        resume: str | Path | Resume | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        sinks: Iterable[Any] = (),
        interrupt: InterruptName = "return",
    ) -> None:
        settings, self._verification = Settings.read(options_of(locals())), Verification.asked_for()
        if self._verification is not None:
            resume = Resume() if self._verification.resume else None
            settings = replace(settings, folder=self._verification.folder, resume=resume)
        callbacks = [*as_list(callbacks), *settings.callbacks_of_sinks()]
        super().__init__(Session(model, task, optimizer, scheduler, callbacks, settings, self))
        self.state.answers = LoopAnswers(self)
        self.saving = Saving(self)
        self._resume = self.settings.resume
        self.entry_point, self._open = "fit", False
        self.extend: Duration | None = None
        """How much longer than before a fit goes on."""
        self.ended: str | None = None
        """Why it has, if it is finished."""
        self.finished = False
        """The checkpoint that was loaded is that of a run that has come to its end."""
        self.signals = Signals(self.requests, self._interrupt)
        self.record = RunRecord()

    @property
    def is_own(self) -> bool:
        """Whether its body is the user's; not a trainer's, which ``fit`` drives, and lengthens with ``extend``."""
        return self.session.task is None

    @property
    def run(self) -> Run:
        """What a hook sees, for the body of your loop: ``loop.run.log({...})``."""
        return self.session.run

    def explain(self) -> str:
        """For each event who runs, in which order, and why."""
        return explain(self.line)

    # -- opening and closing -------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._open:
            raise ScopeError("this loop is open already; one `with` at a time")
        self._open = True
        self.requests.clear()
        self.data.reset_plans()
        self.signals.listen(in_fit=self.entry_point in ("fit", "train"))
        try:
            self.session.open(self.entry_point, take_folder=self._take_folder, load=self._load)
            self.world, self.precision.common_unit = self.session.world, None
            self._names = tuple(self.state.optimizers)
            if self.entry_point in ("fit", "train"):
                self.scopes.enter(self.line.hooks.around_fit)
                self.line.emit(self.line.hooks.fit_start)
                self.session.restore.enter_context(watch_optimizers(self.state, title_of(self.session.module)))
        except BaseException as error:
            raised = self._close(error) or error
            raise raised from raised.__cause__  # not from the one that it replaces
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        stopped = isinstance(error, StopTraining) and stops_here(self)
        if isinstance(error, StopTraining) and stopped:
            self.state.ask_stop(error.reason, "the body of the loop")
            self.requests.leave_evaluation = True  # one that is open has no end hooks and no metrics
        raised = self._close(None if stopped else error)
        if raised is not None and raised is not error:
            raise raised
        if raised is None and self._was_interrupted:
            if self.settings.interrupt == "raise":
                raise KeyboardInterrupt
            log_script_continues(self.state)
        return stopped

    @property
    def _was_interrupted(self) -> bool:
        """Whether Ctrl-C ended training. A ``TimeLimit`` ends it in the same way, and is not meant."""
        stop = self.requests.agreed.stop
        return self.signals.in_fit and stop is not None and stop.by_user

    def _close(self, error: BaseException | None) -> BaseException | None:
        """The end hooks after a normal end, then ``teardown`` on every way out; the error to raise."""
        if self.session.records.is_forked:  # the hooks, the files and the workers of the run are its parent's
            self.signals.restore()
            return error
        error = error if error is None else self.session.failed(error)
        self.handles.close(because=error)
        if error is None:
            try:
                self.handles.settle()
                if self.signals.in_fit:
                    self.line.emit(self.line.hooks.fit_end)
                    self.session.book.end_interval()
                    self.scopes.leave()
                self.course.agree()  # a signal may have come to one rank in the last batches or hooks
                if self.signals.in_fit and self.requests.is_interrupted:
                    self.saving.interrupted()
                elif self.signals.in_fit and not self.finished:
                    warn_of_still_plateau(self.state, self.settings.eval_every, has_evaluated=self.course.has_evaluated)
                    self.saving.finished()
            except BaseException as late:
                error = self.session.failed(late)
        self._drop_window()
        self.world, self._open, self.course.training = Alone(self.clock), False, False
        try:
            error = self.session.close(error, self._finish_saves)
            if error is None and self.requests.agreed.preempt is not None:  # it came when all was done
                error = Preempted(self.requests.agreed.preempt)
            if isinstance(error, Preempted):
                error.checkpoint = error.checkpoint or self.saving.of_this_step()
                error.result = self.result()
                log_preempted(self.state, error, self.saving.latest)
            return error
        finally:
            self.signals.restore()
            self.data.close()
            try:
                self.record.end(
                    self.state,
                    error,
                    reason=self.stop_reason(),
                    plans=[target.plan for target in self.saving.targets],
                    sinks=self.session.records.stream.reports,
                    newest=self.session.book.newest,
                )
            finally:
                self.saving.close()

    def _check_open(self, verb: str) -> None:
        if not self._open:
            raise ScopeError(f"loop.{verb}(): the loop is not open; use it inside `with hl.Loop(…) as loop:`")
        self.handles.settle()
        if self.look_due or self.requests.rollback is not None:
            self.look()

    def _interrupt(self) -> None:
        """The first Ctrl-C: a vote to stop."""
        self.state.ask_stop("keyboard interrupt", USER, interrupt=True, by_user=True)

    def _take_folder(self) -> None:
        self.saving.open()
        if self._verification is not None:
            os.environ.pop(VARIABLE, None)  # only the first run of a script is verified
            self.saving.verify(self._verification)

    def _load(self) -> None:
        """After ``setup``: what a run goes on from, once; and how long it goes on."""
        self.saving.began_at = self.clock.step
        self.record.look_back(self.state)
        if self._resume is not None:
            load_checkpoint(self, self._resume)
            self._resume = None  # not before: a fit after one that could not go on must not begin anew
        if self.extend is not None:
            done = self.clock.elapsed(self.extend.unit)
            self.state.max_duration = self.extend + Duration(done, self.extend.unit) if done else self.extend
            self.finished, self.ended = False, None
        self.saving.check_states()
        self.record.begin(
            self.state,
            self.settings,
            run_id=self.saving.run_id,
            seed=self.data.seed,
            plans=[target.plan for target in self.saving.targets],
            loss=loss_of_task(self.session.task),
            schedulers=given_schedulers(self.state.schedulers),
        )
        self.session.records.start(self.saving.run_id)
        self.session.records.note("resume" if self.clock.step else "start")

    @property
    def will_resume(self) -> bool:
        """Before ``setup``: whether a checkpoint is about to be loaded."""
        return self._resume is not None and self.saving.will_go_on(self._resume)

    def _finish_saves(self, error: BaseException | None) -> list[BaseException]:
        """Before ``teardown``: what is saved after an error, and the end of what is being written; its errors."""
        if self.entry_point not in ("fit", "train"):
            return []
        if error is not None and not isinstance(error, Preempted):
            self.saving.failed(error, exact=error is self.session.fetcher.failed)
        return self.saving.wait()

    def drop_batch(self, reason: str, by: str) -> None:
        """``StopTraining`` from the task: the window that is half filled is dropped, and training ends."""
        self.world.refuse(stop_in_batch(by, reason, self.clock.step))
        self._drop_window()
        self._skipped, self.course.at_edge = True, False
        self.state.ask_stop(reason, by)

    # -- the batches of training, evaluation and prediction --------------------------------------

    def batches(self, loader: Any) -> Generator[Any, None, Any]:
        """The batches of training, epoch after epoch, until ``max_duration`` or a stop."""
        self._check_open("batches")
        loader = self.data.loader_of("train", loader)
        if self.course.training:
            raise batches_twice(self.state.max_duration)
        check_loader(loader, "training")
        reached = self.state.max_duration is not None and self.clock.reached(self.state.max_duration)
        if reached and self.clock.step == self.saving.began_at and self.saved_random is None:
            raise reached_already(self.state, is_custom_loop=self.is_own)
        self.state.loaders["train"] = loader
        if self.finished:
            log_finished(self.state, self.stop_reason(), is_custom_loop=self.is_own)
            return self.handles.track(no_batches())
        self._feed_of(loader)  # what is wrong with it is known before the first hook of training
        return self.handles.track(self._train())

    def trial(self) -> AbstractContextManager[Trial]:
        """Steps of training that leave no trace, in ``fit_start`` or ``train_start``: ``with loop.trial() as t``."""
        return trial(self)

    @property
    def eval_due(self) -> bool:
        """Whether an evaluation is due now: by ``eval_every``, by request, or one at the end."""
        if self._batch_open and self._driven:
            self.step()
        self._check_open("eval_due")
        return self.course.eval_due

    def eval_batches(self, loaders: Any, stage: str = "val") -> Generator[Any, None, Any]:
        """The batches of one evaluation, over one loader or a dict of named ones."""
        self._check_open("eval_batches")
        loaders = self.data.loader_of(stage, loaders)
        named = named_loaders(loaders, stage)
        self.state.loaders[stage] = loaders
        return self.handles.track(evaluation(self, named, stage))

    def predict_batches(self, loader: Any) -> Generator[Any, None, Any]:
        """The batches of one prediction; set ``loop.run.outputs`` to what you predict for each."""
        self._check_open("predict_batches")
        loader = self.data.loader_of("predict", loader)
        check_loader(loader, "predict")
        self.state.loaders["predict"] = loader
        return self.handles.track(prediction(self, loader))

    def stop_reason(self) -> str:
        """Why training ended, in words."""
        if self.ended is not None:
            return self.ended
        if self.requests.agreed.stop is not None:
            return self.requests.agreed.stop.reason
        if self.course.agenda.finished:
            return f"max_duration ({self.state.max_duration}) reached"
        error = self.state.exception
        return "not trained" if error is MISSING else words_of(error)

    def result(self) -> Result:
        """How the run ended, and what it found."""
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
            best_checkpoint=self.saving.best(),
            costs=self.line.costs(),
            failures=tuple(self.line.failures),
            sinks=self.session.records.stream.reports,
        )
