"""The line: the callbacks of one run, compiled into one tuple of hooks per event.

``hooks.<event>`` is a tuple of ``(hook, run)`` pairs. It contains only overridden hooks, so an event without hooks
costs one truth test. Each callback has its own ``run``, which knows the callback. A request for a stop therefore names
its author, and Hookline can refuse it, without bookkeeping while hooks run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hookline.errors import Preempted, RegistrationError, SetupError, StopTraining, error_text
from hookline.events.callback import Callback, Ranks, begin_training, callback_name, check_state
from hookline.events.cost import Cost, CostRow, Sampler, Timed
from hookline.events.order import Order, sort
from hookline.events.spec import BY_NAME, SCOPES, STEP_EVENTS, Event
from hookline.events.validate import check_hooks, check_kind, known_events, overridden, suggestion
from hookline.events.when import FunctionCallback, Gate

View = TypeVar("View")


class Heard(tuple[tuple[Callable[..., Any], Any], ...]):
    """``(hook, run)`` pairs of one event, in order. Empty if no callback has a hook for it."""

    event: str

    def only(self, wanted: Callable[[Any], bool]) -> Heard:
        """Return the pairs of some callbacks.

        Args:
            wanted: Function of the ``run`` of a callback.
        """
        found = Heard(pair for pair in self if wanted(pair[1]))
        if found:
            found.event = self.event
        return found


NOBODY = Heard()
"""Value of every event without hooks. One shared object stays in the CPU cache."""


class Table:
    """One ``Heard`` per event and scope: ``table.train_step_end``, ``table.around_eval``.

    Built-in events are slots, which are adjacent in memory, because a step reads about twenty of them.
    """

    __slots__ = (*BY_NAME, *(scope.hook for scope in SCOPES), "__dict__")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Heard: ...


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of an optional callback, which Hookline then disabled."""

    callback: str
    hook: str
    where: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.callback}.{self.hook} failed at {self.where}: {error_text(self.error)}"


class Member(Generic[View]):
    """Registered callback or task, with its own ``run`` and its compiled hooks.

    Args:
        callback: The callback or task.
        is_task: True for a task.
    """

    __slots__ = ("callback", "calls", "disabled", "is_task", "key", "name", "optional", "view")

    view: View

    def __init__(self, callback: Any, *, is_task: bool = False) -> None:
        self.callback = callback
        self.is_task = is_task
        self.name = callback_name(callback)
        self.key = callback.state_key if isinstance(callback, Callback) else self.name
        self.optional = bool(getattr(callback, "optional", False))
        self.disabled = False
        self.calls: dict[str, list[Callable[..., Any]]] = {}

    def hooks_for(self, event: Event) -> list[Callable[..., Any]]:
        """Return the callables for an event. They are cached, because a ``Gate`` has state."""
        if event.name not in self.calls:
            self.calls[event.name] = list(self._find(event))
        return self.calls[event.name]

    def hears(self, event: Event) -> bool:
        """True if the callback has a hook for this event, apart from ``on_event``."""
        if isinstance(self.callback, FunctionCallback):
            return self.callback.event == event.name
        return overridden(self.callback, event.hook) is not None

    def _find(self, event: Event) -> Iterator[Callable[..., Any]]:
        callback = self.callback
        if (any_event := overridden(callback, "on_event")) is not None:
            yield _any_event(any_event, event)
        if self.hears(event):
            if not isinstance(callback, FunctionCallback):
                yield getattr(callback, event.hook)
            elif callback.when.always:
                yield callback.function
            else:
                yield Gate(callback.when, callback.function)


