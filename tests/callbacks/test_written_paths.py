"""Every path that a user gives for writing: a remote address is refused, a relative path is in the run's folder."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit

Make = Callable[[Any], Any]

CALLBACKS: dict[str, Make] = {
    "Checkpointer.folder": lambda path: hl.Checkpointer(folder=path),
    "ExportModel.path": lambda path: hl.ExportModel("torchscript", path=path),
    "GradientPlot.folder": lambda path: hl.GradientPlot(folder=path),
    "HistoryPlot.folder": lambda path: hl.HistoryPlot(folder=path),
    "MLPerfLog.path": lambda path: hl.MLPerfLog("bert", organization="Us", monitor="val/loss", path=path),
    "MemorySnapshot.folder": lambda path: hl.MemorySnapshot(folder=path),
    "OOMReport.folder": lambda path: hl.OOMReport(folder=path),
    "PredictionWriter.folder": lambda path: hl.PredictionWriter(path, format="csv", stages="val"),
    "SaveAtEnd.folder": lambda path: hl.SaveAtEnd(path, source=False),
    "SaveBest.path": lambda path: hl.SaveBest(path=_with_suffix(path, ".safetensors")),
    "TorchProfiler.folder": lambda path: hl.TorchProfiler(folder=path),
}
SINKS: dict[str, Make] = {
    "CSV.path": lambda path: hl.sinks.CSV(path),
    "JSONL.path": lambda path: hl.sinks.JSONL(path),
    "TensorBoard.folder": lambda path: hl.sinks.TensorBoard(path),
    "WandB.folder": lambda path: hl.sinks.WandB(folder=path),
}
WRITERS = CALLBACKS | SINKS
READS: dict[str, Make] = {
    "SaveAtEnd.source": lambda path: hl.SaveAtEnd(source=path),
}
ADDRESSES = {"LoadWeights.path", "MLflow.tracking_uri", "Resume.path", "Upload.to"}
"""These take remote addresses. A local path there is shared by many runs, so it is not in the run's folder."""
NO_PATHS = {
    "PredictionWriter.format", "Preempted.checkpoint", "Result._folder", "Result.best_checkpoint", "RunInfo.folder",
}  # fmt: skip
"""Functions, and values that Hookline itself makes."""

REMOTE = ["s3://bucket/run", Path("s3://bucket/run"), "gs://b/x", "hf://datasets/me/x", "abfss://c@a/x", "dbfs:/runs/x",
          "simplecache::s3://bucket/run", Path("/data") / "s3://bucket/run"]  # fmt: skip


NOT_FOR_FOLDER = [address for address in REMOTE if isinstance(address, Path) or "::" in address or "://" not in address]
"""A run cannot be copied to these: pathlib has changed the address, or it is not a plain address of fsspec."""


def _with_suffix(path: Any, suffix: str) -> Any:
    return f"{path}{suffix}" if isinstance(path, str) else path.with_name(path.name + suffix)


def path_parameters() -> Iterator[str]:
    for module in (hl, hl.sinks):
        for name in module.__all__:
            member = getattr(module, name)
            if inspect.isclass(member):
                for parameter in inspect.signature(member.__init__).parameters.values():
                    if "Path" in str(parameter.annotation) or parameter.name in ("path", "folder"):
                        yield f"{name}.{parameter.name}"


class Hungry(hl.Callback):
    """The run ends without memory, for ``OOMReport``."""

    def on_train_step_end(self, run: hl.Run) -> None:
        if run.clock.step == 6:
            raise MemoryError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_the_tables_name_every_path_of_a_callback_or_sink() -> None:
    known = {*WRITERS, *READS, *ADDRESSES, *NO_PATHS}
    assert {name for name in path_parameters() if not name.startswith(("Trainer.", "Loop.", "Replay."))} == known


# -- remote addresses --------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
def test_a_remote_address_is_refused_when_a_writer_is_made(here: Path, name: str) -> None:
    kind, _, argument = name.partition(".")
    for address in REMOTE:
        with pytest.raises(hl.HooklineError, match=rf"^{kind}\({argument}='.*'\): .*hl\.Upload\("):
            WRITERS[name](address)


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_address_is_refused_with_the_plain_path(here: Path, name: str) -> None:
    with pytest.raises(hl.HooklineError, match=r"Write '/data/run(\.safetensors)?'\.$"):
        WRITERS[name]("file:///data/run")


@pytest.mark.parametrize("name", READS)
def test_a_remote_address_to_read_from_is_refused(here: Path, name: str) -> None:
    with pytest.raises(hl.HooklineError, match=r"'s3:/+bucket/run'.* download"):
        READS[name](Path("s3://bucket/run"))


def everything(folder: Any) -> list[Callable[[], Any]]:
    model, data = TinyModel(), tiny_data()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return [
        lambda: hl.Trainer(folder=folder),
        lambda: hl.Loop(model, sgd, folder=folder),
        lambda: hl.fit(model, data, loss=CE, optimizer=sgd, max_duration="1ep", folder=folder),
        lambda: hl.evaluate(model, data, loss=CE, folder=folder),
        lambda: hl.predict(model, data, folder=folder),
    ]


