"""The report of a run as one HTML file, and the comparison of runs. Standard library only."""

from hookline.report.compare import differing_metrics, differing_settings
from hookline.report.page import compare_data, page_data, render_compare, render_report, write_report
from hookline.report.read import RunData, RunReader, is_run, read_run

__all__ = [
    "RunData",
    "RunReader",
    "compare_data",
    "differing_metrics",
    "differing_settings",
    "is_run",
    "page_data",
    "read_run",
    "render_compare",
    "render_report",
    "write_report",
]
