"""``run.json`` comes back as it was written, is never seen half written, and a wrong one is refused in words."""

from __future__ import annotations

import doctest
import json
import os
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.records import run_file as module
from hookline.records.run_file import FILE, CallbackEntry, CostEntry, RunFile, SessionEntry

TEXTS = st.text(max_size=10)
TABLES = st.dictionaries(TEXTS, st.none() | st.booleans() | st.integers() | TEXTS | st.lists(TEXTS), max_size=3)
SESSIONS = st.builds(
    SessionEntry,
    started=TEXTS,
    status=st.sampled_from(["running", "finished", "stopped", "interrupted", "preempted", "failed"]),
    ended=st.none() | TEXTS,
    seconds=st.floats(0, 1e9),
    stopped_by=st.none() | TEXTS,
    costs=st.lists(st.builds(CostEntry, TEXTS, TEXTS, st.integers(0), st.floats(0, 1e9)), max_size=2).map(tuple),
    failures=st.lists(TEXTS, max_size=2).map(tuple),
    sinks=st.lists(TEXTS, max_size=2).map(tuple),
)
RUNS = st.builds(
    RunFile,
    project=TEXTS,
    name=TEXTS,
    run_id=TEXTS,
    started=TEXTS,
    seed=st.none() | st.integers(0),
    config=TABLES,
    settings=TABLES,
    arguments=st.lists(TEXTS, max_size=3).map(tuple),
    callbacks=st.lists(st.builds(CallbackEntry, TEXTS, TEXTS, st.booleans()), max_size=2).map(tuple),
    git=st.none() | TABLES,
    sessions=st.lists(SESSIONS, max_size=2).map(tuple),
)
RUN = RunFile("digits", "first", run_id="a1", started="2030-01-01T00:00:00+00:00")


@given(run=RUNS)
def test_a_run_comes_back_as_it_was(run: RunFile) -> None:
    assert RunFile.from_json(run.to_json()) == run


def test_a_file_is_read_from_the_folder_that_it_was_written_to(tmp_path: Path) -> None:
    RUN.write(tmp_path)
    assert RunFile.read(tmp_path) == RUN
    assert os.listdir(tmp_path) == [FILE]


def test_people_can_read_it(tmp_path: Path) -> None:
    replace(RUN, name="größer", config={"lr": 0.1}).write(tmp_path)
    text = (tmp_path / FILE).read_text(encoding="utf-8")
    assert '\n  "name": "größer",\n' in text
    assert text.endswith("}\n")


def test_an_argument_that_is_no_utf_8_neither_stops_the_run_nor_breaks_the_json(tmp_path: Path) -> None:
    """A file name of another system arrives in ``sys.argv`` as half of a surrogate pair."""
    run = replace(RUN, arguments=("train.py", os.fsdecode(b"caf\xe9.yaml")))
    run.write(tmp_path)
    assert RunFile.read(tmp_path) == run
    assert json.loads((tmp_path / FILE).read_bytes())["arguments"][1] == "caf\udce9.yaml"


def test_the_status_is_that_of_the_newest_session() -> None:
    assert RUN.status == "running"
    first = RUN.with_session(SessionEntry("10:00"))
    ended = first.with_session(SessionEntry("10:00", status="preempted", last_step=5), again=True)
    assert (len(ended.sessions), ended.status) == (1, "preempted")
    resumed = ended.with_session(SessionEntry("11:00", first_step=5))
    assert ([session.started for session in resumed.sessions], resumed.status) == (["10:00", "11:00"], "running")


def test_a_run_of_a_newer_version_can_be_read_without_what_is_new() -> None:
    found = json.loads(RUN.with_session(SessionEntry("10:00", costs=(CostEntry("a", "b", 1, 0.5),))).to_json())
    found["mood"] = "good"
    found["sessions"][0]["weather"] = "fine"
    found["sessions"][0]["costs"][0]["joules"] = 3
    assert RunFile.from_json(json.dumps(found)).sessions[0].costs == (CostEntry("a", "b", 1, 0.5),)


def test_a_run_that_says_only_what_it_must_can_be_read() -> None:
    least = {"format": 1, "project": "digits", "name": "first", "run_id": "a1", "started": "now"}
    assert RunFile.from_json(json.dumps(least)) == replace(RUN, started="now")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "torn {",
        "null",
        "[]",
        "3",
        "{}",
        '{"format": 2}',
        '{"format": 1}',
        *(
            json.dumps({**json.loads(RUN.to_json()), **change})
            for change in (
                {"sessions": 5},
                {"sessions": [5]},
                {"sessions": [{}]},
                {"callbacks": ["EMA"]},
                {"callbacks": None},
                {"config": None},
                {"config": [1]},
                {"versions": "torch"},
                {"arguments": 1},
            )
        ),
    ],
)
def test_what_is_no_run_is_one_kind_of_error(wrong: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(wrong)
    with pytest.raises(ValueError, match=r"."):
        RunFile.read(tmp_path)


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RunFile.read(tmp_path)


def test_bytes_that_are_no_text_are_a_wrong_run_and_no_other_error(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="utf-8"):
        RunFile.read(tmp_path)


def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RUN.write(tmp_path)

    def no_space(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", no_space)
    with pytest.raises(OSError, match="No space left"):
        replace(RUN, name="second").write(tmp_path)
    assert os.listdir(tmp_path) == [FILE]
    assert RunFile.read(tmp_path) == RUN


def test_a_reader_sees_the_old_file_or_the_new_one_and_never_a_part(tmp_path: Path) -> None:
    """``hookline watch`` reads while a run writes."""
    runs = [replace(RUN, name=str(number), config={"long": "x" * 100_000 * number}) for number in range(3)]
    runs[0].write(tmp_path)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for run in runs:
                run.write(tmp_path)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [RunFile.read(tmp_path) for _ in range(50)]
    finally:
        stop.set()
        writer.join()
    assert all(run in runs for run in seen)


def test_every_field_is_written(tmp_path: Path) -> None:
    found: dict[str, Any] = json.loads(RUN.to_json())
    assert set(found) == {"format", *(field.name for field in fields(RunFile))}


def test_the_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0
