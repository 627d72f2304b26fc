"""The same under torchrun itself: how workers end, and how they are started again."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from tests.distributed.torchrun import Launched


def test_sigterm_to_torchrun_gives_one_checkpoint_and_each_worker_leaves_with_143(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    args = {"place": "on_train_step_end", "action": "wait for SIGTERM", "folder": str(folder)}
    launched = Launched("train", args, tmp_path / "out.txt", "--standalone")
    launched.wait_for(folder / "here")
    launched.process.send_signal(signal.SIGTERM)
    assert launched.finish() == 1
    assert len(list((folder / "checkpoints").glob("step-*"))) == 1, launched.text
    assert launched.text.count("teardown") == 2
    assert launched.text.count("LEAVES WITH 143") == 2, launched.text


def test_sigterm_to_the_workers_is_code_143_for_torchrun(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    args = {"place": "on_train_step_end", "action": "SIGTERM", "folder": str(folder)}
    launched = Launched("train", args, tmp_path / "out.txt", "--standalone")
    assert launched.finish() == 1
    assert launched.exit_codes() == [143, 143], launched.text
    assert len(list((folder / "checkpoints").glob("step-*"))) == 1, launched.text


def test_the_first_and_the_last_that_a_user_sees_of_a_failure_is_what_has_failed(tmp_path: Path) -> None:
    launched = Launched("train", {"place": "on_train_step_end"}, tmp_path / "out.txt", "--standalone")
    assert launched.finish() == 1
    words = "rank 1 failed in Culprit.on_train_step_end at step 2, epoch 0 (train) with Planted: no luck"
    assert words in launched.text.partition("Traceback")[0], launched.text
    cause = launched.text.partition("Root Cause")[2]
    assert f"traceback : {words}" in cause, launched.text
    assert f"rank 0 ends, because {words}" in launched.text.partition("Failures:")[2]
    assert "gloo" not in launched.text


def test_a_worker_that_is_killed_is_started_again_and_the_weights_are_the_same(ranks: Any, tmp_path: Path) -> None:
    args = {"folder": str(tmp_path / "run"), "kills": [[1, "on_backward_end", 5]]}
    launched = Launched("elastic", args, tmp_path / "out.txt", "--standalone", "--max-restarts", "1")
    assert launched.finish() == 0, launched.text
    undisturbed = ranks.values("cases_of_failures.py:train", 2)
    assert [its["weights"] for its in launched.results()] == [its["weights"] for its in undisturbed]
    again = ranks.run("cases_of_failures.py:elastic", 2, **{**args, "kills": []})
    assert [its.code for its in again] == [0, 0], again[0].output
    assert [its.value["weights"] for its in again] == [its["weights"] for its in undisturbed]
    assert "this run is finished" in again[0].output
