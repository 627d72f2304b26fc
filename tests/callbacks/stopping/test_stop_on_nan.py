"""``StopOnNaN``: it stops before a bad value gets into the weights, and says where it came from."""

from __future__ import annotations

import logging
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import hookline as hl
from hookline.callbacks.stopping import SpikeGuard, StopOnNaN
from hookline.errors import ArgumentError, DurationError, MetricError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, at_step, fit, interrupt, same_tensors, train_loop

NAN, INF = math.nan, math.inf
Batch = tuple[torch.Tensor, torch.Tensor]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.tiny = nn.BatchNorm1d(4), TinyModel()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tiny(self.norm(x))  # type: ignore[no-any-return]


class Root(nn.Module):
    """A finite loss whose gradient is not: the square root at zero, on one batch."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        self.bad, self.calls = bad, 0

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        wrong = torch.sqrt((outputs[:, :1] * 0).sum()) if self.calls == self.bad + 1 else 0.0
        return nn.functional.cross_entropy(outputs, targets) + wrong


class InfiniteOnce(nn.Module):
    """An infinite loss with finite gradients, in one call: the weights stay good."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        self.bad, self.calls = bad, 0

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return nn.functional.cross_entropy(outputs, targets) + (INF if self.calls == self.bad + 1 else 0.0)


def planted(batches: int, bad: int, value: float) -> list[Batch]:
    data = tiny_data(batches)
    data[bad][0][0, 0] = value
    return data


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def fit_on(data: Any, *callbacks: object, **options: Any) -> Any:
    return fit(*callbacks, train=data, **{"optimizer": adam, **options})


def same(one: nn.Module, other: nn.Module) -> bool:
    return same_tensors(one.state_dict(), other.state_dict())


class Optimizers(hl.Callback):
    """The state of the optimizer at the end."""

    def on_train_end(self, run: Any) -> None:
        (optimizer,) = run.optimizers.values()
        self.state = {i: {k: v.clone() for k, v in s.items()} for i, s in optimizer.state_dict()["state"].items()}  # type: ignore[misc]


# -- the last finite step ----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("bad", [0, 1, 4])
def test_weights_optimizer_and_batch_norm_stay_those_of_the_last_finite_step(value: float, bad: int) -> None:
    data, model, reference, mine, theirs = planted(5, bad, value), Normed(), Normed(), Optimizers(), Optimizers()
    result = fit_on(data, StopOnNaN(), mine, model=model)
    assert result.stopped_by == "StopOnNaN"
    assert result.clock.step == bad
    assert (
        result.stop_reason == f"the loss is nan in epoch 0, batch {bad}; weights and optimizer are those of step {bad}"
    )
    if not bad:
        assert same(model, Normed())
        return
    fit_on(data, theirs, model=reference, max_duration=f"{bad}st")
    assert same(model, reference)
    assert all(same_tensors(mine.state[i], theirs.state[i]) for i in theirs.state)


def test_without_it_the_same_batch_ruins_weights_and_statistics() -> None:
    model = Normed()
    fit_on(planted(5, 1, NAN), model=model)
    assert not torch.isfinite(model.norm.running_mean).all()  # type: ignore[operator]
    assert not torch.isfinite(model.tiny.out.weight).all()


def test_a_finite_loss_with_gradients_that_are_not_stops_before_the_update_and_names_them() -> None:
    data, model, reference = tiny_data(6), TinyModel(), TinyModel()
    result = fit_on(data, StopOnNaN(), model=model, loss=Root(3))
    assert result.stop_reason == (
        "the gradients are not finite, hidden.weight (nan), hidden.bias (nan), out.weight (nan) and 1 more, "
        "in epoch 0, batch 3; weights and optimizer are those of step 3"
    )
    fit_on(data, model=reference, max_duration="3st")
    assert same(model, reference)


def test_watching_the_loss_alone_lets_such_gradients_through_and_finds_them_a_step_later() -> None:
    model = TinyModel()
    result = fit_on(tiny_data(6), StopOnNaN("loss"), model=model, loss=Root(3))
    assert result.clock.step == 4
    assert not torch.isfinite(model.out.weight).all()


