"""Out-of-memory errors, and the sizes that Linux reports about processes and the machine."""

from __future__ import annotations

from pathlib import Path

import torch

SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "alloc_failed")
"""Parts of out-of-memory messages, in lower case.

They come from a ``RuntimeError`` of torch, CUDA, cuBLAS or another library.
"""


def is_out_of_memory(error: BaseException) -> bool:
    """True if an error, or an error that caused it, is an out-of-memory error.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes do not fit"))
        (True, False)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def sizes_in(path: Path) -> dict[str, int]:
    """Return the sizes in a file such as ``/proc/self/status``, in bytes by name.

    Empty if the file does not exist: on another system, or after the process has ended.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    parts = [line.split() for line in lines if line.endswith(" kB")]
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in parts}
