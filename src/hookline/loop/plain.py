"""Plain steps: what most runs are made of, with nothing between the computation and the next one.

One optimizer, one batch a step, no autocast, and nobody who hears what happens inside a step: then a step is
this one function, a third of the Python that the general way needs (``training.py``, ``step.py``). All that
can be seen from outside is the same, which ``tests/loop/test_plain.py`` shows by running everything both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookline.errors import StopTraining
from hookline.loop.answers import check_returned
from hookline.loop.data import END, LEFT
from hookline.loop.gradients import raise_explained
from hookline.loop.supervised import PARTS, parts_of
from hookline.run import MISSING

if TYPE_CHECKING:
    from hookline.loop.loop import Loop


def plain_steps(loop: Loop, train_batch: Callable[[Any, Any], Any]) -> None:
    """As many steps as come before something is due, asked for, or heard; none at all if steps are not plain."""
    state, line, clock, requests, session = loop.state, loop.line, loop.clock, loop.requests, loop.session
    hooks, run, task, names = line.hooks, session.run, session.task, loop._names
    if not (loop.steps_are_plain and hooks.plain and len(names) == 1):
        return
    name, optimizer, updates = names[0], state.optimizers[names[0]], clock.updates
    iterator, move, count, position, last = loop.iterator, loop.move, loop.count, loop.position, loop.length - 1
    losses, agenda, swapped = loop._losses, loop.course.agenda, loop.weights.raw
    parts, modules = parts_of(task), task._modules
    loop._skipped, loop._window_start = False, None
    while loop.steps_are_plain and hooks.plain and line.hooks is hooks and not requests.attention and position < last:
        state.batch = state.outputs = state.loss = MISSING
        requests.waiting = True
        try:
            batch = next(iterator, END)
        except BaseException as error:
            batch = session.after_failed_fetch(error)
        requests.waiting = False
        if batch is END or batch is LEFT:
            loop.exhausted = batch
            break
        loop.position = position = position + 1
        batch = state.batch = batch if move is None else move(batch)
        requests.can_skip = True
        if hooks.train_step_start:
            line.emit(hooks.train_step_start)
            batch = state.batch
        loop._window, loop._batch_open = 1, True
        if not hooks.plain:  # a hook has just added somebody who hears more
            loop.open_batch()
            parts = None
        loop._window_full = loop._accumulate == 1
        samples, tokens = loop.samples, loop.tokens = count(batch)
        try:
            if parts is not None and modules["loss"] is parts[1] and batch.__class__ in PARTS and len(batch) == 2:
                state.outputs = outputs = modules["model"](batch[0])  # what train_batch would do, without its calls
                loss: Any = parts[1](outputs, batch[1])
                odd = loss.__class__ is not Tensor
            else:
                loss = train_batch(run, batch)
                odd = bool(loss.__class__ is not Tensor or loss.ndim or loop._touched or loop._driven)
        except StopTraining as stop:
            loop.drop_batch(stop.reason, type(task).__name__)
            break
        if odd or swapped or requests.skip is not None or not hooks.plain or not loop.steps_are_plain:
            _general(loop, loss)
            break
        state.loss = loss
        try:
            loss.backward()
        except Exception as error:
            raise_explained(loss, session.where(), error)
        optimizer.step()
        clock.batch, clock.sample, clock.token = clock.batch + 1, clock.sample + samples, clock.token + (tokens or 0)
        updates[name] += 1
        if losses is not None:
            losses.values.append(loss.tolist() if loss.is_cpu else loss.detach().clone())  # see number_or_copy
            losses.weights.append(samples)
        if state.schedulers:
            loop._move_schedulers(name)
        optimizer.zero_grad()
        loop._window, loop._batch_open, requests.can_skip = 0, False, False
        clock.step += 1
        if hooks.train_step_end:
            line.emit(hooks.train_step_end)
        if clock.step >= agenda.wake:
            loop.look()


def _general(loop: Loop, found: Any) -> None:
    """The rest of a step that turned out not to be plain."""
    if isinstance(found, dict):
        check_returned("train_batch", found)
        loop.backward(found["loss"], weight=found.get("weight"), outputs=found.get("outputs"))
    elif found is not None:
        loop.backward(found)
    loop.steps_are_plain &= isinstance(found, Tensor)  # a task that gives more than a loss always does
    loop.step()
