"""The guard against collectives in a callback that runs on some ranks only.

The other ranks do not take part in such a collective, so it would wait forever.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from hookline.errors import CollectiveError

COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
SPREAD = "torch.distributed.tensor"
"""The package of ``DTensor``, which may communicate in any operation."""


class NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which a collective raises ``CollectiveError`` and does not wait for other ranks.

    Args:
        callback: Name of the callback, for the error.
        hook: Name of the hook, for the error.
        ranks: The ranks on which the callback runs, for the error.
    """

    def __init__(self, callback: str, hook: str, ranks: object) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._words = f"{callback}.{hook} runs on ranks={ranks!r} only"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COLLECTIVES:
            raise self.refusal(func)
        # A DTensor then runs the operation in parts, and each collective among the parts comes here again.
        if types and any(kind.__module__.startswith(SPREAD) for kind in types):
            return NotImplemented
        return func(*args, **(kwargs or {}))

    def refusal(self, what: object) -> CollectiveError:
        return CollectiveError(
            f"{self._words}, and {what} needs all ranks: it would wait for ever. Give the callback ranks='all', or "
            f"do this part without the other processes"
        )


def refuse_if_guarded(what: str) -> None:
    """Raise ``CollectiveError`` if the guard is active.

    Communication that does not use torch must call this function, because the guard does not see it.
    """
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, NoCollectives):
            raise mode.refusal(what)


def guarded(hook: Callable[..., Any], callback: str, name: str, ranks: object) -> Callable[..., Any]:
    """Return the hook with the guard around it.

    The guard covers an ``around_*`` generator before and after its ``yield``.
    """
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
