"""The picture shows the gradients that there were, of the right steps."""

from __future__ import annotations

import math
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hookline.callbacks import Checkpointer, LambdaCallback, _plots
from hookline.callbacks._plots import MAX_PANELS
from hookline.callbacks.gradients import GradientMonitor, GradientPlot, gradient_plot
from hookline.callbacks.gradients.gradient_plot import BINS, Spread, draw, measure, read
from hookline.errors import ArgumentError, SetupError
from hookline.testing import TinyModel, tiny_data
from tests.support import crash_at, fit


def steps(folder: Path, suffix: str = "png") -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob(f"*.{suffix}"))


class Drawn:
    """Notes what is drawn, and still draws it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spreads: list[dict[str, Spread]] = []

        def noted(spreads: dict[str, Spread], title: str) -> Any:
            self.spreads.append(spreads)
            return draw(spreads, title)

        monkeypatch.setattr(gradient_plot, "draw", noted)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    return Drawn(monkeypatch)


def test_the_gradients_are_those_of_the_step_and_not_what_is_left_after_they_were_cleared(drawn: Drawn) -> None:
    fit(GradientPlot("4st"))
    assert len(drawn.spreads) == 3
    model = TinyModel()
    x, y = tiny_data()[0]
    nn.functional.cross_entropy(model(x), y).backward()
    for layer, spread in drawn.spreads[0].items():
        part = getattr(model, layer)
        values = np.concatenate([part.weight.grad.numpy().ravel(), part.bias.grad.numpy()])
        largest = np.abs(values).max()
        assert spread.largest == pytest.approx(largest, rel=1e-5)
        assert spread.std == pytest.approx(values.std(), rel=1e-4)
        expected, _ = np.histogram(values / largest, bins=BINS, range=(-1, 1))
        assert sum(spread.counts) == values.size
        assert np.abs(np.array(spread.counts) - expected).sum() <= 2  # one may lie on an edge
        assert spread.zeros == pytest.approx((values == 0).mean())


def test_zeros_and_what_is_not_finite_are_counted_and_do_not_hide_the_rest() -> None:
    spread = read(measure([torch.tensor([0.0, 0.0, 1.0, -2.0]), torch.tensor([math.nan, math.inf])]))
    assert (spread.largest, spread.odd, spread.zeros) == (2.0, 2, 0.5)
    assert sum(spread.counts) == 4
    assert spread.std == pytest.approx(np.std([0, 0, 1, -2]))
    nothing = read(measure([torch.full((3,), math.nan)]))
    assert (nothing.largest, nothing.odd, sum(nothing.counts)) == (0.0, 3, 0.0)
    only_zeros = read(measure([torch.zeros(5)]))
    assert (only_zeros.counts[BINS // 2], only_zeros.zeros, only_zeros.std) == (5.0, 1.0, 0.0)
    shown = []
    for found in (spread, nothing, only_zeros):
        figure = draw({"layer": found}, "title")
        figure.savefig("/dev/null", format="png")
        shown.append(figure.axes[0].get_title(loc="right"))
    assert shown == ["std 1.1, 50% zeros, 2 not finite", "std 0, 3 not finite", "std 0, 100% zeros"]


def test_pictures_are_in_the_folder_of_the_run_at_the_first_step_and_at_the_end_of_each_epoch(tmp_path: Path) -> None:
    fit(GradientPlot(), folder=tmp_path / "run")
    folder = tmp_path / "run" / "media" / "gradients" / "distribution"
    assert steps(folder) == [1, 4, 8]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())


def test_it_goes_together_with_the_monitor_and_its_histograms(tmp_path: Path) -> None:
    result = fit(GradientMonitor("1ep", histograms=True), GradientPlot(), folder=tmp_path / "run")
    assert result.failures == ()
    assert steps(tmp_path / "run" / "media" / "gradients" / "distribution") == [1, 4, 8]


def test_other_formats_go_to_a_folder_of_the_users_own(tmp_path: Path) -> None:
    fit(GradientPlot("4st", folder=tmp_path / "own", formats=("pdf", "svg")), max_duration="1ep")
    assert steps(tmp_path / "own", "pdf") == steps(tmp_path / "own", "svg") == [1, 4]
    assert (tmp_path / "own" / "gradients-00000004.pdf").read_bytes().startswith(b"%PDF")


def test_each_layer_has_a_panel_with_its_name(drawn: Drawn) -> None:
    fit(GradientPlot(layers="out"), max_duration="1st")
    assert list(drawn.spreads[0]) == ["out"]
    figure = draw({f"layer.{i}_$x": drawn.spreads[0]["out"] for i in range(MAX_PANELS + 3)}, "title")
    assert len(figure.axes) == MAX_PANELS
    assert figure.axes[1].get_title(loc="left") == "layer.1_$x"
    assert f"{MAX_PANELS} of {MAX_PANELS + 3} layers" in figure.get_suptitle()


def test_after_a_resume_there_are_the_same_pictures(tmp_path: Path) -> None:
    def pictures(folder: Path) -> dict[int, bytes]:
        paths = (folder / "media" / "gradients" / "distribution").iterdir()
        return {int(path.stem.rpartition("-")[2]): path.read_bytes() for path in paths}

    fit(GradientPlot(), folder=tmp_path / "whole", name="p/one")
    whole = pictures(tmp_path / "whole")
    assert sorted(whole) == [1, 4, 8]
    for step in (3, 4, 6):
        folder = tmp_path / str(step)
        with pytest.raises(RuntimeError, match="planted"):
            fit(Checkpointer("1st"), crash_at(step, "train_step_start"), GradientPlot(), folder=folder, name="p/one")
        fit(Checkpointer("1ep"), GradientPlot(), folder=folder, name="p/one", resume="auto")
        assert pictures(folder) == whole, step


def test_a_skipped_step_is_not_drawn(drawn: Drawn, tmp_path: Path) -> None:
    def skip(run: Any) -> None:
        if run.clock.batch == 1:
            run.skip_step()

    class Skip(LambdaCallback):
        after = (GradientPlot,)

    fit(Skip(on_gradients_ready=skip), GradientPlot("100st"), folder=tmp_path / "run")
    assert steps(tmp_path / "run" / "media" / "gradients" / "distribution") == [1]
    assert len(drawn.spreads) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"formats": "jpg"}, r"GradientPlot\(formats="),
        ({"formats": ()}, r"GradientPlot\(formats="),
        ({"layers": False}, "nothing to draw"),
    ],
)
def test_wrong_arguments_are_refused_when_it_is_made(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        GradientPlot(**arguments)


def test_a_folder_that_cannot_be_made_is_an_error_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SetupError, match=r"GradientPlot\(folder=…\): .* is a file"):
        fit(GradientPlot(folder=tmp_path / "file" / "plots"))


def test_a_layer_that_is_not_there_is_an_error_with_the_nearest_names() -> None:
    with pytest.raises(SetupError, match=r"no layer with parameters of the model matches. The nearest names: hidden"):
        fit(GradientPlot(layers="hiden"))


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plots, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"pip install 'hookline\[plots\]'"):
        GradientPlot()


def test_pyplot_is_left_alone(monkeypatch: pytest.MonkeyPatch, drawn: Drawn) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # so that an import of it is an error
    assert gradient_plot.__file__ is not None
    runpy.run_path(gradient_plot.__file__)
    assert fit(GradientPlot(), max_duration="1st").failures == ()
    assert len(drawn.spreads) == 1
