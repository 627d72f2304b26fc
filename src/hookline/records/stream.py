"""All kinds of rows as one stream, and their JSON format with one line per row."""

from __future__ import annotations

import json
from dataclasses import fields
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any, get_args

from hookline.records.event import EventRow
from hookline.records.media import Cell, FileRow, HistogramRow, ImageRow, TableRow, TextRow
from hookline.records.metric import SPECIAL, Kind, MetricRow, decode, encode

Record = MetricRow | ImageRow | TextRow | TableRow | HistogramRow | FileRow | EventRow
"""One row. Every row has ``name``, ``step``, ``epoch`` and ``seconds``."""

_ENCODER = json.JSONEncoder(allow_nan=False)  # json.dumps would make an encoder for each row.
_KINDS: dict[str, type[Any]] = {
    "image": ImageRow,
    "text": TextRow,
    "table": TableRow,
    "histogram": HistogramRow,
    "file": FileRow,
    "event": EventRow,
}
_METRICS = frozenset(get_args(Kind))
_NAMES = {row: kind for kind, row in _KINDS.items()}
_LEFT_OUT = ("png",)
"""Fields with data that is in a separate file."""


def to_json(row: Record) -> str:
    """Return the row as one line of JSON.

    >>> to_json(TextRow("val/sample", 10, 1, 2.5, "to be or not"))
    '{"kind": "text", "name": "val/sample", "step": 10, "epoch": 1, "seconds": 2.5, "text": "to be or not"}'
    """
    if isinstance(row, MetricRow):
        if row.value.__class__ is float and isfinite(row.value):  # Nearly all rows take this faster path.
            name, seconds = encode_basestring_ascii(row.name), round(row.seconds, 6)
            about = f'"name": {name}, "step": {row.step}, "epoch": {row.epoch}'
            return f'{{{about}, "value": {row.value!r}, "kind": "{row.kind}", "seconds": {seconds!r}}}'
        return _ENCODER.encode(
            {
                "name": row.name,
                "step": row.step,
                "epoch": row.epoch,
                "value": encode(row.value),
                "kind": row.kind,
                "seconds": round(row.seconds, 6),
            }
        )
    values = {field.name: encode(getattr(row, field.name)) for field in fields(row) if field.name not in _LEFT_OUT}
    if isinstance(row, TableRow):
        values["rows"] = [[_encode_cell(cell) for cell in cells] for cells in row.rows]
    return _ENCODER.encode({"kind": _NAMES[type(row)], **values, "seconds": round(row.seconds, 6)})


def from_json(line: str) -> Record:
    """Return the row that a line of JSON describes.

    >>> from_json('{"name": "val/loss", "step": 10, "epoch": 1, "value": "nan", "kind": "eval", "seconds": 2.5}').value
    nan

    Raises:
        ValueError: If the line is not JSON, or has an unknown kind.
        KeyError: If a field is missing.
        TypeError: If a field has the wrong type.
    """
    found = json.loads(line)
    kind = found["kind"]
    if not isinstance(found["name"], str) or type(found["step"]) is not int or type(found["epoch"]) is not int:
        raise TypeError("name must be a string, step and epoch integers")
    if kind in _METRICS:
        found["value"] = decode(found["value"])
        return MetricRow(**found)
    if kind not in _KINDS:
        raise ValueError(f"{kind!r} is not a kind of row")
    del found["kind"]
    match kind:
        case "histogram":
            found["edges"], found["counts"] = tuple(decode(found["edges"])), tuple(decode(found["counts"]))
        case "table":
            found["columns"] = tuple(found["columns"])
            found["rows"] = tuple(tuple(_decode_cell(cell) for cell in cells) for cells in found["rows"])
        case "event":
            found["took"] = decode(found.get("took", 0.0))
    row: Record = _KINDS[kind](**found)
    return row


def _encode_cell(cell: Cell) -> Any:
    """Encode NaN and infinities as a dict, because a cell may also be the string "nan"."""
    encoded = encode(cell)
    return encoded if encoded is cell else {"number": encoded}


def _decode_cell(cell: Any) -> Cell:
    return SPECIAL[cell["number"]] if isinstance(cell, dict) else cell
