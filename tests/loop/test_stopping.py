"""Every way in which a run can end before its time, and what is left behind."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookline as hl
from hookline.checkpoint import FolderLock
from hookline.errors import DataError, RegistrationError, StopTraining
from hookline.loop import Task, Trainer
from hookline.records.run_file import RunFile
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, literal, press_ctrl_c

Action = Callable[[Any], object]


class Recorder(hl.Callback):
    """Notes every event, and does something at some of them."""

    def __init__(self, **actions: Action) -> None:
        self.seen: list[str] = []
        self.actions = actions

    def on_event(self, event: str, run: Any) -> None:
        self.seen.append(event)
        if event in self.actions:
            self.actions[event](run)


class TinyTask(Task[Any]):
    """A task whose methods can be made to fail."""

    def __init__(self, in_train: Action | None = None, in_eval: Action | None = None) -> None:
        super().__init__()
        self.net = TinyModel()
        self.in_train, self.in_eval = in_train, in_eval

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_batch(self, run: Any, batch: Any) -> Any:
        if self.in_train:
            self.in_train(run)
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def eval_batch(self, run: Any, batch: Any) -> Any:
        if self.in_eval:
            self.in_eval(run)
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def predict_batch(self, run: Any, batch: Any) -> Any:
        return self.net(batch[0])


class Bag:
    """Batches without a length; something may happen while one of them is waited for."""

    def __init__(self, batches: list[Any], before: Callable[[int], object] = lambda index: None) -> None:
        self.batches, self.before = batches, before

    def __iter__(self) -> Iterator[Any]:
        for index, batch in enumerate(self.batches):
            self.before(index)
            yield batch


def fail(error: BaseException) -> Action:
    def action(run: Any) -> None:
        raise error

    return action


def once_at(step: int, action: Action) -> Action:
    """The action, once the clock shows this step."""
    return lambda run: action(run) if run.clock.step == step else None


def stop(run: Any) -> None:
    run.stop("enough")


def ctrl_c() -> Action:
    """Ctrl-C, pressed once, wherever it is called first."""
    pressed: list[bool] = []

    def action(run: Any = None) -> None:
        if not pressed:
            pressed.append(True)
            press_ctrl_c()

    return action


def pressed_twice(run: Any) -> None:
    press_ctrl_c()
    press_ctrl_c()


@pytest.fixture
def fresh_handler() -> Iterator[None]:
    """Python's own handler for SIGINT, whatever the runner of the tests has installed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def run_fit(
    recorder: Recorder,
    task: TinyTask | None = None,
    train: Any = None,
    val: Any = None,
    test: Any = None,
    callbacks: tuple[hl.Callback, ...] = (),
    **options: Any,
) -> Any:
    """Two epochs of three batches with one batch to evaluate on, if nothing else is said."""
    loaders = {"train": train or tiny_data(3), "val": val or tiny_data(1), "test": test}
    return fit(recorder, *callbacks, model=task or TinyTask(), **loaders, **{"eval_every": "2st", **options})


def run_interrupted(recorder: Recorder, **arguments: Any) -> Any:
    """``run_fit``, where one Ctrl-C must not raise: that would end the runner of the tests."""
    try:
        return run_fit(recorder, **arguments)
    except KeyboardInterrupt:
        pytest.fail("the first Ctrl-C raised")


START = "setup model_ready fit_start sanity_check_start sanity_check_end"
FETCH = "batch_fetch_start batch_fetch_end"
BATCH = "train_batch_start loss_ready backward_start backward_end train_batch_end"
UPDATE = "gradients_ready optimizer_step_start optimizer_step_end zero_grad train_step_end"
STEP = f"{FETCH} train_step_start {BATCH} {UPDATE}"
EVAL_BATCH = f"{FETCH} eval_batch_start eval_batch_end"
EVAL = f"eval_start eval_loader_start {EVAL_BATCH} eval_loader_end eval_end"
CUT = "stop metrics_ready train_epoch_end"
END = "train_end fit_end teardown"

# -- run.stop: a vote, settled at the end of the step ------------------------------------------------

FIRST_STEP = f"{START} train_start train_epoch_start {STEP}"
SECOND_STEP = f"{FIRST_STEP} step_settled {STEP}"
FIRST_EPOCH = f"{SECOND_STEP} {EVAL} step_settled {STEP} metrics_ready train_epoch_end"

STOPS: dict[str, str] = {
    "setup": f"{START} train_start stop {END}",
    "fit_start": f"{START} train_start stop {END}",
    "train_start": f"{START} train_start stop {END}",
    # the step is finished and evaluated once, because these weights are the last ones
    "train_batch_start": f"{FIRST_STEP} {EVAL} step_settled {CUT} epoch_end {END}",
    "gradients_ready": f"{FIRST_STEP} {EVAL} step_settled {CUT} epoch_end {END}",
    "train_step_end": f"{FIRST_STEP} {EVAL} step_settled {CUT} epoch_end {END}",
    # the step was settled without an evaluation: it is made when the epoch is cut
    "step_settled": f"{FIRST_STEP} step_settled {CUT} {EVAL} epoch_end {END}",
    # this step was evaluated already
    "eval_end": f"{SECOND_STEP} {EVAL} step_settled {CUT} epoch_end {END}",
    # at a known edge
    "metrics_ready": f"{FIRST_EPOCH} {EVAL} epoch_end step_settled stop {END}",
    "train_epoch_end": f"{FIRST_EPOCH} {EVAL} epoch_end step_settled stop {END}",
}


@pytest.mark.parametrize("event", STOPS)
def test_run_stop_in_a_hook_ends_the_run_in_order(event: str) -> None:
    recorder = Recorder(**{event: stop})
    result = run_fit(recorder)
    assert recorder.seen == literal(STOPS[event])
    assert (result.stop_reason, result.stopped_by, result.interrupted) == ("enough", "Recorder", False)
    assert result.clock.epoch == (1 if event in ("metrics_ready", "train_epoch_end") else 0)


def test_run_stop_in_epoch_end_ends_the_run_at_the_edge() -> None:
    recorder = Recorder(epoch_end=stop)
    result = run_fit(recorder, eval_every="1ep")
    assert recorder.seen == literal(f"""
        {FIRST_STEP} step_settled {STEP} step_settled {STEP} metrics_ready train_epoch_end {EVAL}
        epoch_end step_settled stop {END}
    """)
    assert result.clock.epoch == 1


@pytest.mark.parametrize("event", ["epoch_end", "step_settled"])
def test_the_last_weights_are_evaluated_also_when_the_stop_comes_after_the_edge(event: str) -> None:
    """One evaluation at the end: otherwise val/loss belongs to weights that are gone."""
    recorder = Recorder(**{event: once_at(3, stop)})
    result = run_fit(recorder)
    assert result.clock.step == 3
    assert result.history.steps("val/loss") == [2, 3]


def test_the_first_vote_wins() -> None:
    first = Recorder(train_step_end=lambda run: run.stop("first"))
    second = Recorder(train_step_end=lambda run: run.stop("second"))
    second.name = "second"
    result = run_fit(first, callbacks=(second,))
    assert (result.stop_reason, result.stopped_by) == ("first", "Recorder")


