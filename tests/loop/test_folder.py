"""Where a run writes: ``runs/<project>/<name>``, a folder of the user's own, or nowhere at all."""

from __future__ import annotations

import gc
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import hookline as hl
from hookline.errors import ArgumentError, SetupError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, fit, json_lines, sgd, train_loop

train_epoch = partial(fit, train=tiny_data(2), max_duration="1ep", folder=None)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_run_without_a_name_gets_the_time_as_its_name(here: Path) -> None:
    result = train_epoch()
    parts = result.folder.resolve().relative_to(here.resolve()).parts
    assert parts[:2] == ("runs", "default")
    assert len(parts) == 3
    assert "metrics.jsonl" in files(result.folder)


@pytest.mark.parametrize(
    ("name", "place"), [("project/run", "runs/project/run"), ("run", "runs/default/run"), ("a b/c-1", "runs/a b/c-1")]
)
def test_a_name_gives_the_place(here: Path, name: str, place: str) -> None:
    seen: list[Any] = []
    note = hl.on("fit_start")(lambda run: seen.append((run.project, run.name, run.folder)))
    result = train_epoch(note, name=name)
    assert result.folder.resolve() == (here / place).resolve()
    assert (here / place / "metrics.jsonl").exists()
    project, run_name, folder = seen[0]
    assert (project, run_name) == (Path(place).parts[1], Path(place).parts[2])
    assert folder == result.folder


def test_each_run_has_its_own_folder(here: Path) -> None:
    folders = [train_epoch().folder for _ in range(3)]
    assert len({str(folder) for folder in folders}) == 3
    for folder in folders:
        assert [row["name"] for row in json_lines(folder / "metrics.jsonl")] == ["train/loss", "train/loss_epoch"]


def test_the_same_name_again_does_not_mix_two_runs(here: Path) -> None:
    first = train_epoch(name="p/r")
    before = (first.folder / "metrics.jsonl").read_text()
    second = train_epoch(name="p/r")
    assert second.folder != first.folder
    assert (second.folder / "metrics.jsonl").exists()
    assert (first.folder / "metrics.jsonl").read_text() == before


def test_a_folder_that_was_given(here: Path) -> None:
    result = train_epoch(folder=here / "deep" / "mine")
    assert result.folder == here / "deep" / "mine"
    assert "metrics.jsonl" in files(here / "deep" / "mine")
    assert not (here / "runs").exists()
    assert train_epoch(folder="as_text").folder == here / "as_text"
    assert (here / "as_text" / "metrics.jsonl").exists()


