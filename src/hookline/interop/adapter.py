"""``Adapter``: one callback of another library; ``Host``: what all callbacks of one library share in a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, Self

import torch

from hookline.errors import RegistrationError
from hookline.events import Callback
from hookline.events.foreign import FOREIGN_HOOKS
from hookline.events.foreign_classes import CALLBACKS, MODELS
from hookline.interop.names import MetricNames
from hookline.interop.plain_state import PlainState
from hookline.run import Run

Hook = Callable[[Run], None]

NO_GRADIENTS: Final = frozenset(
    {"enable_grad", "no_grad", "requires_grad", "requires_grad_", "set_grad_enabled", "zero_grad"}
)
"""Names with ``grad`` that read no gradient."""
NAN_HANDLERS: Final = frozenset({"TerminateOnNaN", "TerminateOnNaNCallback"})
"""Callbacks that end a run whose loss is not finite."""


class Host(Callback):
    """The object that all callbacks of one library share in a run, such as the trainer that they see.

    A run has one host per library, before all adapters of that library. Its hooks keep the books. It declares that it
    logs nothing: the check for metrics that no callback logs would be skipped otherwise.
    """

    writes = ()
    library: ClassVar[str]
    shows: ClassVar[str]
    """Name of the object that its callbacks see, such as ``"the trainer"``."""

    run: Run
    """The ``run`` of the callback that is called now, so that a request for a stop names that callback."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        """Set all fields as they are before a run."""
        self.aliases: dict[str, str] = {}
        """Metrics of Hookline by other names: those that the user gave with ``hl.interop.adapt``, or logged."""

    @classmethod
    def of(cls, run: Run) -> Self:
        """Return the host of a run.

        Args:
            run: The run.
        """
        return next(callback for callback in run.callbacks if type(callback) is cls)

    def on_setup(self, run: Run) -> None:
        self._start()
        self.serve(run)

    def serve(self, run: Run) -> None:
        """Act for this callback from now on.

        Args:
            run: The ``run`` of the callback.
        """
        self.run = run

    def __repr__(self) -> str:
        return f"{self.library}: {self.shows} that its callbacks see"


class Adapter(Callback):
    """A callback of another library as a callback of Hookline.

    It has the hooks that the callback overrides, and no others. They are called at the events of
    ``events/foreign.py``.

    Args:
        callback: The callback of the other library.
        name: Name in messages and checkpoints. The default is the name of the callback's class.
        names: Names of metrics that come before the rule of the library.
        optional: True if Hookline disables the callback when it fails.
        args: Settings object of the other library.

    Raises:
        RegistrationError: If the callback cannot work in Hookline.
    """

    library: ClassVar[str]
    """Name of the library in ``events/foreign.py``."""
    host: ClassVar[type[Host]]
    rule: ClassVar[MetricNames]
    """Names of metrics in the library."""
    refused: ClassVar[Mapping[str, str]] = {}
    """Classes of callbacks that cannot work, each with the reason and what to use instead."""
    set_by_run: ClassVar[tuple[str, ...] | None] = None
    """Attributes that a run sets, in a library that saves no state of callbacks: all others are the state."""
    state_depends_on = ("kind",)

    def __init__(
        self,
        callback: Any,
        *,
        name: str = "",
        names: Mapping[str, str] | None = None,
        optional: bool = False,
        args: Any = None,
    ) -> None:
        kind = type(callback)
        self.classes = [cls.__name__ for cls in kind.__mro__]
        for cls in self.classes:
            if cls in self.refused:
                raise RegistrationError(f"{kind.__name__} of {self.library}: {self.refused[cls]}")
        self.callback, self.args = callback, args
        self.base: Any = next(cls for cls in kind.__mro__ if (cls.__module__, cls.__name__) in (CALLBACKS | MODELS))
        self.plain_state = None if self.set_by_run is None else PlainState(callback, self.set_by_run)
        self.handles_nan = not NAN_HANDLERS.isdisjoint(self.classes)  # type: ignore[misc]
        self.kind = f"{self.library}:{kind.__qualname__}"
        self.name = name or kind.__name__
        self.is_named = bool(name)
        self.optional = optional
        self.names = replace(self.rule, given=dict(names or {}))
        self.after = (self.host,)
        self.reads = tuple(self.monitored())
        self.foreign_hooks: dict[str, list[str]] = {}
        """The hooks of the callback that are called at an event of Hookline."""
        self._at_setup: list[Hook] = []
        self._connect()

    # -- what a library defines ----------------------------------------------------------------

    @classmethod
    def instance_of(cls, kind: type) -> Any:
        """Return an instance of a class that the user gave in place of one. By default, raise.

        Args:
            kind: The class.
        """
        raise RegistrationError(f"{kind.__name__} is a class, not a callback; write {kind.__name__}(…)")

    def overrides(self, hook: str) -> bool:
        """True if the callback defines a hook, so that Hookline must call it."""
        ours = getattr(self.callback, hook, None)
        return ours is not None and getattr(ours, "__func__", ours) is not getattr(self.base, hook, None)

    def caller(self, hook: str, event: str) -> Hook:
        """Return the function of ``run`` that calls a hook with the arguments of its library.

        Args:
            hook: Name of the hook.
            event: The event at which it is called.
        """
        raise NotImplementedError

    def begin(self, run: Run, host: Any) -> None:
        """Prepare for a run, before the first hook.

        Args:
            run: The run.
            host: The host of the run.
        """

    def monitored(self) -> Iterable[str]:
        """Return the metrics that the callback monitors, with the names of Hookline.

        A name without a slash can be any metric, which the callback finds or not.
        """
        monitor = getattr(self.callback, "monitor", None)
        ours = self.names.ours(monitor) if isinstance(monitor, str) else ""
        return (ours,) if "/" in ours else ()

    @property
    def monitors_evaluation(self) -> bool:
        """True if the callback monitors a metric of an evaluation, which an epoch has only after its evaluation."""
        return any(name.startswith(("val/", "test/")) for name in self.reads)

    # -- how -----------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Set one hook for each event at which a hook of the callback is called."""
        calls: dict[str, list[Hook]] = {}
        for row in FOREIGN_HOOKS:
            if row.system == self.library and row.fired and self.overrides(row.hook):
                for event in row.fired:
                    calls.setdefault(event, []).append(self.caller(row.hook, event))
                    self.foreign_hooks.setdefault(event, []).append(row.hook)
        self._at_setup = calls.pop("setup", [])
        for event, hooks in calls.items():
            setattr(self, f"on_{event}", hooks[0] if len(hooks) == 1 else _in_turn(hooks))

    def on_setup(self, run: Run) -> None:
        self.run_host: Any = self.host.of(run)
        self.run_host.serve(run)
        self.run_host.aliases.update(self.names.given)
        if self.plain_state is not None:
            self.plain_state.start()
        self.begin(run, self.run_host)
        for hook in self._at_setup:
            hook(run)

    def show_gradients_at(self, event: str, event_of_epoch: str, *, is_last_step: Callable[[Run], bool]) -> None:
        """Show the gradients after the update, as libraries do that clear them in the next batch.

        Args:
            event: The event after an update.
            event_of_epoch: The last event of an epoch at which the gradients are there.
            is_last_step: True if the gradients of this step are there at ``event_of_epoch``.
        """
        kept: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        after = getattr(self, "on_optimizer_step_end", None)

        def keep(run: Run) -> None:
            parameters = [parameter for group in run.optimizer.param_groups for parameter in group["params"]]
            kept.extend((its, its.grad) for its in parameters if its.grad is not None)
            if after is not None:
                after(run)

        def showing(inner: Hook, is_last: Callable[[Run], bool]) -> Hook:
            def show(run: Run) -> None:
                for parameter, gradient in kept:
                    parameter.grad = gradient
                inner(run)
                for parameter, _ in kept:
                    parameter.grad = None
                if is_last(run):
                    kept.clear()

            return show

        of_epoch = event_of_epoch in self.foreign_hooks
        if of_epoch:
            vars(self)[f"on_{event_of_epoch}"] = showing(getattr(self, f"on_{event_of_epoch}"), lambda run: True)
        hook = getattr(self, f"on_{event}") if event in self.foreign_hooks else _nothing
        vars(self)[f"on_{event}"] = showing(hook, lambda run: not (of_epoch and is_last_step(run)))
        vars(self)["on_optimizer_step_end"] = keep

    def restore_plain_state(self) -> None:
        """Load the state again, after the first hook of training, which resets what a checkpoint has restored."""
        if self.plain_state is not None:
            self.plain_state.restore()

    def reset_state(self) -> None:
        """Keep the state: callbacks of other libraries reset themselves in their hooks, or never."""

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint: the library, and the callback's own key."""
        return f"{self.kind}[{self.name}]" if self.is_named else self.kind

    @property
    def declares_state(self) -> bool:
        return self.plain_state is not None and self.plain_state.has_attributes

    def state_dict(self) -> dict[str, Any]:
        return {} if self.plain_state is None else self.plain_state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.plain_state is not None:
            self.plain_state.load_state_dict(state)

    def __repr__(self) -> str:
        return self.state_key


def _in_turn(hooks: list[Hook]) -> Hook:
    def call(run: Run) -> None:
        for hook in hooks:
            hook(run)

    return call


def _nothing(run: Run) -> None:
    """Do nothing."""


def reads_gradients(classes: Iterable[type]) -> bool:
    """True if a method of one of the classes names a gradient, such as ``parameter.grad`` or ``grad_norm(…)``.

    Args:
        classes: Classes of a callback.
    """
    waiting: list[Any] = [
        value.__code__ for cls in classes for value in vars(cls).values() if inspect.isfunction(value)
    ]
    while waiting:
        code = waiting.pop()
        if any("grad" in name and name not in NO_GRADIENTS for name in code.co_names):
            return True
        waiting += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return False


def is_last_batch(run: Run) -> bool:
    """True after the last batch of an epoch, if the length of the loader is known.

    Args:
        run: The run.
    """
    batches = run.num_batches("train")
    return batches is not None and run.clock.batch_in_epoch >= batches


def is_cut(run: Run) -> bool:
    """True after Ctrl-C or a signal. In other libraries these are exceptions, after which no hook of an end is called.

    Args:
        run: The run.
    """
    return run.ending is not None and run.ending.kind in ("interrupt", "signal")
