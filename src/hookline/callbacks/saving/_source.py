"""Zip file of a run's source code, made when the run starts."""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from hookline.errors import SetupError

SUFFIXES = frozenset({".py", ".pyi", ".ipynb", ".sh", ".toml", ".yaml", ".yml", ".json", ".cfg", ".ini"})
"""Suffixes of the files that are packed from a folder."""
MAX_FILE_BYTES = 2**20
"""Maximum size of a file in a folder, in bytes. A larger file is probably data."""
MAX_FILES = 5_000
"""Maximum number of files. More files are probably not the source of one program."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""Modification time of every entry, so that equal sources give equal zip files."""


def script() -> Path | None:
    """Return the file that Python was started with, or ``None`` in a notebook or a prompt."""
    name = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(name) if name and Path(name).is_file() else None


def check_paths(paths: Iterable[Path], who: str) -> None:
    """Raise if a path does not exist."""
    for path in paths:
        if not path.exists():
            raise SetupError(f"{who}: the source {str(path)!r} is not there; give files and folders that are")


def packed(paths: Iterable[Path]) -> bytes:
    """Return a zip file with these files and the source files in these folders."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_named(paths).items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _named(paths: Iterable[Path]) -> dict[str, Path]:
    """Return the files by their names in the archive. A second file of a name gets a number."""
    found: dict[str, Path] = {}
    for path in paths:
        files = [(path.name, path)] if path.is_file() else _below(path.resolve())
        for name, file in files:
            taken = sum(known == name or known.startswith(f"{name}.") for known in found)
            if not any(file.samefile(other) for other in found.values()):
                found[name if not taken else f"{name}.{taken + 1}"] = file
            if len(found) > MAX_FILES:
                raise SetupError(
                    f"the source {str(path)!r} has more than {MAX_FILES:,} files; name the folders of the code"
                )
    return found


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the source files of a folder without hidden, cached and installed files."""
    for here, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__pycache__")) and not Path(here, name, "pyvenv.cfg").exists()
        ]
        for name in files:
            path = Path(here, name)
            if path.suffix in SUFFIXES and not name.startswith(".") and path.stat().st_size <= MAX_FILE_BYTES:
                yield f"{folder.name}/{path.relative_to(folder).as_posix()}", path
