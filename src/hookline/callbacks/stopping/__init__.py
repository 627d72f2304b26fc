"""Callbacks that end a run."""

from hookline.callbacks.stopping.early_stopping import EarlyStopping

__all__ = ["EarlyStopping"]
