"""Callbacks that show what a run does."""

from hookline.callbacks.watch.progress_bar import ProgressBar

__all__ = ["ProgressBar"]
