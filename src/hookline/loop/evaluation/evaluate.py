"""One evaluation or prediction: a generator of the batches of some loaders, which leaves training as it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import torch

from hookline.distributed.random_states import same_random_state
from hookline.errors import DataError, Preempted
from hookline.events import Scopes
from hookline.loop.data.batches import END, LEFT, begun, generators, second_iterator, sure_length
from hookline.loop.data.fetcher import Fetcher
from hookline.loop.data.shard_batch import ShardBatch
from hookline.loop.data.training_data import TrainingData
from hookline.loop.data.workers import Workers, end_at_exit, ignoring_workers
from hookline.loop.evaluation.handles import Handles
from hookline.loop.evaluation.over_ranks import open_shard, shards_of_predictions
from hookline.loop.evaluation.untouched import same_gradients, same_modes
from hookline.loop.metrics.book import MetricBook
from hookline.loop.model.precision import Precision
from hookline.loop.record.records import Records
from hookline.loop.world.world import Alone, World
from hookline.progress import EvalClock
from hookline.run import MISSING, RunState
from hookline.run.audience import Audience

Count = Callable[[Any], tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an evaluation or a prediction."""

    metrics: dict[str, Any] = field(default_factory=dict)
    is_left: bool = False
    """``StopTraining`` or Ctrl-C has left it before its end, so it has no metrics."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The names of the events of an evaluation or a prediction."""

    scope: str
    start: str
    end: str
    batch_start: str
    batch_end: str


EVALUATION: Final = Kind("around_eval", "eval_start", "eval_end", "eval_batch_start", "eval_batch_end")
PREDICTION: Final = Kind("around_predict", "predict_start", "predict_end", "predict_batch_start", "predict_batch_end")