class Line(Generic[View]):
    """Register, sort, compile and call the hooks of one run.

    Args:
        view: Function that makes the ``run`` of a member.
        where: Function that returns the current position in the run, for messages.
        stop: Function that gets the reason and the callback when a hook raises ``StopTraining``.
        rank: Rank of this process.
        local_rank: Rank of this process on its node.
        world_size: Number of processes.
        guard: Function that wraps the hooks of callbacks that run on some ranks only.
    """

    def __init__(
        self,
        view: Callable[[Member[View]], View],
        *,
        where: Callable[[], str],
        stop: Callable[[str, Member[View]], None],
        rank: int = 0,
        local_rank: int = 0,
        world_size: int = 1,
        guard: Callable[[Callable[..., Any], str, str, object], Callable[..., Any]] | None = None,
    ) -> None:
        self._view = view
        self._where = where
        self._stop = stop
        self._rank = rank
        self._local_rank = local_rank
        self._world_size = world_size
        self._guard = guard
        self._costs: dict[tuple[str, str, str], Cost] = {}  # The keys are name, state key and hook.
        self._fatal: Exception | None = None
        self.members: list[Member[View]] = []
        self.known: dict[str, Event] = dict(BY_NAME)
        self.order = Order(())
        self.gradient_order = Order(())
        self.failures: list[Failure] = []
        self._expected: set[str] = set()
        self.sampler = Sampler()
        self.fast = Table()
        self.timed = Table()
        self.hooks = self.fast
        self.silent = Table()
        self._compile()

    # -- registration ------------------------------------------------------------------------

    def add(self, callbacks: Iterable[object], *, task: object | None = None) -> list[Member[View]]:
        """Register callbacks, or none of them if one is invalid. They get the next event.

        Args:
            callbacks: The callbacks to register.
            task: The task of the run, if it is not registered yet.

        Returns:
            The new members.

        Raises:
            RegistrationError: If a callback or the order of all callbacks is invalid.
        """
        new: list[Member[View]] = [] if task is None else [Member(task, is_task=True)]
        present = [member.callback for member in self.members]
        new += [Member(callback) for callback in _with_hosts(map(check_kind, callbacks), present)]
        if not new:
            return new
        members = self.members + new
        known, order, gradient_order = _check(members, new, world_size=self._world_size)
        for member in new:
            if self._rank == 0:
                _warn_of_missing_ranks(member, self._world_size)
            member.view = self._view(member)
        self.members, self.known, self.order, self.gradient_order = members, known, order, gradient_order
        self._compile()
        return new

    def remove(self, member: Member[View]) -> None:
        """Remove a callback. It gets no event after the current one."""
        self.members = [other for other in self.members if other is not member]
        self._drop(member)

    def _drop(self, member: Member[View]) -> None:
        # Sorting again could raise: two callbacks may be ordered only through the one that is removed.
        self.order = self.order.without(member.callback)
        self.gradient_order = self.gradient_order.without(member.callback)
        self._compile()

    def begin_training(self, member: Member[View], clock: object) -> None:
        """Reset a callback before a training run, if it was last used by another one.

        An optional callback that fails here is disabled.

        Args:
            member: The callback.
            clock: The clock of the run, which identifies the run.
        """
        if member.is_task:
            return
        try:
            begin_training(member.callback, clock)
        except Exception as error:
            if not self.tolerates(member.view, "reset_state", error):
                raise

    def check_states(self, only: Member[View] | None = None) -> None:
        """Check the attributes in ``state`` of the callbacks on this rank, after ``setup``.

        Args:
            only: The callback to check. ``None``: all callbacks.

        Raises:
            RegistrationError: If a callback does not have an attribute. Otherwise the first checkpoint would fail.
        """
        for member in self.ordered(self.order):
            if (
                not member.is_task
                and only in (None, member)
                and type(member.callback).state_dict is Callback.state_dict
            ):
                check_state(member.callback)

    # -- compilation -------------------------------------------------------------------------

    def _compile(self) -> None:
        members = self.ordered(self.order)
        self._fill(self.fast, members, timed=False)
        self._fill(self.timed, members, timed=True)
        self._fill(self.silent, ())
        self.sampler.needed = any(getattr(self.fast, name) for name in STEP_EVENTS)

    def ordered(self, order: Order) -> tuple[Member[View], ...]:
        """Return the members that run on this rank: the task, then the callbacks in order."""
        by_id = {id(member.callback): member for member in self.members}
        members = [member for member in self.members if member.is_task]
        members += [by_id[id(callback)] for callback in order.callbacks]
        return tuple(m for m in members if runs_on(m.callback, self._rank, self._local_rank))

    def _fill(self, table: Table, members: tuple[Member[View], ...], *, timed: bool = False) -> None:
        if not members:
            for name in (*self.known, *(scope.hook for scope in SCOPES)):
                setattr(table, name, NOBODY)
            return
        gradient_members = self.ordered(self.gradient_order)
        for event in self.known.values():
            heard = Heard(
                (
                    Timed(hook, self._cost(member, event.hook)) if timed or event.name not in STEP_EVENTS else hook,
                    member.view,
                )
                for member in (gradient_members if event.name == "gradients_ready" else members)
                for hook in self._guarded(member, event.hook, member.hooks_for(event))
            )
            heard.event = event.name
            setattr(table, event.name, heard or NOBODY)
        # Callbacks that swap weights are outermost, so that all others see the swapped weights.
        outermost = sorted(members, key=lambda m: "weights" not in getattr(m.callback, "writes", ()))
        for scope in SCOPES:
            around = Heard(
                (guarded, m.view)
                for m in outermost
                if (hook := overridden(m.callback, scope.hook)) is not None
                for guarded in self._guarded(m, scope.hook, [hook])
            )
            around.event = scope.hook
            setattr(table, scope.hook, around or NOBODY)

    def _guarded(self, member: Member[View], name: str, hooks: list[Callable[..., Any]]) -> list[Callable[..., Any]]:
        ranks = getattr(member.callback, "ranks", "all")
        if self._guard is None or ranks == "all":
            return hooks
        return [self._guard(hook, member.name, name, ranks) for hook in hooks]

    def _cost(self, member: Member[View], hook: str) -> Cost:
        return self._costs.setdefault((member.name, member.key, hook), Cost())

    def written(self) -> set[str]:
        """Return all metrics and resources that callbacks and the task declare in ``writes``."""
        found = {name for member in self.members for name in getattr(member.callback, "writes", ())}
        return found | self._expected

    def expect(self, names: Iterable[str]) -> None:
        """Declare metrics that the loop logs at some evaluations only."""
        self._expected.update(names)

    # -- dispatch ----------------------------------------------------------------------------

    def time_hooks(self, timed: bool) -> None:
        """Time each hook from now on, or do not.

        Args:
            timed: True in the steps whose hooks are timed.
        """
        self.hooks = self.timed if timed else self.fast

    @contextmanager
    def heard_through(self, hooks: Table) -> Iterator[None]:
        """Use another table of hooks inside the block.

        Args:
            hooks: ``fast``, ``timed`` or ``silent``.
        """
        earlier, self.hooks = self.hooks, hooks
        try:
            yield
        finally:
            self.hooks = earlier

    def emit(self, heard: Heard) -> None:
        """Call the hooks of one event. Test ``if heard:`` first to save the function call."""
        for hook, run in heard:
            try:
                hook(run)
            except BaseException as error:
                if not self.tolerates(run, f"on_{heard.event}", error):
                    raise

    def emit_custom(self, event: str, payload: dict[str, object]) -> None:
        """Send an event by name with its payload, for ``run.emit``.

        Args:
            event: Name of the event.
            payload: Keyword arguments of the hooks.

        Raises:
            RegistrationError: If the event is unknown or declares another payload.
        """
        declared = self.known.get(event)
        if declared is None:
            raise RegistrationError(f"run.emit({event!r}): no such event{suggestion(event, self.known, prefix='')}")
        if set(payload) != set(declared.gives):
            raise RegistrationError(
                f"run.emit({event!r}) gives ({', '.join(payload)}), "
                f"but the event is declared with gives={declared.gives!r}"
            )
        for hook, run in getattr(self.hooks, event):
            try:
                hook(run, **payload)
            except BaseException as error:
                if not self.tolerates(run, f"on_{event}", error):
                    raise

    def emit_to_all(self, heard: Heard) -> list[BaseException]:
        """Call every hook even if others fail, and return the errors.

        The loop uses this method for ``exception`` and ``teardown``.
        """
        errors: list[BaseException] = []
        for hook, run in heard:
            try:
                self._call(hook, run, f"on_{heard.event}")
            except BaseException as error:
                errors.append(error)
        self._fatal = None  # The run is over, so release the frames of the error and their objects.
        return errors

    def _call(self, hook: Callable[..., Any], run: Any, name: str) -> None:
        try:
            hook(run)
        except BaseException as error:
            if not self.tolerates(run, name, error):
                raise

    def tolerates(self, run: Any, hook: str, error: BaseException) -> bool:
        """Handle an error in a hook. Return True if the run continues.

        ``StopTraining`` in a required callback becomes a stop request. An optional callback that fails is disabled.
        In all other cases the error gets a note with the hook and the position in the run.

        Args:
            run: The ``run`` of the callback that raised the error.
            hook: Name of the hook.
            error: The error.

        Returns:
            False if the caller must raise the error again.
        """
        member: Member[View] = run.member
        if not isinstance(error, Exception):  # Ctrl-C and sys.exit() are not failures, but other ranks show the note.
            if not isinstance(error, Preempted):  # A signal can arrive anywhere, so the position does not matter.
                error.add_note(f"in {member.name}.{hook} at {self._where()}")
            return False
        if isinstance(error, StopTraining) and not member.optional:
            self._stop(error.reason, member)
            return True
        # An invalid argument is a mistake of the user, who must see it before the first step, so it is never tolerated.
        # If a required callback fails in an event that an optional callback emits, the error is not tolerated either.
        mistake = hook == "on_setup" and isinstance(error, SetupError | RegistrationError)
        if not member.optional or mistake or error is self._fatal:
            self._fatal = error
            error.add_note(f"in {member.name}.{hook} at {self._where()}")
            return False
        self._disable(member, hook, error)
        return True

    def _disable(self, member: Member[View], hook: str, error: Exception) -> None:
        failure = Failure(member.name, hook, self._where(), error)
        self.failures.append(failure)
        if member.disabled:  # It failed again in an open scope or in the event that is being sent.
            return
        member.disabled = True
        import logging  # A local import saves 6 ms when the events are imported.

        logging.getLogger("hookline").warning(
            "%s; it is optional, so it is switched off and the run continues", failure, exc_info=error
        )
        self._drop(member)
        self.emit(self.hooks.callback_disabled)

    # -- costs -------------------------------------------------------------------------------

    def add_scope_cost(self, run: Any, hook: str, ns: int, calls: int) -> None:
        cost = self._cost(run.member, hook)
        cost.calls += calls
        cost.ns += ns

    def cost_of(self, who: str, what: str) -> Cost:
        """Return the cost of work that is not a hook, for a row in the cost table.

        Args:
            who: Label in the column of callbacks.
            what: Label in the column of hooks.
        """
        return self._costs.setdefault((who, who, what), Cost())

    def costs(self) -> tuple[CostRow, ...]:
        """Return the cost of each hook, most expensive first, scaled up from sampled steps."""
        share = self.sampler.seen / max(1, self.sampler.sampled)
        namesakes = Counter(name for name, _ in {(name, key) for name, key, _ in self._costs})
        rows = []
        for (name, key, hook), cost in self._costs.items():
            scale = share if hook.removeprefix("on_") in STEP_EVENTS else 1.0
            label = name if namesakes[name] == 1 else key
            rows.append(CostRow(label, hook, round(cost.calls * scale), cost.ns * scale / 1e9))
        return tuple(sorted((row for row in rows if row.calls), key=lambda row: -row.seconds))


