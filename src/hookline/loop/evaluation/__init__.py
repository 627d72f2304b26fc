"""Evaluation and prediction, which change nothing."""
