from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from hookline.testing import run_script, start_script


def test_output_exit_code_and_arguments() -> None:
    done = run_script(
        """
        import sys
        print("out", sys.argv[1:])
        print("err", file=sys.stderr)
        sys.exit(7)
        """,
        args=["a", 3],
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "out ['a', '3']\n", "err\n")


def test_a_traceback_shows_the_source() -> None:
    done = run_script("def broken():\n    raise ValueError('planted')\nbroken()")
    assert done.returncode == 1
    assert "raise ValueError('planted')" in done.stderr


def test_the_environment_is_added_to() -> None:
    done = run_script("import os; print(os.environ['PLANTED'], 'PATH' in os.environ)", env={"PLANTED": "here"})
    assert done.stdout == "here True\n"


def test_much_output_does_not_block() -> None:
    done = run_script("print('x' * 1_000_000)")
    assert len(done.stdout) == 1_000_001


def test_a_function_of_the_script_can_be_spawned() -> None:
    """What a text on the command line could not do: a spawned child imports the script's file."""
    done = run_script(
        """
        import multiprocessing

        def work():
            print("from the child", flush=True)

        if __name__ == "__main__":
            child = multiprocessing.get_context("spawn").Process(target=work)
            child.start()
            child.join()
        """
    )
    assert (done.returncode, done.stdout) == (0, "from the child\n")


def test_a_script_that_hangs_is_killed_and_shows_its_output() -> None:
    source = "import time; print('started', flush=True); time.sleep(600)"
    with start_script(source) as script:
        script.wait_for("started")
        with pytest.raises(AssertionError, match=r"did not end in 0\.1 s\.\nstdout: started"):
            script.finish(0.1)
        assert script.process.returncode == -signal.SIGKILL
    with pytest.raises(AssertionError, match=r"did not end in 0\.1 s"):
        run_script(source, timeout=0.1)


def test_signals() -> None:
    source = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *args: sys.exit(143))
        print("ready", flush=True)
        time.sleep(600)
    """
    with start_script(source) as script:
        script.wait_for("ready")
        script.send(signal.SIGTERM)
        assert script.finish().returncode == 143


def test_a_signal_to_the_group_reaches_the_children() -> None:
    source = """
        import signal, subprocess, sys
        child = subprocess.Popen(["sleep", "600"])
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        print("child", child.wait(), flush=True)
    """
    with start_script(source) as script:
        script.wait_for("ready")
        script.send(signal.SIGTERM, group=True)
        assert f"child -{int(signal.SIGTERM)}" in script.finish().stdout


def test_nothing_is_left_running(tmp_path: Path) -> None:
    source = """
        import subprocess, time
        child = subprocess.Popen(["sleep", "600"])
        print(child.pid, "ready", flush=True)
        time.sleep(600)
    """
    with start_script(source) as script:
        script.wait_for("ready")
        child, parent = int(script.stdout.split()[0]), script.process.pid
    for pid in (child, parent):
        end = time.monotonic() + 60
        while _runs(pid):
            assert time.monotonic() < end
            time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be collected does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_waiting_for_what_never_comes() -> None:
    with (
        start_script("print('something else')") as script,
        pytest.raises(AssertionError, match="ended \\(0\\) without 'ready'"),
    ):
        script.wait_for("ready")
    source = "import time; time.sleep(600)"
    with start_script(source) as script, pytest.raises(AssertionError, match=r"did not print 'ready' in 0\.2 s"):
        script.wait_for("ready", timeout=0.2)


def test_the_files_of_a_script_are_gone() -> None:
    done = run_script("print(__file__)")
    assert not os.path.exists(done.stdout.strip())
