"""The record of a run: its files other than checkpoints, its sinks and its messages."""