def test_watching_the_gradients_alone_finds_a_bad_loss_too() -> None:
    result = fit_on(planted(5, 2, NAN), StopOnNaN("gradients"))
    assert result.clock.step == 2
    assert result.stop_reason.startswith("the gradients are not finite, hidden.weight (nan)")


def test_with_accumulation_one_bad_batch_leaves_out_the_whole_step() -> None:
    data, model, reference = planted(8, 4, NAN), Normed(), Normed()
    result = fit_on(data, StopOnNaN(), model=model, accumulate=3)
    fit_on(data, model=reference, accumulate=3, max_duration="1st")
    assert (result.clock.step, same(model, reference)) == (1, True)


def test_with_accumulation_the_bad_batch_is_named_and_not_the_last_of_its_step() -> None:
    result = fit_on(planted(8, 1, NAN), StopOnNaN(), accumulate=4)
    assert result.stop_reason == "the loss is nan in epoch 0, batch 1; weights and optimizer are those of step 0"


def test_with_accumulation_bad_gradients_are_those_of_any_batch_of_the_step() -> None:
    result = fit_on(tiny_data(6), StopOnNaN(), accumulate=2, loss=Root(2))
    assert result.stop_reason.endswith("in epoch 0, batches 2 to 3; weights and optimizer are those of step 1")


def test_an_infinite_loss_is_bad_too() -> None:
    class Huge(nn.Module):
        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs, targets) + INF

    assert fit_on(tiny_data(3), StopOnNaN("loss"), loss=Huge()).stop_reason.startswith(
        "the loss is inf in epoch 0, batch 0"
    )


def test_a_sparse_gradient_is_looked_at() -> None:
    class Words(hl.Task):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 2, sparse=True)

        def configure_optimizers(self, run: Any) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_batch(self, run: Any, batch: Any) -> Any:
            out = self.words(batch).sum()
            return out if run.clock.batch < 2 else torch.sqrt(out * 0)

    result = fit(StopOnNaN(), model=Words(), train=[torch.tensor([1, 2])] * 4)
    assert result.stop_reason.startswith("the gradients are not finite, words.weight (nan),")
    assert torch.isfinite(result.model.words.weight).all()


def test_an_evaluation_at_the_end_is_made_with_the_weights_of_the_last_finite_step() -> None:
    data, val = planted(5, 3, NAN), tiny_data(2, seed=1)
    result = fit_on(data, StopOnNaN(), model=Normed(), val=val)
    expected = fit_on(data, model=Normed(), val=val, max_duration="3st")
    assert result.history["val/loss"] == expected.history["val/loss"]


def test_in_the_own_loop() -> None:
    loop, model = train_loop(StopOnNaN(), model=Normed(), train=planted(5, 2, NAN))
    assert (loop.run.clock.step, loop.result().stopped_by) == (2, "StopOnNaN")
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


