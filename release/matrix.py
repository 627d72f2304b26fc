"""Run the tests with other Python interpreters and other versions of torch.

``make matrix ARGS="--python python3.11 python3.12 --torch 2.10.0 2.13.0"`` tests each pair of them in a new
environment. What follows ``--`` goes to pytest instead of ``-m fast``.

A cell is ``passed``, ``failed`` or ``not run``, with the reason. A torch that brings CUDA, which is several gigabytes,
is installed with ``--cuda`` only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/matrix"
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
TORCHES = ("2.10.0", "2.13.0")
TESTS = ("-n", "2", "--dist", "worksteal", "-q", "-m", "fast")
MIN_PYTHON = (3, 11)
PIP = ("-m", "pip", "--disable-pip-version-check")


@dataclass(frozen=True, slots=True)
class Cell:
    """One interpreter with one version of torch."""

    python: str
    torch: str
    verdict: str
    reason: str = ""


class NotRunError(Exception):
    """A cell cannot be run, for the reason that the message gives."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="PATH", help=f"default: {' '.join(PYTHONS)}")
    parser.add_argument("--torch", nargs="+", default=TORCHES, metavar="VERSION", help=f"default: {' '.join(TORCHES)}")
    parser.add_argument("--cuda", action="store_true", help="also download a torch that brings CUDA")
    parser.add_argument("tests", nargs="*", help=f"arguments for pytest, after --; default: {' '.join(TESTS)}")
    options = parser.parse_args()
    cells = []
    for python in options.python:
        for torch in options.torch:
            cells.append(cell := test(python, torch, options.cuda, options.tests or TESTS))
            print(f"{cell.python}, torch {cell.torch}: {cell.verdict}", flush=True)
    show(cells)
    sys.exit(any(cell.verdict == "failed" for cell in cells))


def test(python: str, torch: str, cuda: bool, tests: list[str]) -> Cell:
    try:
        version = version_of(python)
        environment = make_environment(python, version, torch, cuda)
    except NotRunError as reason:
        return Cell(Path(python).name, torch, "not run", str(reason))
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    command = [environment / "bin/python", "-m", "pytest", *tests]
    done = subprocess.run(
        command, cwd=ROOT, env={**variables, "OMP_NUM_THREADS": "1"}, text=True, stdout=subprocess.PIPE
    )
    (environment / "pytest.txt").write_text(done.stdout)
    summary = done.stdout.strip().splitlines()[-1].strip("= ") if done.stdout.strip() else "pytest printed nothing"
    verdict = "failed" if done.returncode else "passed"
    reason = f"{summary}; {(environment / 'pytest.txt').relative_to(ROOT)}" if done.returncode else summary
    return Cell(f"Python {version}", torch, verdict, reason)


def version_of(python: str) -> str:
    path = shutil.which(python)
    if path is None:
        raise NotRunError("this interpreter is not installed here")
    code = "import platform, venv, ensurepip; print(platform.python_version())"
    done = subprocess.run([path, "-c", code], text=True, capture_output=True)
    if done.returncode:
        raise NotRunError(f"it cannot make environments: {done.stderr.strip().splitlines()[-1]}")
    version = done.stdout.strip()
    if tuple(map(int, version.split(".")[:2])) < MIN_PYTHON:
        raise NotRunError(f"Hookline needs Python {'.'.join(map(str, MIN_PYTHON))} or newer")
    return version


def make_environment(python: str, version: str, torch: str, cuda: bool) -> Path:
    """Make an environment with Hookline, the tests' packages and this version of torch."""
    folder = BUILD / f"python-{version}-torch-{torch}"
    constraints = folder / "constraints.txt"
    print(f"installing Python {version}, torch {torch} into {folder.relative_to(ROOT)}", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    pinned = (ROOT / "constraints.txt").read_text()
    constraints.write_text(re.sub(r"^torch==.*$", f"torch=={torch}", pinned, flags=re.MULTILINE))
    environment_python = folder / "bin/python"
    install(environment_python, constraints, "--upgrade", "pip")
    refuse_cuda(environment_python, constraints, torch, cuda)
    install(environment_python, constraints, "-e", str(ROOT), "--group", str(ROOT / "pyproject.toml") + ":test")
    return folder


def refuse_cuda(python: Path, constraints: Path, torch: str, cuda: bool) -> None:
    report = constraints.parent / "torch.json"
    install(python, constraints, "--dry-run", "--report", str(report), f"torch=={torch}")
    names = [package["metadata"]["name"] for package in json.loads(report.read_text())["install"]]
    if not cuda and (brought := [name for name in names if name.startswith("nvidia-")]):
        raise NotRunError(
            f"pip finds only the build of torch with CUDA ({len(brought)} packages of nvidia, gigabytes). "
            "Give pip the index of CPU builds, or pass --cuda"
        )


def install(python: Path, constraints: Path, *arguments: str) -> None:
    command = [str(python), *PIP, "install", "-qq", "-c", str(constraints), *arguments]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise NotRunError(f"pip install {arguments[-1]}: {errors[-1].removeprefix('ERROR: ')}")


def show(cells: list[Cell]) -> None:
    rows = [("Python", "torch", "verdict", "reason")]
    rows += [(cell.python.removeprefix("Python "), cell.torch, cell.verdict, cell.reason) for cell in cells]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    print()
    for *short, reason in rows:
        print("  ".join(text.ljust(width) for text, width in zip(short, widths, strict=True)), reason, sep="  ")


if __name__ == "__main__":
    main()
