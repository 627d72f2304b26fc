"""Metrics of a run: collected, averaged, added up over ranks, written as rows."""
