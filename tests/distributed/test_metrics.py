"""Metrics over ranks: one value for all, by name, whatever each rank logs; and rank zero alone writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import json_lines

CASES = "cases_of_metrics.py"


def close(found: Any) -> Any:
    """Equal to a row's steps, and close to its values."""
    return [found[0], [pytest.approx(value, rel=1e-6) for value in found[1]]]


def test_each_kind_of_metric_is_reduced_over_ranks(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:every_kind", 2)
    assert found[0] == found[1]
    rows, steps = found[0]["rows"], [2, 4, 6]
    # Rank 0 logs the step with weight 1, rank 1 the step + 1 with weight 3: of steps 1 and 2, (1.5 + 3 * 2.5) / 4.
    assert rows["x/mean"] == [steps, [2.25, 4.25, 6.25]]
    assert rows["x/sum"] == [steps, [22.0, 22.0, 22.0]]
    assert rows["x/last"] == [steps, [4.5, 8.5, 12.5]]
    assert rows["x/max"] == [steps, [2.0, 4.0, 6.0]]
    assert rows["x/min"] == [steps, [0.0, 2.0, 4.0]]
    assert rows["x/array"] == [steps, [[[6.0, 6.0], [6.0, 6.0]]] * 3]
    assert rows["x/largest"] == [
        steps,
        [[[2.0, 1.0], [-1.0, 0.0]], [[4.0, 1.0], [-3.0, 0.0]], [[6.0, 1.0], [-5.0, 0.0]]],
    ]
    assert rows["x/of_zero"] == [steps, [1.5, 3.5, 5.5]]
    assert rows["x/late"] == [[6], [5.5]]
    assert rows["x/own_step"] == [[3, 4], [5.0, 5.0]]
    assert rows["x/nan"] == [steps, [1.0, "nan", 1.0]]
    assert rows["x/nan_max"] == [steps, [-1.0, "nan", -1.0]]
    assert rows["x/inf"] == [steps, [1.0, "inf", 1.0]]
    assert rows["x/nothing"] == [steps, ["nan"] * 3]
    assert rows["x/no_weight"] == [steps, [2.0] * 3]


def test_what_a_callback_of_rank_zero_logs_is_known_on_all_ranks(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:rank_zero_logs", 2)
    expected = {
        "x/all": [[2, 4], [0.5, 0.5]],
        "x/end": [[4], [7.0]],
        "x/ready": [[2, 4], [2.0, 4.0]],
        "x/step": [[2, 4], [1.5, 3.5]],
    }
    assert found == [expected, expected]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("reduce", ("a number with reduce='mean' on rank 0", "a number with reduce='sum' on rank 1")),
        (
            "shape",
            ("a number with reduce='mean' on rank 0", "an array of the shape (2, 2) with reduce='mean' on rank 1"),
        ),
        ("object", ("a number with reduce='mean' on rank 0", "a metric object on rank 1")),
    ],
)
def test_one_name_for_two_kinds_is_an_error_that_names_the_ranks(ranks: Any, kind: str, words: tuple[str, ...]) -> None:
    for told in ranks.run(f"{CASES}:conflict", 2, kind=kind):
        assert told.error == "MetricError", told.output
        assert all(part in told.text for part in ("x/a: it is", *words)), told.text


def test_no_row_is_made_of_an_interval_in_which_a_rank_has_failed(ranks: Any, tmp_path: Path) -> None:
    told = ranks.run(f"{CASES}:broken_interval", 2, folder=str(tmp_path))
    assert [its.error for its in told] == ["RankError", "ValueError"], told[0].output + told[1].output
    assert (tmp_path / "history-0.txt").read_text() == "[2]"


