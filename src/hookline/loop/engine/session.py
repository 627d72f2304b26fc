"""One run from ``setup`` to ``teardown``: its parts put together, opened, and closed on every way out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookline.distributed.guard import guarded
from hookline.distributed.rebinding import rebind
from hookline.errors import LeaveWait, Preempted, SetupError, StopTraining, add_place, first_of, words_of
from hookline.events import Line, Member, Messages, Scopes
from hookline.events.foreign_names import ATTRIBUTES
from hookline.loop.data.batches import END, LEFT, reason_of
from hookline.loop.data.loaders import LOADERS
from hookline.loop.data.seeding import mix
from hookline.loop.engine.audience import Audience
from hookline.loop.engine.blocked_hooks import blocked_hooks_named
from hookline.loop.engine.leaving import stop_in_data
from hookline.loop.engine.optimizers import make_optimizers
from hookline.loop.engine.precision import Precision
from hookline.loop.engine.schedulers import make_schedulers
from hookline.loop.evaluation.untouched import same_modes, seed_everything
from hookline.loop.metrics.book import MetricBook
from hookline.loop.record.folder import make_folder, place
from hookline.loop.record.media import LoopMedia
from hookline.loop.record.rank_logs import rank_logs
from hookline.loop.record.stream import Stream
from hookline.loop.saving.buffers import BuffersAsBuilt
from hookline.loop.settings import Settings
from hookline.loop.tasks.lazy_modules import named_lazy_module
from hookline.loop.tasks.task_methods import no_model
from hookline.loop.world.joining import facts_of_optimizers, find_place, join, roots_of
from hookline.loop.world.world import Alone, World
from hookline.progress import Clock
from hookline.records import EventRow, MetricRow, Record
from hookline.records.metric import losses_not_finite
from hookline.records.plain import public
from hookline.records.redact import redact_text
from hookline.run import MISSING, History, Requests, Run, RunState, StopRequest
from hookline.sinks.sink import RunInfo

logger = logging.getLogger("hookline")


class Session:
    """State, line, scopes and metric book of a run; what surrounds training, evaluation and prediction."""

    _failed_in: tuple[int, str] = (0, "")
    """By ``id``, so that nothing holds it: the error that has left an evaluation, and the stage of the evaluation."""
    _failed_stage = ""
    """The stage in which the run has failed."""
    failed_fetch: BaseException | None = None
    """The error of the training loader: it rose between two steps."""

    def __init__(
        self,
        model: nn.Module,
        task: Any,
        optimizer: Any,
        scheduler: Any,
        callbacks: Iterable[object],
        settings: Settings,
        loop: Any,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise no_model(model)
        self.settings, self.task = settings, task
        self.module: nn.Module = model if task is None else task
        self._given_optimizer, self._given_scheduler = optimizer, scheduler
        self.restore, self._ready, self.buffers = ExitStack(), False, BuffersAsBuilt()
        self._has_folder = False  # a fit has made it; an evaluation makes none
        self._process = os.getpid()
        here, started = find_place(), datetime.now().astimezone()
        self._place, (project, name, folder) = here, place(settings, started)
        self._replaced: Mapping[torch.Tensor, torch.Tensor] = {}  # parameters of a model that was sharded
        self.line = self._make_line()
        self.stream, self._failures_noted, self._nan_noted = Stream(settings.sinks), 0, False
        self.seed = 0
        self.audience = Audience.ALL
        """Who hears what is running now. Only ``heard_by`` changes it."""
        self.state = RunState(
            line=self.line,
            requests=Requests(),
            metrics=MISSING,  # type: ignore[arg-type]  # the book needs the state
            answers=MISSING,  # type: ignore[arg-type]  # the loop gives them
            media=LoopMedia(self),
            loop=loop,
            model=model,
            device=settings.device,
            project=project,
            name=name,
            folder=folder,
            started=started,
            config=dict(settings.config),
            max_duration=settings.max_duration,
            clock=Clock(),
            history=History(),
            messages=Messages(),
            optimizers={},
            schedulers=[],
            loaders={},
            task=MISSING if task is None else task,
            rank=here.rank,
            world_size=here.world_size,
        )
        self.world: World = Alone(self.state.clock)
        """The processes of the run. ``open`` and ``close`` set it."""
        self.book = self.state.metrics = MetricBook(self.state, self._write)
        self.scopes = Scopes(self.line)
        self.precision = Precision(settings.precision, settings.device)
        self.run = Run(self.state, Member(loop, is_task=True))
        self.line.add(callbacks, task=task)
        if task is not None:
            self.run = self.line.members[0].view

    def _make_line(self) -> Line[Run]:
        return Line(
            self._view,
            where=self.where,
            stop=self._stop_training,
            rank=self._place.rank,
            local_rank=self._place.local_rank,
            world_size=self._place.world_size,
            guard=guarded if self._place.world_size > 1 else None,
        )

    def where(self) -> str:
        """The moment in words, for messages."""
        clock = self.state.clock
        return f"step {clock.step}, epoch {clock.epoch} ({self.state.stage})"

    def stop(
        self, reason: str, by: str, *, interrupt: bool = False, left_body: bool = False, by_user: bool = False
    ) -> None:
        """A vote to stop that is no callback's ``run.stop``; by ``StopTraining`` an evaluation is left as well."""
        requests = self.state.requests
        requests.ask_stop(StopRequest(reason, by, self.state.clock.step, interrupt, left_body, by_user))
        if requests.is_trained and not interrupt and self.state.stage in ("val", "test"):
            logger.warning("the evaluation that %s left has no metrics", by)

    def _stop_training(self, reason: str, by: str) -> None:
        """``StopTraining`` from a hook: the same vote; an evaluation under way ends at its next batch."""
        self.stop(reason, by)
        self.state.requests.leave_evaluation = self.state.stage in ("val", "test")

    def _view(self, member: Member[Run]) -> Run:
        return Run(self.state, member)

    # -- records -------------------------------------------------------------------------------

    @property
    def is_forked(self) -> bool:
        """True in a child process that was forked while the run is open: the run's files are its parent's."""
        return os.getpid() != self._process

    @property
    def _writes_records(self) -> bool:
        """True in a fit, in the process that writes the run's files."""
        return self.state.entry_point in ("fit", "train") and self.state.rank == 0 and not self.is_forked

    @contextmanager
    def heard_by(self, audience: Audience) -> Iterator[None]:
        """Set who hears what runs inside the block."""
        earlier, self.audience = self.audience, audience
        try:
            yield
        finally:
            self.audience = earlier

    @property
    def keeps_records(self) -> bool:
        """True if what is logged now becomes a record: in a fit, unless only one caller hears it."""
        return self._writes_records and self.audience is Audience.ALL

    def _write(self, rows: Sequence[Record]) -> None:
        if self._writes_records:
            self.stream.write(rows)
            self._note_trouble()
            if not self._nan_noted:
                self._note_nan(rows)

    def note(self, name: str, text: str = "", *, took: float = 0.0) -> None:
        """Something happened, for the timeline; ``took``: it began so many seconds ago."""
        clock = self.state.clock
        if self._writes_records and self.audience in (Audience.ALL, Audience.ANSWER):
            began = max(0.0, clock.seconds - took)
            self.stream.note(EventRow(name, clock.step, clock.epoch, began, redact_text(text), took))

    def _note_trouble(self) -> None:
        """What has happened behind the loop's back: optional callbacks and sinks that failed."""
        failures = self.line.failures[self._failures_noted :]
        self._failures_noted += len(failures)
        for failure in failures:
            self.note("callback_disabled", str(failure))
        for trouble in self.stream.trouble():
            logger.warning("the sink %s; training goes on", trouble)
            self.note("sink", trouble)

    def _note_nan(self, rows: Sequence[Record]) -> None:
        """Warn of the first loss that is not finite, unless a callback looks after it."""
        values = {row.name: row.value for row in rows if isinstance(row, MetricRow)}
        found = losses_not_finite(values)
        if not found:
            return
        self._nan_noted = True
        self.note("nan", found[0])
        if not any(getattr(member.callback, "handles_nan", False) for member in self.line.members):
            logger.warning(
                "%s at step %d. Training continues. Add hl.StopOnNaN() to stop before such a value is in the weights.",
                found[0],
                self.state.clock.step,
            )

    def start_stream(self, run_id: str) -> None:
        """After a checkpoint is loaded, if there is one: from here on sinks get what is written."""
        if not self.state.rank:
            self.stream.start(self._info(run_id))

    def restart_stream(self, run_id: str) -> None:
        """Rows were taken back in the middle of a run."""
        if not self.state.rank:
            self.stream.restart(self._info(run_id))

    def _info(self, run_id: str) -> RunInfo:
        state, rows = self.state, self.stream.rows
        size = 0 if rows is None else rows.size
        return RunInfo(
            project=state.project,
            name=state.name,
            run_id=run_id,
            folder=state.folder,
            config=public(state.config),
            started=state.started,
            step=state.clock.step,
            earlier=lambda: iter(()) if rows is None else rows.read(size, quietly=True),
        )

    def rows_written(self) -> int:
        """The size of ``metrics.jsonl``, for a checkpoint: a resume goes back to it."""
        return 0 if self.stream.rows is None else self.stream.rows.size

    def ask_for_batch(self) -> None:
        """Send ``batch_fetch_start`` of training: the last batch is over, but an edge may still be to come."""
        state = self.state
        moment = state.batch, state.outputs, state.loss
        state.batch = state.outputs = state.loss = MISSING
        self.line.emit(self.line.hooks.batch_fetch_start)
        state.batch, state.outputs, state.loss = moment

    def fetch(self, iterator: Iterator[Any], *, leave: bool = True, whole: bool = False) -> Any:
        """The next batch. Only while it waits here does Ctrl-C leave at once."""
        self.state.requests.waiting, self.state.requests.whole = leave, whole
        try:
            return next(iterator, END)
        except BaseException as error:
            return self.after_failed_fetch(error)
        finally:
            self.state.requests.waiting = self.state.requests.whole = False

    def after_failed_fetch(self, error: BaseException) -> Any:
        """A wait that Ctrl-C or ``StopTraining`` left is the end of it; any other error is raised, with a note."""
        waited, self.state.requests.waiting = self.state.requests.waiting, False
        if isinstance(error, LeaveWait):
            return LEFT
        stop, in_fit = self.state.requests.agreed.stop, self.state.entry_point in ("fit", "train")
        left = isinstance(error, KeyboardInterrupt) and stop is not None and stop.interrupt
        if left and in_fit:
            self.state.requests.leave_evaluation = self.state.stage != "train"
            return LEFT
        if isinstance(error, StopTraining):
            by, reason = f"the {LOADERS[self.state.stage]} loader", reason_of(error)
            refused = stop_in_data(by, reason, self.state.clock.step)
            refused.__cause__ = error
            self.world.refuse(refused)
            if in_fit and waited and self.state.stage != "predict":  # not in what must be given whole
                self._stop_training(reason, by)
                return LEFT
        if isinstance(error, Exception):
            error.add_note(f"while fetching a batch, at {self.where()}")
            self.failed_fetch = error if self.state.stage == "train" else None
        self.state.batch = self.state.outputs = self.state.loss = MISSING
        raise error

    # -- opening -------------------------------------------------------------------------------

    def open(self, entry_point: str, *, take_folder: Callable[[], None], load: Callable[[], None]) -> None:
        """The folder, ``setup``, then device, optimizers, compile and resume, then ``model_ready``."""
        state, self._process = self.state, os.getpid()
        state.entry_point = entry_point
        state.stage = {"evaluate": "val", "test": "test", "predict": "predict"}.get(entry_point, "train")
        state.exception, state.failure = MISSING, None
        self._failed_in, self._failed_stage = (0, ""), ""
        self.restore.enter_context(same_modes(self.module))
        self.restore.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        self.restore.enter_context(blocked_hooks_named(self.line, state.clock))
        self._join()
        if self.settings.seed is not None and not self._ready:
            seed_everything(self.settings.seed)
        if not self._ready:
            self.seed = torch.initial_seed() if self.settings.seed is None else self.settings.seed
            self.seed = self.world.group.from_zero(self.seed)
            state.config.setdefault("seed", self.seed)
        self.failed_fetch = None
        in_fit = entry_point in ("fit", "train")
        if not self._ready or (in_fit and not self._has_folder):
            self._find_folder(make=in_fit)
        if in_fit:
            take_folder()
        self.book.forget_names()
        self.line.emit(self.line.hooks.setup)
        self._place_model()
        for member in self.line.members:
            self.move_held_modules(member)
        if entry_point in ("fit", "train") and not state.optimizers:
            self._make_optimizers()
        if in_fit:
            fix = "Build the same optimizers and schedulers on all ranks."
            self.world.compare(lambda: facts_of_optimizers(self), fix)
        if self.settings.compile and not self._ready:
            self._compile()
        if entry_point in ("fit", "train"):
            self.buffers.remember(self.module)
            load()
        self.world.attach(state.optimizers if in_fit else {})
        self._seed_this_rank()
        self._ready, self._has_folder = True, self._has_folder or in_fit
        state.clock.start()
        self.line.emit(self.line.hooks.model_ready)

    def _join(self) -> None:
        """Where there are several processes: all of them come together here, each time that a run is opened."""
        if self._place.world_size > 1:
            self.world = ranks = join(self._place, self)
            self.book.join(ranks)
            self.scopes.failing = self._tell_ranks
            self.restore.enter_context(rank_logs(ranks.group))

    def _place_model(self) -> None:
        """On the device, and over the ranks. What is sharded goes to the device in parts: whole it may not fit."""
        if not self.world.is_sharded:
            self.module.to(self.state.device)
        self._replaced = self.world.spread(self.module, roots_of(self.module, self.state.model)) or self._replaced
        if not self.world.is_alone:
            self.module.to(self.state.device)  # what the strategy has left where it was

    def _seed_this_rank(self) -> None:
        """Dropout is not to be the same on all ranks; rank zero's is that of one process."""
        if self.settings.seed is not None and self.state.rank and not self._ready:
            seed_everything(mix(self.seed, self.state.rank))

    def _find_folder(self, *, make: bool) -> None:
        """Agree on the run's folder; for a fit, rank zero makes it. Its default name has the time of one rank."""
        state = self.state
        if make and state.rank == 0:
            state.name, state.folder = make_folder(self.settings, state.name, state.folder)
        found = self.world.group.from_zero([state.name, str(state.folder or "")])
        state.name, state.folder = found[0], Path(found[1]) if found[1] else None
        if make:
            self.stream.open(state.folder if state.rank == 0 else None)

    def move_held_modules(self, member: Member[Run]) -> None:
        """Modules and metrics that a callback holds go where the model is."""
        if not member.is_task:
            for value in vars(member.callback).values():
                if isinstance(value, nn.Module) and value is not self.module:
                    value.to(self.state.device)

    def _make_optimizers(self) -> None:
        state, given, scheduler = self.state, self._given_optimizer, self._given_scheduler
        if given is None and hasattr(self.task, "configure_optimizers"):
            given = self.task.configure_optimizers(self.run)
            if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[1], torch.optim.Optimizer):
                given, configured = given
                scheduler = configured if scheduler is None else scheduler
        if callable(scheduler) and isinstance(given, Mapping | list | tuple) and len(given) != 1:
            raise SetupError(
                "scheduler= was given as a function and there are several optimizers; make it in configure_optimizers"
            )
        rebind(given, self._replaced)
        optimizers = make_optimizers(given, self.module)
        state.schedulers.extend(make_schedulers(scheduler, optimizers))
        state.optimizers.update(optimizers)
        state.clock.updates.update({name: 0 for name in state.optimizers if name not in state.clock.updates})

    def _compile(self) -> None:
        """In place, so that no key of the state dict is renamed."""
        options = self.settings.compile if isinstance(self.settings.compile, Mapping) else {}
        parts = [self.state.model] if self.state.model is not self.task else list(self.task.children())
        for part in parts:
            part.compile(**options)

    # -- closing -------------------------------------------------------------------------------

    def note_stage(self, error: BaseException) -> None:
        """An error leaves an evaluation, which then puts the stage back: keep the stage for ``on_exception``."""
        if self._failed_in[0] != id(error):  # else it was noted further inside
            self._failed_in = id(error), self.state.stage

    def failed(self, error: BaseException) -> BaseException:
        """It ends the run, and the other ranks are told at once; what is to be raised."""
        self._failed_stage = self._failed_in[1] if self._failed_in[0] == id(error) else self.state.stage
        self._note_foreign_attribute(error)
        if self.state.batch is not MISSING:
            add_place(error, self.where().partition(" (")[0])  # an evaluation that it has left is closed by now
        self.state.failure = error = self._tell_ranks(named_lazy_module(self.module, error))
        return error

    def _tell_ranks(self, error: BaseException) -> BaseException:
        """An error ends this rank, and the others hear of it; a forked child is not a rank."""
        return error if self.is_forked else self.world.failed(error)

    def _note_foreign_attribute(self, error: BaseException) -> None:
        """Note where ``self.log`` and its like are here, if a task or callback has looked for it on itself."""
        if not isinstance(error, AttributeError) or error.name not in ATTRIBUTES:
            return
        if any(error.obj is its for its in (self.task, *(member.callback for member in self.line.members))):
            error.add_note(f"self.{error.name} of other systems is {ATTRIBUTES[error.name]} here")

    def close(
        self, error: BaseException | None, finish_saves: Callable[[BaseException | None], list[BaseException]]
    ) -> BaseException | None:
        """Leave all scopes, send ``exception`` and ``teardown``, put everything back; the error to raise."""
        with self.world.patient():  # other ranks may have more to do
            return self._close(error, finish_saves)

    def _close(
        self, error: BaseException | None, finish_saves: Callable[[BaseException | None], list[BaseException]]
    ) -> BaseException | None:
        line, state = self.line, self.state
        line.hooks = line.fast
        if error is not None:
            self.scopes.leave(because=error)
        try:
            error = first_of(error, finish_saves(error))
        except BaseException as raised:  # a second signal: the hooks, and what is to be put back, come all the same
            error = first_of(error, [raised])
        if error is not None and not isinstance(error, Preempted):
            state.exception = state.failure = error
            stage, state.stage = state.stage, self._failed_stage or state.stage
            error = first_of(error, line.emit_to_all(line.hooks.exception))
            state.stage = stage
        error = first_of(error, line.emit_to_all(line.hooks.teardown))
        try:
            if not self.world.broken:
                self.world.vote()  # a signal may have come to one rank in its teardown: all leave with its code
            if state.entry_point in ("fit", "train"):
                self.book.end_interval()  # what was logged in the last hooks, or before an error
                self._note_end(error)
        except BaseException as raised:  # a full disk; Ctrl-C, of which others must hear, while they are waited for
            told = raised if isinstance(raised, Exception) else self._tell_ranks(raised)
            error = first_of(error, [told])
        try:
            self.stream.close()
        except BaseException as raised:  # a second Ctrl-C while it waits for a sink
            error = first_of(error, [raised])
        state.clock.pause()
        self.scopes.failing = None
        self.world.close()
        self.world = Alone(state.clock)
        self.book.join(self.world)
        self.restore.close()
        return error

    def _note_end(self, error: BaseException | None) -> None:
        self._note_trouble()
        if error is None:
            return self.note("end")
        words = str(error) if isinstance(error, Preempted) else words_of(error)
        return self.note("preempt" if isinstance(error, Preempted) else "exception", words)