class Two(hl.Task):
    """Two networks, each with an optimizer that the task steps itself; the second gets the bad batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 3)

    def configure_optimizers(self, run: Any) -> Any:
        return {"one": adam(self.one.parameters()), "two": adam(self.two.parameters())}

    def train_batch(self, run: Any, batch: Any) -> None:
        x, y = batch
        for name, part, given in (("one", self.one, torch.nan_to_num(x)), ("two", self.two, x)):
            run.loop.backward(nn.functional.cross_entropy(part(given), y), run.optimizers[name])
            run.loop.step(run.optimizers[name])


def test_with_several_optimizers_each_keeps_its_last_finite_update() -> None:
    data = planted(5, 2, NAN)
    task, reference = Two(), Two()
    reference.load_state_dict(task.state_dict())
    result = fit(StopOnNaN(), model=task, train=data)
    assert result.stopped_by == "StopOnNaN"
    fit(model=reference, train=data, max_duration="2st")
    assert same(task.two, reference.two)
    assert torch.isfinite(task.one.weight).all()
    assert not same(task.one, reference.one)  # it has moved before: so the reason must not say that nothing has
    assert result.stop_reason == "the loss is nan in epoch 0, batch 2; the update of two is left out"


def test_an_optimizer_with_a_closure_goes_back_to_before_its_step() -> None:
    """It moves the weights several times before it sees that the loss is not finite."""

    class Cliff(nn.Module):
        """Not finite once the weights have moved, in the third step."""

        def __init__(self) -> None:
            super().__init__()
            self.calls: list[float] = []

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            loss = nn.functional.cross_entropy(outputs, targets)
            return loss * (NAN if len(self.calls) == 2 and outputs.sum().item() != self.calls[-1] else 1.0)

    class Note(hl.Callback):
        def on_train_step_end(self, run: Any) -> None:
            with torch.no_grad():
                cliff.calls.append(run.model(data[run.clock.batch % 3][0]).sum().item())

    data, cliff, model, reference = tiny_data(3), Cliff(), TinyModel(), TinyModel()

    def lbfgs(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=4)

    result = fit_on(data, StopOnNaN(), Note(), model=model, loss=cliff, optimizer=lbfgs)
    fit_on(data, model=reference, optimizer=lbfgs, max_duration="2st")
    assert (result.stopped_by, result.clock.step) == ("StopOnNaN", 2)
    assert same(model, reference)


def test_with_a_closure_the_bad_batch_is_named_and_not_the_one_before() -> None:
    result = fit_on(planted(5, 2, NAN), StopOnNaN(), optimizer=lambda parameters: torch.optim.LBFGS(parameters, 0.1))
    assert result.stop_reason == "the loss is nan in epoch 0, batch 2; weights and optimizer are those of step 2"


def test_in_fp16_an_overflow_is_left_to_the_scaler_and_a_loss_that_is_not_finite_stops() -> None:
    model = TinyModel()
    result = fit_on(planted(6, 3, NAN), StopOnNaN(), model=model, precision="fp16")
    assert (result.stopped_by, result.clock.batch) == ("StopOnNaN", 4)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())

    class Steep(nn.Module):
        """A finite loss whose scaled gradients overflow at first."""

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs, targets) * 1e3

    result = fit_on(tiny_data(6), StopOnNaN(), loss=Steep(), precision="fp16")
    assert result.stopped_by is None


# -- every -------------------------------------------------------------------------------------------


def test_with_every_a_bad_loss_in_between_is_found_at_the_next_look_and_the_start_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "hookline"):
        result = fit_on(planted(20, 3, NAN), StopOnNaN(every="8st"))
    assert result.clock.step == 8
    assert result.stop_reason == (
        "the loss is not finite at or before epoch 0, batch 8; it may be in the weights already"
    )
    assert "StopOnNaN(every='8st') looks only then" in caplog.text
    assert "leave every out to keep the weights of the last finite step" in caplog.text


def test_with_every_also_a_loss_that_does_not_reach_the_weights_is_found() -> None:
    result = fit_on(tiny_data(20), StopOnNaN("loss", every="8st"), loss=InfiniteOnce(2))
    assert (result.clock.step, result.stopped_by) == (8, "StopOnNaN")


def test_with_every_gradients_are_looked_at_in_those_steps() -> None:
    result = fit_on(tiny_data(20), StopOnNaN("gradients", every="8st"), loss=Root(3))
    assert (result.clock.step, result.stopped_by) == (8, "StopOnNaN")


def test_what_was_not_found_when_training_ends_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hookline"):
        fit_on(planted(5, 3, NAN), StopOnNaN("loss", every="100st"), max_duration="1ep")
    assert "a loss was not finite since the last look, and training has ended" in caplog.text


def test_with_every_a_batch_that_spike_guard_has_left_out_does_not_stop() -> None:
    guard, model = SpikeGuard(), TinyModel()
    result = fit_on(planted(20, 6, NAN), StopOnNaN(every="4st"), guard, model=model, max_duration="1ep")
    assert (result.stopped_by, result.clock.batch, len(guard.spikes)) == (None, 20, 1)
    assert torch.isfinite(model.out.weight).all()


def test_with_every_a_loss_that_was_said_does_not_stop_the_next_fit_again() -> None:
    trainer = Trainer(callbacks=[StopOnNaN("loss", every="8st")], max_duration="2ep", folder=False)
    fit_more = partial(fit_on, tiny_data(20), trainer=trainer, model=TinyModel(), loss=InfiniteOnce(3))
    assert fit_more().stopped_by == "StopOnNaN"
    assert fit_more().clock.epoch == 2


@pytest.mark.parametrize("other", [False, True])
def test_with_every_an_evaluation_between_two_fits_does_not_make_it_forget(other: bool) -> None:
    """With a new loss, or of another model, it is another loop with the same callbacks."""
    stopper, model = StopOnNaN("loss", every="8st"), TinyModel()
    trainer = Trainer(callbacks=[stopper], max_duration="5st", folder=False)
    fit_more = partial(fit_on, tiny_data(20), trainer=trainer, model=model, loss=InfiniteOnce(3))
    assert fit_more().stopped_by is None
    trainer.evaluate(TinyModel() if other else model, tiny_data(1), loss=CE)
    result = fit_more(extend="10st")
    assert (result.clock.step, result.stopped_by) == (8, "StopOnNaN")


@pytest.mark.parametrize("leave", [2, 4, 6])
def test_after_a_resume_it_stops_at_the_same_step_for_the_same_reason(tmp_path: Path, leave: int) -> None:
    class Marked(nn.Module):
        """Infinite for a batch with a very large number in it, with gradients that are zero: no weight shows it."""

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            if outputs.detach().abs().max() > 1e3:
                return outputs.sum() * 0 + INF
            return nn.functional.cross_entropy(outputs, targets)

    def part(name: str, *callbacks: object, resume: Any = None) -> Any:
        stopper, saved = StopOnNaN("loss", every="8st"), hl.Checkpointer("100st")
        data = planted(20, 3, 1e6)
        return fit_on(data, stopper, saved, *callbacks, folder=tmp_path / name, resume=resume, loss=Marked())

    whole, left = part("whole"), part("parts", at_step(leave, interrupt))
    assert left.interrupted
    parts = part("parts", resume="auto")
    assert (parts.clock.step, parts.stop_reason) == (8, whole.stop_reason)
    assert parts.stopped_by == "StopOnNaN"


# -- metrics -----------------------------------------------------------------------------------------


class Feed(hl.Callback):
    """Logs the values of a list: one at each evaluation, each step or each epoch."""

    def __init__(self, metric: str, values: list[Any]) -> None:
        self.metric, self.values = metric, list(values)
        self.writes = (metric,)

    def _log(self, run: Any) -> None:
        run.log({self.metric: self.values.pop(0) if len(self.values) > 1 else self.values[0]})

    def on_eval_end(self, run: Any) -> None:
        if self.metric.startswith("val/"):
            self._log(run)

    def on_train_step_end(self, run: Any) -> None:
        if self.metric.startswith("train/"):
            self._log(run)

    def on_train_epoch_end(self, run: Any) -> None:
        if self.metric.startswith("other/"):
            self._log(run)


def test_a_metric_of_the_evaluation_stops_after_it() -> None:
    result = fit_on(
        tiny_data(2), StopOnNaN("val/score"), Feed("val/score", [1, NAN, 1]), val=tiny_data(1), max_duration="5ep"
    )
    assert (result.clock.epoch, result.stop_reason) == (2, "val/score is nan")


def test_a_metric_of_training_stops_when_its_interval_ends() -> None:
    feed = Feed("train/score", [1.0, 1.0, 1.0, INF, 1.0])
    result = fit_on(tiny_data(20), StopOnNaN("train/score"), feed, log_every="2st")
    assert (result.clock.step, result.stop_reason) == (4, "train/score is inf")


def test_any_other_metric_stops_at_the_end_of_an_epoch() -> None:
    result = fit_on(tiny_data(2), StopOnNaN("other/score"), Feed("other/score", [1, NAN]), max_duration="5ep")
    assert (result.clock.epoch, result.stop_reason) == (2, "other/score is nan")


def test_an_array_with_one_bad_value_stops() -> None:
    bad = torch.ones(2, 2)
    bad[1, 0] = NAN
    result = fit_on(
        tiny_data(2), StopOnNaN("val/m"), Feed("val/m", [torch.ones(2, 2), bad]), val=tiny_data(1), max_duration="5ep"
    )
    assert result.clock.epoch == 2


def test_a_metric_that_nobody_logs_is_an_error_that_lists_what_there_is() -> None:
    with pytest.raises(MetricError, match=r"'val/acc', but no such metric was logged"):
        fit_on(tiny_data(2), StopOnNaN("val/acc"), val=tiny_data(1))
    with pytest.raises(MetricError, match=r"'other/acc', but no such metric was logged. Available: .*train/loss"):
        fit_on(tiny_data(2), StopOnNaN("other/acc"))


def test_epochs_of_a_finished_run_that_was_only_loaded_do_not_count_in_the_next_run(tmp_path: Path) -> None:
    """Else the first epochs of the new one would not be looked at."""

    def run(stopper: StopOnNaN, values: list[float], **options: Any) -> Any:
        feed = Feed("other/score", values)
        return fit_on(tiny_data(2), stopper, feed, hl.Checkpointer("1ep"), max_duration="3ep", **options)

    run(StopOnNaN("other/score"), [1.0], folder=tmp_path / "one")
    stopper = StopOnNaN("other/score")
    run(stopper, [1.0], folder=tmp_path / "one", resume="auto")
    assert run(stopper, [1.0, NAN], folder=tmp_path / "two").clock.epoch == 2


class Copies(TorchDispatchMode):
    """Counts the copies of many tensors at once."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_foreach_copy_" in str(function)
        return function(*args, **(kwargs or {}))


