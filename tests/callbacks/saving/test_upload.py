"""What a run writes is at the other place too, or named; and the run is the same whatever happens there."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import s3fs
import torch
from fsspec.implementations.local import LocalFileSystem

import hookline as hl
from hookline.callbacks.saving._remote import UploadQueue
from hookline.callbacks.saving.checkpointer import Checkpointer
from hookline.callbacks.saving.upload import Upload
from hookline.checkpoint import remote
from hookline.checkpoint.remote import RemoteFolder
from hookline.errors import ArgumentError, Preempted, SetupError
from hookline.events import Callback, on
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, at_step, crash_at, fit, same_tensors, wait_until, weights_of
from tests.support.s3_server import ONCE, Server

TRAIN, VAL = tiny_data(4), tiny_data(2, seed=1)
fit_digits = partial(fit, train=TRAIN, val=VAL, max_duration="3ep", name="digits/first", log_every="2st")
HANG = 200.0
"""Seconds after which something hangs."""


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "run.lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


# -- a real S3 -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(hold_port: Callable[[], int]) -> Iterator[Server]:
    server = Server(hold_port())
    server.start()
    yield server
    server.close()


def test_a_run_is_whole_on_s3_with_its_report_and_its_last_words(tmp_path: Path, server: Server) -> None:
    server.make_bucket("whole")
    upload = Upload("s3://whole/runs", options=server.options)
    trainer = hl.Trainer(
        folder=tmp_path,
        name="digits/first",
        max_duration="2ep",
        callbacks=[upload, Checkpointer("3st"), hl.ProgressBar(style=None)],
    )
    result = trainer.fit(TinyModel(), TRAIN, VAL, loss=CE, optimizer=torch.optim.SGD)
    found, here = server.found("whole/runs/digits/first"), files(tmp_path)
    assert found == here
    assert {"report.html", "run.json", "metrics.jsonl", "log.txt"} <= found.keys()
    assert json.loads(found["run.json"])["sessions"][-1]["status"] == "finished"
    assert sum(name.endswith("manifest.json") for name in found) == 3
    assert not result.failures
    assert upload.report is not None
    assert upload.report.is_well


def test_a_resume_sends_nothing_again_that_is_there(tmp_path: Path, server: Server) -> None:
    server.make_bucket("again")

    def upload() -> Upload:
        return Upload("s3://again", options=server.options)

    with pytest.raises(RuntimeError, match="planted"):
        fit_digits(upload(), Checkpointer("2st", keep_last=None), crash_at(9, "step_settled"), folder=tmp_path)
    before = {path: info["LastModified"] for path, info in server.client().find("again", detail=True).items()}
    second = upload()
    fit_digits(second, Checkpointer("2st", keep_last=None), folder=tmp_path, resume="auto")
    after = server.client().find("again", detail=True)
    kept = [path for path in before if "/checkpoints/" in path]
    assert len(kept) == 4 * 4
    assert all(after[path]["LastModified"] == before[path] for path in kept)
    assert server.found("again/digits/first") == files(tmp_path)
    assert second.report is not None
    assert second.report.there >= len(kept)


def test_a_bucket_that_is_not_there_is_not_made_and_is_named(tmp_path: Path, server: Server, caplog: Any) -> None:
    upload = Upload("s3://missing", options=server.options, files="metrics.jsonl")
    result = fit_digits(upload, folder=tmp_path)
    assert result.clock.step == 12
    assert not result.failures
    assert "metrics.jsonl" in caplog.text
    assert "bucket does not exist" in caplog.text
    assert "missing" not in [name.rstrip("/") for name in server.client().ls("")]


def test_a_server_that_hangs_and_comes_back_has_everything_in_the_end(
    tmp_path: Path, monkeypatch: Any, server: Server
) -> None:
    def resume(run: Any) -> None:
        queue = upload._queue
        assert queue is not None
        wait_until(lambda: queue._error, "an upload that fails")
        errors.append(queue._error)
        server.send(signal.SIGCONT)

    errors: list[str] = []
    server.make_bucket("back")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)  # its own tries, which would take long
    soon = {**server.options, "config_kwargs": {**ONCE, "read_timeout": 3}}  # a server that hangs is left
    upload = Upload("s3://back", options=soon, every="1st")
    stop = at_step(3, lambda run: server.send(signal.SIGSTOP))
    try:
        result = fit_digits(stop, at_step(10, resume), upload, Checkpointer("2st", keep_last=None), folder=tmp_path)
    finally:
        server.send(signal.SIGCONT)
    assert "Timeout" in errors[0]
    assert not result.failures
    assert upload.report is not None
    assert upload.report.is_well
    assert server.found("back/digits/first") == files(tmp_path)


def test_a_server_that_starts_late_has_what_was_saved_before(tmp_path: Path, hold_port: Callable[[], int]) -> None:
    def start(run: Any) -> None:
        server.start()
        server.make_bucket("late")

    server = Server(hold_port())
    upload = Upload("s3://late", options=server.options)
    try:
        fit_digits(at_step(7, start), upload, Checkpointer("2st", keep_last=None), folder=tmp_path)
        assert server.found("late/digits/first") == files(tmp_path)
        assert upload.report is not None
        assert upload.report.is_well
    finally:
        server.close()


def test_an_unreachable_server_changes_nothing_but_the_report(
    tmp_path: Path, caplog: Any, hold_port: Callable[[], int]
) -> None:
    upload = Upload("s3://nowhere", options=Server(hold_port()).options, wait=1.0)
    result, bare = (
        fit_digits(upload, Checkpointer(), folder=tmp_path / "a"),
        fit_digits(Checkpointer(), folder=tmp_path / "b"),
    )
    assert not result.failures
    assert same_tensors(weights_of(result.model), weights_of(bare.model))
    assert upload.report is not None
    assert upload.report.uploaded == 0
    assert set(upload.report.lost) >= {"metrics.jsonl", "run.json", "checkpoints/step-00000012"}
    assert "NOT uploaded: " in caplog.text
    assert "word" not in caplog.text


# -- a folder ------------------------------------------------------------------------------------


def test_a_folder_gets_what_is_chosen_and_nothing_hidden_or_half_done(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "checkpoints" / f"step-3.tmp-{'0' * 32}").mkdir(parents=True)
    (here / "checkpoints" / f"step-3.tmp-{'0' * 32}" / "model.safetensors").write_text("half")
    (here / ".best.tmp.safetensors").write_text("half")
    (here / "plots").mkdir()
    (here / "plots" / "a.png").write_text("picture")
    fit_digits(Upload(there), Checkpointer(keep_last=1), folder=here)
    names = set(files(there / "digits" / "first"))
    assert "plots/a.png" in names
    assert "checkpoints/step-00000012/manifest.json" in names
    assert not [name for name in names if "tmp" in name or "lock" in name]
    chosen = Upload(tmp_path / "some", files=("checkpoints", "*.png", "metrics.jsonl"), exclude="plots/*")
    fit_digits(chosen, Checkpointer(keep_last=1), folder=tmp_path / "other")
    found = set(files(tmp_path / "some" / "digits" / "first"))
    assert {name.partition("/")[0] for name in found} == {"checkpoints", "metrics.jsonl"}


def test_a_checkpoint_there_can_be_gone_on_from(tmp_path: Path) -> None:
    fit_digits(Upload(tmp_path / "there"), Checkpointer("4st"), folder=tmp_path / "here", max_duration="2ep")
    there = tmp_path / "there" / "digits" / "first" / "checkpoints" / "step-00000008"
    resumed = fit_digits(Checkpointer(), folder=tmp_path / "new", resume=there, max_duration="3ep")
    whole = fit_digits(Checkpointer(), folder=tmp_path / "whole")
    assert resumed.clock.step == 8  # it was finished
    again = Trainer(folder=tmp_path / "more", resume=there, seed=0, device="cpu")
    longer = fit(train=TRAIN, trainer=again, extend="1ep")
    assert same_tensors(weights_of(longer.model), weights_of(whole.model))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_everything_is_uploaded_when_a_signal_ends_the_run(tmp_path: Path, number: int) -> None:
    @on("train_step_end", at="5st")
    def leave(run: Any) -> None:
        signal.raise_signal(number)

    try:
        fit_digits(leave, Upload(tmp_path / "there"), Checkpointer(), folder=tmp_path / "here")
    except Preempted:
        assert number == signal.SIGTERM
    found = files(tmp_path / "there" / "digits" / "first")
    assert found == files(tmp_path / "here")
    assert "checkpoints/step-00000005/manifest.json" in found


# -- the queue -----------------------------------------------------------------------------------


class Watched(LocalFileSystem):
    """Real files, in an order that is noted, at a pace that a test sets."""

    protocol = "watched"
    cachable = False
    sent: ClassVar[list[str]] = []
    go: ClassVar[threading.Event] = threading.Event()
    fails: ClassVar[list[int]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("watched://")))

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self.go.wait(HANG)
        if self.fails:
            self.fails.pop()
            raise ConnectionResetError("planted: secret_key=abcdefgh")
        super().put_file(lpath, rpath, **options)
        self.sent.append(rpath)


@pytest.fixture
def watched() -> Iterator[type[Watched]]:
    fsspec.register_implementation("watched", Watched, clobber=True)
    Watched.sent.clear()
    Watched.fails.clear()
    Watched.go.set()
    yield Watched
    Watched.go.set()
    for thread in threading.enumerate():
        if thread.name == "hookline upload":
            thread.join(HANG)


def test_the_manifest_of_a_checkpoint_comes_last(tmp_path: Path, watched: type[Watched]) -> None:
    fit_digits(Upload(f"watched://{tmp_path}/there"), Checkpointer("4st"), folder=tmp_path / "here")
    for step in (4, 8, 12):
        its = [path for path in watched.sent if f"step-{step:08d}" in path]
        assert len(its) == 4
        assert its[-1].endswith("manifest.json")


def test_what_fails_is_tried_again_and_told_without_secrets(
    tmp_path: Path, watched: type[Watched], caplog: Any
) -> None:
    watched.fails.extend([1, 1])
    upload = Upload(f"watched://{tmp_path}/there", every="1st")
    fit_digits(upload, folder=tmp_path / "here")
    assert files(tmp_path / "there" / "digits" / "first") == files(tmp_path / "here")
    assert upload.report is not None
    assert upload.report.is_well
    assert "abcdefgh" not in caplog.text + upload.report.error
    assert "planted" in upload.report.error


def test_one_that_hangs_for_ever_is_left_after_the_wait_and_named(tmp_path: Path, watched: type[Watched]) -> None:
    watched.go.clear()
    upload = Upload(f"watched://{tmp_path}/there", wait=0.2)
    result = fit_digits(upload, Checkpointer("2st"), folder=tmp_path / "here")
    assert result.clock.step == 12
    assert upload.report is not None
    assert upload.report.hung
    assert {"checkpoints/step-00000012", "metrics.jsonl"} <= set(upload.report.lost)
    assert "still busy" in str(upload.report)


def test_a_full_queue_drops_the_oldest_which_are_made_up_for_at_the_end(tmp_path: Path, watched: type[Watched]) -> None:
    @on("train_end")
    def release(run: Any) -> None:
        assert upload._queue is not None
        dropped.append(sum(name.startswith("checkpoints/") for name in upload._queue._lost))
        watched.go.set()

    dropped: list[int] = []
    watched.go.clear()
    upload = Upload(f"watched://{tmp_path}/there", queue=2)
    fit_digits(upload, release, Checkpointer("1st", keep_last=None), folder=tmp_path / "here")
    assert dropped == [10]  # of 11 by then: the newest waits, and a file with rows is under way
    assert upload.report is not None
    assert upload.report.is_well
    assert files(tmp_path / "there" / "digits" / "first") == files(tmp_path / "here")


def test_a_checkpoint_that_retention_has_removed_before_its_turn_is_named(
    tmp_path: Path, watched: type[Watched]
) -> None:
    watched.go.clear()
    release = on("train_end")(lambda run: watched.go.set())
    upload = Upload(f"watched://{tmp_path}/there")
    fit_digits(upload, release, Checkpointer("2st", keep_last=1), folder=tmp_path / "here")
    assert upload.report is not None
    lost = set(upload.report.lost)
    assert {"checkpoints/step-00000004", "checkpoints/step-00000006"} <= lost
    assert "checkpoints/step-00000012" not in lost


def test_a_file_that_is_put_many_times_is_sent_once_as_it_is_then(tmp_path: Path, watched: type[Watched]) -> None:
    watched.go.clear()
    first, grows = tmp_path / "first", tmp_path / "metrics.jsonl"
    first.write_text("1")
    queue = UploadQueue(RemoteFolder(f"watched://{tmp_path}/there", {}), tmp_path, max_waiting=10)
    queue.put(first)
    for number in range(20):
        grows.write_text("x" * number)
        queue.put(grows)
    watched.go.set()
    assert queue.finish(HANG).is_well
    assert [os.path.basename(path) for path in watched.sent] == ["first", "metrics.jsonl"]
    assert (tmp_path / "there" / "metrics.jsonl").read_text() == "x" * 19


def test_a_file_of_the_same_size_that_is_newer_here_is_sent_again(tmp_path: Path) -> None:
    here, there = tmp_path / "a.txt", tmp_path / "there" / "a.txt"
    there.parent.mkdir()
    there.write_text("old")
    os.utime(there, (1_000_000, 1_000_000))
    here.write_text("new")
    queue = UploadQueue(RemoteFolder(str(there.parent), {}), tmp_path, max_waiting=10)
    queue.put(here)
    assert queue.finish(HANG).uploaded == 1
    assert there.read_text() == "new"
    again = UploadQueue(RemoteFolder(str(there.parent), {}), tmp_path, max_waiting=10)
    again.put(here)
    report = again.finish(HANG)
    assert (report.uploaded, report.there) == (0, 1)


def test_a_checkpoint_of_the_same_name_and_sizes_but_of_another_run_is_replaced(tmp_path: Path) -> None:
    for folder, seed in (("one", 1), ("two", 2)):
        fit_digits(Upload(tmp_path / "there"), Checkpointer(keep_last=1), folder=tmp_path / folder, seed=seed)
    found = files(tmp_path / "there" / "digits" / "first")
    assert {name: found[name] for name in files(tmp_path / "two")} == files(tmp_path / "two")


def test_live_files_are_uploaded_while_the_run_trains(tmp_path: Path, watched: type[Watched]) -> None:
    live, seen = tmp_path / "there" / "digits" / "first" / "metrics.jsonl", []

    def look(run: Any) -> None:
        wait_until(live.exists, "the upload of metrics.jsonl")
        seen.append(run.clock.step)

    fit_digits(at_step(11, look), Upload(f"watched://{tmp_path}/there", every="2st"), folder=tmp_path / "here")
    assert seen == [11]


# -- what is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"to": "s4://bucket"}, r"fsspec has no 's4://'\. Did you mean"),
        ({"to": "sftp://me:hunter2@host/x"}, "the address has a password"),
        ({"to": "/tmp/x", "queue": 0}, "must be >= 1"),
        ({"to": "/tmp/x", "wait": -1.0}, "must be >= 0"),
        ({"to": "/tmp/x", "files": Path("metrics.jsonl")}, r"^Upload\(files=.*: must be a string"),
        (
            {"to": "/tmp/x", "files": [Path("metrics.jsonl")]},
            r"^Upload\(files=.*: must be a string",
        ),
        ({"to": "/tmp/x", "exclude": None}, r"^Upload\(exclude=None\): must be a string"),
    ],
)
def test_a_wrong_argument_is_named_and_no_password_is_shown(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words) as caught:
        Upload(**given)
    assert "hunter2" not in str(caught.value)


def test_a_missing_package_is_named_when_the_callback_is_made(monkeypatch: Any) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(remote, "find_spec", lambda name: None)
        with pytest.raises(SetupError, match=r"pip install 'hookline\[upload\]'"):
            Upload("/tmp/x")
    monkeypatch.delitem(import_module("fsspec.registry")._registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(SetupError, match=r"pip install 'hookline\[s3\]'"):
        Upload("s3://bucket")


def test_a_run_without_a_folder_has_nothing_to_upload_and_says_so(tmp_path: Path, caplog: Any) -> None:
    result = fit_digits(Upload(tmp_path / "there"))
    assert not result.failures
    assert "this run has no folder" in caplog.text
    assert not (tmp_path / "there").exists()


def test_a_fit_after_one_that_failed_at_once_uploads_as_any_other(tmp_path: Path) -> None:
    class Fails(Callback):
        """After the upload is set up, and before the run has a record."""

        reads = ("*",)
        after = ("Upload",)

        def on_setup(self, run: Any) -> None:
            if not failed:
                failed.append(True)
                raise ZeroDivisionError

    failed: list[bool] = []
    upload = Upload(tmp_path / "there")
    trainer = Trainer(folder=tmp_path / "here", name="digits/first", callbacks=[upload, Fails()], max_duration="1ep")
    model = TinyModel()
    with pytest.raises(ZeroDivisionError):
        fit(model=model, trainer=trainer)
    fit(model=model, trainer=trainer)
    assert upload.report is not None
    assert upload.report.is_well
    assert files(tmp_path / "there" / "digits" / "first") == files(tmp_path / "here")
