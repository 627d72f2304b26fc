"""``EMA``: what it averages, where the average is used, what a checkpoint holds, and what each mistake says."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import hookline as hl
from hookline.callbacks import Checkpointer, EarlyStopping
from hookline.callbacks.weights import EMA
from hookline.checkpoint import Store
from hookline.errors import ArgumentError, CheckpointMismatchError, DurationError, OrderError, RegistrationError
from hookline.loop import Loop, Trainer
from hookline.testing import TinyModel, check_callback, tiny_data
from tests.support import CE, crash_at, fit, same_tensors, sgd


class Norm(nn.Module):
    """A model with batch norm, a mask of ``-inf``, a constant that is not saved, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.second.weight
        self.out = nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x) * self.scale)
        return self.out(self.tied(torch.relu(self.second(x))))


momentum_sgd = partial(sgd, momentum=0.9)
fit_three_epochs = partial(fit, optimizer=momentum_sgd, max_duration="3ep")


@torch.enable_grad()
def plain(
    steps: int = 12,
    decay: float = 0.9,
    *,
    model: nn.Module | None = None,
    use_buffers: bool = False,
    when: Any = lambda step: True,
) -> tuple[nn.Module, AveragedModel]:
    """The same in a plain loop, with torch's own average."""
    model = model or TinyModel()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=use_buffers)
    optimizer, data = momentum_sgd(model.parameters()), tiny_data(4)
    for step in range(steps):
        x, y = data[step % 4]
        optimizer.zero_grad()
        CE(model(x), y).backward()
        optimizer.step()
        if when(step + 1):
            average.update_parameters(model)
    return model, average


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


# -- the average -------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.999])
def test_the_average_is_that_of_torch_bitwise(decay: float) -> None:
    ema = EMA(decay)
    result = fit_three_epochs(ema)
    raw, average = plain(decay=decay)
    assert ema.updates == 12
    assert same_tensors(ema.weights, parameters(average.module))
    assert same_tensors(parameters(result.model), parameters(average.module))
    assert decay == 0 or not same_tensors(parameters(result.model), parameters(raw))


def test_training_goes_the_same_way_with_and_without_it() -> None:
    result = fit_three_epochs(EMA(0.9, apply_at_end=False), val=tiny_data(2))
    assert same_tensors(parameters(result.model), parameters(plain()[0]))


@pytest.mark.parametrize(
    ("options", "when"),
    [
        ({"start": "5st"}, lambda step: step >= 5),
        ({"start": "2ep"}, lambda step: step >= 9),  # the first step after two epochs
        ({"start": "0.5dur", "every": "2st"}, lambda step: step >= 6 and step % 2 == 0),
        ({"every": "3st"}, lambda step: step % 3 == 0),
        ({"every": "1ep"}, lambda step: step % 4 == 0),
        ({"start": "6st", "every": "1ep"}, lambda step: step in (8, 12)),
        ({"start": "3st", "every": "4st"}, lambda step: step in (4, 8, 12)),
        ({"every": "16sp"}, lambda step: step % 2 == 0),
    ],
)
def test_it_begins_after_start_and_updates_every_so_often(options: dict[str, Any], when: Any) -> None:
    duration = "12st" if "0.5dur" in options.values() else "3ep"
    ema = EMA(0.9, **options)
    fit_three_epochs(ema, max_duration=duration)
    assert same_tensors(ema.weights, parameters(plain(when=when)[1].module))


def test_warm_up_makes_the_first_updates_quick() -> None:
    ema = EMA(0.9, warmup=True)
    fit_three_epochs(ema)
    model, optimizer, data, expected = TinyModel(), None, tiny_data(4), {}
    optimizer = momentum_sgd(model.parameters())
    for step in range(12):
        optimizer.zero_grad()
        CE(model(data[step % 4][0]), data[step % 4][1]).backward()
        optimizer.step()
        decay = min(0.9, (1 + step) / (10 + step))
        for name, value in parameters(model).items():
            expected[name] = decay * expected[name] + (1 - decay) * value if step else value
    for name, value in expected.items():
        torch.testing.assert_close(ema.weights[name], value, rtol=1e-5, atol=1e-7)


