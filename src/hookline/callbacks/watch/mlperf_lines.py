"""Log lines in the public MLPerf format ``:::MLLOG {…}``, one JSON object per line."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any, Literal

from hookline.errors import SetupError

EventType = Literal["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]
TOKEN = ":::MLLOG"


def now_ms() -> int:
    """Return the time of day in milliseconds."""
    return int(time.time() * 1000)


def line(kind: EventType, key: str, value: Any, metadata: dict[str, Any], time_ms: int) -> str:
    """Return one line. A number that is not finite becomes ``null``.

    Example:
        >>> print(line("POINT_IN_TIME", "lr", 1, {}, 5))
        :::MLLOG {"namespace": "", "time_ms": 5, "event_type": "POINT_IN_TIME", "key": "lr", "value": 1, "metadata": {}}
    """
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    parts = {
        "namespace": "",
        "time_ms": time_ms,
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": metadata,
    }
    return f"{TOKEN} {json.dumps(parts, allow_nan=False)}"


def append(path: Path, text: str) -> None:
    """Append a line and close the file, so that a killed process loses no line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def cut(path: Path, lines: int) -> None:
    """Keep the first lines.

    The others belong to steps after the checkpoint that the run resumes from.
    """
    found = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    if len(found) < lines:
        raise SetupError(
            f"MLPerfLog: {path} has {len(found)} lines, and the run that goes on had written {lines}: put the file of "
            f"that run back, or begin a new run"
        )
    if len(found) > lines or not path.exists():
        path.write_text("".join(found[:lines]), encoding="utf-8")
