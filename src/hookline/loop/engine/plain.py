"""Plain steps: what most runs are made of, with nothing between the computation and the next one.

One optimizer, one batch a step, no autocast, and nobody who hears what happens inside a step: then a step is
one of the two loops here, a part of the Python that the general way needs (``training.py``, ``step.py``). All that
can be seen from outside is the same, which ``tests/loop/test_plain.py`` shows by running everything both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookline.errors import StopTraining
from hookline.loop.data.batches import END, LEFT
from hookline.loop.data.batches import count as count_rows
from hookline.loop.model.gradients import clear_gradients, raise_explained
from hookline.loop.tasks.returned import check_returned
from hookline.loop.tasks.supervised import note_loss_error, note_model_error, own_loss_of, title_of
from hookline.run import MISSING
from hookline.run.targets import PARTS

if TYPE_CHECKING:
    from hookline.loop.loop import Loop

TrainBatch = Callable[[Any, Any], Any]
ONE = (1,)  # the shape that a number is counted by
BETWEEN, COUNTING, COMPUTING, UPDATING, MOVED = range(5)  # where in a step an error comes


def plain_steps(loop: Loop, train_batch: TrainBatch) -> None:
    """As many steps as come before something is due, asked for, or heard; none at all if steps are not plain."""
    line, requests, pairs = loop.line, loop.requests, True
    while (
        loop.steps_are_plain
        and line.hooks.plain
        and len(loop._names) == 1
        and loop.in_hand is not END
        and loop.in_hand is not LEFT
        and not loop.look_due
        and not requests.attention
        and loop.data.position < loop.data.length - 1
    ):
        loop._skipped, loop._window_start = False, None
        compute = own_loss_of(loop.session.task) if pairs else None
        if compute is None or loop.weights.raw:
            steps_of_task(loop, train_batch)
        else:
            pairs = steps_of_pairs(loop, train_batch, compute)


def steps_of_task(loop: Loop, train_batch: TrainBatch) -> None:
    """Up to the next look, with a ``train_batch`` of the user's, who may do anything in it."""
    state, line, clock, requests, session = loop.state, loop.line, loop.clock, loop.requests, loop.session
    hooks, name, swapped = line.hooks, loop._names[0], loop.weights.raw
    position, last = loop.data.position, loop.data.length - 1
    iterator, move, count, losses = loop.data.iterator, loop.move, loop.count, loop._losses
    course, agenda, weights = loop.course, loop.course.agenda, loop.loss_weights
    while loop.steps_are_plain and hooks.plain and line.hooks is hooks and not requests.attention and position < last:
        requests.waiting = True
        try:
            batch, loop.in_hand = next(iterator, END) if loop.in_hand is MISSING else loop.in_hand, MISSING
        except BaseException as error:
            batch = session.fetcher.after_failure(error)
        requests.waiting = False
        if batch is END or batch is LEFT:
            loop.in_hand = batch
            break
        state.batch = state.outputs = state.loss = MISSING
        loop.data.position = position = position + 1
        batch = state.batch = batch if move is None else move(batch)
        requests.can_skip = True
        if hooks.train_step_start:
            line.emit(hooks.train_step_start)
            batch = state.batch
            if not hooks.plain or not loop.steps_are_plain:
                _finish(loop, train_batch)
                break
        loop._window, loop._batch_open, loop._window_full = 1, True, True
        samples, tokens = loop.state.samples, loop.state.tokens = count(batch)
        try:
            loss = train_batch(session.run, batch)
        except StopTraining as stop:
            loop.drop_batch(stop.reason, title_of(session.task))
            break
        odd = loss.__class__ is not Tensor or loss.ndim or loop._touched or loop._driven or swapped
        if odd or requests.agreed.skip or not hooks.plain or not loop.steps_are_plain:
            _general(loop, loss)
            break
        state.loss = loss
        try:
            loss.backward()
        except Exception as error:
            raise_explained(loss, session.state.where(), error)
        if requests.agreed.skip:  # by a hook of a gradient's
            loop.step()
            break
        if losses is not None:  # read before the update: it may be a view of a weight; see number_or_copy
            value = loss.tolist() if loss.is_cpu else loss.detach().clone()
        clock.batch, clock.sample, clock.token = clock.batch + 1, clock.sample + samples, clock.token + (tokens or 0)
        _update(loop, state.optimizers[name], name)
        weight = None if weights is None else weights.in_training(needed=False)
        if losses is not None:
            losses.values.append(value)
            losses.weights.append(samples if weight is None else weight)
        clock.step += 1
        if hooks.train_step_end:
            line.emit(hooks.train_step_end)
        if clock.step >= agenda.wake:
            if requests.attention or not course.take_sample():
                loop.look()
                break
            hooks = line.hooks