def test_stop_is_announced_once_with_its_reason() -> None:
    reasons: list[str] = []
    recorder = Recorder(train_step_end=stop, eval_end=stop, stop=lambda run: reasons.append(run.stop_reason))
    run_fit(recorder)
    assert reasons == ["enough"]


def test_a_stop_inside_a_window_finishes_the_window() -> None:
    recorder = Recorder(train_batch_start=lambda run: stop(run) if run.clock.batch == 0 else None)
    result = run_fit(recorder, train=tiny_data(4), accumulate=2, eval_every=None)
    assert recorder.seen == literal(f"""
        {START} train_start train_epoch_start
        {FETCH} train_step_start {BATCH} {FETCH} {BATCH} {UPDATE} step_settled {CUT} epoch_end {END}
    """)
    assert (result.clock.step, result.clock.batch) == (1, 2)


def test_a_stop_in_the_short_last_window_of_a_loader_without_a_length_keeps_its_step() -> None:
    """A vote is settled at the step's end, so the batches of the window must not be lost."""

    def late(run: Any) -> None:
        if run.clock.batch == 2:
            run.stop("enough")

    clocks = []
    for train in (tiny_data(3), Bag(tiny_data(3))):
        result = run_fit(Recorder(train_batch_start=late), train=train, accumulate=2)
        clocks.append((result.clock.step, result.clock.batch))
    assert clocks == [(2, 3), (2, 3)]


def test_a_request_to_evaluate_in_step_settled_is_honoured_at_the_next_step() -> None:
    recorder = Recorder(step_settled=once_at(1, lambda run: run.request_eval()))
    result = run_fit(recorder, train=tiny_data(6), eval_every="1ep", max_duration="1ep")
    assert result.history.steps("val/loss") == [2, 6]


# -- StopTraining ------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["train_batch_start", "gradients_ready", "train_step_end", "step_settled"])
def test_stop_training_in_a_hook_is_the_same_vote(event: str) -> None:
    recorder = Recorder(**{event: fail(StopTraining("enough"))})
    result = run_fit(recorder)
    assert recorder.seen == literal(STOPS[event])
    assert (result.stop_reason, result.stopped_by) == ("enough", "Recorder")


