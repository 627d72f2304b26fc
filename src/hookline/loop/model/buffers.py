"""Buffers that are not in the state dict (``persistent=False``).

A checkpoint holds those that training has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import blake2b

import torch
from torch import Tensor, nn

from hookline.checkpoint.tensor_bytes import memory, on_cpu_in_order, refusal
from hookline.errors import CheckpointMismatchError

logger = logging.getLogger("hookline")

Fingerprint = tuple[object, ...]


class BuffersAsBuilt:
    """Fingerprints of these buffers before training. A new process needs only those that differ."""

    def __init__(self) -> None:
        self._fingerprints: dict[str, Fingerprint] | None = None
        # Some tensors are compared by their id. They stay alive, so that no other tensor gets the same id.
        self._alive: list[Tensor] = []
        self._warned: set[str] = set()

    def remember(self, module: nn.Module) -> None:
        """Take the fingerprints once per process, before a checkpoint is loaded."""
        if self._fingerprints is None:
            built = other_buffers(module)
            self._alive = [buffer for buffer in built.values() if refusal(buffer)]
            self._fingerprints = {name: _fingerprint(buffer) for name, buffer in built.items()}

    def changed(self, module: nn.Module) -> dict[str, Tensor | None]:
        """Return the buffers that have changed since ``remember``. ``None``: the buffer was removed."""
        built, now = self._fingerprints or {}, other_buffers(module)
        found: dict[str, Tensor | None] = {name: None for name in built if name not in now}
        for name, buffer in now.items():
            if built.get(name) == _fingerprint(buffer):
                continue
            if why := refusal(buffer):
                self._warn(name, why)
            else:
                found[name] = buffer
        return found

    def _warn(self, name: str, why: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "the buffer %r has changed, is not persistent and cannot be saved (%s): a resume will not be exact",
                name,
                why,
            )


def other_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that are not in the module's state dict, by name."""
    known = module.state_dict()
    return {name: buffer for name, buffer in module.named_buffers() if name not in known}


def load_buffers(module: nn.Module, saved: Mapping[str, Tensor | None], device: torch.device) -> None:
    """Set buffers to copies of the saved values, in place if the shape is the same.

    Args:
        module: The module with the buffers.
        saved: Values by name. ``None``: the buffer was removed.
        device: The device of new buffers.
    """
    for name, value in saved.items():
        path, _, leaf = name.rpartition(".")
        owner = dict(module.named_modules()).get(path)
        if owner is not None and leaf not in owner._buffers and not hasattr(owner, leaf):
            # The model registers this buffer later, for example in its first forward.
            owner.register_buffer(leaf, None, persistent=False)
        if owner is None or leaf not in owner._buffers:
            raise CheckpointMismatchError(
                f"the checkpoint has the buffer {name!r}, which this model lacks: make the same model as before, with "
                f"register_buffer({leaf!r}, …, persistent=False)"
            )
        here = owner._buffers[leaf]
        if value is None:
            owner._buffers[leaf] = None
        elif here is not None and _fits(here, value):
            with torch.no_grad():
                here.copy_(value)
        else:
            owner._buffers[leaf] = value.detach().to(device, copy=True)


def _fits(here: Tensor, value: Tensor) -> bool:
    return here.shape == value.shape and here.dtype == value.dtype and here.is_contiguous()


def _fingerprint(buffer: Tensor) -> Fingerprint:
    """Return a digest of the values.

    The version counter misses changes through ``.data`` or NumPy.
    """
    if refusal(buffer):
        return id(buffer), buffer._version
    digest = blake2b(memory(on_cpu_in_order(buffer)), digest_size=16).digest()
    return buffer.dtype, tuple(buffer.shape), digest
