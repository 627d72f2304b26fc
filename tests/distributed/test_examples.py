"""The examples for many processes run as their first lines say, with one process and with two."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "distributed"
LIMIT = 250
"""Seconds: a hang guard. On two quiet cores each takes some ten."""


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    bin_folder = str(Path(sys.executable).parent)  # where torchrun is
    return {**kept, "OMP_NUM_THREADS": "1", "PATH": f"{bin_folder}:{os.environ['PATH']}", **more}


def run(ranks: Any, size: int, script: str, *arguments: str) -> str:
    """What all ranks of an example print."""
    told = ranks.run("cases_of_examples.py:run", size, path=str(EXAMPLES / script), arguments=arguments, limit=LIMIT)
    assert [its.code for its in told] == [0] * size, "\n".join(its.output for its in told)
    return "".join(its.output for its in told)


def hits(printed: str) -> float:
    found = re.findall(r"hits on 360 held-out digits: ([\d.]+)", printed)
    assert len(found) == 1, printed  # said once, by rank zero
    return float(found[0])


def test_the_script_trains_sharded_and_its_run_is_known_to_one_process(ranks: Any, tmp_path: Path) -> None:
    printed = run(ranks, 2, "train.py", str(tmp_path / "run"), "--fsdp")
    # 1,437 samples in batches of 32 on each of two ranks: 23 steps an epoch.
    assert "2 processes, 460 steps, 28740 samples" in printed
    assert hits(printed) > 0.9
    # It is finished: one process finds the same numbers, and trains no step more.
    again = run(ranks, 1, "train.py", str(tmp_path / "run"))
    assert "1 processes, 460 steps, 28740 samples" in again
    assert hits(again) == hits(printed)


def test_an_own_loop_that_was_written_for_one_process_trains_with_two(ranks: Any) -> None:
    printed = run(ranks, 2, "own_loop.py")
    found = re.findall(r"validation: [\d.]+ -> ([\d.]+)", printed)
    assert len(found) == 1, printed
    assert 0.2 <= float(found[0]) <= 0.75


def test_two_machines_meet_and_train_together(tmp_path: Path, hold_port: Callable[[], int]) -> None:
    """Both of them are this one: two launchers with one process each, which find one another at a port."""
    command = ["bash", str(EXAMPLES / "two_nodes.sh"), "127.0.0.1", str(tmp_path / "run")]
    given = environment(PORT=str(hold_port()), PROCESSES="1", GLOO_SOCKET_IFNAME="lo")
    nodes = [
        subprocess.Popen(command, cwd=tmp_path, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        told = [node.communicate(timeout=LIMIT) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], told
    printed = told[0][0] + told[1][0]
    assert "2 processes, 460 steps" in printed
    assert hits(printed) > 0.9


SRUN = """#!/usr/bin/env bash
# As Slurm does: the command once for each task, at the same time, each with its number.
while [[ $1 == --* ]]; do shift; done
pids=()
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
"""


def test_the_script_for_slurm_tells_each_task_its_place(tmp_path: Path) -> None:
    """There is no Slurm here: ``srun`` and ``scontrol`` are stand-ins, and the rest is real."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"srun": SRUN, "scontrol": "#!/usr/bin/env bash\necho 127.0.0.1\n"}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    given = environment(
        SLURM_NTASKS="2", SLURM_JOB_ID="4711", SLURM_JOB_NODELIST="here", SLURM_SUBMIT_DIR=str(EXAMPLES)
    )
    given["PATH"] = f"{commands}:{given['PATH']}"
    done = subprocess.run(
        ["bash", str(EXAMPLES / "slurm.sh"), str(tmp_path / "run")],
        cwd=tmp_path,
        env=given,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    assert "2 processes, 460 steps" in done.stdout


def test_ray_train_starts_the_processes_and_keeps_its_group(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("RAY IS NOT INSTALLED: pip install -c constraints.txt -e '.[ray]' to run this test")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "ray_train.py"],
        cwd=tmp_path,
        env=environment(HOME=str(tmp_path), RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S="200"),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"2 workers, 10 epochs, val/loss ([\d.]+)", done.stdout + done.stderr)
    assert found, done.stdout + done.stderr
    assert float(found[1]) < 0.6


def test_an_example_is_short() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.iterdir() if path.is_file()}
    assert max(lengths.values()) < 65, lengths
