"""A signal to any rank, at any moment: all ranks leave at the same step, with one checkpoint."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

FILE = "cases_of_failures.py"
LIMIT = 200.0
PLACES = (
    "on_setup",
    "on_fit_start",
    "on_sanity_check_end",
    "data",
    "on_batch_fetch_end",
    "on_forward_end",
    "on_backward_end",
    "on_optimizer_step_start",
    "on_train_step_end",
    "on_metrics_ready",
    "eval_batch",
    "on_eval_end",
    "on_epoch_end",
    "on_step_settled",
    "on_checkpoint_save",
    "on_checkpoint_saved",
)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_sigterm_to_one_rank_gives_one_checkpoint_of_the_same_step_on_all(
    ranks: Any, tmp_path: Path, strategy: str
) -> None:
    places = list(PLACES if strategy == "ddp" else PLACES[6:12:2])
    zero, one = ranks.values(
        f"{FILE}:preempted", 2, places=places, folder=str(tmp_path), strategy=strategy, limit=LIMIT
    )
    for place, its, other in zip(places, zero, one, strict=True):
        assert its == other, place
        assert its["code"] == 143, place
        assert 0 <= its["step"] < 12, place
        last = f"step-{its['step']:08d}"
        assert its["checkpoint"] == last, place
        assert checkpoints(tmp_path / place)[-1] == last, place
        if "checkpoint" not in place:  # else others are saved on the way
            assert checkpoints(tmp_path / place) == [last], place


@pytest.mark.parametrize("to_all", [False, True])
def test_the_exit_code_of_each_worker_says_which_signal_it_was(ranks: Any, tmp_path: Path, to_all: bool) -> None:
    (tmp_path / "run").mkdir()
    started = ranks.start(f"{FILE}:train", 2, place="on_train_step_end", action="wait", folder=str(tmp_path / "run"))
    started.wait_for(tmp_path / "run" / "here")
    started.send(signal.SIGTERM, None if to_all else 0)
    (tmp_path / "run" / "sent").touch()
    told = started.finish(LIMIT)
    assert [its.code for its in told] == [143, 143], "\n".join(its.output for its in told)
    assert len(checkpoints(tmp_path / "run")) == 1


@pytest.mark.parametrize("to_all", [False, True])
def test_ctrl_c_is_a_vote_to_stop_and_all_results_are_marked(ranks: Any, tmp_path: Path, to_all: bool) -> None:
    started = ranks.start(f"{FILE}:train", 2, place="on_train_step_end", action="wait", folder=str(tmp_path))
    started.wait_for(tmp_path / "here")
    started.send(signal.SIGINT, None if to_all else 1)
    (tmp_path / "sent").touch()
    zero, one = started.finish(LIMIT)
    assert (zero.code, one.code) == (0, 0), zero.output + one.output
    assert zero.value == one.value
    assert zero.value["interrupted"]
    assert zero.value["step"] < 12


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_to_one_rank_raises_on_all_ranks_if_asked_to(ranks: Any, tmp_path: Path, rank: int) -> None:
    told = ranks.run(
        f"{FILE}:train", 2, place="on_train_step_end", action="SIGINT", who=rank, folder=str(tmp_path),
        interrupt="raise", limit=LIMIT,
    )  # fmt: skip
    assert [its.error for its in told] == ["KeyboardInterrupt"] * 2, told[0].output + told[1].output


def test_a_signal_that_torchrun_hands_on_as_well_counts_once(ranks: Any, tmp_path: Path) -> None:
    places = ["on_train_step_end"]
    found = ranks.values(f"{FILE}:preempted", 2, places=places, folder=str(tmp_path), times=2, limit=LIMIT)
    assert [its[0]["checkpoint"] for its in found] == [f"step-{found[0][0]['step']:08d}"] * 2


@pytest.mark.parametrize("hook", ["on_train_step_end", "on_eval_batch_start"])
def test_a_second_sigterm_leaves_at_once_and_the_others_do_not_wait(ranks: Any, tmp_path: Path, hook: str) -> None:
    zero, one = ranks.run(f"{FILE}:twice", 2, folder=str(tmp_path), hook=hook, limit=LIMIT)
    assert one.code == 143, one.output
    assert (zero.code, zero.error) == (1, "RankError"), zero.output
    assert "rank 1" in zero.text
    assert "Preempted" in zero.text


def test_a_second_sigterm_to_rank_zero_is_said_in_one_line(ranks: Any, tmp_path: Path) -> None:
    zero, one = ranks.run(f"{FILE}:twice", 2, folder=str(tmp_path), rank=0, limit=LIMIT)
    assert (zero.code, one.error) == (143, "RankError"), zero.output + one.output
    assert zero.output.count("SIGTERM: nothing was saved; the run exits with code 143") == 1


def test_a_finished_run_is_said_to_be_finished_once(ranks: Any, tmp_path: Path) -> None:
    told = ranks.run(f"{FILE}:again", 2, folder=str(tmp_path), limit=LIMIT)
    assert [its.value for its in told] == [2, 2], told[0].output
    assert ["this run is finished" in its.output for its in told] == [True, False]


@pytest.mark.parametrize("own_loop", [False, True])
def test_a_stop_on_one_rank_stops_all_at_the_same_step(ranks: Any, own_loop: bool) -> None:
    places = ["body"] if own_loop else ["on_train_start", "on_epoch_end", "on_backward_end", "eval_batch", "data"]
    zero, one = ranks.values(f"{FILE}:stopped", 2, places=places, own_loop=own_loop, limit=LIMIT)
    assert zero == one
    for its in zero:
        assert its["reason"] == "enough"
        assert 0 <= its["step"] < 12
