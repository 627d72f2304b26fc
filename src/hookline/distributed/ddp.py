"""``DDP``: every rank has the full model, and the backward averages the gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hookline.distributed.group import Group
from hookline.distributed.strategy import (
    all_parts,
    buffers_of,
    check_model,
    check_same_model,
    is_fsdp,
    seconds_of,
    unversioned,
)
from hookline.errors import SetupError
from hookline.progress import Duration

UNUSED: Final = "finished reduction in the prior iteration"
"""A part of torch's error in the step after a step in which a parameter got no gradient."""
EMBEDDINGS: Final = (nn.Embedding, nn.EmbeddingBag)


class DDP:
    """Data-parallel training with torch's ``DistributedDataParallel``.

    The model stays as it is: no wrapper and no renamed keys, and you may call any of its methods. Reducers are attached
    to its parameters. They average the gradients in the last backward of an accumulation window; the other
    micro-batches send nothing (``no_sync``). The reducers are removed after the run.

    Args:
        timeout: Limit for the first step, for a save and for any collective.
        hang_after: Limit for a rank that makes no progress after the first step. Hookline then prints the stack of the
            rank and ends it.
        broadcast_buffers: Broadcast the buffers of rank zero before each step.
        bucket_cap_mb: As in ``DistributedDataParallel``.
        find_unused_parameters: As in ``DistributedDataParallel``: set it if a loss does not reach every parameter. It
            is always on with several optimizers.
        gradient_as_bucket_view: As in ``DistributedDataParallel``.
        compare_parameters: Compare the parameters of all ranks at the end of each epoch.

    Raises:
        DurationError: If ``timeout`` or ``hang_after`` is not a duration.
        SetupError: If ``timeout`` or ``hang_after`` is not a positive time.

    Example:
        >>> DDP(hang_after="60s").hang_after
        datetime.timedelta(seconds=60)
    """

    is_sharded = False

    def __init__(
        self,
        *,
        timeout: str | float | timedelta | Duration = "10m",
        hang_after: str | float | timedelta | Duration = "5m",
        broadcast_buffers: bool = True,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        compare_parameters: bool = True,
    ) -> None:
        self.timeout = seconds_of(timeout, "timeout")
        self.hang_after = seconds_of(hang_after, "hang_after")
        self.broadcast_buffers = broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.compare_parameters = compare_parameters
        self._options: dict[str, Any] = {
            "bucket_cap_mb": bucket_cap_mb,
            "gradient_as_bucket_view": gradient_as_bucket_view,
        }
        self._group: Group | None = None
        self._module = nn.Module()
        self._ranks = (1, 0)
        self._ties: dict[str, DistributedDataParallel] = {}
        self._optimizers: Mapping[str, Optimizer] = {}
        self._trained: tuple[list[nn.Parameter], list[bool]] = [], []  # All parameters, and requires_grad of each.

    def compared_arguments(self) -> dict[str, object]:
        """Return the arguments that must be the same on all ranks."""
        return {
            "broadcast_buffers": self.broadcast_buffers,
            "find_unused_parameters": self.find_unused_parameters,
            "compare_parameters": self.compare_parameters,
            **self._options,
        }

    def replicated_parameters(self) -> dict[str, Tensor]:
        """Return the parameters, by name, whose bits must be the same on all ranks after a step."""
        return dict(self._module.named_parameters()) if self.compare_parameters else {}

    def shares(self) -> tuple[int, int]:
        return self._ranks

    def wrap(self, module: nn.Module, roots: list[nn.Module], group: Group) -> dict[Tensor, Tensor]:
        check_model(module)
        if is_fsdp(module):
            raise SetupError("the model is sharded with fully_shard already; use strategy='fsdp' or 'auto'")
        check_same_model(module, group)
        self._group, self._module, self._ranks = group, module, (group.size, group.rank)
        # All ranks start with the weights of rank zero. Otherwise each rank would train a different model.
        group.broadcast([*module.parameters(), *all_parts(module.buffers())])
        return {}

    def attach(self, optimizers: Mapping[str, Optimizer]) -> None:
        several = len(optimizers) > 1
        parameters = list(self._module.parameters())
        self._optimizers, self._trained = optimizers, (parameters, [p.requires_grad for p in parameters])
        self._ties.clear()
        sparse = {id(part.weight) for part in self._module.modules() if isinstance(part, EMBEDDINGS) and part.sparse}
        for name, optimizer in optimizers.items():
            held = {id(p) for group in optimizer.param_groups for p in group["params"]} if several else None
            found = {
                path.replace(".", "/"): parameter
                for path, parameter in self._module.named_parameters()
                if parameter.requires_grad and (held is None or id(parameter) in held)
            }
            if found:
                unused = several or self.find_unused_parameters
                own = None if self._group is None else self._group.for_gradients
                self._ties[name] = DistributedDataParallel(
                    _Parameters(found, sparse),
                    process_group=own,
                    init_sync=False,
                    find_unused_parameters=unused,
                    **self._options,
                )

    def before_window(self) -> None:
        parameters, trained = self._trained
        if [p.requires_grad for p in parameters] != trained:  # The user froze or unfroze a layer.
            self.attach(self._optimizers)
        if self.broadcast_buffers:
            self._share_buffers()

    def before_evaluation(self) -> None:
        """Broadcast the buffers of rank zero.

        Each rank computes batch norm statistics from its own data, so they differ between ranks.
        """
        self._share_buffers()

    def _share_buffers(self) -> None:
        buffers = buffers_of(self._module)
        if buffers and self._group is not None:
            self._group.broadcast(unversioned(buffers))

    def before_backward(self, loss: Tensor, names: Iterable[str], *, last: bool) -> None:
        if last:
            for name in names:
                tie = self._ties.get(name)
                if tie is not None:
                    _prepare(tie, loss)

    def idle_forward(self) -> Tensor | None:
        return None

    def idle_backward(self, forward: Tensor | None, names: Iterable[str], *, last: bool) -> None:
        if not last:
            return
        parts = [part for name in names if name in self._ties for part in self._ties[name].modules()]
        with torch.enable_grad():
            sums = {p: _none_of(p, part) for part in parts for p in part.parameters(recurse=False)}
            nothing = torch.stack([value.sum().float() for value in sums.values()]).sum()
        self.before_backward(nothing, names, last=True)
        nothing.backward()  # type: ignore[no-untyped-call]

    def before_batch(self) -> None:
        """Do nothing: a forward needs no other rank."""

    def idle_batch(self) -> None:
        """Do nothing: a forward needs no other rank."""

    def unwrap(self) -> None:
        # The C++ reducer holds the process group. If it still does when Python exits, the process may abort
        # (pytorch/pytorch#190489).
        self._ties.clear()
        self._optimizers, self._trained = {}, ([], [])
        self._group, self._module = None, nn.Module()


