"""A plain model as the ``LightningModule`` that callbacks of Lightning see."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from typing import Any

from torch import nn

SHARED = tuple(name for name in vars(nn.Module()) if name != "training")
"""Fields of every module: its parameters, buffers, submodules and hooks."""


def as_lightning_module(model: nn.Module, package: str, host: Any) -> Any:
    """Return a model as a ``LightningModule``.

    Callbacks check the class, and call ``log`` and other methods of it. The parameters keep their names: the returned
    module has the very dicts of the model, and is no wrapper around it.

    Args:
        model: The model of the run.
        package: ``"lightning.pytorch"`` or ``"pytorch_lightning"``.
        host: The host of the run.

    Returns:
        The model itself, if it is a ``LightningModule`` of this package.
    """
    base = import_module(package).LightningModule
    if isinstance(model, base):
        return model
    module = _shared_class(base)(model, host.log_for_module)
    module.trainer = host.trainer_of(package)
    return module


def _shared_class(base: Any) -> Any:
    class PlainModel(base):  # type: ignore[misc]
        """A ``LightningModule`` that shares all its parts with a plain model."""

        def __init__(self, model: nn.Module, log: Callable[..., None]) -> None:
            super().__init__()
            self.__dict__.update({name: vars(model)[name] for name in SHARED}, _shared_model=model, log=log)

        @property
        def training(self) -> bool:
            return self._shared_model.training  # type: ignore[no-any-return]

        @training.setter
        def training(self, mode: bool) -> None:
            if "_shared_model" in vars(self):
                self._shared_model.training = mode

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(vars(self)["_shared_model"], name)

        def __deepcopy__(self, memo: dict[int, Any]) -> PlainModel:
            return type(self)(deepcopy(self._shared_model, memo), self.log)

        def forward(self, *inputs: Any, **more: Any) -> Any:
            return self._shared_model(*inputs, **more)

    return PlainModel
