"""Exactly what differs is listed: nothing that is the same, and nothing is left out."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.records import MetricRow, to_json
from hookline.records.redact import HIDDEN
from hookline.records.run_file import CallbackEntry, RunFile
from hookline.report.compare import ABSENT, Difference, differing_metrics, differing_settings
from hookline.report.read import RunData, read_run
from hookline.report.rows import Rows
from hookline.report.series import Series

FILE = RunFile("project", "run", "id", "2030-01-01T00:00:00+00:00", seed=0)


def run(config: dict[str, Any] | None = None, metrics: dict[str, float] | None = None, **changes: Any) -> RunData:
    series = {name: Series(name, "eval") for name in metrics or {}}
    for name, value in (metrics or {}).items():
        series[name].add(1, 1, 0.0, 99.0)
        series[name].add(2, 1, 0.0, value)
    return RunData(Path("run"), replace(FILE, config=config or {}, **changes), series=series)


def settings_that_differ(*runs: RunData) -> dict[str, tuple[Any, ...]]:
    return {f"{row.group}.{row.name}": row.values for row in differing_settings(runs).rows}


def metrics_that_differ(*runs: RunData) -> dict[str, tuple[Any, ...]]:
    return {row.name: row.values for row in differing_metrics(runs).rows}


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
CONFIG = st.dictionaries(st.sampled_from("abcdef"), PLAIN, max_size=6)


@settings(deadline=None)
@given(first=CONFIG, second=CONFIG)
def test_a_setting_is_listed_if_and_only_if_it_differs(first: dict[str, Any], second: dict[str, Any]) -> None:
    def key(config: dict[str, Any], name: str) -> Any:
        value = config.get(name, "absent")
        return repr(float(value) + 0.0 if isinstance(value, int | float) and not isinstance(value, bool) else value)

    found = settings_that_differ(run(first), run(second))
    exact = {
        name
        for name in {*first, *second}
        if key(first, name) != key(second, name) or (name in first) != (name in second)
    }
    big = {
        n for n in {*first, *second} if any(isinstance(c.get(n), int) and abs(c[n]) > 2**53 for c in (first, second))
    }
    assert {name.removeprefix("config.") for name in found} - big == exact - big


def test_what_one_run_has_and_the_other_has_not_differs_also_from_none() -> None:
    assert settings_that_differ(run({"a": None}), run({})) == {"config.a": (None, ABSENT)}


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (0, False), (1, "1"), (None, "None"), ([1, 2], [2, 1]), (0.1, 0.1 + 1e-17 + 1e-16)]
)
def test_values_that_only_look_alike_differ_and_look_different(one: Any, other: Any) -> None:
    (row,) = differing_settings([run({"a": one}), run({"a": other})]).rows
    assert len(set(row.texts)) == 2


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (math.nan, math.nan), ([1], [1]), ({"b": 1}, {"b": 1.0})])
def test_values_that_are_the_same_are_not_listed(one: Any, other: Any) -> None:
    found = differing_settings([run({"a": one}), run({"a": other})])
    assert found.rows == ()
    assert found.same > 0


def test_nested_settings_differ_by_the_one_that_does() -> None:
    found = settings_that_differ(run({"model": {"width": 64, "depth": 3}}), run({"model": {"width": 64, "depth": 4}}))
    assert found == {"config.model.depth": (3, 4)}


def test_every_part_of_what_was_run_is_compared_and_what_names_it_is_not() -> None:
    other = run(
        name="other",
        project="another",
        run_id="id2",
        started="2031-01-01T00:00:00+00:00",
        seed=1,
        settings={"precision": "bf16"},
        arguments=("train.py", "--fast"),
        callbacks=(CallbackEntry("EMA", "decay=0.9", False),),
        model={"parameters": 5},
        versions={"torch": "2.13.0"},
        platform={"gpu": "A100"},
        git={"commit": "abc"},
    )
    assert set(settings_that_differ(run(), other)) == {
        "trainer.seed",
        "trainer.precision",
        "command.arguments",
        "callbacks.EMA",
        "callbacks.order",
        "model.parameters",
        "versions.torch",
        "machine.gpu",
        "git.commit",
    }


def test_the_order_of_callbacks_is_a_setting_and_two_of_a_kind_are_told_apart() -> None:
    first, second = CallbackEntry("EMA", "decay=0.9", False), CallbackEntry("EMA", "decay=0.99", False)
    clip = CallbackEntry("Clip", "", False)
    found = settings_that_differ(run(callbacks=(first, second, clip)), run(callbacks=(first, clip)))
    assert found == {
        "callbacks.EMA (2)": ("EMA(decay=0.99)", ABSENT),
        "callbacks.order": ("EMA → EMA → Clip", "EMA → Clip"),
    }
    moved = settings_that_differ(run(callbacks=(first, clip)), run(callbacks=(clip, first)))
    assert moved == {"callbacks.order": ("EMA → Clip", "Clip → EMA")}


def test_a_third_run_that_differs_is_seen() -> None:
    assert settings_that_differ(run({"a": 1}), run({"a": 1}), run({"a": 2})) == {"config.a": (1, 1, 2)}


def test_final_metrics_are_the_last_values_evaluations_first() -> None:
    one = run(metrics={"train/loss": 0.1, "val/loss": 0.2, "val/acc": 0.9, "test/acc": 0.8, "lr/x": 1.0})
    two = run(metrics={"train/loss": 0.3, "val/loss": 0.2, "val/acc": math.nan, "lr/x": 2.0})
    found = metrics_that_differ(one, two)
    assert list(found) == ["test/acc", "val/acc", "train/loss", "lr/x"]
    assert found["test/acc"] == (0.8, ABSENT)
    assert found["train/loss"] == (0.1, 0.3)


def test_nan_in_both_runs_is_no_difference() -> None:
    assert metrics_that_differ(run(metrics={"val/loss": math.nan}), run(metrics={"val/loss": math.nan})) == {}


def test_small_arrays_are_compared_by_all_their_numbers() -> None:
    def with_array(value: list[Any]) -> RunData:
        rows = Rows()
        rows._take_metric(vars_of(MetricRow("val/confusion", 1, 0, value, "eval", 0.0)))
        return RunData(Path("run"), FILE, arrays=rows.arrays)

    same = with_array([[1.0, math.nan], [2.0, 3.0]])
    assert metrics_that_differ(same, with_array([[1.0, math.nan], [2.0, 3.0]])) == {}
    (row,) = differing_metrics([same, with_array([[1.0, math.nan], [2.0, 4.0]])]).rows
    assert row.name == "val/confusion"
    assert row.texts == ("array of 2x2", "array of 2x2, 1 of 4 numbers differ")


def vars_of(row: MetricRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}


def test_numbers_are_short_unless_that_would_hide_the_difference() -> None:
    assert Difference("", "a", (0.1234567890, 0.5)).texts == ("0.123457", "0.5")
    assert Difference("", "a", (0.12345678, 0.12345679)).texts == ("0.12345678", "0.12345679")
    assert Difference("", "a", ([[1.0], [2.0]], ABSENT)).texts == ("array of 2x1", "—")


def test_runs_without_a_run_file_are_compared_by_their_metrics(samples: ModuleType, tmp_path: Path) -> None:
    folders = [samples.make_run(tmp_path / name, rows=60, seed=seed) for seed, name in enumerate(("a", "b"))]
    for folder in folders:
        (folder / "run.json").unlink()
    runs = [read_run(folder) for folder in folders]
    assert differing_settings(runs).rows == ()
    assert {row.name for row in differing_metrics(runs).rows} >= {"val/loss", "train/loss_epoch"}


def over_epochs(folder: Path, interval: float, epoch: float | None) -> RunData:
    rows = [MetricRow("train/loss", 9, 1, interval, "step", 1.0)]
    rows += [] if epoch is None else [MetricRow("train/loss_epoch", 9, 1, epoch, "epoch", 1.0)]
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    return read_run(folder)


def test_what_all_runs_know_over_epochs_is_compared_by_that_and_not_by_a_few_batches(tmp_path: Path) -> None:
    whole = [over_epochs(tmp_path / "a", 0.1, 0.5), over_epochs(tmp_path / "b", 0.9, 0.4)]
    assert [(row.name, row.values) for row in differing_metrics(whole).rows] == [("train/loss_epoch", (0.5, 0.4))]
    half = [whole[0], over_epochs(tmp_path / "c", 0.9, None)]
    assert [(row.name, row.texts) for row in differing_metrics(half).rows] == [
        ("train/loss", ("0.1", "0.9")),
        ("train/loss_epoch", ("0.5", "—")),
    ]


def test_what_is_hidden_in_all_runs_is_not_said_to_be_the_same(samples: ModuleType, tmp_path: Path) -> None:
    runs = [read_run(samples.make_run(tmp_path / name, 60, config={"api_key": HIDDEN})) for name in ("one", "two")]
    plain = [read_run(samples.make_run(tmp_path / name, 60)) for name in ("three", "four")]
    found, without = differing_settings(runs), differing_settings(plain)
    assert (found.hidden, without.hidden) == (1, 0)
    assert found.same == without.same
