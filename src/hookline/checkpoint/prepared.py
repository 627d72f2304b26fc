"""Prepare a snapshot for writing, so that errors are raised before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from torch import Tensor

from hookline.checkpoint import names, strict_json
from hookline.checkpoint.encode import encode
from hookline.checkpoint.manifest import Manifest
from hookline.checkpoint.snapshot import About, Snapshot
from hookline.checkpoint.tensor_file import lay_out
from hookline.distributed.dtensors import is_spread
from hookline.errors import StateError

WEIGHTS: Final = "weights/"
"""Prefix of the names of sharded weights."""
STATE: Final = "state/"
"""Prefix of the names of all other sharded tensors."""
_ROOM: Final = 2**16
"""Bytes to allow for what the file system needs in addition to the content of the files."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The files of a checkpoint before they are written. No tensor has been copied yet."""

    about: About
    files: Mapping[str, Callable[[], Iterable[bytes | memoryview]]]
    """Functions that return the content of each file, by name, in the order of writing."""
    size: int
    """Number of bytes that the files need."""

    def name(self, given: str | None) -> str:
        """Return the given name, or the default name of the step."""
        return names.default_name(self.about.generation, self.about.step) if given is None else given


def prepare(snapshot: Snapshot, spread: dict[str, Tensor] | None = None) -> Prepared:
    """Lay out the files of a checkpoint.

    Args:
        snapshot: The snapshot to save.
        spread: Dict to which to add the sharded tensors, by name. ``None`` makes a sharded tensor an error.

    Raises:
        StateError: If the snapshot contains a value that cannot be saved.
    """
    weights = dict(snapshot.weights)
    if spread is not None:
        spread.update({f"{WEIGHTS}{name}": value for name, value in weights.items() if is_spread(value)})
        weights = {name: value for name, value in weights.items() if not is_spread(value)}
    layouts = {names.MODEL: lay_out(weights, WEIGHTS)}
    tree = b""
    if snapshot.state is not None:
        plain, tensors = encode(snapshot.state, spread=spread is not None)
        tree = json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()
        if problem := strict_json.too_large(tree):
            raise StateError(f"The state without its tensors is too large ({problem}). Save long lists as tensors.")
        if spread is not None:
            spread.update({f"{STATE}{name}": value for name, value in tensors.items() if is_spread(value)})
            tensors = {name: value for name, value in tensors.items() if not is_spread(value)}
        layouts[names.STATE_TENSORS] = lay_out(tensors)
    draft = Manifest(snapshot.about, MappingProxyType({}), 0.0).to_bytes()
    files: dict[str, Callable[[], Iterable[bytes | memoryview]]] = {
        name: layout.parts for name, layout in layouts.items()
    }
    if snapshot.state is not None:
        files[names.STATE] = lambda: [tree]
    size = len(tree) + sum(layout.size for layout in layouts.values()) + len(draft) + _ROOM
    return Prepared(snapshot.about, MappingProxyType(files), size)
