"""The history: all evaluation and epoch values, the newest step values, by name and by step."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.errors import MetricError
from hookline.records import Kind, MetricRow
from hookline.run import History
from hookline.run.history import STEP_ROWS


def row(name: str, step: int, value: Any = 0.0, kind: Kind = "step") -> MetricRow:
    return MetricRow(name, step, 0, value, kind, 0.0)


def test_a_metric_is_a_list_of_values_and_a_list_of_steps() -> None:
    history = History()
    for step in (10, 20):
        history.record(row("val/loss", step, step / 10, "eval"))
    assert history["val/loss"] == [1.0, 2.0]
    assert history.steps("val/loss") == [10, 20]


def test_ten_thousand_step_values_stay_and_all_evaluation_and_epoch_values_do() -> None:
    assert STEP_ROWS == 10_000
    history = History(step_rows=3)
    for step in range(10):
        history.record(row("train/loss", step, float(step)))
        history.record(row("train/loss_epoch", step, float(step), "epoch"))
        history.record(row("val/loss", step, float(step), "eval"))
    assert history.steps("train/loss") == [7, 8, 9]
    assert history.steps("train/loss_epoch") == history.steps("val/loss") == list(range(10))


@pytest.mark.parametrize("first", ["step", "eval"])
def test_a_metric_that_is_logged_in_training_and_in_evaluation_keeps_all_of_its_evaluations(first: Kind) -> None:
    history = History(step_rows=3)
    history.record(row("score", 0, kind=first))
    for step in range(1, 20):
        history.record(row("score", step, kind="eval" if step % 5 == 0 else "step"))
    evals = [0, 5, 10, 15] if first == "eval" else [5, 10, 15]
    assert history.steps("score") == sorted([*evals, 17, 18, 19])


def test_a_second_value_at_the_same_step_takes_the_place_of_the_first_whatever_its_kind() -> None:
    history = History()
    history.record(row("a", 1, 1.0))
    history.record(row("a", 2, 2.0))
    history.record(row("a", 2, 3.0))
    assert history["a"] == [1.0, 3.0]
    history.record(row("a", 2, 4.0, "eval"))
    assert history["a"] == [1.0, 4.0]
    assert history.steps("a") == [1, 2]


def test_the_rows_of_all_metrics_are_in_the_order_of_their_steps() -> None:
    history = History()
    for name, step in (("a", 1), ("a", 3), ("b", 2), ("b", 3)):
        history.record(row(name, step))
    assert [(r.name, r.step) for r in history.rows()] == [("a", 1), ("b", 2), ("a", 3), ("b", 3)]


def test_an_unknown_name_is_a_key_error_with_the_right_name_and_all_names() -> None:
    history = History()
    history.record(row("val/loss", 1))
    history.record(row("train/acc", 1))
    for read in (history.__getitem__, history.steps):
        with pytest.raises(KeyError) as caught:
            read("val/los")
        assert isinstance(caught.value, MetricError)
        assert str(caught.value) == "no metric 'val/los'; did you mean 'val/loss'? there is train/acc, val/loss"
    with pytest.raises(KeyError) as caught:
        History()["x"]
    assert str(caught.value) == "no metric 'x'; there is none yet"


def test_it_is_a_mapping_like_any_other() -> None:
    history = History()
    history.record(row("a", 1, 1.0))
    history.record(row("b", 1, 2.0))
    assert list(history) == ["a", "b"]
    assert len(history) == 2
    assert "a" in history
    assert "c" not in history
    assert history.get("c") is None
    assert dict(history) == {"a": [1.0], "b": [2.0]}
    assert repr(history) == "History({'a': 1, 'b': 1})"


def test_what_is_read_is_the_readers_own() -> None:
    history = History()
    history.record(row("a", 1, 1.0))
    history["a"].append(5.0)
    history.steps("a").append(5)
    history.rows().clear()
    assert history["a"] == [1.0]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda h: pickle.loads(pickle.dumps(h))])
def test_a_copy_goes_on_by_itself(duplicate: Any) -> None:
    history = History(step_rows=2)
    history.record(row("a", 1, 1.0))
    copied = duplicate(history)
    for step in (2, 3):
        copied.record(row("a", step, float(step)))
    assert copied.steps("a") == [2, 3]
    assert history.steps("a") == [1]


ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(["step", "epoch", "eval"])), max_size=60
)


@given(moves=ROWS, limit=st.integers(1, 5))
def test_it_is_what_a_plain_list_would_keep(moves: list[tuple[str, int, Kind]], limit: int) -> None:
    history, model, step = History(limit), {"a": [], "b": []}, 0
    for value, (name, more, kind) in enumerate(moves):
        step += more
        history.record(row(name, step, float(value), kind))
        rows = [r for r in model[name] if r[0] != step] + [(step, float(value), kind)]
        steps = [r for r in rows if r[2] == "step"]
        model[name] = [r for r in rows if r[2] != "step" or r in steps[-limit:]]
    for name, rows in model.items():
        if rows or name in history:
            assert history[name] == [value for _, value, _ in rows]
            assert history.steps(name) == [at for at, _, _ in rows]
