"""A full disk and the record of a run: rows wait in memory, and each stands in its file once and whole."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import hookline as hl
from hookline.errors import RecordWriteError
from hookline.sinks import jsonl
from hookline.testing import run_script
from tests.support import fit, json_lines, small_disk

TEXT = "x" * 10_000  # larger than what is left of a page on a full file system


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", megabytes=2) as path:
        yield path


class Filling(hl.Callback):
    """Fills the disk at one step and makes room at another; logs a text and an image at each step."""

    def __init__(self, path: Path, full_at: int, free_at: int) -> None:
        self.path, self.full_at, self.free_at = path, full_at, free_at

    def on_train_step_end(self, run: Any) -> None:
        if run.clock.step == self.full_at:
            with pytest.raises(OSError, match="No space left"):
                self.path.write_bytes(bytes(2**23))
        elif run.clock.step == self.free_at:
            self.path.unlink()
        run.log_text("sample", f"{run.clock.step} {TEXT}")
        if run.clock.step in (self.full_at, self.free_at):
            run.log_image("noise", torch.rand(3, 60, 60))


train = partial(fit, max_duration="8st", log_every="1st")


def rows(path: Path) -> list[dict[str, Any]]:
    assert path.read_text().endswith("\n")
    return json_lines(path)


def steps_of(folder: Path, name: str) -> list[int]:
    return [row["step"] for row in rows(folder / "metrics.jsonl") if row["name"] == name]


def test_with_warn_rows_wait_for_room_and_none_is_lost_torn_or_written_twice(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = disk / "run"
    saves = hl.Checkpointer("2st", keep_last=1, on_error="warn", background=False)
    result = train(saves, Filling(disk / "others", full_at=3, free_at=6), folder=folder)
    assert result.clock.step == 8
    assert steps_of(folder, "train/sample") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert steps_of(folder, "train/loss") == [1, 2, 3, 4, 5, 6, 7, 8]
    images = [row for row in rows(folder / "metrics.jsonl") if row["name"] == "train/noise"]
    assert [row["file"] for row in images] == ["", "media/train/noise/step-00000006.png"]
    assert [row["name"] for row in rows(folder / "events.jsonl")].count("checkpoint_failed") == 1
    assert f"{folder / 'metrics.jsonl'}: No space left on device (errno 28). Free: 0 bytes" in caplog.text
    assert "the rows that waited in memory are in it" in caplog.text
    assert f"{folder / 'media' / 'train' / 'noise' / 'step-00000003.png'}: No space left" in caplog.text
    assert not (folder / "media" / "train" / "noise" / "step-00000003.png").exists()
    found = {report.sink: report for report in result.sinks}
    assert found["metrics.jsonl"].dropped == 0
    assert found["metrics.jsonl"].failures > 0


def test_with_warn_a_disk_that_stays_full_costs_rows_that_are_counted_and_the_run_ends_well(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = disk / "run"
    saves = hl.Checkpointer("2st", keep_last=1, on_error="warn", background=False)
    result = train(saves, Filling(disk / "others", full_at=3, free_at=99), folder=folder)
    assert result.clock.step == 8
    assert steps_of(folder, "train/sample") == [1, 2]
    dropped = next(report.dropped for report in result.sinks if report.sink == "metrics.jsonl")
    assert dropped >= 6
    assert f"metrics.jsonl: {dropped} rows are lost" in caplog.text


def test_rows_that_wait_have_a_limit(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_WAITING_BYTES", 25_000)
    folder = disk / "run"
    saves = hl.Checkpointer("100st", at_end=False, on_error="warn")
    result = train(saves, Filling(disk / "others", full_at=3, free_at=7), folder=folder)
    assert steps_of(folder, "train/sample") == [1, 2, 3, 4, 7, 8]
    assert next(report.dropped for report in result.sinks if report.sink == "metrics.jsonl") >= 2


@pytest.mark.parametrize("callbacks", [[], [hl.Checkpointer("100st", at_end=False)]], ids=["nothing saves", "raise"])
def test_without_warn_a_full_disk_is_an_error_with_the_path_and_the_free_space(
    disk: Path, callbacks: list[object]
) -> None:
    folder = disk / "run"
    with pytest.raises(hl.HooklineError, match=r"metrics\.jsonl: No space left on device .*\. Free: 0 bytes") as caught:
        train(*callbacks, Filling(disk / "others", full_at=3, free_at=99), folder=folder)
    error = caught.value
    assert isinstance(error, RecordWriteError)
    assert (error.path, error.errno, error.free) == (str(folder / "metrics.jsonl"), errno.ENOSPC, 0)
    assert steps_of(folder, "train/sample") == [1, 2]


LIMITED = """
import json, resource, sys, torch, hookline as hl
from hookline.testing import TinyModel, tiny_data

class Limits(hl.Callback):
    # metrics.jsonl may grow until step 2 and again from step 7 on. Checkpoints are smaller than the limit.
    def on_train_step_end(self, run):
        run.log_text("sample", "x" * (500_000 if run.clock.step == 1 else 2_000))
        if run.clock.step in (2, 7):
            size = (run.folder / "metrics.jsonl").stat().st_size
            limit = size + 1_000 if run.clock.step == 2 else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

class Back(hl.Callback):
    # Takes back steps 5 and 6, once.
    def __init__(self):
        self.snapshot = None

    def on_step_settled(self, run):
        if run.clock.step == 4 and self.snapshot is None:
            self.snapshot = run.snapshot()
        elif run.clock.step == 6 and self.snapshot != "used":
            run.roll_back(self.snapshot)
            self.snapshot = "used"

def train(folder, *callbacks, **options):
    saves = hl.Checkpointer("2st", keep_last=None, at_end=False, on_error="warn", background=False)
    trainer = hl.Trainer(folder=folder, callbacks=[saves, *callbacks], log_every="1st", **options)
    return trainer.fit(TinyModel(), tiny_data(4), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)

resumed, rolled_back = sys.argv[1:]
train(resumed, Limits(), max_duration="8st")
train(resumed, max_duration="5st", resume=f"{resumed}/checkpoints/step-00000004")
result = train(rolled_back, Limits(), Back(), max_duration="8st")
print(json.dumps(result.history.steps("train/loss")))
"""


def test_rows_that_wait_belong_to_the_checkpoint_and_to_the_snapshot_that_are_taken_then(tmp_path: Path) -> None:
    """A resume and a rollback keep the rows that waited, and drop those that came later."""
    resumed, rolled_back = tmp_path / "resumed", tmp_path / "rolled back"
    done = run_script(LIMITED, args=[resumed, rolled_back])
    assert done.returncode == 0, done.stderr
    assert "is shorter" not in done.stderr
    assert steps_of(resumed, "train/loss") == [1, 2, 3, 4, 5]
    assert steps_of(resumed, "train/sample") == [1, 2, 3, 4]
    assert json.loads(done.stdout.splitlines()[-1]) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert steps_of(rolled_back, "train/loss") == [1, 2, 3, 4, 5, 6, 7, 8]
