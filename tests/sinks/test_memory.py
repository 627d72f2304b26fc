"""What was logged can be looked at in a notebook, while a run goes on and after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookline.errors import ArgumentError
from hookline.records import EventRow, MetricRow, TextRow
from hookline.sinks import Memory, RunInfo

Begin = Callable[..., RunInfo]


def row(step: int, name: str = "train/loss") -> MetricRow:
    return MetricRow(name, step, 0, step / 2, "step", float(step))


def test_all_records_are_kept_and_metrics_are_found_by_name(begin: Begin) -> None:
    memory = Memory()
    memory.start(begin())
    records = [row(1), row(1, "lr/SGD"), TextRow("train/loss", 1, 0, 0.0, "no metric"), EventRow("end", 1, 0, 0.0)]
    memory.write(records[:1])
    memory.write(records[1:])
    memory.close()
    assert memory.records == records
    assert memory.metrics("train/loss") == [row(1)]
    assert memory.metrics("val/loss") == []


def test_the_newest_are_kept_if_there_is_a_limit(begin: Begin) -> None:
    memory = Memory(most=3)
    memory.start(begin())
    memory.write([row(step) for step in range(10)])
    assert memory.records == [row(7), row(8), row(9)]
    memory.start(begin(Path("run"), step=5, earlier=[row(step) for step in range(6)]))
    assert memory.records == [row(3), row(4), row(5)]


def test_the_list_that_was_given_does_not_change_later() -> None:
    memory = Memory()
    memory.write([row(1)])
    before = memory.records
    before.append(row(7))
    memory.write([row(2)])
    assert (len(before), memory.records) == (2, [row(1), row(2)])


def test_a_new_run_forgets_the_last_one_and_a_resume_remembers(begin: Begin) -> None:
    memory = Memory()
    memory.start(begin(Path("run")))
    memory.write([row(1), row(2), row(3)])
    memory.start(begin(Path("run"), step=2, earlier=[row(1), row(2)]))
    assert memory.records == [row(1), row(2)]
    memory.start(begin(Path("run")))
    assert memory.records == []


def test_a_second_fit_without_a_folder_goes_on_from_what_is_in_memory(begin: Begin) -> None:
    memory = Memory()
    memory.start(begin(None))
    memory.write([row(1), row(2), row(3)])
    memory.close()
    memory.start(begin(None, step=2))
    memory.write([row(3)])
    assert memory.records == [row(1), row(2), row(3)]
    memory.start(begin(None))
    assert memory.records == []


def test_it_can_be_read_while_it_is_written() -> None:
    memory = Memory(most=50)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            memory.write([row(step) for step in range(20)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert len(memory.metrics("train/loss")) <= 50
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "10"])
def test_a_limit_that_is_none_is_refused(most: Any) -> None:
    with pytest.raises(ArgumentError, match=r"Memory\(most=.*\): must be"):
        Memory(most)
