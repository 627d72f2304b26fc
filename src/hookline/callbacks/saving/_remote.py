"""Background thread that uploads files to a remote folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from hookline.callbacks._text import format_error, format_size
from hookline.callbacks._worker import BackgroundWorker
from hookline.checkpoint.names import MANIFEST
from hookline.checkpoint.remote import RemoteFolder

PAUSES = (1.0, 4.0, 15.0, 60.0)
"""Seconds before each retry of a failed upload. After the last retry the queue gives up."""
END_PAUSE_S = 0.5
"""Seconds before each retry at the end of a run."""


@dataclass(frozen=True, slots=True)
class UploadReport:
    """Result of the uploads of a run."""

    uploaded: int
    """Number of files that were uploaded."""
    size: int
    """Number of bytes that were uploaded."""
    there: int
    """Number of files that were already in the remote folder."""
    lost: tuple[str, ...]
    """Files that are not in the remote folder.

    Their upload failed, the queue was too long, or they were deleted locally before their turn.
    """
    error: str = ""
    """Last error."""
    hung: bool = False
    """True if the thread was still busy when the waiting time was over."""

    @property
    def is_well(self) -> bool:
        """True if every file is in the remote folder."""
        return not self.lost

    def __str__(self) -> str:
        parts = [f"{self.uploaded:,} files uploaded ({format_size(self.size)})"]
        parts += [f"{self.there:,} were there"] if self.there else []
        if self.lost:
            shown = ", ".join(self.lost[:5]) + (f" and {len(self.lost) - 5:,} more" if len(self.lost) > 5 else "")
            parts += [f"{len(self.lost):,} NOT uploaded: {shown}"]
        parts += [f"the last error was {self.error}"] if self.error and self.lost else []
        parts += ["it was still busy at the end, and was left"] if self.hung else []
        return "; ".join(parts)


class UploadQueue:
    """Queue of files to upload. ``put`` never blocks.

    A file that is queued twice before its turn is uploaded once, with its latest content.
    """

    def __init__(self, remote: RemoteFolder, root: Path, *, max_waiting: int, pauses: Sequence[float] = PAUSES) -> None:
        self._remote, self._root = remote, root
        self._worker = BackgroundWorker[Path](
            "hookline upload",
            self._handle,
            self._finished,
            pauses=pauses,
            max_waiting=max_waiting,
            is_final=lambda path, error: not path.exists(),
            end_pause=END_PAUSE_S,
        )
        self._sent: dict[str, tuple[int, int]] = {}
        self._uploaded = self._size = self._there = 0
        self._lost: dict[str, None] = {}
        self._error = ""
        self._has_warned = False

    def put(self, path: Path, *, last: bool = False) -> None:
        """Queue a file, or the folder of a checkpoint.

        Args:
            path: The file or folder.
            last: True at the end of a run, when the limit of the queue does not apply.
        """
        for dropped in self._worker.put(path, path, limited=not last):
            self._lost[self._name(dropped)] = None

    def trouble(self) -> str:
        """Return the first error, once. Empty if there is none or it was returned before."""
        if self._has_warned or not self._error:
            return ""
        self._has_warned = True
        return self._error

    def finish(self, wait: float) -> UploadReport:
        """Upload the queue with short pauses, for at most ``wait`` seconds, and return the report."""
        left = self._worker.close(monotonic() + wait)
        lost = tuple(dict.fromkeys((*self._lost, *map(self._name, left))))
        return UploadReport(self._uploaded, self._size, self._there, lost, self._error, bool(left))

    def _name(self, path: Path) -> str:
        """Return the name of a path in the remote folder."""
        return path.relative_to(self._root).as_posix()

    # -- called from the thread of the queue -----------------------------------------------------

    def _handle(self, path: Path) -> None:
        """Upload a file or checkpoint, and keep the error."""
        try:
            self._upload(self._name(path), path)
        except BaseException as error:
            if path.exists():  # Otherwise it was removed before its turn.
                self._error = format_error(error)
            raise

    def _finished(self, path: Path, error: BaseException | None) -> None:
        """Note whether a path is in the remote folder."""
        if error is None:
            self._lost.pop(self._name(path), None)
        else:
            self._lost[self._name(path)] = None

    def _upload(self, name: str, path: Path) -> None:
        """Upload a file, or a checkpoint unless its manifest is already there."""
        if not path.is_dir():
            self._send(path, name)
            return
        manifest, its = path / MANIFEST, f"{name}/{MANIFEST}"
        if self._sent.get(its) == _stamp(manifest):
            return
        files = sorted(path.iterdir(), key=lambda file: (file.name == MANIFEST, file.name))
        if self._remote.same(manifest, its):
            self._there += len(files)
            self._sent[its] = _stamp(manifest)
            return
        for file in files:  # The manifest marks a complete checkpoint, so it is the last file.
            self._send(file, f"{name}/{file.name}")

    def _send(self, path: Path, name: str) -> None:
        """Upload a file unless the remote folder has it."""
        now = _stamp(path)
        if self._sent.get(name) == now:
            return
        if name not in self._sent and self._remote.has(path, name):
            self._there += 1
        else:
            self._remote.put(path, name)
            self._uploaded += 1
            self._size += now[0]
        self._sent[name] = now


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and modification time of a file, which change when it is written again."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns
