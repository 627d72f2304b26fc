"""The events of a run, in full: what a callback's author relies on when choosing a hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import hookline as hl
from hookline.errors import SetupError
from hookline.events.spec import BY_NAME
from hookline.loop import Task, Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import fit, literal, set_time


class Recorder(hl.Callback):
    """Notes every event, and does something at some of them."""

    def __init__(self, **actions: Callable[[Any], object]) -> None:
        self.seen: list[str] = []
        self.actions = actions

    def on_event(self, event: str, run: Any) -> None:
        self.seen.append(event)
        if event in self.actions:
            self.actions[event](run)


class TinyTask(Task[Any]):
    """A task without forward events of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = TinyModel()

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_batch(self, run: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def eval_batch(self, run: Any, batch: Any) -> Any:
        return self.train_batch(run, batch)


class Bag:
    """Batches without a length, that can be iterated over again; it counts how often it is asked."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches
        self.asked = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.asked += 1
            yield batch
        self.asked += 1


class Stream(IterableDataset[Any]):
    """Samples without a length."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        data = tiny_data(batches=1, batch_size=self.samples)[0]
        return zip(*data, strict=True)


def events_of(
    train: Any, val: Any = None, test: Any = None, *, recorder: Recorder | None = None, **options: Any
) -> Any:
    """The events of one epoch, and the result."""
    recorder = recorder or Recorder()
    result = fit(recorder, train=train, val=val, test=test, **{"max_duration": "1ep", **options})
    return recorder.seen, result


# The parts that long sequences are made of; the first tests below spell them out.
START = "setup model_ready fit_start train_start"
CHECKED = "setup model_ready fit_start sanity_check_start sanity_check_end train_start"
FETCH = "batch_fetch_start batch_fetch_end"
BATCH = "train_batch_start forward_start forward_end loss_ready backward_start backward_end train_batch_end"
UPDATE = "gradients_ready optimizer_step_start optimizer_step_end zero_grad train_step_end"
STEP = f"{FETCH} train_step_start {BATCH} {UPDATE}"
EVAL_BATCH = f"{FETCH} eval_batch_start forward_start forward_end eval_batch_end"
EVAL = f"eval_start eval_loader_start {EVAL_BATCH} eval_loader_end eval_end"
END = "train_end fit_end teardown"


# -- fit -------------------------------------------------------------------------------------------


def test_plain_fit() -> None:
    seen, result = events_of(tiny_data(2))
    assert seen == literal("""
        setup model_ready fit_start train_start train_epoch_start
        batch_fetch_start batch_fetch_end train_step_start
        train_batch_start forward_start forward_end loss_ready backward_start backward_end train_batch_end
        gradients_ready optimizer_step_start optimizer_step_end zero_grad train_step_end step_settled
        batch_fetch_start batch_fetch_end train_step_start
        train_batch_start forward_start forward_end loss_ready backward_start backward_end train_batch_end
        gradients_ready optimizer_step_start optimizer_step_end zero_grad train_step_end
        metrics_ready train_epoch_end epoch_end step_settled
        train_end fit_end teardown
    """)
    assert (result.clock.epoch, result.clock.step, result.clock.batch, result.clock.sample) == (1, 2, 2, 16)
    assert (result.stop_reason, result.stopped_by, result.interrupted) == ("max_duration (1ep) reached", None, False)


def test_evaluation_every_epoch_comes_between_train_epoch_end_and_epoch_end() -> None:
    seen, result = events_of(tiny_data(1), tiny_data(2), max_duration="2ep")
    epoch = """
        train_epoch_start batch_fetch_start batch_fetch_end train_step_start
        train_batch_start forward_start forward_end loss_ready backward_start backward_end train_batch_end
        gradients_ready optimizer_step_start optimizer_step_end zero_grad train_step_end
        metrics_ready train_epoch_end
        eval_start eval_loader_start
        batch_fetch_start batch_fetch_end eval_batch_start forward_start forward_end eval_batch_end
        batch_fetch_start batch_fetch_end eval_batch_start forward_start forward_end eval_batch_end
        eval_loader_end eval_end epoch_end step_settled
    """
    assert seen == literal(CHECKED, epoch, epoch, END)
    assert result.history.steps("val/loss") == [1, 2]


def test_evaluation_every_two_steps_and_once_at_the_end() -> None:
    seen, result = events_of(tiny_data(5), tiny_data(1), eval_every="2st")
    assert seen == literal(f"""
        {CHECKED} train_epoch_start
        {STEP} step_settled
        {STEP} {EVAL} step_settled
        {STEP} step_settled
        {STEP} {EVAL} step_settled
        {STEP} metrics_ready train_epoch_end {EVAL} epoch_end step_settled
        {END}
    """)
    assert result.history.steps("val/loss") == [2, 4, 5]


def test_accumulation_of_two_with_a_partial_last_window() -> None:
    seen, result = events_of(tiny_data(3), accumulate=2)
    assert seen == literal("""
        setup model_ready fit_start train_start train_epoch_start
        batch_fetch_start batch_fetch_end train_step_start
        train_batch_start forward_start forward_end loss_ready backward_start backward_end train_batch_end
        batch_fetch_start batch_fetch_end
        train_batch_start forward_start forward_end loss_ready backward_start backward_end train_batch_end
        gradients_ready optimizer_step_start optimizer_step_end zero_grad train_step_end step_settled
        batch_fetch_start batch_fetch_end train_step_start
        train_batch_start forward_start forward_end loss_ready backward_start backward_end train_batch_end
        gradients_ready optimizer_step_start optimizer_step_end zero_grad train_step_end
        metrics_ready train_epoch_end epoch_end step_settled
        train_end fit_end teardown
    """)
    assert (result.clock.step, result.clock.batch) == (2, 3)


def test_the_step_of_the_design_with_a_scheduler_an_evaluation_and_accumulation() -> None:
    """The literal of one step in the design, without its save."""
    seen, _ = events_of(
        tiny_data(4),
        tiny_data(1),
        accumulate=2,
        eval_every="1st",
        scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    )
    first = literal("""
        batch_fetch_start batch_fetch_end train_step_start
        train_batch_start forward_start forward_end loss_ready backward_start backward_end train_batch_end
        batch_fetch_start batch_fetch_end
        train_batch_start forward_start forward_end loss_ready backward_start backward_end train_batch_end
        gradients_ready optimizer_step_start optimizer_step_end scheduler_step zero_grad train_step_end
        eval_start eval_loader_start
        batch_fetch_start batch_fetch_end eval_batch_start forward_start forward_end eval_batch_end
        eval_loader_end eval_end step_settled
    """)
    begin = seen.index("train_epoch_start") + 1
    assert seen[begin : begin + len(first)] == first


def test_scheduler_step_is_sent_only_when_a_scheduler_moved() -> None:
    def every_other_step(optimizer: Any) -> Any:
        return hl.Scheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), every="2st")

    seen, _ = events_of(tiny_data(4), scheduler=every_other_step)
    moves = [event for event in seen if event in ("scheduler_step", "train_step_end")]
    assert moves == literal("train_step_end scheduler_step train_step_end train_step_end scheduler_step train_step_end")


