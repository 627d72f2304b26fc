"""Convert a tree of values to bytes and back without pickle, to send it between ranks."""

from __future__ import annotations

import json
import struct
from typing import Any

from hookline.checkpoint import strict_json
from hookline.checkpoint.decode import decode
from hookline.checkpoint.encode import encode
from hookline.checkpoint.tensor_file import lay_out, read_tensors
from hookline.errors import CheckpointCorruptError

_WHERE = "state from another rank"


def pack(tree: Any) -> bytes:
    """Return a tree of values and tensors as bytes.

    A value that cannot be saved raises ``StateError``.

    >>> unpack(pack({"seed": 5, "betas": (0.9, 0.99)}))
    {'seed': 5, 'betas': (0.9, 0.99)}
    """
    plain, tensors = encode(tree)
    text = json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()
    return b"".join([struct.pack("<Q", len(text)), text, *lay_out(tensors).parts()])


def unpack(data: bytes) -> Any:
    """Return the tree from the bytes that ``pack`` returned."""
    (size,) = struct.unpack_from("<Q", data)
    tree = strict_json.parse(data[8 : 8 + size], _WHERE)
    return decode(tree, read_tensors(_Memory(data, 8 + size)), _WHERE)


class _Memory:
    """Bytes in memory with the reading methods of a file."""

    path = _WHERE

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = memoryview(data), at

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def read(self, count: int) -> bytes:
        if count > self.left:
            raise CheckpointCorruptError(self.path, f"it ends {count - self.left:,} bytes too early")
        self._at += count
        return bytes(self._data[self._at - count : self._at])

    def read_into(self, view: memoryview) -> None:
        view[:] = self.read(len(view))
