"""Sinks in real runs: what they hold is what happened, also after a kill, and they change nothing."""

from __future__ import annotations

import csv
import io
import json
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import hookline as hl
from hookline.records import MetricRow, Record, from_json
from hookline.sinks import CSV, JSONL, Console, Memory, RunInfo
from hookline.testing import TinyModel, run_script, tiny_data
from tests.support import fit, same_tensors, set_sink_wait, state_of

SCRIPT = """
    import signal, sys
    from pathlib import Path
    import torch
    import hookline as hl
    from hookline.callbacks import Checkpointer
    from hookline.loop import Trainer
    from hookline.sinks import CSV, JSONL
    from hookline.testing import TinyModel, tiny_data

    folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])

    @hl.on("train_step_end")
    def note(run):
        run.log({"margin": 1 / run.clock.step, "matrix": torch.eye(2) * run.clock.step})
        if run.clock.step == kill_at:
            signal.raise_signal(signal.SIGKILL)

    Trainer(
        max_duration="4ep", log_every="2st", folder=folder, resume="auto", seed=7,
        callbacks=[Checkpointer(every="3st"), note], sinks=[CSV(), JSONL(folder.parent / "copy.jsonl")],
    ).fit(
        TinyModel(), tiny_data(5), tiny_data(2), loss=torch.nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
"""


def in_csv(path: Path) -> list[tuple[str, int, str]]:
    with path.open(newline="") as file:
        return [(row["name"], int(row["step"]), row["value"]) for row in csv.DictReader(file)]


def in_json(path: Path) -> list[tuple[str, int, str]]:
    rows = [from_json(line) for line in path.read_text().splitlines()]
    return [(row.name, row.step, _cell(row.value)) for row in rows if isinstance(row, MetricRow)]


def _cell(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list) else repr(value)


def test_after_kills_and_resumes_every_name_and_step_is_there_once_and_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    for kill_at in (8, 14, 16):
        assert run_script(SCRIPT, args=[tmp_path / "killed" / "run", kill_at]).returncode == -signal.SIGKILL
    for place in ("killed", "whole"):
        done = run_script(SCRIPT, args=[tmp_path / place / "run", 0])
        assert done.returncode == 0, done.stderr
    whole = in_json(tmp_path / "whole" / "run" / "metrics.jsonl")
    assert {name for name, _, _ in whole} == {
        *("train/loss", "train/loss_epoch", "train/margin", "train/margin_epoch"),
        *("train/matrix", "train/matrix_epoch", "val/loss"),
    }
    for found in (
        in_json(tmp_path / "killed" / "run" / "metrics.jsonl"),
        in_json(tmp_path / "killed" / "copy.jsonl"),
        in_csv(tmp_path / "killed" / "run" / "metrics.csv"),
        in_csv(tmp_path / "whole" / "run" / "metrics.csv"),
        in_json(tmp_path / "whole" / "copy.jsonl"),
    ):
        assert max(Counter((name, step) for name, step, _ in found).values()) == 1
        assert found == whole


def train(sinks: Sequence[Any], folder: Path | bool = False) -> hl.Result:
    model, data = TinyModel(dropout=0.2), tiny_data(5)
    options: dict[str, Any] = {"log_every": "2st", "folder": folder, "sinks": sinks, "seed": 3}
    return fit(model=model, train=data, val=tiny_data(2), **options)  # type: ignore[no-any-return]


@pytest.mark.parametrize("with_folder", [True, False])
def test_memory_has_what_the_history_has(with_folder: bool, tmp_path: Path) -> None:
    memory = Memory()
    result = train([memory], tmp_path if with_folder else False)
    metrics = [row for row in memory.records if isinstance(row, MetricRow)]
    assert sorted(metrics, key=lambda row: (row.step, row.name)) == sorted(
        result.history.rows(), key=lambda row: (row.step, row.name)
    )
    assert [row.value for row in memory.metrics("val/loss")] == result.history["val/loss"]
    assert (memory.records[0].name, memory.records[-1].name) == ("start", "end")


def test_the_console_and_an_object_of_the_user_see_the_run() -> None:
    class Mine:
        def __init__(self) -> None:
            self.seen: dict[tuple[str, int], Any] = {}

        def log(self, values: dict[str, Any], step: int) -> None:
            self.seen |= {(name, step): value for name, value in values.items()}

    stream, mine = io.StringIO(), Mine()
    result = train([Console(stream), mine])
    assert mine.seen == {(row.name, row.step): row.value for row in result.history.rows()}
    lines = stream.getvalue().splitlines()
    assert lines[0] == "step 0  start"
    assert [line.split("  ")[1].split(" ")[0] for line in lines if "val/loss" in line] == ["val/loss", "val/loss"]


class Fails:
    """Raises, or waits for ever, in every call."""

    def __init__(self, how: str) -> None:
        self._how = how
        self.let_go = threading.Event()

    def start(self, info: RunInfo) -> None:
        self._fail()

    def write(self, records: Sequence[Record]) -> None:
        self._fail()

    def flush(self) -> None:
        self._fail()

    def close(self) -> None:
        self._fail()

    def _fail(self) -> None:
        if self._how == "exit":
            raise SystemExit(3)
        if self._how == "hang":
            self.let_go.wait(300)
        raise ConnectionError("the network is down")


@pytest.mark.parametrize("how", ["raise", "exit", "hang"])
def test_a_sink_that_fails_changes_no_weight_and_takes_nothing_from_the_others(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sink_wait(monkeypatch, 0.2)
    memory, bad = Memory(), Fails(how)
    try:
        result = train([bad, CSV(), memory, JSONL(tmp_path / "copy.jsonl")], tmp_path / "run")
    finally:
        bad.let_go.set()
    assert same_tensors(state_of(result.model), state_of(train([]).model))
    values = [(row.name, row.step, _cell(row.value)) for row in memory.records if isinstance(row, MetricRow)]
    assert len(values) == len(result.history.rows())
    assert values == in_csv(tmp_path / "run" / "metrics.csv") == in_json(tmp_path / "copy.jsonl")
