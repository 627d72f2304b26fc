"""JSON that comes from a file nobody vouches for: limits before parsing, no double keys, no NaN."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from hookline.errors import CheckpointCorruptError

MAX_BYTES = 16 * 2**20
"""The largest JSON text that is read, and so the largest that is written."""
MAX_PARTS = 2_000_000
"""The most commas and brackets: an empty list takes 3 bytes in a text and 64 in memory."""


def parse(data: bytes, path: str, *, max_bytes: int = MAX_BYTES, max_parts: int = MAX_PARTS) -> Any:
    """The value that a JSON text stands for; anything odd is a ``CheckpointCorruptError`` that names ``path``.

    >>> parse(b'{"step": 3}', "manifest.json")
    {'step': 3}
    >>> parse(b'{"step": 3, "step": 4}', "manifest.json")
    Traceback (most recent call last):
    hookline.errors.CheckpointCorruptError: manifest.json: not valid JSON: the key 'step' is there twice
    """
    if problem := too_large(data, max_bytes=max_bytes, max_parts=max_parts):
        raise CheckpointCorruptError(path, problem)
    try:
        # Decoded here, because json.loads would also take UTF-16 and UTF-32.
        return json.loads(data.decode("utf-8"), object_pairs_hook=_once_each, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise CheckpointCorruptError(path, f"not valid JSON: no UTF-8 at byte {error.start}") from None
    except ValueError as error:  # also numbers of more digits than Python converts
        raise CheckpointCorruptError(path, f"not valid JSON: {error}") from None
    except RecursionError:
        raise CheckpointCorruptError(path, "not valid JSON: nested too deeply") from None


def too_large(data: bytes, *, max_bytes: int = MAX_BYTES, max_parts: int = MAX_PARTS) -> str:
    """Why a text is over the limits; empty if it is not."""
    if len(data) > max_bytes:
        return f"JSON of {len(data):,} bytes, more than the limit of {max_bytes:,}"
    parts = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    return f"JSON with {parts:,} parts, more than the limit of {max_parts:,}" if parts > max_parts else ""


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {double[:100]!r} is there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