def test_buffers_are_averaged_but_not_counters_masks_and_what_is_not_saved() -> None:
    ema = EMA(0.9)
    result = fit_three_epochs(ema, model=Norm())
    _, average = plain(model=Norm(), use_buffers=True)
    expected = {name: average.module.get_buffer(name) for name in ("norm.running_mean", "norm.running_var")}
    assert {name for name in ema.weights if name in dict(result.model.named_buffers())} == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(ema.weights[name], value)
        assert torch.equal(result.model.get_buffer(name), ema.weights[name])
    assert result.model.norm.num_batches_tracked == 12  # not an average, which would be cut off to a whole number
    assert torch.equal(result.model.mask, Norm().mask)


def test_without_buffers_the_average_goes_with_those_of_the_model() -> None:
    result = fit_three_epochs(EMA(0.9, use_buffers=False), model=Norm())
    raw, average = plain(model=Norm())
    assert same_tensors(parameters(result.model), parameters(average.module))
    assert torch.equal(result.model.norm.running_mean, raw.norm.running_mean)  # type: ignore[union-attr,arg-type]


def test_tied_weights_stay_tied() -> None:
    result = fit_three_epochs(EMA(0.9), model=Norm(), val=tiny_data(1))
    assert result.model.tied.weight is result.model.second.weight
    assert same_tensors(parameters(result.model), parameters(plain(model=Norm())[1].module))


def test_the_average_of_half_precision_weights_is_kept_in_float32() -> None:
    """In bf16 a thousandth of a small difference is lost, and the average would stand still."""
    ema = EMA(0.999)
    model = TinyModel().bfloat16()
    with Loop(model, momentum_sgd(model.parameters()), callbacks=[ema], max_duration="8st", folder=False) as loop:
        expected: dict[str, Tensor] = {}
        for x, y in loop.batches(tiny_data(4)):
            loop.backward(CE(model(x.bfloat16()), y))
            loop.step()
            for name, parameter in model.named_parameters():
                now = parameter.detach().float().clone()
                expected[name] = torch.lerp(expected[name], now, 1 - 0.999) if name in expected else now
    assert all(tensor.dtype is torch.float32 for tensor in ema.weights.values())
    assert same_tensors(ema.weights, expected)
    assert all(
        p.dtype is torch.bfloat16 and torch.equal(p, expected[n].bfloat16()) for n, p in model.named_parameters()
    )


def test_the_dtype_of_the_average_can_be_chosen() -> None:
    ema = EMA(0.9, dtype="float64")
    result = fit_three_epochs(ema)
    assert {tensor.dtype for tensor in ema.weights.values()} == {torch.float64}
    assert result.model.out.weight.dtype is torch.float32
    torch.testing.assert_close(parameters(result.model), parameters(plain()[1].module))


def test_no_value_is_read_from_the_device_in_a_step() -> None:
    """A parameter on the meta device has no values: whoever reads one fails."""
    model = nn.Linear(4, 3, device="meta")
    ema = EMA(0.9, use_buffers=False)
    ema.update(model, 0.1)
    ema.update(model, 0.1)
    assert ema.updates == 2


# -- where it is used ----------------------------------------------------------------------------------


class Seen(hl.Callback):
    """The weights at some events."""

    def __init__(self, *events: str) -> None:
        self.at, self.kept = events, []

    def on_event(self, event: str, run: Any) -> None:
        if event in self.at:
            self.kept.append((event, run.stage, parameters(run.model)))


def test_evaluations_use_the_average_and_training_the_raw_weights() -> None:
    seen = Seen("eval_batch_end", "train_step_start")
    fit_three_epochs(seen, EMA(0.9), val=tiny_data(1))
    evaluated = [weights for event, _, weights in seen.kept if event == "eval_batch_end"]
    trained = [weights for event, _, weights in seen.kept if event == "train_step_start"]
    assert same_tensors(evaluated[-1], parameters(plain()[1].module))
    assert same_tensors(evaluated[0], parameters(plain(4)[1].module))
    assert same_tensors(trained[4], parameters(plain(4)[0]))
    assert same_tensors(trained[-1], parameters(plain(11)[0]))


def test_val_loss_is_that_of_the_average() -> None:
    result = fit_three_epochs(EMA(0.9), val=tiny_data(1, seed=5))
    x, y = tiny_data(1, seed=5)[0]
    expected = [CE(plain(steps)[1](x), y).item() for steps in (4, 8, 12)]
    assert result.history["val/loss"] == pytest.approx(expected, rel=1e-6)


