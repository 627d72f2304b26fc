"""Parse JSON from untrusted files: size limits before parsing, no duplicate keys, no NaN."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from hookline.errors import CheckpointCorruptError

MAX_BYTES = 16 * 2**20
"""Largest JSON in bytes that Hookline reads, and therefore writes."""
MAX_PARTS = 2_000_000
"""Maximum number of commas and brackets: an empty list takes 64 bytes of memory."""


def parse(data: bytes, path: str, *, max_bytes: int = MAX_BYTES, max_parts: int = MAX_PARTS) -> Any:
    """Return the value of a JSON document.

    Args:
        data: The document, in UTF-8.
        path: Path of the file, for errors.
        max_bytes: Maximum size.
        max_parts: Maximum number of commas and brackets.

    Raises:
        CheckpointCorruptError: If the document is invalid or above a limit.

    Example:
        >>> parse(b'{"step": 3}', "manifest.json")
        {'step': 3}
        >>> parse(b'{"step": 3, "step": 4}', "manifest.json")
        Traceback (most recent call last):
        hookline.errors.CheckpointCorruptError: manifest.json: not valid JSON: the key 'step' occurs twice.
    """
    if problem := too_large(data, max_bytes=max_bytes, max_parts=max_parts):
        raise CheckpointCorruptError(path, problem)
    try:
        # json.loads(bytes) would also accept UTF-16 and UTF-32.
        return json.loads(data.decode("utf-8"), object_pairs_hook=_once_each, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise CheckpointCorruptError(path, f"not valid JSON: not UTF-8 at byte {error.start}") from None
    except ValueError as error:  # Also for numbers with more digits than Python converts.
        raise CheckpointCorruptError(path, f"not valid JSON: {error}") from None
    except RecursionError:
        raise CheckpointCorruptError(path, "not valid JSON: nested too deeply") from None


def too_large(data: bytes, *, max_bytes: int = MAX_BYTES, max_parts: int = MAX_PARTS) -> str:
    """Return the reason why a document is above the limits, or an empty string."""
    if len(data) > max_bytes:
        return f"JSON of {len(data):,} bytes, more than the limit of {max_bytes:,}"
    parts = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    return f"JSON with {parts:,} parts, more than the limit of {max_parts:,}" if parts > max_parts else ""


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {double[:100]!r} occurs twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")
