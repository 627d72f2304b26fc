"""``Resume``: the checkpoint from which a run resumes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal

from hookline.checkpoint.plan import FOLDER
from hookline.checkpoint.remote import path_or_address
from hookline.checkpoint.store import Store
from hookline.errors import ArgumentError
from hookline.records.file_names import check_path
from hookline.run.paths import is_address

PARTS: Final = ("optimizer", "schedulers", "data", "callbacks", "random")
"""The parts of a checkpoint that a run can resume without."""


@dataclass(frozen=True, slots=True)
class Resume:
    """The checkpoint from which a run resumes, as an argument of ``resume=``.

    Args:
        path: ``"auto"`` for the newest valid checkpoint in the run's folder, or a new run if there is none.
            Otherwise the path or address of a checkpoint, or of a run's folder, for its newest valid checkpoint.
        strict: Raise an error instead of skipping damaged checkpoints.
        skip: Parts of the checkpoint not to restore: one or more of ``"optimizer"``, ``"schedulers"``, ``"data"`` (the
            position in the epoch), ``"callbacks"`` and ``"random"``. The run keeps its own state for them. With
            ``"callbacks"``, it also skips the schedulers that callbacks made, and which parameters were frozen and
            which modules were in eval mode.

    Raises:
        ArgumentError: If ``skip`` has an unknown name.

    Example:
        >>> Resume("auto", strict=True, skip="optimizer")
        Resume(path='auto', strict=True, skip=('optimizer',))
    """

    path: str | Path = "auto"
    strict: bool = False
    skip: Collection[str] = ()

    def __post_init__(self) -> None:
        skip = (self.skip,) if isinstance(self.skip, str) else tuple(self.skip)
        for name in skip:
            if name not in PARTS:
                close = get_close_matches(str(name), PARTS, n=1)
                hint = f"Did you mean {close[0]!r}?" if close else f"Use one or more of {', '.join(PARTS)}."
                raise ArgumentError(f"Resume(skip={name!r}): a checkpoint has no such part. {hint}")
        object.__setattr__(self, "skip", tuple(part for part in PARTS if part in skip))

    @property
    def is_remote(self) -> bool:
        """True if ``path`` is an address."""
        return isinstance(self.path, str) and is_address(self.path)

    @classmethod
    def read(cls, given: Any, folder: Path | Literal[False] | None, of: str) -> Resume | None:
        """Return the value of ``resume=`` as a ``Resume``, checked as far as possible."""
        if given is None or isinstance(given, Resume):
            found = given
        elif isinstance(given, str | Path) and str(given):
            found = cls(given)
        else:
            raise ArgumentError(
                f"{of}(resume={given!r}): must be None, 'auto', or the path or address of a checkpoint or of a run's "
                f"folder."
            )
        if found is not None and found.path == "auto" and not folder:
            raise ArgumentError(
                f"{of}(resume='auto'): reads the folder of the run, and none is given. Add folder='runs/mine'."
            )
        if found is not None and found.path != "auto":
            check_path("resume", found.path, of)
            found = replace(found, path=path_or_address(found.path, "resume", of))
            if not found.is_remote and not Path(found.path).exists():
                raise ArgumentError(
                    f"{of}(resume={str(found.path)!r}): no such path. Give a checkpoint or the folder of a run."
                )
        return found


def has_checkpoint(folder: Path | None, resume: Resume) -> bool:
    """Return True if there is a checkpoint to resume from, or if a path was given."""
    return resume.path != "auto" or (folder is not None and bool(Store(folder / FOLDER).latest()))