def test_before_the_first_update_an_evaluation_uses_the_raw_weights() -> None:
    seen = Seen("eval_batch_end")
    fit_three_epochs(seen, EMA(0.9, start="6st"), val=tiny_data(1))
    assert same_tensors(seen.kept[0][2], parameters(plain(4)[0]))


def test_evaluate_false_evaluates_the_raw_weights() -> None:
    seen = Seen("eval_batch_end")
    result = fit_three_epochs(seen, EMA(0.9, evaluate=False), val=tiny_data(1))
    assert same_tensors(seen.kept[-1][2], parameters(plain()[0]))
    assert same_tensors(parameters(result.model), parameters(plain()[1].module))


def test_test_and_predict_use_the_average_also_after_the_fit() -> None:
    seen, model = Seen("eval_batch_end", "predict_batch_end"), TinyModel()
    for apply_at_end in (True, False):
        trainer = Trainer(callbacks=[EMA(0.9, apply_at_end=apply_at_end), seen], max_duration="3ep", folder=False)
        model = TinyModel()
        trainer.fit(model, tiny_data(4), test=tiny_data(1), loss=CE, optimizer=momentum_sgd)
        trainer.test(model, tiny_data(1))
        trainer.predict(model, tiny_data(1))
        expected = parameters(plain()[1].module)
        assert [stage for _, stage, _ in seen.kept] == ["test", "test", "predict"]
        assert all(same_tensors(weights, expected) for _, _, weights in seen.kept)
        assert same_tensors(parameters(model), expected if apply_at_end else parameters(plain()[0]))
        seen.kept.clear()


def test_another_model_is_never_given_the_average() -> None:
    ema, seen = EMA(0.9), Seen("eval_batch_end")
    trainer = Trainer(callbacks=[ema, seen], max_duration="3ep", folder=False)
    trainer.fit(TinyModel(), tiny_data(4), loss=CE, optimizer=momentum_sgd)
    other = TinyModel(seed=9)
    trainer.evaluate(other, tiny_data(1), loss=CE)
    assert same_tensors(seen.kept[-1][2], parameters(TinyModel(seed=9)))
    assert same_tensors(parameters(other), parameters(TinyModel(seed=9)))


def test_a_failed_evaluation_leaves_the_raw_weights() -> None:
    class Fails(hl.Callback):
        def on_eval_batch_end(self, run: Any) -> None:
            raise ValueError("planted")

    model = TinyModel()
    with pytest.raises(ValueError, match="planted"):
        fit_three_epochs(EMA(0.9), Fails(), model=model, val=tiny_data(1))
    assert same_tensors(parameters(model), parameters(plain(4)[0]))


# -- fit after fit ---------------------------------------------------------------------------------------


def test_a_second_fit_goes_on_from_the_raw_weights() -> None:
    model, ema = TinyModel(), EMA(0.9)
    trainer = Trainer(callbacks=[ema], max_duration="2ep", folder=False)
    trainer.fit(model, tiny_data(4), loss=CE, optimizer=momentum_sgd)
    assert same_tensors(parameters(model), parameters(plain(8)[1].module))
    trainer.evaluate(model, tiny_data(1))
    trainer.fit(model, tiny_data(4), loss=CE, optimizer=momentum_sgd, extend="1ep")
    assert same_tensors(parameters(model), parameters(plain(12)[1].module))
    assert ema.updates == 12


def test_weights_that_the_user_put_in_between_two_fits_count() -> None:
    model, ema = TinyModel(), EMA(0.9)
    trainer = Trainer(callbacks=[ema], max_duration="2ep", folder=False)
    trainer.fit(model, tiny_data(4), loss=CE, optimizer=torch.optim.SGD)
    model.load_state_dict(TinyModel(seed=4).state_dict())
    trainer.fit(model, tiny_data(4), loss=CE, optimizer=torch.optim.SGD, extend="1st")
    expected = TinyModel(seed=4)
    optimizer = torch.optim.SGD(expected.parameters())
    CE(expected(tiny_data(4)[0][0]), tiny_data(4)[0][1]).backward()
    optimizer.step()
    assert ema.updates == 1
    assert same_tensors(parameters(model), parameters(expected))


def test_a_new_run_with_the_same_object_begins_anew() -> None:
    ema = EMA(0.9)
    fit_three_epochs(ema)
    fit_three_epochs(ema)
    assert ema.updates == 12
    assert same_tensors(ema.weights, parameters(plain()[1].module))


