"""The typed rows that the loop writes and sinks and reports read, with their JSON format."""

from hookline.records.event import EventRow
from hookline.records.media import Cell, FileRow, HistogramRow, ImageRow, TableRow, TextRow
from hookline.records.metric import Kind, MetricRow, Value
from hookline.records.stream import Record, from_json, to_json

__all__ = [
    "Cell",
    "EventRow",
    "FileRow",
    "HistogramRow",
    "ImageRow",
    "Kind",
    "MetricRow",
    "Record",
    "TableRow",
    "TextRow",
    "Value",
    "from_json",
    "to_json",
]
