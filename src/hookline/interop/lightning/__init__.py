"""Callbacks and modules of Lightning (``lightning`` and ``pytorch_lightning``) in a run of Hookline."""

from hookline.interop.lightning.callback import LightningAdapter

__all__ = ["ADAPTER"]

ADAPTER = LightningAdapter
