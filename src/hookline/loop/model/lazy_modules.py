"""Errors of ``Lazy`` modules, which have no parameters before their first forward."""

from __future__ import annotations

from itertools import chain

from torch import nn
from torch.nn.parameter import is_lazy

from hookline.errors import HooklineError, SetupError, error_text

_SIGNS = ("uninitialized", "initialize_parameters")  # words in the error messages of torch


def named_lazy_module(module: nn.Module, error: BaseException) -> BaseException:
    """Return the error to raise: torch's error about an uninitialized parameter gets its name."""
    if isinstance(error, HooklineError) or not any(sign in error_text(error) for sign in _SIGNS):
        return error
    lazy = [name for name, its in chain(module.named_parameters(), module.named_buffers()) if is_lazy(its)]
    if not lazy:
        return error
    found = SetupError(
        f"{lazy[0]} has no size before the first forward (a Lazy module), and a callback of this run needs it: "
        f"call the model once on a batch before training, model(batch)"
    )
    for note in getattr(error, "__notes__", ()):
        found.add_note(note)
    found.__cause__ = error
    return found
