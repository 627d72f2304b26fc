"""A ``folder`` that cannot be written to is known before the first step, and not after the hours that it is about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.callbacks import GradientPlot, MemorySnapshot, OOMReport, TorchProfiler
from hookline.errors import SetupError
from hookline.loop import Trainer
from hookline.testing import Recorder, TinyModel, tiny_data
from tests.support import CE, fit

KINDS = [TorchProfiler, MemorySnapshot, OOMReport, GradientPlot]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_in_the_way_stops_the_run_before_its_first_step(tmp_path: Path, kind: Callable[..., Any]) -> None:
    (tmp_path / "file").write_text("no folder")
    recorder = Recorder(only="train_step_start")
    with pytest.raises(
        SetupError, match=rf"{kind.__name__}\(folder=…\): '.*file' is a file, so nothing can be written"
    ):
        fit(kind(folder=tmp_path / "file" / "below"), recorder)
    assert recorder.names == []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no /proc here")
@pytest.mark.parametrize("kind", KINDS)
def test_what_not_even_root_can_write_stops_it_too(kind: Callable[..., Any]) -> None:
    with pytest.raises(SetupError, match=rf"{kind.__name__}\(folder=…\): '/proc' cannot be written to \("):
        fit(kind(folder="/proc/nope"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_is_to_be_made_is_no_error(tmp_path: Path, kind: Callable[..., Any]) -> None:
    assert fit(kind(folder=tmp_path / "new" / "deep")).clock.step == 8
    assert [path for path in tmp_path.iterdir() if path.name != "new"] == []  # nothing is left of the check


@pytest.mark.parametrize("kind", [TorchProfiler, MemorySnapshot, OOMReport])
def test_an_evaluation_on_its_own_knows_it_before_its_first_batch(tmp_path: Path, kind: Callable[..., Any]) -> None:
    (tmp_path / "file").write_text("no folder")
    made = Trainer(callbacks=[kind(folder=tmp_path / "file")], folder=False)
    with pytest.raises(SetupError, match="is a file"):
        made.evaluate(TinyModel(), tiny_data(), loss=CE)
