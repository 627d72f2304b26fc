"""Records as TensorBoard summaries: tags, kinds and texts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hookline.records import EventRow, FileRow, HistogramRow, ImageRow, MetricRow, Record, TableRow, TextRow

EVENTS = "hookline/events/"
MOST_SCALARS = 16
"""Arrays with at most this many elements are also written as scalars."""

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|-])")
_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
"""Number of channels by the color type in the header of a PNG. A palette is shown in colors."""


class Summaries:
    """Convert each row to an event. The first value has the tag ``tag_of(row)``."""

    def __init__(self, folder: Path | None) -> None:
        from tensorboard.compat.proto import summary_pb2, tensor_pb2, tensor_shape_pb2
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.text.metadata import create_summary_metadata

        self._folder = folder
        self._event, self._summary, self._histogram = Event, summary_pb2.Summary, summary_pb2.HistogramProto
        self._tensor, self._shape = tensor_pb2.TensorProto, tensor_shape_pb2.TensorShapeProto
        self._metadata = summary_pb2.SummaryMetadata
        self._is_text = create_summary_metadata(display_name="", description="")

    def event(self, row: Record, wall_time: float) -> Any:
        """Return the event of a row."""
        values = list(self._values(row))
        return self._event(step=row.step, wall_time=wall_time, summary=self._summary(value=values))

    def _values(self, row: Record) -> Iterator[Any]:
        """Yield the summary values of a row."""
        tag = tag_of(row)
        match row:
            case MetricRow(value=list() as array):
                yield from self._array(tag, array)
            case MetricRow(value=int() | float() as number):
                yield self._scalar(tag, number)
            case ImageRow():
                yield from self._image(tag, row)
            case HistogramRow():
                yield from self._spread(tag, row)
            case TextRow() | TableRow() | FileRow() | EventRow():
                yield self._text(tag, text_of(row))

    def _scalar(self, tag: str, value: float) -> Any:
        """Return a scalar."""
        return self._summary.Value(tag=tag, simple_value=value)

    def _text(self, tag: str, text: str) -> Any:
        """Return a text."""
        shape = self._shape(dim=[self._shape.Dim(size=1)])
        tensor = self._tensor(dtype="DT_STRING", string_val=[text.encode(errors="replace")], tensor_shape=shape)
        return self._summary.Value(tag=tag, metadata=self._is_text, tensor=tensor)

    def _array(self, tag: str, value: list[Any]) -> Iterator[Any]:
        """Yield an array as a table, and a small array also as scalars."""
        elements = list(_elements(value))
        yield self._text(tag, array_text(value))
        if len(elements) <= MOST_SCALARS:
            for place, number in elements:
                yield self._scalar(f"{tag}/{place}", number)

    def _image(self, tag: str, row: ImageRow) -> Iterator[Any]:
        """Yield an image and its caption."""
        png = row.read(self._folder)
        channels = _CHANNELS.get(png[25], 4) if len(png) > 25 else 4
        image = self._summary.Image(width=row.width, height=row.height, colorspace=channels, encoded_image_string=png)
        yield self._summary.Value(tag=tag, image=image)
        if row.caption:
            yield self._text(f"{tag}/caption", escaped(row.caption))

    def _spread(self, tag: str, row: HistogramRow) -> Iterator[Any]:
        """Yield a histogram, and the number of values that are not finite."""
        edges, counts = row.edges, row.counts
        filled = [place for place, count in enumerate(counts) if count]
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        histogram = self._histogram(
            # TensorBoard draws from min to max: the edges of the bins that are not empty.
            min=edges[filled[0]] if filled else 0.0,
            max=edges[filled[-1] + 1] if filled else 0.0,
            num=sum(counts),
            sum=sum(middle * count for middle, count in zip(middles, counts, strict=True)),
            sum_squares=sum(middle**2 * count for middle, count in zip(middles, counts, strict=True)),
            bucket_limit=edges[1:],
            bucket=counts,
        )
        yield self._summary.Value(tag=tag, histo=histogram)
        if row.odd:
            yield self._scalar(f"{tag}/odd", row.odd)


def tag_of(row: Record) -> str:
    """Return the tag of a row.

    Each kind of event has its own tag, because TensorBoard may show only one value per tag and step.
    """
    name = f"{EVENTS}{row.name}" if isinstance(row, EventRow) else row.name
    return name.encode(errors="replace").decode()


def text_of(row: TextRow | TableRow | FileRow | EventRow) -> str:
    """Return the text of a row as Markdown, which TensorBoard renders.

    A logged text is not changed.
    """
    match row:
        case TextRow():
            return row.text
        case TableRow():
            return table_text(row.columns, row.rows)
        case FileRow():
            return f"{escaped(row.file)}, {row.size:,} bytes"
        case EventRow():
            took = f"took {row.took:.3g} s" if row.took else ""
            return ", ".join(part for part in (escaped(row.text), took) if part) or row.name


def table_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    r"""Return a table in Markdown.

    Example:
        >>> print(table_text(("a|b", "n"), [("*x*", 0.5), (None, 2)]))
        | a\|b | n |
        | --- | --- |
        | \*x\* | 0.5 |
        |  | 2 |
    """
    lines = [columns, ["---"] * len(columns), *rows]
    cells = [[cell if number == 1 else _cell(cell) for cell in line] for number, line in enumerate(lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def array_text(value: list[Any]) -> str:
    """Return a vector or matrix as a table with indices, and other arrays as JSON."""
    rows = value if any(isinstance(item, list) for item in value) else [value]
    if any(isinstance(item, list) for row in rows for item in row):
        return f"`{json.dumps(value)}`"
    columns = ["", *map(str, range(max(map(len, rows), default=0)))]
    return table_text(columns, [[number, *row] for number, row in enumerate(rows)])


def escaped(text: str) -> str:
    r"""Return text that Markdown and HTML show unchanged.

    Example:
        >>> escaped("a*b <i>\nnext")
        'a\\*b &lt;i&gt;<br>next'
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "<br>".join(_MARKDOWN.sub(r"\\\1", text).splitlines())


def _cell(cell: Any) -> str:
    """Return a cell of a table as a string."""
    if cell is None:
        return ""
    return escaped(f"{cell:.6g}" if isinstance(cell, float) else str(cell))


def _elements(value: list[Any], place: str = "") -> Iterator[tuple[str, float]]:
    """Yield the indices and values of nested lists."""
    for number, item in enumerate(value):
        if isinstance(item, list):
            yield from _elements(item, f"{place}{number}/")
        else:
            yield f"{place}{number}", item


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, str | float]:
    """Return the hyper-parameters as finite numbers and strings, for TensorBoard's table.

    Example:
        >>> flat_config({"lr": 0.1, "model": {"sizes": [8, 3], "bias": True}})
        {'lr': 0.1, 'model.sizes': '[8, 3]', 'model.bias': 'True'}
    """
    found: dict[str, str | float] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found |= flat_config(value, f"{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[name] = value
        else:
            found[name] = str(value)
    return found