def test_a_scheduler_by_epoch_moves_at_the_edge_before_train_epoch_end() -> None:
    def every_epoch(optimizer: Any) -> Any:
        return hl.Scheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), every="1ep")

    seen, _ = events_of(tiny_data(2), tiny_data(1), scheduler=every_epoch)
    tail = seen[seen.index("step_settled") + 1 :]
    assert tail == literal(f"""
        {STEP} scheduler_step metrics_ready train_epoch_end {EVAL} epoch_end step_settled {END}
    """)


def test_a_plateau_scheduler_moves_after_the_evaluation() -> None:
    seen, _ = events_of(tiny_data(1), tiny_data(1), scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)
    assert seen == literal(f"""
        {CHECKED} train_epoch_start {STEP} metrics_ready train_epoch_end
        {EVAL} scheduler_step epoch_end step_settled {END}
    """)


def test_intervals_of_metrics_end_before_the_step_is_settled() -> None:
    seen, result = events_of(tiny_data(5), log_every="2st")
    assert seen == literal(f"""
        {START} train_epoch_start
        {STEP} step_settled
        {STEP} metrics_ready step_settled
        {STEP} step_settled
        {STEP} metrics_ready step_settled
        {STEP} metrics_ready train_epoch_end epoch_end step_settled
        {END}
    """)
    assert result.history.steps("train/loss") == [2, 4, 5]


def test_without_an_interval_there_are_no_metrics_of_training() -> None:
    seen, result = events_of(tiny_data(2), log_every=None)
    assert "metrics_ready" not in seen
    assert "train/loss" not in result.history


