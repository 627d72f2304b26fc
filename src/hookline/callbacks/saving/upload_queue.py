"""One thread that uploads files, one after the other, and tries again what fails; nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from hookline.callbacks.saving.remote_folder import RemoteFolder
from hookline.checkpoint.names import MANIFEST
from hookline.errors import words_of
from hookline.records.redact import redact_text

PAUSES = (1.0, 4.0, 15.0, 60.0)
"""Seconds until something that could not be uploaded is tried again; after the last try it is left."""


@dataclass(frozen=True, slots=True)
class UploadReport:
    """What became of the files."""

    uploaded: int
    """Files that were sent."""
    size: int
    """Their bytes."""
    there: int
    """Files that were there already."""
    lost: tuple[str, ...]
    """What is not there: it failed, came too fast, or was removed here before its turn."""
    error: str = ""
    """The last thing that went wrong."""
    hung: bool = False
    """The thread was still busy when the run had waited long enough, and was left."""

    @property
    def is_well(self) -> bool:
        return not self.lost

    def __str__(self) -> str:
        parts = [f"{self.uploaded:,} files uploaded ({self.size / 1e6:.1f} MB)"]
        parts += [f"{self.there:,} were there"] if self.there else []
        if self.lost:
            shown = ", ".join(self.lost[:5]) + (f" and {len(self.lost) - 5:,} more" if len(self.lost) > 5 else "")
            parts += [f"{len(self.lost):,} NOT uploaded: {shown}"]
        parts += [f"the last error was {self.error}"] if self.error and self.lost else []
        parts += ["it was still busy at the end, and was left"] if self.hung else []
        return "; ".join(parts)


class UploadQueue:
    """``put`` never waits. What is put twice before its turn is uploaded once, as it is then."""

    def __init__(self, remote: RemoteFolder, root: Path, *, most: int, pauses: Sequence[float] = PAUSES) -> None:
        self._remote, self._root, self._most, self._pauses = remote, root, most, tuple(pauses)
        self._waiting: dict[str, Path] = {}
        self._busy: str | None = None
        self._changed = threading.Condition()
        self._closing = self._left = False
        self._thread: threading.Thread | None = None
        self._sent: dict[str, tuple[int, int]] = {}
        self._uploaded = self._size = self._there = 0
        self._lost: dict[str, str] = {}
        self._error = ""
        self._told = False

    # -- in the thread of the run ----------------------------------------------------------------

    def put(self, path: Path, *, last: bool = False) -> None:
        """A file, or the folder of a checkpoint; the ``last`` ones, at the end of a run, are never too many."""
        name = path.relative_to(self._root).as_posix()
        with self._changed:
            self._waiting.pop(name, None)  # the newest comes last
            self._waiting[name] = path
            while len(self._waiting) > self._most and not last:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                self._lost[oldest] = "too many were waiting"
            if self._thread is None:
                self._closing = False
                self._thread = threading.Thread(target=self._work, name="hookline upload", daemon=True)
                self._thread.start()
            self._changed.notify()

    def trouble(self) -> str:
        """What went wrong for the first time since this was last asked; empty if nothing did."""
        if self._told or not self._error:
            return ""
        self._told = True
        return self._error

    def finish(self, wait: float) -> UploadReport:
        """Upload what is waiting, without long pauses, for so many seconds; then leave the rest."""
        end = monotonic() + wait
        with self._changed:
            self._closing = True
            self._changed.notify()
        thread = self._thread
        if thread is not None:
            thread.join(max(0.0, end - monotonic()))
            self._left = thread.is_alive()
            self._thread = None
        with self._changed:
            rest = [*([self._busy] if self._busy else []), *self._waiting] if self._left else []
            lost = (*self._lost, *(name for name in rest if name not in self._lost))
            return UploadReport(self._uploaded, self._size, self._there, lost, self._error, self._left)

    # -- in its own thread -----------------------------------------------------------------------

    def _work(self) -> None:
        while (item := self._next()) is not None:
            name, path = item
            why = self._try(name, path)
            with self._changed:
                self._busy = None
                if why:
                    self._lost[name] = why
                else:
                    self._lost.pop(name, None)

    def _next(self) -> tuple[str, Path] | None:
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if not self._waiting or self._left:
                return None
            name = self._busy = next(iter(self._waiting))
            return name, self._waiting.pop(name)

    def _try(self, name: str, path: Path) -> str:
        """Upload, again after a pause if it fails; why it could not be done, or nothing."""
        for pause in (*self._pauses, None):
            try:
                self._upload(name, path)
                return ""
            except BaseException as error:  # also what ends a thread without a word
                if not path.exists():
                    return "it was removed before its turn"
                self._error = _words(error)
            if self._left or pause is None or not self._paused(pause):
                break
        return self._error

    def _paused(self, pause: float) -> bool:
        """Wait; whether there is time for another try. At the end of a run the pauses are short."""
        end = monotonic() + pause
        with self._changed:
            while not self._closing and (left := end - monotonic()) > 0:
                self._changed.wait(left)
            if self._closing:
                self._changed.wait(min(0.5, max(0.0, end - monotonic())))
        return not self._left

    def _upload(self, name: str, path: Path) -> None:
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
        for file in files:  # with its manifest it is whole: that comes last
            self._send(file, f"{name}/{file.name}")

    def _send(self, path: Path, name: str) -> None:
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
    """Size and time of a file: another if it was written again."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _words(error: BaseException) -> str:
    """One short line without secrets: an address may hold a key."""
    return redact_text(words_of(error)[:1_000]).splitlines()[0][:300]
