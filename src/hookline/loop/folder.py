"""Where a run lives on disk: ``runs/<project>/<name>``, made when something is first written."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from hookline.loop.settings import Settings


def place(settings: Settings, started: datetime) -> tuple[str, str, Path | None]:
    """The project, the name and the folder of a run; no folder is made here."""
    project, _, name = (settings.name or "").rpartition("/")
    project = project or "default"
    if settings.folder is False:
        return project, name or f"{started:%Y-%m-%d_%H-%M-%S}", None
    if settings.folder is not None:
        return project, name or settings.folder.name, settings.folder
    if name:
        return project, name, Path("runs") / project / name
    base = Path("runs") / project
    name = f"{started:%Y-%m-%d_%H-%M-%S}"
    number = 1
    while (base / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    name = name if number == 1 else f"{name}-{number}"
    return project, name, base / name
