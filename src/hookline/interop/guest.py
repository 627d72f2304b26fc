"""``Guest``: callbacks of Hookline in a run that another library's trainer drives.

How to add a library: write a ``GuestHost`` that answers for its trainer, and one callback of the library whose hooks
call ``Guest.open``, ``send``, ``enter`` and ``leave``. ``lacks`` names the events that it never sends, so that a
callback that waits for one of them is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from hookline.errors import NotAvailableError, RegistrationError
from hookline.events import Callback, Line, Messages, Scopes, check_callbacks
from hookline.events.validate import overridden
from hookline.progress import Clock, Duration
from hookline.records import MetricRow
from hookline.run import Ending, History, Requests, Run, RunState

NEEDS_ENGINE = frozenset({"add_save_plan", "limit_batches", "listen_to_signals", "trial"})
"""Methods of ``run`` that only Hookline's loop has, and that a callback calls before the first step."""


class GuestHost(Protocol):
    """Facts that a trainer of another library gives about its run."""

    library: str
    model: torch.nn.Module
    device: torch.device
    rank: int
    world_size: int
    folder: Path | None
    max_duration: Duration | None
    eval_every: Duration | None
    log_every: Duration | None
    precision: str
    optimizers: dict[str, torch.optim.Optimizer]
    loaders: dict[str, Any]

    def metrics(self) -> Mapping[str, Any]:
        """Return the newest metrics of the trainer, with the names of Hookline: numbers or tensors."""

    def log(self, values: Mapping[str, Any]) -> None:
        """Log metrics of callbacks, which have the names of Hookline."""

    def stop(self) -> None:
        """Ask the trainer to stop."""

    def accumulate(self) -> int:
        """Return the number of batches that make one step."""

    def num_batches(self, stage: str) -> int | None:
        """Return the number of batches of an epoch or an evaluation."""

    def reduce(self, value: Any, op: str) -> Any:
        """Return the sum, mean, maximum or minimum over the ranks."""


class Guest:
    """Callbacks of Hookline, and the state of a run that has no engine.

    Args:
        callbacks: The callbacks.
        library: Name of the library that drives the run.
        lacks: Events and scopes that the library's trainer does not have.

    Raises:
        RegistrationError: If a callback is invalid, or needs what the trainer does not have.
    """

    def __init__(self, callbacks: Iterable[object], library: str, lacks: frozenset[str]) -> None:
        self.callbacks = list(callbacks)
        check_callbacks(self.callbacks)
        for callback in self.callbacks:
            _refuse_unsent(callback, library, lacks)
        self.clock, self.requests = Clock(), Requests()
        self._marks: dict[str, int] = {}

    def open(self, host: GuestHost, entry_point: str, *, is_new: bool = False) -> None:
        """Begin a run: register the callbacks for this rank and send ``setup``.

        Args:
            host: The trainer.
            entry_point: ``"fit"``, ``"evaluate"``, ``"test"`` or ``"predict"``.
            is_new: True if the trainer trains from scratch. Clock and callbacks then also start from scratch.
        """
        if is_new and self.clock.step:
            self.clock = Clock()
        self.host = host
        self.requests.clear()
        self.line: Line[Run] = Line(
            lambda member: Run(self.state, member),
            where=lambda: self.state.where(),
            stop=lambda reason, by: self.state.ask_stop(reason, by.name),
            rank=host.rank,
            world_size=host.world_size,
        )
        self.metrics = GuestMetrics(self)
        self.state = RunState(
            line=self.line,
            requests=self.requests,
            metrics=self.metrics,
            answers=GuestAnswers(self),
            media=_Refusing(host.library, "run.log_"),
            loop=_Refusing(host.library, "run.loop."),
            model=host.model,
            device=host.device,
            project=host.library,
            name=host.library,
            folder=host.folder,
            started=datetime.now().astimezone(),
            config={},
            max_duration=host.max_duration,
            clock=self.clock,
            history=History(),
            messages=Messages(),
            optimizers=host.optimizers,
            schedulers=[],
            loaders=host.loaders,
            entry_point=entry_point,
            rank=host.rank,
            world_size=host.world_size,
        )
        self.scopes = Scopes(self.line)
        self.line.add(self.callbacks)
        if self.state.in_fit:
            for member in self.line.members:
                self.line.begin_training(member, self.clock)
        self.clock.start()
        self.send("setup")

    def send(self, *events: str) -> None:
        """Send events, and ask the trainer to stop if a callback has asked for it."""
        for event in events:
            self.line.emit(getattr(self.line.hooks, event))
        if self.requests.agreed.stop is not None:
            self.host.stop()

    def enter(self, scope: str, *events: str) -> None:
        """Open a scope and send the events at its beginning."""
        self._marks[scope] = len(self.scopes)
        self.scopes.enter(getattr(self.line.hooks, f"around_{scope}"))
        self.send(*events)

    def leave(self, scope: str, *events: str) -> None:
        """Send the events at the end of a scope and close it."""
        self.send(*events)
        if scope in self._marks:
            self.scopes.leave(self._marks.pop(scope))

    def fail(self, error: BaseException) -> None:
        """Close all scopes because of an error, and send ``exception``, or ``interrupt`` after Ctrl-C."""
        self.scopes.leave(because=error)
        self._marks.clear()
        if isinstance(error, KeyboardInterrupt):
            self.state.ask_stop("keyboard interrupt", "the user", interrupt=True, by_user=True)
            self.line.emit(self.line.hooks.interrupt)
            return
        self.state.fail(error)
        with self.state.failed_at(error, self.state.stage):
            self.line.emit(self.line.hooks.exception)

    def show_stage(self, stage: str) -> None:
        """Show another stage on ``run``, and no batch."""
        self.state.stage = stage
        self.state.clear_batch()

    def state_dict(self) -> dict[str, Any]:
        """Return the clock and the states of the callbacks, for the trainer's checkpoint."""
        states = {its.state_key: its.state_dict() for its in self.callbacks if isinstance(its, Callback)}
        return {"clock": self.clock.state_dict(), "callbacks": {key: state for key, state in states.items() if state}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.clock.load_state_dict(state["clock"])
        for callback in self.callbacks:
            if isinstance(callback, Callback) and callback.state_key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][callback.state_key])


