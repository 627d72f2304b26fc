"""``Opening``: opens a run (folder, device, ranks, optimizers, resume), and closes it, also after an error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookline.distributed.random_states import seed_everything
from hookline.distributed.rebinding import rebind
from hookline.errors import Preempted, SetupError, add_place, error_text, first_of
from hookline.events import Member, Scopes
from hookline.events.foreign_names import ATTRIBUTES
from hookline.loop.data.fetcher import Fetcher
from hookline.loop.data.seeding import mix
from hookline.loop.data.training_data import TrainingData
from hookline.loop.engine.blocked_hooks import blocked_hooks_named
from hookline.loop.engine.joining import facts_of_optimizers, join
from hookline.loop.evaluation.untouched import same_modes
from hookline.loop.metrics.book import MetricBook
from hookline.loop.model.buffers import BuffersAsBuilt
from hookline.loop.model.lazy_modules import named_lazy_module
from hookline.loop.model.optimizers import make_optimizers
from hookline.loop.model.schedulers import make_schedulers
from hookline.loop.record.folder import make_folder
from hookline.loop.record.records import Records
from hookline.loop.saving.mirror import bring_run
from hookline.loop.settings import Settings
from hookline.loop.tasks.supervised import title_of
from hookline.loop.world.joining import roots_of
from hookline.loop.world.world import World
from hookline.progress import Duration
from hookline.run import MISSING, Run, RunState

logger = logging.getLogger("hookline")

STAGES = {"evaluate": "val", "test": "test", "predict": "predict"}
"""The stage of a run by its entry point, if it does not train."""


class Opening:
    """Opens a run for one call, and closes it.

    Args:
        state: The state of the run.
        settings: The options of the run.
        world: The processes of the run.
        scopes: The open scopes.
        book: The metrics of the run.
        records: The record of the run.
        fetcher: Waits for batches.
        data: The training data.
        buffers: The buffers of the model as it was built.
        run: The ``run`` of the task.
        optimizer: The optimizer as it was given.
        scheduler: The scheduler as it was given.
    """

    def __init__(
        self,
        state: RunState,
        settings: Settings,
        world: World,
        scopes: Scopes,
        book: MetricBook,
        records: Records,
        fetcher: Fetcher,
        data: TrainingData,
        buffers: BuffersAsBuilt,
        run: Run,
        optimizer: Any,
        scheduler: Any,
    ) -> None:
        self.state, self.settings, self.world, self.scopes, self.book = state, settings, world, scopes, book
        self.records, self.fetcher, self.data, self.buffers, self.run = records, fetcher, data, buffers, run
        self._given_optimizer, self._given_scheduler = optimizer, scheduler
        self.line, self.module = state.line, state.module
        self.restore = ExitStack()
        """Restores modes, gradients and handlers when the run is closed."""
        self.brings_optimizer = False
        """True if the user has chosen the parameters of the optimizers, and not only their class."""
        self._ready = False
        self._has_folder = False  # A fit has made it. An evaluation makes none.
        self._failed_stage = ""
        self._replaced: Mapping[torch.Tensor, torch.Tensor] = {}  # Parameters of a model that was sharded.

    # -- opening -------------------------------------------------------------------------------

    def open(
        self, entry_point: str, extend: Duration | None, *, take_folder: Callable[[], None], load: Callable[[], None]
    ) -> None:
        """Find the folder, send ``setup``, prepare device and optimizers, compile, resume, send ``model_ready``.

        Args:
            entry_point: The method that was called, such as ``"fit"``.
            extend: How much longer than before a fit trains.
            take_folder: Locks the folder.
            load: Loads a checkpoint, if the run is to be resumed.
        """
        state = self.state
        self.records.open()
        self.fetcher.open()
        state.open(entry_point, STAGES.get(entry_point, "train"))
        self._failed_stage = ""
        self.restore.enter_context(same_modes(self.module))
        self.restore.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        self.restore.enter_context(blocked_hooks_named(self.line, state.clock))
        self._join(extend)
        in_fit = state.in_fit
        if in_fit:
            for member in self.line.members:
                self.line.begin_training(member, state.clock)
        if self.settings.seed is not None and not self._ready:
            seed_everything(self.settings.seed)
        if not self._ready:
            seed = torch.initial_seed() if self.settings.seed is None else self.settings.seed
            self.data.set_seed(self.world.group.from_zero(seed))
            state.config.setdefault("seed", self.data.seed)
        if not self._ready or (in_fit and not self._has_folder):
            self._find_folder(make=in_fit)
        if in_fit:
            take_folder()
        self.book.clear_names()
        self.line.emit(self.line.hooks.setup)
        self._place_model()
        for member in self.line.members:
            self.move_held_modules(member)
        if in_fit and not state.optimizers:
            self.make_optimizers()
        if in_fit:
            self.line.check_states()
            fix = "Build the same optimizers and schedulers on all ranks."
            self.world.compare(lambda: facts_of_optimizers(state), fix)
        if self.settings.compile and not self._ready:
            self._compile()
        if in_fit:
            self.buffers.remember(self.module)
            load()
        self.world.attach(state.optimizers if in_fit else {})
        self._seed_this_rank()
        self._ready, self._has_folder = True, self._has_folder or in_fit
        state.clock.start()
        self.line.emit(self.line.hooks.model_ready)

    def _join(self, extend: Duration | None) -> None:
        """Join the other processes, if there are any."""
        join(self.world, self.state, self.settings, extend)
        self.book.join()
        if not self.world.is_alone:
            self.scopes.when_failing(self._tell_ranks)

    def _place_model(self) -> None:
        """Move the model to the device, and shard it. A full model that is to be sharded may not fit on the device."""
        if not self.world.is_sharded:
            self.module.to(self.state.device)
        self._replaced = self.world.spread(self.module, roots_of(self.module, self.state.model)) or self._replaced
        if not self.world.is_alone:
            self.module.to(self.state.device)  # The strategy does not move modules that it does not shard.

    def _seed_this_rank(self) -> None:
        """Seed this rank differently from the others, for dropout. Rank zero has the seed of a single process."""
        if self.settings.seed is not None and self.state.rank and not self._ready:
            seed_everything(mix(self.data.seed, self.state.rank))

    def _find_folder(self, *, make: bool) -> None:
        """Agree on the folder of the run. Rank zero creates it for a fit; its default name contains the time there."""
        state = self.state
        if make and state.rank == 0:
            state.set_folder(*make_folder(self.settings, state.name, state.folder))
        name, folder = self.world.group.from_zero([state.name, str(state.folder or "")])
        state.set_folder(name, Path(folder) if folder else None)
        if make and self.settings.remote is not None and state.folder is not None:
            bring_run(self.settings.remote, state.folder, self.settings.resume, self.world.group)
        if make:
            self.records.stream.open(state.folder if state.rank == 0 else None)

    def move_held_modules(self, member: Member[Run]) -> None:
        """Move the modules and metrics of a callback to the device of the model."""
        if not member.is_task:
            for value in vars(member.callback).values():
                if isinstance(value, nn.Module) and value is not self.module:
                    value.to(self.state.device)

    def make_optimizers(self) -> None:
        """Create the optimizers and schedulers from the arguments of the call, or with ``configure_optimizers``."""
        state, given, scheduler = self.state, self._given_optimizer, self._given_scheduler
        if given is None and hasattr(state.task, "configure_optimizers"):
            given = state.task.configure_optimizers(self.run)
            if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[1], torch.optim.Optimizer):
                given, configured = given
                scheduler = configured if scheduler is None else scheduler
        if callable(scheduler) and isinstance(given, Mapping | list | tuple) and len(given) != 1:
            raise SetupError(
                "scheduler= was given as a function and there are several optimizers; make it in configure_optimizers"
            )
        self.brings_optimizer = isinstance(given, torch.optim.Optimizer | Mapping | list | tuple)
        rebind(given, self._replaced)
        optimizers = make_optimizers(given, self.module, title_of(self.module))
        state.schedulers.extend(make_schedulers(scheduler, optimizers))
        state.optimizers.update(optimizers)
        state.clock.updates.update({name: 0 for name in state.optimizers if name not in state.clock.updates})

    def _compile(self) -> None:
        """Compile the model in place, so that the keys of the state dict stay."""
        options = self.settings.compile if isinstance(self.settings.compile, Mapping) else {}
        model = self.state.model
        parts = list(model.children()) if model is self.state.task else [model]
        for part in parts:
            part.compile(**options)

    # -- closing -------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> BaseException:
        """Tell the other ranks about an error that ends the run. Return the error to raise."""
        self._failed_stage = self.state.failed_in[1] if self.state.failed_in[0] == id(error) else self.state.stage
        self._note_foreign_attribute(error)
        if self.state.batch is not MISSING:
            add_place(error, self.state.where().partition(" (")[0])  # Without the evaluation, which is closed by now.
        error = self._tell_ranks(named_lazy_module(self.module, error))
        self.state.fail(error)
        return error

    def _tell_ranks(self, error: BaseException) -> BaseException:
        """Send an error that ends this rank to the other ranks. A forked child is not a rank."""
        return error if self.records.is_forked else self.world.failed(error)

    def _note_foreign_attribute(self, error: BaseException) -> None:
        """Add a note to the error if a task or callback uses an attribute of another library, such as ``self.log``."""
        if not isinstance(error, AttributeError) or error.name not in ATTRIBUTES:
            return
        if any(error.obj is its for its in (self.state.task, *(member.callback for member in self.line.members))):
            error.add_note(f"self.{error.name} of other systems is {ATTRIBUTES[error.name]} here")

    def close(
        self, error: BaseException | None, finish_saves: Callable[[BaseException | None], list[BaseException]]
    ) -> BaseException | None:
        """Leave all scopes, send ``exception`` and ``teardown``, and restore everything. Return the error to raise."""
        with self.world.patient():  # Other ranks may have more to do.
            return self._close(error, finish_saves)

    def _close(
        self, error: BaseException | None, finish_saves: Callable[[BaseException | None], list[BaseException]]
    ) -> BaseException | None:
        line, state = self.line, self.state
        line.time_hooks(False)
        if error is not None:
            self.scopes.leave(because=error)
        try:
            error = first_of(error, finish_saves(error))
        except BaseException as raised:  # A second signal: hooks and restoring follow all the same.
            error = first_of(error, [raised])
        if error is not None and not isinstance(error, Preempted):
            with state.failed_at(error, self._failed_stage or state.stage):
                error = first_of(error, line.emit_to_all(line.hooks.exception))
        error = first_of(error, line.emit_to_all(line.hooks.teardown))
        try:
            if not self.world.broken:
                self.world.vote()  # After a signal to one rank in its teardown, all ranks exit with its code.
            if state.in_fit:
                self.book.end_interval()  # It contains values from the last hooks, or from before an error.
                self._note_end(error)
        except BaseException as raised:  # A full disk, or Ctrl-C during the wait for other ranks.
            told = raised if isinstance(raised, Exception) else self._tell_ranks(raised)
            error = first_of(error, [told])
        try:
            self.records.stream.close()
        except BaseException as raised:  # A second Ctrl-C during the wait for a sink.
            error = first_of(error, [raised])
        state.clock.pause()
        self.scopes.when_failing(None)
        self.world.close()
        self.book.join()
        self.restore.close()
        return error

    def _note_end(self, error: BaseException | None) -> None:
        self.records.note_trouble()
        if error is None:
            return self.records.note("end")
        words = str(error) if isinstance(error, Preempted) else error_text(error)
        return self.records.note("preempt" if isinstance(error, Preempted) else "exception", words)
