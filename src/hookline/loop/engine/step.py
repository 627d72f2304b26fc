"""One batch and one step: backward, the window of batches that make a step, the update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hookline.errors import ScopeError, SetupError
from hookline.loop.engine.course import Course
from hookline.loop.engine.driven import step_inside_batch
from hookline.loop.engine.handles import Handles
from hookline.loop.engine.session import Session
from hookline.loop.metrics.series import Series, number_or_copy
from hookline.loop.model.gradients import (
    added_up,
    check_weight,
    clear_gradients,
    count_weight,
    no_backward,
    others_untouched,
    raise_explained,
    warn_if_cleared,
    with_weight,
)
from hookline.loop.model.optimizers import name_of
from hookline.loop.model.schedulers import of_optimizer
from hookline.loop.model.weights import Weights
from hookline.loop.tasks.loss_weights import LossWeights
from hookline.loop.tasks.supervised import SupervisedTask
from hookline.loop.world.world import World
from hookline.run import MISSING


class Steps:
    """What is called on each batch. ``Training`` hands the batches out."""

    # What every step touches lies side by side in memory; the rest is in the __dict__ of ``Loop``.
    __slots__ = (
        "_accumulate", "_autocast", "_bare", "_batch_mark", "_batch_open", "_driven", "_losses", "_moved", "_names",
        "_pending", "_plain", "_scaled", "_skipped", "_step_mark", "_touched", "_weighed", "_window", "_window_full",
        "_window_start", "clock", "course", "handles", "line", "look_due", "loss_weights", "precision", "requests",
        "scopes", "session", "settings", "state", "steps_are_plain", "weights", "world",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self.session, self.settings, self.precision = session, session.settings, session.precision
        self.state, self.line, self.scopes = session.state, session.line, session.scopes
        self.clock, self.requests = session.state.clock, session.state.requests
        self.weights = Weights(self.state.model, self.clock)
        self.course = Course(session, self.weights)
        self.handles = Handles(self.requests)
        self.loss_weights = session.task.loss_weights if isinstance(session.task, SupervisedTask) else None
        self._autocast, self._scaled = self.precision.dtype is not None, self.precision.scaler is not None
        self._losses = self.course.losses()
        self._names: tuple[str, ...] = ()  # of all optimizers
        self._pending: list[tuple[Series, Any, Any]] = []  # the losses of the window, which count if it does
        self._touched: dict[str, Any] = {}  # optimizers with gradients in this window, and their sums of weights
        self._weighed: dict[str, tuple[int, Any]] = {}  # by optimizer: the last batch that counted, and its weight
        self._window = 0  # batches in it
        self._window_start: tuple[int, int, int] | None = None  # what the clock showed before it
        self._window_full = self._batch_open = self._moved = self._skipped = self.look_due = False
        self._driven: dict[str, bool] = {}  # optimizers that the body steps itself, and whether they have moved
        self._step_mark: int | None = None  # the depth below the scopes of the step, if it has any
        self._batch_mark: int | None = None
        self.world: World = session.world
        self.accumulate = self.settings.accumulate

    @property
    def accumulate(self) -> int:
        """How many batches make a step; it may be changed at the edge of a step."""
        return self._accumulate

    @accumulate.setter
    def accumulate(self, batches: int) -> None:
        if not isinstance(batches, int) or batches < 1 or self._window:
            raise SetupError(f"loop.accumulate = {batches!r}: give 1 or more batches, at the edge of a step")
        self._accumulate = self.clock.batches_per_step = batches
        if self.course.agenda.has_parts:
            self.course.agenda.wake = 0  # what is due at a part of an epoch comes at another step
        # One batch a step in one process needs no weights: a plain backward, bitwise that of a bare loop.
        self._plain = batches == 1 and self.state.world_size == 1
        self._bare = self._plain and not self._scaled
        self.steps_are_plain = self._bare and not self._autocast

    def backward(self, loss: Any, optimizer: Any = None, *, weight: Any = None, outputs: Any = None) -> None:
        """Backward of the mean loss of this batch, weighted by ``weight`` (the samples, if not given)."""
        if self._autocast:
            with self._without_autocast():
                return self.backward(loss, optimizer, weight=weight, outputs=outputs)
        if self.requests.attention:  # the body may have left an evaluation, whose end is still to come
            self.handles.settle()
        if not self._batch_open:
            raise ScopeError("loop.backward(loss): call it on a batch that loop.batches() gave, before loop.step()")
        state, line = self.state, self.line
        names = self._names if optimizer is None else (name_of(optimizer, state.optimizers),)
        if self.loss_weights is not None:
            weight = self._weigh(self.loss_weights, weight)
        weighted = weight is not None
        weight = self.state.samples if weight is None else check_weight(weight, self.state.where)
        if outputs is not None:
            state.outputs = outputs
        state.loss = loss
        hooks = line.hooks
        if hooks.loss_ready:
            line.emit(hooks.loss_ready)
            loss = state.loss
        if hooks.backward_start:
            line.emit(hooks.backward_start)
        try:
            if loss.ndim:
                raise TypeError  # explained below, as a loss that is no tensor is
            if self._bare and optimizer is None:
                loss.backward()
            else:
                part = weight if self._plain else self.precision.relative(weight)
                world = self.world
                if self._touched and not self._plain and not world.is_sharded:
                    for name in names:
                        if name in self._touched:
                            warn_if_cleared(name, state.optimizers[name])
                part, weight = (0, 0) if world.is_padding else (part, weight)
                sums = with_weight(names, self._window, weight, self._touched, self._weighed)
                world.before_backward(loss, names, sums, last=self._window_full, weighted=weighted)
                if world.is_sharded and optimizer is not None:
                    with others_untouched(optimizer, state.optimizers):  # its leaves are not the parameters themselves
                        self.precision.backward(loss * part, None)
                else:
                    self.precision.backward(loss if self._plain else loss * part, optimizer)
            losses = self._losses if len(self._names) == 1 or optimizer is None else self.course.losses(names[0])
            if losses is not None:
                kept = (losses, number_or_copy(loss), weight)
                if self._pending and self._has_counted(names[0]):
                    kept = added_up(self._pending, kept)
                self._pending.append(kept)
        except Exception as error:
            raise_explained(loss, self.state.where(), error)
        if hooks.backward_end:
            line.emit(hooks.backward_end)
        for name in names:
            if self._plain:
                self._touched[name] = 1
            else:
                count_weight(name, self._window, weight, self._touched, self._weighed, self.state.where)
        return None

    def _weigh(self, weights: LossWeights, given: Any) -> Any:
        """The weight that was given, else the one that fits the loss; ``None`` stands for the samples."""
        found = weights.in_training(needed=given is None and not self._plain)
        return given if self.world.is_padding or given is not None else found

    def _has_counted(self, name: str) -> bool:
        """Whether this batch has had a loss of this optimizer's, which it has not stepped on yet."""
        return name in self._touched if self._plain else self._weighed.get(name, (0, None))[0] == self._window

    def open_batch(self) -> None:
        """The scopes and the start of a batch that somebody hears."""
        self._batch_mark = len(self.scopes)
        self.scopes.enter(self.line.hooks.around_batch)
        self.line.emit(self.line.hooks.train_batch_start)

    def step(self, optimizer: Any = None, *, closure: Callable[[], Any] | None = None) -> bool:
        """After each batch: the update, when the window is full. Whether the weights moved.

        With an ``optimizer`` or a ``closure`` the update is made inside the batch, which goes on.
        """
        if self._autocast:
            with self._without_autocast():
                return self.step(optimizer, closure=closure)
        if self.requests.attention:  # as in ``backward``
            self.handles.settle()
        if not self._batch_open:
            raise ScopeError("loop.step(): call it once on each batch that loop.batches() gave")
        if optimizer is not None or closure is not None:
            return step_inside_batch(self, optimizer, closure)
        clock, hooks = self.clock, self.line.hooks
        if hooks.train_batch_end:
            self.line.emit(hooks.train_batch_end)
        if self._batch_mark is not None:
            self.scopes.leave(self._batch_mark)
            self._batch_mark = None
        clock.batch += 1
        self.world.count_batch(self.state.samples, self.state.tokens)
        self._batch_open = False
        return self._complete_window() if self._window_full else False

    def _complete_window(self) -> bool:
        """The updates of a full window, then the end of the step, which counts unless a callback skipped it."""
        clock, line, requests, touched = self.clock, self.line, self.requests, self._touched
        if self.session.book.muted:
            self.session.book.unmute()  # what is logged from here on is of the step, not of the batch
        self.world.complete_window(touched, self._driven)
        if requests.agreed.skip is not None:
            touched.update({name: 1 for name in self._names if name not in self._driven})
        elif not touched and not self._driven:
            raise no_backward(self.state.where())
        for name in touched:
            self._update(name)
        for losses, value, weight in self._pending if requests.agreed.skip is None else ():
            losses.values.append(value)
            losses.weights.append(weight)
        self._pending.clear()
        for name, moved in self._driven.items():
            if moved:
                self._move_schedulers(name)
        touched.clear()
        if not self._plain:
            self._weighed.clear()
        if self._scaled:
            self.precision.end_window(skipped=requests.agreed.skip is not None)
        moved, self._window = self._moved, 0
        self._moved = requests.can_skip = False
        self._driven.clear()
        if requests.agreed.skip is None:
            clock.step += 1
            if line.hooks.train_step_end:
                line.emit(line.hooks.train_step_end)
        else:
            self._skipped = True
            requests.take_skip()
            self.course.agenda.wake = 0  # the step does not advance, but samples and time do
        if self._step_mark is not None:
            self.scopes.leave(self._step_mark)
            self._step_mark = None
        self.world.stepped()
        self.look_due = clock.step >= self.course.agenda.wake  # what the body logs from here on is of this step, too
        return moved

    def _update(self, name: str, closure: Callable[[], Any] | None = None) -> bool:
        """Gradients, optimizer, schedulers, zero_grad, in this order. Whether the weights moved."""
        state, line, weights, requests, hooks = self.state, self.line, self.weights, self.requests, self.line.hooks
        optimizer = state.optimizer = state.optimizers[name]
        if weights.raw:
            raise ScopeError("an update while run.swap_weights is open would change the swapped weights; end it before")
        overflow = moved = False
        if not self._bare and requests.agreed.skip is None:
            overflow = self.precision.finish_gradients(optimizer, None if self._plain else self._touched.get(name))
        if hooks.gradients_ready and closure is None and not overflow and requests.agreed.skip is None:
            line.emit(hooks.gradients_ready)
        if overflow or requests.agreed.skip is not None:
            self.session.records.note(
                "step_skipped", f"by {requests.agreed.skip}" if requests.agreed.skip else "overflow"
            )
            line.emit(hooks.step_skipped)
        else:
            requests.can_skip = False
            if hooks.optimizer_step_start:
                line.emit(hooks.optimizer_step_start)
            if closure is not None:
                optimizer.step(closure)
            elif self.precision.dtype is not None:
                self.precision.step(optimizer)
            else:
                optimizer.step()
            self._moved = moved = True
            self.clock.updates[name] += 1
            if hooks.optimizer_step_end:
                line.emit(hooks.optimizer_step_end)
            if state.schedulers and name not in self._driven:
                self._move_schedulers(name)
        clear_gradients(optimizer)
        if hooks.zero_grad:
            line.emit(hooks.zero_grad)
        state.optimizer = MISSING
        return moved

    def _move_schedulers(self, name: str) -> None:
        """Once a step, however often its optimizer has stepped in it."""
        due = of_optimizer(self.state.schedulers, self.state.optimizers[name], "st")
        self.course.step_schedulers([s for s in due if s.due(self.clock.step + 1)])

    # ------------------------------------------------------------------------------------------

    @contextmanager
    def _without_autocast(self) -> Iterator[None]:
        """Backward and update are not under autocast; the body of the loop is, before and after them."""
        self._autocast = False
        try:
            with self.precision.autocast(enabled=False):
                yield
        finally:
            self._autocast = True

    def _drop_window(self) -> None:
        """Leave a half-filled window: no clock, no gradients."""
        mark = self._batch_mark if self._step_mark is None else self._step_mark
        if mark is not None:
            self.scopes.leave(mark)
        if self._window:
            for optimizer in self.state.optimizers.values():
                clear_gradients(optimizer)
            if not self._moved:
                self._turn_back()
        self.precision.end_window()
        self.world.drop_window()
        self._step_mark = self._batch_mark = None
        self.requests.take_skip()
        self._window_full = self._batch_open = self._moved = self.requests.can_skip = self.look_due = False
        self._window = 0
        for counted in (self._driven, self._touched, self._weighed, self._pending):
            counted.clear()

    def _turn_back(self) -> None:
        """The clock and the losses forget a window that is dropped, so that another fit trains on its batches."""
        clock = self.clock
        if self._window_start is not None:
            clock.batch, clock.sample, clock.token = self._window_start
        elif not self._batch_open:
            clock.batch, clock.sample = clock.batch - 1, clock.sample - self.state.samples
            clock.token -= self.state.tokens or 0
