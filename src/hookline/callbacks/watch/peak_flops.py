"""Peak FLOPs per second of common GPUs, as published by the vendors."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

TERA: Final = 1e12


class Peak(NamedTuple):
    """Peak of a GPU in 10¹² FLOPs per second, dense. Half precision accumulates in fp32."""

    words: tuple[str, ...]
    """Words that the name of the device must all contain."""
    half: float
    tf32: float
    fp32: float
    bf16: bool = True
    """False for older GPUs, which support only fp16."""


PEAKS: Final = (
    Peak(("gb200",), 2500, 1250, 80),
    Peak(("b200",), 2250, 1125, 75),
    Peak(("h200", "nvl"), 835, 417, 60),
    Peak(("h200",), 989, 494, 67),
    Peak(("h100", "nvl"), 835, 417, 60),
    Peak(("h100", "pcie"), 756, 378, 51),
    Peak(("h100",), 989, 494, 67),
    Peak(("a100",), 312, 156, 19.5),
    Peak(("a40",), 149.7, 74.8, 37.4),
    Peak(("a10",), 125, 62.5, 31.2),
    Peak(("l40s",), 362, 183, 91.6),
    Peak(("l40",), 181, 90.5, 90.5),
    Peak(("l4",), 121, 60, 30.3),
    Peak(("rtx", "a6000"), 154.8, 77.4, 38.7),
    Peak(("rtx", "4090"), 165.2, 82.6, 82.6),
    Peak(("rtx", "3090"), 71, 35.6, 35.6),
    Peak(("v100", "pcie"), 112, 14, 14, bf16=False),
    Peak(("v100",), 125, 15.7, 15.7, bf16=False),
    Peak(("t4",), 65, 8.1, 8.1, bf16=False),
    Peak(("mi300x",), 1307, 653, 163),
)
"""The first match counts, so specific names come first."""


def peak_flops(device: str, number: str) -> float | None:
    """Return the peak FLOPs per second of a device, or ``None`` if it is not known.

    Args:
        device: Name of the device, as torch reports it.
        number: Number format: ``"fp32"``, ``"tf32"``, ``"bf16"`` or ``"fp16"``.

    Example:
        >>> peak_flops("NVIDIA A100-SXM4-80GB", "bf16"), peak_flops("NVIDIA A100-SXM4-80GB", "fp32")
        (312000000000000.0, 19500000000000.0)
        >>> peak_flops("Tesla T4", "bf16"), peak_flops("Some other GPU", "fp32")
        (None, None)
    """
    words = set(re.split(r"[^a-z0-9]+", device.lower()))
    for peak in PEAKS:
        if words.issuperset(peak.words):
            found = {"bf16": peak.half if peak.bf16 else None, "fp16": peak.half, "tf32": peak.tf32, "fp32": peak.fp32}
            value = found.get(number)
            return None if value is None else value * TERA
    return None
