"""What can be logged beside numbers: images, texts, tables, histograms, files.

A picture or a file lies in the run's folder, and its row names it. A run that writes nothing has no folder: then
``file`` is empty (of a ``FileRow``: where the file was), and only the sinks see what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hookline.records.regular_file import open_regular

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class ImageRow:
    """A picture, or a figure as a picture."""

    name: str
    step: int
    epoch: int
    seconds: float
    width: int
    height: int
    caption: str = ""
    file: str = ""
    """Where its PNG is, from the run's folder on."""
    png: bytes = b""
    """The picture itself; empty in a row that was read back."""

    def read(self, folder: Path | None) -> bytes:
        """The PNG, from memory or from the folder of the run."""
        if self.png or folder is None:
            return self.png
        with open_regular(folder / self.file) as file:
            return file.read()


@dataclass(frozen=True, slots=True)
class TextRow:
    """A text: a sample of what a model writes, a note."""

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
    """How values are spread: ``counts[i]`` of them lie between ``edges[i]`` and ``edges[i + 1]``."""

    name: str
    step: int
    epoch: int
    seconds: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    odd: int = 0
    """So many were NaN or infinite, and lie nowhere."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file that belongs to the run."""

    name: str
    step: int
    epoch: int
    seconds: float
    file: str
    """Where its copy is, from the run's folder on; or its own path, if the run has no folder."""
    size: int
