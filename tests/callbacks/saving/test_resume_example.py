"""The example that can be killed and run again does what it says."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from hookline.testing import run_script, start_script

ROOT = Path(__file__).parents[3]
EXAMPLE = (ROOT / "examples" / "07_resume.py").read_text()
SOURCE = EXAMPLE.replace('"20ep"', '"4ep"').replace('every="5ep"', 'every="1ep"')  # shorter, and it says more
WAITING = SOURCE.replace(
    "import tempfile", "import tempfile\nimport time\nfrom tests.support import signal_arrived"
).replace(
    "flush=True)",
    """flush=True)
    while str(run.clock.epoch) in sys.argv[2:] and not signal_arrived(run):
        time.sleep(0.01)""",
)
"""It stays in an epoch until it is killed or told to leave: else it may be over first."""
TWICE = """
import runpy, sys
script, *folders = sys.argv[1:]
for folder in folders:
    sys.argv[1:] = [folder]
    runpy.run_path(script)
"""
"""The example in one folder after the other, in one process."""


def test_the_example_ends_with_the_same_weights_after_it_was_killed_and_told_to_leave(tmp_path: Path) -> None:
    folder, env = tmp_path / "run", {"PYTHONPATH": str(ROOT)}
    with start_script(WAITING, args=[folder, 2], env=env) as script:
        script.wait_for("epoch 2:")
        script.send(signal.SIGKILL)
        assert script.finish().returncode == -signal.SIGKILL
    with start_script(WAITING, args=[folder, 3], env=env) as script:
        script.wait_for("going on from step-")
        script.wait_for("epoch 3:")
        script.send(signal.SIGTERM)
        assert script.finish().returncode == 143
    (tmp_path / "example.py").write_text(SOURCE)
    done = run_script(TWICE, args=[tmp_path / "example.py", folder, tmp_path / "whole"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("going on from step-") == 1
    assert done.stdout.count("max_duration (4ep) reached after 180 steps") == 2
    resumed, whole = re.findall(r"^weights: (\S+)$", done.stdout, re.MULTILINE)
    assert resumed == whole
