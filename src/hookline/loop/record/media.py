"""``run.log_image`` and similar methods. Each writes a row; images and files are copied."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import Tensor

from hookline.errors import MetricError
from hookline.loop.metrics.book import MetricBook
from hookline.loop.metrics.series import step_of
from hookline.loop.record.pictures import pixels_of
from hookline.loop.record.png import encode_png, png_size
from hookline.loop.record.records import Records
from hookline.records import Cell, FileRow, HistogramRow, ImageRow, Record, TableRow, TextRow
from hookline.records.redact import redact_table, redact_text, whole_text
from hookline.run import RunState

if TYPE_CHECKING:
    from hookline.sinks.jsonl import JsonLines

FOLDER = "media"
MOST_ROWS = 10_000
MOST_BINS = 1_000


class LoopMedia:
    """Write images, strings, tables, histograms and files of a run at once.

    Only rank zero writes them, because two images cannot be added up.

    Args:
        state: The state of the run.
        book: The metric book, which knows the names in use.
        records: The record of the run.
    """

    def __init__(self, state: RunState, book: MetricBook, records: Records) -> None:
        self._state, self._book, self._records = state, book, records

    def image(self, name: str, image: Any, caption: str, step: int | None) -> None:
        name = self._claim(name, "an image")
        if self._is_unheard:
            return
        pixels, done = pixels_of(name, image)
        self._picture(name, encode_png(pixels), ", ".join(part for part in (caption, done) if part), step)

    def figure(self, name: str, figure: Any, step: int | None) -> None:
        name = self._claim(name, "a figure")
        if self._is_unheard:
            return
        if not hasattr(figure, "savefig"):
            raise MetricError(f"{name}: a {type(figure).__name__} is not a figure; give a matplotlib Figure")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        self._picture(name, buffer.getvalue(), "", step)

    def text(self, name: str, text: str, step: int | None) -> None:
        name = self._claim(name, "a text")
        if not isinstance(text, str):
            raise MetricError(f"{name}: a {type(text).__name__} is not a string; give str(…)")
        self._write(TextRow(name, *self._when(name, step), text=redact_text(text)))

    def table(self, name: str, rows: Any, columns: Sequence[str] | None, step: int | None) -> None:
        name = self._claim(name, "a table")
        names, found = _table(name, rows, columns)
        self._write(TableRow(name, *self._when(name, step), columns=names, rows=found))

    def histogram(self, name: str, values: Any, bins: int, step: int | None) -> None:
        name = self._claim(name, "a histogram")
        if not isinstance(bins, int) or not 1 <= bins <= MOST_BINS:
            raise MetricError(f"{name}: bins={bins!r}; give an integer from 1 to {MOST_BINS}")
        if self._is_unheard:
            return
        edges, counts, odd = _histogram(name, values, bins)
        self._write(HistogramRow(name, *self._when(name, step), edges=edges, counts=counts, odd=odd))

    def file(self, name: str, path: str | Path, step: int | None) -> None:
        name, source = self._claim(name, "a file"), Path(path)
        if not source.is_file():
            raise MetricError(f"{name}: {str(source)!r} is not a file")
        if self._is_unheard:
            return
        when, folder, kept = self._when(name, step), self._folder, str(source)
        if folder is not None:
            copy = f"{_free(folder, name, when[0], '')}/{_safe(source.name)}"
            with source.open("rb") as file:
                if self._records.stream.write_file(folder / copy, lambda target: _copy(file, target)):
                    kept = copy
        self._write(FileRow(name, *when, file=whole_text(kept), size=source.stat().st_size))

    # ------------------------------------------------------------------------------------------

    def _picture(self, name: str, png: bytes, caption: str, step: int | None) -> None:
        when, (width, height), file = self._when(name, step), png_size(png), ""
        if self._folder is not None:
            target = _free(self._folder, name, when[0], ".png")
            if self._records.stream.write_file(self._folder / target, lambda path: path.write_bytes(png)):
                file = target
        self._write(ImageRow(name, *when, width, height, redact_text(caption), file, png))

    def _claim(self, name: str, kind: str) -> str:
        full = self._book.full_name(name)
        self._book.claim(full, kind)
        return full

    def _when(self, name: str, step: int | None) -> tuple[int, int, float]:
        clock = self._state.clock
        return clock.step if step is None else step_of(name, step), clock.epoch, clock.seconds

    @property
    def _is_unheard(self) -> bool:
        """True if nothing is written: on a rank other than zero, or in a padding batch."""
        return self._state.rank > 0 or self._book.muted

    @property
    def _folder(self) -> Path | None:
        return self._state.folder if self._records.are_kept else None

    def _write(self, row: Record) -> None:
        """Write a row, unless a sanity check or an answer logs it: these leave no trace."""
        if self._records.are_kept and not self._is_unheard:
            self._records.stream.write([row])


def rewind_rows_and_media(rows: JsonLines, size: int) -> None:
    """Remove the rows after ``size`` bytes, and the images and files that only these rows name.

    Args:
        rows: The file of rows.
        size: The size in bytes to which the file is truncated.
    """
    before = files_of(rows.read(rows.size, quietly=True))
    rows.rewind(size)
    delete_media(rows.path.parent, before - files_of(rows.read(size, quietly=True)))


def files_of(rows: Iterable[Record]) -> set[str]:
    """Return the names of the files in the rows. A damaged row may name a file outside of the run's folder.

    Args:
        rows: The rows.
    """
    return {row.file for row in rows if isinstance(row, ImageRow | FileRow)}


def delete_media(folder: Path, files: Iterable[str]) -> None:
    """Delete images and files of a run.

    Args:
        folder: The folder of the run.
        files: Paths relative to the folder. Paths outside its media folder stay: the run did not write these files.
    """
    for file in files:
        parts, path = PurePosixPath(file).parts, folder / file
        if parts[:1] == (FOLDER,) and ".." not in parts and path.is_file():
            path.unlink()
            with suppress(OSError):  # The folder is not empty.
                path.parent.rmdir()


def _copy(file: BinaryIO, target: Path) -> None:
    with target.open("wb") as copy:
        shutil.copyfileobj(file, copy, 1 << 20)


def _free(folder: Path, name: str, step: int, suffix: str) -> str:
    """Return an unused path for a file of a step, which may log under one name several times."""
    first = again = f"{_place(name)}/step-{step:08d}"
    number = 1
    while (folder / f"{again}{suffix}").exists():
        number += 1
        again = f"{first}-{number}"
    return again + suffix


def _place(name: str) -> str:
    """Return the folder for the files of a name. Different names have different folders."""
    parts = [_safe(part) for part in name.split("/") if part]
    return "/".join([FOLDER, *parts])


def _safe(part: str) -> str:
    """Return a file name that is valid on every operating system."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", part).lstrip(".")[:80]
    if safe == part:
        return part
    return f"{safe}-{hashlib.sha256(part.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _table(name: str, rows: Any, columns: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    if hasattr(rows, "itertuples") and hasattr(rows, "columns"):  # a pandas.DataFrame
        columns = list(map(str, rows.columns)) if columns is None else columns
        rows = rows.itertuples(index=False, name=None)
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise MetricError(
            f"{name}: a {type(rows).__name__} is not a table; give a list of dicts, or lists and columns="
        )
    found = list(rows)
    if columns is None:
        if not all(isinstance(row, Mapping) for row in found):
            raise MetricError(f"{name}: rows that are not dicts need columns=['a', 'b']")
        columns = list(dict.fromkeys(key for row in found for key in row))
    if len(found) > MOST_ROWS:
        raise MetricError(
            f"{name}: {len(found)} rows are too many for a table, {MOST_ROWS} at most; use run.log_file()"
        )
    if odd := [row for row in found if isinstance(row, str | bytes) or not isinstance(row, Iterable)]:
        raise MetricError(f"{name}: {odd[0]!r:.80} is not a row of a table; give a list or a dict for each row")
    names = tuple(whole_text(str(column)) for column in columns)
    cells = [_cells(row, columns) for row in found]
    if uneven := next((row for row in cells if len(row) != len(names)), None):
        columns_are = f"{len(names)} columns ({', '.join(names)})"
        raise MetricError(f"{name}: a row of {len(uneven)} cells in a table of {columns_are}")
    return names, tuple(tuple(row) for row in redact_table(names, cells))


