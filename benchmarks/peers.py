"""Measure other libraries next to Hookline, and write the page about it: ``make bench-peers``.

Each library has its own environment, those of ``make interop``. In it, ``peer_worker.py`` measures the library,
Hookline and the bare loop in one process, and each script of ``jobs/<library>`` runs. The raw values are stored in
``docs/benchmarks-peers.json``; the page and its chart are written from this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peer_page import JOBS, LIBRARIES, Library, code_lines, write_page

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs/benchmarks-peers.json"
SCRIPTS = ROOT / "benchmarks/jobs"

sys.path.append(str(ROOT / "tests/interop"))
import environments  # noqa: E402  the tests of the libraries use the same environments

QUIET = {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "0"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure other libraries next to Hookline and write the page.")
    parser.add_argument("libraries", nargs="*", help=f"some of {', '.join(LIBRARIES)}; by default all")
    parser.add_argument("--rounds", type=int, default=24, metavar="N", help="rounds of the steps (24)")
    parser.add_argument("--no-jobs", action="store_true", help="do not run the scripts")
    parser.add_argument("--only-jobs", action="store_true", help="only run the scripts")
    parser.add_argument("--only-page", action="store_true", help="only write the page again")
    options = parser.parse_args()
    if unknown := set(options.libraries) - set(LIBRARIES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Known: {', '.join(LIBRARIES)}")
    if options.rounds < 2:
        parser.error("--rounds: at least 2")
    data: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {"measured": {}, "jobs": {}}
    failed = [] if options.only_page else _run(options, data)
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    write_page(data)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def _run(options: argparse.Namespace, data: dict[str, Any]) -> list[str]:
    failed = []
    for name in options.libraries or LIBRARIES:
        library = LIBRARIES[name]
        python = sys.executable if name == "hookline" else environments.make(name)
        if python is None:
            failed.append(f"{name} (cannot be installed or imported here)")
            continue
        if name != "hookline" and not options.only_jobs:
            load, start = os.getloadavg()[0], time.time()
            found = _measure(python, library, options.rounds)
            if found is None:
                failed.append(f"{name} (worker)")
            else:
                about = {"machine": _machine(), "load": [load, os.getloadavg()[0]], "rounds": options.rounds}
                data["measured"][name] = found | about
                print(f"{library.title}: measured in {time.time() - start:.0f} s", flush=True)
        if not options.no_jobs:
            start = time.time()
            ran = {
                job: code_lines(SCRIPTS / library.module / f"{job}.py") for job in JOBS if _job(python, library, job)
            }
            data["jobs"][name] = ran
            failed += [f"{name} ({job})" for job in JOBS if job not in ran]
            print(f"{library.title}: {len(ran)} of {len(JOBS)} jobs ran in {time.time() - start:.0f} s", flush=True)
    return failed


def _measure(python: str, library: Library, rounds: int) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [python, "-W", "ignore", str(ROOT / "benchmarks/peer_worker.py"), library.module]
        command += [library.distribution, library.code, str(result), "--rounds", str(rounds)]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | QUIET, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            print(done.stderr[-4000:], file=sys.stderr)
            return None
        return json.loads(result.read_text())  # type: ignore[no-any-return]


def _job(python: str, library: Library, job: str) -> bool:
    """Run the script in an empty folder. The one that resumes is killed the first time: see ``jobs/common.py``."""
    script = SCRIPTS / library.module / f"{job}.py"
    environment = os.environ | QUIET | {"PYTHONPATH": str(SCRIPTS)}
    with tempfile.TemporaryDirectory() as folder:
        for kill in ("1", "") if job == "resume" else ("",):
            done = subprocess.run(
                [python, "-W", "ignore", str(script)],
                cwd=folder,
                env=environment | {"KILL_JOB": kill},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
            )
            if done.returncode != (-9 if kill else 0):
                print(f"{script} ended with {done.returncode}:\n{done.stdout[-3000:]}", file=sys.stderr)
                return False
    return True


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{os.cpu_count()} cores, {model}, {platform.system()}"


if __name__ == "__main__":
    main()
