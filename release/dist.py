"""Build the wheel and the sdist into ``dist/`` and check them: ``make dist``.

The wheel is installed into a new environment, without the repository, and runs the first example of the README there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints.txt"
MAX_WHEEL_BYTES = 2_000_000
SDIST_FILES = {
    ".gitignore",  # hatchling adds it
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "SECURITY.md",
    "constraints.txt",
    "pyproject.toml",
}


def main() -> None:
    wheel, sdist = build()
    check_contents(wheel, sdist)
    with tempfile.TemporaryDirectory(prefix="hookline-dist-") as folder:
        version = install(wheel, Path(folder))
        run_first_example(wheel, Path(folder))
    print(f"hookline {version}: {wheel.relative_to(ROOT)} and {sdist.relative_to(ROOT)} are good")


def build() -> tuple[Path, Path]:
    """Build the sdist, then the wheel from the sdist, and check how the index would show them."""
    shutil.rmtree(DIST, ignore_errors=True)
    environment = {**os.environ, "PIP_CONSTRAINT": str(CONSTRAINTS)}
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT, env=environment, stdout=subprocess.DEVNULL)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Exit if an archive lacks a file of the package, or has another file."""
    package = {str(path.relative_to(ROOT / "src")) for path in package_files()}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    compare(wheel, in_wheel, package)
    compare(sdist, in_sdist, {f"src/{name}" for name in package} | SDIST_FILES)
    size = wheel.stat().st_size
    if size > MAX_WHEEL_BYTES:
        sys.exit(f"{wheel.name} has {size:,} bytes: at most {MAX_WHEEL_BYTES:,}.")
    print(f"{wheel.name}: {len(in_wheel)} files, {size:,} bytes; {sdist.name}: {sdist.stat().st_size:,} bytes")


def package_files() -> Iterable[Path]:
    for path in (ROOT / "src/hookline").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def compare(archive: Path, found: set[str], expected: set[str]) -> None:
    lacks, extra = sorted(expected - found), sorted(found - expected)
    if lacks or extra:
        sys.exit(f"{archive.name} lacks {lacks or 'nothing'} and has {extra or 'nothing'} in addition.")


def install(wheel: Path, folder: Path) -> str:
    """Install the wheel alone and return the version, on which the package, its metadata and the command agree."""
    run(sys.executable, "-m", "venv", folder / "env")
    pip(folder, "--upgrade", "pip")
    print(f"installing {wheel.name} into a new environment", flush=True)
    pip(folder, str(wheel))
    in_environment(folder, "-m", "pip", "check")
    code = "import hookline as hl, importlib.metadata as m; print(hl.__version__, m.version('hookline'), hl.__file__)"
    imported, recorded, file = in_environment(folder, "-c", code).split()
    command = in_environment(folder, "-m", "hookline", "--version").split()[-1]
    if len(versions := {imported, recorded, command, wheel.name.split("-")[1]}) != 1:
        sys.exit(f"The versions of package, metadata, command and wheel differ: {', '.join(sorted(versions))}.")
    if not Path(file).resolve().is_relative_to(folder.resolve()):
        sys.exit(f"hookline was imported from {file}, and not from the new environment.")
    # A user who has no extra can train, and every public name can be imported.
    names = "import hookline as hl; [getattr(hl, name) for name in hl.__all__]; print(len(hl.__all__), 'public names')"
    print(in_environment(folder, "-c", names), end="")
    return imported


def run_first_example(wheel: Path, folder: Path) -> None:
    """Run the first Python example of the README, which needs the extra ``demo``."""
    pip(folder, f"{wheel}[demo]")
    example = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    if example is None:
        sys.exit("README.md has no example that starts with ```python.")
    (folder / "first.py").write_text(example[1])
    output = in_environment(folder, "first.py")
    if not list(folder.glob("runs/*/report.html")):
        sys.exit(f"The first example of README.md wrote no report. Its output:\n{output}")
    print("The first example of README.md:", *output.splitlines()[-2:], sep="\n  ")


def pip(folder: Path, *packages: str) -> None:
    in_environment(folder, "-m", "pip", "install", "-qq", "--no-input", "-c", str(CONSTRAINTS), *packages)


def in_environment(folder: Path, *arguments: str) -> str:
    """Run Python of the new environment in ``folder``, from which nothing of the repository can be imported."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return run(folder / "env/bin/python", *arguments, cwd=folder, env=environment, stdout=subprocess.PIPE)


def run(*command: object, **options: object) -> str:
    done = subprocess.run(list(map(str, command)), text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{done.stdout or ''}\nThis failed with exit code {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout or ""


if __name__ == "__main__":
    main()