def test_named_evaluation_loaders_share_one_evaluation() -> None:
    names: list[Any] = []
    recorder = Recorder(eval_loader_start=lambda run: names.append(run.loader_name))
    seen, result = events_of(tiny_data(1), {"easy": tiny_data(2), "hard": tiny_data(1)}, recorder=recorder)
    assert seen == literal(f"""
        {CHECKED} train_epoch_start {STEP} metrics_ready train_epoch_end
        eval_start
        eval_loader_start {EVAL_BATCH} {EVAL_BATCH} eval_loader_end
        eval_loader_start {EVAL_BATCH} eval_loader_end
        eval_end epoch_end step_settled {END}
    """)
    assert names == ["easy", "hard"]
    assert [name for name in result.metrics if name.startswith("val/")] == ["val/easy/loss", "val/hard/loss"]


def test_the_test_loader_is_evaluated_once_between_train_end_and_fit_end() -> None:
    stages: list[str] = []
    recorder = Recorder(eval_start=lambda run: stages.append(run.stage))
    seen, result = events_of(tiny_data(1), tiny_data(1), tiny_data(1), recorder=recorder, max_duration="2ep")
    epoch = f"train_epoch_start {STEP} metrics_ready train_epoch_end {EVAL} epoch_end step_settled"
    assert seen == literal(CHECKED, epoch, epoch, "train_end", EVAL, "fit_end teardown")
    assert stages == ["val", "val", "test"]
    assert "test/loss" in result.metrics


def test_a_second_fit_goes_on_without_a_second_sanity_check() -> None:
    recorder = Recorder()
    trainer = Trainer(callbacks=[recorder], folder=False, max_duration="1ep")
    model, loss = TinyModel(), nn.CrossEntropyLoss()
    trainer.fit(model, tiny_data(1), loss=loss, optimizer=torch.optim.SGD)
    recorder.seen.clear()
    result = trainer.fit(model, tiny_data(1), loss=loss, optimizer=torch.optim.SGD, extend="1ep")
    assert recorder.seen == literal(f"""
        setup model_ready fit_start train_start
        train_epoch_start {STEP} metrics_ready train_epoch_end epoch_end step_settled {END}
    """)
    assert (result.clock.epoch, result.clock.step) == (2, 2)


def test_a_fit_that_goes_on_inside_an_epoch_does_not_start_it_again() -> None:
    stop = Recorder(train_step_end=lambda run: run.stop("enough") if run.clock.step == 1 else None)
    trainer = Trainer(callbacks=[stop], folder=False, max_duration="1ep")
    model, loss = TinyModel(), nn.CrossEntropyLoss()
    first = trainer.fit(model, tiny_data(3), loss=loss, optimizer=torch.optim.SGD)
    assert (first.clock.epoch, first.clock.step) == (0, 1)
    stop.seen.clear()
    second = trainer.fit(model, tiny_data(3), loss=loss, optimizer=torch.optim.SGD)
    assert stop.seen == literal(f"""
        setup model_ready fit_start train_start
        {STEP} step_settled {STEP} metrics_ready train_epoch_end epoch_end step_settled {END}
    """)
    assert (second.clock.epoch, second.clock.step, second.clock.batch) == (1, 3, 3)


# -- steps that are different ----------------------------------------------------------------------


def test_a_skipped_step_sends_step_skipped_and_does_not_count() -> None:
    skip = Recorder(gradients_ready=lambda run: run.skip_step() if run.clock.batch == 2 else None)
    seen, result = events_of(tiny_data(3), recorder=skip)
    assert seen == literal(f"""
        {START} train_epoch_start
        {STEP} step_settled
        {FETCH} train_step_start {BATCH} gradients_ready step_skipped zero_grad
        {STEP} metrics_ready train_epoch_end epoch_end step_settled
        {END}
    """)
    assert (result.clock.step, result.clock.batch) == (2, 3)
    assert result.clock.updates == {"SGD": 2}


def test_a_skipped_step_at_the_edge_still_ends_the_epoch() -> None:
    skip = Recorder(gradients_ready=lambda run: run.skip_step() if run.clock.batch == 2 else None)
    seen, result = events_of(tiny_data(2), tiny_data(1), recorder=skip)
    assert seen == literal(f"""
        {CHECKED} train_epoch_start
        {STEP} step_settled
        {FETCH} train_step_start {BATCH} gradients_ready step_skipped zero_grad
        metrics_ready train_epoch_end {EVAL} epoch_end
        {END}
    """)
    assert (result.clock.epoch, result.clock.step) == (1, 1)


