"""Recognize out-of-memory errors."""

from __future__ import annotations

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