def _with_hosts(callbacks: Iterable[Callback], present: Iterable[object]) -> Iterator[Callback]:
    """Put the host of a callback before it, unless the run has one."""
    hosts = {type(callback) for callback in present}
    for callback in callbacks:
        if callback.host is not None and callback.host not in hosts:
            hosts.add(callback.host)
            yield callback.host()
        yield callback


def check_callbacks(callbacks: Iterable[object]) -> None:
    """Raise the errors of ``Line.add`` that can be found without the task.

    Args:
        callbacks: The callbacks to check.

    Raises:
        RegistrationError: If a callback or the order of the callbacks is invalid.
    """
    members: list[Member[Any]] = [Member(check_kind(callback)) for callback in callbacks]
    _check(members, members, has_task=False)


def _check(
    members: list[Member[View]], new: list[Member[View]], *, world_size: int | None = None, has_task: bool = True
) -> tuple[dict[str, Event], Order, Order]:
    """Check the new members together with all members.

    Returns:
        The known events, the order of the callbacks, and their order at ``gradients_ready``.
    """
    _refuse_doubles(members)
    known = known_events(member.callback for member in members)
    for member in new:
        check_hooks(member.callback, known, has_task=has_task)
        _check_ranks(member, world_size)
    live = [member.callback for member in members if not (member.is_task or member.disabled)]
    return known, sort(live), sort(live, raw_gradients=True)


