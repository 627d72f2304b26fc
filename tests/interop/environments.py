"""Make one environment per library whose callbacks and modules run in Hookline, and run its tests and its page in it.

An environment is the folder ``.interop/<library>``.

The pins of these libraries conflict with one another, and all of them need torch, which is large. So each environment
holds one library and the few packages that only this library needs, installed with ``--no-deps`` from
``constraints-<library>.txt``. A ``.pth`` file adds the packages of ``.venv``, torch and the tests' own among them.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

IMPORTS = {
    "aitoolbox": "aitoolbox.torchtrain.train_loop",
    "composer": "composer.callbacks",
    "fastai": "fastai.learner",
    "ignite": "ignite.engine",
    "keras": "keras",
    "lightning": "lightning.pytorch, pytorch_lightning",
    "pytorch-accelerated": "pytorch_accelerated.callbacks",
    "torchtnt": "torchtnt.framework.callbacks",
    "transformers": "transformers.trainer_callback",
}
"""The libraries, and what must be importable in the environment of each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", help=f"some of {', '.join(IMPORTS)}; by default all")
    parser.add_argument("--no-tests", action="store_true", help="only make the environments")
    parser.add_argument("--quick", action="store_true", help="run one test per shipped callback, and the page")
    options = parser.parse_args()
    failed = []
    for library in options.libraries or IMPORTS:
        python = make(library)
        if python is None:
            print(f"SKIPPED {library}: it cannot be installed or imported here, so its tests do not run", flush=True)
        elif not options.no_tests and (tests := sorted(HERE.glob(f"test_{library.replace('-', '_')}*.py"))):
            page = f"{ROOT}/tests/docs/test_pages.py::test_page_runs[docs/interop/{library}.md]"
            chosen = ["-k", "shipped or test_page_runs"] if options.quick else []
            command = [python, "-m", "pytest", "-q", *chosen, page, *map(str, tests)]
            environment = {**os.environ, "HOOKLINE_INTEROP": library, "KERAS_BACKEND": "torch"}
            failed += [library] * bool(subprocess.run(command, cwd=ROOT, env=environment).returncode)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def make(library: str) -> str | None:
    """Make the environment, unless it is there, and return the path of its interpreter. ``None`` if that fails."""
    with _locked(library):
        return _make(library)


@contextmanager
def _locked(library: str) -> Iterator[None]:
    """Wait until no other process makes the environment: two at once would delete each other's files."""
    path = ROOT / ".interop" / f"{library}.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(library: str) -> str | None:
    constraints = HERE / f"constraints-{library}.txt"
    folder = ROOT / ".interop" / library
    python, stamp = str(folder / "bin/python"), folder / "installed"
    version = hashlib.sha256(constraints.read_bytes()).hexdigest()
    is_new = not stamp.exists() or stamp.read_text() != version
    if is_new:
        print(f"installing {library} into {folder.relative_to(ROOT)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    base, link = Path(sysconfig.get_path("purelib")).resolve(), packages / "base.pth"
    line = f"import site; site.addsitedir({str(base)!r})\n"
    if is_new or link.read_text() != line:  # The folder of .venv may have moved.
        link.write_text(line)
    if is_new:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
        if subprocess.run([*pip, "install", "-qq", "--no-deps", "-r", constraints]).returncode:
            return None
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    found = subprocess.run([python, "-W", "ignore", "-c", f"import {IMPORTS[library]}"], env=environment)
    if found.returncode:
        return None
    stamp.write_text(version)
    return python


if __name__ == "__main__":
    main()
