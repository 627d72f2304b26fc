"""The folder of a run: ``runs/<project>/<name>``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from hookline.checkpoint import Store
from hookline.checkpoint.plan import FOLDER
from hookline.errors import SetupError
from hookline.loop.settings import Settings
from hookline.records.file_names import check_links


def place(settings: Settings, started: datetime) -> tuple[str, str, Path | None]:
    """Return the project, the name and the folder that a run will have. It creates nothing."""
    project, _, name = (settings.name or "").rpartition("/")
    project = project or "default"
    if settings.folder is False:
        return project, name or f"{started:%Y-%m-%d_%H-%M-%S}", None
    if settings.folder is not None:
        return project, name or settings.folder.name, settings.folder.absolute()
    name = name or f"{started:%Y-%m-%d_%H-%M-%S}"
    # The path is absolute because a run may change the working directory.
    return project, name, (Path("runs") / project / name).absolute()


def make_folder(settings: Settings, name: str, folder: Path | None) -> tuple[str, Path | None]:
    """Create the folder of a run, and return its name and path.

    A folder that the user gave must not hold another run. A default folder gets a number if it exists.

    Args:
        settings: The options of the run.
        name: Name of the run.
        folder: Path from ``place``. ``None`` if the run writes nothing.
    """
    if folder is None:
        return name, None
    if settings.folder is not None:
        check_links(folder / FOLDER)
        _make(folder, exist_ok=True)
        _refuse_another_run(settings, folder)
        return name, folder
    free, number = folder, 1
    while not _make(free):
        number += 1
        free = folder.with_name(f"{name}-{number}")
    return free.name, free


def is_inside(path: Path, folder: Path, *linked: Path) -> bool:
    """True if a path is in a run's folder, also in a subfolder that is a link to another folder.

    Args:
        path: The path.
        folder: The folder of the run.
        linked: Other folders of the run, which may be links.
    """
    return any(path.resolve().is_relative_to(part.resolve()) for part in (folder, folder / FOLDER, *linked))


def _refuse_another_run(settings: Settings, folder: Path) -> None:
    """Raise an error if a folder that the user gave holds a run that is not resumed."""
    rows = (folder / "metrics.jsonl").exists()
    if not rows and not ((folder / FOLDER).is_dir() and Store(folder / FOLDER).checkpoints()):
        return
    resume = settings.resume
    if resume is None or (resume.path != "auto" and not is_inside(Path(resume.path), folder)):
        holds = "metrics.jsonl" if rows else FOLDER
        raise SetupError(
            f"folder={str(folder)!r} holds a run already ({holds}); give another, remove it, or resume it: "
            f"resume='auto'"
        )


def _make(folder: Path, *, exist_ok: bool = False) -> bool:
    """Create a folder.

    Return False if it exists, for example because another run has just created it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        if exist_ok:
            raise SetupError(f"folder={str(folder)!r} is a file; give a folder") from None
        return False
    except OSError as error:
        raise SetupError(f"folder={str(folder)!r} cannot be made: {error}; give another folder") from error
    return True