def test_a_folder_that_holds_a_run_is_refused(here: Path) -> None:
    train_epoch(folder=here / "mine")
    before = (here / "mine" / "metrics.jsonl").read_text()
    with pytest.raises(hl.HooklineError, match="mine"):
        train_epoch(folder=here / "mine")
    assert (here / "mine" / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize("first", ["evaluate", "test", "predict"])
@pytest.mark.parametrize("given", [True, False])
def test_a_fit_after_an_evaluation_has_the_files_of_any_fit(here: Path, first: str, given: bool) -> None:
    task = hl.SupervisedTask(TinyModel(), CE, sgd)
    trainer = Trainer(max_duration="1ep", folder=here / "mine" if given else None)
    getattr(trainer, first)(task, tiny_data(1))
    assert files(here) == []
    result = trainer.fit(task, tiny_data(2), tiny_data(1))
    assert set(files(result.folder)) >= {"metrics.jsonl", "events.jsonl", "run.json"}
    trainer.evaluate(task, tiny_data(1))
    again = trainer.fit(task, tiny_data(2), tiny_data(1), extend="1ep")
    assert again.folder == result.folder


def test_a_fit_after_an_evaluation_refuses_the_folder_of_another_run(here: Path) -> None:
    train_epoch(folder=here / "mine")
    before = (here / "mine" / "metrics.jsonl").read_text()
    task, trainer = hl.SupervisedTask(TinyModel(), CE, sgd), Trainer(max_duration="1ep", folder=here / "mine")
    trainer.evaluate(task, tiny_data(1))
    for _ in range(2):
        with pytest.raises(hl.HooklineError, match="holds a run already"):
            trainer.fit(task, tiny_data(2))
    assert (here / "mine" / "metrics.jsonl").read_text() == before


def test_a_folder_with_other_files_is_fine(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "notes.txt").write_text("hello")
    train_epoch(folder=here / "mine")
    assert set(files(here / "mine")) >= {"notes.txt", "metrics.jsonl"}
    assert (here / "mine" / "notes.txt").read_text() == "hello"


def test_the_folder_belongs_to_where_the_run_began(here: Path) -> None:
    """A script that changes its directory on the way still writes to one folder."""

    @hl.on("train_step_end", once=True)
    def move(run: hl.Run) -> None:
        (here / "elsewhere").mkdir()
        os.chdir(here / "elsewhere")

    train_epoch(move, train=tiny_data(4), log_every="1st", name="p/r")
    assert (here / "runs" / "p" / "r" / "metrics.jsonl").exists()
    assert files(here / "elsewhere") == []


@pytest.mark.parametrize("way", ["fit", "train", "evaluate", "test", "predict", "own loop", "functions"])
def test_false_writes_nothing_at_all(here: Path, way: str) -> None:
    model = TinyModel()
    trainer = Trainer(max_duration="1ep", folder=False, name="p/r")
    if way == "fit":
        result = trainer.fit(model, tiny_data(2), tiny_data(1), tiny_data(1), loss=CE, optimizer=sgd)
        assert not result.has_folder
        with pytest.raises(hl.HooklineError, match=r"^result\.folder: this run has no folder, because of folder=False"):
            _ = result.folder
    elif way == "train":
        trainer.train(model, tiny_data(2), loss=CE, optimizer=sgd)
    elif way == "predict":
        trainer.predict(model, tiny_data(2))
    elif way == "own loop":
        train_loop(max_duration="1ep")
    elif way == "functions":
        hl.fit(model, tiny_data(2), loss=CE, optimizer=sgd, max_duration="1ep", folder=False)
        hl.evaluate(model, tiny_data(2), loss=CE, folder=False)
        hl.predict(model, tiny_data(2), folder=False)
    else:
        getattr(trainer, way)(model, tiny_data(2), loss=CE)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("way", ["evaluate", "test", "predict", "explain", "functions"])
def test_what_does_not_train_writes_nothing(here: Path, way: str) -> None:
    model, trainer = TinyModel(), Trainer(max_duration="1ep")
    if way == "explain":
        trainer.explain(model)
    elif way == "predict":
        trainer.predict(model, tiny_data(2))
    elif way == "functions":
        hl.evaluate(model, tiny_data(2), loss=CE)
        hl.test(model, tiny_data(2), loss=CE)
        hl.predict(model, tiny_data(2))
    else:
        getattr(trainer, way)(model, tiny_data(2), loss=CE)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("way", ["evaluate", "test", "predict"])
def test_an_evaluation_after_a_fit_adds_nothing_to_its_folder(here: Path, way: str) -> None:
    model, trainer = TinyModel(), Trainer(max_duration="1ep", folder="mine")
    trainer.fit(model, tiny_data(2), tiny_data(1), loss=CE, optimizer=sgd)
    before = {path: (here / path).read_bytes() for path in files(here)}
    getattr(trainer, way)(model, tiny_data(2))
    assert {path: (here / path).read_bytes() for path in files(here)} == before


@pytest.mark.parametrize("mistake", ["optimizer", "loader", "duration", "model"], ids=lambda mistake: f"no {mistake}")
def test_a_mistake_leaves_no_empty_folder(here: Path, mistake: str) -> None:
    """What is wrong is found before anything is written; the same call can then be made again."""
    trainer = Trainer(max_duration=None if mistake == "duration" else "1ep", folder="mine")
    with pytest.raises(hl.HooklineError):
        trainer.fit(
            nn.Flatten() if mistake == "model" else TinyModel(),
            [] if mistake == "loader" else tiny_data(2),
            loss=CE,
            optimizer=None if mistake == "optimizer" else sgd,
        )
    assert files(here) in ([], ["mine/run.lock"])
    train_epoch(folder="mine")


def test_the_own_loop_writes_its_metrics(here: Path) -> None:
    train_loop(max_duration="1ep", folder=None, name="own/loop")
    assert "metrics.jsonl" in files(here / "runs" / "own" / "loop")


def test_no_file_is_left_open(here: Path) -> None:
    """Python would warn about it when the file is collected, and every warning is an error here."""
    train_epoch(folder="mine")
    with pytest.raises(ZeroDivisionError):
        train_epoch(hl.on("train_end")(lambda run: 1 / 0), folder="other")
    gc.collect()


BAD_PATHS = ["a\0b", "x" * 300, "p" * 300 + "/run", "\u00fc" * 150, "a\ud800b", "a/" * 3000]


@pytest.mark.parametrize("path", BAD_PATHS, ids=ascii)
def test_a_path_that_no_file_system_takes_is_an_error_that_names_the_argument(here: Path, path: str) -> None:
    for argument in ("name", "folder", "resume"):
        options = {"folder": "mine", argument: path} if argument == "resume" else {argument: path}
        with pytest.raises(hl.HooklineError, match=rf"^Trainer\({argument}='"):
            train_epoch(**options)
    assert files(here) == []


def test_a_folder_that_is_too_long_below_the_working_directory_is_an_error_that_names_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = here / ("d" * 200) / ("e" * 200)
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    with pytest.raises(SetupError, match=r"^folder='.*File name too long"):
        train_epoch(folder="a/" * 1900)


BAD_NAMES = [".", "a/.", "..", "a/../b", "/abs", "//", " /a", "a/b/c", "dbfs:/x", "s3://bucket/run", "a\nb"]
GOOD_NAMES = ["a b", "gr\u00f6\u00dfe/\u00b5", "x\u3000y", "2024-01-01T10:00", "c:x/1", ".hidden", "digits/"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_name_that_is_a_path_or_an_address_is_refused(here: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match=r"Trainer\(name="):
        Trainer(name=name)


@pytest.mark.parametrize("name", GOOD_NAMES, ids=ascii)
def test_any_other_name_is_taken(here: Path, name: str) -> None:
    assert train_epoch(name=name).folder.is_relative_to(here / "runs")


@pytest.mark.parametrize("link", ["run", "run/checkpoints", "run/milestones"])
def test_a_link_to_nothing_is_an_error_before_the_first_step_that_names_the_link(here: Path, link: str) -> None:
    (here / link).parent.mkdir(exist_ok=True)
    (here / link).symlink_to(here / "gone")
    steps: list[int] = []
    count = hl.LambdaCallback(on_train_step_end=lambda run: steps.append(run.clock.step))
    with pytest.raises(SetupError, match=rf"{link}' is a link to '{here / 'gone'}', which does not exist"):
        train_epoch(hl.Checkpointer(folder="milestones"), count, folder="run", resume="auto")
    assert steps == []


def test_a_name_of_the_greatest_length_that_is_taken_is_an_error(here: Path) -> None:
    """The second run of a name gets a number, for which there is no room."""
    train_epoch(name="x" * 255)
    with pytest.raises(hl.HooklineError, match="File name too long"):
        train_epoch(name="x" * 255)
