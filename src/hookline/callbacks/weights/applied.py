"""``Applied``: other weights in a model between two fits."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookline.callbacks.weights._averaging import named_tensors

if TYPE_CHECKING:
    pass


class Applied:
    """Weights that replace the raw weights of a model between two fits."""

    def __init__(self) -> None:
        self._model: weakref.ref[nn.Module] | None = None
        self._raw: dict[str, Tensor] = {}
        self._noted: list[tuple[int, int]] | None = None

    def note_end(self, model: nn.Module) -> None:
        """Note the end of training. A later change of the weights is intended, and is kept."""
        self._noted = _versions(model)

    def is_in(self, model: nn.Module) -> bool:
        """True if the model has the other weights now."""
        return self._model is not None and self._model() is model

    def was_replaced(self, model: nn.Module) -> bool:
        """True if the weights of the model were changed after training."""
        return self._noted is not None and self._noted != _versions(model)

    @torch.no_grad()
    def put(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights into the model, unless it was changed after training (``restore_best``)."""
        if self.was_replaced(model):
            return
        self._noted = None
        own = named_tensors(model)
        self._model = weakref.ref(model)
        self._raw = {name: own[name].detach().clone() for name in weights}
        for name, tensor in weights.items():
            own[name].copy_(tensor)

    @torch.no_grad()
    def take_back(self, model: nn.Module, weights: Mapping[str, Tensor]) -> bool:
        """Restore the raw weights for training. Return False if the user has changed the weights."""
        self._noted = None
        if not self.is_in(model):
            return True
        own, raw = named_tensors(model), self._raw
        self.forget()
        if not all(name in own and torch.equal(own[name], weights[name].to(own[name])) for name in raw):
            return False
        for name, tensor in raw.items():
            own[name].copy_(tensor)
        return True

    def forget(self) -> None:
        """Reset everything."""
        self._model, self._raw, self._noted = None, {}, None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which does not belong to a model."""
        return {"_model": None, "_raw": {}, "_noted": None}


def _versions(model: nn.Module) -> list[tuple[int, int]]:
    """Return a fingerprint of the parameters that changes with every write."""
    return [(parameter.data_ptr(), parameter._version) for parameter in model.parameters()]
