"""Freeze and unfreeze parameters of a model by the names of their layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hookline.callbacks._modules import check_patterns, matches
from hookline.errors import SetupError


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
        self.freeze_batch_norms()
        return fresh

    def freeze_batch_norms(self) -> None:
        """Set frozen batch norms to eval mode, so that their statistics do not change in training."""
        if self._model is not None and not self.train_bn:
            for _, part in batch_norms(self._model, self.names):
                part.training = False

    def unfreeze(self, names: Sequence[str] | None = None) -> list[str]:
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

    def set_names(self, names: Sequence[str]) -> None:
        """Freeze exactly these parameters, as a checkpoint requires."""
        if self._model is None:
            self.names = list(names)
            return
        self.unfreeze([name for name in self.names if name not in names])
        self.freeze(self._model, list(names), train_bn=self.train_bn)

    def release(self) -> None:
        """Unfreeze everything when the fit ends. ``names`` keeps the names of what was frozen."""
        if self._model is not None:
            set_trainable(self._model, self.names, True)
            self._model = None


def named(
    model: nn.Module, patterns: Sequence[str], who: str, argument: str = "layers", *, but: Sequence[str] = ()
) -> list[str]:
    """Return the names of the parameters that match the patterns and do not match ``but``.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        >>> named(model, ["0"], "Freeze"), named(model, ["*"], "Freeze", but=["1"])
        (['0.weight', '0.bias'], ['0.weight', '0.bias'])
    """
    names = [name for name, _ in model.named_parameters()]
    check_patterns(patterns, names, who, argument, kind="parameter")
    check_patterns(but, names, who, "but", kind="parameter")
    return [name for name in names if matches(name, patterns) and not matches(name, but)]


def batch_norms(model: nn.Module, names: Iterable[str]) -> list[tuple[str, nn.Module]]:
    """Return the batch norms that own some of these parameters, with their names."""
    owners = {name.rpartition(".")[0] for name in names}
    return [(name, part) for name, part in model.named_modules() if isinstance(part, _BatchNorm) and name in owners]


def without_batch_norms(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Return the names of the parameters that do not belong to a batch norm."""
    norms = {name for name, _ in batch_norms(model, names)}
    return [name for name in names if name.rpartition(".")[0] not in norms]


def set_trainable(model: nn.Module, names: Iterable[str], trainable: bool) -> None:
    """Freeze or unfreeze parameters. Delete the gradients of frozen ones for the optimizer."""
    parameters = dict(model.named_parameters())
    for name in names:
        parameters[name].requires_grad_(trainable)
        if not trainable:
            parameters[name].grad = None


def check_something_is_left(model: nn.Module, who: str) -> None:
    """Raise if the model has no parameter left to train."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SetupError(f"{who}: all of {type(model).__name__} is frozen, so nothing is left to train; freeze less")


class Epochs:
    """Return each epoch once, also after a rollback into an earlier epoch.

    A rollback undoes the work of an epoch, so the epoch is returned again.

    Example:
        >>> epochs = Epochs()
        >>> list(epochs.begin(0)), list(epochs.begin(1)), list(epochs.catch_up(1))
        ([0], [1], [])
        >>> epochs.load([0, 0])  # A rollback into epoch 0.
        >>> list(epochs.catch_up(1)), list(epochs.begin(2))
        ([1], [2])
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._last: int | None = None

    def begin(self, epoch: int) -> range:
        """Note that an epoch starts, and return the epochs whose work is due."""
        if self._first is None:
            self._first = epoch
        return self.catch_up(epoch)

    def catch_up(self, epoch: int) -> range:
        """Return the epochs up to this one whose work is due. Empty before the first ``begin``."""
        start = self._first if self._last is None else self._last + 1
        if start is None:
            return range(0)
        self._last = epoch
        return range(start, epoch + 1)

    def save(self) -> list[int | None]:
        """Return the state for a checkpoint."""
        return [self._first, self._last]

    def load(self, saved: Sequence[int | None]) -> None:
        """Restore a saved state."""
        first, self._last = saved
        # `None`: the rollback returned to a step before the first epoch.
        self._first = self._first if first is None else first