class Evaluator:
    """Runs evaluations and predictions.

    Args:
        state: The state of the run.
        world: The processes of the run.
        scopes: The open scopes.
        book: The metrics of the run.
        records: The record of the run.
        fetcher: Waits for batches.
        data: The loaders and limits of the run.
        precision: The precision of the forward.
        handles: The generators that the body of a custom loop holds.
        count: Counts the samples and tokens of a batch.
        move: Moves a batch to the device, or ``None`` on the CPU.
        can_be_left: Returns whether a signal may end the evaluation under way. An evaluation that a resume does not
            repeat is completed first.
        when_broken: Called with the stage, and whether it was left, when an evaluation is finished that the body has
            left by ``break``.
    """

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
        handles: Handles,
        count: Count,
        move: Callable[[Any], Any] | None,
        can_be_left: Callable[[], bool],
        when_broken: Callable[[str, bool], None],
    ) -> None:
        self._state, self._world, self._scopes, self._book, self._records = state, world, scopes, book, records
        self._fetcher, self._data, self._precision, self._handles = fetcher, data, precision, handles
        self._count, self._move, self._can_be_left, self._when_broken = count, move, can_be_left, when_broken
        self._line, self._requests, self._clock = state.line, state.requests, state.clock
        self._joined = world
        self.leave_world()
        self.shard: ShardBatch | None = None
        """In several processes: the shard of the batch under way."""

    def leave_world(self) -> None:
        """The run is closing: an evaluation in ``on_teardown`` is one of this process alone."""
        self._world = Alone()

    def join_world(self) -> None:
        """The run is opened: evaluations are those of all processes."""
        self._world = self._joined

    # -- the whole -------------------------------------------------------------------------------

    def evaluate(
        self, loaders: dict[str | None, Any], stage: str, audience: Audience = Audience.ALL, *, limit: int | None = None
    ) -> Generator[Any, None, Outcome]:
        """Give the batches of one evaluation, and return how it has ended.

        Only with ``Audience.ALL``, hooks are called and metrics are kept.

        Args:
            loaders: The loaders by name. A single loader has the name ``None``.
            stage: ``"val"`` or ``"test"``.
            audience: For whom the evaluation is made.
            limit: The largest number of batches of each loader.
        """
        return self._run(EVALUATION, loaders, stage, audience, limit)

    def predict(
        self, loader: Any, audience: Audience = Audience.ALL, *, name: str | None = None
    ) -> Generator[Any, None, Outcome]:
        """Give the batches of one prediction, and return how it has ended."""
        return self._run(PREDICTION, {name: loader}, "predict", audience, None)

    def _run(
        self, kind: Kind, loaders: dict[str | None, Any], stage: str, audience: Audience, limit: int | None
    ) -> Generator[Any, None, Outcome]:
        state, line, scopes, book, requests = self._state, self._line, self._scopes, self._book, self._requests
        is_heard, began, mark, left = audience is Audience.ALL, perf_counter(), len(scopes), False
        if is_heard:
            requests.set_leave_evaluation(False)
        with self.untouched(stage, list(loaders.values()), audience):
            self._world.before_evaluation()  # All ranks evaluate one model: buffers are those of rank zero.
            if is_heard and kind is EVALUATION:
                self._data.check_replaced(stage, self._world)
            depth = book.open_layer(None if is_heard else state.module)
            try:
                if kind is PREDICTION:
                    state.show_loader(next(iter(loaders)))
                if is_heard:
                    scopes.enter(getattr(line.hooks, kind.scope))
                state.module.eval()
                line.emit(getattr(line.hooks, kind.start))
                if kind is EVALUATION:
                    left = yield from self._loaders(loaders, limit)
                else:
                    yield from self._batches(kind, next(iter(loaders.values())), limit)
                if not left:
                    line.emit(getattr(line.hooks, kind.end))
                if is_heard:
                    scopes.leave(mark)
                    self._note(kind, stage, perf_counter() - began, ", left before its end" if left else "")
                metrics = book.drop_layers(depth) if left else book.close_layer(keep=is_heard)
            except GeneratorExit:
                if not is_heard:
                    book.drop_layers(depth)
                    return Outcome()
                layer, name, clock = book.detach_layer(), state.loader_name, self._clock.eval
                self._world.body_left()
                self._handles.leave(scopes, mark, finish=lambda: self._finish(kind, stage, name, layer, clock))
                return Outcome()
            except BaseException as error:
                scopes.leave(mark, because=error)
                book.drop_layers(depth)
                raise
        return Outcome(metrics, is_left=left)

    def _note(self, kind: Kind, stage: str, took: float, how: str) -> None:
        if kind is EVALUATION:
            self._records.note("eval", f"{stage}{how}", took=took)

    def _loaders(self, loaders: dict[str | None, Any], limit: int | None) -> Generator[Any, None, bool]:
        """Give the batches of each loader. Return whether a rank has left the evaluation, so that nothing counts."""
        state, line, book = self._state, self._line, self._book
        for name, loader in loaders.items():
            state.show_loader(name)
            line.emit(line.hooks.eval_loader_start)
            yield from self._batches(EVALUATION, loader, limit)
            if book.agree(left=self._leave()):
                return True
            line.emit(line.hooks.eval_loader_end)
            book.end_loader()
            state.show_loader(MISSING)
        return book.agree(left=self._leave())

    def _finish(self, kind: Kind, stage: str, name: Any, layer: Any, clock: EvalClock) -> None:
        """Finish what the body has left by ``break``, on all ranks.

        The metrics of an evaluation so far count, unless ``StopTraining`` has left it. Those of a prediction do not.
        """
        book, state, line, requests = self._book, self._state, self._line, self._requests
        with self.untouched(stage, []):
            self._clock.eval.continue_from(clock)
            book.attach_layer(layer)
            self._world.leave_body()
            state.show_loader(name)
            if kind is PREDICTION:
                book.agree()
                book.drop_layers(book.depth - 1)
                line.emit(line.hooks.predict_end)
                return
            left = book.agree(left=requests.leave_evaluation)
            if not left:
                line.emit(line.hooks.eval_loader_end)
            state.show_loader(MISSING)
            left = left or book.agree(left=requests.leave_evaluation)
            if left:
                book.drop_layers(book.depth - 1)
            else:
                line.emit(line.hooks.eval_end)
                book.close_layer(keep=True)
        self._note(kind, stage, clock.seconds, ", left before its end" if left else ", left by break")
        self._when_broken(stage, left)

    # -- batches ---------------------------------------------------------------------------------

    def _batches(self, kind: Kind, loader: Any, limit: int | None) -> Generator[Any, None, None]:
        """Give the batches of one loader on this rank, moved and counted, each between its events."""
        if self._world.is_alone:
            yield from self._with_events(kind, self._fetched(loader, limit))
            return
        if not self.is_answer:
            self._world.begin_votes_of_evaluation()
        yield from self._with_events(kind, self._fetched_shard(loader, limit))

    def _with_events(self, kind: Kind, batches: Iterator[Any]) -> Generator[Any, None, None]:
        state, line, world, requests = self._state, self._line, self._world, self._requests
        clock, autocasts, seen = self._clock.eval, self._precision.dtype is not None, 0
        for batch in batches:
            seen += 1
            if not world.is_alone and (self._leave() or (self.shard is not None and not self.shard.counts)):
                world.before_eval_batch()
                yield from self._idle_batch(batch)
                world.body_ended()
                self._make_up()
                if self._agree_to_leave():
                    return
                continue
            state.show_batch(batch)
            if heard := getattr(line.hooks, kind.batch_start):
                line.emit(heard)
            state.count_batch(*self._count(state.batch))  # A hook may have replaced the batch.
            world.before_eval_batch()
            if autocasts:
                with self._precision.autocast():
                    yield state.batch
            else:
                yield state.batch
            world.body_ended()
            if requests.leave_evaluation:
                self._make_up()
            clock.batch_done(state.samples, state.tokens)
            if heard := getattr(line.hooks, kind.batch_end):
                line.emit(heard)
            state.show_batch(MISSING)
            if self._agree_to_leave():
                return
        if not seen and not self._leave():
            raise DataError(f"the {state.stage} loader gave no batch; is it empty, or an iterator that is used up?")

    def _fetched(self, loader: Any, limit: int | None) -> Iterator[Any]:
        """Give the batches of a loader between the events of their fetch, in one process."""
        state, line, move, may_be_left = self._state, self._line, self._move, self._may_be_left()
        length = sure_length(loader)
        last = min(length or math.inf, limit or math.inf, self._data.limit(state.stage))
        with ignoring_workers(loader):
            iterator, position = begun(lambda: iter(loader)), 0
        workers = Workers()
        second = state.audience is not Audience.ALL and self._is_trained_on(loader)  # See second_iterator.
        if second or not getattr(loader, "persistent_workers", False):
            workers.watch(iterator)  # A worker that never returns ignores torch's SIGTERM, and torch waits forever.
        else:
            end_at_exit(iterator)
        try:
            while position < last:
                if line.hooks.batch_fetch_start:
                    line.emit(line.hooks.batch_fetch_start)
                batch = self._next(iterator, may_be_left=may_be_left)
                if batch is LEFT:
                    return
                if batch is END:
                    if length is not None:
                        raise DataError(
                            f"the {state.stage} loader ended after {position} of {length} batches; "
                            f"a StopIteration that is raised inside a data set ends it like this"
                        )
                    return
                position += 1
                state.show_batch(batch if move is None else move(batch))
                if line.hooks.batch_fetch_end:
                    line.emit(line.hooks.batch_fetch_end)
                yield state.batch
        finally:
            workers.end()

    def _fetched_shard(self, loader: Any, limit: int | None) -> Iterator[Any]:
        """Give the batches of this rank between the events of their fetch. A batch that does not count has none."""
        state, line, move, before = self._state, self._line, self._move, self.shard
        may_be_left = self._may_be_left()
        most = min(limit or math.inf, self._data.limit(state.stage))
        feed = open_shard(loader, self._world, self._data.seed, state.stage, self._count, most)
        try:
            shards = begun(lambda: feed.iterate(self._clock.step, 0))
            idle, ends = feed.begins_idle, False
            while not ends:
                if line.hooks.batch_fetch_start and not idle:
                    line.emit(line.hooks.batch_fetch_start)
                shard = self._next(shards, may_be_left=may_be_left)
                if shard is LEFT or shard is END:
                    return
                self._world.beat()
                self.shard = shard
                state.show_batch(shard.batch if move is None else move(shard.batch))
                if line.hooks.batch_fetch_end and shard.counts:
                    line.emit(line.hooks.batch_fetch_end)
                yield state.batch
                ends, idle = shard.is_last, shard.then_idle or not shard.counts
        finally:
            self.shard = before
            feed.close()

    def _idle_batch(self, batch: Any) -> Generator[Any, None, None]:
        """Give a batch that is computed only because the other ranks compute one. Nothing of it counts."""
        state, book = self._state, self._book
        state.show_outputs(MISSING)
        state.count_batch(*self._count(batch))
        book.mute()
        try:
            with self._precision.autocast(enabled=self._precision.dtype is not None):
                yield batch
        finally:
            book.unmute()
            state.show_batch(MISSING)

    def _make_up(self) -> None:
        """Make the forward of a batch that was left before it: the ranks of a sharded model wait for it."""
        with self._precision.autocast(enabled=self._precision.dtype is not None):
            self._world.make_up_batch()

    def _next(self, iterator: Iterator[Any], *, may_be_left: bool) -> Any:
        """Return the next batch, unless a signal ends the evaluation before it or during the wait."""
        agreed = self._requests.agreed
        if agreed.preempt is not None and may_be_left:
            raise Preempted(agreed.preempt)
        batch = self._fetcher.fetch(iterator, leave=not self.is_answer, whole=not may_be_left)
        if agreed.preempt is not None and may_be_left:
            raise Preempted(agreed.preempt)
        return batch

    def all_predictions(self, mine: list[Any]) -> list[Any]:
        """Return the predictions of all ranks, in the order of the loader. All ranks must call it."""
        return mine if self._world.is_alone else shards_of_predictions(self._world, self._state.device, mine)

    # -- leaving ---------------------------------------------------------------------------------

    @property
    def is_answer(self) -> bool:
        """True inside ``run.evaluate`` and ``run.predict``, which no stop and no signal cuts short."""
        return self._state.audience is Audience.ANSWER

    def _may_be_left(self) -> bool:
        return not self.is_answer and self._can_be_left()

    def _leave(self) -> bool:
        """Leave the evaluation under way after Ctrl-C or ``StopTraining``. Return whether it is left."""
        return not self.is_answer and self._requests.leave_if_interrupted()

    def _agree_to_leave(self) -> bool:
        """Agree with all ranks, after a batch, on whether they leave the evaluation here.

        A rank that wants to leave continues with batches that count nothing until the next vote.
        """
        if self._world.is_alone:
            return self._leave()
        abandons = None if self.is_answer else self._world.vote_in_evaluation(abandons=self._leave())
        if abandons is None:
            return False
        if abandons:
            self._requests.set_leave_evaluation(True)
        return self._leave()

    # -- nothing stays changed -------------------------------------------------------------------

    @contextmanager
    def untouched(self, stage: str, loaders: list[Any], audience: Audience = Audience.ALL) -> Iterator[None]:
        """After the block, also after an error, restore modes, random states, gradients, grad mode, stage and batch."""
        state, line = self._state, self._line
        with ExitStack() as stack:
            stack.enter_context(same_random_state([g for loader in loaders for g in generators(loader)]))
            for loader in loaders:
                if audience is not Audience.ALL and self._is_trained_on(loader):
                    stack.enter_context(second_iterator(loader))
            stack.enter_context(same_gradients(state.module))
            stack.enter_context(same_modes(state.module))
            stack.enter_context(torch.no_grad())
            stack.enter_context(state.aside(stage, audience))
            # The costs of a step are those of training.
            stack.enter_context(line.heard_through(line.fast if audience is Audience.ALL else line.silent))
            self._clock.begin_eval()
            stack.callback(self._clock.end_eval)
            yield

    def _is_trained_on(self, loader: Any) -> bool:
        """Whether training reads from this loader, or will."""
        return loader is self._data.loader or loader is self._state.loaders.get("train")
