"""The steps of training: a batch is fetched and shown, its loss is differentiated, the weights are updated.

``of_task`` makes all steps of an epoch with a task, in one text. ``by_halves`` makes those that need more, such as
several ranks, from the halves ``next_batch``, ``backward`` and ``step``. The body of a custom loop calls the same
halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookline.errors import ScopeError, SetupError, StopTraining
from hookline.events import Scopes
from hookline.events.line import Table
from hookline.loop.data.batches import END, LEFT
from hookline.loop.data.fetcher import Fetcher
from hookline.loop.data.shard_batch import ShardBatch
from hookline.loop.data.training_data import TrainingData
from hookline.loop.engine.agenda import Agenda
from hookline.loop.engine.edge import Edge
from hookline.loop.engine.window import AccumulationWindow
from hookline.loop.evaluation.handles import Handles
from hookline.loop.metrics.book import MetricBook
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
from hookline.loop.model.optimizers import name_of, needs_closure
from hookline.loop.model.precision import Precision
from hookline.loop.model.scheduler_steps import SchedulerSteps
from hookline.loop.model.weights import Weights
from hookline.loop.record.records import Records
from hookline.loop.tasks.loss_weights import LossWeights
from hookline.loop.tasks.returned import check_returned
from hookline.loop.tasks.supervised import own_loss_of, title_of
from hookline.loop.world.leaving import stop_in_batch
from hookline.loop.world.world import Alone, World
from hookline.run import MISSING, Run, RunState
from hookline.run.targets import SEQUENCES

Count = Callable[[Any], tuple[int, int | None]]


class Steps:
    """Makes the steps of training.

    Args:
        state: The state of the run.
        world: The processes of the run.
        scopes: The open scopes.
        book: The metrics of the run.
        records: The record of the run.
        fetcher: Waits for batches.
        data: The training data.
        precision: The precision of forward, backward and update.
        weights: The weights of the model, which a scope may have swapped.
        loss_weights: The weights of the losses of a plain model.
        schedulers: Moves the schedulers.
        agenda: The step at which something may be due.
        edge: What happens at the end of a step.
        window: The micro-batches of the step under way.
        handles: The generators that the body of a custom loop holds.
        move: Moves a batch to the device, or ``None`` on the CPU.
    """

    # Fields that every step uses, next to each other in memory.
    __slots__ = (
        "_agenda", "_autocasts", "_book", "_calls_backward_directly", "_clock", "_data", "_drives_updates", "_edge",
        "_fetcher", "_gives_shards", "_handles", "_has_closure", "_is_alone", "_is_scaled", "_is_whole_step", "_line",
        "_loss_weights", "_losses", "_model_weights", "_move", "_names", "_precision", "_records", "_requests",
        "_schedulers", "_scopes", "_state", "_window", "_world", "count_samples", "keeps_losses",
    )  # fmt: skip

    def __init__(
        self,
        state: RunState,
        world: World,
        scopes: Scopes,
        book: MetricBook,
        records: Records,
        fetcher: Fetcher,
        data: TrainingData,
        precision: Precision,
        weights: Weights,
        loss_weights: LossWeights | None,
        schedulers: SchedulerSteps,
        agenda: Agenda,
        edge: Edge,
        window: AccumulationWindow,
        handles: Handles,
        count: Count,
        move: Callable[[Any], Any] | None,
        *,
        keeps_losses: bool,
        accumulate: int,
    ) -> None:
        self._state, self._world, self._scopes, self._book, self._records = state, world, scopes, book, records
        self._fetcher, self._data, self._precision, self._model_weights = fetcher, data, precision, weights
        self._loss_weights, self._schedulers, self._agenda, self._edge = loss_weights, schedulers, agenda, edge
        self._window, self._handles, self._move = window, handles, move
        self._line, self._clock, self._requests = state.line, state.clock, state.requests
        self._use(world, gives_shards=False)
        self._drives_updates = getattr(state.task, "drives_updates", False)
        self._autocasts, self._is_scaled = precision.dtype is not None, precision.scaler is not None
        self._names: tuple[str, ...] = ()
        self._has_closure = False
        self.count_samples = count
        """Counts the samples and tokens of a batch."""
        self.keeps_losses = keeps_losses
        """The losses become metrics."""
        self._losses: dict[str, Series] = {}
        if keeps_losses:
            self._losses["train/loss"] = book.direct_series("train/loss")
        self.set_accumulate(accumulate)

    @property
    def accumulate(self) -> int:
        """The number of batches per step. It can be changed between two steps."""
        return self._window.size

    def set_accumulate(self, batches: int) -> None:
        """Change the number of batches per step, between two steps."""
        if not isinstance(batches, int) or isinstance(batches, bool) or batches < 1 or self._window.count:
            raise SetupError(f"loop.accumulate = {batches!r}: give 1 or more batches, at the edge of a step")
        self._window.set_size(batches)
        self._clock.set_lengths(batches_per_step=batches)
        if self._agenda.has_epoch_fractions:
            self._agenda.wake_now()  # Fractions of an epoch end at other steps.
        # One batch per step in one process is the whole step: its backward is that of a bare loop.
        self._is_whole_step = batches == 1 and self._state.world_size == 1
        self._calls_backward_directly = self._is_whole_step and not self._is_scaled

    @property
    def fits_of_task(self) -> bool:
        """True if ``of_task`` can make the steps: one process, one optimizer without a closure, and no autocast."""
        return self._is_alone and len(self._names) == 1 and not self._has_closure and not self._autocasts

    def open(self) -> None:
        """The optimizers are made."""
        self._names = tuple(self._state.optimizers)
        self._has_closure = any(map(needs_closure, self._state.optimizers.values()))

    def open_epoch(self, count: Count, *, gives_shards: bool) -> None:
        """An epoch begins.

        Args:
            count: Counts the samples and tokens of a batch.
            gives_shards: True if the training data gives shards of a batch, as in several processes.
        """
        self.count_samples, self._gives_shards = count, gives_shards

    # -- with a task -----------------------------------------------------------------------------

    # It reads top to bottom, with one line per event.
    def of_task(self, run: Run) -> Any:  # noqa: C901
        """Make the steps of an epoch with the task, if ``fits_of_task`` is true.

        One process, one optimizer and no autocast need none of the halves below: their text is written out here,
        because a step of a small model is made in a few microseconds. Any other step goes through the halves.

        Returns:
            ``END`` or ``LEFT`` as ``next_batch`` does, or ``MISSING`` at the last edge.
        """
        state, line, clock, requests, window = self._state, self._line, self._clock, self._requests, self._window
        data, edge, agenda, loss_weights = self._data, self._edge, self._agenda, self._loss_weights
        task, emit, iterator, count = state.task, line.emit, data.iterator, self.count_samples
        train_batch, fetcher, move = task.train_batch, self._fetcher, self._move
        losses, name = self._losses.get("train/loss"), self._names[0]
        step_losses, step_positions = self._records.steps.losses, self._records.steps.positions
        compute, modules = own_loss_of(task), task._modules
        if compute is not None and loss_weights is not None and loss_weights.loss is not compute:
            loss_weights.choose(compute, modules["model"])
        while True:
            hooks = line.hooks
            if hooks.batch_fetch_start:
                self._announce_fetch()
            requests.waiting = True
            try:
                batch = next(iterator, END)
            except BaseException as error:
                batch = fetcher.after_failure(error)
            requests.waiting = False
            if batch is END or batch is LEFT:  # The last batch stays on `run`, for the hooks of the edge.
                return batch
            state.batch = state.outputs = state.loss = MISSING
            data.given = position = data.given + 1
            batch = state.batch = batch if move is None else move(batch)
            if hooks.batch_fetch_end:
                emit(hooks.batch_fetch_end)
            if not window.count:
                requests.can_skip = True
                window.begin(clock)
                if hooks.around_step or hooks.train_step_start:
                    self._open_step(hooks)
                    hooks = line.hooks
            is_whole_step = self._is_whole_step
            window.count = batches = window.count + 1
            window.has_batch, window.is_last_batch = True, batches >= window.size or position == data.length
            if position == data.length:
                edge.reach_epoch_end()
            if hooks.around_batch or hooks.train_batch_start:
                self._open_batch(hooks)
            batch = state.batch
            samples, tokens = state.samples, state.tokens = count(batch)
            # A plain model with a loss of torch is called directly, because the methods of a task would take 4 µs.
            calls_model_directly = compute is not None and batch.__class__ in SEQUENCES and len(batch) == 2
            if calls_model_directly and (hooks.forward_start or hooks.forward_end or modules["loss"] is not compute):
                calls_model_directly = False
            try:
                if calls_model_directly:
                    outputs = state.outputs = modules["model"](batch[0])
                    loss = compute(outputs, batch[1])
                else:
                    loss = train_batch(run, batch)
            except StopTraining as stop:
                self.drop_batch(stop.reason, title_of(task))
                if edge.advance():
                    return MISSING
                continue
            except Exception as error:
                if calls_model_directly:
                    task.note_error(error, state.outputs, batch)
                raise
            hooks = line.hooks
            takes_second_half = loss.__class__ is not Tensor or window.driven or requests.agreed.skip
            if takes_second_half or (window.weight_sums and window.has_loss_of(name, is_whole_step=is_whole_step)):
                if calls_model_directly and loss_weights is not None:
                    loss_weights.computed(outputs, batch, batch[1])
                self._finish_batch(loss)
            else:
                state.loss = loss
                if loss_weights is None or (losses is None and is_whole_step):
                    weight = None
                elif calls_model_directly and is_whole_step:
                    weight = loss_weights.of_pair(outputs, batch)
                else:
                    if calls_model_directly:
                        loss_weights.computed(outputs, batch, batch[1])
                    weight = loss_weights.in_training(needed=not is_whole_step)
                if weight is None:
                    weight = samples
                outputs = None  # Outputs may be large.
                if hooks.loss_ready:
                    emit(hooks.loss_ready)
                    loss = state.loss
                if hooks.backward_start:
                    emit(hooks.backward_start)
                try:
                    if loss.ndim:
                        raise TypeError  # Explained below.
                    if is_whole_step:
                        loss.backward()
                    else:
                        self._backward_in_window(loss, name, weight)
                    if losses is not None:  # Read before the update: the loss may be a view of a weight.
                        value = loss.tolist() if loss.is_cpu else loss.detach().clone()
                except Exception as error:
                    raise_explained(loss, state.where(), error)
                if hooks.backward_end:
                    emit(hooks.backward_end)
                if hooks.train_batch_end:
                    emit(hooks.train_batch_end)
                if window.batch_mark is not None:
                    self._close_batch()
                clock.batch += 1
                clock.sample += samples
                if tokens is not None:
                    clock.token += tokens
                window.has_batch = False
                if not is_whole_step:
                    if losses is not None:
                        window.losses.append((losses, value, weight))
                    if window.is_last_batch:
                        self.complete_window()
                else:
                    self._update(name)
                    if requests.agreed.skip is not None:
                        self._end_step(is_skipped=True)
                    else:
                        if losses is not None:
                            losses.values.append(value)
                            losses.weights.append(weight)
                            step_losses.append(value)
                            step_positions.append(position)
                        window.count, window.moved = 0, False
                        clock.step = step = clock.step + 1
                        if hooks.train_step_end:
                            emit(hooks.train_step_end)
                        if window.step_mark is not None:
                            self._close_step()
                        if step >= agenda.wake:
                            edge.reach()
            is_due = edge.stage or requests.attention or line.hooks.step_settled or requests.rollback is not None
            if is_due and not window.count:
                loss = None
                if edge.advance():
                    return MISSING

    def by_halves(self, run: Run) -> Any:
        """Make the steps of an epoch with the halves: with several ranks or optimizers, autocast, or a closure.

        Returns:
            As ``of_task``.
        """
        if self._has_closure:
            return self._with_closures(run)
        edge, window, task = self._edge, self._window, self._state.task
        train_batch = task.train_batch
        while (batch := self.next_batch()) is not END and batch is not LEFT:
            try:
                if self._autocasts:
                    with self._precision.autocast():
                        found = train_batch(run, batch)
                else:
                    found = train_batch(run, batch)
            except StopTraining as stop:
                self.drop_batch(stop.reason, title_of(task))
            else:
                self._finish_batch(found)
            self.end_shard()
            batch = found = None  # They would stay in memory until the next ones are there.
            if not window.count and edge.is_due and edge.advance():
                return MISSING
        return batch

    def _finish_batch(self, found: Any) -> None:
        """Go through the second half with the result of ``train_batch``."""
        if isinstance(found, dict):
            check_returned("train_batch", found)
            self.backward(found["loss"], weight=found.get("weight"), outputs=found.get("outputs"))
        elif found is not None:
            self.backward(found)
        self.step()

    def _with_closures(self, run: Run) -> Any:
        """Make steps with an optimizer such as LBFGS, which computes the loss several times per step."""
        state, task = self._state, self._state.task
        while (batch := self.next_batch()) is not END and batch is not LEFT:
            try:
                with self._precision.autocast(enabled=self._autocasts):
                    # A hook may replace the batch before its first forward, and the closure is called several times.
                    self.step(closure=lambda: task.train_batch(run, state.batch))
            except StopTraining as stop:
                self.drop_batch(stop.reason, title_of(task))
            else:
                self.step()
            if self._edge.is_due and self._edge.advance():
                return MISSING
        return batch

    def try_batch(self, run: Run, batch: Any, shard: ShardBatch) -> Any:
        """Make one step of a trial, on a batch that no loader gives. Return its loss, or ``MISSING``."""
        state, window, task = self._state, self._window, self._state.task
        self.drop()  # A step that has failed.
        self._requests.allow_skip(True)
        state.show_batch(batch if self._move is None else self._move(batch))
        state.count_batch(*self.count_samples(state.batch))
        self._world.begin_window()
        window.begin(self._clock)
        window.add_batch(is_last=True)
        if not self._is_alone:
            self._take_shard(shard, mutes=False)
        with self._precision.autocast(enabled=self._autocasts):
            if self._has_closure:
                self.step(closure=partial(task.train_batch, run, state.batch))
                found = None
            else:
                found = task.train_batch(run, state.batch)
            self._finish_batch(found)
        return state.loss

    # -- the first half: a batch ----------------------------------------------------------------

    def next_batch(self) -> Any:
        """Fetch the next batch, show it on ``run`` and send the events before its forward.

        Returns:
            The batch, ``END`` at the end of the data, or ``LEFT`` if the wait was left.
        """
        state, line, window, data, requests = self._state, self._line, self._window, self._data, self._requests
        hooks = line.hooks
        if hooks.batch_fetch_start:
            self._announce_fetch()
        requests.waiting = True
        try:
            batch = next(data.iterator, END)
        except BaseException as error:
            batch = self._fetcher.after_failure(error)
        requests.waiting = False
        if batch is END or batch is LEFT:  # The last batch stays on `run`, for the hooks of the edge.
            return batch
        shard = batch if self._gives_shards else None
        is_last = data.count_batch(is_last=shard is not None and shard.is_last)
        batch = batch if shard is None else shard.batch
        if self._move is not None:
            state.show_batch(MISSING)  # The last batch is not kept while this one is moved.
            batch = self._move(batch)
        state.show_batch(batch)
        if hooks.batch_fetch_end:
            line.emit(hooks.batch_fetch_end)
        if not window.count:
            requests.allow_skip(True)
            if not self._is_alone:
                self._world.begin_window()
            window.begin(self._clock)
            if hooks.around_step or hooks.train_step_start:
                self._open_step(hooks)
                hooks = line.hooks
        window.add_batch(is_last=is_last)
        if is_last:
            self._edge.reach_epoch_end()
        if hooks.around_batch or hooks.train_batch_start:
            self._open_batch(hooks)
        state.samples, state.tokens = self.count_samples(state.batch)
        if shard is not None:
            self._take_shard(shard, mutes=True)
        return state.batch

    def _open_step(self, hooks: Table) -> None:
        """Open the scopes of a step and announce it."""
        if hooks.around_step:
            self._window.open_step(len(self._scopes))
            self._scopes.enter(hooks.around_step)
        if hooks.train_step_start:
            self._line.emit(hooks.train_step_start)

    def _open_batch(self, hooks: Table) -> None:
        """Open the scopes of a batch and announce it."""
        self._window.open_batch(len(self._scopes))
        self._scopes.enter(hooks.around_batch)
        self._line.emit(hooks.train_batch_start)

    def _close_batch(self) -> None:
        """Close the scopes of a batch."""
        mark = self._window.take_batch_mark()
        if mark is not None:
            self._scopes.leave(mark)

    def _close_step(self) -> None:
        """Close the scopes of a step."""
        mark = self._window.take_step_mark()
        if mark is not None:
            self._scopes.leave(mark)

    def _announce_fetch(self) -> None:
        """Send ``batch_fetch_start``: the last batch is over, but its edge may still be to come."""
        shown = self._state.hide_batch()
        self._line.emit(self._line.hooks.batch_fetch_start)
        self._state.show_again(shown)  # Not after an error: the batch is over.

    def _take_shard(self, shard: ShardBatch, *, mutes: bool) -> None:
        """The batch is a shard of all ranks' batches. It may be there only for the other ranks, and counts nothing."""
        state, world = self._state, self._world
        if self._window.count == 1:
            self._window.set_unit(world.unit(shard.known, scaled=self._is_scaled))
        known = shard.known if shard.samples in (None, state.samples) and state.tokens is None else None
        if not shard.counts:
            state.count_batch(0, state.tokens and 0)
        if mutes and shard.counts:
            self._book.unmute()
        elif mutes:
            self._book.mute()
        world.fetched(state.samples, state.tokens, counts=shard.counts, known=known)

    def end_shard(self) -> None:
        """The batch is over: values that are logged from here on count."""
        if self._gives_shards:
            self._book.unmute()

    # -- the second half: backward and update ---------------------------------------------------

    # As `of_task`: one line per event.
    def backward(  # noqa: C901
        self, loss: Any, optimizer: Any = None, *, weight: Any = None, outputs: Any = None
    ) -> None:
        """Differentiate the mean loss of the batch.

        Args:
            loss: The loss.
            optimizer: The optimizer whose parameters get gradients, if there are several.
            weight: How much the loss counts in the step. The number of samples if it is not given.
            outputs: The outputs of the model, for ``run.outputs``.
        """
        if self._autocasts:
            with self._without_autocast():
                return self.backward(loss, optimizer, weight=weight, outputs=outputs)
        if self._requests.attention:  # The body may have left an evaluation that is still to be finished.
            self._handles.send_end_hooks()
        window, state, line, is_whole_step = self._window, self._state, self._line, self._is_whole_step
        if not window.has_batch:
            raise ScopeError("loop.backward(loss): call it on a batch that loop.batches() gave, before loop.step()")
        names = self._names if optimizer is None else (name_of(optimizer, state.optimizers),)
        if self._loss_weights is not None:
            found = self._loss_weights.in_training(needed=weight is None and not is_whole_step)
            if weight is None and not self._world.is_padding:
                weight = found
        is_weighted = weight is not None
        weight = check_weight(weight, state.where) if is_weighted else state.samples
        if outputs is not None:
            state.show_outputs(outputs)
        state.loss = loss
        hooks = line.hooks
        if hooks.loss_ready:
            line.emit(hooks.loss_ready)
            loss = state.loss
        if hooks.backward_start:
            line.emit(hooks.backward_start)
        try:
            if loss.ndim:
                raise TypeError  # Explained below, as a loss that is not a tensor is.
            if self._calls_backward_directly and optimizer is None:
                loss.backward()
            else:
                weight = self._backward_with_fraction(loss, names, optimizer, weight, is_weighted=is_weighted)
            if self.keeps_losses:
                self._keep_loss(loss, names, optimizer, weight)
        except Exception as error:
            raise_explained(loss, state.where(), error)
        if hooks.backward_end:
            line.emit(hooks.backward_end)
        for name in names:
            if is_whole_step:
                window.weight_sums[name] = 1
            else:
                count_weight(name, window.count, weight, window.weight_sums, window.last_weights, state.where)
        return None

    def _backward_with_fraction(
        self, loss: Any, names: tuple[str, ...], optimizer: Any, weight: Any, *, is_weighted: bool
    ) -> Any:
        """Differentiate a loss that is one of several in the step, is scaled, or is of one optimizer only."""
        state, window, world, precision, is_whole_step = (
            self._state, self._window, self._world, self._precision, self._is_whole_step,
        )  # fmt: skip
        fraction = None if is_whole_step else self._fraction_of(weight)
        if window.weight_sums and not is_whole_step and not world.is_sharded:
            for name in names:
                if name in window.weight_sums:
                    warn_if_cleared(name, state.optimizers[name])
        if world.is_padding:
            fraction = weight = 0
        sums = with_weight(names, window.count, weight, window.weight_sums, window.last_weights)
        world.before_backward(loss, names, sums, last=window.is_last_batch, weighted=is_weighted)
        if world.is_sharded and optimizer is not None:
            with others_untouched(optimizer, state.optimizers):  # Its leaves are not the parameters themselves.
                precision.backward(loss, None, fraction)
        else:
            precision.backward(loss, optimizer, fraction)
        return weight

    def _backward_in_window(self, loss: Tensor, name: str, weight: Any) -> None:
        """Differentiate the only loss of one of several batches, in one process with one optimizer."""
        window = self._window
        if window.weight_sums:
            warn_if_cleared(name, self._state.optimizers[name])
        weight = check_weight(weight, self._state.where)
        self._precision.backward(loss, None, self._fraction_of(weight))
        window.weight_sums[name] = window.weight_sums.get(name, 0) + weight
        window.last_weights[name] = window.count, weight

    def _fraction_of(self, weight: Any) -> Any:
        """Return the fraction of the step that a loss is. A sum of fractions that is not 1 divides the gradients.

        In one process the first weight is the unit. Each of two equal batches then has the fraction 1/2, as in a loop
        that divides its loss by the number of batches, and nothing is left to divide.
        """
        window = self._window
        if isinstance(weight, Tensor) and not weight.is_floating_point():
            weight = weight.to(torch.float32 if weight.device.type == "mps" else torch.float64)
        if window.unit is None:
            # With a unit per rank, different weights would count the same. To read a tensor would wait for its device.
            is_read = self._is_alone and (self._is_scaled or not isinstance(weight, Tensor))
            window.set_unit(float(weight) if is_read else self._world.unit(None, scaled=self._is_scaled))
        return weight / window.unit

    def _keep_loss(self, loss: Any, names: tuple[str, ...], optimizer: Any, weight: Any) -> None:
        """Keep the loss for the metrics, if the step counts. Read it now: it may be a view of a weight."""
        window = self._window
        name = "train/loss" if optimizer is None or len(self._names) == 1 else f"train/{names[0]}/loss"
        series = self._losses.get(name)
        if series is None:
            series = self._losses[name] = self._book.direct_series(name)
        kept = (series, number_or_copy(loss), weight)
        if window.losses and window.has_loss_of(names[0], is_whole_step=self._is_whole_step):
            kept = added_up(window.losses, kept)
        window.losses.append(kept)

    def step(self, optimizer: Any = None, *, closure: Callable[[], Any] | None = None) -> bool:
        """Complete the batch, and update the weights when the window is full. Return whether the weights changed.

        Args:
            optimizer: One of several optimizers. It steps inside the batch, which continues.
            closure: Computes the loss, for an optimizer such as LBFGS. It steps inside the batch, which continues.
        """
        if self._autocasts:
            with self._without_autocast():
                return self.step(optimizer, closure=closure)
        window, requests = self._window, self._requests
        if requests.attention:  # As in `backward`.
            self._handles.send_end_hooks()
        if not window.has_batch:
            raise ScopeError("loop.step(): call it once on each batch that loop.batches() gave")
        if optimizer is not None or closure is not None:
            return self._step_inside_batch(optimizer, closure)
        hooks = self._line.hooks
        if hooks.train_batch_end:
            self._line.emit(hooks.train_batch_end)
        if window.batch_mark is not None:
            self._close_batch()
        clock, state = self._clock, self._state
        clock.batch += 1
        if self._is_alone:
            clock.sample += state.samples
            clock.token += state.tokens or 0
        window.has_batch = False
        return self.complete_window() if window.is_last_batch else False

    def complete_window(self) -> bool:
        """Update the weights and end the step, unless it is skipped. Return whether the weights changed."""
        requests, window = self._requests, self._window
        if self._gives_shards:
            self._book.unmute()  # A value that is logged from here on belongs to the step, not to the batch.
        if not self._is_alone:
            self._world.complete_window(window.weight_sums, window.driven)
        is_skipped = requests.agreed.skip is not None
        if is_skipped:
            window.weight_sums.update({name: 1 for name in self._names if name not in window.driven})
        elif not window.weight_sums and not window.driven and not self._drives_updates:
            raise no_backward(self._state.where())
        for name in window.weight_sums:
            self._update(name)
        is_skipped = requests.agreed.skip is not None  # Also by a hook on `gradients_ready`.
        if self.keeps_losses and not is_skipped:
            self._records.steps.losses.append(window.losses[:] or None)
            self._records.steps.positions.append(self._data.given)
        window.take_losses(counts=not is_skipped)
        if window.driven:
            for name, moved in window.driven.items():
                if moved:
                    self._schedulers.after_step(name)
        if self._is_scaled:
            self._precision.end_window(skipped=is_skipped)
        moved = window.moved
        self._end_step(is_skipped=is_skipped)
        return moved

    def _end_step(self, *, is_skipped: bool) -> None:
        """End a step: count it, unless it is skipped, and close its scopes."""
        clock, line, requests, mark = self._clock, self._line, self._requests, self._window.step_mark
        self._window.end(skipped=is_skipped)
        requests.can_skip = False
        if is_skipped:
            requests.take_skip()
            self._agenda.wake_now()  # The step does not advance, but samples and time do.
        else:
            clock.step += 1
            if line.hooks.train_step_end:
                line.emit(line.hooks.train_step_end)
        if mark is not None:
            self._scopes.leave(mark)
        if not self._is_alone:
            self._world.stepped()
        if clock.step >= self._agenda.wake:
            self._edge.reach()  # Later values of the body also belong to this step.

    def _update(self, name: str, closure: Callable[[], Any] | None = None) -> bool:
        """Finish the gradients, step the optimizer and the schedulers, clear the gradients, in this order.

        Returns:
            Whether the weights changed.
        """
        state, line, requests, window, hooks = self._state, self._line, self._requests, self._window, self._line.hooks
        optimizer = state.optimizer = state.optimizers[name]
        if self._model_weights.raw:
            raise ScopeError("an update while run.swap_weights is open would change the swapped weights; end it before")
        overflow = moved = False
        if not self._calls_backward_directly and requests.agreed.skip is None:
            fractions = None if self._is_whole_step else self._fraction_of(window.weight_sums[name])
            overflow = self._precision.finish_gradients(optimizer, fractions)
        if hooks.gradients_ready and closure is None and not overflow and requests.agreed.skip is None:
            line.emit(hooks.gradients_ready)
        if overflow or requests.agreed.skip is not None:
            skipped_by = requests.agreed.skip
            self._records.note("step_skipped", f"by {skipped_by}" if skipped_by else "overflow")
            line.emit(hooks.step_skipped)
        else:
            requests.can_skip = False
            if hooks.optimizer_step_start:
                line.emit(hooks.optimizer_step_start)
            if closure is not None:
                optimizer.step(closure)
            elif self._precision.dtype is not None:
                self._precision.step(optimizer)
            else:
                optimizer.step()
            window.moved = moved = True
            self._clock.updates[name] += 1
            if hooks.optimizer_step_end:
                line.emit(hooks.optimizer_step_end)
            if state.schedulers and name not in window.driven:
                self._schedulers.after_step(name)
        clear_gradients(optimizer)
        if hooks.zero_grad:
            line.emit(hooks.zero_grad)
        state.optimizer = MISSING
        return moved

    # -- updates that the body drives itself ----------------------------------------------------

    def _step_inside_batch(self, optimizer: Any, closure: Callable[[], Any] | None) -> bool:
        """Step one of several optimizers, or one with a closure (LBFGS), which computes its loss several times."""
        window = self._window
        name = name_of(optimizer, self._state.optimizers)
        if closure is not None:
            if not self._calls_backward_directly:
                raise SetupError(
                    "an optimizer with a closure computes its loss again: use accumulate=1, no fp16 and one process"
                )
            window.driven[name] = False
            moved = self._update(name, partial(self._compute_again, name, closure))
        elif not window.is_last_batch:
            window.driven[name] = False
            return False
        elif self._drives_updates:
            window.driven.setdefault(name, False)
            moved = self._update(name)
        elif name not in window.weight_sums:
            raise ScopeError(f"loop.step({name}): there was no loop.backward(loss, optimizer) for it in this step")
        else:
            window.driven.setdefault(name, False)
            window.weight_sums[name] = self._world.average_weight(window.weight_sums[name])
            moved = self._update(name)
        window.driven[name] |= moved
        window.drop_optimizer(name)
        return moved

    def _compute_again(self, name: str, compute: Callable[[], Any]) -> Any:
        """Clear the gradients, and run forward, backward and ``gradients_ready``, for an optimizer such as LBFGS."""
        state = self._state
        clear_gradients(state.optimizers[name])
        self._window.weight_sums.pop(name, None)  # This loss is computed again, and is not a second one.
        torch.clear_autocast_cache()
        with self._precision.autocast(enabled=self._precision.dtype is not None):
            state.show_loss(MISSING)  # The outputs of this forward can be replaced.
            found = compute()
        if isinstance(found, dict):
            check_returned("train_batch", found)
            self.backward(found["loss"], weight=found.get("weight"), outputs=found.get("outputs"))
        else:
            self.backward(found)
        self._line.emit(self._line.hooks.gradients_ready)
        return state.loss

    # -- leaving a step -------------------------------------------------------------------------

    @contextmanager
    def without_losses(self) -> Iterator[None]:
        """Keep no loss inside the block."""
        earlier, self.keeps_losses = self.keeps_losses, False
        try:
            yield
        finally:
            self.keeps_losses = earlier

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Exchange nothing with other ranks inside the block, so that each of them may fail."""
        world, gives_shards = self._world, self._gives_shards
        self._use(Alone(), gives_shards=False)
        try:
            yield
        finally:
            self._use(world, gives_shards=gives_shards)

    def _use(self, world: World, *, gives_shards: bool) -> None:
        """Exchange values with these processes."""
        self._world, self._is_alone, self._gives_shards = world, world.is_alone, gives_shards

    @contextmanager
    def _without_autocast(self) -> Iterator[None]:
        """Backward and update are not under autocast. The body of the loop is, before and after them."""
        self._autocasts = False
        try:
            with self._precision.autocast(enabled=False):
                yield
        finally:
            self._autocasts = True

    def drop(self) -> None:
        """Leave a step that is half done: its batches are not counted, and its gradients are cleared."""
        window = self._window
        mark = window.batch_mark if window.step_mark is None else window.step_mark
        if mark is not None:
            self._scopes.leave(mark)
        if window.count:
            for optimizer in self._state.optimizers.values():
                clear_gradients(optimizer)
            window.turn_back(self._clock)
            self._edge.cancel_epoch_end()
        self._precision.end_window()
        self._world.drop_window()
        self._requests.take_skip()
        self._requests.allow_skip(False)
        self._edge.unreach()
        window.end(skipped=window.last_was_skipped)

    def drop_batch(self, reason: str, by: str) -> None:
        """``StopTraining`` was raised by the task: drop the step, and ask to stop."""
        self._world.refuse(stop_in_batch(by, reason, self._clock.step))
        self.drop()
        self._window.end(skipped=True)
        self._state.ask_stop(reason, by)
