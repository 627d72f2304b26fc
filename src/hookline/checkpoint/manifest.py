"""``manifest.json``: metadata of a checkpoint, and size and SHA-256 of its files.

It is written last.

It starts with the SHA-256 of the rest of the manifest, so that damage to the manifest itself is detected.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from hookline.checkpoint import names, strict_json
from hookline.checkpoint.decode import decode
from hookline.checkpoint.encode import encode
from hookline.checkpoint.hashed_file import FileRecord
from hookline.checkpoint.snapshot import About
from hookline.errors import CheckpointCorruptError, StateError

FORMAT: Final = 1
_LARGEST: Final = 2**63 - 1
_HEAD: Final = re.compile(rb'\{"sha256": "([0-9a-f]{64})",\n')
_HEAD_SIZE: Final = len('{"sha256": "",\n') + 64
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_COUNTS: Final = ("step", "epoch", "batch", "sample", "generation")
_KINDS: Final[Mapping[str, type]] = MappingProxyType(
    {"int": int, "float": float, "str": str, "bool": bool, "Mapping[str, float]": dict, "Mapping[str, Any]": dict}
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``manifest.json``."""

    about: About
    files: Mapping[str, FileRecord]
    created: float
    """Creation time in seconds since 1970."""
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """Return the content of the file.

        Raises:
            StateError: If ``about`` contains a value that cannot be saved.
        """
        about, tensors = encode({field.name: getattr(self.about, field.name) for field in dataclasses.fields(About)})
        if tensors:
            raise StateError(f"about/{next(iter(tensors))}: a manifest cannot contain a tensor. Save its item().")
        body = {
            "format": self.format,
            "created": self.created,
            "about": about,
            "files": {name: {"size": file.size, "sha256": file.sha256} for name, file in self.files.items()},
        }
        rest = json.dumps(body, indent=1, allow_nan=False)[2:].encode()  # Without "{\n": the line with the hash has it.
        text = f'{{"sha256": "{hashlib.sha256(rest).hexdigest()}",\n'.encode() + rest
        if problem := strict_json.too_large(text):
            raise StateError(f"about: the manifest is too large ({problem}). Save fewer metrics or settings.")
        return text

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Manifest:
        """Parse and validate the content of a manifest.

        Args:
            data: The content of the file.
            path: Path of the file, for errors.

        Raises:
            CheckpointCorruptError: If the content is damaged or has an unknown format.
        """
        _check_own_hash(data, path)
        body = strict_json.parse(data, path)
        if body.keys() != {"sha256", "format", "created", "about", "files"}:
            raise CheckpointCorruptError(path, f"it has the keys {', '.join(body)[:200]}, which are not a manifest's")
        if body["format"] != FORMAT or type(body["format"]) is not int:
            hint = "use the version of Hookline that wrote it, or a later one"
            raise CheckpointCorruptError(path, f"format {str(body['format'])[:50]} is unknown; {FORMAT} is known", hint)
        created = body["created"]
        if type(created) is not float or not math.isfinite(created):
            raise CheckpointCorruptError(path, f"created is {str(created)[:50]}, not a time")
        return cls(_about(body["about"], path), _files(body["files"], path), created)


def _check_own_hash(data: bytes, path: str) -> None:
    if not data:
        raise CheckpointCorruptError(path, "it is empty")
    head = _HEAD.match(data[:_HEAD_SIZE])
    if head is None:
        raise CheckpointCorruptError(path, "it does not start with its own SHA-256, as a manifest does")
    found = hashlib.sha256(data[_HEAD_SIZE:]).hexdigest()
    if found != head[1].decode():
        hint = "the file has changed since it was written. Use another checkpoint"
        reason = f"its SHA-256 is {found[:12]}…, but its first line says {head[1][:12].decode()}…"
        raise CheckpointCorruptError(path, reason, hint)


def _about(tree: Any, path: str) -> About:
    values: Any = decode(tree, {}, path)
    fields = {field.name: field for field in dataclasses.fields(About)}
    if not isinstance(values, dict) or not values.keys() <= fields.keys():
        raise CheckpointCorruptError(path, "about has unknown keys")
    for name, field in fields.items():
        if name not in values:
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise CheckpointCorruptError(path, f"about/{name} is missing")
            continue
        value: Any = values[name]
        kind: Any = _KINDS[str(field.type)]
        if kind is float and type(value) is int:
            values[name] = value = float(value) if abs(value) < _LARGEST else math.inf
        if type(value) is not kind:
            raise CheckpointCorruptError(path, f"about/{name} is {str(value)[:50]!r}, not a {field.type}")
        if name in _COUNTS and not 0 <= value <= _LARGEST:
            raise CheckpointCorruptError(path, f"about/{name} is {str(value)[:50]}, not a count")
        if kind is float and not math.isfinite(value):
            raise CheckpointCorruptError(path, f"about/{name} is {value}, not a finite number")
    metrics = values.get("metrics", {})
    if not all(isinstance(key, str) and type(value) in (int, float) for key, value in metrics.items()):
        raise CheckpointCorruptError(path, "about/metrics does not map names to numbers")
    return About(**values)


def _files(tree: Any, path: str) -> Mapping[str, FileRecord]:
    if not isinstance(tree, dict):
        raise CheckpointCorruptError(path, "files is not a JSON object")
    found = {}
    for name, entry in tree.items():
        if name == ".metadata" or name.endswith(".distcp"):
            reason = "it is a sharded checkpoint in the format of torch.distributed.checkpoint, which is not supported"
            hint = (
                "run 'hookline checkpoints consolidate' of the version that wrote it, and use LoadWeights on the file"
            )
            raise CheckpointCorruptError(path, reason, hint)
        if name == names.MANIFEST or not names.is_part(name):
            raise CheckpointCorruptError(path, f"{name[:100]!r} is not a file of a checkpoint")
        if not isinstance(entry, dict) or entry.keys() != {"size", "sha256"}:
            raise CheckpointCorruptError(path, f"files/{name} must have size and sha256, and nothing else")
        size, digest = entry["size"], entry["sha256"]
        if type(size) is not int or not 0 <= size <= _LARGEST:
            raise CheckpointCorruptError(path, f"files/{name} has the invalid size {str(size)[:50]}")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise CheckpointCorruptError(path, f"files/{name} has the invalid SHA-256 {str(digest)[:80]!r}")
        found[name] = FileRecord(size, digest)
    if names.MODEL not in found:
        raise CheckpointCorruptError(path, f"it does not list {names.MODEL}")
    if (names.STATE in found) != (names.STATE_TENSORS in found):
        raise CheckpointCorruptError(path, f"it lists only one of {names.STATE} and {names.STATE_TENSORS}")
    if (names.SHARD_INDEX in found) != any(map(names.is_shard, found)):
        raise CheckpointCorruptError(path, f"it lists only one of {names.SHARD_INDEX} and shards")
    return MappingProxyType(found)
