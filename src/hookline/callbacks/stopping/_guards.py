"""Norm of the gradients, and restoring the buffers and random states that a forward pass changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hookline.distributed.dtensors import whole
from hookline.distributed.random_states import RandomStates, read_random_states, restore_random_states

if TYPE_CHECKING:
    from hookline.run import Run

Pair = tuple[Tensor, Tensor]
"""Target and source of a copy."""
SMALL = 65536
"""Number of elements up to which a buffer is always copied.

Statistics of norm layers are smaller than this, and torch does not count the changes of these statistics.
"""


class BeforeBatch:
    """Copy of the buffers of a model or task, and of the random states, from before a batch.

    A large buffer is copied only when it has changed, so the mask of a transformer costs nothing.

    Example:
        >>> norm, before = nn.BatchNorm1d(2), BeforeBatch()
        >>> before.watch(norm)
        >>> before.save()
        >>> after = norm(torch.ones(3, 2))
        >>> before.restore()
        >>> norm.running_mean.tolist(), norm.num_batches_tracked.item()
        ([0.0, 0.0], 0)
    """

    __slots__ = ("_kept", "_random", "_states")

    def __init__(self, *, random_states: bool = False) -> None:
        self._random = random_states
        self._kept: list[_Kept] = []
        self._states: RandomStates | None = None

    def watch(self, module: nn.Module) -> None:
        """Register the buffers of a module. Call it when training starts."""
        self._states = None
        self._kept = [
            _Kept(part._buffers, name)
            for part in module.modules()
            for name, buffer in part._buffers.items()
            if buffer is not None
        ]

    def save(self) -> None:
        """Copy the current buffers and random states."""
        _copy([pair for kept in self._kept if (pair := kept.to_save()) is not None])
        if self._random:
            self._states = read_random_states()

    def restore(self) -> None:
        """Restore the buffers and random states of the last ``save``."""
        _copy([pair for kept in self._kept if (pair := kept.to_restore()) is not None])
        if self._states is not None:
            restore_random_states(self._states)


class _Kept:
    """One buffer: its tensor and a copy of its values."""

    __slots__ = ("_buffers", "_copy", "_name", "_tensor", "_version")

    def __init__(self, buffers: dict[str, Tensor | None], name: str) -> None:
        self._buffers, self._name = buffers, name
        self._tensor: Tensor | None = None
        self._copy: Tensor | None = None
        self._version = -1

    def to_save(self) -> Pair | None:
        """Return the copy to make to keep the current values, or ``None`` if none is needed."""
        tensor = self._buffers.get(self._name)
        if tensor is None:
            self._tensor = self._copy = None
            return None
        new = self._copy is None or tensor is not self._tensor
        changed = new or tensor.numel() <= SMALL or tensor._version != self._version
        if new:
            self._tensor, self._copy = tensor, torch.empty_like(tensor, requires_grad=False)
        self._version = tensor._version
        return (self._copy, tensor) if changed and self._copy is not None else None

    def to_restore(self) -> Pair | None:
        """Return the copy to make to restore the values, or ``None`` if none is needed."""
        if self._tensor is None or self._copy is None:
            return None
        self._buffers[self._name] = self._tensor  # The module may have replaced the tensor.
        changed = self._tensor.numel() <= SMALL or self._tensor._version != self._version
        self._version = -1  # The copy changes the version.
        return (self._tensor, self._copy) if changed else None


def _copy(pairs: list[Pair]) -> None:
    """Copy all pairs of a dtype in one call, because a network may have hundreds of buffers."""
    kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in pairs:
        targets, sources = kinds.setdefault(target.dtype, ([], []))
        targets.append(target)
        sources.append(source)
    with torch.no_grad():
        for targets, sources in kinds.values():
            torch._foreach_copy_(targets, sources)


def module_of(run: Run) -> nn.Module:
    """Return the task with all its modules, or the model in a custom loop."""
    task = getattr(run, "task", None)
    return task if isinstance(task, nn.Module) else run.model


def gradients_of(optimizers: Iterable[torch.optim.Optimizer]) -> list[Tensor]:
    """Return the current gradients. For a sparse gradient, return its values."""
    return [
        parameter.grad if parameter.grad.layout == torch.strided else parameter.grad.coalesce().values()
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]


def total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients as a scalar tensor on their device.

    The norm is NaN or infinite if one of the gradients is.

    Example:
        >>> total_norm([torch.tensor([3.0]), torch.tensor([4.0])])
        tensor(5.)
    """
    return whole(nn.utils.get_total_norm(gradients)) if gradients else torch.zeros(())


def not_finite(run: Run) -> Iterator[str]:
    """Yield the names of parameters with NaN (``nan``) or infinite (``inf``) gradients.

    The function is slow. Use it only for a message.
    """
    for name, parameter in run.model.named_parameters():
        gradient = parameter.grad
        if gradient is None:
            continue
        values = gradient if gradient.layout == torch.strided else gradient.coalesce().values()
        if not bool(torch.isfinite(values).all()):
            yield f"{name} ({'nan' if bool(torch.isnan(values).any()) else 'inf'})"
