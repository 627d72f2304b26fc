"""``EngineAdapter``: an ``Engine`` of ignite with its handlers as a callback of Hookline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from torch import nn

from hookline.errors import RegistrationError, SetupError
from hookline.interop.adapter import Adapter, Host, is_cut
from hookline.interop.ignite.support import FIRED, NEVER_FIRED
from hookline.interop.names import MetricNames
from hookline.run import Run


class IgniteHost(Host):
    """The number of the epoch, and the modes of the model, which an evaluation of ignite in a handler changes."""

    library = "ignite"
    shows = "the epoch and the modes"
    state = ("epoch",)

    def _start(self) -> None:
        super()._start()
        self.epoch = 0
        """Number of the epoch that was started last. The first one is 1."""
        self._modes: list[tuple[nn.Module, bool]] = []

    def on_train_start(self, run: Run) -> None:
        self._modes = [(module, module.training) for module in run.model.modules()]

    def on_train_epoch_start(self, run: Run) -> None:
        self.on_train_start(run)
        self.epoch = run.clock.epoch + 1

    def restore_modes(self) -> None:
        """Give each module the mode that it had when the epoch began: ignite leaves the model in eval mode."""
        for module, mode in self._modes:
            module.training = mode


class EngineAdapter(Adapter):
    """An engine of ignite, whose events a run of Hookline fires. Its process function is not called."""

    library = "ignite"
    host = IgniteHost
    rule = MetricNames(())
    writes = ()

    def __init__(self, callback: Any, **options: Any) -> None:
        self._events = import_module("ignite.engine").Events.__members__
        self._stateful: dict[str, Any] = {}
        self._loaded: dict[str, Any] = {}
        self._epoch_started = self._started = 0.0
        super().__init__(callback, **options)
        self._find_stateful()

    def _connect(self) -> None:
        """Set hooks for the events that have handlers, and for those at which the state of the engine changes."""
        for name in NEVER_FIRED:
            if self._has_handlers(name):
                raise RegistrationError(
                    f"{self.name} of ignite has a handler for Events.{name}, which Hookline cannot fire. Remove it."
                )
        self._connected = {name for name in FIRED if self._has_handlers(name)}
        hooks: dict[str, Callable[[Run], None]] = {
            "train_start": self._start,
            "train_epoch_start": self._start_epoch,
            "epoch_end": self._end_epoch,
            "train_end": self._end,
        }
        for name in sorted(self._connected):
            for event in FIRED[name]:
                self.foreign_hooks.setdefault(event, []).append(name)
                hooks.setdefault(event, getattr(self, f"_at_{event}", partial(self._fire, name)))
        for event, hook in hooks.items():
            setattr(self, f"on_{event}", hook)

    def _has_handlers(self, name: str) -> bool:
        return bool(self.callback._event_handlers.get(self._events[name]))

    def begin(self, run: Run, host: IgniteHost) -> None:
        self._check_handlers()
        self._find_stateful()

    def _check_handlers(self) -> None:
        """Raise if an event has its first handler since this adapter was made: it would not be called."""
        for name in FIRED:
            if name not in self._connected and self._has_handlers(name):
                raise RegistrationError(
                    f"{self.name} of ignite got its first handler for Events.{name} too late. Attach handlers before "
                    f"you pass the engine to Hookline."
                )

    # -- events ----------------------------------------------------------------------------------

    def _fire(self, name: str, run: Run, *values: Any) -> None:
        """Fire an event of the engine, and do what its handlers ask for."""
        engine, was_training = self.callback, run.model.training
        engine._fire_event(self._events[name], *values)
        if run.model.training is not was_training:
            self.run_host.restore_modes()
        if engine.should_terminate_single_epoch or engine.should_interrupt:
            call = "terminate_epoch" if engine.should_terminate_single_epoch else "interrupt"
            raise SetupError(
                f"{self.name} of ignite: a handler called engine.{call}(), and Hookline cannot leave an epoch. Call "
                f"engine.terminate()."
            )
        if engine.should_terminate and run.ending is None:
            run.stop(f"{self.name} called engine.terminate()")

    def _start(self, run: Run) -> None:
        engine, clock, limit = self.callback, run.clock, run.max_duration
        engine.should_terminate = engine.should_terminate_single_epoch = engine.should_interrupt = False
        state, batches = engine.state, run.num_batches("train")
        state.epoch, state.iteration = self.run_host.epoch, clock.batch
        state.epoch_length, state.dataloader = batches, run.loaders.get("train")
        state.max_epochs = state.max_iters = state.batch = state.output = None
        if limit is not None and limit.unit == "ep":
            state.max_epochs = limit.value
        elif limit is not None and limit.unit == "st":
            state.max_iters = limit.value * run.accumulate
        self._started = self._epoch_started = time.time()
        self._fire("STARTED", run)
        for name, saved in self._loaded.items():  # Handlers of STARTED reset what a checkpoint has restored.
            self._stateful[name].load_state_dict(saved)
        self._loaded = {}

    def _start_epoch(self, run: Run) -> None:
        self._check_handlers()
        state = self.callback.state
        state.epoch, state.iteration = self.run_host.epoch, run.clock.batch
        self._epoch_started = time.time()
        self._fire("EPOCH_STARTED", run)

    def _at_batch_fetch_start(self, run: Run) -> None:
        if run.stage == "train":
            self.callback.state.batch = None
            self._fire("GET_BATCH_STARTED", run)

    def _at_batch_fetch_end(self, run: Run) -> None:
        if run.stage == "train":
            self.callback.state.batch, self.callback.state.output = run.batch, None
            self._fire("GET_BATCH_COMPLETED", run)

    def _at_train_batch_start(self, run: Run) -> None:
        state = self.callback.state
        state.iteration, state.batch, state.output = run.clock.batch + 1, run.batch, None
        self._fire("ITERATION_STARTED", run)

    def _at_train_batch_end(self, run: Run) -> None:
        if not run.window_is_full:
            self._end_iteration(run, run.clock.batch + 1)

    def _at_train_step_end(self, run: Run) -> None:
        self._end_iteration(run, run.clock.batch)

    _at_step_skipped = _at_train_step_end

    def _end_iteration(self, run: Run, iteration: int) -> None:
        state = self.callback.state
        state.iteration, state.batch, state.output = iteration, run.batch, run.loss.detach()
        self._fire("ITERATION_COMPLETED", run)

    def _end_epoch(self, run: Run) -> None:
        """Fire the event after the evaluation of the epoch, unless the epoch was left."""
        state = self.callback.state
        state.iteration = run.clock.batch
        if run.clock.epoch < state.epoch or self.callback.should_terminate or is_cut(run):
            return
        state.metrics.update({self.names.theirs(name): value for name, value in run.metrics.items()})
        state.times["EPOCH_COMPLETED"] = time.time() - self._epoch_started
        self._fire("EPOCH_COMPLETED", run)

    def _end(self, run: Run) -> None:
        if is_cut(run):
            return
        engine, state = self.callback, self.callback.state
        state.iteration, state.times["COMPLETED"] = run.clock.batch, time.time() - self._started
        if state.max_iters is not None and state.iteration >= state.max_iters:
            engine.should_terminate = True  # As ignite does after that many iterations.
        if engine.should_terminate:
            self._fire("TERMINATE", run)
        if engine.should_terminate != "skip_completed":
            self._fire("COMPLETED", run)

    def _at_exception(self, run: Run) -> None:
        self._fire("EXCEPTION_RAISED", run, run.exception)

    def _at_interrupt(self, run: Run) -> None:
        self._fire("EXCEPTION_RAISED", run, KeyboardInterrupt())

    # -- state -----------------------------------------------------------------------------------

    def _find_stateful(self) -> None:
        """Find the handlers with a state, and the objects that the user has given with ``args``."""
        found = dict(self.args or {})
        known = [id(its) for its in found.values()]
        for handler in _handlers(self.callback):
            if id(handler) not in known and hasattr(handler, "state_dict") and hasattr(handler, "load_state_dict"):
                known.append(id(handler))
                found[f"{type(handler).__name__}_{len(known)}"] = handler
        self._stateful = found

    @property
    def declares_state(self) -> bool:
        return bool(self._stateful)

    def state_dict(self) -> dict[str, Any]:
        return {name: dict(its.state_dict()) for name, its in self._stateful.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = {name: saved for name, saved in state.items() if name in self._stateful}


def _handlers(engine: Any) -> Iterator[Any]:
    """The objects that handle events of an engine, without the wrappers of filtered events."""
    for handlers in list(engine._event_handlers.values()):
        for function, _, _ in handlers:
            function = function._parent() if hasattr(function, "_parent") else function
            owner = getattr(function, "__self__", function)
            if owner is not engine:
                yield owner