def test_stop_training_in_the_task_drops_the_window() -> None:
    def third(run: Any) -> None:
        if run.clock.batch == 3:
            raise StopTraining("enough")

    recorder = Recorder()
    task = TinyTask(in_train=third)
    weights: list[torch.Tensor] = []
    recorder.actions["optimizer_step_end"] = lambda run: weights.append(task.net.out.weight.detach().clone())
    result = run_fit(recorder, task, train=tiny_data(4), accumulate=2, eval_every=None)
    assert recorder.seen == literal(f"""
        {START} train_start train_epoch_start
        {FETCH} train_step_start {BATCH} {FETCH} {BATCH} {UPDATE} step_settled
        {FETCH} train_step_start {BATCH} {FETCH} train_batch_start
        {CUT} epoch_end {END}
    """)
    assert (result.stop_reason, result.stopped_by) == ("enough", "TinyTask")
    assert torch.equal(task.net.out.weight, weights[-1])
    assert all(parameter.grad is None for parameter in task.parameters())
    assert result.clock.step == 1


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
def test_stop_training_in_a_plain_model_names_the_users_class(training: bool) -> None:
    class Choosy(TinyModel):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training is training:
                raise StopTraining("enough")
            return super().forward(x)

    trainer = Trainer(folder=False, max_duration="1ep", eval_every="2st")
    model = Choosy()
    result = trainer.fit(model, tiny_data(), tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    assert (result.stop_reason, result.stopped_by) == ("enough", "Choosy")


def test_a_dropped_window_does_not_count_so_that_a_second_fit_trains_on_its_data() -> None:
    armed = True

    def once(run: Any) -> None:
        nonlocal armed
        if armed and run.clock.batch == 3:
            armed = False
            raise StopTraining("enough")

    task, whole = TinyTask(in_train=once), TinyTask()
    trainer = Trainer(folder=False, max_duration="1ep", accumulate=2)
    first = trainer.fit(task, tiny_data(4))
    assert (first.clock.step, first.clock.batch, first.clock.sample) == (1, 2, 16)
    trainer.fit(task, tiny_data(4))
    Trainer(folder=False, max_duration="1ep", accumulate=2).fit(whole, tiny_data(4))
    assert torch.equal(task.net.out.weight, whole.net.out.weight)


STOP_IN_EVALUATION = f"""
    {FIRST_STEP} step_settled {STEP} eval_start eval_loader_start {EVAL_BATCH}
    step_settled {CUT} epoch_end {END}
"""


@pytest.mark.parametrize("where", ["eval_batch", "on_eval_batch_start", "on_eval_batch_end", "on_eval_start"])
def test_stop_training_in_an_evaluation_leaves_it_without_end_hooks_and_metrics(where: str) -> None:
    """It would be evaluated twice, or report the mean of a few batches as val/loss."""
    error = fail(StopTraining("enough"))
    in_fit = once_at(2, error)
    recorder = Recorder() if where == "eval_batch" else Recorder(**{where.removeprefix("on_"): in_fit})
    result = run_fit(recorder, TinyTask(in_eval=in_fit if where == "eval_batch" else None), val=tiny_data(3))
    assert recorder.seen == literal(STOP_IN_EVALUATION)
    assert result.stop_reason == "enough"
    assert "val/loss" not in result.metrics


def test_an_answer_in_another_hook_does_not_keep_an_evaluation_going_that_is_left() -> None:
    recorder = Recorder(eval_batch_start=once_at(2, fail(StopTraining("enough"))))
    asking = Recorder(eval_batch_end=lambda run: (run.predict("val"), run.evaluate("val")))
    asking.name = "asking"
    result = run_fit(recorder, val=tiny_data(3), callbacks=(asking,))
    assert recorder.seen == literal(STOP_IN_EVALUATION)
    assert "val/loss" not in result.metrics


def test_stop_training_in_eval_end_does_not_cut_the_final_test_short() -> None:
    recorder = Recorder(eval_end=lambda run: fail(StopTraining("enough"))(run) if run.stage == "val" else None)
    result = run_fit(recorder, val=tiny_data(2), test=tiny_data(3))
    assert recorder.seen[recorder.seen.index("train_end") :] == literal(f"""
        train_end eval_start eval_loader_start {EVAL_BATCH} {EVAL_BATCH} {EVAL_BATCH} eval_loader_end eval_end
        fit_end teardown
    """)
    assert "test/loss" in result.metrics


def test_stop_training_in_the_sanity_check_of_the_task_ends_the_run_before_the_first_step() -> None:
    recorder = Recorder()
    result = run_fit(recorder, TinyTask(in_eval=fail(StopTraining("enough"))))
    assert recorder.seen == literal(f"{START} train_start stop {END}")
    assert (result.stop_reason, result.clock.step) == ("enough", 0)


class StopsInIter:
    """``__iter__`` itself raises, before there is an iterator, in its second epoch."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.epochs = batches, 0

    def __iter__(self) -> Iterator[Any]:
        self.epochs += 1
        if self.epochs > 1:
            raise StopTraining("no more data")
        return iter(self.batches)


class HearsEnds(hl.Callback):
    """Hears nothing inside a step, so that steps are plain."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_stop(self, run: Any) -> None:
        self.seen.append("stop")

    def on_train_epoch_end(self, run: Any) -> None:
        self.seen.append("train_epoch_end")

    def on_epoch_end(self, run: Any) -> None:
        self.seen.append("epoch_end")

    def on_train_end(self, run: Any) -> None:
        self.seen.append("train_end")

    def on_fit_end(self, run: Any) -> None:
        self.seen.append("fit_end")

    def on_teardown(self, run: Any) -> None:
        self.seen.append("teardown")


def test_stop_training_in_the_data_is_a_clean_stop() -> None:
    recorder = Recorder()
    result = run_fit(recorder, train=Bag(tiny_data(3), second_of(StopTraining("no more data"))))
    assert recorder.seen == literal(f"{FIRST_STEP} step_settled batch_fetch_start {CUT} {EVAL} epoch_end {END}")
    assert (result.stop_reason, result.stopped_by, result.interrupted) == ("no more data", "the training loader", False)
    assert (result.clock.step, result.history.steps("val/loss")) == (1, [1])


def test_stop_training_in_the_data_of_plain_steps_is_a_clean_stop() -> None:
    ends = HearsEnds()
    trainer = Trainer(callbacks=[ends], folder=False, max_duration="2ep")
    data = Bag(tiny_data(6), lambda index: fail(StopTraining("no more data"))(None) if index == 5 else None)
    result = trainer.fit(TinyTask(), data, tiny_data(1))
    assert ends.seen == literal("stop train_epoch_end epoch_end train_end fit_end teardown")
    assert (result.stop_reason, result.stopped_by, result.clock.step) == ("no more data", "the training loader", 5)


def test_stop_training_in_the_data_drops_the_window() -> None:
    recorder, task = Recorder(), TinyTask()
    weights: list[torch.Tensor] = []
    recorder.actions["optimizer_step_end"] = lambda run: weights.append(task.net.out.weight.detach().clone())
    data = Bag(tiny_data(4), lambda index: fail(StopTraining("no more data"))(None) if index == 3 else None)
    result = run_fit(recorder, task, train=data, accumulate=2, eval_every=None)
    assert recorder.seen == literal(f"""
        {START} train_start train_epoch_start
        {FETCH} train_step_start {BATCH} {FETCH} {BATCH} {UPDATE} step_settled
        {FETCH} train_step_start {BATCH} batch_fetch_start
        {CUT} epoch_end {END}
    """)
    assert (result.clock.step, result.clock.batch) == (1, 2)
    assert torch.equal(task.net.out.weight, weights[-1])
    assert all(parameter.grad is None for parameter in task.parameters())


def test_stop_training_in_the_iter_of_a_loader_is_a_clean_stop() -> None:
    recorder = Recorder()
    result = run_fit(recorder, train=StopsInIter(tiny_data(1)), eval_every=None)
    assert recorder.seen == literal(f"""
        {FIRST_STEP} step_settled batch_fetch_start metrics_ready train_epoch_end epoch_end
        train_epoch_start batch_fetch_start stop train_epoch_end epoch_end {END}
    """)
    assert (result.stop_reason, result.stopped_by, result.clock.epoch) == ("no more data", "the training loader", 1)


def test_stop_training_in_the_data_of_an_evaluation_leaves_it_without_end_hooks_and_metrics() -> None:
    recorder = Recorder()

    def after_a_step(index: int) -> None:
        if "train_step_end" in recorder.seen and index == 1:
            raise StopTraining("no more data")

    result = run_fit(recorder, val=Bag(tiny_data(2), after_a_step))
    assert recorder.seen == literal(f"""
        {SECOND_STEP} eval_start eval_loader_start {EVAL_BATCH} batch_fetch_start
        step_settled {CUT} epoch_end {END}
    """)
    assert (result.stop_reason, result.stopped_by) == ("no more data", "the val loader")
    assert "val/loss" not in result.metrics


def test_stop_training_in_the_data_of_an_answer_is_the_vote_of_who_asked() -> None:
    """Half an answer would be a wrong one."""
    answers: list[Any] = []
    asking = Recorder(train_step_end=lambda run: answers.append(run.evaluate("val")))
    data = Bag(tiny_data(2), lambda index: fail(StopTraining("no more data"))(None) if asking.asks and index else None)
    asking.asks = False  # type: ignore[attr-defined]
    asking.actions["train_start"] = lambda run: setattr(asking, "asks", True)
    result = run_fit(asking, val=data, eval_every=None)
    assert (answers, result.stop_reason, result.stopped_by) == ([], "no more data", "Recorder")


class RunsOut(torch.utils.data.Dataset[Any]):
    """It has twelve samples, and says that it has more."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index >= 12:
            raise StopTraining("no more data:\nthe tape is over")
        return torch.ones(4), 0


@pytest.mark.parametrize("workers", [0, 1])
def test_the_reason_of_a_data_set_that_stops_is_its_own_also_in_a_worker(workers: int) -> None:
    """Torch hands it on as the text of a traceback."""
    loader = torch.utils.data.DataLoader(RunsOut(), batch_size=4, num_workers=workers)
    result = Trainer(max_duration="1ep", folder=False).fit(TinyTask(), loader)
    assert (result.stop_reason, result.clock.step) == ("no more data:\nthe tape is over", 3)


@pytest.mark.parametrize("where", ["data", "task"])
def test_a_stop_in_the_sanity_check_is_no_missing_metric(where: str) -> None:
    stops = fail(StopTraining("nothing to measure"))
    result = run_fit(
        Recorder(),
        TinyTask(in_eval=stops if where == "task" else None),
        val=Bag(tiny_data(3), stops) if where == "data" else None,
        callbacks=(hl.EarlyStopping("val/loss", patience=3),),
    )
    assert (result.stop_reason, result.clock.step) == ("nothing to measure", 0)


@pytest.mark.parametrize("where", ["data", "task", "hook"])
def test_a_stop_after_training_leaves_the_test_and_does_not_rewrite_why_training_ended(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    stops = StopTraining("no more data")
    in_test: Action = lambda run: fail(stops)(run) if run.stage == "test" else None  # noqa: E731 (one of three)
    recorder = Recorder(eval_batch_end=in_test) if where == "hook" else Recorder()
    test = Bag(tiny_data(3), second_of(stops)) if where == "data" else tiny_data(3)
    result = run_fit(recorder, TinyTask(in_eval=in_test if where == "task" else None), test=test)
    assert (result.stop_reason, result.stopped_by) == ("max_duration (2ep) reached", None)
    assert recorder.seen[-3:] == ["batch_fetch_start" if where == "data" else "eval_batch_end", "fit_end", "teardown"]
    assert "stop" not in recorder.seen
    assert "test/loss" not in result.metrics
    assert "asked to stop (no more data) when training was over" in caplog.text
    assert "left has no metrics" in caplog.text


@pytest.mark.parametrize("how", ["run.stop", "StopTraining"])
@pytest.mark.parametrize("event", ["train_end", "eval_end", "fit_end", "teardown"])
def test_a_vote_after_training_is_said_and_does_not_rewrite_why_training_ended(
    event: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that stops at a good value hears the final test, too: the run would seem to be cut short."""
    vote = stop if how == "run.stop" else fail(StopTraining("enough"))
    recorder = Recorder(**{event: lambda run: None if event == "eval_end" and run.stage != "test" else vote(run)})
    result = run_fit(recorder, test=tiny_data(2))
    assert (result.stop_reason, result.stopped_by) == ("max_duration (2ep) reached", None)
    assert "stop" not in recorder.seen
    assert "Recorder asked to stop (enough) when training was over" in caplog.text


def test_stop_training_in_an_own_loop_after_its_batches_is_the_users_own_error() -> None:
    """There is nothing left to stop, and what was to be said would be lost."""
    model = TinyModel()

    def train() -> None:
        with hl.Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), max_duration="1ep", folder=False) as loop:
            for x, y in loop.batches(tiny_data(3)):
                loop.backward(nn.functional.cross_entropy(model(x), y))
                loop.step()
            raise StopTraining("the final check failed")

    with pytest.raises(StopTraining, match="the final check failed"):
        train()


