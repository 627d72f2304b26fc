"""How a model is spread over processes: the protocol, and what is chosen when nobody has chosen."""

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
    """What the loop asks of ``hl.DDP``, ``hl.FSDP`` or an object of your own."""

    timeout: timedelta
    """How long a collective may take, and the first step."""
    hang_after: timedelta
    """After the first step: a rank that makes no progress for so long is taken for hung."""

    def wrap(self, module: nn.Module, roots: list[nn.Module], group: Group) -> dict[Tensor, Tensor]:
        """By all, after ``setup`` and before optimizers are made: spread the model, in place.

        ``roots`` are the modules whose ``forward`` is called. Gives the new parameter for each that was replaced.
        """
        ...

    def attach(self, optimizers: Mapping[str, Optimizer]) -> None:
        """Optimizers are there: what needs to know which parameters each has."""
        ...

    def before_window(self) -> None:
        """By all, before the first forward of a step."""
        ...

    def before_evaluation(self) -> None:
        """By all, before an evaluation, a prediction or a checkpoint."""
        ...

    def before_backward(self, loss: Tensor, names: Iterable[str], *, last: bool) -> None:
        """Gradients are averaged over the ranks in the backward of a window's ``last`` batch, and in no other."""
        ...

    def idle_forward(self) -> Tensor | None:
        """By one that has no batch while the others have: take part in their forward, where it needs all ranks."""
        ...

    def idle_backward(self, forward: Tensor | None, names: Iterable[str], *, last: bool) -> None:
        """The same in their backward, with gradients of zero; ``forward`` is what ``idle_forward`` gave."""
        ...

    def before_batch(self) -> None:
        """Before each batch of an evaluation or prediction."""
        ...

    def idle_batch(self) -> None:
        """By one that has left a batch of an evaluation: take part in its forward, where the others need that."""
        ...

    def unwrap(self) -> None:
        """The run is over, on whatever way: hold nothing that would keep the processes tied together."""
        ...

    is_sharded: bool
    """Whether each rank holds only a part of the weights."""

    def shares(self) -> tuple[int, int]:
        """Into how many parts the data is split, and which of them this rank has; (ranks, rank) if all have one."""
        ...


def check_model(module: nn.Module) -> None:
    """A model that somebody else has wrapped already would be averaged twice, or not at all."""
    for name, part in module.named_modules():
        if isinstance(part, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise SetupError(
                f"{name or 'the model'} is wrapped in {type(part).__name__} already; pass the bare model (.module), "
                f"and choose with strategy='ddp' or hl.DDP(…)"
            )


def check_same_model(module: nn.Module, group: Group) -> None:
    """By all, before anything of it is sent: tensors of other sizes would end the process in gloo, or mix them up."""
    facts = {f"parameter {name}": _fact(name, its) for name, its in module.named_parameters()}
    facts |= {f"buffer {name}": _fact(name, its) for name, its in module.named_buffers()}
    check_same(group, facts, "Build the same model on all ranks.")


def _fact(name: str, tensor: Tensor) -> str:
    if is_lazy(tensor):
        raise SetupError(
            f"{name} has no size before the first forward (a Lazy module): call the model on a batch first"
        )
    frozen = " (frozen)" if isinstance(tensor, nn.Parameter) and not tensor.requires_grad else ""
    sizes = [tuple(part.shape) for part in plain_parts(tensor)]  # of a sparse one, also how many values it has
    return f"{str(tensor.dtype).removeprefix('torch.')} {', '.join(map(str, sizes))}{frozen}"


def is_fsdp(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was called on it or on a part of it."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # not imported: then nobody has called it
    return fsdp is not None and any(isinstance(part, fsdp.FSDPModule) for part in module.modules())


def all_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """What can be sent: sparse ones in their parts, whose sizes must have been compared."""
    return [part for tensor in tensors for part in plain_parts(tensor)]


def buffers_of(module: nn.Module) -> list[Tensor]:
    """As ``module.buffers()``, in a third of the time: where there are 200 parts, that takes 0.2 ms of a step.

    Without sparse ones: one that is made anew may have another number of values on each rank.
    """
    parts, seen = [module], {module}
    for part in parts:  # it grows meanwhile
        for its in part._modules.values():
            if its is not None and its not in seen:
                seen.add(its)
                parts.append(its)
    found = (buffer for part in parts for buffer in part._buffers.values())
    return [buffer for buffer in found if buffer is not None and buffer.layout is torch.strided]


def seconds_of(value: str | float | timedelta | Duration, what: str) -> timedelta:
    """A limit of time: ``"60s"``, ``"10m"``, a number of seconds."""
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
