"""Encode a tensor as a PNG.

The encoder is one page of code. Pillow or torchvision would be another dependency for every user.
"""

from __future__ import annotations

import struct
import zlib

from torch import Tensor

from hookline.checkpoint.tensor_bytes import memory

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
"""The color type of PNG by the number of channels: gray, gray with alpha, RGB, RGBA."""


def encode_png(pixels: Tensor) -> bytes:
    """Return the PNG of an image, given as bytes in the shape (height, width, channels)."""
    height, width, channels = pixels.shape
    # The first byte of each line names its filter: 0 is none.
    lines = pixels.new_zeros(height, 1 + width * channels)
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, COLOURS[channels], 0, 0, 0)
    data = zlib.compress(memory(lines), 6)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def png_size(png: bytes) -> tuple[int, int]:
    """Return the width and the height of a PNG.

    Raises:
        ValueError: If the bytes are not a PNG.
    """
    if not png.startswith(SIGNATURE) or png[12:16] != b"IHDR":
        raise ValueError("this is not a PNG")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