ALONE = ("evaluate", "test", "predict")


@pytest.mark.parametrize("entry", ALONE)
@pytest.mark.parametrize("where", ["__iter__", "next"])
def test_stop_training_in_the_data_of_an_evaluation_alone_is_the_users_own_error(entry: str, where: str) -> None:
    """There is no training to stop, and half an answer, or none, looks like a whole one."""
    error, recorder = StopTraining("no more data"), Recorder()
    data: Any = Bag(tiny_data(3), second_of(error))
    if where == "__iter__":
        data = StopsInIter(tiny_data(1))
        next(iter(data))
    with pytest.raises(StopTraining, match="no more data") as caught:
        getattr(Trainer(callbacks=[recorder], folder=False), entry)(TinyTask(), data)
    assert caught.value is error or where == "__iter__"
    stage = {"evaluate": "val"}.get(entry, entry)
    assert caught.value.__notes__ == [f"while fetching a batch, at step 0, epoch 0 ({stage})"]
    assert recorder.seen[-2:] == ["exception", "teardown"]


def test_stop_training_in_the_count_of_an_evaluation_alone_is_the_users_own_error() -> None:
    class Counts(TinyTask):
        def count(self, batch: Any) -> Any:
            raise StopTraining("enough")

    for entry in ALONE:
        with pytest.raises(StopTraining, match="enough"):
            getattr(Trainer(folder=False), entry)(Counts(), tiny_data(2))


@pytest.mark.parametrize("entry", ["evaluate", "test"])
@pytest.mark.parametrize("where", ["eval_batch", "on_eval_start", "on_eval_batch_end"])
def test_stop_training_that_ends_an_evaluation_alone_is_raised_because_nothing_is_measured(
    entry: str, where: str
) -> None:
    act = fail(StopTraining("enough"))
    recorder = Recorder() if where == "eval_batch" else Recorder(**{where.removeprefix("on_"): act})
    task = TinyTask(in_eval=act if where == "eval_batch" else None)
    with pytest.raises(StopTraining, match="enough") as caught:
        getattr(Trainer(callbacks=[recorder], folder=False), entry)(task, tiny_data(3))
    by = "TinyTask" if where == "eval_batch" else "Recorder"
    assert caught.value.__notes__ == [f"raised by {by}: {entry} has ended before its last batch, and measured nothing"]


def test_stop_training_after_the_last_batch_of_an_evaluation_alone_changes_nothing() -> None:
    trainer = Trainer(callbacks=[Recorder(eval_end=fail(StopTraining("enough")))], folder=False)
    assert "val/loss" in trainer.evaluate(TinyTask(), tiny_data(2))


# -- exceptions --------------------------------------------------------------------------------------


class BoomError(Exception):
    """The user's own."""


ERRORS: dict[str, str] = {
    "setup": "setup exception teardown",
    "model_ready": "setup model_ready exception teardown",
    "fit_start": "setup model_ready fit_start exception teardown",
    "sanity_check_start": "setup model_ready fit_start sanity_check_start exception teardown",
    "train_start": f"{START} train_start exception teardown",
    "train_epoch_start": f"{START} train_start train_epoch_start exception teardown",
    "batch_fetch_end": f"{START} train_start train_epoch_start {FETCH} exception teardown",
    "train_step_start": f"{START} train_start train_epoch_start {FETCH} train_step_start exception teardown",
    "backward_end": f"""{START} train_start train_epoch_start {FETCH} train_step_start
        train_batch_start loss_ready backward_start backward_end exception teardown""",
    "gradients_ready": f"""{START} train_start train_epoch_start {FETCH} train_step_start {BATCH}
        gradients_ready exception teardown""",
    "train_step_end": f"{FIRST_STEP} exception teardown",
    "step_settled": f"{FIRST_STEP} step_settled exception teardown",
    "eval_start": f"{SECOND_STEP} eval_start exception teardown",
    "eval_batch_end": f"{SECOND_STEP} eval_start eval_loader_start {EVAL_BATCH} exception teardown",
    "eval_end": f"{SECOND_STEP} {EVAL} exception teardown",
    "train_epoch_end": f"{FIRST_EPOCH} exception teardown",
    "epoch_end": f"{FIRST_EPOCH} epoch_end exception teardown",
}


@pytest.mark.parametrize("event", ERRORS)
def test_an_exception_in_a_hook_is_the_users_own_and_says_where_it_rose(event: str) -> None:
    error = BoomError("mine")
    recorder = Recorder(**{event: fail(error)})
    with pytest.raises(BoomError) as caught:
        run_fit(recorder)
    assert caught.value is error
    assert recorder.seen == literal(ERRORS[event])
    notes = error.__notes__
    assert len(notes) == 1
    assert notes[0].startswith(f"in Recorder.on_{event} at step ")


def test_the_note_of_an_exception_names_the_step_and_the_stage() -> None:
    error = BoomError("mine")
    with pytest.raises(BoomError):
        run_fit(Recorder(eval_end=once_at(4, fail(error))))
    assert error.__notes__ == ["in Recorder.on_eval_end at step 4, epoch 1 (val)"]


def test_an_error_of_the_model_itself_says_at_which_step_it_rose() -> None:
    """Its traceback shows the line, and not the moment; what the user raises himself stays as it is."""
    in_training, in_sanity_check, in_evaluation, in_prediction = (BoomError("mine") for _ in range(4))
    with pytest.raises(BoomError):
        run_fit(Recorder(), TinyTask(in_train=once_at(3, fail(in_training))))
    with pytest.raises(BoomError):
        run_fit(Recorder(), TinyTask(in_eval=fail(in_sanity_check)))
    with pytest.raises(BoomError):
        run_fit(Recorder(), TinyTask(in_eval=once_at(4, fail(in_evaluation))))
    task = TinyTask()
    task.net.register_forward_pre_hook(lambda module, inputs: fail(in_prediction)(None))
    with pytest.raises(BoomError):
        Trainer(folder=False).predict(task, tiny_data(1))
    assert in_training.__notes__ == ["raised at step 3, epoch 1"]
    assert in_sanity_check.__notes__ == ["raised at step 0, epoch 0 (val)"]
    assert in_evaluation.__notes__ == ["raised at step 4, epoch 1 (val)"]
    assert in_prediction.__notes__ == ["raised at step 0, epoch 0 (predict)"]