def test_a_task_that_leaves_a_batch_out_sends_step_skipped_too() -> None:
    """A callback that counts skipped steps must not miss those without a backward."""

    class Choosy(TinyTask):
        def train_batch(self, run: Any, batch: Any) -> Any:
            if run.clock.batch == 1:
                return run.skip_step()
            return super().train_batch(run, batch)

    recorder = Recorder()
    Trainer(callbacks=[recorder], folder=False, max_duration="1ep").fit(Choosy(), tiny_data(2))
    batch = "train_batch_start loss_ready backward_start backward_end train_batch_end"
    update = "gradients_ready optimizer_step_start optimizer_step_end train_step_end"
    # Whether zero_grad is sent where there was no gradient is left open.
    assert [event for event in recorder.seen if event != "zero_grad"] == literal(f"""
        {START} train_epoch_start
        {FETCH} train_step_start {batch} {update} step_settled
        {FETCH} train_step_start train_batch_start train_batch_end step_skipped
        metrics_ready train_epoch_end epoch_end
        {END}
    """)


def test_updates_that_a_task_drives_itself_happen_inside_the_batch() -> None:
    class Gan(TinyTask):
        def __init__(self) -> None:
            super().__init__()
            self.critic = nn.Linear(4, 1)

        def configure_optimizers(self, run: Any) -> Any:
            return {
                "net": torch.optim.SGD(self.net.parameters(), lr=0.1),
                "critic": torch.optim.SGD(self.critic.parameters(), lr=0.1),
            }

        def train_batch(self, run: Any, batch: Any) -> None:
            for name in ("net", "critic"):
                loss = getattr(self, name)(batch[0]).square().mean()
                run.loop.backward(loss, run.optimizers[name])
                run.loop.step(run.optimizers[name])

    names: list[str] = []

    def note(run: Any) -> None:
        names.extend(name for name, optimizer in run.optimizers.items() if optimizer is run.optimizer)

    recorder = Recorder(gradients_ready=note)
    result = Trainer(callbacks=[recorder], folder=False, max_duration="1ep").fit(Gan(), tiny_data(1))
    update = """
        loss_ready backward_start backward_end
        gradients_ready optimizer_step_start optimizer_step_end zero_grad
    """
    assert recorder.seen == literal(f"""
        {START} train_epoch_start {FETCH} train_step_start train_batch_start
        {update} {update} train_batch_end train_step_end
        metrics_ready train_epoch_end epoch_end step_settled {END}
    """)
    assert names == ["net", "critic"]
    assert result.clock.step == 1
    assert result.clock.updates == {"net": 1, "critic": 1}


def test_an_optimizer_with_a_closure_repeats_forward_to_gradients_inside_its_step() -> None:
    recorder = Recorder()
    Trainer(callbacks=[recorder], folder=False, max_duration="1ep").fit(
        TinyModel(),
        tiny_data(1),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.LBFGS(parameters, max_iter=2, max_eval=2),
    )
    again = "forward_start forward_end loss_ready backward_start backward_end gradients_ready"
    assert recorder.seen == literal(f"""
        {START} train_epoch_start {FETCH} train_step_start train_batch_start
        optimizer_step_start {again} {again} optimizer_step_end zero_grad
        train_batch_end train_step_end
        metrics_ready train_epoch_end epoch_end step_settled {END}
    """)


# -- loaders ---------------------------------------------------------------------------------------


def test_a_loader_without_a_length_ends_its_epoch_when_it_has_nothing_more() -> None:
    seen, result = events_of(Bag(tiny_data(2)), tiny_data(1), max_duration="2ep")
    epoch = f"""
        train_epoch_start {STEP} step_settled {STEP} step_settled
        batch_fetch_start metrics_ready train_epoch_end {EVAL} epoch_end
    """
    assert seen == literal(CHECKED, epoch, epoch, END)
    assert (result.clock.epoch, result.clock.step) == (2, 4)


def test_iterable_data_behaves_like_any_loader_without_a_length() -> None:
    seen, result = events_of(DataLoader(Stream(6), batch_size=4), DataLoader(Stream(2), batch_size=4))
    assert seen == literal(f"""
        {CHECKED} train_epoch_start {STEP} step_settled {STEP} step_settled
        batch_fetch_start metrics_ready train_epoch_end
        eval_start eval_loader_start {EVAL_BATCH} batch_fetch_start eval_loader_end eval_end
        epoch_end {END}
    """)
    assert (result.clock.step, result.clock.sample) == (2, 6)


