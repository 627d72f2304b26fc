"""A callback that runs on some ranks only must not ask for what all ranks take part in: the others are not there."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from hookline.errors import CollectiveError

COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
SPREAD = "torch.distributed.tensor"
"""Where tensors come from that are spread over the ranks, and that may send something in any operation."""


class NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is open, a collective raises at once instead of waiting for ranks that do not come."""

    def __init__(self, callback: str, hook: str, ranks: object) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._words = f"{callback}.{hook} runs on ranks={ranks!r} only"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COLLECTIVES:
            raise self.refusal(func)
        if types and any(
            kind.__module__.startswith(SPREAD) for kind in types
        ):  # what it sends is seen once it is taken apart
            return NotImplemented
        return func(*args, **(kwargs or {}))

    def refusal(self, what: object) -> CollectiveError:
        return CollectiveError(
            f"{self._words}, and {what} needs all ranks: it would wait for ever. Give the callback ranks='all', or "
            f"do this part without the other processes"
        )


def refuse_if_guarded(what: str) -> None:
    """For what all ranks take part in without torch: an error where a collective would be one."""
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, NoCollectives):
            raise mode.refusal(what)


def guarded(hook: Callable[..., Any], callback: str, name: str, ranks: object) -> Callable[..., Any]:
    """A hook that may not use collectives; for a scope's generator, neither before its ``yield`` nor after it."""
    closed = NoCollectives(callback, name, ranks)

    def call(*args: Any, **kwargs: Any) -> Any:
        with closed:
            return hook(*args, **kwargs)

    def scope(run: Any) -> Generator[None, None, None]:
        inner = hook(run)
        try:
            while True:
                with closed:
                    try:
                        next(inner)
                    except StopIteration:
                        return
                yield
        finally:
            inner.close()

    return scope if name.startswith("around_") else call
