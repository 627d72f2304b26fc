"""``FSDP``: each rank holds a shard of every weight, and gathers one layer at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from hookline.distributed.dtensors import is_spread, part_of
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
from hookline.errors import RankError, SetupError
from hookline.progress import Duration

Wrap = Callable[[nn.Module], bool] | Iterable[type[nn.Module]]


class FSDP:
    """Sharded training with torch's ``fully_shard`` (FSDP2), in place.

    A model on which ``fully_shard`` was called already is used as it is. The model stays sharded after the run. Save it
    with ``Checkpointer``, and convert a checkpoint to plain weights with ``hookline checkpoints consolidate``.

    Args:
        wrap: The modules that are gathered and freed separately: classes (``[TransformerBlock]``) or a function
            ``(module) -> bool``. The default is each member of an ``nn.ModuleList`` or ``nn.Sequential`` that has
            submodules with parameters. In most models these members are the blocks.
        mesh: The ``DeviceMesh`` for the data. With one dimension, the weights are sharded over it. With two, they are
            replicated over the first and sharded over the second. For tensor parallelism, parallelize the model over
            another dimension first.
        param_dtype: As in ``MixedPrecisionPolicy``.
        reduce_dtype: As in ``MixedPrecisionPolicy``.
        reshard_after_forward: As in ``fully_shard``.
        timeout: As in ``DDP``.
        hang_after: As in ``DDP``.

    Raises:
        DurationError: If ``timeout`` or ``hang_after`` is not a duration.
        SetupError: If ``wrap`` contains anything but module classes, if ``mesh`` has more than two dimensions, or if
            ``timeout`` or ``hang_after`` is not a positive time.

    Example:
        >>> FSDP(wrap=[nn.TransformerEncoderLayer]).is_sharded
        True
    """

    is_sharded = True

    def __init__(
        self,
        *,
        wrap: Wrap | None = None,
        mesh: DeviceMesh | None = None,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        reshard_after_forward: bool | int | None = None,
        timeout: str | float | timedelta | Duration = "10m",
        hang_after: str | float | timedelta | Duration = "5m",
    ) -> None:
        self.timeout = seconds_of(timeout, "timeout")
        self.hang_after = seconds_of(hang_after, "hang_after")
        self._wanted = _rule(wrap)
        self.mesh = mesh
        if mesh is not None and mesh.ndim > 2:
            raise SetupError(
                f"FSDP(mesh=…): a mesh of {mesh.ndim} dimensions; give one, or two to replicate over the first: "
                f"mesh['replicate', 'shard']"
            )
        self._policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
        self._reshard = reshard_after_forward
        self._group: Group | None = None
        self._ranks = (1, 0)
        self._roots: list[nn.Module] = []
        self._calls: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._outputs: dict[nn.Module, Any] = {}  # The outputs since the last backward.
        self._eval_calls: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}  # Last arguments in evaluations.
        self._evaluated: Counter[nn.Module] = Counter()  # Calls in this batch of an evaluation.
        self._usual: Counter[nn.Module] = Counter()  # Calls in the batch before it.
        self._hooks: list[Any] = []

    def compared_arguments(self) -> dict[str, object]:
        """Return the arguments that must be the same on all ranks and can be compared."""
        dtypes = {"param_dtype": self._policy.param_dtype, "reduce_dtype": self._policy.reduce_dtype}
        mesh = None if self.mesh is None else tuple(self.mesh.shape)
        return {**{name: str(its) for name, its in dtypes.items()}, "reshard": self._reshard, "mesh": mesh}

    def shares(self) -> tuple[int, int]:
        if self.mesh is None:
            return self._ranks
        index = 0
        for size, place in zip(self.mesh.shape, self.mesh.get_coordinate() or (), strict=True):
            index = index * size + place
        return self.mesh.size(), index

    def wrap(self, module: nn.Module, roots: list[nn.Module], group: Group) -> dict[Tensor, Tensor]:
        check_model(module)
        check_same_model(module, group)
        self._group, self._roots, self._ranks = group, roots, (group.size, group.rank)
        inside = {id(p) for root in roots for p in root.parameters()}
        outside = [name for name, p in module.named_parameters() if id(p) not in inside]
        if outside:
            raise SetupError(
                f"FSDP shards modules, and {', '.join(outside[:3])} belongs to {type(module).__name__} itself; "
                f"put it into a module whose forward is called"
            )
        before = dict(module.named_parameters(remove_duplicate=False))
        if not is_fsdp(module):
            self._make_same([*module.parameters(), *all_parts(module.buffers())], group)
            for root in roots:
                self._shard(root)
        for root in roots:
            self._hooks.append(root.register_forward_pre_hook(self._note, with_kwargs=True))
            self._hooks.append(root.register_forward_hook(self._note_outputs))
        after = dict(module.named_parameters(remove_duplicate=False))
        return {before[name]: after[name] for name in before if after[name] is not before[name]}

    def _make_same(self, tensors: list[Tensor], group: Group) -> None:
        """Copy the tensors of rank zero to all ranks.

        Each rank keeps a shard of its own copy, so the copies must be the same. A ``DTensor`` is parallel already: its
        parts differ between the ranks of one tensor-parallel group, and must be the same in all such groups. So each
        part is copied over the mesh of the data only.
        """
        group.broadcast([tensor for tensor in tensors if not is_spread(tensor)])
        spread = [part_of(tensor) for tensor in tensors if is_spread(tensor)]
        if not spread:
            return
        mesh = self.mesh
        if mesh is None:
            raise SetupError(
                "the model is parallelised over a DeviceMesh already; pass the dimension of the data as "
                "strategy=hl.FSDP(mesh=mesh['dp']), or it would be taken for all ranks"
            )
        for side in mesh.get_all_groups():
            for part in spread:
                dist.broadcast(part, dist.get_global_rank(side, 0), group=side)

    def _shard(self, root: nn.Module) -> None:
        options: dict[str, Any] = {"mesh": self.mesh, "mp_policy": self._policy}
        if self._reshard is not None:
            options["reshard_after_forward"] = self._reshard
        blocks = [part for part in root.modules() if part is not root and self._wanted(part)]
        blocks += _members(root) if self._wanted is _nothing else []
        for block in dict.fromkeys(reversed(blocks)):  # fully_shard needs the innermost modules first.
            fully_shard(block, **options)
        fully_shard(root, **options)

    def attach(self, optimizers: Mapping[str, Optimizer]) -> None:
        """Do nothing: sharded modules average their gradients themselves."""

    def before_window(self) -> None:
        """Broadcast the buffers: they are not sharded, so they differ between ranks."""
        self.before_evaluation()

    def before_evaluation(self) -> None:
        buffers = [buffer for root in self._roots for buffer in buffers_of(root) if not is_spread(buffer)]
        if buffers and self._group is not None:
            self._group.broadcast(unversioned(buffers))

    def before_backward(self, loss: Tensor, names: Iterable[str], *, last: bool) -> None:
        self._outputs.clear()
        for root in self._roots:
            if isinstance(root, FSDPModule):
                root.set_requires_gradient_sync(last)

    def idle_forward(self) -> Tensor | None:
        """Run the forward of each root with its last arguments, because it gathers weights.

        A root that has run since the last backward is not run again.

        Returns:
            Zero with a gradient function for all outputs, or ``None`` if no output requires a gradient.
        """
        with torch.enable_grad():
            for root, (args, kwargs) in self._calls.copy().items():
                if root not in self._outputs:
                    root(*args, **kwargs)
            found = [value for outputs in self._outputs.values() for value in tree_leaves(outputs)]
            sums = [value.sum().float() * 0 for value in found if isinstance(value, Tensor) and value.requires_grad]
            return torch.stack(sums).sum() if sums else None

    def idle_backward(self, forward: Tensor | None, names: Iterable[str], *, last: bool) -> None:
        if forward is not None:
            self.before_backward(forward, names, last=last)
            forward.backward()  # type: ignore[no-untyped-call]
        self._outputs.clear()

    def before_batch(self) -> None:
        self._usual, self._evaluated = self._evaluated or self._usual, Counter()

    def idle_batch(self) -> None:
        """Make the forward calls that a batch usually makes and that this batch has not made.

        Each root gets its last arguments.

        Raises:
            RankError: If no batch of an evaluation has called a root yet.
        """
        if not self._usual and not self._evaluated:
            raise RankError(
                "a rank has left the first batch of all evaluations before its forward: the others need it for that of "
                "a sharded model, and no rank knows yet what it would be given; leave after the forward, or call "
                "run.stop()"
            )
        for root, (args, kwargs) in list(self._eval_calls.items()):
            for _ in range(self._usual[root] - self._evaluated[root]):
                root(*args, **kwargs)

    def unwrap(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._calls.clear()
        self._outputs.clear()
        self._eval_calls.clear()
        self._evaluated, self._usual = Counter(), Counter()
        self._roots, self._group = [], None

    def _note(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        (self._calls if torch.is_grad_enabled() else self._eval_calls)[root] = args, kwargs

    def _note_outputs(self, root: nn.Module, args: Any, outputs: Any) -> None:
        if torch.is_grad_enabled():
            self._outputs[root] = outputs
            return
        self._evaluated[root] += 1
        if isinstance(root, FSDPModule):
            # No backward follows that would reshard the root. Code that reads the parameters must see the shards.
            root.reshard()


def _rule(wrap: Wrap | None) -> Callable[[nn.Module], bool]:
    if wrap is None:
        return _nothing
    if callable(wrap) and not isinstance(wrap, type):
        return wrap
    kinds = (wrap,) if isinstance(wrap, type) else tuple(wrap)
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, nn.Module) for kind in kinds):
        raise SetupError(
            f"FSDP(wrap={wrap!r}): give module classes, such as [nn.TransformerEncoderLayer], or a function"
        )
    return lambda module: isinstance(module, kinds)


def _nothing(module: nn.Module) -> bool:
    return False


def _members(root: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model: members of its lists that have submodules with parameters."""
    lists = [part for part in root.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    return [
        m for found in lists for m in found if m is not root and any(True for c in m.children() for _ in c.parameters())
    ]
