"""Displays of the progress of a run, and the protocol for custom ones."""
