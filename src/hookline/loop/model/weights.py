"""Swapped weights: other tensors in the model for a while, the raw ones kept and put back."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hookline.distributed.dtensors import is_spread, part_of, version_of
from hookline.errors import SetupError
from hookline.progress import Clock

logger = logging.getLogger("hookline")


class Weights:
    """The weights of a model: which they are, and others in their place for a while."""

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        self._model = model
        self.raw: list[dict[str, torch.Tensor]] = []
        """The raw tensors of each swap that is open."""
        self.is_watched = False
        """Whether ``put_back`` is called when this run ends."""
        self._clock = clock

    def updates(self) -> int:
        """How often an optimizer has moved them."""
        return sum(self._clock.updates.values())

    def version(self) -> int:
        """A number that changes with the weights: by an update, a swap, or in place by whoever."""
        tensors = (*self._model.parameters(), *self._model.buffers())
        swapped = len(self.raw)  # what is spread over ranks shows no swap
        return hash((self.updates(), swapped, *map(version_of, tensors)))

    @contextmanager
    def swap(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Put other tensors in place; the raw ones come back on every way out.

        Nothing is copied, but weights that are spread over ranks: of these each rank copies its part.
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
            if places:  # else it was left open, and is put back already
                self._put(own, raw)
                del self.raw[places[0]]

    def put_back(self) -> None:
        """When a run ends: a swap that is still open, as a pair of hooks leaves it with an error between them."""
        self.is_watched = False
        if self.raw:
            logger.warning(
                "run.swap_weights was left open, and the run has ended: the raw weights are put back; use it in a "
                "`with` around the yield of around_eval, which is left on every way out"
            )
        while self.raw:
            self._put(self._own(), self.raw.pop())

    def _own(self) -> dict[str, Any]:
        """Parameters and buffers by name."""
        own: dict[str, Any] = dict(self._model.named_parameters(remove_duplicate=False))
        return own | dict(self._model.named_buffers(remove_duplicate=False))

    def _put(self, own: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if is_spread(own[name]):  # FSDP gathers weights from the memory that it knows, so they go in there
                part_of(own[name]).copy_(part_of(tensor))
            else:
                own[name].data = tensor
        torch.clear_autocast_cache()  # it holds the weights that were there before, in bf16
