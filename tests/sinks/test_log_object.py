"""Any object with ``log(dict, step)`` is a sink, and what is none says what to write instead."""

from __future__ import annotations

import io
import logging
import math
import re
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from hookline.errors import ArgumentError
from hookline.events import Callback
from hookline.records import EventRow, MetricRow, Record, TextRow
from hookline.sinks import CSV, JSONL, Console, LogObject, Memory, RunInfo, Sink
from hookline.sinks.log_object import as_sink
from hookline.sinks.pump import Pump

Begin = Callable[..., RunInfo]


def row(step: int, name: str, value: Any = 0.5) -> MetricRow:
    return MetricRow(name, step, 0, value, "step", 0.0)


class ByPosition:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def log(self, metrics: dict[str, Any], number: int) -> None:
        self.calls.append((metrics, number))


class ByName(ByPosition):
    def log(self, data: dict[str, Any], *, step: int | None = None, commit: bool = True) -> None:  # type: ignore[override]
        self.calls.append((data, step))


class WithMore(ByPosition):
    def log(self, data: dict[str, Any], commit: bool | None = None, step: int | None = None) -> None:  # type: ignore[override]
        assert commit is None
        self.calls.append((data, step))


class Anything(ByPosition):
    def log(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append((args[0], kwargs.get("step")))


@pytest.mark.parametrize("kind", [ByPosition, ByName, WithMore, Anything])
def test_log_is_called_once_a_step_however_it_takes_the_step(kind: type[ByPosition]) -> None:
    target = kind()
    sink = as_sink(target)
    sink.write([row(1, "a"), row(1, "b", [1.0, math.inf]), row(2, "a")])
    sink.write([row(2, "b")])
    assert target.calls == [({"a": 0.5, "b": [1.0, math.inf]}, 1), ({"a": 0.5}, 2), ({"b": 0.5}, 2)]


def test_other_records_go_to_log_record_if_there_is_one_and_the_order_is_kept() -> None:
    text, event = TextRow("val/sample", 1, 0, 0.0, "text"), EventRow("end", 1, 0, 0.0)
    records: list[Record] = [row(1, "a"), text, row(1, "b"), event]
    plain = ByPosition()
    as_sink(plain).write(records)
    assert plain.calls == [({"a": 0.5}, 1), ({"b": 0.5}, 1)]

    class WithRecords(ByPosition):
        def log_record(self, record: Record) -> None:
            self.calls.append(record)

    full = WithRecords()
    as_sink(full).write(records)
    assert full.calls == [({"a": 0.5}, 1), text, ({"b": 0.5}, 1), event]


def test_flush_and_close_are_passed_on_if_the_object_has_them(begin: Begin) -> None:
    class WithBoth(ByPosition):
        def flush(self) -> None:
            self.calls.append("flush")

        def close(self) -> None:
            self.calls.append("close")

    target = WithBoth()
    for sink in (as_sink(target), as_sink(ByPosition())):
        sink.start(begin())
        sink.flush()
        sink.close()
    assert target.calls == ["flush", "close"]


def test_what_the_object_took_it_does_not_get_again_when_the_rest_is_tried_again(begin: Begin) -> None:
    class Flaky(ByPosition):
        fails = 2

        def log(self, metrics: dict[str, Any], number: int) -> None:
            if number == 2 and self.fails:
                self.fails -= 1
                raise ConnectionError
            super().log(metrics, number)

    target = Flaky()
    sink = as_sink(target)
    batch = [row(1, "a"), EventRow("eval", 1, 0, 0.0), row(2, "a"), row(3, "a")]
    for _ in range(2):
        with pytest.raises(ConnectionError):
            sink.write(batch)
    sink.write(batch)
    sink.write([row(1, "b")])
    assert target.calls == [({"a": 0.5}, 1), ({"a": 0.5}, 2), ({"a": 0.5}, 3), ({"b": 0.5}, 1)]


def test_a_batch_that_was_given_up_does_not_cut_the_next_one() -> None:
    class Down(ByPosition):
        down = True

        def log(self, metrics: dict[str, Any], number: int) -> None:
            if self.down and number > 1:
                raise ConnectionError
            super().log(metrics, number)

    target = Down()
    sink = as_sink(target)
    with pytest.raises(ConnectionError):
        sink.write([row(1, "a"), row(2, "a")])
    target.down = False
    sink.write([row(3, "a"), row(4, "a")])
    assert [number for _, number in target.calls] == [1, 3, 4]


def test_an_object_works_behind_a_pump_and_is_named_after_its_class(begin: Begin) -> None:
    target = ByPosition()
    sink = as_sink(target)
    assert isinstance(sink, LogObject)
    assert sink.name == "ByPosition"
    pump = Pump(sink.name, sink)
    pump.start(begin())
    pump.put([row(step, "a") for step in range(100)])
    assert pump.close(60).is_well
    assert [number for _, number in target.calls] == list(range(100))


def test_a_log_that_cannot_take_a_step_is_refused_before_the_run() -> None:
    class OnlyValues:
        def log(self, values: dict[str, float]) -> None: ...

    class Three:
        def log(self, name: str, value: float, step: int) -> None: ...

    with pytest.raises(
        ArgumentError, match=r"log\(values: 'dict\[str, float\]'\).* cannot be called as log\(values, step\)"
    ):
        as_sink(OnlyValues())
    with pytest.raises(ArgumentError, match="cannot be called"):
        as_sink(Three())


def test_a_log_that_is_written_in_c_is_believed() -> None:
    """It has no signature that could be read."""
    assert isinstance(as_sink(SimpleNamespace(log=max)), LogObject)


class Half:
    def start(self, info: RunInfo) -> None: ...
    def write(self, records: Sequence[Record]) -> None: ...


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("tensorboard", "Trainer(sinks=['tensorboard']): is a string. Write sinks=[hl.sinks.TensorBoard()]"),
        ("TensorBoard", "Write sinks=[hl.sinks.TensorBoard()]"),
        ("wandb", "Write sinks=[hl.sinks.WandB()]"),
        ("mlflow", "Write sinks=[hl.sinks.MLflow()]"),
        ("csv", "Write sinks=[hl.sinks.CSV()]"),
        ("all", "Give the object: sinks=[hl.sinks.TensorBoard()], or one of CSV(), "),
        (CSV, "Trainer(sinks=[CSV]): is a class. Write sinks=[CSV(…)]."),
        (ByPosition, "Trainer(sinks=[ByPosition]): is a class."),
        (Half(), "a Half has start, write but no flush, close. A sink needs them all"),
        (None, "a NoneType is not a sink. It needs start, write, flush, close, or log(values, step)"),
        (3, "a int is not a sink"),
        (print, "is not a sink"),
        (["csv"], "a list is not a sink"),
        (SimpleNamespace(log=5), "is not a sink"),
        (Callback(), "is a callback. Write callbacks=[…]."),
        (logging.getLogger("x"), "is a logger of messages. For lines of text write sinks=[hl.sinks.Console()]"),
        (io.StringIO(), "is a stream. To print lines to it, write sinks=[hl.sinks.Console(stream)]"),
        (sys.__stdout__, "is a stream. To print lines"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_what_is_no_sink_says_what_to_write_instead(given: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(says)):
        as_sink(given)


@pytest.mark.parametrize("sink", [CSV(), Console(), Memory(), JSONL("x.jsonl"), LogObject(ByPosition())])
def test_a_sink_stays_what_it_is(sink: Sink) -> None:
    assert as_sink(sink) is sink


def test_a_sink_that_can_also_log_is_a_sink() -> None:
    class Both(Memory):
        def log(self, values: Any, step: int) -> None: ...

    both = Both()
    assert as_sink(both) is both
