"""Weights as one safetensors file, and as a copy in CPU memory."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from hookline.callbacks.saving.atomic_file import write_parts
from hookline.checkpoint.commit import free_bytes
from hookline.checkpoint.matching import match
from hookline.checkpoint.tensor_bytes import identity
from hookline.checkpoint.tensor_file import Layout, lay_out
from hookline.distributed.dtensors import spread_like, whole
from hookline.errors import CheckpointWriteError


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the model's tensors in CPU memory. Tied weights stay tied."""
    copied: dict[object, Tensor] = {}
    found = {}
    for name, tensor in tensors_of(model).items():
        key = identity(tensor) or name
        if key not in copied:
            copied[key] = tensor.detach().to("cpu", copy=True)
        found[name] = copied[key]
    return found


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the state dict, without other values such as a module's extra state."""
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def whole_weights(weights: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Return the weights as full tensors. All ranks must call this function.

    Sharded tensors are gathered one after another.

    Args:
        weights: Weights by name.
        keep: False on ranks that need no result. They get an empty dict.
    """
    found = {}
    for name, tensor in weights.items():
        value = whole(tensor)
        if keep:
            found[name] = value
    return found


def load_into(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights into a model. Names and shapes must match."""
    own = tensors_of(model)
    match(own, weights, strict=True)
    placed = {name: spread_like(tensor, own[name]) for name, tensor in weights.items()}
    model.load_state_dict(placed, strict=False)  # Extra states stay unchanged.


def write_weights(path: Path, weights: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file completely or not at all.

    Args:
        path: Path of the file.
        weights: Weights by name.
        notes: Metadata of the file, which ``safe_open(…).metadata()`` returns.
    """
    layout = lay_out(weights)
    layout = _noted(layout, notes) if notes else layout
    try:
        write_parts(path, layout.parts())
    except OSError as error:
        raise CheckpointWriteError(str(path), error, needed=layout.size, free=free_bytes(path.parent)) from error


def _noted(layout: Layout, notes: Mapping[str, str]) -> Layout:
    """Return the layout with more metadata in its header."""
    header = json.loads(layout.header[8:])
    header["__metadata__"] = {**notes, **header["__metadata__"]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    return Layout(head, layout.tensors, len(head) + layout.size - len(layout.header))