def _prepare(tie: DistributedDataParallel, loss: Tensor) -> None:
    try:
        tie.reducer._rebuild_buckets()  # After the first step, torch orders the buckets as the gradients arrived.
        # ``DistributedDataParallel.forward`` makes this call at its end. Without it, the backward sends nothing.
        tie.reducer.prepare_for_backward([loss] if tie.find_unused_parameters else [])
    except RuntimeError as error:
        if UNUSED in str(error):
            error.add_note(
                "the loss of the step before did not reach every parameter: give strategy="
                "hl.DDP(find_unused_parameters=True), or freeze those that it never reaches (requires_grad_(False))"
            )
        raise


class _Parameters(nn.Module):
    """Some parameters of a model, as a module for a reducer. Nothing calls its ``forward``."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], sparse: Set[int]) -> None:
        super().__init__()
        for name, parameter in parameters.items():
            if id(parameter) in sparse:
                self.add_module(name, _Sparse(parameter))
            else:
                self.register_parameter(name, parameter)


class _Sparse(nn.Embedding):
    """A module with a sparse gradient: torch decides that by the class of the module."""

    def __init__(self, parameter: nn.Parameter) -> None:
        rows, columns = parameter.shape
        super().__init__(rows, columns, _weight=parameter, sparse=True)
        self.weight = parameter


def _none_of(parameter: Tensor, part: nn.Module) -> Tensor:
    """Return zeros whose gradient has the layout that the other ranks send."""
    if isinstance(part, _Sparse):
        first = torch.zeros(1, dtype=torch.long, device=parameter.device)
        return nn.functional.embedding(first, parameter, sparse=True) * 0
    return parameter * 0
