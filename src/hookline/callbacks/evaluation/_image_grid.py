"""Grids of images with masks, frames and labels."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import interpolate

SMALLEST, LARGEST = 112, 256
"""Limits of the longer side of a tile in pixels. Images are scaled up or down to fit."""
GAP, FRAME, STRIP = 8, 3, 16
PAPER = 255
PLAIN, RIGHT, WRONG = (222, 222, 222), (46, 160, 67), (207, 34, 46)
"""Colors of the frames."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One image as bytes of shape (3, height, width), with its label."""

    pixels: Tensor
    lines: tuple[str, ...] = ()
    """The lines below the image, such as ``true: cat`` and ``pred: dog``."""
    is_right: bool | None = None
    """True if the prediction is correct (green frame), False if not (red frame)."""


def as_pictures(values: Tensor, *, normalize: bool) -> Tensor | None:
    """Return a batch of images as bytes of shape (count, 3, height, width), or ``None``."""
    if values.ndim == 3:
        values = values.unsqueeze(1)
    if values.ndim == 4 and values.shape[1] not in (1, 3, 4) and values.shape[3] in (1, 3, 4):
        values = values.permute(0, 3, 1, 2)
    if values.ndim != 4 or values.shape[1] not in (1, 3, 4) or not values.numel() or values.is_complex():
        return None
    pixels = _bytes(values[:, :3], normalize=normalize)
    return pixels if pixels.shape[1] == 3 else pixels.expand(-1, 3, -1, -1)


def _bytes(values: Tensor, *, normalize: bool) -> Tensor:
    """Return the values as bytes from 0 to 255. Not finite values become black or white."""
    if values.dtype == torch.uint8:
        return values
    if not values.is_floating_point() and values.dtype != torch.bool and values.min() >= 0 and values.max() > 1:
        return values.clamp(max=255).to(torch.uint8)
    values = values.to(torch.float32)
    finite = values.where(values.isfinite(), 0.0)
    low, high = finite.amin((1, 2, 3), keepdim=True), finite.amax((1, 2, 3), keepdim=True)
    if normalize:
        outside = (low < 0) | (high > 1)
        values = torch.where(outside, (values - low) / (high - low).clamp(min=1e-12), values)
    return (values.nan_to_num(0.0, 1.0, 0.0).clamp(0, 1) * 255).round().to(torch.uint8)


def overlay(picture: Tensor, mask: Tensor) -> Tensor:
    """Blend an image with the colors of a mask.

    Class 0 and the ignored values -1 and 255 stay unchanged.
    """
    if mask.shape != picture.shape[1:]:
        mask = interpolate(mask[None, None].float(), picture.shape[1:], mode="nearest")[0, 0].to(mask.dtype)
    found = picture.float()
    for number in set(mask.flatten().tolist()):
        if 0 < number < 255:
            color = torch.tensor(_color(number)).view(3, 1, 1)
            found = torch.where(mask == number, 0.45 * found + 0.55 * color, found)
    return found.round().to(torch.uint8)


def _color(number: int) -> tuple[float, float, float]:
    """Return a color per class. Classes with adjacent indices get very different colors."""
    red, green, blue = colorsys.hsv_to_rgb(number * 0.618034 % 1.0, 0.75, 1.0)
    return 255 * red, 255 * green, 255 * blue


def sheet(rows: Sequence[Sequence[Tile]]) -> Tensor:
    """Return all tiles on a white sheet, as bytes of shape (3, height, width).

    All tiles have one size.
    """
    height, width = _size(rows[0][0].pixels)
    strip = STRIP * max(len(tile.lines) for row in rows for tile in row) if _can_write() else 0
    cell_height, cell_width = height + 2 * FRAME + strip + GAP, width + 2 * FRAME + GAP
    columns = max(map(len, rows))
    found = torch.full((3, len(rows) * cell_height + GAP, columns * cell_width + GAP), PAPER, dtype=torch.uint8)
    for down, row in enumerate(rows):
        for across, tile in enumerate(row):
            top, left = GAP + down * cell_height, GAP + across * cell_width
            framed = _framed(tile, height, width)
            found[:, top : top + framed.shape[1], left : left + framed.shape[2]] = framed
            if strip and tile.lines:
                written = _written(tile, framed.shape[2])
                below = top + framed.shape[1]
                found[:, below : below + written.shape[1], left : left + framed.shape[2]] = written
    return found


def in_rows(tiles: Sequence[Tile]) -> list[Sequence[Tile]]:
    """Split tiles into rows of nearly equal length, slightly wider than high."""
    rows = math.ceil(len(tiles) / math.ceil(math.sqrt(1.5 * len(tiles))))
    columns = math.ceil(len(tiles) / rows)
    return [tiles[start : start + columns] for start in range(0, len(tiles), columns)]


def _size(pixels: Tensor) -> tuple[int, int]:
    """Return the height and width of a tile after scaling."""
    longer = max(pixels.shape[1:])
    scale = SMALLEST / longer if longer < SMALLEST else min(1.0, LARGEST / longer)
    return max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[2] * scale))


def _framed(tile: Tile, height: int, width: int) -> Tensor:
    """Return the scaled image of a tile inside its frame."""
    pixels = tile.pixels
    if pixels.shape[1:] != (height, width):
        mode = "area" if max(pixels.shape[1:]) > max(height, width) else "nearest"
        pixels = interpolate(pixels[None].float(), (height, width), mode=mode)[0].round().to(torch.uint8)
    color = PLAIN if tile.is_right is None else RIGHT if tile.is_right else WRONG
    framed = torch.tensor(color, dtype=torch.uint8).view(3, 1, 1).repeat(1, height + 2 * FRAME, width + 2 * FRAME)
    framed[:, FRAME:-FRAME, FRAME:-FRAME] = pixels
    return framed


def _can_write() -> bool:
    """True if Pillow is installed, which draws the labels."""
    return find_spec("PIL") is not None


def _written(tile: Tile, width: int) -> Tensor:
    """Return the lines as pixels, each cut to the width."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=12)
    height = STRIP * len(tile.lines)
    color = (60, 60, 60) if tile.is_right is not False else WRONG
    image = Image.new("RGB", (width, height), (PAPER,) * 3)
    for number, text in enumerate(tile.lines):
        while len(text) > 1 and font.getlength(text) > width:
            text = f"{text[:-2]}…"
        start = (width - font.getlength(text)) / 2
        ImageDraw.Draw(image).text((start, STRIP * number), text, fill=color, font=font)
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width, 3).permute(2, 0, 1)