def test_every_step_is_settled_also_the_short_last_one_of_a_loader_without_a_length() -> None:
    """A callback that saves or counts at step_settled must see the step that a short window makes."""
    seen, result = events_of(Bag(tiny_data(3)), accumulate=2)
    assert result.clock.step == seen.count("train_step_end") == 2
    assert seen.count("step_settled") == 2


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_epoch_of_a_loader_without_a_length_may_be_cut_by_max_duration(steps: int) -> None:
    seen, result = events_of(Bag(tiny_data(4)), max_duration=f"{steps}st")
    assert seen == literal(
        START, "train_epoch_start", *[f"{STEP} step_settled"] * steps, "metrics_ready train_epoch_end epoch_end", END
    )
    assert (result.clock.epoch, result.clock.step) == (0, steps)


def test_a_loader_with_a_length_is_not_asked_for_more_than_it_has() -> None:
    """To ask would start workers again, or wait for data that never comes."""

    class Counted(list[Any]):
        asked = 0

        def __iter__(self) -> Any:
            for batch in super().__iter__():
                type(self).asked += 1
                yield batch
            raise AssertionError("asked for a batch past the end")

    loader = Counted(tiny_data(3, batch_size=2))
    _, result = events_of(loader, loader, max_duration="2ep")
    assert result.clock.step == 6
    assert Counted.asked == 6 + 6 + 2  # training, two evaluations, and two batches of the sanity check


# -- how long --------------------------------------------------------------------------------------


def test_max_duration_in_steps_cuts_the_epoch_after_one_last_evaluation() -> None:
    seen, result = events_of(tiny_data(4), tiny_data(1), max_duration="2st")
    assert seen == literal(f"""
        {CHECKED} train_epoch_start
        {STEP} step_settled
        {STEP} {EVAL} step_settled metrics_ready train_epoch_end epoch_end
        {END}
    """)
    assert (result.clock.epoch, result.clock.step) == (0, 2)
    assert "stop" not in seen


@pytest.mark.parametrize(
    ("duration", "steps", "epochs"), [("20sp", 3, 0), ("24sp", 3, 0), ("25sp", 4, 1), ("33sp", 5, 1)]
)
def test_max_duration_in_samples(duration: str, steps: int, epochs: int) -> None:
    _, result = events_of(tiny_data(4), max_duration=duration)  # of 8 samples each
    assert (result.clock.step, result.clock.epoch) == (steps, epochs)
    assert result.stop_reason == f"max_duration ({duration}) reached"


class Talker(TinyTask):
    """Says how many tokens a batch has."""

    def count(self, batch: Any) -> tuple[int, int | None]:
        return len(batch[0]), 10 * len(batch[0])


def test_max_duration_in_tokens() -> None:
    trainer = Trainer(folder=False, max_duration="200tok")
    result = trainer.fit(Talker(), tiny_data(4))
    assert (result.clock.step, result.clock.token) == (3, 240)


def test_max_duration_in_tokens_that_nobody_counts_is_an_error_and_not_endless() -> None:
    with pytest.raises(SetupError, match="tokens"):
        events_of(tiny_data(4), max_duration="200tok")


def test_max_duration_in_seconds() -> None:
    """The run ends at the first step after the time, and a stopped clock would make it endless."""
    now = 0.0

    def tick(run: Any) -> None:
        nonlocal now
        now += 1.0

    recorder = Recorder(setup=lambda run: set_time(run, lambda: now), train_step_start=tick)
    seen, result = events_of(tiny_data(4), tiny_data(1), max_duration="3s", recorder=recorder)
    assert result.clock.step == 3
    assert seen[-13:] == literal(
        "eval_start eval_loader_start", EVAL_BATCH, "eval_loader_end eval_end step_settled",
        "metrics_ready train_epoch_end epoch_end train_end fit_end teardown",
    )[-13:]  # fmt: skip


def test_max_duration_can_be_changed_by_a_hook() -> None:
    def shorter(run: Any) -> None:
        run.max_duration = "3st"

    _, result = events_of(tiny_data(4), recorder=Recorder(train_start=shorter), max_duration="2ep")
    assert result.clock.step == 3


