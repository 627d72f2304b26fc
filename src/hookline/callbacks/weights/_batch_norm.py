"""Compute batch norm statistics for averaged weights in one pass over the training data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hookline.distributed.random_states import same_random_state
from hookline.errors import SetupError

if TYPE_CHECKING:
    from hookline.run import Run

Call = Callable[[nn.Module, Any], Any]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics of all batch norms that are not frozen, by name."""
    return {
        f"{prefix}.{name}" if prefix else name: getattr(part, name)
        for prefix, part in model.named_modules()
        if _is_moving(part)
        for name in STATISTICS
    }


def computed_statistics(run: Run, weights: Mapping[str, Tensor], call: Call | None) -> dict[str, Tensor]:
    """Return the batch norm statistics for these weights: the mean over the training data.

    The result is the same as with ``torch.optim.swa_utils.update_bn``. The model is called as in an evaluation of the
    task, or by ``call(model, batch)``. A custom loop without ``call`` passes the first element of each batch. Modes,
    random states and the position in the data do not change.
    """
    model, loader = run.model, run.loaders.get("train")
    if loader is None:
        raise SetupError("SWA: batch norm needs a pass over the training data, and there is none; give update_bn=False")
    mine = {name: tensor.detach().clone() for name, tensor in statistics_of(model).items()}
    count = _count(run, loader)
    with run.swap_weights({**weights, **mine}):
        with _collecting(run) as norms:
            if call is None and hasattr(getattr(run, "task", None), "eval_batch"):
                run.evaluate("train" if count is None else _First(loader, count))
                _take_mean_over_ranks(run, norms)
            else:
                _call_on_batches(run, islice(loader, count), call or _on_first_part)
        return {name: tensor.detach().clone() for name, tensor in statistics_of(model).items()}


def _is_moving(part: nn.Module) -> bool:
    """True for a batch norm that updates its running statistics."""
    return isinstance(part, _BatchNorm) and part.track_running_stats and part.training


def _count(run: Run, loader: Any) -> int | None:
    """Return the number of batches to use: for an endless stream, as many as were trained on."""
    try:
        return None if len(loader) else 0
    except TypeError:
        return None if run.clock.epoch else run.clock.batch


class _First:
    """The first batches of a loader."""

    def __init__(self, loader: Any, count: int) -> None:
        self._loader, self._count = loader, count

    def __iter__(self) -> Iterator[Any]:
        return islice(self._loader, self._count)


@contextmanager
def _collecting(run: Run) -> Iterator[list[Any]]:
    """Put batch norms into train mode during an evaluation, so that they average all batches.

    A padding batch, which a rank computes only because other ranks have a batch, does not count. It may be a single
    sample.
    """
    model = run.model
    norms: list[Any] = [part for part in model.modules() if _is_moving(part)]
    momenta = [part.momentum for part in norms]

    def set_mode(part: nn.Module, _inputs: Any) -> None:
        # The other ranks wait for a SyncBatchNorm, so it must also run on a padding batch.
        part.training = not run.is_padding or isinstance(part, nn.SyncBatchNorm)

    with ExitStack() as stack:
        for part in model.modules():
            if part.training:
                stack.callback(part.register_forward_pre_hook(set_mode).remove)
        for part, momentum in zip(norms, momenta, strict=True):
            stack.callback(setattr, part, "momentum", momentum)
            part.reset_running_stats()
            part.momentum = None
        yield norms


def _take_mean_over_ranks(run: Run, norms: list[Any]) -> None:
    """Average the statistics over the batches of all ranks. All ranks must call this."""
    if run.world_size == 1:
        return
    parts = [part for norm in norms for part in _sums(norm)]
    sums = run.reduce(torch.cat(parts)).split([len(part) for part in parts])
    for norm, (mean, variance, seen) in zip(norms, zip(*[iter(sums)] * 3, strict=True), strict=True):
        # An evaluation may not use every batch norm, such as one in an auxiliary training head.
        if seen[0]:
            norm.running_mean.copy_(mean / seen)
            norm.running_var.copy_(variance / seen)
            norm.num_batches_tracked.copy_(seen[0])


def _sums(norm: Any) -> list[Tensor]:
    """Return the sums over all batches of a batch norm, and the number of batches."""
    seen = norm.num_batches_tracked.double().cpu()
    return [norm.running_mean.double().cpu() * seen, norm.running_var.double().cpu() * seen, seen.reshape(1)]


def _call_on_batches(run: Run, batches: Iterator[Any], call: Call) -> None:
    """Call the model on the batches, without gradients and without a change of random states."""
    with torch.no_grad(), same_random_state():
        for batch in batches:
            call(run.model, run.to_device(batch))


def _on_first_part(model: nn.Module, batch: Any) -> Any:
    """Call the model on the first element of a batch, as ``torch``'s ``update_bn`` does."""
    inputs = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if not isinstance(inputs, Tensor):
        raise SetupError(
            f"SWA cannot tell how the model is called on a {type(batch).__name__}, for the statistics of batch norm; "
            f"give update_bn=lambda model, batch: model(...), or update_bn=False"
        )
    return model(inputs)
