"""A tensor as a PNG.

Written here because it is a page of code: Pillow would be one more thing to install for every user, and torchvision,
which has it too, is larger than all of Hookline.
"""

from __future__ import annotations

import struct
import zlib

from torch import Tensor

from hookline.checkpoint.tensor_bytes import memory

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
"""What PNG calls gray, gray with alpha, RGB and RGBA, by the number of channels."""


def encode_png(pixels: Tensor) -> bytes:
    """The PNG of bytes in the shape (height, width, channels)."""
    height, width, channels = pixels.shape
    lines = pixels.new_zeros(height, 1 + width * channels)  # each line begins with its filter: none
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, COLOURS[channels], 0, 0, 0)
    data = zlib.compress(memory(lines), 6)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def png_size(png: bytes) -> tuple[int, int]:
    """Width and height; ``ValueError`` if it is no PNG."""
    if not png.startswith(SIGNATURE) or png[12:16] != b"IHDR":
        raise ValueError("this is no PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
