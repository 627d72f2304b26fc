"""``Trainer(folder="s3://…")``: a local folder that is copied to the address, and brought back on another machine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

import hookline as hl
from hookline.errors import ArgumentError, CheckpointError, SetupError
from hookline.loop import Loop
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, at_step, crash_at, fit, json_lines, same_tensors, wait_until, weights_of
from tests.support.s3_server import Server

TRAIN, VAL = tiny_data(4), tiny_data(2, seed=1)
RUN = "memory://bucket/digits/first"


@pytest.fixture
def memory() -> Iterator[Any]:
    """The file system behind ``memory://``, empty."""
    found = fsspec.filesystem("memory")
    found.store.clear()
    yield found
    found.store.clear()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A function that goes to another machine: the working folder of a new process there."""

    def go(name: str) -> Path:
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / name)
        return tmp_path / name

    return go


@pytest.fixture(scope="module")
def server(hold_port: Callable[[], int]) -> Iterator[Server]:
    server = Server(hold_port())
    server.start()
    yield server
    server.close()


def trained(*callbacks: object, folder: Any = RUN, **options: Any) -> Any:
    """``hl.Trainer`` adds ``Upload`` for a remote folder."""
    options = {"max_duration": "3ep", "seed": 0, "log_every": "2st", "progress": False, **options}
    trainer = hl.Trainer(callbacks=[hl.Checkpointer("2st", keep_last=None), *callbacks], folder=folder, **options)
    return fit(trainer=trainer, train=TRAIN, val=VAL)


def crash(*callbacks: object, **options: Any) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        trained(crash_at(9), *callbacks, **options)


def remote_files(memory: Any, below: str = "/bucket/digits/first") -> dict[str, bytes]:
    return {path.removeprefix(f"{below}/"): memory.cat_file(path) for path in memory.find(below)}


def local_files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "run.lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_a_run_continues_on_another_machine_as_if_it_had_not_been_left(
    memory: Any, machine: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    machine("one")
    crash(resume="auto")
    here = machine("two")
    resumed = trained(resume="auto")
    assert resumed.folder == here / "runs" / "memory" / "bucket" / "digits" / "first"
    assert f"folder='{RUN}': the run works in {resumed.folder}, and Upload copies it" in caplog.text
    assert (resumed.folder / "log.txt").read_text().count("planted") > 0  # The log of the first machine goes on.
    whole = trained(folder=here / "whole")
    assert same_tensors(weights_of(resumed.model), weights_of(whole.model))
    rows, expected = (
        [(row["name"], row["step"], row.get("value")) for row in json_lines(result.folder / "metrics.jsonl")]
        for result in (resumed, whole)
    )
    assert rows == expected
    found = remote_files(memory)
    assert found.items() >= local_files(resumed.folder).items()
    assert sorted(path.name for path in (resumed.folder / "checkpoints").iterdir()) == [
        f"step-{step:08d}"
        for step in (8, 10, 12)  # Of the older ones only the newest was needed.
    ]
    assert {f"checkpoints/step-{step:08d}/manifest.json" for step in range(2, 13, 2)} <= found.keys()


def test_the_rows_up_to_a_checkpoint_are_at_the_address_before_it(
    memory: Any, machine: Callable[[str], Path], recwarn: pytest.WarningsRecorder
) -> None:
    """A machine that is switched off has uploaded nothing after the checkpoint."""
    kept: dict[str, Any] = {}

    @hl.on("train_step_end", at="7st")
    def switch_off(run: hl.Run) -> None:
        wait_until(lambda: memory.exists("/bucket/digits/first/checkpoints/step-00000006/manifest.json"), "the upload")
        kept.update(copy.deepcopy(memory.store))

    here = machine("one")
    crash(switch_off)
    memory.store.clear()
    memory.store.update(kept)
    machine("two")
    resumed = trained(resume="auto")
    assert not [str(warning.message) for warning in recwarn if "rows are lost" in str(warning.message)]
    assert resumed.history["val/loss"] == trained(folder=here / "whole").history["val/loss"]


def test_a_run_whose_upload_failed_continues_from_its_local_folder_and_is_uploaded_then(
    memory: Any, machine: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise ConnectionResetError("planted outage")

    here = machine("one")
    with monkeypatch.context() as patched:
        patched.setattr(type(memory), "put_file", refuse)
        crash(hl.Upload(wait=0.2))
    assert "planted outage" in caplog.text
    assert remote_files(memory) == {}
    resumed = trained(resume="auto")
    assert same_tensors(weights_of(resumed.model), weights_of(trained(folder=here / "whole").model))
    assert remote_files(memory) == local_files(resumed.folder)


def test_a_run_at_the_address_is_not_overwritten(memory: Any, machine: Callable[[str], Path]) -> None:
    machine("one")
    crash()
    before = remote_files(memory)
    machine("two")
    with pytest.raises(SetupError, match=rf"folder='{RUN}' holds a run already; .*resume='auto'"):
        trained()
    assert remote_files(memory) == before


def test_the_local_folder_of_another_run_is_not_mixed_with_the_run_at_the_address(
    memory: Any, machine: Callable[[str], Path]
) -> None:
    machine("one")
    crash(max_duration="3ep")
    memory.store.clear()
    machine("two")
    crash(max_duration="3ep")
    machine("three")
    trained(resume="auto")
    machine("one")
    with pytest.raises(SetupError, match=r"holds another run\. Remove that folder"):
        trained(resume="auto")


def test_a_custom_loop_needs_an_upload(memory: Any, machine: Callable[[str], Path]) -> None:
    here, model = machine("one"), TinyModel()
    with pytest.raises(ArgumentError, match=rf"folder='{RUN}': .* Add hl\.Upload\(\) to callbacks"):
        Loop(model, torch.optim.SGD(model.parameters()), folder=RUN, max_duration="1ep")
    with Loop(
        model, torch.optim.SGD(model.parameters()), folder=RUN, max_duration="1ep", callbacks=[hl.Upload()]
    ) as loop:
        assert loop.run.remote_folder == RUN
        for x, y in loop.batches(TRAIN):
            loop.backward(CE(model(x), y))
            loop.step()
    assert remote_files(memory) == local_files(here / "runs" / "memory" / "bucket" / "digits" / "first")


def test_an_upload_without_an_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"Upload\(\): the folder of this run is local\. Give Upload\('s3://"):
        trained(hl.Upload(), folder=tmp_path)
    with pytest.raises(ArgumentError, match=r"Upload\(options=\{key, secret\}\): .*fsspec's configuration") as caught:
        hl.Upload(options={"secret": "hunter2", "key": "AKIAEXAMPLE"})
    assert "hunter2" not in str(caught.value)
    assert "AKIA" not in str(caught.value)


def test_on_s3(machine: Callable[[str], Path], server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.make_bucket("mirrored")
    monkeypatch.setitem(fsspec.config.conf, "s3", server.options)
    machine("one")
    crash(folder="s3://mirrored/digits/first", resume="auto")
    here = machine("two")
    resumed = trained(folder="s3://mirrored/digits/first", resume="auto")
    assert same_tensors(weights_of(resumed.model), weights_of(trained(folder=here / "whole").model))
    assert server.found("mirrored/digits/first").items() >= local_files(resumed.folder).items()


def test_an_address_that_cannot_be_read_is_an_error_before_the_first_step(
    machine: Callable[[str], Path], hold_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("one")
    monkeypatch.setitem(fsspec.config.conf, "s3", Server(hold_port()).options)
    steps: list[int] = []
    with pytest.raises(CheckpointError, match=r"s3://gone/run cannot be read: .*Check the address"):
        trained(at_step(1, lambda run: steps.append(1)), folder="s3://gone/run", resume="auto")
    assert steps == []
