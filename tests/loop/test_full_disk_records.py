"""A full disk and the record of a run: rows wait in memory, and each stands in its file once and whole."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.errors import RecordWriteError
from hookline.sinks import jsonl
from hookline.testing import TinyModel, run_script, tiny_data

TEXT = "x" * 10_000  # larger than what is left of a page on a full file system


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


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


def fit(folder: Path, *callbacks: object, **options: Any) -> Any:
    trainer = hl.Trainer(folder=folder, callbacks=callbacks, log_every="1st", **{"max_duration": "8st", **options})
    return trainer.fit(TinyModel(), tiny_data(4), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)


def rows(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def steps_of(folder: Path, name: str) -> list[int]:
    return [row["step"] for row in rows(folder / "metrics.jsonl") if row["name"] == name]


def test_with_warn_rows_wait_for_room_and_none_is_lost_torn_or_written_twice(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = small_disk / "run"
    saves = hl.Checkpointer("2st", keep_last=1, on_save_error="warn", background=False)
    result = fit(folder, saves, Filling(small_disk / "others", full_at=3, free_at=6))
    assert result.clock.step == 8
    assert steps_of(folder, "train/sample") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert steps_of(folder, "train/loss") == [1, 2, 3, 4, 5, 6, 7, 8]
    images = [row for row in rows(folder / "metrics.jsonl") if row["name"] == "train/noise"]
    assert [row["file"] for row in images] == ["", "media/train/noise/step-00000006.png"]
    assert [row["name"] for row in rows(folder / "events.jsonl")].count("checkpoint_failed") == 1
    assert f"{folder / 'metrics.jsonl'}: No space left on device (errno 28); free 0 bytes" in caplog.text
    assert "the rows that waited in memory are in it" in caplog.text
    assert f"{folder / 'media' / 'train' / 'noise' / 'step-00000003.png'}: No space left" in caplog.text
    assert not (folder / "media" / "train" / "noise" / "step-00000003.png").exists()
    found = {report.sink: report for report in result.sinks}
    assert found["metrics.jsonl"].dropped == 0
    assert found["metrics.jsonl"].failures > 0


def test_with_warn_a_disk_that_stays_full_costs_rows_that_are_counted_and_the_run_ends_well(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = small_disk / "run"
    saves = hl.Checkpointer("2st", keep_last=1, on_save_error="warn", background=False)
    result = fit(folder, saves, Filling(small_disk / "others", full_at=3, free_at=99))
    assert result.clock.step == 8
    assert steps_of(folder, "train/sample") == [1, 2]
    dropped = next(report.dropped for report in result.sinks if report.sink == "metrics.jsonl")
    assert dropped >= 6
    assert f"metrics.jsonl: {dropped} rows are lost" in caplog.text


def test_rows_that_wait_have_a_limit(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_WAITING_BYTES", 25_000)
    folder = small_disk / "run"
    saves = hl.Checkpointer("100st", at_end=False, on_save_error="warn")
    result = fit(folder, saves, Filling(small_disk / "others", full_at=3, free_at=7))
    assert steps_of(folder, "train/sample") == [1, 2, 3, 4, 7, 8]
    assert next(report.dropped for report in result.sinks if report.sink == "metrics.jsonl") >= 2


@pytest.mark.parametrize("callbacks", [[], [hl.Checkpointer("100st", at_end=False)]], ids=["nothing saves", "raise"])
def test_without_warn_a_full_disk_is_an_error_with_the_path_and_the_free_space(
    small_disk: Path, callbacks: list[object]
) -> None:
    folder = small_disk / "run"
    with pytest.raises(hl.HooklineError, match=r"metrics\.jsonl: No space left on device .*; free 0 bytes") as caught:
        fit(folder, *callbacks, Filling(small_disk / "others", full_at=3, free_at=99))
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

def fit(*callbacks, **options):
    saves = hl.Checkpointer("2st", keep_last=None, at_end=False, on_save_error="warn", background=False)
    trainer = hl.Trainer(folder=sys.argv[1], callbacks=[saves, *callbacks], log_every="1st", **options)
    return trainer.fit(TinyModel(), tiny_data(4), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
"""


def test_a_checkpoint_counts_the_rows_that_wait_when_it_is_saved(tmp_path: Path) -> None:
    """A resume goes back to the rows of the checkpoint: those that waited belong to it, later ones do not."""
    script = (
        LIMITED
        + """
fit(Limits(), max_duration="8st")
fit(max_duration="5st", resume=f"{sys.argv[1]}/checkpoints/step-00000004")
"""
    )
    done = run_script(script, args=[tmp_path / "run"])
    assert done.returncode == 0, done.stderr
    assert "is shorter" not in done.stderr
    assert steps_of(tmp_path / "run", "train/loss") == [1, 2, 3, 4, 5]
    assert steps_of(tmp_path / "run", "train/sample") == [1, 2, 3, 4]


def test_a_rollback_keeps_the_rows_that_wait_and_drops_those_that_it_takes_back(tmp_path: Path) -> None:
    script = (
        LIMITED
        + """
result = fit(Limits(), Back(), max_duration="8st")
print(json.dumps(result.history.steps("train/loss")))
"""
    )
    done = run_script(script, args=[tmp_path / "run"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert steps_of(tmp_path / "run", "train/loss") == [1, 2, 3, 4, 5, 6, 7, 8]
