"""Evaluation and prediction over ranks: each sample once, nothing padded or dropped, in the loader's order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CASES = "cases_of_data.py"


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


@pytest.mark.parametrize(("samples", "size", "strategy"), [(9, 2, "ddp"), (4, 3, "ddp"), (9, 2, "fsdp")])
def test_each_sample_is_evaluated_once(ranks: Any, samples: int, size: int, strategy: str) -> None:
    found = ranks.values(
        f"{CASES}:evaluate", size, kinds={"a": "in order"}, samples=samples, batch=2, strategy=strategy
    )
    assert sorted(s for its in found for s in flat(its["seen"])) == list(range(samples))
    for rank, its in enumerate(found):
        assert its["seen"] == [list(range(i, min(i + 2, samples))) for i in range(2 * rank, samples, 2 * size)]
        assert its["heard"] == ["fetch", "fetched", "start", "end"] * len(its["seen"])
        assert its["clock"] == [len(its["seen"]), len(flat(its["seen"]))]
        assert its["metrics"]["val/loss"] == pytest.approx((samples - 1) / 2, abs=1e-6)


def of_each(ranks: Any, case: str, given: list[dict[str, Any]]) -> list[list[Any]]:
    """For each of the arguments, what two ranks have found."""
    found = ranks.values(f"{CASES}:each", 2, name=case, given=given)
    return [list(both) for both in zip(*found, strict=True)]


def test_each_kind_of_data_is_evaluated_once(ranks: Any) -> None:
    kinds = ["shuffled", "list", "own loader", "stream", "own batches", "generator", "stateful"]
    given = [{"kinds": {"a": kind}, "samples": 10} for kind in kinds]
    for kind, found in zip(kinds, of_each(ranks, "evaluate", given), strict=True):
        assert sorted(s for its in found for s in flat(its["seen"])) == list(range(10)), kind
        assert {round(its["metrics"]["val/loss"], 6) for its in found} == {4.5}, kind


def test_named_loaders_are_each_evaluated_once(ranks: Any) -> None:
    kinds = {"a": "in order", "b": "shuffled", "c": "list"}
    found = ranks.values(f"{CASES}:evaluate", 2, kinds=kinds, samples=10)
    assert sorted(s for its in found for s in flat(its["seen"])) == sorted([*range(10)] * 3)
    for name in kinds:
        assert {round(its["metrics"][f"val/{name}/loss"], 6) for its in found} == {4.5}


def test_uneven_shards_are_evaluated_to_the_end(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:evaluate", 2, kinds={"a": "sharded"}, samples=20)
    assert sorted(s for its in found for s in flat(its["seen"])) == list(range(20))
    assert [its["heard"].count("start") for its in found] == [4, 2]


def test_no_rank_reads_more_of_anothers_data_than_one_sample(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:evaluate", 2, kinds={"a": "in order"}, samples=9, batch=2)
    for its in found:
        assert len(set(its["read"][0]) - set(flat(its["seen"]))) <= 1


def test_a_limit_is_of_all_ranks_together(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:evaluate", 2, kinds={"a": "in order"}, samples=20, batch=2, most=3)
    assert [its["seen"] for its in found] == [[[0, 1], [4, 5]], [[2, 3]]]


def test_a_distributed_sampler_is_refused_where_it_repeats_samples_and_used_where_it_does_not(ranks: Any) -> None:
    told = ranks.run(f"{CASES}:evaluate", 2, kinds={"a": "distributed"}, samples=9)
    assert [its.error for its in told].count("DataError") >= 1
    assert any("repeats 1 of 9 samples" in its.text for its in told)
    found = ranks.values(f"{CASES}:evaluate", 2, kinds={"a": "distributed"}, samples=12)
    assert sorted(s for its in found for s in flat(its["seen"])) == list(range(12))


def test_the_sanity_check_reads_two_batches_in_all_and_the_evaluation_the_rest(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:sanity", 2)
    assert [its["evaluated"][0] for its in found] == [[0, 1], [2, 3]]
    later = [batch for its in found for batch in its["evaluated"][1:]]
    assert sorted(flat(later)) == list(range(20))


@pytest.mark.parametrize("kind", ["in order", "stream"])
def test_an_evaluation_that_all_ranks_leave_counts_what_was_measured(ranks: Any, kind: str) -> None:
    assert ranks.values(f"{CASES}:left_evaluation", 2, kind=kind) == [{"step": 4, "rows": 8.0}] * 2


# -- predictions ----------------------------------------------------------------------------------


def test_predictions_are_those_of_all_ranks_in_the_loaders_order(ranks: Any) -> None:
    kinds = ["in order", "list", "own loader", "stream"]
    for kind, found in zip(kinds, of_each(ranks, "predict", [{"kind": k, "samples": 10} for k in kinds]), strict=True):
        assert found[0] == found[1], kind
        in_order = sorted(found[0]) if kind == "stream" else found[0]  # whose order is drawn at random
        assert in_order == [10.0 * i for i in range(10)], kind


def test_predictions_and_targets_of_several_loaders_are_in_the_loaders_order(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:predict_pairs", 2, samples=7)
    pair = [[float(i) for i in range(7)], [10.0 * i for i in range(7)]]
    assert found == [{"a": pair, "b": pair}] * 2


def test_predictions_of_fewer_batches_than_ranks_and_of_a_sharded_model(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:predict", 3, kind="in order", samples=7, batch=4, strategy="fsdp")
    assert found == [[10.0 * i for i in range(7)]] * 3


def test_predictions_may_be_dicts_of_tensors_and_texts(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:predict", 2, kind="in order", samples=10, odd=True)
    expected = {"number": [10.0 * i for i in range(10)], "names": [["a"]] * 3}
    assert found == [expected, expected]


def test_predictions_that_cannot_be_sent_are_an_error_that_says_what_to_do(ranks: Any) -> None:
    told = ranks.run(f"{CASES}:predict_objects", 2)
    assert all(its.code for its in told)
    assert any(its.error == "DataError" and "PredictionWriter" in its.text for its in told)


@pytest.mark.parametrize(("kind", "interval"), [("in order", "epoch"), ("in order", "batch"), ("stream", "batch")])
def test_files_of_predictions_are_complete_and_say_where_each_row_belongs(
    ranks: Any, tmp_path: Path, kind: str, interval: str
) -> None:
    found = ranks.values(
        f"{CASES}:write_predictions", 2, folder=str(tmp_path), kind=kind, interval=interval, samples=18
    )
    assert found[0] == found[1]
    assert all("rank0" in name or "rank1" in name for name in found[0])
    rows = sorted(row for file in found[0].values() for row in file)
    assert [index for index, _ in rows] == list(range(18))
    if kind != "stream":
        assert rows == [[i, 10.0 * i] for i in range(18)]


def test_answers_in_the_middle_of_training_are_those_of_all_ranks(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:answers", 2)
    assert found[0] == found[1]
    for predictions, loss in found[0]:
        assert predictions == [10.0 * i for i in range(9)]
        assert loss == pytest.approx(4.0, abs=1e-6)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_prediction_after_the_last_evaluation_causes_no_other(ranks: Any, strategy: str) -> None:
    """Shared batch norm statistics look changed on the ranks that receive them: the others would not evaluate."""
    found = ranks.values(f"{CASES}:predict_then_stop", 2, strategy=strategy)
    assert found == [{"evaluations": 1, "predictions": 64}] * 2