def _cells(row: Any, columns: Sequence[Any]) -> tuple[Cell, ...]:
    values = [row.get(column) for column in columns] if isinstance(row, Mapping) else list(row)
    return tuple(_cell(value) for value in values)


def _cell(value: Any) -> Cell:
    if (hasattr(value, "item") and getattr(value, "size", 1) in (1, torch.Size(()))) or isinstance(value, Tensor):
        value = value.item() if not isinstance(value, Tensor) or value.numel() == 1 else str(value.tolist())
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _histogram(name: str, values: Any, bins: int) -> tuple[tuple[float, ...], tuple[int, ...], int]:
    try:
        found = torch.as_tensor(values).detach().flatten()
    except (TypeError, ValueError, RuntimeError) as error:
        raise MetricError(f"{name}: {values!r:.80} holds no numbers for a histogram") from error
    if found.is_complex():
        raise MetricError(f"{name}: complex numbers have no histogram")
    found = found.to(torch.float32 if found.device.type == "mps" else torch.float64)
    finite = found[found.isfinite()]
    odd = found.numel() - finite.numel()
    if not finite.numel():
        return (0.0, 1.0), (0,), odd
    low, high = float(finite.min()), float(finite.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts = torch.histc(finite, bins, low, high).cpu().to(torch.int64)
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
    return tuple(edges.tolist()), tuple(counts.tolist()), odd
