"""Checkpoints of a run: their content, when they are saved, and how a run resumes."""