class GuestMetrics:
    """Metrics of the trainer and of the callbacks, with the names of Hookline."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._logged: dict[str, tuple[Any, int]] = {}
        self._evaluated_at: int | None = None

    def log(self, values: Any, weight: Any, reduce: str, step: int | None, by: Run) -> None:
        """Log the newest value of each metric: the trainer knows no intervals."""
        stage, now = self._guest.state.stage, self._guest.clock.step
        found = {
            name if "/" in name else f"{stage}/{name}": value.detach() if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        self._logged |= {name: (value, now) for name, value in found.items()}
        self._guest.host.log(found)

    def value(self, name: str) -> Any:
        return float(self._logged[name][0] if name in self._logged else self._guest.host.metrics()[name])

    def names(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._logged, *self._guest.host.metrics()]))

    def measured_at(self, name: str) -> int | None:
        if name in self._logged:
            return self._logged[name][1]
        if name not in self._guest.host.metrics():
            return None
        return self._evaluated_at if name.startswith("val/") else self._guest.clock.step

    def measured_now(self, *, pending: bool = False) -> dict[str, float]:
        return {name: self.value(name) for name in self.names() if self.measured_at(name) == self._guest.clock.step}

    def rename(self, old: str, new: str, *, keep: bool = False) -> None:
        raise _not_here(self._guest.host.library, "run.rename_metric()")

    def record(self, kind: str) -> None:
        """Add the newest metrics to ``run.history``.

        Args:
            kind: ``"step"`` for those of training, ``"eval"`` for those of an evaluation.
        """
        clock, state = self._guest.clock, self._guest.state
        if kind == "eval":
            self._evaluated_at = clock.step
        for name, value in self.measured_now().items():
            if name.startswith("val/") is (kind == "eval"):
                row = MetricRow(name, clock.step, clock.epoch, value, kind, clock.seconds)  # type: ignore[arg-type]
                state.history.record(row)


class _Refusing:
    """Stands for a part of Hookline's loop that the run does not have. Every attribute raises."""

    def __init__(self, library: str, what: str) -> None:
        self._library, self._what = library, what

    def __getattr__(self, name: str) -> Any:
        raise _not_here(self._library, f"{self._what}{name}")