def test_an_address_that_is_not_one_of_fsspec_is_refused_as_a_folder(here: Path) -> None:
    for make in (make for address in NOT_FOR_FOLDER for make in everything(address)):
        with pytest.raises(hl.HooklineError, match=r"folder='.*'.*(hl\.Upload\(|Give it as a string)"):
            make()
    assert list(here.iterdir()) == []


def test_a_file_address_for_the_run_is_refused_with_the_plain_path(here: Path) -> None:
    with pytest.raises(
        hl.HooklineError,
        match=r"Trainer\(folder='file:///data/run'\): Hookline takes paths, not addresses\. Write '/data/run'\.",
    ):
        hl.Trainer(folder="file:///data/run")


def test_an_address_that_pathlib_has_shortened_is_no_local_folder(here: Path) -> None:
    """``Path("s3://bucket")`` is ``s3:/bucket``: these two take addresses, and would have taken it for a folder."""
    with pytest.raises(hl.HooklineError, match=r"Upload\(to="):
        hl.Upload(Path("s3://bucket/runs"))
    with pytest.raises(hl.HooklineError, match=r"^MLflow\(tracking_uri='https:/host'\): .*Give it as a string"):
        hl.sinks.MLflow(Path("https://host"))


@pytest.mark.parametrize("path", ["a:b/c", "2024-01-01T10:00/run", "c:/run", "run/s3:"])
def test_a_colon_alone_makes_no_address(here: Path, path: str) -> None:
    assert hl.SaveAtEnd(path).folder == Path(path)


def test_a_password_in_an_address_is_not_shown(here: Path) -> None:
    with pytest.raises(hl.HooklineError) as caught:
        hl.Trainer(folder="s3://key:hunter2@bucket/run")
    assert "hunter2" not in str(caught.value)


# -- relative paths ----------------------------------------------------------------------------


def fit_with(writer: Any, *callbacks: hl.Callback, **options: Any) -> Any:
    """Two epochs with this callback or sink. ``OOMReport`` writes only if the run ends without memory."""
    if not isinstance(writer, hl.Callback):
        return fit(*callbacks, val=tiny_data(), sinks=[writer], **options)
    hungry = [Hungry()] if isinstance(writer, hl.OOMReport) else []
    return fit(writer, *hungry, *callbacks, val=tiny_data(), **options)


def written(name: str, path: Path) -> bool:
    path = path.with_name(f"{path.name}.safetensors") if name == "SaveBest.path" else path
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


@pytest.mark.parametrize("name", WRITERS)
def test_a_relative_path_is_in_the_folder_of_the_run(here: Path, name: str) -> None:
    with suppress(MemoryError):
        fit_with(WRITERS[name]("mine/out"), folder="run")
    assert written(name, here / "run" / "mine" / "out")
    assert os.listdir(here) == ["run"]


@pytest.mark.parametrize("name", sorted(WRITERS.keys() - {"Checkpointer.folder"}))
def test_an_absolute_path_is_kept(here: Path, name: str, tmp_path: Path) -> None:
    with suppress(MemoryError):
        fit_with(WRITERS[name](tmp_path / "elsewhere" / "out"))
    assert written(name, tmp_path / "elsewhere" / "out")
    assert os.listdir(here) == []


@pytest.mark.parametrize("name", WRITERS)
def test_without_a_folder_a_relative_path_is_an_error_before_the_first_step(here: Path, name: str) -> None:
    steps: list[int] = []
    writer = WRITERS[name]("mine/out")
    count = hl.LambdaCallback(on_train_step_end=lambda run: steps.append(run.clock.step))
    with pytest.raises(hl.HooklineError, match=r"folder=False"):
        fit_with(writer, count)
    assert steps == []
    assert os.listdir(here) == []


def first_error(name: str, path: str) -> hl.HooklineError:
    """The error of a fit with this callback, before the first step."""
    steps: list[int] = []
    count = hl.LambdaCallback(on_train_step_end=lambda run: steps.append(run.clock.step))
    with pytest.raises(hl.HooklineError) as caught:
        fit_with(CALLBACKS[name](path), count, folder="run")
    assert steps == []
    return caught.value


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_relative_path_of_a_callback_stays_in_the_folder_of_the_run(here: Path, name: str) -> None:
    for path in ("../out", "mine/../../out"):
        assert "the run's" in str(first_error(name, path))
    assert not list(here.rglob("out*"))


@pytest.mark.parametrize("name", ["Checkpointer.folder", "HistoryPlot.folder", "SaveAtEnd.folder", "SaveBest.path"])
def test_a_link_to_nothing_is_named(here: Path, name: str) -> None:
    (here / "run").mkdir()
    (here / "run" / "mine").symlink_to("gone")
    assert "run/mine' is a link to 'gone', which does not exist" in str(first_error(name, "mine/out"))


@pytest.mark.parametrize("name", ["HistoryPlot.folder", "JSONL.path", "SaveBest.path"])
def test_the_working_directory_may_change_while_a_run_trains(here: Path, name: str, tmp_path: Path) -> None:
    move = hl.LambdaCallback(on_train_epoch_start=lambda run: os.chdir(tmp_path))
    fit_with(WRITERS[name]("mine/out"), move, folder="run")
    assert written(name, here / "run" / "mine" / "out")
    assert not (tmp_path / "mine").exists()
