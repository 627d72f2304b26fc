"""Callbacks and modules of Lightning (``lightning`` and ``pytorch_lightning``) in a run of Hookline."""

from hookline.interop.lightning.callback import LightningAdapter
from hookline.interop.lightning.model import LightningSteps, loaders_of

__all__ = ["ADAPTER", "MODEL_STEPS", "loaders_of"]

ADAPTER = LightningAdapter
MODEL_STEPS = LightningSteps
