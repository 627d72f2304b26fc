"""Swap the weights of a model for other tensors, and restore the raw weights."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hookline.distributed.dtensors import is_spread, part_of, version_of
from hookline.errors import SetupError
from hookline.progress import Clock

logger = logging.getLogger("hookline")


class Weights:
    """The weights of a model: their version, and swaps for other tensors.

    Args:
        model: The model.
        clock: The clock of the run, which counts updates.
    """

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        self._model = model
        self.raw: list[dict[str, torch.Tensor]] = []
        """The raw tensors of each open swap."""
        self.is_watched = False
        """True if ``restore_weights`` is called when this run ends."""
        self._clock = clock

    def updates(self) -> int:
        """Return the number of updates by all optimizers."""
        return sum(self._clock.updates.values())

    def version(self) -> int:
        """Return a number that changes with the weights, also by a swap or an in-place operation."""
        tensors = (*self._model.parameters(), *self._model.buffers())
        swapped = len(self.raw)  # The version of a sharded tensor does not show a swap.
        return hash((self.updates(), swapped, *map(version_of, tensors)))

    @contextmanager
    def swap(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Replace weights inside the block. At its end, also after an error, restore the raw weights.

        Only sharded weights are copied: each rank copies its shard.

        Args:
            weights: Tensors by the names of parameters and buffers.
        """
        if not isinstance(weights, Mapping):
            raise SetupError("swap_weights: give a mapping of names to tensors, such as a state dict")
        own = self._own()
        unknown = [name for name in weights if name not in own]
        if unknown:
            raise SetupError(
                f"swap_weights: the model has no {', '.join(map(str, unknown[:5]))}; "
                f"the names are those of its parameters and buffers"
            )
        for name, tensor in weights.items():
            shape = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            if shape != tuple(own[name].shape):
                raise SetupError(f"swap_weights: {name} has the shape {tuple(own[name].shape)}, not {shape}")
            if is_traceable_wrapper_subclass(own[name].data) and type(own[name].data) is not type(tensor):
                raise SetupError(
                    f"swap_weights: {name} is a {type(own[name].data).__name__}, not a {type(tensor).__name__}"
                )
        raw = {name: own[name].detach().clone() if is_spread(own[name]) else own[name].data for name in weights}
        self.raw.append(raw)
        self._put(own, {name: t.detach().to(own[name].device, own[name].dtype) for name, t in weights.items()})
        try:
            yield
        finally:
            places = [place for place, kept in enumerate(self.raw) if kept is raw]
            if places:  # Otherwise `restore_weights` has restored the raw weights already.
                self._put(own, raw)
                del self.raw[places[0]]

    def watch(self, restore: ExitStack) -> None:
        """Restore the raw weights when the run ends, if a swap is still open."""
        self.is_watched = True
        restore.callback(self.restore_weights)

    def restore_weights(self) -> None:
        """Restore the raw weights when a run ends, if a swap is open: an error came before its end."""
        self.is_watched = False
        if self.raw:
            logger.warning(
                "run.swap_weights was left open, and the run has ended: the raw weights are restored; use it in a "
                "`with` around the yield of around_eval, which is left on every way out"
            )
        while self.raw:
            self._put(self._own(), self.raw.pop())

    def _own(self) -> dict[str, Any]:
        """Return the parameters and buffers by name."""
        own: dict[str, Any] = dict(self._model.named_parameters(remove_duplicate=False))
        return own | dict(self._model.named_buffers(remove_duplicate=False))

    def _put(self, own: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if is_spread(own[name]):  # FSDP gathers weights from memory that it allocated, so copy into it.
                part_of(own[name]).copy_(part_of(tensor))
            else:
                own[name].data = tensor
        torch.clear_autocast_cache()  # The cache holds the old weights in bf16.
