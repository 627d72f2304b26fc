"""``run.roll_back``: the steps since a snapshot are taken back, their data is not read again."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torchmetrics import SumMetric

from hookline.callbacks import Checkpointer
from hookline.checkpoint import Store
from hookline.errors import ScopeError, SetupError
from hookline.events import Callback, on
from hookline.sinks import CSV, Memory
from hookline.testing import Recorder, tiny_data
from tests.support import fit, json_lines, same_tensors
from tests.support.inside import set_accumulation


class GoBack(Callback):
    """Takes a snapshot after ``keep`` batches, and goes back to it in the step of batch ``at``, once."""

    state = ("went",)

    def __init__(self, keep: int, at: int, hook: str = "gradients_ready") -> None:
        self.keep, self.at, self.hook = keep, at, hook
        self.snapshot: Any = None
        self.went = 0

    def on_step_settled(self, run: Any) -> None:
        if run.clock.batch == self.keep:
            self.snapshot = run.snapshot()

    def on_gradients_ready(self, run: Any) -> None:
        self._maybe(run, "gradients_ready", run.clock.batch)

    def on_train_step_end(self, run: Any) -> None:
        self._maybe(run, "train_step_end", run.clock.batch)

    def _maybe(self, run: Any, hook: str, batch: int) -> None:
        if hook == self.hook and batch == self.at and not self.went:
            self.went += 1
            run.roll_back(self.snapshot)


class Counts(Callback):
    state = ("steps",)

    def __init__(self) -> None:
        self.steps = 0
        self.events: list[str] = []

    def on_train_step_end(self, run: Any) -> None:
        self.steps += 1

    def on_rollback(self, run: Any) -> None:
        self.events.append(f"rollback to {run.clock.step}")


adam_fit = partial(
    fit,
    max_duration="14st",
    log_every="1st",
    optimizer=partial(torch.optim.Adam, lr=0.05),
    scheduler=partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9),
)


@pytest.mark.parametrize("hook", ["gradients_ready", "train_step_end"])
def test_it_ends_as_a_run_that_never_saw_these_batches(hook: str) -> None:
    data = tiny_data(batches=20)
    result = adam_fit(GoBack(5, 9, hook), train=data)
    clean = adam_fit(train=[*data[:5], *data[9:]])
    assert result.clock.step == clean.clock.step == 14
    assert result.clock.batch == 14 + 4
    assert same_tensors(result.model.state_dict(), clean.model.state_dict())
    assert result.history["train/loss"] == clean.history["train/loss"]
    assert result.history.steps("train/loss") == list(range(1, 15))


def test_other_callbacks_go_back_and_hear_of_it() -> None:
    counts = Counts()
    adam_fit(counts, GoBack(5, 9), train=tiny_data(batches=20))
    assert counts.events == ["rollback to 5"]
    assert counts.steps == 14


def test_rows_are_in_files_and_sinks_once(tmp_path: Path) -> None:
    memory = Memory()
    adam_fit(GoBack(5, 9), train=tiny_data(batches=20), folder=tmp_path / "run", sinks=[CSV(), memory])
    rows = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert max(Counter((row["name"], row["step"]) for row in rows).values()) == 1
    steps = [row["step"] for row in rows if row["name"] == "train/loss"]
    assert steps == list(range(1, 15))
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert len(lines) == 1 + 14, lines
    assert [row.step for row in memory.metrics("train/loss")] == list(range(1, 15))
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"rollback"' in events
    assert "by GoBack: 3 steps taken back" in events


def test_the_checkpoint_after_a_rollback_is_newer_than_those_before(tmp_path: Path) -> None:
    """Its step is lower: without a generation of its own, a resume would go on from what was taken back."""
    seen: list[tuple[int, int]] = []

    class Watch(Callback):
        def on_checkpoint_saved(self, run: Any) -> None:
            latest = Store(tmp_path / "run" / "checkpoints").latest()
            assert latest is not None
            assert latest.path == run.checkpoint
            seen.append((latest.about.generation, latest.about.step))

    callbacks = [Checkpointer(every="2st", keep_last=None), GoBack(5, 9), Watch()]
    adam_fit(*callbacks, train=tiny_data(batches=20), folder=tmp_path / "run", max_duration="9st")
    assert seen == [(0, 2), (0, 4), (0, 6), (0, 8), (1, 6), (1, 8), (1, 9)]


def test_a_resume_after_a_rollback_is_exact(tmp_path: Path) -> None:
    data = tiny_data(batches=20)
    whole = adam_fit(Checkpointer(every="1st", keep_last=None), GoBack(5, 9), train=data, folder=tmp_path / "whole")
    saved = [c for c in Store(tmp_path / "whole" / "checkpoints").checkpoints() if c.about.generation == 1]
    middle = next(c.path for c in saved if c.about.step == 8)
    again = adam_fit(Checkpointer(every="1st"), GoBack(5, 9), train=data, folder=tmp_path / "again", resume=middle)
    assert again.clock.batch == whole.clock.batch
    assert same_tensors(again.model.state_dict(), whole.model.state_dict())
    assert again.history["train/loss"] == whole.history["train/loss"]


def test_over_the_edge_of_an_epoch_the_data_goes_on_and_steps_are_made_anew() -> None:
    data = tiny_data(batches=7)
    result = adam_fit(GoBack(5, 9), train=data, max_duration="2ep")
    assert result.clock.epoch == 2
    assert result.clock.batch == 14
    assert result.clock.step == 5 + 5
    assert result.history.steps("train/loss") == list(range(1, 11))


def test_a_snapshot_inside_a_step_is_refused() -> None:
    class Inside(Callback):
        def on_gradients_ready(self, run: Any) -> None:
            run.snapshot()

    with pytest.raises(ScopeError, match="inside a step"):
        adam_fit(Inside(), train=tiny_data(batches=3), max_duration="1ep")


# -- at the edges ------------------------------------------------------------------------------------


class Reads(Callback):
    """Reads the mean of the epoch when it is over."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_epoch_end(self, run: Any) -> None:
        self.seen.append(run.metrics["train/loss_epoch"])


