"""``DDP``: every rank has the whole model, and gradients are averaged while the backward goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hookline.distributed.group import Group
from hookline.distributed.strategy import all_parts, buffers_of, check_model, check_same_model, is_fsdp, seconds_of
from hookline.errors import SetupError
from hookline.progress import Duration

UNUSED: Final = "finished reduction in the prior iteration"
"""What torch says in the step after one in which a parameter got no gradient."""
EMBEDDINGS: Final = (nn.Embedding, nn.EmbeddingBag)


class DDP:
    """Data-parallel training with torch's ``DistributedDataParallel``.

    The model itself stays as it is: no wrapper, no renamed keys, and any method of it may be called. What averages the
    gradients is tied to its parameters, and is told by ``loop.backward`` when it is the last of a window; inside a
    window of several batches nothing is sent (``no_sync``). After the run the ties are cut.

    ``timeout`` is how long the first step, a save or any collective may take; ``hang_after`` how long a rank may make
    no progress after the first step before it is taken for hung: its stack is printed, and it ends.
    ``compare_parameters=False`` turns off the comparison of the parameters at the end of each epoch. The other
    arguments are those of ``DistributedDataParallel``. ``find_unused_parameters=True`` is needed where a loss does not
    reach every parameter; with several optimizers it is always on.

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
        self._trained: tuple[list[nn.Parameter], list[bool]] = [], []  # which of all parameters had gradients

    def compared_arguments(self) -> dict[str, object]:
        """The arguments that must be the same on all ranks."""
        return {
            "broadcast_buffers": self.broadcast_buffers,
            "find_unused_parameters": self.find_unused_parameters,
            "compare_parameters": self.compare_parameters,
            **self._options,
        }

    def replicated_parameters(self) -> dict[str, Tensor]:
        """By name: the parameters that must hold the same bits on all ranks after every step."""
        return dict(self._module.named_parameters()) if self.compare_parameters else {}

    def shares(self) -> tuple[int, int]:
        return self._ranks

    def wrap(self, module: nn.Module, roots: list[nn.Module], group: Group) -> dict[Tensor, Tensor]:
        check_model(module)
        if is_fsdp(module):
            raise SetupError("the model is sharded with fully_shard already; use strategy='fsdp' or 'auto'")
        check_same_model(module, group)
        self._group, self._module, self._ranks = group, module, (group.size, group.rank)
        # Rank zero's weights are everybody's: without it each would train a model of its own.
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
        if [p.requires_grad for p in parameters] != trained:  # a layer was frozen, or thawed
            self.attach(self._optimizers)
        if self.broadcast_buffers:
            self._share_buffers()

    def before_evaluation(self) -> None:
        """Statistics of a batch norm are those of each rank's own data: rank zero's are the model's."""
        self._share_buffers()

    def _share_buffers(self) -> None:
        buffers = buffers_of(self._module)
        if buffers and self._group is not None:
            self._group.broadcast(buffers)

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
        """Nothing: a forward needs no other rank."""

    def idle_batch(self) -> None:
        """Nothing: a forward needs no other rank."""

    def unwrap(self) -> None:
        # The C++ side holds the process group: one that is still held when Python ends may abort the process
        # (pytorch/pytorch#190489).
        self._ties.clear()
        self._optimizers, self._trained = {}, ([], [])
        self._group, self._module = None, nn.Module()


def _prepare(tie: DistributedDataParallel, loss: Tensor) -> None:
    try:
        tie.reducer._rebuild_buckets()  # after the first step, in the order that gradients came in
        # What ``DistributedDataParallel.forward`` does at its end; without it nothing is sent.
        tie.reducer.prepare_for_backward([loss] if tie.find_unused_parameters else [])
    except RuntimeError as error:
        if UNUSED in str(error):
            error.add_note(
                "the loss of the step before did not reach every parameter: give strategy="
                "hl.DDP(find_unused_parameters=True), or freeze those that it never reaches (requires_grad_(False))"
            )
        raise


class _Parameters(nn.Module):
    """Some parameters of a model, for what is tied to them; its ``forward`` is never called."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], sparse: Set[int]) -> None:
        super().__init__()
        for name, parameter in parameters.items():
            if id(parameter) in sparse:
                self.add_module(name, _Sparse(parameter))
            else:
                self.register_parameter(name, parameter)


class _Sparse(nn.Embedding):
    """Torch learns from the kind of a module that the gradient of its parameter is sparse."""

    def __init__(self, parameter: nn.Parameter) -> None:
        rows, columns = parameter.shape
        super().__init__(rows, columns, _weight=parameter, sparse=True)
        self.weight = parameter


def _none_of(parameter: Tensor, part: nn.Module) -> Tensor:
    """Zeros whose gradient is of the kind that the other ranks send."""
    if isinstance(part, _Sparse):
        first = torch.zeros(1, dtype=torch.long, device=parameter.device)
        return nn.functional.embedding(first, parameter, sparse=True) * 0
    return parameter * 0
