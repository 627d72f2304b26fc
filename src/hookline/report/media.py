"""Images, texts, tables, histograms and arrays for a page, within a budget of characters."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hookline.records import HistogramRow, ImageRow, MetricRow, TableRow, TextRow
from hookline.records.metric import encode
from hookline.records.regular_file import open_regular
from hookline.report.charts import EPOCH, epoch_of, is_epoch, short
from hookline.report.fit import cut
from hookline.report.kept import Kept
from hookline.report.numbers import whole
from hookline.report.read import RunData

SUMMARY = "model/summary"
PICTURES = 2_000_000
"""Maximum number of characters of all images."""
OTHERS = 250_000
"""Maximum number of characters of all texts, and the same for tables, histograms and arrays."""
LONGEST_TEXT = 20_000
MOST_ROWS = 200
_PNG = b"\x89PNG\r\n\x1a\n"

Row = TypeVar("Row", ImageRow, TextRow, TableRow, HistogramRow, MetricRow)
Frame = dict[str, Any]


def media_of(run: RunData, pictures: int | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return all media of a run. Each entry has a name, its frames by step, and the total count.

    Args:
        run: The run.
        pictures: Number of characters that the page has left for images.
    """
    room = PICTURES if pictures is None else min(PICTURES, pictures)
    tables = {name: rows for name, rows in run.tables.items() if name != SUMMARY}
    return {
        "images": _choose(run.images, lambda row: _image(row, run.folder), room),
        "texts": _choose(run.texts, _text, OTHERS),
        "tables": _choose(tables, _table, OTHERS),
        "histograms": _choose(run.histograms, _histogram, OTHERS),
        "arrays": _choose(_by_epoch(run.arrays), _array, OTHERS),
    }


def _by_epoch(arrays: Mapping[str, Kept[MetricRow]]) -> dict[str, Kept[MetricRow]]:
    """Replace each array by its value over full epochs, if there is one."""
    once = {name: rows for name, rows in arrays.items() if epoch_of(name) not in arrays}
    return {f"{name.removesuffix(EPOCH)}, by epoch" if is_epoch(name, arrays) else name: once[name] for name in once}


def summary_of(run: RunData) -> Frame | None:
    """Return the table of the model's layers."""
    return _table(run.tables[SUMMARY].newest)[0] if SUMMARY in run.tables else None


def _choose(
    kept: Mapping[str, Kept[Row]], frame: Callable[[Row], tuple[Frame, int]], budget: int
) -> list[dict[str, Any]]:
    """Return the newest frame of each name, then the first, then the others, within the budget."""
    rows = {name: list(its) for name, its in sorted(kept.items())}
    order = {name: list(_order(len(its))) for name, its in rows.items()}
    chosen: dict[str, list[tuple[int, Frame]]] = {name: [] for name in rows}
    for turn in range(max(map(len, rows.values()), default=0)):
        for name, its in rows.items():
            if turn < len(its):
                made, size = frame(its[order[name][turn]])
                if size <= budget:
                    budget -= size
                    chosen[name].append((order[name][turn], made))
    return [
        {
            "name": name,
            "frames": [made for _, made in sorted(frames, key=lambda pair: (pair[1]["step"], pair[0]))],
            "count": kept[name].count,
        }
        for name, frames in chosen.items()
    ]


def _order(count: int) -> Iterator[int]:
    """Yield the last index, the first, the middle, then the middles of the gaps.

    >>> list(_order(5))
    [4, 0, 2, 1, 3]
    """
    if count:
        yield count - 1
    if count > 1:
        yield 0
    gaps = [(0, count - 1)]
    while gaps:
        narrower: list[tuple[int, int]] = []
        for low, high in gaps:
            middle = (low + high) // 2
            if low < middle < high:
                yield middle
                narrower += [(low, middle), (middle, high)]
        gaps = narrower


# -- frames, and the characters they take ---------------------------------------------------------------


def _at(row: ImageRow | TextRow | TableRow | HistogramRow | MetricRow) -> Frame:
    return {"step": row.step, "epoch": row.epoch}


def _image(row: ImageRow, folder: Path) -> tuple[Frame, int]:
    caption = cut(row.caption)
    frame = {**_at(row), "caption": caption, "width": row.width, "height": row.height}
    png = _png(row, folder)
    if png is None:
        return {**frame, "missing": cut(row.file) or "it was not kept"}, len(caption)
    source = f"data:image/png;base64,{b64encode(png).decode()}"
    return {**frame, "source": source}, len(source)


def _png(row: ImageRow, folder: Path) -> bytes | None:
    """Return the image if it is a PNG inside the run's folder: the row is untrusted."""
    try:
        path = (folder / row.file).resolve()
        if not row.file or not path.is_relative_to(folder.resolve()):
            return None
        with open_regular(path) as file:
            found = file.read(PICTURES + 1)
    except (OSError, ValueError):
        return None
    return found if found.startswith(_PNG) else None


def _text(row: TextRow) -> tuple[Frame, int]:
    text = row.text[:LONGEST_TEXT]
    return {**_at(row), "text": text, "cut": len(row.text) - len(text)}, len(text)


def _table(row: TableRow) -> tuple[Frame, int]:
    columns = [cut(str(column)) for column in row.columns]
    cells = [[_cell(cell) for cell in cells] for cells in row.rows[:MOST_ROWS]]
    size = sum(len(str(cell)) + 4 for cells_of_row in (columns, *cells) for cell in cells_of_row)
    return {**_at(row), "columns": columns, "rows": cells, "cut": len(row.rows) - len(cells)}, size


def _cell(value: Any) -> Any:
    return cut(value) if isinstance(value, str) else whole(encode(value))


def _histogram(row: HistogramRow) -> tuple[Frame, int]:
    frame = {**_at(row), "edges": [short(edge) for edge in row.edges], "counts": list(row.counts), "odd": row.odd}
    return frame, 14 * len(row.counts)


def _array(row: MetricRow) -> tuple[Frame, int]:
    value = _short(row.value)
    return {**_at(row), "value": value}, len(str(value))


def _short(value: Any) -> Any:
    return [_short(item) for item in value] if isinstance(value, list) else short(value)
