"""Recognize errors that mean "out of memory"."""

from __future__ import annotations

import torch

SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "alloc_failed")
"""Parts of the message of a ``RuntimeError`` of torch, CUDA, cuBLAS or another library, in lower case."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if an error, or the one that it was raised from, means "out of memory".

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes do not fit"))
    (True, False)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)