class GuestAnswers(_Refusing):
    """Answers to ``run`` in a run without an engine. All other methods raise."""

    def __init__(self, guest: Guest) -> None:
        super().__init__(guest.host.library, "run.")
        self._guest, self._host = guest, guest.host
        self._raw: dict[str, Tensor] = {}

    def raw_weights(self) -> dict[str, Tensor]:
        return {**self._host.model.state_dict(), **self._raw}

    @contextmanager
    def swap_weights(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        own = self._host.model.state_dict()
        self._raw = {name: own[name].clone() for name in weights}
        try:
            _copy(weights, own)
            yield
        finally:
            _copy(self._raw, own)
            self._raw = {}

    def prediction_weights(self) -> AbstractContextManager[None]:
        return nullcontext()

    def accumulate(self) -> int:
        return self._host.accumulate()

    def check_max_duration(self, duration: Duration | None) -> None:
        """Do nothing: the other trainer has its own intervals."""

    def window_is_full(self) -> bool:
        return (self._guest.clock.batch_in_epoch + 1) % self._host.accumulate() == 0

    def num_batches(self, stage: str, loader: Any) -> int | None:
        return self._host.num_batches(stage)

    def batch_size(self, batch: Any) -> int:
        return samples_in(batch)

    def interval_may_end(self) -> bool:
        return True

    def eval_every(self) -> Duration | None:
        return self._host.eval_every

    def log_every(self) -> Duration | None:
        return self._host.log_every

    def precision(self) -> str:
        return self._host.precision

    def reduce(self, value: Any, op: str) -> Any:
        return value if self._host.world_size == 1 else self._host.reduce(value, op)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors if self._host.world_size > 1 else ():
            torch.distributed.broadcast(tensor, 0)

    def is_sharded(self) -> bool:
        return False

    def data_parallel_size(self) -> int:
        return self._host.world_size

    def is_padding(self) -> bool:
        return False

    def padding_counts(self) -> AbstractContextManager[None]:
        return nullcontext()

    def eval_shard(self) -> None:
        return None

    def will_resume(self) -> bool:
        return False

    def log_event(self, name: str, text: str) -> None:
        """Nothing to do: the run has no timeline."""

    def ending(self) -> Ending | None:
        state, stop = self._guest.state, self._guest.requests.agreed.stop
        if state.failure is not None:
            return Ending("error", str(state.failure), None, state.clock.step, can_resume=True)
        if stop is not None:
            return Ending("interrupt" if stop.interrupt else "stop", stop.reason, stop.by, stop.step, stop.goes_on)
        if self._guest.requests.is_trained:
            return Ending("duration", "the trainer has ended", None, state.clock.step, can_resume=False)
        return None


def samples_in(batch: Any) -> int:
    """Return the number of samples in a batch: the first dimension of its first tensor."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((count for count in map(samples_in, parts) if count), 0)


def _copy(weights: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in weights.items():
            into[name].copy_(tensor)


def _not_here(library: str, what: str) -> NotAvailableError:
    return NotAvailableError(f"{what}: {library} drives this run, and not Hookline. Use hl.fit for this callback.")


def _refuse_unsent(callback: Any, library: str, lacks: frozenset[str]) -> None:
    """Raise if a callback waits for an event that the trainer never sends, or needs Hookline's loop."""
    name = getattr(callback, "name", "") or type(callback).__name__
    only = getattr(callback, "event", None)  # Of hl.on.
    for event in sorted(lacks):
        if event == only or (only is None and overridden(callback, _hook(event))):
            raise RegistrationError(
                f"{name}.{_hook(event)}: {library} has no such event. Use hl.fit for this callback."
            )
    for cls in type(callback).__mro__:
        for function in vars(cls).values():
            needed = NEEDS_ENGINE.intersection(getattr(getattr(function, "__code__", None), "co_names", ()))
            if needed:
                raise RegistrationError(
                    f"{name} calls run.{min(needed)}(): {library} drives this run, and not Hookline. Use hl.fit for "
                    f"this callback."
                )


def _hook(event: str) -> str:
    return event if event.startswith("around_") else f"on_{event}"
