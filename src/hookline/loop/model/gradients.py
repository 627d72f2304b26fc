"""Gradients of an accumulation window, and errors for losses without a gradient."""

from __future__ import annotations

import numbers
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from hookline.errors import HooklineWarning, LossError, kind_of


def is_of_torch(file: str) -> bool:
    """True for a file of torch itself, and not of a package such as ``torch_xla``."""
    return file.startswith(os.path.dirname(torch.__file__) + os.sep)


ZERO_GRAD: Any = torch.optim.Optimizer.zero_grad
_CODE = getattr(ZERO_GRAD, "__code__", None)
IS_TORCHS = _CODE is not None and is_of_torch(_CODE.co_filename)
"""False if another package has replaced ``zero_grad`` before this module was imported."""


def clear_gradients(optimizer: Any) -> None:
    """Set all gradients of an optimizer to ``None``, as ``optimizer.zero_grad()`` does.

    It leaves out the profiler range and the ``torch.compile`` guard of torch's method, which take about 12 µs per step.
    An optimizer that overrides ``zero_grad`` gets a call of its method.
    """
    own = not IS_TORCHS or getattr(type(optimizer), "zero_grad", None) is not ZERO_GRAD
    if own or "zero_grad" in vars(optimizer):
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def warn_if_cleared(name: str, optimizer: torch.optim.Optimizer) -> None:
    """Warn if the gradients of an optimizer were cleared inside an accumulation window."""
    if all(parameter.grad is None for group in optimizer.param_groups for parameter in group["params"]):
        warnings.warn(
            f"the gradients of {name} were cleared inside a window of accumulate= batches, so that the first of them "
            f"do not count: loop.step() clears them when it is time; leave optimizer.zero_grad() out",
            HooklineWarning,
            stacklevel=3,
        )


def divide(optimizer: torch.optim.Optimizer, weight: Any) -> None:
    """Divide the gradients of an optimizer by the sum of the weights of its losses.

    With a sum of zero nothing is divided, because the gradients are zero.
    """
    if isinstance(weight, torch.Tensor):
        weight = torch.where(weight == 0, torch.ones_like(weight), weight)
    elif weight in (0, 1):
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    dense = [p.grad for p in parameters if p.grad.layout == torch.strided]
    if dense:
        torch._foreach_div_(dense, weight)
    for parameter in parameters:
        if parameter.grad.layout != torch.strided:
            parameter.grad.div_(weight)


@contextmanager
def others_untouched(optimizer: Any, optimizers: Mapping[str, torch.optim.Optimizer]) -> Iterator[None]:
    """Restore the gradients of all other optimizers after the block."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    held = [p for o in optimizers.values() for group in o.param_groups for p in group["params"] if id(p) not in own]
    before = [p.grad if p.grad is None else p.grad.clone() for p in held]
    yield
    for parameter, gradient in zip(held, before, strict=True):
        parameter.grad = gradient


def check_weight(weight: Any, where: Callable[[], str]) -> Any:
    """Return the checked weight of a loss: a number >= 0, or a copy of a tensor with one number.

    Args:
        weight: The weight that was given.
        where: Returns the current step, for the error.
    """
    if isinstance(weight, torch.Tensor) and weight.numel() == 1:
        return weight.detach().reshape(()).clone()
    if isinstance(weight, numbers.Real) and float(weight) >= 0:
        return weight
    raise LossError(
        f"the weight of the loss at {where()} is {weight!r:.80}; give one number, such as the tokens in the batch"
    )


def no_backward(where: str) -> LossError:
    """Return the error for a step without a backward."""
    return LossError(
        f"no backward in the step after {where}: return a loss from train_batch or call loop.backward(loss), "
        f"without loss.backward(), which Hookline calls; "
        f"to leave a batch out, call run.skip_step()"
    )


def count_weight(
    name: str,
    batch: int,
    weight: Any,
    weight_sums: dict[str, Any],
    last_weights: dict[str, tuple[int, Any]],
    where: Callable[[], str],
) -> None:
    """Add the weight of a batch to the sum of an optimizer, once per batch.

    A second loss of the same batch must have the same weight: otherwise no division would be correct.

    Args:
        name: Name of the optimizer.
        batch: Number of the batch.
        weight: Weight of the loss.
        weight_sums: Sum of weights by optimizer. This function changes it.
        last_weights: Number and weight of the last batch by optimizer. This function changes it.
        where: Returns the current step, for the error.
    """
    last, counted = last_weights.get(name, (0, None))
    if last != batch:
        last_weights[name] = (batch, weight)
        weight_sums[name] = weight_sums.get(name, 0) + weight
    elif float(counted) != float(weight):
        raise LossError(
            f"two losses of one batch with the weights {float(counted):g} and {float(weight):g}, at {where()}: "
            f"give both the same weight, or add the losses up before backward"
        )


def with_weight(
    names: Iterable[str],
    batch: int,
    weight: Any,
    weight_sums: Mapping[str, Any],
    last_weights: Mapping[str, tuple[int, Any]],
) -> dict[str, Any]:
    """Return the sums of weights as they will be after ``count_weight`` for these optimizers."""
    new = {name: weight for name in names if last_weights.get(name, (0, None))[0] != batch}
    return {**weight_sums, **{name: weight_sums.get(name, 0) + its for name, its in new.items()}}


def added_up(pending: list[tuple[Any, Any, Any]], loss: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return the sum of a loss and an earlier loss of the same batch.

    The earlier loss is removed from ``pending``.
    Two calls of ``backward`` have the gradient of the sum.
    """
    series, value, weight = loss
    for index in reversed(range(len(pending))):
        if pending[index][0] is series:
            _, before, weight = pending.pop(index)
            return series, before + value, weight
    return loss


def raise_explained(loss: Any, where: str, error: Exception) -> NoReturn:
    """Raise an error that explains what is wrong with a loss.

    Raise ``error`` if the loss is correct.
    """
    problem = _explain(loss, where, error)
    if problem is None:
        raise error
    raise problem from error


def _explain(loss: Any, where: str, error: Exception) -> LossError | None:
    """Return an error that explains what is wrong with a loss. ``None`` if the loss is correct."""
    if not isinstance(loss, torch.Tensor):
        return LossError(
            f"the loss at {where} is {kind_of(loss)} ({loss!r:.80}), not a tensor; "
            f"return the loss tensor itself, without .item() and without loss.backward(), which Hookline calls"
        )
    if loss.ndim:
        return LossError(
            f"the loss at {where} has the shape {tuple(loss.shape)}, not that of a scalar; "
            f"return its mean over the batch: loss.mean()"
        )
    if not loss.requires_grad:
        return LossError(
            f"the loss at {where} has no gradient: it was detached or computed under no_grad, "
            f"or every parameter is frozen. Hookline calls loss.backward(): if train_batch calls it, leave it out"
        )
    if "backward through the graph a second time" in str(error):
        return LossError(
            f"the graph of the loss at {where} is used up: loss.backward() was called before. Hookline calls "
            f"loss.backward(), optimizer.step() and zero_grad() itself: leave them out and return the loss. If two "
            f"losses share a graph, return their sum."
        )
    return None