def test_one_that_watches_metrics_only_copies_nothing_at_a_step() -> None:
    """Nothing is left out for a metric, so there is nothing to put back."""
    counts = []
    for stopper in (StopOnNaN(), StopOnNaN("val/loss")):
        with Copies() as copies:
            fit_on(tiny_data(5), stopper, model=Normed(), val=tiny_data(1), max_duration="1ep")
        counts.append(copies.count)
    assert counts[0] >= 5
    assert counts[1] == 0


def test_one_that_watches_metrics_only_takes_no_snapshots_beside_lbfgs() -> None:
    stopper = StopOnNaN("val/loss")
    fit_on(tiny_data(3), stopper, val=tiny_data(1), optimizer=lambda parameters: torch.optim.LBFGS(parameters, 0.1))
    assert stopper._moment is None


def test_the_same_object_does_not_go_back_to_a_snapshot_of_an_earlier_run() -> None:
    stopper, model = StopOnNaN(), TinyModel()
    fit_on(tiny_data(3), stopper, optimizer=lambda parameters: torch.optim.LBFGS(parameters, 0.1), max_duration="1ep")
    result = fit_on(planted(5, 4, NAN), stopper, model=model, max_duration="1ep")
    assert result.clock.step == 4
    reference = TinyModel()
    fit_on(planted(5, 4, NAN), model=reference, max_duration="4st")
    assert same(model, reference)


