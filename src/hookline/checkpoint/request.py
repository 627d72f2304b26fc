"""``Resume``: what a run is asked to go on from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hookline.checkpoint.plan import FOLDER
from hookline.checkpoint.store import Store
from hookline.errors import SetupError
from hookline.records.file_names import check_path
from hookline.run.paths import path_to_read


@dataclass(frozen=True, slots=True)
class Resume:
    """``resume=`` in full: ``hl.Resume("auto", strict=True)`` refuses where damaged checkpoints would be passed over.

    ``"auto"`` takes the newest valid checkpoint in the run's folder, or begins if there is none. A path is that of
    a checkpoint, or of a run's folder, of which the newest valid one is taken.
    """

    path: str | Path = "auto"
    strict: bool = False

    @classmethod
    def read(cls, given: Any, folder: Path | Literal[False] | None) -> Resume | None:
        """What was given as ``resume=``, checked as far as it can be before the run begins."""
        if given is None or isinstance(given, Resume):
            found = given
        elif isinstance(given, str | Path) and str(given):
            found = cls(given)
        else:
            raise SetupError(f"resume={given!r}: give None, 'auto', or the path of a checkpoint or of a run's folder")
        if found is not None and found.path == "auto" and not folder:
            raise SetupError("resume='auto' looks in the run's own folder: give one, such as folder='runs/mine'")
        if found is not None and found.path != "auto":
            check_path("resume", found.path)
            found = replace(found, path=path_to_read(found.path, "resume"))
            if not Path(found.path).exists():
                raise SetupError(
                    f"resume={str(found.path)!r}: there is nothing there; give a checkpoint or a run's folder"
                )
        return found


def has_checkpoint(folder: Path | None, resume: Resume) -> bool:
    """Whether there is something to go on from; a path that was given is one."""
    return resume.path != "auto" or (folder is not None and bool(Store(folder / FOLDER).latest()))
