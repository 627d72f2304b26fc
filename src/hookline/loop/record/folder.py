"""Where a run lives on disk: ``runs/<project>/<name>``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from hookline.checkpoint import Store
from hookline.checkpoint.plan import FOLDER
from hookline.errors import SetupError
from hookline.loop.settings import Settings
from hookline.records.file_names import check_links


def place(settings: Settings, started: datetime) -> tuple[str, str, Path | None]:
    """The project, the name and the folder that a run will have; nothing is made here."""
    project, _, name = (settings.name or "").rpartition("/")
    project = project or "default"
    if settings.folder is False:
        return project, name or f"{started:%Y-%m-%d_%H-%M-%S}", None
    if settings.folder is not None:
        return project, name or settings.folder.name, settings.folder.absolute()
    name = name or f"{started:%Y-%m-%d_%H-%M-%S}"
    return project, name, (Path("runs") / project / name).absolute()  # a run may change the working directory


def make_folder(settings: Settings, name: str, folder: Path | None) -> tuple[str, Path | None]:
    """Make the folder. One that was asked for holds no run, or it goes on; another gets a number if it is taken."""
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
    """True if a path is in a run's folder, or in one of its folders that are links to somewhere else."""
    return any(path.resolve().is_relative_to(part.resolve()) for part in (folder, folder / FOLDER, *linked))


def _refuse_another_run(settings: Settings, folder: Path) -> None:
    """A folder that was given holds no run, unless it is the one that goes on."""
    rows = (folder / "metrics.jsonl").exists()
    if not rows and not ((folder / FOLDER).is_dir() and Store(folder / FOLDER).checkpoints()):
        return
    resume = settings.resume
    if resume is None or (resume.path != "auto" and not is_inside(Path(resume.path), folder)):
        holds = "metrics.jsonl" if rows else FOLDER
        raise SetupError(
            f"folder={str(folder)!r} holds a run already ({holds}); give another, remove it, or go on with it: "
            f"resume='auto'"
        )


def _make(folder: Path, *, exist_ok: bool = False) -> bool:
    """Whether the folder was made; not if another run has just made it."""
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        if exist_ok:
            raise SetupError(f"folder={str(folder)!r} is a file; give a folder") from None
        return False
    except OSError as error:
        raise SetupError(f"folder={str(folder)!r} cannot be made: {error}; give another folder") from error
    return True