def runs_on(callback: object, rank: int, local_rank: int) -> bool:
    """True if the callback's ``ranks`` include this process."""
    ranks: Ranks = getattr(callback, "ranks", "all")
    if ranks == "all":
        return True
    if ranks == "zero":
        return rank == 0
    if ranks == "local_zero":
        return local_rank == 0
    return rank in ranks


def keeper_of(callback: object, world_size: int) -> int:
    """Return the first rank on which a callback runs. The state on that rank is saved."""
    ranks: Ranks = getattr(callback, "ranks", "all")
    return 0 if isinstance(ranks, str) else min((rank for rank in ranks if rank < world_size), default=0)


def _check_ranks(member: Member[Any], world_size: int | None) -> None:
    """Raise if ``ranks`` is invalid. ``world_size`` is ``None`` before the processes join."""
    ranks = getattr(member.callback, "ranks", "all")
    if ranks in ("all", "zero", "local_zero"):
        return
    if not isinstance(ranks, set | frozenset) or not ranks or not all(_is_rank(rank) for rank in ranks):
        raise RegistrationError(
            f"{member.name}.ranks = {ranks!r}; use 'all', 'zero', 'local_zero' or a set such as {{0, 2}}"
        )
    if world_size is not None and 1 < world_size <= min(ranks):
        raise RegistrationError(
            f"{member.name}.ranks = {ranks!r}: this run {_processes(world_size)}, so it would never run. Use ranks "
            f"that the run has."
        )