@pytest.mark.parametrize("hook", ["gradients_ready", "train_step_end"])
def test_at_the_last_batch_of_an_epoch_the_epoch_ends_all_the_same(hook: str, tmp_path: Path) -> None:
    """Its row, its reader and its checkpoint were taken back with the step."""
    reads = Reads()
    callbacks = [reads, GoBack(5, 7, hook), Checkpointer(every="1ep", keep_last=None)]
    result = adam_fit(*callbacks, train=tiny_data(batches=7), folder=tmp_path / "run", max_duration="3ep")
    assert len(reads.seen) == 3
    assert result.history.steps("train/loss_epoch") == [5, 12, 19]
    saved = Store(tmp_path / "run" / "checkpoints").checkpoints()
    assert sorted(c.about.epoch for c in saved) == [1, 2, 3]


def test_an_evaluation_that_was_due_at_a_step_that_is_taken_back_is_made_when_it_is_due_again(tmp_path: Path) -> None:
    data = tiny_data(batches=20)
    options = {"max_duration": "12st", "folder": tmp_path / "run", "eval_every": "4st"}
    result = fit(GoBack(5, 8), train=data, val=data[:2], **options)
    assert result.history.steps("val/loss") == [4, 8, 12]
    rows = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if row["name"] == "val/loss"] == [4, 8, 12]


def test_at_the_last_step_of_a_run_it_goes_on() -> None:
    recorder = Recorder()
    result = adam_fit(GoBack(5, 14), recorder, train=tiny_data(batches=30), max_duration="14st")
    assert result.clock.step == 14
    assert recorder.names.count("train_epoch_end") == 1
    assert recorder.names.count("rollback") == 1


