"""Names and texts that are valid for trackers, which use names as keys and paths."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

LONGEST = 200
"""Maximum number of bytes.

MLflow accepts 250 characters and disks 255 bytes, and both add prefixes or suffixes.
"""


class Keys:
    """Map names to unique keys that are valid for MLflow and as paths.

    ``new_tags`` has the original names of the keys that differ.

    Args:
        prefix: Prefix of the tags.
        tags: Tags of an earlier session, which keep its keys valid.

    Example:
        >>> keys = Keys("name.", {})
        >>> keys("val/recall@10"), keys("val/recall#10"), keys.new_tags["name.val/recall-10"]
        ('val/recall-10', 'val/recall-10-8a1f4b45', 'val/recall@10')
    """

    def __init__(self, prefix: str, tags: Mapping[str, str]) -> None:
        self._prefix = prefix
        self._names = {tag.removeprefix(prefix): name for tag, name in tags.items() if tag.startswith(prefix)}
        self._keys = {name: key for key, name in self._names.items()}
        self.new_tags: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._keys:
            key = _allowed(name)
            if len(key.encode()) > LONGEST or self._names.setdefault(key, name) != name:
                start = key.encode()[: LONGEST - 9].decode(errors="ignore")
                key = f"{start}-{crc32(name.encode(errors='replace')):08x}"
                self._names[key] = name
            self._keys[name] = key
            if key != name:
                self.new_tags[f"{self._prefix}{key}"] = name
        return self._keys[name]


def _allowed(name: str) -> str:
    """Return the name as a relative path of letters, digits, ``_-./`` and spaces.

    Other characters become ``-`` and not ``_``, because W&B hides names that start with ``_``.
    """
    parts = (part for part in re.sub(r"[^/\w.\- ]", "-", name).split("/") if part not in ("", "."))
    return "/".join("--" + part[2:] if part.startswith("..") else part for part in parts) or "-"


def flat(tree: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of a configuration with dotted names.

    Example:
        >>> list(flat({"lr": 0.1, "model": {"depth": 2, "sizes": [8, 4]}}))
        [('lr', '0.1'), ('model.depth', '2'), ('model.sizes', '[8, 4]')]
    """
    if isinstance(tree, Mapping) and (tree or not name):
        for key, value in tree.items():
            yield from flat(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, tree if isinstance(tree, str) else json.dumps(tree) if isinstance(tree, list) else str(tree)


def shortened(text: str, most: int) -> str:
    """Return at most ``most`` characters, with a note if the text was longer.

    Example:
        >>> shortened("x" * 99, 40)
        'xxxxxxxxxxxxxxx … (99 characters in all)'
    """
    note = f" … ({len(text):,} characters in all)"
    return text if len(text) <= most else text[: most - len(note)] + note