def _warn_of_missing_ranks(member: Member[Any], world_size: int) -> None:
    ranks: Ranks = getattr(member.callback, "ranks", "all")
    missing = [] if isinstance(ranks, str) else sorted(rank for rank in ranks if rank >= world_size)
    if not missing:
        return
    import logging  # A local import saves 6 ms when the events are imported.

    logging.getLogger("hookline").warning(
        "%s.ranks = %r: this run %s, so it does not run on rank %s",
        *(member.name, ranks, _processes(world_size), ", ".join(map(str, missing))),
    )


def _processes(world_size: int) -> str:
    return "is one process (rank 0)" if world_size == 1 else f"has {world_size} processes (ranks 0 to {world_size - 1})"


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _refuse_doubles(members: list[Member[Any]]) -> None:
    seen: list[Member[Any]] = []
    for member in members:
        if member.is_task:
            continue
        if any(other.callback is member.callback for other in seen):
            raise RegistrationError(
                f"{member.key} is in the list of callbacks twice; the same object can be there once"
            )
        if member.callback.declares_state and any(
            other.key == member.key and other.callback.declares_state for other in seen
        ):
            raise need_name(member)
        seen.append(member)


def need_name(member: Member[Any]) -> RegistrationError:
    """Return the error for two callbacks with equal arguments that both have a state."""
    is_foreign = member.callback.host is not None
    how = "hl.interop.adapt(callback, name='second')" if is_foreign else "callback.name = 'second'"
    return RegistrationError(
        f"two callbacks are both {member.key}; give one of them a name, so that a resume can tell them apart: {how}"
    )


def _any_event(hook: Callable[..., Any], event: Event) -> Callable[..., Any]:
    """Bind ``on_event`` to one event. Pass the payload only if the hook takes ``**kwargs``."""
    bound = partial(hook, event.name)
    if not event.gives or any(p.kind is Parameter.VAR_KEYWORD for p in signature(hook).parameters.values()):
        return bound
    return lambda run, **_: bound(run)