@pytest.mark.parametrize("hook", ["train_step_end", "step_settled"])
def test_what_is_due_at_the_step_of_the_snapshot_is_there_once(hook: str) -> None:
    class Keep(Callback):
        taken: Any = None
        went = False

        def on_event(self, event: str, run: Any) -> None:
            if event == hook and run.clock.step == 4 and self.taken is None:
                self.taken = run.snapshot()
            if event == "train_step_end" and run.clock.step == 6 and not self.went:
                self.went = True
                run.roll_back(self.taken)

    data = tiny_data(batches=20)

    options: Any = {"val": data[:2], "log_every": "4st", "eval_every": "4st", "max_duration": "12st"}
    result, clean = fit(Keep(), train=data, **options), fit(train=[*data[:4], *data[6:]], **options)
    assert result.history.steps("train/loss") == clean.history.steps("train/loss") == [4, 8, 12]
    assert result.history["train/loss"] == clean.history["train/loss"]
    assert result.history.steps("val/loss") == [4, 8, 12]


@pytest.mark.parametrize("event", ["eval_end", "epoch_end", "step_settled"])
def test_one_that_is_asked_for_at_the_edge_is_made_at_that_edge(event: str) -> None:
    """Also at the last edge of a run, which then goes on."""

    class Ask(Callback):
        taken: Any = None
        went = False

        def on_event(self, name: str, run: Any) -> None:
            if name == "train_step_end" and run.clock.step == 2:
                self.taken = run.snapshot()
            if name == event and run.clock.step == 8 and not self.went:
                self.went = True
                run.roll_back(self.taken)

    data = tiny_data(batches=4)
    result = fit(Ask(), train=data, val=data[:1], max_duration="8st")
    assert result.clock.step == 8
    assert result.clock.batch == 8 + 6


# -- what goes back ----------------------------------------------------------------------------------


def test_a_snapshot_in_an_evaluation_is_refused() -> None:
    """Its model is in eval mode: training would go on without dropout."""

    class Best(Callback):
        def on_eval_end(self, run: Any) -> None:
            run.snapshot()

    data = tiny_data(batches=3)
    with pytest.raises(ScopeError, match="or an evaluation"):
        fit(Best(), train=data, val=data, max_duration="1ep")


@pytest.mark.parametrize("wrong", [None, {}, {"weights": {}}])
def test_what_is_no_snapshot_is_refused_where_it_is_given(wrong: Any) -> None:
    class Wrong(Callback):
        def on_train_step_end(self, run: Any) -> None:
            run.roll_back(wrong)

    with pytest.raises(SetupError, match=r"give what run\.snapshot\(\) returned"):
        adam_fit(Wrong(), train=tiny_data(batches=3), max_duration="1ep")


class Listed(Callback):
    """Has a list as its state, and changes the parts of something."""

    structural = True
    state = ("steps",)

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_train_step_end(self, run: Any) -> None:
        self.steps.append(run.clock.step)


def test_a_snapshot_can_be_gone_back_to_twice() -> None:
    class Twice(GoBack):
        def _maybe(self, run: Any, hook: str, batch: int) -> None:
            if hook == "gradients_ready" and batch in (9, 12):
                run.roll_back(self.snapshot)

    listed = Listed()
    result = adam_fit(Twice(5, 9), listed, train=tiny_data(batches=30))
    assert listed.steps == list(range(1, 15))
    assert result.clock.step == 14


def test_a_window_that_was_made_longer_since_is_as_it_was() -> None:
    class Longer(Callback):
        def on_train_step_end(self, run: Any) -> None:
            if run.clock.batch == 7:
                set_accumulation(run, 2)

    result = adam_fit(Longer(), GoBack(5, 11), train=tiny_data(batches=40))
    assert result.clock.step == 14
    assert result.clock.batch == 11 + 9