def test_a_copy_of_it_belongs_to_no_model() -> None:
    ema = EMA(0.9)
    fit_three_epochs(ema)
    for twin in (copy.deepcopy(ema), pickle.loads(pickle.dumps(ema))):
        assert same_tensors(twin.weights, ema.weights)
        fit_three_epochs(twin)
        assert same_tensors(twin.weights, ema.weights)


def test_best_weights_that_were_restored_are_not_written_over() -> None:
    class Falls(hl.Callback):
        writes = ("val/score",)
        given = 0

        def on_eval_end(self, run: Any) -> None:
            self.given += 1
            run.log({"val/score": -float(self.given)})

    stopper = EarlyStopping("val/score", mode="max", patience=9, restore_best=True)
    for callbacks in ([EMA(0.9), stopper, Falls()], [Falls(), stopper, EMA(0.9)]):
        result = fit_three_epochs(*callbacks, val=tiny_data(1))
        assert same_tensors(parameters(result.model), parameters(plain(4)[1].module))


@pytest.mark.parametrize("apply_at_end", [True, False])
@pytest.mark.parametrize("turned", [False, True])
def test_the_final_test_and_later_predictions_use_the_best_weights_that_were_restored(
    apply_at_end: bool, turned: bool
) -> None:
    """The average of the last step is neither what is given back nor what was the best."""

    class Falls(hl.Callback):
        writes = ("val/score",)

        def on_eval_end(self, run: Any) -> None:
            if run.stage == "val":
                run.log({"val/score": -float(run.clock.step)})

    seen, model = Seen("eval_batch_end", "predict_batch_end"), TinyModel()
    stopper = EarlyStopping("val/score", mode="max", patience=9, restore_best=True)
    callbacks = [EMA(0.9, apply_at_end=apply_at_end), stopper, Falls(), seen]
    trainer = Trainer(callbacks=callbacks[::-1] if turned else callbacks, max_duration="3ep", folder=False)
    trainer.fit(model, tiny_data(4), tiny_data(1), tiny_data(1), loss=CE, optimizer=momentum_sgd)
    trainer.predict(model, tiny_data(1))
    best = parameters(plain(4)[1].module)
    assert same_tensors(parameters(model), best)
    later = seen.kept[3:]
    assert [stage for _, stage, _ in later] == ["test", "predict"]
    assert all(same_tensors(weights, best) for _, _, weights in later)


def test_a_run_that_ends_before_the_first_update_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hookline"):
        result = fit_three_epochs(EMA(0.9, start="99st"))
    assert "EMA has averaged nothing" in caplog.text
    assert same_tensors(parameters(result.model), parameters(plain()[0]))


# -- checkpoints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [3, 5, 9])
@pytest.mark.parametrize("options", [{}, {"start": "4st", "every": "3st", "warmup": True}, {"every": "1ep"}])
def test_a_resume_is_exact(tmp_path: Path, stop: int, options: dict[str, Any]) -> None:
    whole = EMA(0.9, **options)
    straight = fit_three_epochs(whole, val=tiny_data(1), model=TinyModel(dropout=0.2), max_duration="12st")
    common = {"folder": tmp_path, "max_duration": "12st", "val": tiny_data(1), "resume": "auto"}
    with pytest.raises(RuntimeError, match="planted"):
        fit_three_epochs(
            EMA(0.9, **options),
            Checkpointer("1st"),
            crash_at(stop, "step_settled"),
            model=TinyModel(dropout=0.2),
            **common,
        )
    ema = EMA(0.9, **options)
    result = fit_three_epochs(ema, Checkpointer("1st"), model=TinyModel(dropout=0.2, seed=8), **common)
    assert result.clock.step == 12
    assert ema.updates == whole.updates
    assert same_tensors(ema.weights, whole.weights)
    assert same_tensors(parameters(result.model), parameters(straight.model))
    assert result.history["val/loss"] == straight.history["val/loss"]


def test_every_checkpoint_holds_the_raw_weights(tmp_path: Path) -> None:
    class Saves(hl.Callback):
        def on_eval_end(self, run: Any) -> None:
            run.request_save()

    fit_three_epochs(EMA(0.9), Saves(), Checkpointer("1st", keep_last=None), val=tiny_data(1), folder=tmp_path)
    for checkpoint in Store(tmp_path / "checkpoints").checkpoints():
        weights = load_file(checkpoint.path / "model.safetensors")
        assert same_tensors(weights, parameters(plain(checkpoint.about.step)[0]))


