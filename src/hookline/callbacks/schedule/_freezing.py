"""Freeze parameters of a model, and unfreeze them when the fit ends."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from hookline.callbacks.schedule.layers import batch_norms, set_trainable, without_batch_norms


class Frozen:
    """Parameters that a callback has frozen, without those that were frozen before."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.train_bn = False
        self._model: nn.Module | None = None

    def freeze(self, model: nn.Module, names: Sequence[str], *, train_bn: bool) -> list[str]:
        """Freeze parameters and return the newly frozen names. With ``train_bn``, skip batch norms."""
        self._model, self.train_bn = model, train_bn
        parameters = dict(model.named_parameters())
        wanted = without_batch_norms(model, names) if train_bn else names
        fresh = [name for name in wanted if parameters[name].requires_grad and name not in self.names]
        set_trainable(model, fresh, False)
        self.names += fresh
        self.still()
        return fresh

    def still(self) -> None:
        """Set frozen batch norms to eval mode, so that their statistics do not change in training."""
        if self._model is not None and not self.train_bn:
            for _, part in batch_norms(self._model, self.names):
                part.training = False

    def thaw(self, names: Sequence[str] | None = None) -> list[str]:
        """Unfreeze these parameters, or all, and return the names of those that were frozen here."""
        if self._model is None:
            return []
        thawed = [name for name in self.names if names is None or name in names]
        set_trainable(self._model, thawed, True)
        self.names = [name for name in self.names if name not in thawed]
        if self._model.training:
            for _, part in batch_norms(self._model, thawed):
                part.training = True
        return thawed

    def become(self, names: Sequence[str]) -> None:
        """Freeze exactly these parameters, as a checkpoint requires."""
        if self._model is None:
            self.names = list(names)
            return
        self.thaw([name for name in self.names if name not in names])
        self.freeze(self._model, list(names), train_bn=self.train_bn)

    def release(self) -> None:
        """Unfreeze everything when the fit ends. ``names`` keeps the names of what was frozen."""
        if self._model is not None:
            set_trainable(self._model, self.names, True)
            self._model = None
