"""Callbacks of TorchTNT in a run of Hookline."""

from hookline.interop.torchtnt.callback import TorchTNTAdapter

__all__ = ["ADAPTER"]

ADAPTER = TorchTNTAdapter