# -- the other entry points ------------------------------------------------------------------------


def test_predict() -> None:
    recorder = Recorder()
    found = Trainer(callbacks=[recorder], folder=False).predict(TinyModel(), tiny_data(2))
    batch = "batch_fetch_start batch_fetch_end predict_batch_start forward_start forward_end predict_batch_end"
    assert recorder.seen == literal("setup model_ready predict_start", batch, batch, "predict_end teardown")
    assert found.shape == (16, 3)


@pytest.mark.parametrize(("entry", "stage"), [("evaluate", "val"), ("test", "test")])
def test_evaluate_and_test(entry: str, stage: str) -> None:
    recorder = Recorder(eval_start=lambda run: stages.append((run.stage, run.entry_point)))
    stages: list[tuple[str, str]] = []
    trainer = Trainer(callbacks=[recorder], folder=False)
    found = getattr(trainer, entry)(TinyModel(), tiny_data(2), loss=nn.CrossEntropyLoss())
    assert recorder.seen == literal("""
        setup model_ready eval_start eval_loader_start
        batch_fetch_start batch_fetch_end eval_batch_start forward_start forward_end eval_batch_end
        batch_fetch_start batch_fetch_end eval_batch_start forward_start forward_end eval_batch_end
        eval_loader_end eval_end teardown
    """)
    assert stages == [(stage, entry)]
    assert list(found) == [f"{stage}/loss"]


def test_train_is_a_fit_without_any_evaluation() -> None:
    recorder = Recorder()
    result = hl.train(
        TinyModel(),
        tiny_data(1),
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD,
        callbacks=[recorder, hl.ProgressBar(style=None)],
        max_duration="1ep",
        folder=False,
    )
    assert recorder.seen == literal(f"""
        {START} train_epoch_start {STEP} metrics_ready train_epoch_end epoch_end step_settled {END}
    """)
    assert result.clock.step == 1


# -- what a hook finds -----------------------------------------------------------------------------


def test_at_every_event_the_fields_of_the_table_have_a_value() -> None:
    """The table says what is valid when; a hook that believes it must not fail."""
    wrong: list[str] = []

    class Reader(hl.Callback):
        def on_event(self, event: str, run: Any) -> None:
            declared = BY_NAME[event]
            if run.stage not in declared.stages:
                wrong.append(f"{event}: stage {run.stage}")
            for field in declared.valid:
                try:
                    getattr(run, field)
                except AttributeError as error:
                    wrong.append(f"{event}: {error}")
            if event == "gradients_ready" and run.clock.batch == 3:
                run.skip_step()
            if event == "train_step_end" and run.clock.step == 5:
                run.stop("enough")

    trainer = Trainer(callbacks=[Reader()], folder=False, max_duration="5ep", eval_every="2st", log_every="1st")
    model = TinyModel()
    loss = nn.CrossEntropyLoss()
    trainer.fit(
        model,
        tiny_data(4),
        {"a": tiny_data(2), "b": tiny_data(1)},
        tiny_data(1),
        loss=loss,
        optimizer=torch.optim.SGD,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    )
    trainer.evaluate(model, tiny_data(1))
    trainer.predict(model, tiny_data(1))
    assert wrong == []


def test_the_clock_counts_a_step_before_train_step_end_and_an_epoch_before_train_epoch_end() -> None:
    found: dict[str, list[tuple[int, int, int]]] = {}

    class Reader(hl.Callback):
        def on_event(self, event: str, run: Any) -> None:
            found.setdefault(event, []).append((run.clock.epoch, run.clock.step, run.clock.batch))

    fit(Reader(), train=tiny_data(2), val=tiny_data(1))
    assert found["train_step_start"] == [(0, 0, 0), (0, 1, 1), (1, 2, 2), (1, 3, 3)]
    assert found["train_batch_end"] == [(0, 0, 0), (0, 1, 1), (1, 2, 2), (1, 3, 3)]
    assert found["gradients_ready"] == [(0, 0, 1), (0, 1, 2), (1, 2, 3), (1, 3, 4)]
    assert found["train_step_end"] == [(0, 1, 1), (0, 2, 2), (1, 3, 3), (1, 4, 4)]
    assert found["train_epoch_end"] == found["eval_start"] == found["epoch_end"] == [(1, 2, 2), (2, 4, 4)]
    assert found["step_settled"] == [(0, 1, 1), (1, 2, 2), (1, 3, 3), (2, 4, 4)]
