"""Processes join, work, and leave: one run after another, in a group of their own or in one that was there."""

from __future__ import annotations

from typing import Any

from hookline.distributed import this_process

FILE = "cases_of_failures.py"


def test_a_script_may_fit_twice_make_two_trainers_evaluate_and_predict(ranks: Any) -> None:
    zero, one = ranks.values(f"{FILE}:several_runs", 2)
    assert zero == one
    assert zero["steps"] == [4, 8, 8]
    assert zero["predicted"] == 32
    assert zero["group"], "the group is left at the end of the process, not before: weights may still be sharded"


def test_a_process_group_that_was_there_is_used_and_left_alone(ranks: Any) -> None:
    assert ranks.values(f"{FILE}:with_own_group", 2) == [{"error": "", "same": True}] * 2


def test_an_error_in_a_process_group_that_was_there_ends_all_ranks(ranks: Any) -> None:
    zero, one = ranks.run(f"{FILE}:with_own_group", 2, fail=True)
    assert one.value == {"error": "Planted", "same": True}
    # Its connections are not ours to cut: those that the other waits on are the run's own.
    assert zero.value == {"error": "RankError", "same": True}, zero.output


def test_what_all_ranks_log_is_said_once_or_twice_and_what_one_logs_has_its_mark(ranks: Any) -> None:
    found = ranks.values(f"{FILE}:speak", 4)
    assert found[0] == ["the disk is slow", "the disk is slow", "rank 0 is special"]
    others = [line for lines in found[1:] for line in lines]
    assert sum("the disk is slow" in line for line in others) <= 2
    assert [f"[rank{rank}] rank {rank} is special" for rank in (1, 2, 3)] == [
        line for line in others if "special" in line
    ]


def test_an_environment_that_is_wrong_is_refused_in_words(ranks: Any) -> None:
    bad = ranks.run(f"{FILE}:train", 1, env={"RANK": "5", "WORLD_SIZE": "2"})[0]
    assert bad.error == "SetupError"
    assert "RANK=5 with WORLD_SIZE=2" in bad.text
    alone = ranks.run(f"{FILE}:train", 1, env={"RANK": "0", "WORLD_SIZE": "2"})[0]
    assert alone.error == "SetupError", alone.output
    assert "start the script with torchrun" in alone.text


def test_one_process_under_torchruns_variables_is_a_plain_run(ranks: Any) -> None:
    zero = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
    one = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE")
    env = {**dict.fromkeys(zero, "0"), **dict.fromkeys(one, "1"), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    env |= {"ROLE_NAME": "default", "TORCHELASTIC_RUN_ID": "none"}
    assert ranks.values(f"{FILE}:train", 1) == ranks.values(f"{FILE}:train", 1, env=env)


def test_slurm_says_which_process_of_its_machine_this_is_where_torchrun_does_not() -> None:
    world = {"RANK": "5", "WORLD_SIZE": "8"}
    assert this_process({**world, "SLURM_LOCALID": "1"}).local_rank == 1
    assert this_process({**world, "LOCAL_RANK": "0", "SLURM_LOCALID": "1"}).local_rank == 0
    assert this_process({"LOCAL_RANK": "3", "SLURM_LOCALID": "3"}).local_rank == 0  # one process has all of it


def test_a_process_that_is_given_one_device_alone_takes_that_one() -> None:
    """``srun --gpus-per-task=1``: each task sees one device, the first, whatever its number on the machine."""
    place = this_process({"RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "3"})
    assert (place.device_of(4), place.device_of(1)) == (3, 0)


def test_tasks_of_slurm_that_do_not_know_of_one_another_are_told(ranks: Any) -> None:
    slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
    alone = ranks.run(f"{FILE}:train", 1, env=slurm)[0]
    assert "Slurm has started 2 tasks" in alone.output
    assert "each of them trains alone" in alone.output
    together = ranks.run(f"{FILE}:train", 2, env=slurm)
    assert [its.code for its in (alone, *together)] == [0, 0, 0]
    grouped = ranks.run(f"{FILE}:with_own_group", 2, env=slurm, forget=True)
    assert [its.value for its in grouped] == [{"error": "", "same": True}] * 2
    assert not any("Slurm" in its.output for its in (*together, *grouped))
