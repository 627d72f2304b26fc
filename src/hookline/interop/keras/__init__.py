"""Callbacks of Keras 3 in a run of Hookline."""

from hookline.interop.keras.callback import KerasAdapter

__all__ = ["ADAPTER"]

ADAPTER = KerasAdapter
