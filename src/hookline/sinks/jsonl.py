"""Records as JSON lines: ``metrics.jsonl`` of the loop, and the sink ``JSONL``."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from hookline.errors import HooklineWarning, SetupError
from hookline.events.arguments import checked_init
from hookline.records import Record, from_json, to_json
from hookline.run.paths import in_run_folder, path_to_write
from hookline.sinks.line_file import LineFile, encode_lines
from hookline.sinks.sink import RunInfo

OF_THE_LOOP = ("metrics.jsonl", "events.jsonl")
MAX_WAITING_BYTES = 16_000_000
"""Maximum size of the rows of one file that wait in memory while it cannot be written."""


def _warn(text: str) -> None:
    """Warn the caller of the calling method."""
    warnings.warn(text, HooklineWarning, stacklevel=3)


class JsonLines:
    """Unbuffered file of rows. The folder and the file are created at the first row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = LineFile(path)

    def write(self, rows: Sequence[Record]) -> None:
        if rows:
            self._file.append("".join([f"{to_json(row)}\n" for row in rows]))

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self._file.size

    def read(self, size: int, *, quietly: bool = False) -> Iterator[Record]:
        """Yield the rows in the first ``size`` bytes, and warn about rows that cannot be read.

        Args:
            size: Number of bytes to read.
            quietly: Do not warn, because the caller has already warned.
        """
        for line in self._lines(size):
            try:
                yield from_json(line.decode())
            except (ValueError, KeyError, TypeError) as error:
                if quietly:
                    continue
                _warn(f"{self.path}: a row cannot be read and is left out: {line[:80]!r} ({error})")

    def rewind(self, size: int) -> None:
        """Remove the rows after the first ``size`` bytes: the run resumes from there.

        Args:
            size: Number of bytes to keep.
        """
        self.close()
        # After a power failure, the last line may be incomplete.
        whole = sum(len(line) for line in self._lines(size) if line.endswith(b"\n"))
        if self._file.size > whole:
            os.truncate(self.path, whole)

    def _lines(self, size: int) -> Iterator[bytes]:
        """Yield the lines in the first ``size`` bytes. The last line may be cut."""
        if self.path.exists():
            with self.path.open("rb") as file:
                for line in file:
                    if size <= 0:
                        return
                    yield line[:size]
                    size -= len(line)

    def close(self) -> None:
        self._file.close()


class WaitingJsonLines(JsonLines):
    """File of rows that keeps rows in memory while they cannot be written, and retries.

    ``size``, ``read`` and ``rewind`` treat the waiting rows as part of the file, so that the position in a
    checkpoint is still correct after they are written. When too many rows wait, new rows are dropped.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._waiting: deque[tuple[bytes, int]] = deque()  # Data of one write, and its number of rows.
        self._moving = threading.Lock()  # A sink's thread may read while rows move from memory to the file.
        self.written = self.dropped = self.failures = 0
        self.error: OSError | None = None
        """Error because of which rows wait. ``None`` if no row waits."""

    @property
    def waiting(self) -> int:
        """Number of waiting rows."""
        return sum(count for _, count in self._waiting)

    def write(self, rows: Sequence[Record]) -> None:
        if not rows:
            return
        data = encode_lines("".join([f"{to_json(row)}\n" for row in rows]))
        if self._waiting and self._waiting_bytes + len(data) > MAX_WAITING_BYTES and not self.retry():
            self.dropped += len(rows)
            return
        with self._moving:
            self._waiting.append((data, len(rows)))
        self.retry()

    def retry(self) -> bool:
        """Write the waiting rows. Return True if none is left."""
        with self._moving:
            try:
                while self._waiting:
                    data, count = self._waiting[0]
                    self._file.append(data)
                    self._waiting.popleft()
                    self.written += count
            except OSError as error:
                self.failures += 1
                self.error = error
                return False
            self.error = None
            return True

    def abandon(self) -> int:
        """Drop the waiting rows. Return the total number of dropped rows."""
        self.dropped += self.waiting
        self._waiting.clear()
        return self.dropped

    @property
    def size(self) -> int:
        """Size of the file and the waiting rows in bytes."""
        with self._moving:
            return self._file.size + self._waiting_bytes

    def rewind(self, size: int) -> None:
        excess = self.size - size
        with self._moving:
            while self._waiting and excess > 0:
                excess -= len(self._waiting.pop()[0])
        if excess > 0 or not self._waiting:
            super().rewind(size)

    @property
    def _waiting_bytes(self) -> int:
        """Size of the waiting rows in bytes."""
        return sum(len(data) for data, _ in self._waiting)

    def _lines(self, size: int) -> Iterator[bytes]:
        with self._moving:
            in_file, waiting = self._file.size, list(self._waiting)
        yield from super()._lines(min(size, in_file))
        size -= in_file
        for data, _ in waiting:
            if size <= 0:
                return
            yield from data[:size].splitlines(keepends=True)
            size -= len(data)


class JSONL:
    """Write every record to a file, one JSON object per line.

    This is a second copy of ``metrics.jsonl``, which the loop always writes if the run has a folder. The copy
    also has the events of the run (``kind`` is ``"event"``). It has the paths of images, not their content. A
    new run overwrites the file.

    Args:
        path: Path of the file. A relative path is relative to the run's folder.

    Raises:
        SetupError: If ``path`` is a file that the loop writes itself.

    Example:
        >>> from tempfile import mkdtemp
        >>> from hookline.records import MetricRow
        >>> sink = JSONL(Path(mkdtemp()) / "copy.jsonl")
        >>> sink.write([MetricRow("val/loss", 10, 1, 0.5, "eval", 2.5)])
        >>> sink.close()
        >>> print(sink.path.read_text(), end="")
        {"name": "val/loss", "step": 10, "epoch": 1, "value": 0.5, "kind": "eval", "seconds": 2.5}
    """

    @checked_init
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path_to_write(path, "path", "JSONL")
        """Path as the user gave it. A relative path is relative to the run's folder."""
        self.needs_folder = not self.path.is_absolute()
        self._rows: JsonLines | None = None if self.needs_folder else JsonLines(self.path)
        if str(self.path) in OF_THE_LOOP:
            raise _is_taken(self.path)

    def start(self, info: RunInfo) -> None:
        self.close()
        path = in_run_folder(self.path, info.folder, "path", "JSONL")
        if info.folder is not None and path.resolve() in [info.folder.resolve() / name for name in OF_THE_LOOP]:
            raise _is_taken(self.path)
        self._rows = rows = JsonLines(path)
        LineFile(path).rewrite(f"{to_json(row)}\n" for row in _earlier(info, rows))

    def write(self, records: Sequence[Record]) -> None:
        if self._rows is None:
            raise SetupError(f"JSONL(path={str(self.path)!r}): no run has started it. Give an absolute path.")
        self._rows.write(records)

    def flush(self) -> None:
        """Do nothing: ``write`` is not buffered."""

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()


def _earlier(info: RunInfo, rows: JsonLines) -> Iterator[Record]:
    """Return the rows that are still valid after a resume.

    Without a folder, only this file has them.
    """
    if info.folder is not None or not info.step:
        return info.earlier()
    return chain(info.earlier(), (row for row in rows.read(rows.size) if row.step <= info.step))


def _is_taken(path: Path) -> SetupError:
    """Return the error for a path that the loop writes itself."""
    return SetupError(
        f"JSONL({str(path)!r}): the loop itself writes this file, without a sink; give a copy another path"
    )
