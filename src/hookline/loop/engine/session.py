"""One run from ``setup`` to ``teardown``: its parts put together, opened, and closed on every way out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookline.distributed.guard import guarded
from hookline.distributed.rebinding import rebind
from hookline.errors import Preempted, SetupError, add_place, first_of, words_of
from hookline.events import Line, Member, Messages, Scopes
from hookline.events.foreign_names import ATTRIBUTES
from hookline.loop.data.fetcher import Fetcher
from hookline.loop.data.random_states import seed_everything
from hookline.loop.data.seeding import mix
from hookline.loop.data.training_data import TrainingData
from hookline.loop.engine.blocked_hooks import blocked_hooks_named
from hookline.loop.engine.joining import facts_of_optimizers, join
from hookline.loop.evaluation.untouched import same_modes
from hookline.loop.metrics.book import MetricBook
from hookline.loop.model.buffers import BuffersAsBuilt
from hookline.loop.model.lazy_modules import named_lazy_module
from hookline.loop.model.optimizers import make_optimizers
from hookline.loop.model.precision import Precision
from hookline.loop.model.schedulers import make_schedulers
from hookline.loop.record.folder import make_folder, place
from hookline.loop.record.media import LoopMedia
from hookline.loop.record.records import Records
from hookline.loop.settings import Settings
from hookline.loop.tasks.supervised import title_of
from hookline.loop.tasks.task_methods import no_model
from hookline.loop.world.joining import find_place, make_world, roots_of
from hookline.progress import Clock
from hookline.run import MISSING, History, Requests, Run, RunState

logger = logging.getLogger("hookline")


class Session:
    """State, line, scopes and metric book of a run; what surrounds training, evaluation and prediction."""

    _failed_stage = ""
    """The stage in which the run has failed."""

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
        here, started = find_place(), datetime.now().astimezone()
        self._place, (project, name, folder) = here, place(settings, started)
        self._replaced: Mapping[torch.Tensor, torch.Tensor] = {}  # parameters of a model that was sharded
        self.line = self._make_line()
        self.state = RunState(
            line=self.line,
            requests=Requests(),
            metrics=MISSING,  # type: ignore[arg-type]  # the book needs the state
            answers=MISSING,  # type: ignore[arg-type]  # the loop gives them
            media=MISSING,  # type: ignore[arg-type]  # it needs the state, too
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
        self.world = make_world(here, self.state.requests, self.state.clock, is_custom_loop=task is None)
        self.records = Records(self.state, settings.sinks)
        self.book = self.state.metrics = MetricBook(self.state, self.world, self.records.write)
        self.state.media = LoopMedia(self.state, self.book, self.records)
        self.fetcher = Fetcher(self.state, self.world)
        self.data = TrainingData(self.state.clock, here.rank, self.state.loaders)
        self.scopes = Scopes(self.line)
        self.precision = Precision(settings.precision, settings.device)
        self.run = Run(self.state, Member(loop, is_task=True))
        self.line.add(callbacks, task=task)
        if task is not None:
            self.run = self.line.members[0].view

    def _make_line(self) -> Line[Run]:
        return Line(
            self._view,
            where=lambda: self.state.where(),
            stop=lambda reason, by: self.state.stop_at_once(reason, by),
            rank=self._place.rank,
            local_rank=self._place.local_rank,
            world_size=self._place.world_size,
            guard=guarded if self._place.world_size > 1 else None,
        )

    def _view(self, member: Member[Run]) -> Run:
        return Run(self.state, member)

    # -- opening -------------------------------------------------------------------------------

    def open(self, entry_point: str, *, take_folder: Callable[[], None], load: Callable[[], None]) -> None:
        """The folder, ``setup``, then device, optimizers, compile and resume, then ``model_ready``."""
        state = self.state
        self.records.open()
        self.fetcher.open()
        state.entry_point = entry_point
        state.stage = {"evaluate": "val", "test": "test", "predict": "predict"}.get(entry_point, "train")
        state.exception = MISSING
        state.failed_in, self._failed_stage = (0, ""), ""
        self.restore.enter_context(same_modes(self.module))
        self.restore.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        self.restore.enter_context(blocked_hooks_named(self.line, state.clock))
        self._join()
        if self.settings.seed is not None and not self._ready:
            seed_everything(self.settings.seed)
        if not self._ready:
            seed = torch.initial_seed() if self.settings.seed is None else self.settings.seed
            self.data.seed = self.world.group.from_zero(seed)
            state.config.setdefault("seed", self.data.seed)
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
            self.world.compare(lambda: facts_of_optimizers(state), fix)
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
        join(self.world, self.state, self.settings, self.state.loop.extend)
        self.book.join()
        if not self.world.is_alone:
            self.scopes.failing = self._tell_ranks

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
            seed_everything(mix(self.data.seed, self.state.rank))

    def _find_folder(self, *, make: bool) -> None:
        """Agree on the run's folder; for a fit, rank zero makes it. Its default name has the time of one rank."""
        state = self.state
        if make and state.rank == 0:
            state.name, state.folder = make_folder(self.settings, state.name, state.folder)
        found = self.world.group.from_zero([state.name, str(state.folder or "")])
        state.name, state.folder = found[0], Path(found[1]) if found[1] else None
        if make:
            self.records.stream.open(state.folder if state.rank == 0 else None)

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
        optimizers = make_optimizers(given, self.module, title_of(self.module))
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

    def failed(self, error: BaseException) -> BaseException:
        """It ends the run, and the other ranks are told at once; what is to be raised."""
        self._failed_stage = self.state.failed_in[1] if self.state.failed_in[0] == id(error) else self.state.stage
        self._note_foreign_attribute(error)
        if self.state.batch is not MISSING:
            add_place(error, self.state.where().partition(" (")[0])  # an evaluation that it has left is closed by now
        error = named_lazy_module(self.module, error)
        return self._tell_ranks(error)

    def _tell_ranks(self, error: BaseException) -> BaseException:
        """An error ends this rank, and the others hear of it; a forked child is not a rank."""
        return error if self.records.is_forked else self.world.failed(error)

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
            state.exception = error
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
            self.records.stream.close()
        except BaseException as raised:  # a second Ctrl-C while it waits for a sink
            error = first_of(error, [raised])
        state.clock.pause()
        self.scopes.failing = None
        self.world.close()
        self.book.join()
        self.restore.close()
        return error

    def _note_end(self, error: BaseException | None) -> None:
        self.records.note_trouble()
        if error is None:
            return self.records.note("end")
        words = str(error) if isinstance(error, Preempted) else words_of(error)
        return self.records.note("preempt" if isinstance(error, Preempted) else "exception", words)