def steps_of_pairs(loop: Loop, train_batch: TrainBatch, compute: Any) -> bool:
    """Up to the next look, with a plain model, a loss of torch's and batches of two: without the calls of a task.

    What counts is how many objects a step touches, because all are cold. Whether all batches were pairs; if not, one is
    in hand.
    """
    state, line, clock, requests, task = loop.state, loop.line, loop.clock, loop.requests, loop.session.task
    hooks, name, modules, swapped = line.hooks, loop._names[0], task._modules, loop.weights.raw
    optimizer, schedulers = state.optimizers[name], state.schedulers
    iterator, move, count, losses = loop.data.iterator, loop.move, loop.count, loop._losses
    course, agenda, wake = loop.course, loop.course.agenda, loop.course.agenda.wake
    data, by_rows = loop.data, count is count_rows
    position, last = data.position, data.length - 1
    heard, model = bool(hooks.train_step_start or hooks.train_step_end), modules["model"]
    samples, tokens, stage = loop.state.samples, loop.state.tokens, BETWEEN
    changed = due = handed = False
    if task.loss_weights.loss is not compute:
        task.loss_weights.choose(compute, model)
    weigh, usual = task.loss_weights.in_plain_step, task.loss_weights.has_usual_targets
    try:
        while not requests.attention and position < last:
            requests.waiting = True
            try:
                batch = next(iterator, END)
            except BaseException as error:
                batch = loop.session.fetcher.after_failure(error)
            requests.waiting = False
            if batch.__class__ not in PARTS or len(batch) != 2:
                loop.in_hand = batch
                return False
            # Outputs may be large, and go; `loss` stays until the next: its graph is dearer to free before a forward.
            outputs = state.batch = state.outputs = state.loss = MISSING
            position += 1
            batch = state.batch = batch if move is None else move(batch)
            requests.can_skip = True
            if heard:
                data.position = position
                for hook, run in hooks.train_step_start:  # line.emit, without the call
                    try:
                        hook(run)
                    except BaseException as error:
                        if not line.tolerates(run, "on_train_step_start", error):
                            raise
                other = not hooks.plain or not loop.steps_are_plain or swapped or modules["loss"] is not compute
                if other or requests.agreed.skip or state.batch is not batch or len(batch) != 2:  # by a hook
                    handed = True
                    _finish(loop, train_batch)
                    break
                model, optimizer = modules["model"], state.optimizers[name]
            stage = COUNTING
            x, y = batch
            samples, tokens = ((x.shape or ONE)[0], None) if by_rows and x.__class__ is Tensor else count(batch)
            stage = COMPUTING
            outputs = state.outputs = model(x)
            loss = state.loss = compute(outputs, y)
            loss.backward()
            if requests.agreed.skip:  # by a hook of the model's, or of a gradient's
                loop.state.samples, loop.state.tokens, stage, handed = samples, tokens, BETWEEN, True
                _open(loop)
                loop.step()
                break
            clock.batch += 1
            clock.sample += samples
            if tokens is not None:
                clock.token += tokens
            state.optimizer, requests.can_skip, stage = optimizer, False, UPDATING
            optimizer.step()
            stage = MOVED
            clock.updates[name] += 1
            if schedulers:
                loop._move_schedulers(name)
            clear_gradients(optimizer)
            state.optimizer = MISSING
            if losses is not None:
                losses.values.append(loss.tolist() if loss.is_cpu else loss.detach().clone())  # see number_or_copy
                # Flat targets of classes are as many as the samples: to count those that are ignored would cost 4 µs.
                if weigh is None or (usual and y.ndim == 1):
                    losses.weights.append(samples)
                else:
                    weight = weigh(outputs, batch, y)
                    losses.weights.append(samples if weight is None else weight)
            clock.step = step = clock.step + 1
            stage = BETWEEN
            if heard:
                loop.state.samples, loop.state.tokens = samples, tokens
                for hook, run in hooks.train_step_end:
                    try:
                        hook(run)
                    except BaseException as error:
                        if not line.tolerates(run, "on_train_step_end", error):
                            raise
                wake, changed = agenda.wake, not hooks.plain or not loop.steps_are_plain
            due = step >= wake
            if due and not changed and not requests.attention and course.take_sample():
                hooks, wake, due = line.hooks, agenda.wake, False
            elif due or changed:
                break
    except BaseException as error:
        if stage == BETWEEN:  # in a fetch, a hook, or on the general way
            raise
        _end_inside(loop, stage, error)
    finally:
        data.position = position
        if not handed:
            loop.state.samples, loop.state.tokens = samples, tokens
    if due:
        loop.look()
    return True


