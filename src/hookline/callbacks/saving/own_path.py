"""Check that two callbacks do not write to the same path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.errors import SetupError

if TYPE_CHECKING:
    from hookline.run import Run


def check_own(run: Run, callback: Any, kind: type, paths: Callable[[Any], Iterable[Path]], option: str) -> None:
    """Raise if another callback of this class writes to one of the same paths.

    Args:
        run: The run.
        callback: The callback to check.
        kind: Class of the callbacks to compare.
        paths: Function that returns the paths of a callback.
        option: Argument with which the user gives another path, for the error.
    """
    mine = {path.resolve() for path in paths(callback)}
    for other in run.callbacks:
        if other is callback or not isinstance(other, kind):
            continue
        if shared := mine & {path.resolve() for path in paths(other)}:
            raise SetupError(
                f"two {kind.__name__} write to {str(min(shared))!r}, and each would replace what the other has "
                f"written; give one of them another {option}"
            )
