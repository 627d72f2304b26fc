"""Displays of the progress of a run, and the protocol for custom ones."""

from hookline.callbacks.watch.progress.display import Bar, Progress, ProgressDisplay

__all__ = ["Bar", "Progress", "ProgressDisplay"]