def test_an_error_in_the_body_of_an_own_loop_says_at_which_step_it_rose() -> None:
    def train(error: Exception, in_evaluation: bool) -> None:
        model = TinyModel()
        with hl.Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), max_duration="2ep", folder=False) as loop:
            for x, y in loop.batches(tiny_data(2)):
                loop.backward(nn.functional.cross_entropy(model(x), y))
                loop.step()
                for _ in loop.eval_batches(tiny_data(1)) if in_evaluation else ():
                    raise error
                raise error

    for in_evaluation in (False, True):
        error = BoomError("mine")
        with pytest.raises(BoomError):
            train(error, in_evaluation)
        assert error.__notes__ == ["raised at step 1, epoch 0"]


def test_an_exception_after_training_reaches_on_exception_too() -> None:
    for event in ("train_end", "fit_end"):
        error = BoomError("mine")
        recorder = Recorder(**{event: fail(error)})
        with pytest.raises(BoomError) as caught:
            run_fit(recorder, max_duration="1st", eval_every=None)
        assert caught.value is error
        assert recorder.seen[-3:] == [event, "exception", "teardown"]


def test_an_exception_in_the_data() -> None:
    error = BoomError("mine")

    def second(index: int) -> None:
        if index == 1:
            raise error

    recorder = Recorder()
    with pytest.raises(BoomError) as caught:
        run_fit(recorder, train=Bag(tiny_data(3), second))
    assert caught.value is error
    assert recorder.seen == literal(FIRST_STEP, "step_settled batch_fetch_start exception teardown")
    assert error.__notes__ == ["while fetching a batch, at step 1, epoch 0 (train)"]


def test_an_exception_in_the_data_of_an_evaluation() -> None:
    error, recorder = BoomError("mine"), Recorder()

    def after_a_step(index: int) -> None:
        if "train_step_end" in recorder.seen and index == 1:
            raise error

    with pytest.raises(BoomError) as caught:
        run_fit(recorder, val=Bag(tiny_data(2), after_a_step))
    assert caught.value is error
    assert recorder.seen == literal(
        SECOND_STEP, "eval_start eval_loader_start", EVAL_BATCH, "batch_fetch_start exception teardown"
    )
    assert error.__notes__ == ["while fetching a batch, at step 2, epoch 0 (val)"]