def test_a_stop_because_of_a_step_that_is_taken_back_is_forgotten() -> None:
    class Stop(Callback):
        def on_train_step_end(self, run: Any) -> None:
            if run.clock.batch == 9:
                run.stop("seen too much")

    result = adam_fit(Stop(), GoBack(5, 9, "train_step_end"), train=tiny_data(batches=40))
    assert result.clock.step == 14
    assert "max_duration" in result.stop_reason


class Sums(Callback):
    """Counts batches with an object of torchmetrics, beside a plain sum of the same."""

    def __init__(self, *, held: bool) -> None:
        metric = SumMetric()
        self.metric = metric if held else None  # one that it holds is saved with its state
        self._hidden = [metric]

    def on_train_step_end(self, run: Any) -> None:
        self._hidden[0].update(1.0)
        run.log({"object": self._hidden[0]})
        run.log({"plain": 1.0}, reduce="sum")


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize(("keep", "at"), [(5, 9), (5, 12)], ids=["in one epoch", "over an edge"])
def test_metric_objects_go_back_as_numbers_do(keep: int, at: int, held: bool) -> None:
    options = {"train": tiny_data(batches=10), "max_duration": "20st", "log_every": "100st"}
    result = fit(Sums(held=held), GoBack(keep, at), **options)
    assert result.history["train/object_epoch"] == result.history["train/plain_epoch"]


class Hangs:
    """A sink that never comes back from its first row."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def start(self, info: Any) -> None: ...

    def write(self, records: Any) -> None:
        self.release.wait()

    def flush(self) -> None: ...

    def close(self) -> None: ...


def test_no_sink_is_waited_for_and_each_is_in_the_summary(tmp_path: Path) -> None:
    sink, seen, earlier = Hangs(), [], set(threading.enumerate())  # another test's may not have ended

    class Look(Callback):
        def on_rollback(self, run: Any) -> None:
            seen.append([thread.name for thread in {*threading.enumerate()} - earlier if "sink" in thread.name])
            sink.release.set()  # so that the end of the run need not wait either

    adam_fit(GoBack(5, 9), Look(), train=tiny_data(batches=20), folder=tmp_path / "run", sinks=[sink, CSV()])
    (threads,) = seen
    assert len(threads) == 2  # the hanging one was left as it is
    reports = adam_fit(GoBack(5, 9), train=tiny_data(batches=20), folder=tmp_path / "again", sinks=[CSV()]).sinks
    assert [(report.sink, report.failures, report.dropped) for report in reports] == [("CSV", 0, 0)]


def test_a_window_can_change_its_length_at_every_step() -> None:
    """Steps of one batch and of several take turns: none may be made inside the call of another."""
    turn = on("train_step_end")(lambda run: setattr(run, "accumulate", 1 + run.clock.step % 2))
    result = fit(turn, train=tiny_data(batches=1800), max_duration="1ep")
    assert (result.clock.batch, result.clock.step) == (1800, 1200)


def test_a_step_that_a_hook_makes_longer_is_evaluated_when_it_is_whole() -> None:
    """The request comes in the first batch of the step, and there is nothing to evaluate before its last one."""

    def ask(run: Any) -> None:
        run.accumulate = 4
        run.request_eval()

    evaluated: list[int] = []
    see = on("eval_start")(lambda run: evaluated.append(run.clock.batch))
    fit(on("train_step_start", at="3st")(ask), see, train=tiny_data(batches=20), val=tiny_data(2), max_duration="5st")
    assert evaluated[0] == 3 + 4


def test_a_window_can_be_made_longer_in_a_plain_run() -> None:
    """Plain steps are one batch each: they looked at the setting only when they began."""

    for hook in ("train_step_start", "train_step_end"):
        made = on(hook)(lambda run: setattr(run.loop, "accumulate", 4) if run.clock.step == 3 else None)
        result = fit(made, train=tiny_data(batches=43), max_duration="1ep")
        assert result.clock.step == 3 + 10, hook
