"""Messages about a run: text, values for programs, and files."""

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
"""Maximum total size of the files of one message, in bytes."""


@dataclass(frozen=True, slots=True)
class Message:
    """A complete message. Sending it needs nothing from the run."""

    event: str
    title: str
    text: str
    facts: Mapping[str, Any]
    files: tuple[tuple[str, bytes], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the message for a webhook. Chats show ``text``; the other keys are for programs."""
        names = [name for name, _ in self.files]
        return {
            "text": f"{self.title}\n{self.text}",
            "event": self.event,
            "title": self.title,
            **self.facts,
            "files": names,
        }

    def as_mail(self, sender: str, to: Sequence[str]) -> EmailMessage:
        """Return the message as a mail with attachments."""
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = self.title, sender, ", ".join(to)
        mail["Date"] = format_datetime(datetime.now(UTC))
        # Python would generate the id and the boundary from the random state that training uses.
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
    """Return a message about the current state of a run, with secrets redacted.

    Args:
        run: The run.
        event: Kind of the message.
        headline: Rest of the sentence that starts with the name of the run.
        why: Reason, which may be empty.
        metrics: Patterns of the metrics to include.
        attach: Patterns of the files to attach.
        new: Values that are not in the history yet.
    """
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
    """Yield the newest number of each selected metric."""
    for name in dict.fromkeys((*run.history, *new)):
        value = new[name] if name in new else run.history[name][-1]
        if isinstance(value, int | float) and any(fnmatchcase(name, pattern) for pattern in patterns):
            yield name, value


def _files(folder: Path | None, patterns: Sequence[str]) -> tuple[list[tuple[str, bytes]], list[tuple[str, int]]]:
    """Return the files to attach, and the names and sizes of those that are too large."""
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
    """Return the text on one line of at most 200 characters."""
    return " ".join(text.split())[:200]


def _time(seconds: float) -> str:
    """Return a duration for people.

    Example:
        >>> _time(4.26), _time(3725.0)
        ('4.3 s', '1:02:05')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _size(count: int) -> str:
    """Return a size in MB as a string."""
    return f"{count / 1e6:.1f} MB"
