"""``trial``: training steps that leave no trace, to find a learning rate or a batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hookline.errors import DataError, ScopeError, SetupError
from hookline.loop.data import Feed, SharedFeed
from hookline.loop.data.batches import is_one_shot
from hookline.loop.data.loaders import check_loader
from hookline.loop.data.shard_batch import ShardBatch
from hookline.loop.data.training_data import make_feed
from hookline.loop.engine.edge import EpochPhase
from hookline.loop.evaluation.untouched import same_gradients, same_modes
from hookline.loop.tasks.supervised import title_of
from hookline.loop.world.world import Alone
from hookline.run import MISSING
from hookline.run.audience import Audience

if TYPE_CHECKING:
    from hookline.loop.engine.engine import Engine


class Trial:
    """The batches and training steps of a trial. Schedulers do not step, and no hook is called.

    Args:
        engine: The engine.
        weights: Copies of the weights before the trial, by name.
    """

    def __init__(self, engine: Engine, weights: Mapping[str, Tensor]) -> None:
        self._engine = engine
        self.weights = weights
        """Copies of the weights before the trial, by name."""
        self._shard = ShardBatch(None)  # The last batch that `batches` has yielded.

    def batches(self, count: int, loader: Any = None, *, whole: bool = False) -> Iterator[Any]:
        """Iterate over the first batches of a loader, and again from its start if it has fewer.

        Args:
            count: Number of batches, on each rank.
            loader: The loader. ``None``: the training loader.
            whole: True to give the same batches to all ranks, in place of a shard of them to each.

        Raises:
            SetupError: If the loader can be iterated over only once.
            DataError: If the loader has no batches.
        """
        engine = self._engine
        loader = engine.state.loaders.get("train") if loader is None else loader
        check_loader(loader, "training")
        if is_one_shot(loader):
            raise SetupError("a trial would use up a loader that can be iterated over only once; pass a DataLoader")
        feed: Feed = make_feed(loader, engine.data.seed, engine.state.rank, Alone() if whole else engine.world)
        given = epoch = 0
        try:
            while given < count:
                before = given
                for batch in feed.iterate(epoch, 0):
                    self._shard = batch if isinstance(feed, SharedFeed) else ShardBatch(batch)
                    yield self._shard.batch
                    given += 1
                    if given == count:
                        return
                if given == before:
                    raise DataError("the training loader gave no batch to try")
                epoch += 1
        finally:
            feed.close()

    def step(self, batch: Any) -> Tensor:
        """Make one training step, with forward, backward and update, and return its loss.

        Args:
            batch: A batch of ``batches``.

        Raises:
            SetupError: If ``train_batch`` returns no loss.
        """
        found = self.attempt(batch)
        if found is None:
            task = self._engine.state.task
            raise SetupError(f"{title_of(task)}.train_batch gave no loss, so a trial cannot judge its steps")
        return found

    def attempt(self, batch: Any) -> Tensor | None:
        """Make one training step, and return its loss. ``None`` if ``train_batch`` returns none.

        Args:
            batch: A batch, of ``batches`` or made from one.
        """
        engine, shard = self._engine, self._shard if self._shard.batch is batch else ShardBatch(batch)
        found = engine.steps.try_batch(engine.run, batch, shard)
        return None if found is MISSING else found.detach().clone()


@contextmanager
def trial(engine: Engine) -> Iterator[Trial]:
    """Open a trial. After the block the run is bitwise as before it, also after an error.

    Args:
        engine: The engine.

    Raises:
        SetupError: If the run has no task, as in a custom loop.
        ScopeError: If an epoch has begun.
    """
    state, line, book, module = engine.state, engine.line, engine.book, engine.state.module
    if not hasattr(engine.state.task, "train_batch"):
        raise SetupError("a trial needs a task with train_batch(run, batch): use Trainer.fit, not a custom loop")
    if engine.edge.epoch_phase is not EpochPhase.CLOSED:
        raise ScopeError("run.trial(): an epoch is under way; call it in on_fit_start or on_train_start")
    snapshot, clock = engine.snapshots.take_training(), engine.clock.state_dict()
    loader: Any = state.loaders.get("train")
    has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    position = deepcopy(loader.state_dict()) if has_state else None
    schedulers = state.schedulers[:]
    with ExitStack() as stack:
        stack.enter_context(same_gradients(module))
        stack.enter_context(same_modes(module))
        stack.enter_context(torch.enable_grad())
        depth = book.open_layer(module)
        state.schedulers.clear()
        stack.enter_context(engine.steps.without_losses())
        stack.enter_context(engine.agenda.asleep())
        stack.enter_context(line.heard_through(line.silent))
        stack.enter_context(state.aside("train", Audience.TRIAL))
        engine.training.set_train_mode()
        try:
            yield Trial(engine, snapshot["weights"])
        finally:
            engine.steps.drop()
            state.schedulers[:] = schedulers
            book.drop_layers(depth)
            engine.snapshots.restore(snapshot, is_last=True)
            engine.clock.load_state_dict(clock)
            if position is not None:
                loader.load_state_dict(position)
