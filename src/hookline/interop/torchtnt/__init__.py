"""Callbacks and units of TorchTNT in a run of Hookline."""

from hookline.interop.torchtnt.callback import TorchTNTAdapter
from hookline.interop.torchtnt.model import UnitSteps

__all__ = ["ADAPTER", "MODEL_STEPS"]

ADAPTER = TorchTNTAdapter
MODEL_STEPS = UnitSteps
