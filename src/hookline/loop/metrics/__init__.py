"""Metrics of a run: collect, average, reduce over ranks, and write as rows."""
