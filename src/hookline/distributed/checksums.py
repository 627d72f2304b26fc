"""Checksums of parameters, computed on their device. Equal bits have equal checksums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

from hookline.distributed.dtensors import is_spread

_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype by element size in bytes."""
_ODD: Final = 0x5BD1E995
"""An arbitrary odd constant that fits into 32 bits."""
MAX_PIECE: Final = 2**18
"""Elements that are processed at once: they fit into a CPU cache.

Without this limit, a large parameter would be copied at once.
"""


def checksums(tensors: Iterable[Tensor]) -> list[int]:
    """Return one integer per tensor, computed from the bits of its elements.

    Each element, read as an integer ``b``, adds ``b * (b + odd)`` modulo 2**32 (2**64 for elements of 8 bytes). Unlike
    a plain sum, this sum also changes if two elements change by the same amount in opposite directions. It does not
    depend on the order in which a device adds. Each device needs one transfer to the host.

    >>> one = torch.tensor([1.0, 2.0, -3.0])
    >>> checksums([one]) == checksums([one.clone()])
    True
    >>> checksums([one]) == checksums([torch.tensor([1.0, 2.0, 3.0])])
    False
    """
    found: list[Tensor] = []
    with torch.no_grad():
        for tensor in tensors:
            bits = tensor.detach().reshape(-1).view(_INTEGERS[tensor.element_size()])
            pieces = torch.split(bits, MAX_PIECE) if bits.numel() > MAX_PIECE else [bits]
            sums = [_mixed(piece).sum(dtype=torch.int64) for piece in pieces]
            found.append(sums[0] if len(sums) == 1 else torch.stack(sums).sum())
    by_device: dict[torch.device, list[int]] = {}
    for index, value in enumerate(found):
        by_device.setdefault(value.device, []).append(index)
    numbers = [0] * len(found)
    for its in by_device.values():
        for index, number in zip(its, torch.stack([found[index] for index in its]).tolist(), strict=True):
            numbers[index] = number
    return numbers


def _mixed(bits: Tensor) -> Tensor:
    wide = bits if bits.element_size() >= 4 else bits.to(torch.int32)
    return wide.add(_ODD).mul_(wide)


def can_be_summed(tensor: Tensor) -> bool:
    """True if this rank holds the full tensor, and ``checksums`` supports its type."""
    plain = tensor.layout is torch.strided and type(tensor.data) is Tensor
    return plain and not is_spread(tensor) and tensor.element_size() in _INTEGERS