def test_the_result_of_a_finished_run_has_the_average_too(tmp_path: Path) -> None:
    first = fit_three_epochs(EMA(0.9), Checkpointer(), folder=tmp_path)
    again = fit_three_epochs(EMA(0.9), Checkpointer(), folder=tmp_path, resume="auto", model=TinyModel(seed=7))
    assert same_tensors(parameters(again.model), parameters(first.model))


def test_a_signal_in_an_evaluation_loses_nothing(tmp_path: Path) -> None:
    """The checkpoint that it leaves has the raw weights, and the average as it was."""

    class Signal(hl.Callback):
        def on_eval_batch_start(self, run: Any) -> None:
            if run.clock.step == 8:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(hl.Preempted):
        fit_three_epochs(EMA(0.9), Signal(), Checkpointer(), val=tiny_data(3), folder=tmp_path)
    ema = EMA(0.9)
    result = fit_three_epochs(
        ema, Checkpointer(), val=tiny_data(3), folder=tmp_path, resume="auto", model=TinyModel(seed=7)
    )
    straight = fit_three_epochs(EMA(0.9), val=tiny_data(3))
    assert same_tensors(parameters(result.model), parameters(straight.model))
    assert result.history["val/loss"] == straight.history["val/loss"]


def test_an_average_of_another_model_is_refused() -> None:
    ema = EMA(0.9)
    fit_three_epochs(ema)
    state = ema.state_dict()

    class Loads(hl.Callback):
        def on_fit_start(self, run: Any) -> None:
            other.load_state_dict(state)

    other = EMA(0.9)
    with pytest.raises(CheckpointMismatchError, match=r"average of hidden\.weight.*which the model does not have"):
        fit_three_epochs(Loads(), other, model=nn.Linear(4, 3))


def test_a_state_that_lacks_something_is_refused() -> None:
    with pytest.raises(RegistrationError, match="the saved state lacks statistics, updates"):
        EMA().load_state_dict({"averages": None})


# -- ways to run -----------------------------------------------------------------------------------------


def test_it_works_in_an_own_loop_also_when_it_is_left_by_break() -> None:
    for leave in (None, 7):
        model, ema = TinyModel(), EMA(0.9)
        with Loop(model, momentum_sgd(model.parameters()), callbacks=[ema], max_duration="3ep", folder=False) as loop:
            for x, y in loop.batches(tiny_data(4)):
                loop.backward(CE(model(x), y))
                loop.step()
                if loop.eval_due:
                    for x_val, _ in loop.eval_batches(tiny_data(1)):
                        assert torch.equal(model(x_val), plain(loop.run.clock.step)[1](x_val))
                if loop.run.clock.step == leave:
                    break
        assert same_tensors(parameters(model), parameters(plain(leave or 12)[1].module))


def test_a_window_of_batches_is_one_update() -> None:
    ema = EMA(0.9)
    fit_three_epochs(ema, accumulate=2)
    assert ema.updates == 6


def test_two_averages_that_both_end_in_the_model_are_an_error() -> None:
    one, two = EMA(0.9), EMA(0.99)
    with pytest.raises(OrderError, match="two EMA both write 'weights': leave one of them out"):
        fit_three_epochs(one, two)


# -- mistakes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5])
def test_a_decay_that_is_no_share_is_refused(decay: float) -> None:
    with pytest.raises(ArgumentError, match=rf"EMA\(decay={decay}\)"):
        EMA(decay)


@pytest.mark.parametrize("dtype", ["int8", "float33", torch.int32])
def test_a_dtype_without_fractions_is_refused(dtype: Any) -> None:
    with pytest.raises(ArgumentError, match=r"EMA\(dtype=.*such as 'float32'"):
        EMA(dtype=dtype)


def test_a_start_that_is_no_duration_is_refused() -> None:
    with pytest.raises(DurationError):
        EMA(start="soon")
    with pytest.raises(DurationError):
        EMA(every="0st")


def test_one_that_updates_at_the_end_of_epochs_keeps_the_contract() -> None:
    check_callback(lambda: EMA(every="1ep"))
