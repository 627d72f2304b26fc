"""Checkpoints of a run: what is saved, when, and how a run continues."""
