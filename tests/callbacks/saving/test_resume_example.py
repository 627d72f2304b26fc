"""The example that can be killed and run again does what it says."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from hookline.testing import run_script, start_script

EXAMPLE = (Path(__file__).parents[3] / "examples" / "07_resume.py").read_text()
SOURCE = EXAMPLE.replace('"20ep"', '"6ep"').replace('every="5ep"', 'every="1ep"')  # shorter, and it says more
WAITING = SOURCE.replace("import tempfile", "import tempfile\nimport time").replace(
    "flush=True)",
    """flush=True)
    while str(run.clock.epoch) in sys.argv[2:] and run.loop.requests.preempt is None:
        time.sleep(0.01)""",
)
"""It stays in an epoch until it is killed or told to leave: else it may be over first."""


def weights(output: str) -> str:
    found = re.search(r"^weights: (\S+)$", output, re.MULTILINE)
    assert found, output
    return found[1]


def test_the_example_ends_with_the_same_weights_after_it_was_killed_and_told_to_leave(tmp_path: Path) -> None:
    whole = run_script(SOURCE, args=[tmp_path / "whole"])
    assert whole.returncode == 0, whole.stderr
    folder = tmp_path / "run"
    with start_script(WAITING, args=[folder, 2]) as script:
        script.wait_for("epoch 2:")
        script.send(signal.SIGKILL)
        assert script.finish().returncode == -signal.SIGKILL
    with start_script(WAITING, args=[folder, 4]) as script:
        script.wait_for("going on from step-")
        script.wait_for("epoch 4:")
        script.send(signal.SIGTERM)
        assert script.finish().returncode == 143
    done = run_script(SOURCE, args=[folder])
    assert done.returncode == 0, done.stderr
    assert "going on from step-" in done.stdout
    assert weights(done.stdout) == weights(whole.stdout)
    assert "max_duration (6ep) reached after 270 steps" in done.stdout
