"""Runs whose checkpoints are at an address: they resume there as from a local path, or an error names the address."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import save_file

import hookline as hl
from hookline.checkpoint.foreign_weights import read_weights
from hookline.errors import (
    ArgumentError,
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    HooklineWarning,
)
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, same_tensors, sgd, weights_of
from tests.support.s3_server import Server

TRAIN, VAL = tiny_data(4), tiny_data(2, seed=1)
fit_digits = partial(fit, train=TRAIN, val=VAL, max_duration="3ep", log_every="2st")
RUN = "memory://bucket/runs/digits/first"


@pytest.fixture
def memory() -> Iterator[Any]:
    """The file system behind ``memory://``, empty."""
    found = fsspec.filesystem("memory")
    found.store.clear()
    yield found
    found.store.clear()


@pytest.fixture
def downloaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are downloaded."""
    names: list[str] = []
    original = fsspec.get_filesystem_class("memory").get_file

    def get_file(self: Any, path: str, *rest: Any, **options: Any) -> Any:
        names.append(path.removeprefix("/bucket/runs/digits/first/"))
        return original(self, path, *rest, **options)

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "get_file", get_file)
    return names


@pytest.fixture(scope="module")
def server(hold_port: Callable[[], int]) -> Iterator[Server]:
    server = Server(hold_port())
    server.start()
    yield server
    server.close()


def upload_crashed_run(folder: Path, to: str = "memory://bucket/runs", **options: Any) -> None:
    """A run that crashes in step 9, with checkpoints at steps 2, 4, 6 and 8."""
    callbacks = (hl.Upload(to, **options), hl.Checkpointer("2st", keep_last=None), crash_at(9))
    with pytest.raises(RuntimeError, match="planted"):
        fit_digits(*callbacks, folder=folder, name="digits/first")


def whole_run(folder: Path) -> Any:
    return fit_digits(hl.Checkpointer("2st", keep_last=None), folder=folder)


# -- resume ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "/checkpoints", "/checkpoints/step-00000008"], ids=["run", "folder", "one"])
def test_a_run_resumes_from_an_address_as_from_a_local_path(
    tmp_path: Path, memory: Any, downloaded: list[str], below: str, caplog: pytest.LogCaptureFixture
) -> None:
    upload_crashed_run(tmp_path / "crashed")
    resumed = fit_digits(hl.Checkpointer(), folder=tmp_path / "new", resume=f"{RUN}{below}")
    whole = whole_run(tmp_path / "whole")
    assert same_tensors(weights_of(resumed.model), weights_of(whole.model))
    assert resumed.history["val/loss"] == whole.history["val/loss"]
    assert f"resumed from {RUN}{below} (step-00000008): epoch 2, step 8" in caplog.text
    assert {name for name in downloaded if name.startswith("checkpoints/")} == {
        f"checkpoints/step-00000008/{name}" for name in ("model.safetensors", "state.json", "state.safetensors")
    }
    assert not [path.name for path in (tmp_path / "new").iterdir() if path.name.startswith(".")]


def test_a_custom_loop_resumes_from_an_address_without_a_folder(tmp_path: Path, memory: Any) -> None:
    upload_crashed_run(tmp_path)
    model = TinyModel()
    with Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), max_duration="3ep", folder=False, resume=RUN) as loop:
        for x, y in loop.batches(TRAIN):
            loop.backward(CE(model(x), y))
            loop.step()
        assert (loop.run.clock.step, loop.run.clock.epoch) == (12, 3)


def test_images_of_the_run_come_along(tmp_path: Path, memory: Any) -> None:
    draw = hl.on("epoch_end")(lambda run: run.log_image("drawn", torch.zeros(3, 8, 8)))
    fit_digits(hl.Upload("memory://bucket/runs"), hl.Checkpointer(), draw, folder=tmp_path / "a", name="digits/first")
    result = fit_digits(hl.Checkpointer(), folder=tmp_path / "b", resume=RUN)
    images = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a" / "media").rglob("*.png")]
    assert len(images) == 3
    assert all((result.folder / image).read_bytes() == (tmp_path / "a" / image).read_bytes() for image in images)


@pytest.mark.parametrize("kind", ["relative", "absolute"])
def test_rows_that_name_files_outside_of_the_run_write_nothing_there(
    tmp_path: Path, memory: Any, kind: str, recwarn: pytest.WarningsRecorder
) -> None:
    """The rows of a run of somebody else must not decide where files are written."""
    caption = "long" * 100  # The changed row has the same size, because a checkpoint knows the size of its rows.
    draw = hl.on("epoch_end")(lambda run: run.log_image("drawn", torch.zeros(3, 8, 8), caption=caption))
    fit_digits(hl.Upload("memory://bucket/runs"), hl.Checkpointer(), draw, folder=tmp_path / "a", name="digits/first")
    name = "../../escaped.png" if kind == "relative" else str(tmp_path / "escaped.png")
    rows = "/bucket/runs/digits/first/metrics.jsonl"
    lines = memory.cat_file(rows).decode().splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if '"image"' in line)
    changed = json.dumps({**json.loads(lines[at]), "file": name, "caption": ""})
    lines[at] = changed.ljust(len(lines[at]) - 1) + "\n"
    memory.pipe_file(rows, "".join(lines).encode())
    memory.pipe_file(f"/bucket/runs/digits/first/{name}", b"evil")
    memory.pipe_file("/bucket/runs/escaped.png", b"evil")
    memory.pipe_file("/bucket/escaped.png", b"evil")
    result = fit_digits(hl.Checkpointer(), folder=tmp_path / "b" / "c", resume=RUN)
    assert not list(tmp_path.rglob("escaped.png"))
    assert len(list((result.folder / "media").rglob("*.png"))) == 2
    warned = [str(warning.message) for warning in recwarn if "outside of the run's folder" in str(warning.message)]
    assert len(warned) == 1
    assert repr(name) in warned[0]


def test_a_damaged_checkpoint_is_skipped_or_named(tmp_path: Path, memory: Any) -> None:
    upload_crashed_run(tmp_path / "crashed")
    weights = "/bucket/runs/digits/first/checkpoints/step-00000008/model.safetensors"
    memory.pipe_file(weights, memory.cat_file(weights)[:-1] + b"!")
    with pytest.warns(HooklineWarning, match=rf"{RUN}: damaged checkpoints: .*step-00000008 .*SHA-256.* Using .*00006"):
        resumed = fit_digits(hl.Checkpointer(), folder=tmp_path / "new", resume=RUN)
    assert same_tensors(weights_of(resumed.model), weights_of(whole_run(tmp_path / "whole").model))
    with pytest.raises(CheckpointCorruptError, match=rf"{RUN}: damaged checkpoints, and strict=True"):
        fit_digits(folder=tmp_path / "strict", resume=hl.Resume(RUN, strict=True))
    with pytest.raises(CheckpointCorruptError, match=rf"{RUN}/checkpoints/step-00000008/model\.safetensors: .*SHA-256"):
        fit_digits(folder=tmp_path / "one", resume=f"{RUN}/checkpoints/step-00000008")
    memory.rm(weights)
    with pytest.raises(CheckpointCorruptError, match=rf"{RUN}/checkpoints/.*/model\.safetensors: it is missing"):
        fit_digits(folder=tmp_path / "missing", resume=f"{RUN}/checkpoints/step-00000008")


def test_a_checkpoint_whose_upload_has_not_ended_is_left_out(tmp_path: Path, memory: Any) -> None:
    upload_crashed_run(tmp_path / "crashed")
    memory.rm("/bucket/runs/digits/first/checkpoints/step-00000008/manifest.json")
    seen: list[int] = []
    note = hl.on("checkpoint_loaded")(lambda run: seen.append(run.clock.step))
    fit_digits(hl.Checkpointer(), note, folder=tmp_path / "new", resume=RUN)
    assert seen == [6]


def test_an_address_without_a_checkpoint_is_named(tmp_path: Path, memory: Any) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"memory://bucket/no: there is no checkpoint .*checkpoints/step"):
        fit_digits(folder=tmp_path / "a", resume="memory://bucket/no")
    fit_digits(
        hl.Upload("memory://bucket/runs"), hl.Checkpointer(weights_only=True), folder=tmp_path, name="digits/first"
    )
    with pytest.raises(CheckpointMismatchError, match=rf"weights only.*hl\.LoadWeights\('{RUN}'\)"):
        fit_digits(folder=tmp_path / "b", resume=RUN)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (Path("s3://bucket/run"), "of which pathlib has made a path. Give it as a string"),
        ("s4://bucket/run", "fsspec has no 's4://'. Did you mean"),
        ("s4://bucket/run?X-Amz-Signature=hunter2&token=hunter2", "fsspec has no 's4://'. Did you mean"),
        ("sftp://me:hunter2@host/run", "the address has a password"),
        ("sftp://me:hun/ter2hunter2@host/run", "the address has a password"),
        ("file:///data/run", "takes paths, not addresses. Write '/data/run'"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_at_once(address: Any, words: str) -> None:
    for make in (lambda: Trainer(folder=False, resume=address), lambda: hl.LoadWeights(address)):
        with pytest.raises(ArgumentError) as caught:
            make()
        assert words in str(caught.value)
        assert "hunter2" not in str(caught.value)


# -- weights ---------------------------------------------------------------------------------------


def loaded(address: str) -> dict[str, torch.Tensor]:
    model = TinyModel(seed=5)
    Trainer(folder=False, callbacks=[hl.LoadWeights(address)]).evaluate(model, VAL, loss=CE)
    return model.state_dict()


def test_weights_of_a_run_are_downloaded_without_the_rest_of_its_state(
    tmp_path: Path, memory: Any, downloaded: list[str]
) -> None:
    result = fit_digits(
        hl.Upload("memory://bucket/runs"), hl.Checkpointer(), folder=tmp_path, name="digits/first", optimizer=sgd
    )
    assert same_tensors(loaded(RUN), result.model.state_dict())
    assert downloaded == ["checkpoints/step-00000012/model.safetensors"]


@pytest.mark.parametrize("kind", ["file", "hugging face", "hugging face shards"])
def test_weights_of_other_tools_are_read_from_an_address(tmp_path: Path, memory: Any, kind: str) -> None:
    weights = TinyModel(seed=7).state_dict()
    names = list(weights)
    parts = {"model.safetensors": names} if kind != "hugging face shards" else {"a.safetensors": names[:1]}
    parts |= {"b.safetensors": names[1:]} if kind == "hugging face shards" else {}
    for file, kept in parts.items():
        save_file({name: weights[name] for name in kept}, tmp_path / file)
        memory.pipe_file(f"/bucket/hf/{file}", (tmp_path / file).read_bytes())
    places = {name: file for file, kept in parts.items() for name in kept}
    if kind == "hugging face shards":
        memory.pipe_file("/bucket/hf/model.safetensors.index.json", json.dumps({"weight_map": places}).encode())
    memory.pipe_file("/bucket/hf/config.json", b"{}")
    address = "memory://bucket/hf/model.safetensors" if kind == "file" else "memory://bucket/hf"
    assert same_tensors(loaded(address), weights)


def test_an_address_without_weights_is_named(memory: Any) -> None:
    memory.pipe_file("/bucket/other/readme.txt", b"hello")
    with pytest.raises(CheckpointNotFoundError, match="memory://bucket/other: there are no weights at this address"):
        loaded("memory://bucket/other")


@pytest.fixture
def website(tmp_path: Path) -> Iterator[str]:
    """The address of a server that has the files of the temporary folder."""
    serve = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as found:
        thread = Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


def test_a_file_of_weights_is_read_from_the_web(tmp_path: Path, website: str) -> None:
    pytest.importorskip("aiohttp")
    save_file(TinyModel(seed=7).state_dict(), tmp_path / "model.safetensors")
    assert same_tensors(loaded(f"{website}/model.safetensors?X-Amz-Signature=hunter2"), TinyModel(seed=7).state_dict())


def test_errors_do_not_show_the_secrets_of_an_address(tmp_path: Path, memory: Any, website: str) -> None:
    pytest.importorskip("aiohttp")
    secret = "X-Amz-Signature=hunter2&token=hunter2"
    save_file(TinyModel(seed=7).state_dict(), tmp_path / "model.safetensors")
    memory.pipe_file(f"/other/?{secret}/manifest.json", b"{}")
    for read in (
        lambda: read_weights(f"{website}/missing.safetensors?{secret}"),
        lambda: read_weights(f"{website}/model.safetensors?{secret}", prefix="other."),
        lambda: loaded(f"memory://other/?{secret}"),
        lambda: fit_digits(folder=tmp_path / "a", resume=f"memory://other/?{secret}"),
        lambda: fit_digits(folder=tmp_path / "b", resume=f"{website}/model.safetensors?{secret}"),
    ):
        with pytest.raises(CheckpointError) as caught:
            read()
        shown = "".join((str(caught.value), *getattr(caught.value, "__notes__", ())))
        assert "X-Amz-Signature=[redacted]" in shown
        assert "hunter2" not in shown


# -- a real S3 -------------------------------------------------------------------------------------


def test_resume_and_weights_from_s3(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.make_bucket("resumed")
    monkeypatch.setitem(fsspec.config.conf, "s3", server.options)
    upload_crashed_run(tmp_path / "crashed", "s3://resumed/runs")
    run = "s3://resumed/runs/digits/first"
    resumed = fit_digits(hl.Checkpointer(), folder=tmp_path / "new", resume=run)
    assert same_tensors(weights_of(resumed.model), weights_of(whole_run(tmp_path / "whole").model))
    assert same_tensors(
        loaded(f"{run}/checkpoints/step-00000008/model.safetensors"), loaded(f"{run}/checkpoints/step-00000008")
    )
    with pytest.raises(CheckpointError, match=r"s3://missing/run.* Give a checkpoint|s3://missing/run cannot be read"):
        fit_digits(folder=tmp_path / "missing", resume="s3://missing/run")


def test_a_server_that_does_not_answer_is_named_with_what_to_check(
    tmp_path: Path, hold_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", Server(hold_port()).options)
    with pytest.raises(CheckpointError, match=r"s3://gone/run cannot be read: .*Check the address, the credentials"):
        fit_digits(folder=tmp_path, resume="s3://gone/run")
    with pytest.raises(CheckpointError, match=r"s3://gone/run cannot be read"):
        loaded("s3://gone/run")
