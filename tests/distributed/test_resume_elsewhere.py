"""A checkpoint of some processes, gone on with by another number of them, or with another strategy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

TRAIN = "cases_of_checkpoints.py:train"
PEEK = "cases_of_checkpoints.py:peek"
CALLBACKS = ["ema", "best", "stop"]
LONG = pytest.mark.skipif("HOOKLINE_CHAOS" not in os.environ, reason="long: make chaos")
CHANGES = [
    ("ddp", 2, "fsdp", 2),
    ("fsdp", 2, "ddp", 2),
    ("fsdp", 2, "fsdp", 4),
    ("fsdp", 2, "auto", 1),
    ("ddp", 2, "ddp", 4),
    pytest.param("ddp", 2, "auto", 1, marks=LONG),
    pytest.param("fsdp", 4, "fsdp", 2, marks=LONG),
    pytest.param("fsdp", 4, "hsdp", 4, marks=LONG),
    pytest.param("hsdp", 4, "ddp", 2, marks=LONG),
    pytest.param("tp", 4, "auto", 1, marks=LONG),
    pytest.param("fsdp", 2, "tp", 4, marks=LONG),
]


def preempted(ranks: Any, folder: Path, size: int, **args: Any) -> dict[str, Any]:
    """What a run has saved that rank 1's signal has ended in the middle of the first epoch."""
    told = ranks.run(TRAIN, size, folder=str(folder), trouble="preempt", at=1, **args)
    assert [(its.code, its.error) for its in told] == [(143, "Preempted")] * size, told
    (found,) = ranks.values(PEEK, 1, folder=str(folder))
    return dict(found)


@pytest.mark.parametrize(("before", "from_size", "after", "to_size"), CHANGES)
def test_weights_optimizer_schedulers_and_callbacks_are_as_they_were_saved(
    ranks: Any, tmp_path: Path, before: str, from_size: int, after: str, to_size: int
) -> None:
    args: dict[str, Any] = {"every": "4st", "with_callbacks": CALLBACKS, "batch": 3, "samples": 48}
    if "tp" in (before, after):
        args["dropout"] = 0.0  # ranks that share a layer would draw different masks
    saved = preempted(ranks, tmp_path, from_size, strategy=before, **args)
    args["duration"] = "1ep"
    found = ranks.values(TRAIN, to_size, folder=str(tmp_path), strategy=after, resume="auto", **args)
    for its in found:
        loaded = its["loaded"]
        assert [loaded[key] for key in ("weights", "optimizer", "schedulers")] == [
            saved[key] for key in ("weights", "optimizer", "schedulers")
        ]
        assert {name: loaded[name] for name in ("EMA", "SaveBest", "EarlyStopping")} == {
            name: saved["callbacks"][name] for name in ("EMA", "SaveBest", "EarlyStopping")
        }
        assert its["sample"] == 48, "the rest of the epoch, each sample once"
    # The change of the number of processes is meant, and no cause for a warning.
    assert [its["warned"] for its in found] == [[]] * to_size
    assert len({its["ends"]["weights"] for its in found}) == 1


@pytest.mark.parametrize(
    "chain",
    [
        [("ddp", 2), ("ddp", 4)],
        [("fsdp", 2), ("fsdp", 4)],
        [("fsdp", 4), ("auto", 1)],
        [("auto", 1), ("ddp", 4), ("fsdp", 2)],
    ],
    ids=lambda chain: " to ".join(f"{size} {strategy}" for strategy, size in chain),
)
def test_no_sample_is_repeated_or_lost_when_others_go_on(
    ranks: Any, tmp_path: Path, chain: list[tuple[str, int]]
) -> None:
    """By what is in them: a count would not see that one is repeated and another lost."""
    samples, found = 41, []
    for place, (strategy, size) in enumerate(chain):
        cut = None if place == len(chain) - 1 else 2 * place + 1
        args: dict[str, Any] = {"folder": str(tmp_path), "strategy": strategy, "samples": samples, "cut": cut}
        its = [sample for rank in ranks.values("cases_of_checkpoints.py:seen", size, **args) for sample in rank]
        assert 0 < len(its) < samples, "a part of the epoch"
        found += its
    assert sorted(found) == list(range(samples))


@pytest.mark.parametrize(("after", "to_size"), [("ddp", 2), ("fsdp", 2)])
def test_a_checkpoint_of_one_process_is_gone_on_with_by_two(
    ranks: Any, tmp_path: Path, after: str, to_size: int
) -> None:
    args: dict[str, Any] = {"folder": str(tmp_path), "every": "4st", "with_callbacks": CALLBACKS}
    (one,) = ranks.values(TRAIN, 1, duration="4st", **args)
    found = ranks.values(TRAIN, to_size, strategy=after, resume="auto", duration="1ep", **args)
    keys = ("weights", "optimizer", "schedulers", "EMA", "SaveBest")
    for its in found:
        assert {key: its["loaded"][key] for key in keys} == {key: one["ends"][key] for key in keys}


@pytest.mark.parametrize("skip", [[], ["optimizer"]])
@pytest.mark.parametrize("after", ["ddp", "fsdp"])
def test_ranks_continue_from_an_address_also_without_the_optimizer(
    ranks: Any, tmp_path: Path, after: str, skip: list[str]
) -> None:
    args: dict[str, Any] = {"every": "4st", "with_callbacks": CALLBACKS}
    saved = preempted(ranks, tmp_path / "one", 1, **args)
    args |= {"resume": f"local://{tmp_path}/one", "skip": skip, "duration": "1ep"}
    found = ranks.values(TRAIN, 2, strategy=after, folder=str(tmp_path / "two"), **args)
    for its in found:
        assert its["loaded"]["weights"] == saved["weights"]
        assert its["loaded"]["EMA"] == saved["callbacks"]["EMA"]
        assert (its["loaded"]["optimizer"] == saved["optimizer"]) is not bool(skip)
    assert len({its["ends"]["weights"] for its in found}) == 1
    assert not list((tmp_path / "two").glob(".*"))


def test_another_number_of_processes_is_said_and_not_the_threads_that_come_with_it(ranks: Any, tmp_path: Path) -> None:
    """Torchrun gives each process one thread: to name that would hide what has changed."""
    resume = "cases_of_checkpoints.py:resume_with_threads"
    told = ranks.run(TRAIN, 2, folder=str(tmp_path), trouble="preempt", at=1, every="4st")
    assert ["SIGTERM: saved " in its.output for its in told] == [True, False], "rank zero speaks for all"
    (one,) = ranks.run(resume, 1, folder=str(tmp_path), threads=2)
    assert one.value == []
    assert "saved by 2 processes, resumed by one process: weights, optimizers" in one.output
    assert "resumed from " in one.output
    assert "threads" not in one.output


def test_ranks_that_were_not_there_before_draw_numbers_of_their_own(ranks: Any, tmp_path: Path) -> None:
    preempted(ranks, tmp_path, 2, every="4st")
    found = ranks.values("cases_of_checkpoints.py:dropped", 4, folder=str(tmp_path))
    assert len({str(its) for its in found}) == 4
    again = ranks.values("cases_of_checkpoints.py:dropped", 4, folder=str(tmp_path))
    assert again == found


def test_each_rank_reads_only_the_parts_that_it_needs(ranks: Any, tmp_path: Path) -> None:
    preempted(ranks, tmp_path, 2, strategy="fsdp")
    for its in ranks.values("cases_of_checkpoints.py:read_parts", 2, folder=str(tmp_path)):
        assert 0 < its["read"] < 0.7 * its["all"]
