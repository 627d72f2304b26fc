"""Convert images of any kind to bytes in the shape (height, width, channels)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hookline.errors import MetricError

CHANNELS = (1, 3, 4)
MODES = {
    **dict.fromkeys(("CMYK", "HSV", "RGBX", "YCbCr"), "RGB"),
    **dict.fromkeys(("LA", "P", "PA", "RGBa"), "RGBA"),
}
"""Image modes of Pillow that are not RGB or gray, and the mode to which they are converted."""
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
LARGEST = 4096 * 4096
GAP = 2
"""Number of pixels between the images of a grid."""


def pixels_of(name: str, image: Any) -> tuple[Tensor, str]:
    """Return the pixels of an image, and a description of how they were scaled.

    Args:
        name: Name of the image, for messages.
        image: A tensor, an array or a PIL image; or a batch of images, which becomes a grid.

    Returns:
        The pixels as bytes in the shape (height, width, channels), and the description. It is empty unless numbers
        outside 0 to 1 were scaled.
    """
    found = _tensor(name, image)
    if found.ndim == 4:
        found = _grid(found if found.shape[1] in CHANNELS else found.permute(0, 3, 1, 2), name)
    elif found.ndim == 3:
        found = found if _is_channels_first(found) else found.permute(2, 0, 1)
    elif found.ndim == 2:
        found = found.unsqueeze(0)
    if found.ndim != 3 or found.shape[0] not in CHANNELS or not found.numel():
        raise MetricError(
            f"{name}: {tuple(getattr(image, 'shape', ()))} is not an image; give (height, width), (channels, height, "
            f"width), (height, width, channels) or a batch of them, with 1, 3 or 4 channels"
        )
    if found[0].numel() > LARGEST:
        raise MetricError(f"{name}: an image of {found.shape[2]} by {found.shape[1]} pixels is too large to log")
    pixels, done = _bytes(found)
    return pixels.permute(1, 2, 0).contiguous(), done


def _tensor(name: str, image: Any) -> Tensor:
    if not isinstance(image, Tensor):
        try:
            if not hasattr(image, "__array__") and not hasattr(image, "__array_interface__"):
                raise TypeError(f"a {type(image).__name__}")
            import numpy as np  # An array or a PIL image exists only if NumPy is installed.

            image = torch.from_numpy(np.array(_in_colours(image)))
        except (TypeError, ValueError, ImportError) as error:
            raise MetricError(
                f"{name}: this is not an image: {error}; give a tensor, an array or a PIL image"
            ) from error
    if image.is_complex():
        raise MetricError(f"{name}: complex numbers are not an image")
    found: Tensor = image.detach().cpu()  # This waits for the device.
    # Torch cannot compare these dtypes.
    return found.to(torch.int64) if found.dtype in UNSIGNED else found


def _in_colours(image: Any) -> Any:
    """Convert a PIL image with a palette, CMYK and so on to RGB.

    Return any other image unchanged.
    """
    mode = MODES.get(str(getattr(image, "mode", "")))
    return image if mode is None or not hasattr(image, "convert") else image.convert(mode)


def _is_channels_first(found: Tensor) -> bool:
    """True unless only the last dimension can be the channels."""
    return found.shape[0] in CHANNELS or found.shape[2] not in CHANNELS


def _bytes(found: Tensor) -> tuple[Tensor, str]:
    if found.dtype == torch.uint8:
        return found, ""
    if found.dtype == torch.bool:
        return found.to(torch.uint8) * 255, ""
    if not found.is_floating_point() and int(found.min()) >= 0 and int(found.max()) <= 255:
        return found.to(torch.uint8), ""
    values = found.to(torch.float64)
    finite = values[values.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
    done = ""
    if low < -1e-6 or high > 1 + 1e-6:
        values = (values - low) / ((high - low) or 1.0)
        done = f"scaled from {low:.3g} to {high:.3g}"
    values = values.nan_to_num(0.0, 1.0, 0.0)
    return (values.clamp(0, 1) * 255).round().to(torch.uint8), done


def _grid(pictures: Tensor, name: str) -> Tensor:
    """Return a batch of images as one image: a nearly square grid."""
    count, channels, height, width = pictures.shape
    if not pictures.numel():
        raise MetricError(f"{name}: a batch of no images, {tuple(pictures.shape)}")
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    fill = pictures.new_ones(()) if pictures.dtype == torch.bool else pictures.amin()
    grid = fill.expand(channels, rows * (height + GAP) - GAP, columns * (width + GAP) - GAP).clone()
    for index, picture in enumerate(pictures):
        top, left = (index // columns) * (height + GAP), (index % columns) * (width + GAP)
        grid[:, top : top + height, left : left + width] = picture
    return grid
