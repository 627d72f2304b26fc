"""Trouble on one rank, at every hook and scope, on two and four ranks; and workers that are killed again and again.

All of it with ``HOOKLINE_CHAOS=1``; what is in the suite is in ``tests/distributed``. Where trouble is tried, and the
few places where it cannot come, are in ``tests/distributed/places.py``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hookline.events.spec import BY_NAME, EVENTS, SCOPES
from tests.distributed.places import (
    AFTER_TRAINING,
    BEFORE_STEPS,
    ENDS_ALREADY,
    LONG_LIMIT,
    NOT_TRIED,
    ONE_PER_SCOPE,
    PREDICTS,
    SAVES,
    places,
)
from tests.distributed.torchrun import Launched
from tests.support.rank_server import Told

pytestmark = pytest.mark.skipif(not os.environ.get("HOOKLINE_CHAOS"), reason="long: make chaos")

FILE = "cases_of_places.py"
LIMIT = 60.0
HUNG = 75
SIZES = pytest.mark.parametrize("size", [2, 4])
STRATEGIES = pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
AT_ONCE = 4
"""Runs at the same time that mostly wait."""
AFTER_ALL = ("on_exception", "on_teardown")
"""What comes when nothing more is agreed on: each rank ends by itself."""


def ends(
    ranks: Any, size: int, trouble: str, folder: Path, where: list[str], **options: Any
) -> list[tuple[str, list[dict[str, Any]]]]:
    """For each place, one after another in one group of processes: how all ranks have ended."""
    args = {"places": where, "action": trouble, "folder": str(folder), **options}
    found = ranks.values(f"{FILE}:each", size, limit=4 * LIMIT, **args)
    for place in where:
        assert all(its[place]["came"] for its in found), f"{place} has not come"
    return [(place, [its[place] for its in found]) for place in where]


def for_strategy(trouble: str, strategy: str) -> list[str]:
    """All places; one in each scope where the model is sharded, which takes longer."""
    tried = places(trouble) if strategy == "ddp" else list(ONE_PER_SCOPE.values())
    return [place for place in tried if place != "on_exception"]


def test_every_hook_and_scope_is_tried_with_every_trouble_or_is_named_with_a_reason() -> None:
    known = {event.hook for event in EVENTS} | {f"{part}{scope.hook}" for scope in SCOPES for part in ("", "after ")}
    for trouble, reasons in NOT_TRIED.items():
        assert {*places(trouble), *reasons} == known, trouble
    assert {scope: BY_NAME[place[3:]].scope for scope, place in ONE_PER_SCOPE.items()} == {
        scope.name: scope.name for scope in SCOPES
    }


# -- an error --------------------------------------------------------------------------------------


@SIZES
@pytest.mark.parametrize("place", [place for place in places("raise") if place not in AFTER_ALL])
def test_an_error_at_any_place_ends_all_ranks(ranks: Any, tmp_path: Path, place: str, size: int) -> None:
    who = size - 1
    for its in ranks.run(f"{FILE}:at", size, limit=LIMIT, place=place, folder=str(tmp_path)):
        assert its.code == 1, its.output
        assert its.error == ("Planted" if its.rank == who else "RankError"), its.output
        assert its.rank == who or f"because rank {who} failed in Culprit.{place.removeprefix('after ')}" in its.text
        assert its.output.count("teardown") == 1, its.output


@SIZES
def test_an_error_in_what_follows_an_error_hides_it_on_no_rank(ranks: Any, tmp_path: Path, size: int) -> None:
    for its in ranks.run(f"{FILE}:at", size, limit=LIMIT, place="on_exception", folder=str(tmp_path)):
        assert (its.code, its.error) == (1, "RankError" if its.rank else "ValueError"), its.output
        assert "first" in its.text
        assert ("no luck" in its.text) == (its.rank == size - 1), its.text
        assert its.output.count("teardown") == 1, its.output


@SIZES
def test_an_error_in_teardown_holds_no_other_rank_up(ranks: Any, tmp_path: Path, size: int) -> None:
    *others, last = ranks.run(f"{FILE}:at", size, limit=LIMIT, place="on_teardown", folder=str(tmp_path))
    assert (last.code, last.error) == (1, "Planted"), last.output
    for its in others:
        assert its.code == 0, its.output
        assert its.value["epoch"] == 2


# -- a rank that sleeps ----------------------------------------------------------------------------


def with_sleep(ranks: Any, place: str, folder: Path) -> list[list[Told]]:
    """On two ranks and on four, beside one another: most of the time they sleep."""
    # Where the short limit holds, the long one is never waited for.
    limits = {"hang_after": "2s", "timeout": "4s" if place in LONG_LIMIT else "5m"}
    args = {"place": place, "action": "sleep", "limits": limits}
    started = [ranks.start(f"{FILE}:at", size, folder=str(folder / str(size)), **args) for size in (2, 4)]
    found = [its.finish(LIMIT) for its in started]
    for told in found:
        assert told[-1].code == HUNG, told[-1].output
    return found


@pytest.mark.parametrize("place", [place for place in places("sleep") if place != "on_exception"])
def test_a_rank_that_sleeps_at_any_place_is_found(ranks: Any, tmp_path: Path, place: str) -> None:
    for *others, last in with_sleep(ranks, place, tmp_path):
        assert f"rank {last.rank} has made no progress for" in last.output
        for its in others:
            assert (its.code, its.error) == (1, "RankError"), its.output
            assert f"rank {last.rank} has made no progress for" in its.text


def test_a_rank_that_sleeps_in_what_follows_an_error_is_ended(ranks: Any, tmp_path: Path) -> None:
    for *others, last in with_sleep(ranks, "on_exception", tmp_path):
        assert f"rank {last.rank} has not ended 4 s after an error" in last.output
        for its in others:
            assert (its.code, its.error) == (1, "RankError" if its.rank else "ValueError"), its.output


# -- a rank that asks to stop ----------------------------------------------------------------------


@SIZES
@STRATEGIES
def test_a_stop_at_any_place_stops_all_ranks_at_the_same_step(
    ranks: Any, tmp_path: Path, strategy: str, size: int
) -> None:
    where = for_strategy("stop", strategy)
    for place, its in ends(ranks, size, "stop", tmp_path, where, strategy=strategy):
        assert all(other == its[0] for other in its), place
        if place in PREDICTS:
            assert its[0]["count"] == 29, f"{place}: a prediction is whole, there is no training to stop"
        elif place in AFTER_TRAINING | ENDS_ALREADY:
            assert its[0]["reason"] != "enough", place
            assert its[0]["epoch"] == 2 or place in ENDS_ALREADY, place
        else:
            assert its[0]["reason"] == "enough", place
            assert place not in BEFORE_STEPS or its[0]["step"] == (2 if place in SAVES else 0), place


# -- a signal --------------------------------------------------------------------------------------


@SIZES
@STRATEGIES
def test_sigterm_at_any_place_gives_one_checkpoint_and_one_code(
    ranks: Any, tmp_path: Path, strategy: str, size: int
) -> None:
    where = [place for place in places("SIGTERM") if place not in AFTER_ALL]
    for place, its in ends(ranks, size, "SIGTERM", tmp_path, where, saves=True, strategy=strategy):
        assert all(other == its[0] for other in its), place
        assert its[0]["code"] == 143, place
        if place in PREDICTS:
            continue
        kept = sorted(path.name for path in (tmp_path / place / "checkpoints").glob("step-*"))
        assert its[0]["checkpoint"] in kept, place
        assert its[0]["checkpoint"].startswith(f"step-{its[0]['step']:08d}"), place
        assert len(kept) == 1 or place in SAVES, place


@SIZES
@pytest.mark.parametrize("action", ["stop", "SIGTERM"])
def test_what_is_asked_for_in_what_follows_an_error_changes_nothing_about_it(
    ranks: Any, tmp_path: Path, action: str, size: int
) -> None:
    for its in ranks.run(f"{FILE}:at", size, limit=LIMIT, place="on_exception", action=action, folder=str(tmp_path)):
        assert (its.code, its.error) == (1, "RankError" if its.rank else "ValueError"), its.output


@SIZES
def test_sigterm_in_teardown_gives_one_code(ranks: Any, tmp_path: Path, size: int) -> None:
    [(_, its)] = ends(ranks, size, "SIGTERM", tmp_path, ["on_teardown"], saves=True)
    assert all(other == its[0] for other in its)
    assert (its[0]["code"], its[0]["epoch"]) == (143, 2)


# -- a rank that leaves its custom loop, and one that has no more data -----------------------------


@SIZES
@STRATEGIES
def test_a_custom_loop_that_one_rank_leaves_after_any_place_ends_on_all_with_an_error(
    ranks: Any, tmp_path: Path, strategy: str, size: int
) -> None:
    where = for_strategy("break", strategy)
    too_late = [place for place in where if place in AFTER_TRAINING | ENDS_ALREADY]
    for place, its in ends(ranks, size, "break", tmp_path, too_late, shape="own loop", strategy=strategy):
        assert all(other == its[0] for other in its), place
        assert its[0]["reason"] != "break", place
    left = [place for place in where if place not in too_late]
    given = {"action": "break", "shape": "own loop", "strategy": strategy}
    for some in (left[first : first + AT_ONCE] for first in range(0, len(left), AT_ONCE)):
        started = [
            ranks.start(f"{FILE}:at", size, place=place, folder=str(tmp_path / place), **given) for place in some
        ]
        for place, its in (
            (place, told) for place, run in zip(some, started, strict=True) for told in run.finish(LIMIT)
        ):
            assert (its.code, its.error) == (1, "RankError"), f"{place}\n{its.output}"
            assert f"rank {size - 1} left the body of its loop" in its.text, place
            assert its.output.count("teardown") == 1, f"{place}\n{its.output}"


def test_what_is_not_tried_in_a_custom_loop_does_not_come_there(ranks: Any, tmp_path: Path) -> None:
    where = [place for place in NOT_TRIED["break"] if place != "on_exception"]
    found = ranks.values(f"{FILE}:each", 2, places=where, action="break", shape="own loop", folder=str(tmp_path))
    assert not any(found[1][place]["came"] for place in where)


@SIZES
@STRATEGIES
def test_ranks_end_together_where_the_data_of_one_ends_after_any_place(
    ranks: Any, tmp_path: Path, strategy: str, size: int
) -> None:
    where = for_strategy("out of data", strategy)
    for place, its in ends(ranks, size, "out of data", tmp_path, where, shape="shard", strategy=strategy):
        read = [other.pop("read", None) for other in its]
        assert all(other == its[0] for other in its), place
        if place in AFTER_TRAINING | ENDS_ALREADY | {"on_predict_end", "after around_predict"}:
            assert all(other == read[0] for other in read), place  # nothing was left to read
        elif place in PREDICTS:
            assert its[0]["count"] == 24 * size - 12, place
        else:
            assert its[0]["epoch"] == 2, place
            assert read[-1][0] < read[0][0], place  # in training
            assert read[-1][1] < read[0][1], place  # and in evaluations


# -- workers that are killed, or hang, and are started again ---------------------------------------


@STRATEGIES
def test_workers_that_are_killed_five_times_end_with_the_same_weights(
    ranks: Any, tmp_path: Path, strategy: str
) -> None:
    kills = [
        (1, "on_backward_end", 3),
        (0, "save", 4),
        (1, "on_checkpoint_save", 4),
        (0, "eval_batch", 6),
        (1, "on_optimizer_step_end", 9),
    ]
    args = {"folder": str(tmp_path / "run"), "kills": kills, "strategy": strategy}
    launched = Launched("elastic", args, tmp_path / "out.txt", "--standalone", "--max-restarts", "5")
    assert launched.finish(600) == 0, launched.text
    assert launched.text.count("exitcode: -9") == 5, launched.text
    undisturbed = ranks.values("cases_of_failures.py:train", 2, strategy=strategy)
    assert [its["weights"] for its in launched.results()] == [its["weights"] for its in undisturbed]


def test_a_rank_that_hangs_is_started_again(ranks: Any, tmp_path: Path) -> None:
    args = {
        "folder": str(tmp_path / "run"),
        "kills": [(1, "on_train_step_end", 5)],
        "action": "sleep",
        "limits": {"hang_after": "3s", "timeout": "5m"},
    }
    launched = Launched("elastic", args, tmp_path / "out.txt", "--standalone", "--max-restarts", "1")
    assert launched.finish(300) == 0, launched.text
    assert "rank 1 has made no progress for 3 s" in launched.text
    undisturbed = ranks.values("cases_of_failures.py:train", 2)
    assert [its["weights"] for its in launched.results()] == [its["weights"] for its in undisturbed]
