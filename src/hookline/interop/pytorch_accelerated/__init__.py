"""Callbacks of pytorch-accelerated in a run of Hookline."""

from hookline.interop.pytorch_accelerated.callback import PytorchAcceleratedAdapter

__all__ = ["ADAPTER"]

ADAPTER = PytorchAcceleratedAdapter
