"""What is told about a run: a text, numbers for a program, and files."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from fnmatch import fnmatchcase
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hookline.progress.counted import counted
from hookline.records.plain import plain
from hookline.records.redact import redact_text

if TYPE_CHECKING:
    from hookline.run import Run

LARGEST = 10_000_000
"""So many bytes of files go with one message."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message, complete: nothing of the run is needed to send it."""

    event: str
    title: str
    text: str
    facts: Mapping[str, Any]
    files: tuple[tuple[str, bytes], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """``text`` is what chats show; the rest is for programs."""
        names = [name for name, _ in self.files]
        return {
            "text": f"{self.title}\n{self.text}",
            "event": self.event,
            "title": self.title,
            **self.facts,
            "files": names,
        }

    def as_mail(self, sender: str, to: Sequence[str]) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = self.title, sender, ", ".join(to)
        mail["Date"] = format_datetime(datetime.now(UTC))
        # Python would draw these two from the random state that training uses.
        mail["Message-ID"] = f"<{token_hex(16)}@hookline.invalid>"
        mail.set_content(self.text)
        for name, content in self.files:
            kind = (mimetypes.guess_type(name)[0] or "application/octet-stream").split("/")
            mail.add_attachment(content, maintype=kind[0], subtype=kind[1], filename=name)
        if mail.is_multipart():
            mail.set_boundary(f"hookline-{token_hex(16)}")
        return mail


def compose(
    run: Run,
    event: str,
    headline: str,
    *,
    why: str,
    metrics: Sequence[str],
    attach: Sequence[str],
    new: Mapping[str, float] = MappingProxyType({}),
) -> Message:
    """A message about a run as it is now; ``new`` values are not in its history yet. Secrets are taken out of it."""
    clock, name = run.clock, f"{run.project}/{run.name}"
    shown = dict(_numbers(run, metrics, new))
    files, left_out = _files(run.folder if run.has_folder else None, attach)
    counts = f"{counted(clock.step, 'step')}, {counted(clock.epoch, 'epoch')}, {_time(clock.seconds)}"
    parts = [f"{name} {headline}: {counts}.", why]
    parts += ["\n".join(f"{metric} = {value:.6g}" for metric, value in shown.items())]
    parts += [f"{_size(size)} is too large to send: {file}" for file, size in left_out]
    facts = {
        "project": run.project,
        "run": run.name,
        "step": clock.step,
        "epoch": clock.epoch,
        "seconds": round(clock.seconds, 3),
        "reason": redact_text(why),
        "metrics": plain(shown),
    }
    text = redact_text("\n\n".join(part for part in parts if part))
    return Message(event, redact_text(_one_line(f"{name} {headline}")), text, facts, tuple(files))


def _numbers(run: Run, patterns: Sequence[str], new: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """The newest number of each metric that is wanted."""
    for name in dict.fromkeys((*run.history, *new)):
        value = new[name] if name in new else run.history[name][-1]
        if isinstance(value, int | float) and any(fnmatchcase(name, pattern) for pattern in patterns):
            yield name, value


def _files(folder: Path | None, patterns: Sequence[str]) -> tuple[list[tuple[str, bytes]], list[tuple[str, int]]]:
    """The files of the run that are there, and those that are too large."""
    found: list[tuple[str, bytes]] = []
    left_out: list[tuple[str, int]] = []
    paths = {path for pattern in patterns for path in (() if folder is None else folder.glob(pattern))}
    room = LARGEST
    for path in sorted(path for path in paths if path.is_file() and not path.name.startswith(".")):
        size = os.stat(path).st_size
        if size > room:
            left_out.append((path.name, size))
        else:
            found.append((path.name, path.read_bytes()))
            room -= size
    return found, left_out


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def _time(seconds: float) -> str:
    """A time to read.

    >>> _time(4.26), _time(3725.0)
    ('4.3 s', '1:02:05')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
