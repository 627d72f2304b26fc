"""``Strategy``: how a model is distributed over processes, and helpers for strategies."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookline.distributed.dtensors import plain_parts
from hookline.distributed.group import Group
from hookline.distributed.same import check_same
from hookline.errors import SetupError
from hookline.progress import Duration

StrategyName = Literal["auto", "ddp", "fsdp"]


@runtime_checkable
class Strategy(Protocol):
    """The methods that the loop calls on ``hl.DDP``, ``hl.FSDP`` or a custom strategy."""

    timeout: timedelta
    """Limit for a collective, and for the first step."""
    hang_after: timedelta
    """Limit for a rank that makes no progress after the first step. Hookline then ends the rank."""

    def wrap(self, module: nn.Module, roots: list[nn.Module], group: Group) -> dict[Tensor, Tensor]:
        """Distribute the model over the ranks, in place. All ranks call it.

        The loop calls this method after ``setup`` and before it makes the optimizers.

        Args:
            module: The model.
            roots: The modules whose ``forward`` is called.
            group: The processes of the run.

        Returns:
            The new parameter for each parameter that was replaced.
        """
        ...

    def attach(self, optimizers: Mapping[str, Optimizer]) -> None:
        """Prepare the parameters of each optimizer, by its name."""
        ...

    def before_window(self) -> None:
        """Prepare the first forward of a step. All ranks call it."""
        ...

    def before_evaluation(self) -> None:
        """Prepare an evaluation, a prediction or a checkpoint. All ranks call it."""
        ...

    def before_backward(self, loss: Tensor, names: Iterable[str], *, last: bool) -> None:
        """Prepare a backward.

        Args:
            loss: The loss.
            names: Names of the optimizers that the backward is for.
            last: True for the last micro-batch of an accumulation window. Only its backward averages the gradients over
                the ranks.
        """
        ...

    def idle_forward(self) -> Tensor | None:
        """Take part in the forward of the other ranks, on a rank without a batch.

        Do nothing if a forward does not need all ranks.

        Returns:
            The argument ``forward`` of ``idle_backward``.
        """
        ...

    def idle_backward(self, forward: Tensor | None, names: Iterable[str], *, last: bool) -> None:
        """Take part in the backward of the other ranks, on a rank without a batch.

        The gradients of this rank are zero.

        Args:
            forward: The result of ``idle_forward``.
            names: As in ``before_backward``.
            last: As in ``before_backward``.
        """
        ...

    def before_batch(self) -> None:
        """Prepare a batch of an evaluation or prediction."""
        ...

    def idle_batch(self) -> None:
        """Take part in the forward of the other ranks, on a rank that has left an evaluation batch.

        Do nothing if a forward does not need all ranks.
        """
        ...

    def unwrap(self) -> None:
        """Release everything that connects the processes, at the end of a run or after an error."""
        ...

    is_sharded: bool
    """True if each rank holds only a shard of the weights."""

    def shares(self) -> tuple[int, int]:
        """Return the number of shards of the data, and the index of this rank's shard.

        The result is ``(number of ranks, rank)`` if every rank has its own shard.
        """
        ...


def check_model(module: nn.Module) -> None:
    """Raise ``SetupError`` if the model is wrapped in DDP or ``DataParallel`` already.

    The ranks would average its gradients twice, or not at all.
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise SetupError(
                f"{name or 'the model'} is wrapped in {type(part).__name__} already; pass the bare model (.module), "
                f"and choose with strategy='ddp' or hl.DDP(…)"
            )


def check_same_model(module: nn.Module, group: Group) -> None:
    """Raise ``SetupError`` if the model differs between ranks. All ranks must call it.

    Call it before any tensor of the model is sent: with different sizes, gloo would end the process or mix up tensors.
    """
    facts = {f"parameter {name}": _fact(name, its) for name, its in module.named_parameters()}
    facts |= {f"buffer {name}": _fact(name, its) for name, its in module.named_buffers()}
    check_same(group, facts, "Build the same model on all ranks.")


def _fact(name: str, tensor: Tensor) -> str:
    if is_lazy(tensor):
        raise SetupError(
            f"{name} has no size before the first forward (a Lazy module): call the model on a batch first"
        )
    frozen = " (frozen)" if isinstance(tensor, nn.Parameter) and not tensor.requires_grad else ""
    # The parts of a sparse tensor also show the number of its values.
    sizes = [tuple(part.shape) for part in plain_parts(tensor)]
    return f"{str(tensor.dtype).removeprefix('torch.')} {', '.join(map(str, sizes))}{frozen}"


def is_fsdp(module: nn.Module) -> bool:
    """True if ``fully_shard`` was called on the module or on a submodule."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # Without this import, fully_shard was not called.
    return fsdp is not None and any(isinstance(part, fsdp.FSDPModule) for part in module.modules())


def all_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors in a form that can be sent: a sparse tensor as its dense parts.

    The sizes of sparse tensors must be the same on all ranks.
    """
    return [part for tensor in tensors for part in plain_parts(tensor)]


def unversioned(tensors: list[Tensor]) -> list[Tensor]:
    """Return the tensors so that a change in place does not change their versions.

    Rank zero shares its buffers with the other ranks. If only theirs had new versions, only they would take the weights
    for changed, and would evaluate again.
    """
    return [tensor.data for tensor in tensors]


def buffers_of(module: nn.Module) -> list[Tensor]:
    """Return the dense buffers of a module.

    This takes a third of the time of ``module.buffers()``: 0.2 ms per step for 200 submodules. Sparse buffers are left
    out, because a sparse buffer that is replaced may have a different number of values on each rank.
    """
    parts, seen = [module], {module}
    for part in parts:  # The list grows during the loop.
        for its in part._modules.values():
            if its is not None and its not in seen:
                seen.add(its)
                parts.append(its)
    found = (buffer for part in parts for buffer in part._buffers.values())
    return [buffer for buffer in found if buffer is not None and buffer.layout is torch.strided]


def seconds_of(value: str | float | timedelta | Duration, what: str) -> timedelta:
    """Return a time limit as a ``timedelta``.

    Args:
        value: A duration such as ``"60s"`` or ``"10m"``, or a number of seconds.
        what: Name of the argument, for the error.

    Raises:
        DurationError: If a string is not a duration.
        SetupError: If a duration is not a time, or a number is not positive.
    """
    if isinstance(value, timedelta):
        found = value
    elif isinstance(value, int | float):
        found = timedelta(seconds=value)
    else:
        duration = Duration.parse(value)
        if duration.unit != "s":
            raise SetupError(f"{what}={str(value)!r}: give a time, such as '60s' or '10m'")
        found = timedelta(seconds=duration.value)
    if found <= timedelta():
        raise SetupError(f"{what}={value!r}: give more than no time")
    return found
