"""The data of training over ranks: the same order for any number of them, each sample once, all end together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.loop.data.position import Position
from hookline.loop.data.stripes import Piece, Share, Stripes

CASES = "cases_of_data.py"


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def of_all(found: list[dict[str, Any]], epoch: int = 0) -> list[int]:
    """The samples that all ranks together have trained on in an epoch."""
    return [sample for its in found for sample in flat(its["epochs"].get(str(epoch), []))]


def in_turn(found: list[dict[str, Any]], epoch: int) -> list[list[int]]:
    """The batches of all ranks in the order in which they were dealt out."""
    each = [its["epochs"].get(str(epoch), []) for its in found]
    return [batches[index] for index in range(max(map(len, each))) for batches in each if index < len(batches)]


# -- the arithmetic, without processes ------------------------------------------------------------


def batches_of(samples: int, size: int) -> list[list[int]]:
    return [list(range(first, min(first + size, samples))) for first in range(0, samples, size)]


def deal(batches: list[list[int]], shares: int, start: int, **how: Any) -> list[list[Piece]]:
    def rest() -> Iterator[list[int]]:
        return iter(batches[start:])

    return [list(Stripes(Share(shares, part), **how).deal(rest(), start)) for part in range(shares)]


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 8), st.booleans(), st.booleans())
def test_each_sample_goes_to_one_rank_and_all_ranks_have_as_many_batches(
    samples: int, size: int, shares: int, divisible: bool, splits: bool
) -> None:
    dealt = deal(batches_of(samples, size), shares, 0, divisible=divisible, splits=splits)
    counted = [sample for pieces in dealt for piece in pieces if piece.counts for sample in piece.indices]
    assert sorted(counted) == list(range(samples))
    assert len({len(pieces) for pieces in dealt}) == 1
    for together in zip(*dealt, strict=True):
        assert {piece.known for piece in together} == {sum(p.samples or 0 for p in together if p.counts)}
        assert all(piece.samples == len(piece.indices) > 0 for piece in together)
        assert len({piece.is_last for piece in together}) == 1
    assert [piece.is_last for piece in dealt[0]] == [False] * (len(dealt[0]) - 1) + [True]
    for pieces in dealt:  # who is told that the next one does not count
        assert [piece.then_idle for piece in pieces[:-1]] == [not piece.counts for piece in pieces[1:]] or splits


@given(
    st.integers(1, 150),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=4),
    st.integers(1, 6),
)
@settings(max_examples=300)
def test_an_epoch_that_changes_hands_several_times_gives_each_sample_once(
    samples: int, size: int, hands: list[tuple[int, int]], last: int
) -> None:
    batches, place, seen, done = batches_of(samples, size), Position(), [], 0
    for shares, rounds in [*hands, (last, samples)]:
        length = place.length(len(batches), shares)
        dealt = deal(batches, shares, place.taken_after(done, shares))
        assert {done + len(pieces) for pieces in dealt} == {length}
        for pieces in dealt:
            seen += [sample for piece in pieces[:rounds] if piece.counts for sample in piece.indices]
        done += min(rounds, len(dealt[0]))
        if done == length:
            break
        place = Position(0, done, place.taken_after(done, shares))
    assert sorted(seen) == list(range(samples))


def test_a_whole_batch_is_seeded_by_its_number_alone_and_a_piece_of_a_group_by_its_part() -> None:
    dealt = deal(batches_of(11, 2), 2, 0)
    assert [[(piece.number, piece.piece) for piece in pieces] for pieces in dealt] == [
        [(0, 0), (2, 0), (4, 1)],
        [(1, 0), (3, 0), (4, 2)],
    ]


# -- order and completeness -----------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "size"), [("shuffled", 2), ("last dropped", 3)])
def test_ranks_together_see_the_epochs_of_one_process_in_its_order(ranks: Any, kind: str, size: int) -> None:
    [alone] = ranks.values(f"{CASES}:train", 1, kind=kind)
    found = ranks.values(f"{CASES}:train", size, kind=kind)
    for epoch in ("0", "1"):
        whole = alone["epochs"][epoch]
        given = in_turn(found, int(epoch))
        assert flat(given) == flat(whole)
        full = len(whole) // size * size
        assert given[: full - size] == whole[: full - size]
    assert len({its["batches"] for its in found}) == len({its["sample"] for its in found}) == 1
    assert found[0]["sample"] == alone["sample"]


def test_what_is_drawn_at_random_in_a_batch_does_not_depend_on_the_number_of_ranks(ranks: Any) -> None:
    [alone] = ranks.values(f"{CASES}:train", 1, kind="shuffled", samples=24, duration="1ep")
    found = ranks.values(f"{CASES}:train", 2, kind="shuffled", samples=24, duration="1ep", workers=2)
    assert [its["rows"][index] for index in range(3) for its in found] == alone["rows"]


def test_no_rank_reads_what_is_anothers(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:train", 2, kind="shuffled", duration="1ep")
    for its in found:
        assert its["read"] == sorted(flat(its["epochs"]["0"]))


def test_ranks_without_a_sample_in_the_last_group_do_the_steps_of_the_others_and_count_nothing(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:train", 3, kind="in order", samples=13, batch=4, duration="1ep")
    assert sorted(of_all(found)) == list(range(13))  # 4 + 4 + 4, then 1
    assert [its["idle"] for its in found] == [0, 1, 1]  # rank zero, whose bars and files are seen, has the last sample
    assert {its["batches"] for its in found} == {2}
    assert {its["sample"] for its in found} == {13}


def of_each(ranks: Any, case: str, given: list[dict[str, Any]]) -> list[list[Any]]:
    """For each of the arguments, what two ranks have found."""
    found = ranks.values(f"{CASES}:each", 2, name=case, given=given)
    return [list(both) for both in zip(*found, strict=True)]


def test_each_kind_of_data_gives_each_sample_to_one_rank(ranks: Any) -> None:
    kinds = ["list", "own loader", "stream", "own batches", "single", "stateful", "generator"]
    given = [{"kind": kind, "samples": 22, "duration": "1ep"} for kind in kinds]
    for kind, found in zip(kinds, of_each(ranks, "train", given), strict=True):
        check_once(kind, found)


def check_once(kind: str, found: list[Any]) -> None:
    assert sorted(of_all(found)) == list(range(22)), kind
    assert len({its["batches"] for its in found}) == 1, kind
    assert found[0]["sample"] == (44 if kind == "single" else 22)  # a row of two numbers is counted as two samples


def test_a_window_of_several_batches_ends_with_the_data(ranks: Any) -> None:
    given = [{"kind": kind, "samples": 14, "accumulate": 3} for kind in ("own loader", "list")]
    for found in of_each(ranks, "train", given):
        assert sorted(of_all(found, 1)) == list(range(14))  # 7 batches are 4 rounds: windows of 3 and of 1
        assert [its["step"] for its in found] == [4, 4]


def test_uneven_shards_end_together(ranks: Any) -> None:
    for found in of_each(ranks, "train", [{"kind": kind, "samples": 20} for kind in ("sharded", "sharded, by index")]):
        assert sorted(of_all(found, 1)) == list(range(20))
        assert [its["idle"] for its in found] == [0, 4]  # 14 and 6 samples: 4 and 2 batches in each epoch
        assert [its["step"] for its in found] == [8, 8]


def test_fsdp_gets_the_same_data(ranks: Any) -> None:
    plain = ranks.values(f"{CASES}:train", 2, kind="shuffled", duration="1ep")
    sharded = ranks.values(f"{CASES}:train", 2, kind="shuffled", duration="1ep", strategy="fsdp")
    assert [its["epochs"] for its in sharded] == [its["epochs"] for its in plain]


def test_ranks_of_one_tensor_parallel_group_have_the_same_data(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:train_copies", 2)
    assert found[0] == found[1]
    assert sorted(of_all(found[:1])) == list(range(23))
    assert found[0]["sample"] == 23


# -- what is refused, and respected ---------------------------------------------------------------


def test_a_distributed_sampler_is_respected_in_training(ranks: Any) -> None:
    kinds = ["distributed", "distributed, batched"]
    for kind, found in zip(kinds, of_each(ranks, "train", [{"kind": k, "samples": 24} for k in kinds]), strict=True):
        assert sorted(of_all(found, 0)) == sorted(of_all(found, 1)) == list(range(24))
        assert [its["idle"] for its in found] == [0, 0]
        changes = found[0]["epochs"]["0"] != found[0]["epochs"]["1"]
        assert changes == (kind == "distributed")  # it was told which epoch begins


def test_a_sampler_that_draws_otherwise_on_each_rank_is_an_error_and_not_data_that_is_lost(ranks: Any) -> None:
    told = ranks.run(f"{CASES}:train", 2, kind="by rank")
    assert all(its.code for its in told)
    assert "DataError" in {its.error for its in told}
    assert any("rank 1" in its.text and "generator that is seeded by the rank" in its.text for its in told)


def test_a_stream_that_shards_itself_without_saying_so_is_an_error(ranks: Any) -> None:
    told = ranks.run(f"{CASES}:train", 2, kind="hidden")
    assert all(its.code for its in told)
    assert any(its.error == "DataError" and "sharded = True" in its.text for its in told)


# -- limits, plans, moments -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shuffled", "stream"])
def test_a_limit_is_of_all_ranks_together(ranks: Any, kind: str) -> None:
    [alone] = ranks.values(f"{CASES}:train", 1, kind="shuffled", most=3)
    found = ranks.values(f"{CASES}:train", 2, kind=kind, most=3)
    assert {its["step"] for its in found} == {4}
    for epoch in (0, 1):
        assert len(of_all(found, epoch)) == len(set(of_all(found, epoch))) == 12
        if kind == "shuffled":
            assert sorted(of_all(found, epoch)) == sorted(flat(alone["epochs"][str(epoch)]))


def test_the_same_batch_over_and_over_is_split_over_the_ranks(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:train", 2, kind="shuffled", overfit=True, duration="3ep")
    assert len({tuple(sorted(of_all(found, epoch))) for epoch in range(3)}) == 1
    assert len(of_all(found, 0)) == 4
    assert {its["step"] for its in found} == {3}


def test_a_step_back_does_not_take_back_the_data(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:rolled_back", 2)
    assert sorted(of_all(found)) == list(range(23))


def test_trial_steps_run_on_all_ranks_and_leave_no_trace(ranks: Any) -> None:
    plain = ranks.values(f"{CASES}:train", 2, kind="shuffled", duration="1ep")
    found = ranks.values(f"{CASES}:tried", 2)
    assert [its["epochs"] for its in found] == [its["epochs"] for its in plain]
    assert [its["weights"] for its in found] == [its["weights"] for its in plain]
    assert found[0]["tried"] != found[1]["tried"]


# -- positions ------------------------------------------------------------------------------------


def test_a_second_fit_in_the_process_goes_on_where_the_first_was_left(ranks: Any) -> None:
    kinds = ["shuffled", "list", "own loader", "stateful", "generator"]
    given = [{"kind": kind, "first": "2st", "longer": "1st"} for kind in kinds]
    for kind, found in zip(kinds, of_each(ranks, "second_fit", given), strict=True):
        check_goes_on(kind, found)


def check_goes_on(kind: str, found: list[Any]) -> None:
    samples, seen = 22 if kind != "shuffled" else 23, of_all(found)
    assert [len(its["epochs"]["0"]) for its in found] == [3, 3], kind
    assert len(seen) == len(set(seen)), kind
    assert set(seen) <= set(range(samples)), kind


def resumed(ranks: Any, folder: Path, kind: str, hands: list[tuple[int, str]], **made: Any) -> list[list[Any]]:
    """Fits one after another, each by so many ranks and for so long, on the same folder."""
    return [
        ranks.values(f"{CASES}:train_in", size, folder=str(folder), kind=kind, duration=duration, **made)
        for size, duration in hands
    ]


CHANGES = {
    "2 to 1": [(2, "2st"), (1, "1ep")],
    "1 to 2": [(1, "3st"), (2, "1ep")],
    "2 to 3 to 1": [(2, "1st"), (3, "1st"), (1, "1ep")],
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_epoch_that_goes_on_with_another_number_of_ranks_has_each_sample_once(
    ranks: Any, tmp_path: Path, change: str
) -> None:
    fits = resumed(ranks, tmp_path / "run", "shuffled", CHANGES[change], samples=41)
    seen = [sample for found in fits for sample in of_all(found)]
    assert sorted(seen) == list(range(41))


@pytest.mark.parametrize("kind", ["list", "stream", "stateful"])
def test_data_that_is_read_in_order_goes_on_with_another_number_of_ranks_too(
    ranks: Any, tmp_path: Path, kind: str
) -> None:
    fits = resumed(ranks, tmp_path / "run", kind, [(2, "2st"), (1, "1ep")], samples=40)
    assert sorted(sample for found in fits for sample in of_all(found)) == list(range(40))
    if kind == "stateful":
        assert fits[1][0]["loaded"] == [4]  # by its own state: what two ranks had read ahead was given back


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_with_as_many_ranks_is_bitwise_that_of_a_run_that_was_not_left(
    ranks: Any, tmp_path: Path, workers: int
) -> None:
    whole = resumed(ranks, tmp_path / "whole", "shuffled", [(2, "5st")], workers=workers)[0]
    first, rest = resumed(ranks, tmp_path / "cut", "shuffled", [(2, "2st"), (2, "3st")], workers=workers)
    for rank in (0, 1):
        assert first[rank]["rows"] + rest[rank]["rows"] == whole[rank]["rows"]
        assert rest[rank]["weights"] == whole[rank]["weights"]


def test_a_distributed_sampler_cannot_be_gone_on_with_by_another_number_of_ranks(ranks: Any, tmp_path: Path) -> None:
    resumed(ranks, tmp_path / "run", "distributed", [(2, "2st")], samples=40)
    [told] = ranks.run(
        f"{CASES}:train_in", 1, folder=str(tmp_path / "run"), kind="shuffled", duration="1ep", samples=40
    )
    assert told.error == "DataError"
    assert "gave each of 2 ranks its own share" in told.text


# -- one process, and loops of the user's own -----------------------------------------------------


def test_one_process_under_torchrun_is_a_plain_run(ranks: Any) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    [told] = ranks.run(f"{CASES}:plain", 1, env=env)
    assert told.code == 0, told.output
    assert not told.value["joined"]
    assert sorted(flat(told.value["epochs"]["0"])) == list(range(23))


def test_an_own_loop_gets_its_share_of_training_and_evaluation(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:own_loop", 2)
    for epoch in (0, 1):
        assert sorted(s for its in found for s in flat(its["seen"][3 * epoch : 3 * epoch + 3])) == list(range(23))
    assert {its["step"] for its in found} == {6}
    evaluated = sorted(sample for its in found for sample in flat(its["evaluated"]))
    assert evaluated == sorted([*range(7), *range(7)])  # at the end of each epoch
    assert [its["idle"] for its in found] == [0, 0]  # 7 samples in batches of 2: two batches each
    assert {its["mean"] for its in found} == {3.0}