def test_a_stop_iteration_inside_a_data_set_does_not_end_the_epoch_quietly() -> None:
    class Broken(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            if index == 2:
                raise StopIteration
            return torch.zeros(4), 0

    with pytest.raises(DataError, match="StopIteration while batch 2 of epoch 0"):
        run_fit(Recorder(), train=torch.utils.data.DataLoader(Broken()))


@pytest.mark.parametrize("event", ["train_step_end", "eval_batch_end", "batch_fetch_start"])
def test_a_stop_iteration_in_a_hook_is_an_error(event: str) -> None:
    with pytest.raises((RuntimeError, StopIteration)):
        run_fit(Recorder(**{event: fail(StopIteration())}))


def test_an_exception_in_train_batch() -> None:
    error, recorder = BoomError("mine"), Recorder()
    with pytest.raises(BoomError) as caught:
        run_fit(recorder, TinyTask(in_train=once_at(1, fail(error))))
    assert caught.value is error
    assert recorder.seen == literal(
        FIRST_STEP, "step_settled", FETCH, "train_step_start train_batch_start exception teardown"
    )


def test_an_exception_in_eval_batch() -> None:
    error, recorder = BoomError("mine"), Recorder()
    with pytest.raises(BoomError) as caught:
        run_fit(recorder, TinyTask(in_eval=once_at(2, fail(error))))
    assert caught.value is error
    assert recorder.seen == literal(
        SECOND_STEP, "eval_start eval_loader_start", FETCH, "eval_batch_start exception teardown"
    )


def test_an_exception_in_eval_batch_is_found_by_the_sanity_check() -> None:
    error, recorder = BoomError("mine"), Recorder()
    with pytest.raises(BoomError) as caught:
        run_fit(recorder, TinyTask(in_eval=fail(error)))
    assert caught.value is error
    assert recorder.seen == literal("setup model_ready fit_start sanity_check_start exception teardown")


def test_an_exception_in_teardown_is_raised_after_all_others_had_theirs() -> None:
    error = BoomError("mine")
    first, second = Recorder(teardown=fail(error)), Recorder()
    second.name = "second"
    with pytest.raises(BoomError) as caught:
        run_fit(first, callbacks=(second,))
    assert caught.value is error
    assert error.__notes__[0].startswith("in Recorder.on_teardown at step 6")
    assert second.seen.count("teardown") == 1
    assert "exception" not in second.seen


def test_errors_in_on_exception_and_on_teardown_become_notes_on_the_users_exception() -> None:
    error = BoomError("mine")
    first = Recorder(
        train_step_end=fail(error), exception=fail(ValueError("in exception")), teardown=fail(OSError("in teardown"))
    )
    second = Recorder()
    second.name = "second"
    with pytest.raises(BoomError) as caught:
        run_fit(first, callbacks=(second,))
    assert caught.value is error
    notes = "\n".join(error.__notes__)
    assert "in Recorder.on_train_step_end at step 1" in notes
    assert "ValueError: in exception" in notes
    assert "OSError: in teardown" in notes
    assert second.seen[-2:] == ["exception", "teardown"]


def test_a_secondary_error_says_whose_it_is() -> None:
    """With twenty callbacks, "on_teardown also failed" alone does not say where to look."""
    error = BoomError("mine")
    closer = Recorder(teardown=fail(OSError("disk full")))
    closer.name = "closer"
    with pytest.raises(BoomError):
        run_fit(Recorder(train_step_end=fail(error)), callbacks=(closer,))
    assert any("closer" in note and "disk full" in note for note in error.__notes__)


def test_on_exception_sees_the_exception() -> None:
    error = BoomError("mine")
    found: list[BaseException] = []
    recorder = Recorder(train_step_end=fail(error), exception=lambda run: found.append(run.exception))
    with pytest.raises(BoomError):
        run_fit(recorder)
    assert found == [error]


@pytest.mark.parametrize("entry", ["evaluate", "test", "predict"])
def test_an_exception_in_another_entry_point(entry: str) -> None:
    error = BoomError("mine")
    hook = "predict_batch_end" if entry == "predict" else "eval_batch_end"
    recorder = Recorder(**{hook: fail(error)})
    trainer = Trainer(callbacks=[recorder], folder=False)
    with pytest.raises(BoomError) as caught:
        getattr(trainer, entry)(TinyTask(), tiny_data(2))
    assert caught.value is error
    assert recorder.seen[-3:] == [hook, "exception", "teardown"]


# -- Ctrl-C ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_handler")
@pytest.mark.parametrize("event", ["train_batch_start", "backward_end", "train_step_end", "step_settled"])
def test_ctrl_c_in_a_hook_finishes_the_step_and_returns_a_result(event: str) -> None:
    recorder = Recorder(**{event: ctrl_c()})
    result = run_interrupted(recorder)
    assert recorder.seen == literal(
        f"{FIRST_STEP} step_settled interrupt stop metrics_ready train_epoch_end epoch_end {END}"
    )
    assert (result.stop_reason, result.stopped_by, result.interrupted) == ("keyboard interrupt", "the user", True)
    assert (result.clock.epoch, result.clock.step) == (0, 1)


@pytest.mark.usefixtures("fresh_handler")
def test_ctrl_c_inside_a_window_finishes_the_window() -> None:
    recorder = Recorder(train_batch_start=ctrl_c())
    result = run_interrupted(recorder, train=tiny_data(4), accumulate=2)
    assert (result.clock.step, result.clock.batch, result.interrupted) == (1, 2, True)


@pytest.mark.usefixtures("fresh_handler")
def test_ctrl_c_while_waiting_for_data_leaves_at_once() -> None:
    def second(index: int) -> None:
        if index == 1:
            press_ctrl_c()
            time.sleep(30)

    recorder = Recorder()
    result = run_interrupted(recorder, train=Bag(tiny_data(3), second))
    assert recorder.seen == literal(f"""
        {FIRST_STEP} step_settled batch_fetch_start
        interrupt stop metrics_ready train_epoch_end epoch_end {END}
    """)
    assert (result.interrupted, result.clock.step) == (True, 1)


@pytest.mark.usefixtures("fresh_handler")
@pytest.mark.parametrize("batch", [0, 1])
def test_ctrl_c_while_an_evaluation_waits_for_data_leaves_it(batch: int) -> None:
    recorder = Recorder()

    def wait(index: int) -> None:
        if "train_step_end" in recorder.seen and index == batch:
            press_ctrl_c()
            time.sleep(30)

    result = run_interrupted(recorder, val=Bag(tiny_data(3), wait))
    assert recorder.seen == literal(
        SECOND_STEP, "eval_start eval_loader_start", EVAL_BATCH * batch, "batch_fetch_start",
        "step_settled interrupt stop metrics_ready train_epoch_end epoch_end", END,
    )  # fmt: skip
    assert result.interrupted
    assert "val/loss" not in result.metrics


@pytest.mark.usefixtures("fresh_handler")
def test_ctrl_c_in_an_evaluation_leaves_it_at_the_next_batch_and_does_not_begin_it_again() -> None:
    recorder = Recorder(eval_batch_start=ctrl_c())
    result = run_interrupted(recorder, val=tiny_data(3))
    assert recorder.seen == literal(
        SECOND_STEP, "eval_start eval_loader_start", EVAL_BATCH,
        "step_settled interrupt stop metrics_ready train_epoch_end epoch_end", END,
    )  # fmt: skip
    assert result.interrupted
    assert "val/loss" not in result.metrics


@pytest.mark.usefixtures("fresh_handler")
def test_ctrl_c_leaves_out_the_final_test() -> None:
    recorder = Recorder(train_step_end=ctrl_c())
    result = run_interrupted(recorder, test=tiny_data(3))
    assert result.interrupted
    assert "eval_start" not in recorder.seen


@pytest.mark.usefixtures("fresh_handler")
def test_the_second_ctrl_c_raises_at_once() -> None:
    recorder = Recorder(train_batch_start=pressed_twice)
    with pytest.raises(KeyboardInterrupt):
        run_fit(recorder)
    assert recorder.seen == literal(f"""
        {START} train_start train_epoch_start {FETCH} train_step_start train_batch_start exception teardown
    """)


@pytest.mark.usefixtures("fresh_handler")
def test_a_second_fit_goes_on_from_the_interrupt_as_if_nothing_had_happened() -> None:
    armed = True

    def once(run: Any) -> None:
        nonlocal armed
        if armed and run.clock.step == 2:
            armed = False
            press_ctrl_c()

    task, whole = TinyTask(), TinyTask()
    trainer = Trainer(callbacks=[Recorder(train_step_end=once)], folder=False, max_duration="2ep")
    first = trainer.fit(task, tiny_data(3), tiny_data(1))
    assert (first.clock.epoch, first.clock.step, first.interrupted) == (0, 2, True)
    second = trainer.fit(task, tiny_data(3), tiny_data(1))
    assert (second.clock.epoch, second.clock.step, second.interrupted) == (2, 6, False)
    Trainer(folder=False, max_duration="2ep").fit(whole, tiny_data(3), tiny_data(1))
    for mine, theirs in zip(task.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.usefixtures("fresh_handler")
@pytest.mark.parametrize("entry", ["evaluate", "predict"])
def test_ctrl_c_outside_of_fit_raises_because_a_part_of_an_answer_looks_like_the_whole(entry: str) -> None:
    hook = "predict_batch_end" if entry == "predict" else "eval_batch_end"
    recorder = Recorder(**{hook: ctrl_c()})
    with pytest.raises(KeyboardInterrupt):
        getattr(Trainer(callbacks=[recorder], folder=False), entry)(TinyTask(), tiny_data(3))
    assert recorder.seen[-2:] == ["exception", "teardown"]


def close_in_a_thread(folder: Path) -> None:
    """As a generator that holds an open loop does, when another thread collects it."""
    loop = hl.Loop(model := TinyModel(), torch.optim.SGD(model.parameters()), max_duration="1ep", folder=folder)
    loop.__enter__()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(loop.__exit__, None, None, None).result()


@pytest.mark.usefixtures("fresh_handler")
def test_a_run_that_is_closed_in_another_thread_gives_all_back(tmp_path: Path) -> None:
    """Only the main thread can put handlers back. The folder would stay locked, and Ctrl-C would go to a dead run."""
    terminate = signal.getsignal(signal.SIGTERM)
    close_in_a_thread(tmp_path)
    FolderLock(tmp_path).acquire().close()
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c()
    assert signal.getsignal(signal.SIGTERM) is terminate


@pytest.mark.usefixtures("fresh_handler")
def test_the_run_after_one_that_was_closed_in_another_thread_hears_ctrl_c(tmp_path: Path) -> None:
    close_in_a_thread(tmp_path)
    assert run_fit(Recorder(train_step_end=once_at(1, ctrl_c()))).interrupted


@pytest.mark.usefixtures("fresh_handler")
def test_a_handler_of_a_run_that_somebody_has_kept_does_nothing_after_it() -> None:
    """It put the handlers back and sent the signal once more, to whoever called it: for ever."""
    kept: list[Any] = []
    run_fit(Recorder(train_step_end=lambda run: kept.append(signal.getsignal(signal.SIGINT))))
    signal.signal(signal.SIGINT, lambda number, frame: kept[0](number, frame))
    try:
        press_ctrl_c()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.usefixtures("fresh_handler")
def test_the_users_own_handler_is_left_alone() -> None:
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        handler = signal.getsignal(signal.SIGINT)
        result = run_fit(Recorder(train_step_end=once_at(1, ctrl_c())))
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed == [signal.SIGINT]
    assert not result.interrupted


SCRIPT = """
    import os, signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent that ignores it hands that on
    import torch
    from torch import nn
    from hookline.loop import Trainer
    from hookline.events import Callback
    from hookline.testing import TinyModel, tiny_data

    class Watch(Callback):
        def on_event(self, event, run):
            if event in ("interrupt", "stop", "train_end", "fit_end", "exception", "teardown"):
                print(event, flush=True)
        {hook}

    class Slow:
        def __iter__(self):
            yield tiny_data(1)[0]
            print("waiting", flush=True)
            {wait}
            yield tiny_data(1)[0]

    trainer = Trainer(callbacks=[Watch()], folder=False, max_duration="1ep")
    result = trainer.fit(TinyModel(), Slow(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    print(result.stop_reason, result.interrupted, result.clock.step)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


def start(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    raise AssertionError(f"it never said {line!r}: {process.stderr.read() if process.stderr else ''}")


def test_ctrl_c_in_a_terminal_ends_a_script_with_a_result() -> None:
    process = start(SCRIPT.format(hook="", wait="time.sleep(300)"))
    wait_for(process, "waiting")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert err == (
        "interrupted at step 1; the script continues. Press Ctrl-C again to end it, or twice during another fit\n"
    )
    assert out.splitlines() == [
        "interrupt", "stop", "train_end", "fit_end", "teardown", "keyboard interrupt True 1",
    ]  # fmt: skip
    assert process.returncode == 0


@pytest.mark.parametrize("way", ["Trainer", "Loop"])
def test_ctrl_c_ends_a_script_with_several_fits(way: str, tmp_path: Path) -> None:
    """``interrupt="raise"``: the step is finished and saved, and no later fit begins."""
    script = f"""
        import signal, time
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent that ignores it hands that on
        import torch
        from torch import nn
        import hookline as hl
        from hookline.testing import TinyModel, tiny_data

        class Slow:
            def __iter__(self):
                yield tiny_data(1)[0]
                print("waiting", flush=True)
                time.sleep(300)

        def train(number):
            teardown = hl.on("teardown")(lambda run: print("teardown", flush=True))
            how = dict(
                callbacks=[teardown, hl.Checkpointer(), hl.ProgressBar(style=None)], max_duration="1ep",
                folder=f"{tmp_path}/{{number}}", interrupt="raise",
            )
            model = TinyModel()
            if {way == "Trainer"}:
                hl.Trainer(**how).fit(model, Slow(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
            else:
                with hl.Loop(model, torch.optim.SGD(model.parameters()), **how) as loop:
                    for x, y in loop.batches(Slow()):
                        loop.backward(nn.functional.cross_entropy(model(x), y))
                        loop.step()

        for number in range(3):
            print("fit", number, flush=True)
            train(number)
    """
    process = start(script)
    wait_for(process, "waiting")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert out.splitlines() == ["teardown"]
    assert "the script continues" not in err
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    assert process.returncode == -signal.SIGINT
    assert [path.name for path in tmp_path.glob("*/checkpoints/step-*")] == ["step-00000001"]
    assert RunFile.read(tmp_path / "0").status == "interrupted"


@pytest.mark.usefixtures("fresh_handler")
def test_another_fit_after_an_interrupt_that_raised_continues_it() -> None:
    trainer, model = Trainer(max_duration="3st", folder=False, interrupt="raise"), TinyModel()
    given: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "optimizer": torch.optim.SGD}
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(model, tiny_data(), **given, callbacks=[Recorder(train_step_end=once_at(1, ctrl_c()))])
    assert trainer.fit(model, tiny_data(), **given).clock.step == 3


def test_a_time_limit_is_no_interrupt(caplog: pytest.LogCaptureFixture) -> None:
    """It ends a run in the same way, but nobody has pressed Ctrl-C."""
    limit = hl.TimeLimit("0.000001s", count="process")
    trainer = Trainer(max_duration="5ep", folder=False, interrupt="raise", callbacks=[limit])
    result = trainer.fit(TinyModel(), tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    assert (result.stopped_by, result.interrupted) == ("TimeLimit", True)
    assert "the script continues" not in caplog.text


def test_ctrl_c_twice_in_a_terminal_ends_a_script_that_hangs_in_a_hook() -> None:
    hook = """
        def on_train_step_end(self, run):
            print("hanging", flush=True)
            for _ in range(3000):
                time.sleep(0.1)
                if hasattr(run, "stop_reason"):
                    print("pressed once", flush=True)
    """.strip()
    process = start(SCRIPT.format(hook=hook, wait="pass"))
    wait_for(process, "hanging")
    process.send_signal(signal.SIGINT)
    wait_for(process, "pressed once")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert [line for line in out.splitlines() if line != "pressed once"] == ["exception", "teardown"]
    assert err.rstrip().endswith("KeyboardInterrupt\nin Watch.on_train_step_end at step 1, epoch 0 (train)")
    assert process.returncode == -signal.SIGINT


# -- after every way out -----------------------------------------------------------------------------


def second_of(error: BaseException | None = None, action: Callable[[], object] | None = None) -> Callable[[int], None]:
    def before(index: int) -> None:
        if index == 1:
            if error is not None:
                raise error
            if action is not None:
                action()

    return before


def kinds() -> dict[str, Callable[[], dict[str, Any]]]:
    """Each way out, as arguments of ``run_fit``; made anew for each test."""
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "the end": dict,
        "run.stop": lambda: {"recorder": Recorder(train_step_end=stop)},
        "StopTraining in a hook": lambda: {"recorder": Recorder(train_step_end=fail(StopTraining()))},
        "StopTraining in train_batch": lambda: {"task": TinyTask(in_train=once_at(1, fail(StopTraining())))},
        "StopTraining in eval_batch": lambda: {"task": TinyTask(in_eval=once_at(2, fail(StopTraining())))},
        "StopTraining in the data": lambda: {"train": Bag(tiny_data(3), second_of(StopTraining()))},
        "StopTraining in the data of an evaluation": lambda: {"val": Bag(tiny_data(3), second_of(StopTraining()))},
        "error in train_batch": lambda: {"task": TinyTask(in_train=once_at(1, fail(BoomError())))},
        "error in eval_batch": lambda: {"task": TinyTask(in_eval=once_at(2, fail(BoomError())))},
        "error in the sanity check": lambda: {"task": TinyTask(in_eval=fail(BoomError()))},
        "error in the data": lambda: {"train": Bag(tiny_data(3), second_of(BoomError()))},
        "error in the data of an evaluation": lambda: {"val": Bag(tiny_data(3), second_of(BoomError()))},
        "Ctrl-C in a hook": lambda: {"recorder": Recorder(train_step_end=ctrl_c())},
        "Ctrl-C in an evaluation": lambda: {"recorder": Recorder(eval_batch_end=ctrl_c())},
        "Ctrl-C in the data": lambda: {"train": Bag(tiny_data(3), second_of(action=press_ctrl_c))},
        "Ctrl-C twice": lambda: {"recorder": Recorder(backward_end=pressed_twice)},
        "Ctrl-C twice in an evaluation": lambda: {"recorder": Recorder(eval_batch_end=pressed_twice)},
        "SystemExit": lambda: {"recorder": Recorder(train_step_end=fail(SystemExit(3)))},
    }
    for event in (
        "setup", "model_ready", "fit_start", "sanity_check_start", "sanity_check_end", "train_start",
        "train_epoch_start", "batch_fetch_start", "train_batch_start", "backward_end", "gradients_ready",
        "optimizer_step_end", "train_step_end", "metrics_ready", "train_epoch_end", "eval_start",
        "eval_loader_start", "eval_batch_start", "eval_batch_end", "eval_loader_end", "eval_end", "epoch_end",
        "step_settled", "train_end", "fit_end", "teardown",
    ):  # fmt: skip
        ways[f"error in on_{event}"] = lambda event=event: {"recorder": Recorder(**{event: fail(BoomError())})}
    return ways


WAYS = kinds()


class Fragile(hl.Callback):
    """Counts its last hooks, and fails in each of them."""

    def __init__(self) -> None:
        self.calls = {"exception": 0, "teardown": 0}

    def on_exception(self, run: Any) -> None:
        self.calls["exception"] += 1
        raise ValueError("on_exception fails, too")

    def on_teardown(self, run: Any) -> None:
        self.calls["teardown"] += 1
        raise ValueError("on_teardown fails, too")


@pytest.mark.usefixtures("fresh_handler")
@pytest.mark.parametrize("way", WAYS)
def test_after_every_way_out_modes_grad_mode_and_handler_are_as_before(way: str) -> None:
    arguments = {"recorder": Recorder(), "task": TinyTask(), **WAYS[way]()}
    task = arguments["task"]
    task.train()
    task.net.drop.eval()
    modes = [module.training for module in task.modules()]
    caught: BaseException | None = None
    try:
        run_fit(**arguments)
    except BaseException as error:
        caught = error  # as a debugger or a notebook keeps it
    assert [module.training for module in task.modules()] == modes
    assert torch.is_grad_enabled()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    del caught


IN_EVALUATION = (
    "error in the sanity check", "error in eval_batch", "error in the data of an evaluation",
    "error in on_eval_batch_end", "error in on_eval_end", "Ctrl-C twice in an evaluation", "StopTraining in eval_batch",
)  # fmt: skip


@pytest.mark.usefixtures("fresh_handler")
@pytest.mark.parametrize("way", IN_EVALUATION)
def test_nothing_more_happens_when_the_exception_is_forgotten(way: str) -> None:
    """An evaluation that is closed only with the traceback puts back random states and modes much later."""
    arguments = {"recorder": Recorder(), "task": TinyTask(), **WAYS[way]()}
    task = arguments["task"]
    gc.collect()
    with suppress(BoomError, KeyboardInterrupt):
        run_fit(**arguments)
    task.eval()
    torch.manual_seed(7)
    task.in_train = task.in_eval = None
    arguments.clear()
    gc.collect()
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(7)))
    assert torch.is_grad_enabled()
    assert not any(module.training for module in task.modules())


@pytest.mark.usefixtures("fresh_handler")
@pytest.mark.parametrize("way", WAYS)
def test_on_exception_and_on_teardown_run_once_for_everybody_even_if_some_fail(way: str) -> None:
    first, last = Fragile(), Recorder()
    last.name = "last"
    arguments = {"recorder": Recorder(), **WAYS[way]()}
    own = arguments["recorder"]
    failed = True
    try:
        run_fit(**arguments, callbacks=(first, last))
    except ValueError:
        failed = False  # the first error of the run is that of the first on_teardown
    except BaseException:
        failed = way != "error in on_teardown"
    assert first.calls == {"exception": int(failed), "teardown": 1}
    for recorder in (own, last):
        assert (recorder.seen.count("exception"), recorder.seen.count("teardown")) == (int(failed), 1)
        assert recorder.seen[-1] == "teardown"


@pytest.mark.usefixtures("fresh_handler")
@pytest.mark.parametrize("way", WAYS)
def test_after_every_way_out_the_same_trainer_can_fit_again(way: str) -> None:
    """Nothing that was open stays open: the second run looks like that of a new trainer."""
    arguments = {"recorder": Recorder(), "task": TinyTask(), **WAYS[way]()}
    recorder, task = arguments["recorder"], arguments["task"]
    trainer = Trainer(callbacks=[recorder], folder=False, max_duration="2ep", eval_every="2st")
    with suppress(BoomError, KeyboardInterrupt, SystemExit):
        trainer.fit(task, arguments.get("train") or tiny_data(3), arguments.get("val") or tiny_data(1))
    recorder.actions.clear()
    recorder.seen.clear()
    task.in_train = task.in_eval = None
    result = trainer.fit(task, tiny_data(3), tiny_data(1), extend="1ep")
    assert "exception" not in recorder.seen
    assert recorder.seen[-3:] == ["train_end", "fit_end", "teardown"]
    assert recorder.seen.count("step_settled") == recorder.seen.count("train_step_end") > 0
    assert recorder.seen.count("eval_start") == recorder.seen.count("eval_end") > 0
    assert result.history.steps("val/loss")[-1] == result.clock.step


def test_a_run_that_was_never_opened_registers_nothing() -> None:
    """A mistake in fit(callbacks=…) must not leave half of them behind."""
    trainer = Trainer(folder=False, max_duration="1ep")
    recorder = Recorder()
    with pytest.raises(RegistrationError):
        trainer.fit(TinyTask(), tiny_data(1), callbacks=[recorder, Recorder])
    trainer.fit(TinyTask(), tiny_data(1))
    assert recorder.seen == []


def test_a_stop_at_the_start_of_an_epoch_is_settled_at_the_end_of_its_first_step() -> None:
    class Stops(hl.Callback):
        def on_train_epoch_start(self, run: hl.Run) -> None:
            if run.clock.epoch == 1:
                run.stop("enough")

    trainer = Trainer(max_duration="3ep", callbacks=[Stops()], folder=False)
    result = trainer.fit(TinyModel(), tiny_data(4), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    assert (result.clock.step, result.stop_reason) == (5, "enough")


def test_a_stop_whose_reason_is_break_is_a_stop(tmp_path: Path) -> None:
    """The word was taken for a ``break`` in an own loop: no last evaluation, and a resume trained on."""
    asks = hl.on("train_step_end", at="3st")(lambda run: run.stop("break"))

    options: Any = {"val": tiny_data(1), "max_duration": "9st", "folder": tmp_path}
    for resume in (None, "auto"):
        result = fit(asks, hl.Checkpointer(), resume=resume, **options)
        assert (result.clock.step, result.stop_reason) == (3, "break")
        assert result.history.steps("val/loss") == [3]


@pytest.mark.parametrize(
    ("where", "stage"),
    [
        ("fit_start", "train"),
        ("sanity_check_start", "val"),
        ("train_step_end", "train"),
        ("eval_start", "val"),
        ("eval_end", "val"),
        ("epoch_end", "train"),
        ("test", "test"),
        ("eval_batch", "val"),
    ],
)
def test_on_exception_has_the_stage_in_which_the_run_failed(where: str, stage: str) -> None:
    found = []
    failed = hl.on("exception")(lambda run: found.append(run.stage))
    left = hl.on("teardown")(lambda run: found.append(run.stage))

    def fail(run: Any) -> None:
        if where != "test" or run.stage == "test":
            raise ZeroDivisionError

    class Failing(hl.SupervisedTask):
        def eval_batch(self, run: Any, batch: Any) -> Any:
            if where == "eval_batch" and run.clock.step:
                fail(run)
            return super().eval_batch(run, batch)

    callbacks: list[Any] = [failed, left]
    if where != "eval_batch":
        callbacks.append(hl.on("eval_batch_end" if where == "test" else where)(fail))
    model, data = TinyModel(), tiny_data(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    task = Failing(model, nn.CrossEntropyLoss(), optimizer)
    trainer = Trainer(callbacks=callbacks, max_duration="1ep", folder=False)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(task, data, data, data)
    assert found == [stage, "train"]