def test_callbacks_read_the_values_of_all_ranks_when_an_evaluation_ends(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:evaluation", 2)
    assert found[0] == found[1]
    rows, seen = found[0]["rows"], found[0]["seen"]
    assert seen["at the end of a"] == rows["val/a/loss"][1][-1]
    assert seen["at the end of b"] == rows["val/b/loss"][1][-1]
    assert seen["at the end"] == [rows["val/a/loss"][1][-1], 0.5]
    assert rows["val/gap"][1][-1] == rows["val/a/loss"][1][-1] - rows["val/b/loss"][1][-1]
    assert rows["val/by_rank"][1] == [1.0]


def test_an_evaluation_that_one_rank_leaves_is_left_by_all(ranks: Any) -> None:
    found = ranks.values(f"{CASES}:left_evaluation", 2)
    assert found[0] == found[1]
    assert found[0] == {"rows": {}, "ended": [], "step": 2, "reason": "enough"}


def test_the_metrics_callback_gives_the_values_of_one_process_on_all_the_data(ranks: Any) -> None:
    (expected,) = ranks.values(f"{CASES}:metrics_callback", 1)
    assert set(expected) == {"val/loss", "val/f1", "val/acc"}
    for found in ranks.values(f"{CASES}:metrics_callback", 2):
        assert found == pytest.approx(expected, rel=1e-6)


def test_metric_objects_are_those_of_one_process_on_all_the_data(ranks: Any) -> None:
    (expected,) = ranks.values(f"{CASES}:objects", 1)
    found = ranks.values(f"{CASES}:objects", 2)
    assert found[0] == found[1]
    assert set(found[0]) == set(expected)
    assert {"train/only_zero_epoch", "train/mean_epoch", "val/acc", "val/recall", "val/only_zero"} <= set(expected)
    for name, its in expected.items():
        assert found[0][name] == close(its), name


def test_an_object_that_cannot_be_merged_is_put_together_by_torchmetrics(ranks: Any) -> None:
    (expected,) = ranks.values(f"{CASES}:objects", 1, whole=True)
    found = ranks.values(f"{CASES}:objects", 2, whole=True)
    assert found[0] == found[1]
    assert found[0]["train/pearson_epoch"] == close(expected["train/pearson_epoch"])
    assert found[0]["val/pearson"] == close(expected["val/pearson"])


def test_an_object_that_cannot_be_merged_needs_an_update_on_each_rank(ranks: Any) -> None:
    for told in ranks.run(f"{CASES}:objects", 2, whole=True, lacking=True):
        assert told.error == "MetricError", told.output
        assert "1 of 2 ranks" in told.text


@pytest.mark.parametrize("monitored", [False, True])
def test_an_interval_sends_the_votes_and_one_packed_sum(either_ranks: Any, monitored: bool) -> None:
    for its in either_ranks.values(f"{CASES}:collectives", 2, monitored=monitored):
        first, *later = its["per_interval"]
        assert len(later) == 4
        assert first["all_gather"] > 0  # names are agreed on once
        # What a monitor logs when metrics are ready is one sum more; its names, too, are agreed on once.
        for interval in later[1:]:
            assert interval["all_reduce"] == (2 if monitored else 1)
            assert interval["all_gather"] == interval["broadcast"] == 0
            assert 1 <= interval["vote"] <= 5


def test_only_rank_zero_writes_and_shows(ranks: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    told = ranks.run(f"{CASES}:writes", 2, folder=str(folder))
    assert [its.code for its in told] == [0, 0], told[0].output + told[1].output
    assert told[0].value == told[1].value
    assert told[0].value["failures"] == []
    assert {"speed/samples_per_second", "memory/process", "lr/SGD"} <= set(told[1].value["metrics"])
    assert told[1].output == ""
    assert "val/loss" in told[0].output
    rows = json_lines(folder / "metrics.jsonl")
    named = [(row.get("name"), row.get("step"), row.get("kind")) for row in rows if "name" in row]
    assert len(named) == len(set(named))
    assert [row["text"] for row in rows if row.get("name") == "x/text"] == ["rank 0"]
    assert len(list((folder / "media/x/picture").iterdir())) == 1
    assert {path.name for path in folder.iterdir()} >= {
        "metrics.jsonl",
        "events.jsonl",
        "run.json",
        "log.txt",
        "report.html",
    }
    assert not list(tmp_path.glob("run-*"))


def test_norms_of_sharded_weights_are_logged_whole(ranks: Any) -> None:
    (expected,) = ranks.values(f"{CASES}:sharded", 1)
    found = ranks.values(f"{CASES}:sharded", 2)
    assert found[0] == found[1]
    assert found[0]["failures"] == []
    assert found[0]["activations"] == expected["activations"]
    assert set(found[0]["values"]) == set(expected["values"])
    for name, value in expected["values"].items():
        assert found[0]["values"][name] == pytest.approx(value, rel=1e-4), name


def test_the_largest_activation_is_that_of_all_ranks(ranks: Any) -> None:
    (expected,) = ranks.values(f"{CASES}:largest_activations", 1)
    assert (len(expected["max"]), expected["failures"]) == (2, [])
    for found in ranks.values(f"{CASES}:largest_activations", 2):
        assert found["max"] == pytest.approx(expected["max"], rel=1e-6)
