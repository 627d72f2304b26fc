"""The callbacks that come with Hookline: one class, one file; families are folders."""

from hookline.callbacks.debug import LambdaCallback
from hookline.callbacks.stopping import EarlyStopping
from hookline.callbacks.watch import ProgressBar

__all__ = ["EarlyStopping", "LambdaCallback", "ProgressBar"]
