"""``MicroBatches``: compute batches that do not fit into memory in pieces."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from hookline.callbacks._losses import autocast_of, check_pair, check_plain, loss_of, same_statistics
from hookline.callbacks._memory import is_out_of_memory
from hookline.distributed.random_states import same_random_state
from hookline.errors import ArgumentError, DataError, SetupError, kind_of
from hookline.events import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from hookline.run import Run

logger = logging.getLogger("hookline")


class MicroBatches(Callback):
    """Compute a batch in pieces if it does not fit into memory, with the gradient of the whole batch.

    Before the first two steps, and before a batch that is larger than all before it, the callback tries forward and
    backward without a trace. While they do not fit, it halves the pieces. The model then computes each piece alone, and
    computes it again in the backward, so that only one piece is in memory. The loss is that of the whole batch.

    Args:
        size: Number of samples in a piece. ``None``: search for the largest size that fits.

    Raises:
        ArgumentError: If ``size`` is less than 1.
        SetupError: If a single sample does not fit, the model or a task computes its loss itself, the batch is not a
            pair of tensors, the model is compiled or sharded, or it has ``SyncBatchNorm`` and there are several ranks.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="1ep", callbacks=[micro := MicroBatches()], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> micro.size is None  # all batches fit
        True
    """

    reads = ("batch",)
    """The callback runs after those that change the batch."""
    state = ("size",)

    def __init__(self, size: int | None = None) -> None:
        if size is not None and size < 1:
            raise ArgumentError(f"MicroBatches(size={size!r}): must be >= 1.")
        self.size = size
        self._searches = size is None
        self._tried: dict[bool, int] = {}
        """Largest number of samples that was tried, before and after the first update."""

    def on_train_start(self, run: Run) -> None:
        check_plain(run, "MicroBatches")
        if run.is_sharded:
            raise SetupError(
                "MicroBatches: the weights are sharded, and each piece would gather them. Use accumulate=."
            )
        if run.task.model._compiled_call_impl is not None:
            raise SetupError("MicroBatches: the model is compiled as a whole. Leave out compile=, or use accumulate=.")
        if run.world_size > 1 and any(isinstance(part, nn.SyncBatchNorm) for part in run.task.model.modules()):
            raise SetupError(
                "MicroBatches: the model has SyncBatchNorm, which waits for all ranks in each piece, and ranks may "
                "have different numbers of pieces. Use BatchNorm, or a smaller batch size with accumulate=."
            )
        self._tried = {}

    def around_batch(self, run: Run) -> Iterator[None]:
        model = run.task.model
        own = vars(model).get("forward")  # The user may have replaced the method of the class.
        model.forward = partial(self._forward, model, model.forward)
        try:
            yield
        finally:
            if own is None:
                del model.forward
            else:
                model.forward = own

    def on_train_batch_start(self, run: Run) -> None:
        inputs, targets = check_pair(run, "MicroBatches")
        has_updated = any(optimizer.state for optimizer in run.optimizers.values())  # Its state needs memory.
        if self._searches and len(inputs) > self._tried.get(has_updated, 0):
            self._search(run, inputs, targets)
            self._tried[has_updated] = len(inputs)

    # -- pieces ----------------------------------------------------------------------------------

    def _forward(self, model: nn.Module, forward: Any, inputs: Tensor) -> Any:
        """Compute a batch in pieces, as ``forward`` of the model in a batch of training."""
        if self.size is None or len(inputs) <= self.size or not torch.is_grad_enabled():
            return forward(inputs)
        outputs = []
        for piece in torch.split(inputs, self.size):
            contexts = lambda: (nullcontext(), _counted_once(model))  # noqa: E731
            outputs.append(checkpoint(forward, piece, use_reentrant=False, context_fn=contexts))
            if not isinstance(outputs[-1], torch.Tensor) or len(outputs[-1]) != len(piece):
                raise DataError(
                    f"MicroBatches: the model returns {kind_of(outputs[-1])} for {len(piece)} samples. Let it return "
                    f"a tensor with one row per sample."
                )
        return torch.cat(outputs)

    # -- the search --------------------------------------------------------------------------------

    def _search(self, run: Run, inputs: Tensor, targets: Tensor) -> None:
        """Halve the pieces until one of them fits."""
        size = min(self.size or len(inputs), len(inputs))
        while not self._fits(run, inputs[:size], targets[:size]):
            if size == 1:
                raise SetupError("MicroBatches: a single sample does not fit into memory. Use a smaller model.")
            size = -(-size // 2)
        if size < len(inputs) and size != self.size:
            self.size = size
            run.log_event("micro_batches", f"pieces of {size} samples")
            logger.warning("MicroBatches computes batches in pieces of %d samples: %d do not fit", size, len(inputs))

    def _fits(self, run: Run, inputs: Tensor, targets: Tensor) -> bool:
        """Return whether forward and backward fit into memory. They leave no trace."""
        model = run.task.model
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        fits = True
        try:
            with same_random_state(), same_statistics(model), torch.enable_grad():
                with autocast_of(run):
                    loss = loss_of(run, model(inputs), targets)
                torch.autograd.grad(loss, parameters, allow_unused=True)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        # Inside the `except` block, the error would still hold the tensors that did not fit.
        if not fits:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return fits


@contextmanager
def _counted_once(model: nn.Module) -> Iterator[None]:
    """Compute a piece again, with the operations of its first computation and the same statistics of batch norms."""
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.training]
    kept = [(part, part.momentum, part.num_batches_tracked) for part in norms]
    for part, _, count in kept:
        part.momentum = 0.0
        part.num_batches_tracked = None if count is None else count.clone()
    try:
        yield
    finally:
        for part, momentum, count in kept:
            part.momentum, part.num_batches_tracked = momentum, count
