"""Training: the one engine of Hookline, which reads from top to bottom.

``batches`` hands out the training batches; ``backward`` and ``step`` (``step.py``) are called on each; events,
windows and the clock happen around them. What happens at the edges of epochs is in ``course.py``.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import Any

from hookline.loop.data import END, LEFT, sure_length, to_device
from hookline.loop.session import Session
from hookline.loop.step import Steps
from hookline.loop.task import counter
from hookline.run import MISSING


class Training(Steps):
    """Epochs and batches. ``Loop`` adds what surrounds them."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.counter = self.count = counter(session.task)
        self.iterator: Iterator[Any] = iter(())  # of this epoch
        self.position = 0  # batches that it has given
        self.length: float = math.inf
        self.exhausted: Any = None  # END or LEFT, once a plain step has met it
        self.steps_are_plain = self._bare and not self._autocast
        # On the CPU a number is the cheapest copy of a loss. On a device nothing is read before an interval ends.
        self.losses_as_numbers = self.state.device.type == "cpu"
        self.move = None if self.state.device.type == "cpu" else (lambda batch: to_device(batch, self.state.device))

    def _train(self, loader: Any) -> Generator[Any, None, None]:
        mark = len(self.scopes)
        try:
            self.course.start_training()
            while not self.course.decided():
                yield from self._epoch(loader)
            self.course.end_training(mark)
        except GeneratorExit:  # break, return or an exception in the body: which of them, the next call knows
            self.handles.leave(self.scopes, mark, finish=self.course.end_broken_training)
            self._drop_window()
        except BaseException as error:
            self.scopes.leave(mark, because=error)
            raise

    def _epoch(self, loader: Any) -> Generator[Any, None, None]:
        state, line, scopes, requests, course = self.state, self.line, self.scopes, self.requests, self.course
        accumulate, autocast, move, clock = self.settings.accumulate, self._autocast, self.move, self.clock
        fetch, count, length = self.session.fetch, course.counting(self.counter), sure_length(loader) or math.inf
        self.count, self.length = count, length
        self.iterator = iterator = course.start_epoch(loader)
        self.position = clock.batch_in_epoch
        self.exhausted = None
        while True:
            hooks = line.hooks
            state.batch = state.outputs = state.loss = MISSING
            if hooks.batch_fetch_start and self.exhausted is None:
                line.emit(hooks.batch_fetch_start)
            batch = fetch(iterator) if self.exhausted is None else self.exhausted
            if batch is END or batch is LEFT:
                break
            self.position = position = self.position + 1
            state.batch = batch if move is None else move(batch)
            if hooks.batch_fetch_end:
                line.emit(hooks.batch_fetch_end)
            if not self._window:
                requests.can_skip, self._skipped = True, False
                if accumulate > 1:
                    self._window_start = (clock.batch, clock.sample, clock.token)
                if hooks.around_step:
                    self._step_mark = len(scopes)
                    scopes.enter(hooks.around_step)
                if hooks.train_step_start:
                    line.emit(hooks.train_step_start)
            self._window += 1
            if position == length:
                course.at_edge, course.agenda.wake = True, 0
            self._window_full = self._window == accumulate or position == length
            self._batch_open = True
            if hooks.around_batch or hooks.train_batch_start:
                self.open_batch()
            self.samples, self.tokens = count(state.batch)
            if autocast:
                with self.precision.autocast():
                    yield state.batch
            else:
                yield state.batch
            if self._batch_open:  # the body drove its optimizers itself
                self.step()
            if self._window:
                continue
            if (requests.attention or line.hooks.step_settled) and self._settle():
                break
        if self._window and batch is END and length is math.inf:  # that was the edge: its window is short
            course.at_edge, course.agenda.wake, self._window_full = True, 0, True
            self._complete_window()
            self._settle()
        if course.epoch_open:
            self._drop_window()
            course.cut_epoch(exhausted=batch is END, position=self.position, length=length)

    def _settle(self) -> bool:
        """The edge of a step: evaluate, end the epoch, decide. Whether the epoch is over."""
        if self.requests.attention:
            self.handles.settle()
            self.course.settle_edge()
        if not self._skipped:
            self.line.emit(self.line.hooks.step_settled)
        return self.requests.attention and (self.course.decided() or not self.course.epoch_open)