def _update(loop: Loop, optimizer: Any, name: str) -> None:
    loop._batch_open = loop.requests.can_skip = False
    loop.state.optimizer = optimizer
    optimizer.step()
    loop._moved = True
    loop.clock.updates[name] += 1
    if loop.state.schedulers:
        loop._move_schedulers(name)
    clear_gradients(optimizer)
    loop.state.optimizer = MISSING
    loop._window, loop._moved = 0, False


def _open(loop: Loop) -> None:
    """A batch is under way, as the general way sees it."""
    clock, several = loop.clock, loop._accumulate > 1  # since a moment ago, by a hook
    loop._window, loop._batch_open, loop._window_full = 1, True, not several
    loop._window_start = (clock.batch, clock.sample, clock.token) if several else None


def _end_inside(loop: Loop, stage: int, error: BaseException) -> None:
    """The computation of a step has failed, or has asked to stop."""
    state, task = loop.state, loop.session.task
    loss = state.loss
    _open(loop)
    loop._batch_open, loop._moved = stage in (COUNTING, COMPUTING), stage == MOVED
    if stage == COMPUTING and isinstance(error, Exception) and state.outputs is MISSING:
        note_model_error(error, task.model, state.batch)
    elif stage == COMPUTING and isinstance(error, Exception) and loss is MISSING:
        note_loss_error(error, task.loss, state.outputs, state.batch[1], state.batch)
    if isinstance(error, StopTraining) and loss is MISSING:
        loop.drop_batch(error.reason, title_of(loop.session.task))
    elif isinstance(error, Exception) and loss is not MISSING:
        raise_explained(loss, loop.state.where(), error)
    else:
        raise error


def _finish(loop: Loop, train_batch: TrainBatch) -> None:
    """The rest of a step whose start was heard by somebody who made it another than a plain one."""
    _open(loop)
    if not loop.line.hooks.plain:
        loop.open_batch()
    loop.state.samples, loop.state.tokens = loop.count(loop.state.batch)
    try:
        found = train_batch(loop.session.run, loop.state.batch)
    except StopTraining as stop:
        loop.drop_batch(stop.reason, title_of(loop.session.task))
    else:
        _general(loop, found)


def _general(loop: Loop, found: Any) -> None:
    """What comes after a batch's computation, on the general way."""
    if isinstance(found, dict):
        check_returned("train_batch", found)
        loop.backward(found["loss"], weight=found.get("weight"), outputs=found.get("outputs"))
    elif found is not None:
        loop.backward(found)
    loop.steps_are_plain &= isinstance(found, Tensor)  # a task that gives more than a loss always does
    loop.step()
