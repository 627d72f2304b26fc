"""Evaluation, sanity check and answers change nothing: weights, random states, gradients, modes, clocks, history."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hookline as hl
from hookline.errors import MetricError, SetupError
from hookline.loop import Loop, Task, Trainer
from hookline.testing import TinyModel, run_script, tiny_data
from tests.support import fit, literal, same_tensors, state_of

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


class Net(nn.Module):
    """Dropout draws in training; the batch norm has statistics that an evaluation could spoil."""

    def __init__(self) -> None:
        super().__init__()
        self.tiny = TinyModel(dropout=0.5)
        self.norm = nn.BatchNorm1d(3)
        self.frozen = nn.Dropout(0.5).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.norm(self.tiny(x)))


class NetTask(Task[Any]):
    """Counts its calls, and draws random numbers where a user might."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.calls = {"eval": 0, "predict": 0}

    def configure_optimizers(self, run: Any) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def train_batch(self, run: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def eval_batch(self, run: Any, batch: Any) -> Any:
        self.calls["eval"] += 1
        torch.rand(1), random.random(), np.random.rand()
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        run.log({"spread": self.net(batch[0]).std()})
        return loss

    def predict_batch(self, run: Any, batch: Any) -> Any:
        self.calls["predict"] += 1
        torch.rand(1), random.random(), np.random.rand()
        return self.net(batch[0])


class Augmented(Dataset[Any]):
    """Samples with noise from three generators, as augmentations have it."""

    def __init__(self, size: int) -> None:
        self.x, self.y = tiny_data(1, batch_size=size)[0]

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Any:
        noise = torch.rand(()) + random.random() + float(np.random.rand())
        return self.x[index] + 0.1 * noise, self.y[index]


def loaders(kind: str) -> tuple[Any, Any]:
    """A loader for training and one for evaluation, both shuffled."""
    if kind == "own generator":
        generator = torch.Generator().manual_seed(5)
        return (
            DataLoader(Augmented(20), batch_size=4, shuffle=True, generator=generator),
            DataLoader(Augmented(8), batch_size=4, shuffle=True, generator=generator),
        )
    return DataLoader(Augmented(20), batch_size=4, shuffle=True), DataLoader(Augmented(8), batch_size=4, shuffle=True)


def final_weights(
    *callbacks: hl.Callback, val: bool = True, kind: str = "global generator", **options: Any
) -> tuple[list[torch.Tensor], Any]:
    """The weights, buffers included, after two epochs of five batches."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    task = NetTask()
    train, evaluation = loaders(kind)
    options = {"max_duration": "2ep", "folder": False, **options}
    result = Trainer(callbacks=callbacks, **options).fit(task, train, evaluation if val else None)
    return [tensor.clone() for tensor in task.state_dict().values()], result


@pytest.fixture(scope="module")
def untouched() -> dict[tuple[str, int], list[torch.Tensor]]:
    """The weights of runs without any evaluation."""
    return {
        (kind, accumulate): final_weights(val=False, kind=kind, accumulate=accumulate)[0]
        for kind in ("global generator", "own generator")
        for accumulate in (1, 2)
    }


# -- the weights -------------------------------------------------------------------------------------


def test_the_data_is_random_so_that_these_tests_can_fail(untouched: Any) -> None:
    def draw(run: Any) -> None:
        torch.rand(1)

    assert not same_tensors(final_weights(Recorder(train_start=draw), val=False)[0], untouched["global generator", 1])


@pytest.mark.parametrize("kind", ["global generator", "own generator"])
@pytest.mark.parametrize("every", ["1ep", "2ep", "1st", "2st", "3st", "7st", "9sp", None])
def test_adding_and_moving_evaluations_leaves_the_weights_bitwise_the_same(
    untouched: Any, kind: str, every: str | None
) -> None:
    weights, _ = final_weights(kind=kind, eval_every=every)
    assert same_tensors(weights, untouched[kind, 1])


ANSWERS: dict[str, Action] = {
    "predict val": lambda run: run.predict("val"),
    "predict train": lambda run: run.predict("train"),
    "evaluate val": lambda run: run.evaluate("val"),
    "evaluate train": lambda run: run.evaluate("train"),
    "all of them": lambda run: (run.predict("val"), run.evaluate("train"), run.predict("train"), run.evaluate("val")),
}


EVENTS = literal(
    "train_start train_epoch_start batch_fetch_start batch_fetch_end train_batch_start loss_ready backward_end",
    "gradients_ready optimizer_step_start train_step_end eval_start eval_batch_end eval_end step_settled epoch_end",
)


@pytest.mark.parametrize(
    ("event", "what"),
    [
        *((event, "all of them") for event in EVENTS),
        *(("train_step_end", what) for what in ANSWERS if what != "all of them"),
    ],
)
def test_answers_in_any_hook_leave_the_weights_bitwise_the_same(untouched: Any, event: str, what: str) -> None:
    weights, _ = final_weights(Recorder(**{event: ANSWERS[what]}), accumulate=2)
    assert same_tensors(weights, untouched["global generator", 2])


@pytest.mark.parametrize("workers", [{"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_a_prediction_on_the_training_data_does_not_disturb_its_workers(workers: dict[str, Any]) -> None:
    """iter() on a DataLoader with persistent workers gives the one iterator that training is using."""

    def train(*callbacks: hl.Callback) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        task = NetTask()
        data = DataLoader(TensorDataset(*tiny_data(1, batch_size=20)[0]), batch_size=4, shuffle=True, **workers)
        fit(*callbacks, model=task, train=data, max_duration="1ep", seed=None)
        return state_of(task)

    ask = Recorder(train_step_end=lambda run: run.predict("train") if run.clock.step == 2 else None)
    assert same_tensors(train(), train(ask))


def test_the_sanity_check_leaves_the_weights_bitwise_the_same(untouched: Any) -> None:
    weights, result = final_weights(eval_every=None)
    assert same_tensors(weights, untouched["global generator", 1])
    assert "val/loss" not in result.history


def test_evaluations_of_the_own_loop_leave_the_weights_bitwise_the_same() -> None:
    def train(every: str | None) -> list[torch.Tensor]:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        data, val = loaders("global generator")
        with Loop(net, optimizer, max_duration="2ep", eval_every=every, folder=False) as loop:
            for x, y in loop.batches(data):
                loop.backward(nn.functional.cross_entropy(net(x), y))
                loop.step()
                if loop.eval_due:
                    for number, (vx, _) in enumerate(loop.eval_batches(val)):
                        net(vx) + torch.rand(1) + random.random()
                        if every == "2st" and number == 0:
                            break
        return [tensor.clone() for tensor in net.state_dict().values()]

    assert same_tensors(train(None), train("1ep"))
    assert same_tensors(train(None), train("2st"))


def test_a_final_test_and_evaluations_after_the_fit_draw_nothing() -> None:
    torch.manual_seed(3)
    task = NetTask()
    train, val = loaders("global generator")
    trainer = Trainer(max_duration="1ep", folder=False)
    trainer.fit(task, train, val, val)
    before, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
    trainer.evaluate(task, val)
    trainer.test(task, val)
    trainer.predict(task, val)
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == python
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy, strict=True))


# -- everything else ---------------------------------------------------------------------------------


def moment(run: Any) -> dict[str, Any]:
    """What an answer must leave as it is."""
    clock = run.clock.state_dict()
    clock.pop("seconds")
    clock.pop("epoch_start")
    gradients = [None if p.grad is None else p.grad.clone() for p in run.task.parameters()]
    return {
        "clock": clock,
        "stage": run.stage,
        "batch": id(getattr(run, "batch", None)),
        "outputs": id(getattr(run, "outputs", None)),
        "loss": id(getattr(run, "loss", None)),
        "loader_name": getattr(run, "loader_name", None),
        "modes": [module.training for module in run.task.modules()],
        "grad mode": torch.is_grad_enabled(),
        "gradients": [None if g is None else g.tolist() for g in gradients],
        "same gradients": [None if p.grad is None else p.grad.data_ptr() for p in run.task.parameters()],
        "history": [(row.name, row.step, row.value) for row in run.history.rows()],
        "metrics": dict(run.metrics),
        "eval clock": run.clock.eval.batch if run.clock.is_evaluating else None,
        "random": torch.get_rng_state().tolist(),
    }


@pytest.mark.parametrize("event", ["backward_end", "gradients_ready", "train_step_end", "eval_batch_end", "epoch_end"])
@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_leaves_the_moment_as_it_was(event: str, what: str) -> None:
    changed: list[str] = []

    def ask(run: Any) -> None:
        before = moment(run)
        ANSWERS[what](run)
        after = moment(run)
        changed.extend(key for key in before if before[key] != after[key])

    recorder = Recorder(**{event: ask})
    final_weights(recorder, accumulate=2)
    assert event in recorder.seen
    assert changed == []


@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_sends_no_event(what: str) -> None:
    plain, asking = Recorder(), Recorder(train_step_end=ANSWERS[what])
    final_weights(plain)
    final_weights(asking)
    assert asking.seen == plain.seen


def test_what_predict_batch_logs_in_an_answer_leaves_no_trace() -> None:
    class Talkative(NetTask):
        def predict_batch(self, run: Any, batch: Any) -> Any:
            run.log({"confidence": 1.0, "train/loss": 100.0})
            return super().predict_batch(run, batch)

    def train(recorder: Recorder) -> Any:
        torch.manual_seed(3)
        return fit(recorder, model=Talkative(), train=tiny_data(2), val=tiny_data(1), max_duration="1ep").history

    plain, asked = train(Recorder()), train(Recorder(train_step_end=lambda run: run.predict("val")))
    assert dict(asked) == dict(plain)


def test_an_answer_that_fails_leaves_no_trace() -> None:
    """The hook may catch it; then no eval_end, no metric and no mode of the failed one may turn up later."""

    class Picky(NetTask):
        def eval_batch(self, run: Any, batch: Any) -> Any:
            run.log({"val/picky": 1.0})
            if len(batch) == 3:
                raise ValueError("three parts")
            return super().eval_batch(run, batch)

        def predict_batch(self, run: Any, batch: Any) -> Any:
            return self.eval_batch(run, batch)

    kept: list[BaseException] = []

    def ask(run: Any) -> None:
        before = moment(run)
        for answer in (run.evaluate, run.predict):
            try:
                answer([(*batch, 1) for batch in tiny_data(2)])
            except ValueError as error:
                kept.append(error)  # as an optional callback's failure is kept
        assert moment(run) == before

    def train(recorder: Recorder) -> Any:
        return fit(recorder, model=Picky(), train=tiny_data(2), val=tiny_data(1), max_duration="1ep")

    plain, asking = Recorder(), Recorder(train_step_end=ask)
    train(plain)
    result = train(asking)
    assert len(kept) == 4
    assert asking.seen == plain.seen
    assert result.history.steps("val/picky") == [2]


def test_answers_are_kept_until_the_weights_change() -> None:
    counts: list[int] = []
    val = tiny_data(3)

    def ask(run: Any) -> None:
        one, two = run.predict("val"), run.predict("val")
        assert torch.equal(one, two)
        assert run.evaluate("val") == run.evaluate("val")
        assert torch.equal(run.predict(val), run.predict(val))
        counts.append(run.task.calls["predict"])

    task = NetTask()
    recorder = Recorder(train_step_end=ask, step_settled=ask)
    Trainer(callbacks=[recorder], max_duration="1ep", eval_every=None, folder=False).fit(task, tiny_data(2), val)
    assert counts == [3, 3, 6, 6]  # "val" is the loader itself: three batches, once for each step
    assert task.calls["eval"] == 2 + 6  # the sanity check, and one evaluation for each step


def test_an_answer_is_named_as_it_was_asked_for_also_where_one_loader_has_several_names() -> None:
    """The training data as the validation data is what one begins with; ``val/loss`` for "train" is a KeyError then."""
    data = tiny_data(2)

    def ask(run: Any) -> None:
        assert run.evaluate("val").keys() == run.evaluate(data).keys() == {"val/loss", "val/spread"}
        assert run.evaluate("train").keys() == {"train/loss", "train/spread"}
        assert run.evaluate({"mine": data}).keys() == {"val/mine/loss", "val/mine/spread"}
        assert isinstance(run.predict("val"), torch.Tensor)
        assert run.predict({"mine": data}).keys() == {"mine"}
        assert run.task.calls["predict"] == 4  # two batches, with and without a name
        asked.append(run.clock.step)

    asked: list[int] = []
    Trainer(callbacks=[Recorder(fit_end=ask)], max_duration="1ep", folder=False).fit(NetTask(), data, data)
    assert asked == [2]


def test_an_answer_is_not_kept_beyond_a_change_of_the_weights_by_a_callback() -> None:
    """EarlyStopping(restore_best=True) puts weights back in train_end: what is predicted then is of those."""
    found: list[torch.Tensor] = []

    def ask(run: Any) -> None:
        found.append(run.predict("val"))

    def change(run: Any) -> None:
        run.model.load_state_dict({name: torch.zeros_like(t) for name, t in run.model.state_dict().items()})

    recorder = Recorder(step_settled=ask, train_end=change, fit_end=ask)
    Trainer(callbacks=[recorder], max_duration="1st", folder=False).fit(NetTask(), tiny_data(2), tiny_data(1))
    assert found[0].any()
    assert not found[1].any()


def test_an_answer_about_a_loader_that_is_used_up_by_it_is_refused() -> None:
    def ask(run: Any) -> None:
        with pytest.raises(SetupError, match="only once"):
            run.evaluate(iter(tiny_data(1)))
        with pytest.raises(SetupError, match="no 'test' loader"):
            run.evaluate("test")

    Trainer(callbacks=[Recorder(train_start=ask)], max_duration="1st", folder=False).fit(NetTask(), tiny_data(2))


def test_backward_inside_an_evaluation_leaves_no_gradient() -> None:
    """A saliency map, say. The window that is being filled must not get its gradients."""
    changed: list[bool] = []

    class Saliency(hl.Callback):
        def on_eval_batch_end(self, run: Any) -> None:
            with torch.enable_grad():
                run.task.net.tiny(run.batch[0]).sum().backward()
            changed.append(any(parameter.grad is not None for parameter in run.task.parameters()))

    plain, _ = final_weights()
    weights, _ = final_weights(Saliency(), eval_every="1st")
    assert changed
    assert all(changed)
    assert same_tensors(plain, weights)


def test_modes_inside_and_after_an_evaluation() -> None:
    """A part that is frozen in eval mode stays frozen, and the rest trains again."""
    found: dict[str, list[tuple[bool, bool, bool]]] = {}

    def note(event: str) -> Action:
        def action(run: Any) -> None:
            net = run.task.net
            found.setdefault(event, []).append((net.training, net.frozen.training, torch.is_grad_enabled()))

        return action

    events = ("train_step_start", "eval_start", "eval_batch_end", "eval_end", "epoch_end", "step_settled")
    final_weights(Recorder(**{event: note(event) for event in events}), eval_every="1st")
    for event in ("train_step_start", "epoch_end", "step_settled"):
        assert set(found[event]) == {(True, False, True)}
    for event in ("eval_start", "eval_batch_end", "eval_end"):
        assert set(found[event]) == {(False, False, False)}


# -- how often ---------------------------------------------------------------------------------------

EVALUATIONS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "every epoch": ({"max_duration": "3ep"}, [4, 8, 12]),
    "every second epoch and at the end": ({"max_duration": "3ep", "eval_every": "2ep"}, [8, 12]),
    "only at the end": ({"max_duration": "2ep", "eval_every": "9ep"}, [8]),
    "steps that meet the edge": ({"max_duration": "2ep", "eval_every": "2st"}, [2, 4, 6, 8]),
    "steps that miss the edge": ({"max_duration": "2ep", "eval_every": "3st"}, [3, 6, 8]),
    "the end inside an epoch": ({"max_duration": "5st"}, [4, 5]),
    "the end where one is due": ({"max_duration": "6st", "eval_every": "3st"}, [3, 6]),
    "samples": ({"max_duration": "1ep", "eval_every": "20sp"}, [3, 4]),
    "a share": ({"max_duration": "8st", "eval_every": "0.25dur"}, [2, 4, 6, 8]),
    "never": ({"max_duration": "2ep", "eval_every": None}, []),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_evaluations_are_made_when_due_once_at_the_end_and_never_twice(name: str) -> None:
    options, steps = EVALUATIONS[name]
    recorder = Recorder()
    result = Trainer(callbacks=[recorder], folder=False, **options).fit(NetTask(), tiny_data(4), tiny_data(1))
    assert (result.history.steps("val/loss") if steps else []) == steps
    assert recorder.seen.count("eval_start") == len(steps)


def test_a_request_where_an_evaluation_is_due_anyway_makes_one() -> None:
    recorder = Recorder(train_step_end=lambda run: run.request_eval())
    result = Trainer(callbacks=[recorder], max_duration="1ep", eval_every="2st", folder=False).fit(
        NetTask(), tiny_data(4), tiny_data(1)
    )
    assert result.history.steps("val/loss") == [1, 2, 3, 4]
    assert recorder.seen.count("eval_start") == 4


def test_a_request_when_the_weights_did_not_move_evaluates_nothing_again() -> None:
    recorder = Recorder(gradients_ready=lambda run: run.clock.step == 1 and (run.skip_step(), run.request_eval()))
    Trainer(callbacks=[recorder], max_duration="1ep", eval_every="1st", folder=False).fit(
        TinyModel(), tiny_data(3), tiny_data(1), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
    )
    assert recorder.seen.count("eval_start") == 1  # after step 1; both others are skipped


def test_a_swap_after_an_evaluation_does_not_cause_a_second_one() -> None:
    """An averaged model that is exported in step_settled moves no weight of the run."""

    def export(run: Any) -> None:
        with run.swap_weights({name: p.detach().clone() for name, p in run.model.named_parameters()}):
            pass

    recorder = Recorder(step_settled=export)
    Trainer(callbacks=[recorder], max_duration="2st", eval_every="2st", folder=False).fit(
        NetTask(), tiny_data(4), tiny_data(1)
    )
    assert recorder.seen.count("eval_start") == 1


# -- the sanity check --------------------------------------------------------------------------------


def test_the_sanity_check_sends_only_its_own_events_and_looks_at_two_batches_of_each_loader() -> None:
    calls: list[int] = []
    recorder = Recorder(sanity_check_end=lambda run: calls.append(run.task.calls["eval"]))
    val = {"a": tiny_data(1), "b": tiny_data(5)}
    Trainer(callbacks=[recorder], max_duration="1st", eval_every=None, folder=False).fit(NetTask(), tiny_data(1), val)
    assert recorder.seen[:6] == literal("setup model_ready fit_start sanity_check_start sanity_check_end train_start")
    assert calls == [1 + 2]


def test_the_sanity_check_leaves_no_trace_in_metrics_history_or_callbacks() -> None:
    found: list[Any] = []

    class Stateful(hl.Callback):
        state = ("seen",)

        def __init__(self) -> None:
            self.seen = 0

        def on_eval_batch_end(self, run: Any) -> None:
            self.seen += 1

        on_eval_start = on_eval_end = on_forward_end = on_batch_fetch_end = on_eval_batch_end

    stateful = Stateful()

    def look(run: Any) -> None:
        found.append((dict(run.metrics), run.history.rows(), stateful.state_dict(), run.clock.step, run.clock.batch))

    recorder = Recorder(sanity_check_end=look, train_start=look)
    trainer = Trainer(callbacks=[recorder, stateful], max_duration="1st", eval_every=None, folder=False)
    result = trainer.fit(TinyModel(), tiny_data(1), tiny_data(3), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    assert found == [({}, [], {"seen": 0}, 0, 0)] * 2
    assert [name for name in result.history if name.startswith("val/")] == []


def test_a_custom_event_in_eval_batch_is_silent_in_the_sanity_check() -> None:
    class Emitting(NetTask):
        events = (hl.Event("verify", gives=("x",)),)

        def eval_batch(self, run: Any, batch: Any) -> Any:
            run.emit("verify", x=batch[0])
            return super().eval_batch(run, batch)

    recorder = Recorder()
    Trainer(callbacks=[recorder], max_duration="1ep", folder=False).fit(Emitting(), tiny_data(1), tiny_data(3))
    assert recorder.seen.count("verify") == 3
    assert recorder.seen.index("verify") > recorder.seen.index("eval_start")


def test_a_loader_that_can_be_used_once_is_left_out_of_the_sanity_check(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    with caplog.at_level("INFO", logger="hookline"):
        result = Trainer(callbacks=[recorder], max_duration="1ep", folder=False).fit(
            NetTask(), tiny_data(1), iter(tiny_data(3))
        )
    assert "sanity check leaves out" in caplog.text
    assert recorder.seen.count("eval_batch_end") == 3
    assert result.history.steps("val/loss") == [1]


class Started(hl.Callback):
    """Whether training has begun. (One with ``on_event`` might log anything, and so be the one who feeds a monitor.)"""

    begun = False

    def on_train_start(self, run: Any) -> None:
        self.begun = True


def test_a_monitor_that_nobody_feeds_is_found_before_the_first_step_with_a_suggestion() -> None:
    started = Started()
    trainer = Trainer(callbacks=[started, hl.EarlyStopping("val/los", mode="min")], max_duration="1ep", folder=False)
    with pytest.raises(MetricError, match=r"monitors 'val/los', but .* Did you mean 'val/loss'\?"):
        trainer.fit(NetTask(), tiny_data(1), tiny_data(1))
    assert not started.begun


def test_the_default_callbacks_do_not_hide_a_monitor_that_nobody_feeds() -> None:
    trainer = hl.Trainer(callbacks=[hl.EarlyStopping("val/los", mode="min")], max_duration="1ep", folder=False)
    with pytest.raises(MetricError, match=r"Did you mean 'val/loss'\?"):
        trainer.fit(NetTask(), tiny_data(1), tiny_data(1))


def test_a_reader_without_its_prefix_gets_the_full_name() -> None:
    class Reader(hl.Callback):
        reads = ("spread",)

    trainer = Trainer(callbacks=[Reader()], max_duration="1ep", folder=False)
    with pytest.raises(MetricError, match=r"Did you mean 'val/spread'\?"):
        trainer.fit(NetTask(), tiny_data(1), tiny_data(1))


def test_a_monitor_of_an_evaluation_without_an_evaluation_is_found_before_the_first_step() -> None:
    started = Started()
    trainer = Trainer(callbacks=[started, hl.EarlyStopping("val/loss")], max_duration="1ep", folder=False)
    with pytest.raises(MetricError, match="val/loss"):
        trainer.fit(NetTask(), tiny_data(1))
    assert not started.begun


def test_a_callback_that_logs_without_declaring_it_is_no_false_alarm() -> None:
    class Scorer(hl.Callback):
        def on_eval_end(self, run: Any) -> None:
            run.log({"val/score": 1.0})

    trainer = Trainer(callbacks=[hl.EarlyStopping("val/score"), Scorer()], max_duration="1ep", folder=False)
    result = trainer.fit(NetTask(), tiny_data(1), tiny_data(1))
    assert result.history["val/score"] == [1.0]


def test_a_metric_that_the_task_logs_with_a_named_loader_is_known() -> None:
    trainer = Trainer(callbacks=[hl.EarlyStopping("val/hard/loss")], max_duration="1ep", folder=False)
    result = trainer.fit(NetTask(), tiny_data(1), {"easy": tiny_data(1), "hard": tiny_data(1)})
    assert "val/hard/loss" in result.history


def test_a_declared_metric_is_known() -> None:
    class Scorer(hl.Callback):
        writes = ("val/score",)

        def on_eval_end(self, run: Any) -> None:
            run.log({"val/score": 1.0})

    trainer = Trainer(callbacks=[hl.EarlyStopping("val/score"), Scorer()], max_duration="1ep", folder=False)
    assert trainer.fit(NetTask(), tiny_data(1), tiny_data(1)).history["val/score"] == [1.0]


def test_a_monitor_of_training_is_checked_at_the_first_interval() -> None:
    recorder = Recorder()
    trainer = Trainer(
        callbacks=[recorder, hl.EarlyStopping("train/acc")], max_duration="2ep", log_every="2st", folder=False
    )
    with pytest.raises(MetricError, match="'train/acc', but no such metric was logged"):
        trainer.fit(NetTask(), tiny_data(4))
    assert recorder.seen.count("train_step_end") == 2


@pytest.mark.parametrize("monitor", ["train/loss", "train/loss_epoch"])
def test_a_monitor_of_training_that_is_there_is_accepted(monitor: str) -> None:
    trainer = Trainer(callbacks=[hl.EarlyStopping(monitor)], max_duration="2ep", folder=False)
    assert trainer.fit(NetTask(), tiny_data(2)).clock.epoch == 2


def test_a_process_ends_after_answers_and_evaluations_on_loaders_whose_workers_persist() -> None:
    """A script keeps its loaders to its end; their workers ignore the SIGTERM that Python sends them there.

    The workers of the second iterator of an answer were left behind.
    """
    done = run_script(
        """
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        import hookline as hl
        from hookline.loop import Trainer
        from hookline.testing import TinyModel

        def make_loader():
            return DataLoader(data, 8, shuffle=True, num_workers=2, persistent_workers=True)

        data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
        asks = hl.on("train_end")(lambda run: print(sorted(run.evaluate("train"))))
        both = make_loader()
        given = {"loss": nn.CrossEntropyLoss(), "optimizer": torch.optim.SGD}
        kept = [(make_loader(), None, [asks]), (both, both, []), (make_loader(), make_loader(), [])]
        for train, val, callbacks in kept:
            trainer, model = Trainer(callbacks=callbacks, max_duration="3st", folder=False), TinyModel()
            trainer.fit(model, train, val, **given)
            trainer.fit(model, train, val, **given, extend="2st")
        print("done")
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['train/loss']", "['train/loss']", "done"]


def test_a_process_ends_after_the_garbage_collector_has_found_a_loader_whose_workers_persist() -> None:
    """Torch's orderly end does not reach them then: it sends SIGTERM, which they ignore."""
    done = run_script(
        """
        import gc
        import multiprocessing
        import weakref

        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset
        from hookline.loop import Trainer

        def train():
            data = TensorDataset(torch.randn(16, 4), torch.randint(3, (16,)))
            loader = DataLoader(data, 4, num_workers=1, persistent_workers=True)
            model, loss = nn.Linear(4, 3), nn.CrossEntropyLoss()
            Trainer(max_duration="1ep", folder=False).fit(model, loader, loader, loss=loss, optimizer=torch.optim.SGD)
            return weakref.ref(loader._iterator), multiprocessing.active_children()

        iterator, (worker,) = train()
        gc.collect()
        worker.join()
        print(iterator())
        """
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "None"), done.stderr
    assert done.stderr == ""
