"""The picture shows what was measured, and drawing it changes nothing else."""

from __future__ import annotations

import importlib
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import hookline as hl
from hookline.callbacks import evaluation
from hookline.callbacks._plots import save_figure
from hookline.callbacks.evaluation import history_plot
from hookline.callbacks.evaluation.history_plot import Curve, HistoryPlot, draw, panels
from hookline.errors import ArgumentError, SetupError
from hookline.records import MetricRow
from hookline.run import History
from hookline.testing import tiny_data
from tests.support import fit, json_lines

fit_with_val = partial(fit, train=tiny_data(4), val=tiny_data(2), max_duration="3ep", log_every="2st")


def history(**values: list[Any]) -> History:
    found = History()
    for name, its in values.items():
        for step, value in enumerate(its, start=1):
            found.record(MetricRow(name.replace("__", "/"), step, 1, value, "eval", 0.0))
    return found


def lines(figure: Any, panel: int = 0) -> dict[str, list[float]]:
    """What is drawn, by the label in the legend."""
    return {str(line.get_label()): list(line.get_ydata()) for line in figure.axes[panel].get_lines()}


class Drawings:
    """Notes what it draws at which steps, and gives a small empty figure instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.titles: list[str] = []
        self.panels: list[Any] = []

        def note(found: Any, title: str, **more: Any) -> Any:
            self.titles.append(title)
            self.panels.append(found)
            return Figure(figsize=(1, 1))

        monkeypatch.setattr(history_plot, "draw", note)

    @property
    def steps(self) -> list[int]:
        return [int(title.rpartition(" ")[2]) for title in self.titles]


@pytest.fixture
def drawings(monkeypatch: pytest.MonkeyPatch) -> Drawings:
    return Drawings(monkeypatch)


# -- files ---------------------------------------------------------------------------------------


def test_a_run_has_its_picture_in_each_format_and_logs_it_once(tmp_path: Path) -> None:
    fit_with_val(HistoryPlot(formats=("png", "pdf", "svg"), log=True), folder=tmp_path)
    plots = tmp_path / "plots"
    assert sorted(path.name for path in plots.iterdir()) == ["history.pdf", "history.png", "history.svg"]
    assert (plots / "history.png").read_bytes().startswith(b"\x89PNG")
    assert (plots / "history.pdf").read_bytes().startswith(b"%PDF")
    assert b"<svg" in (plots / "history.svg").read_bytes()
    rows = json_lines(tmp_path / "metrics.jsonl")
    (image,) = (row for row in rows if row["kind"] == "image")
    assert (image["name"], image["step"]) == ("plots/history", 12)
    assert (tmp_path / image["file"]).read_bytes().startswith(b"\x89PNG")


def test_chosen_metrics_have_a_file_of_their_own(tmp_path: Path) -> None:
    fit_with_val(HistoryPlot("loss"), HistoryPlot(["val/*", "train/loss"]), HistoryPlot(), folder=tmp_path)
    names = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert names == ["history.png", "loss.png", "val-train-loss.png"]


def test_another_folder_can_be_named(tmp_path: Path) -> None:
    fit_with_val(HistoryPlot(folder=tmp_path / "a" / "b"))
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["history.png"]


def test_a_run_without_a_folder_gives_the_figure_to_its_sinks() -> None:
    class Names:
        def __init__(self) -> None:
            self.found: list[str] = []

        def start(self, info: Any) -> None: ...
        def write(self, records: Any) -> None:
            self.found += [record.name for record in records if hasattr(record, "png")]

        def flush(self) -> None: ...
        def close(self) -> None: ...

    sink = Names()
    assert not fit_with_val(HistoryPlot(log=True), sinks=[sink]).failures
    assert sink.found == ["plots/history"]


def test_no_figure_is_logged_if_it_is_not_wanted(tmp_path: Path) -> None:
    fit_with_val(HistoryPlot(), folder=tmp_path)
    assert '"image"' not in (tmp_path / "metrics.jsonl").read_text()
    assert (tmp_path / "plots" / "history.png").exists()


# -- when ----------------------------------------------------------------------------------------


def test_it_is_drawn_when_it_is_due_and_at_the_end(tmp_path: Path, drawings: Drawings) -> None:
    fit_with_val(HistoryPlot(every="4st"), max_duration="10st", folder=tmp_path)
    assert drawings.steps == [4, 8, 10]


def test_it_is_drawn_at_the_ends_of_epochs(tmp_path: Path, drawings: Drawings) -> None:
    fit_with_val(HistoryPlot(every="2ep"), max_duration="5ep", folder=tmp_path)
    assert drawings.steps == [8, 16, 20]


def test_a_share_of_the_run_is_an_interval_too(tmp_path: Path, drawings: Drawings) -> None:
    fit_with_val(HistoryPlot(every="0.5dur"), max_duration="8st", folder=tmp_path)
    assert drawings.steps == [4, 8, 8]


def test_short_epochs_are_not_all_drawn_but_the_last_state_is(
    tmp_path: Path, drawings: Drawings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_plot, "SHARE", 1e-9)
    fit_with_val(HistoryPlot(), max_duration="5ep", folder=tmp_path)
    assert drawings.steps == [4, 20]


def test_after_a_resume_the_whole_run_is_drawn(tmp_path: Path, drawings: Drawings) -> None:
    options: Any = {"max_duration": "2ep", "folder": tmp_path}
    fit_with_val(hl.Checkpointer(every="1ep"), **options)
    fit_with_val(hl.Checkpointer(every="1ep"), HistoryPlot(), resume="auto", extend="1ep", **options)
    steps = {curve.label: curve.steps for curve in drawings.panels[-1]["loss"]}
    assert steps["val"] == [4, 8, 12]


# -- what ----------------------------------------------------------------------------------------


def test_training_and_evaluation_are_in_one_panel() -> None:
    found = history(
        train__loss=[3.0, 2.0],
        train__loss_epoch=[2.5],
        val__loss=[2.2],
        test__loss=[2.1],
        val__acc=[0.5],
        lr__AdamW=[0.1, 0.1],
        memory__peak=[7.0],
    )
    shown = panels(found, ())
    assert {title: [curve.label for curve in its] for title, its in shown.items()} == {
        "loss": ["train", "train", "val", "test"],
        "acc": ["val"],
        "lr": ["AdamW"],
    }
    assert [curve.is_fine for curve in shown["loss"]] == [True, False, False, False]
    figure = draw(shown, "a run", log_y=False)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["loss", "acc", "lr"]
    assert lines(figure) == {"_": [3.0, 2.0], "train 2.5": [2.5], "val 2.2": [2.2], "test 2.1": [2.1]}
    colors = [line.get_color() for line in figure.axes[0].get_lines()]
    assert colors[0] == colors[1]
    assert len(set(colors)) == 3


def test_several_loaders_have_a_curve_each() -> None:
    figure = draw(panels(history(val__clean__f1=[0.5, 0.6], val__noisy__f1=[0.3, 0.2]), ()), "a run", log_y=False)
    assert lines(figure) == {"val/clean 0.6": [0.5, 0.6], "val/noisy 0.2": [0.3, 0.2]}
    first, second = (line.get_color() for line in figure.axes[0].get_lines())
    assert first != second


@pytest.mark.parametrize(
    ("metrics", "titles"),
    [
        ((), ["loss", "acc"]),
        (("val/loss",), ["loss"]),
        (("acc",), ["acc"]),
        (("memory/*",), ["memory"]),
        (("time", "loss"), ["loss", "time"]),
        (("nothing",), []),
    ],
)
def test_metrics_are_chosen_by_name_quantity_or_pattern(metrics: tuple[str, ...], titles: list[str]) -> None:
    found = history(
        train__loss=[1.0], val__loss=[1.0], val__acc=[1.0], memory__peak=[1.0], memory__now=[1.0], time=[1.0]
    )
    assert list(panels(found, metrics)) == titles


def test_an_array_is_left_out() -> None:
    assert list(panels(history(val__confusion=[[[1.0, 2.0]]], val__acc=[0.5]), ())) == ["acc"]


def test_what_is_not_finite_is_marked_and_leaves_a_gap() -> None:
    figure = draw(panels(history(val__loss=[1.0, math.nan, 3.0, math.inf, -math.inf, 2.0]), ()), "a run", log_y=False)
    drawn = lines(figure)
    assert [value for value in drawn["val 2"] if not math.isnan(value)] == [1.0, 3.0, 2.0]
    marks = figure.axes[0].get_lines()[1]
    assert list(marks.get_xdata()) == [2, 4, 5]
    bottom, top = figure.axes[0].get_ylim()
    assert bottom > 0.5
    assert top < 3.5


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [math.nan],
        [math.nan, math.nan],
        [1e308, -1e308],
        [5e-324, 1e-300],
        [0.0, 0.0],
        [math.inf, 1.0],
        [1 / (1 + step) for step in range(10_000)],
    ],
    ids=["one", "nan", "nans", "huge", "tiny", "constant", "inf", "many"],
)
@pytest.mark.parametrize("log_y", [False, True])
def test_odd_curves_can_be_drawn(tmp_path: Path, values: list[float], log_y: bool) -> None:
    figure = draw(panels(history(val__loss=values), ()), "a run", log_y=log_y)
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_one_value_is_a_dot_and_not_an_empty_picture() -> None:
    figure = draw(panels(history(val__loss=[1.0]), ()), "a run", log_y=False)
    assert figure.axes[0].get_lines()[0].get_marker() == "o"


@pytest.mark.parametrize(("values", "scale"), [([1.0, 0.1], "log"), ([1.0, 0.0], "linear"), ([1.0, -1.0], "linear")])
def test_the_scale_is_logarithmic_where_it_can_be(values: list[float], scale: str) -> None:
    figure = draw(panels(history(val__loss=values), ()), "a run", log_y=True)
    assert figure.axes[0].get_yscale() == scale


@pytest.mark.parametrize("name", ["_private", "$x_", "$\\frac{", "精度", "a\nb", "%s{}", "x" * 300])
def test_any_name_can_be_drawn(tmp_path: Path, name: str) -> None:
    curve = Curve(name, "", [1, 2], [1.0, 2.0])
    save_figure(draw({name: [curve]}, f"{name}/{name}", log_y=False), tmp_path / "history.png")
    assert (tmp_path / "history.png").stat().st_size > 1000


def test_very_many_metrics_do_not_make_a_picture_without_end() -> None:
    found = history(**{f"val__metric{number}": [1.0] for number in range(60)})
    figure = draw(panels(found, ()), "a run", log_y=False)
    assert len(figure.axes) == history_plot.MAX_PANELS
    assert "24 of 60 metrics" in figure.get_suptitle()


# -- what it leaves alone ------------------------------------------------------------------------


def test_pyplot_is_neither_imported_nor_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import of it would fail
    monkeypatch.delattr("matplotlib.pyplot", raising=False)
    monkeypatch.delitem(sys.modules, history_plot.__name__)  # imported once more, and afterwards the old one is back
    monkeypatch.setattr(evaluation, "history_plot", history_plot)
    fresh = importlib.import_module(history_plot.__name__)
    assert fresh.HistoryPlot is not HistoryPlot
    assert not fit_with_val(fresh.HistoryPlot(), folder=tmp_path).failures
    assert (tmp_path / "plots" / "history.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "plots").write_text("in the way")
    result = fit_with_val(HistoryPlot(), folder=tmp_path)
    assert result.clock.step == 12
    assert [failure.callback for failure in result.failures] == ["HistoryPlot"]


def test_a_format_that_is_not_known_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"HistoryPlot\(formats="):
        HistoryPlot(formats="bmp")


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SetupError, match=r"pip install 'hookline\[plots\]'"):
        HistoryPlot()
