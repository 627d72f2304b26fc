"""A plain model as the ``LightningModule`` that callbacks of Lightning see."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from hookline.interop.plain_model import as_module_of


def as_lightning_module(model: nn.Module, package: str, host: Any) -> Any:
    """Return a model as a ``LightningModule``.

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
    module = as_module_of(base, model, log=host.log_for_module)
    module.trainer = host.trainer_of(package)
    return module