# -- the rest ----------------------------------------------------------------------------------------


def test_a_large_buffer_that_does_change_is_put_back_as_well() -> None:
    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tiny = TinyModel()
            self.seen: torch.Tensor
            self.register_buffer("seen", torch.zeros(70_000))
            self.register_buffer("mask", torch.ones(70_000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.seen.add_(x.detach().sum())
            return self.tiny(x)  # type: ignore[no-any-return]

    data, model, reference = planted(5, 3, NAN), Memory(), Memory()
    fit_on(data, StopOnNaN(), model=model)
    fit_on(data, model=reference, max_duration="3st")
    assert same(model, reference)


def test_a_finite_run_is_not_changed_in_any_bit() -> None:
    model, reference = Normed(), Normed()
    fit_on(tiny_data(6), StopOnNaN(), model=model)
    fit_on(tiny_data(6), model=reference)
    assert same(model, reference)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"monitor": ()}, ArgumentError, r"StopOnNaN\(monitor="),
        ({"monitor": ("loss", 3)}, ArgumentError, r"StopOnNaN\(monitor="),
        ({"monitor": "val/loss", "every": "3st"}, ArgumentError, r"StopOnNaN\(every="),
        ({"every": "often"}, DurationError, "not a duration"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_to_write(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        StopOnNaN(**arguments)
