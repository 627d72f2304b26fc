"""``explain()`` says who runs, in which order, and why; word for word, because it is read by people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hookline.events import Callback, Event, explain, on


class Accuracy(Callback):
    writes = ("val/acc",)

    def on_eval_end(self, run: Any) -> None: ...


class Stopper(Callback):
    reads = ("val/acc",)

    def __init__(self, patience: int) -> None: ...

    def on_eval_end(self, run: Any) -> None: ...


class Saver(Callback):
    reads = ("*",)
    optional = True

    def on_eval_end(self, run: Any) -> None: ...


class Averaged(Callback):
    writes = ("weights",)

    def around_eval(self, run: Any) -> Iterator[None]:
        yield


class Timer(Callback):
    after = ("Accuracy",)

    def around_eval(self, run: Any) -> Iterator[None]:
        yield


class Norm(Callback):
    reads = ("gradients",)

    def on_gradients_ready(self, run: Any) -> None: ...


class Clip(Callback):
    writes = ("gradients",)

    def on_gradients_ready(self, run: Any) -> None: ...


class Trace(Callback):
    events = (Event("verify", "a batch is verified"),)
    before = ("Accuracy",)

    def on_event(self, event: str, run: Any) -> None: ...
    def on_verify(self, run: Any) -> None: ...


class Task:
    def on_eval_end(self, run: Any) -> None: ...


def test_it_gives_for_each_event_who_runs_in_which_order_and_why(world: Any) -> None:
    made = world(Saver(), Stopper(3), Norm(), Timer(), Trace(), Averaged(), Clip(), Accuracy(), task=Task())
    assert (
        explain(made.line)
        == """\
Order of the callbacks (list position decides only where nothing else does):
  1. Trace() [required]: reads nothing: before those that monitor, in list order
  2. Averaged() [required]: reads nothing: before those that monitor, in list order
  3. Clip() [required]: reads nothing: before those that monitor, in list order
  4. Accuracy() [required]: after Trace: declared with before by Trace
  5. Timer() [required]: after Accuracy: declared with after
  6. Stopper(patience=3) [required]: after Accuracy: reads val/acc
  7. Norm() [required]: after Clip: reads gradients
  8. Saver() [optional]: reads everything: last

around_eval: one evaluation over all of its loaders
  outermost first: Averaged > Timer

on_event (every event, before the named hook of the same callback): Trace

on_gradients_ready: the gradients are complete, averaged and unscaled, not yet clipped: change them here
  1. Norm: reads what others write
  2. Clip: after Norm: changes the gradients that it reads raw

on_eval_end: the evaluation is done, its metrics can be read
  1. Task: the task runs first
  2. Accuracy: after Trace: declared with before by Trace
  3. Stopper: after Accuracy: reads val/acc
  4. Saver: reads everything: last

on_verify: a batch is verified
  1. Trace: reads nothing: before those that monitor, in list order"""
    )


def test_it_says_so_when_there_is_nobody(world: Any) -> None:
    assert explain(world().line) == (
        "Order of the callbacks (list position decides only where nothing else does):\n  (none)"
    )


def test_a_function_is_shown_as_it_was_written(world: Any) -> None:
    def show(run: Any) -> None: ...

    show.__qualname__ = "show"
    text = explain(world(on("train_step_end", every="100st", stage="train")(show)).line)
    assert "  1. hl.on('train_step_end', every='100st', stage=('train',))(show) [required]: " in text
    assert "\non_train_step_end: the step is done" in text


def test_one_that_does_not_run_in_this_process_is_not_listed_under_an_event(world: Any) -> None:
    class RankZero(Accuracy):
        ranks = "zero"

    assert "\non_eval_end" in explain(world(RankZero()).line)
    assert "\non_eval_end" not in explain(world(RankZero(), rank=1).line)


def test_one_that_was_switched_off_is_no_longer_there(world: Any) -> None:
    class Broken(Callback):
        optional = True

        def on_eval_end(self, run: Any) -> None:
            raise ValueError("no")

    made = world(Broken(), Accuracy())
    made.emit("eval_end")
    assert "Broken" not in explain(made.line)
