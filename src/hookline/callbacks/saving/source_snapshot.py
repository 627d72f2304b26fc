"""The source of a run, packed into a zip file while it is still what runs."""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from hookline.errors import SetupError

SUFFIXES = frozenset({".py", ".pyi", ".ipynb", ".sh", ".toml", ".yaml", ".yml", ".json", ".cfg", ".ini"})
"""What is taken from a folder."""
LARGEST = 2**20
"""A larger file in a folder is data, and is left out."""
MOST = 5_000
"""More files than this are no source of one program."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The same source gives the same zip file."""


def script() -> Path | None:
    """The file that Python was started with; ``None`` in a notebook or at a prompt."""
    name = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(name) if name and Path(name).is_file() else None


def check_paths(paths: Iterable[Path], who: str) -> None:
    for path in paths:
        if not path.exists():
            raise SetupError(f"{who}: the source {str(path)!r} is not there; give files and folders that are")


def packed(paths: Iterable[Path]) -> bytes:
    """A zip file with these files, and with the source files in these folders."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_named(paths).items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _named(paths: Iterable[Path]) -> dict[str, Path]:
    """Each file under its name in the archive; of two with one name, the second gets a number."""
    found: dict[str, Path] = {}
    for path in paths:
        files = [(path.name, path)] if path.is_file() else _below(path.resolve())
        for name, file in files:
            taken = sum(known == name or known.startswith(f"{name}.") for known in found)
            if not any(file.samefile(other) for other in found.values()):
                found[name if not taken else f"{name}.{taken + 1}"] = file
            if len(found) > MOST:
                raise SetupError(f"the source {str(path)!r} has more than {MOST:,} files; name the folders of the code")
    return found


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    """The source files of a folder; not what is hidden, cached or installed."""
    for here, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__pycache__")) and not Path(here, name, "pyvenv.cfg").exists()
        ]
        for name in files:
            path = Path(here, name)
            if path.suffix in SUFFIXES and not name.startswith(".") and path.stat().st_size <= LARGEST:
                yield f"{folder.name}/{path.relative_to(folder).as_posix()}", path
