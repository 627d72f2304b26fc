"""Rows for images, texts, tables, histograms and files.

The data of an image or a file is in the run's folder, and the row has its path. In a run without a folder, ``file`` is
empty (in a ``FileRow``: the path of the original file), and only the sinks receive the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hookline.records.regular_file import open_regular

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class ImageRow:
    """An image, or a figure as an image."""

    name: str
    step: int
    epoch: int
    seconds: float
    width: int
    height: int
    caption: str = ""
    file: str = ""
    """Path of the PNG file, relative to the run's folder."""
    png: bytes = b""
    """The PNG data; empty in a row that was read from a file."""

    def read(self, folder: Path | None) -> bytes:
        """Return the PNG data, from memory or from the run's folder."""
        if self.png or folder is None:
            return self.png
        with open_regular(folder / self.file) as file:
            return file.read()


@dataclass(frozen=True, slots=True)
class TextRow:
    """A text, for example a sample of a model's output or a note."""

    name: str
    step: int
    epoch: int
    seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table with named columns."""

    name: str
    step: int
    epoch: int
    seconds: float
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class HistogramRow:
    """A histogram: ``counts[i]`` values are between ``edges[i]`` and ``edges[i + 1]``."""

    name: str
    step: int
    epoch: int
    seconds: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    odd: int = 0
    """Number of NaN and infinite values, which no bin counts."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file that belongs to the run."""

    name: str
    step: int
    epoch: int
    seconds: float
    file: str
    """Path of the copy, relative to the run's folder, or the original path without a folder."""
    size: int
