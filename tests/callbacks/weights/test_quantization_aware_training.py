"""``QuantizationAwareTraining``: what is rounded, when, what is converted, checkpoints, and what each mistake says."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import hookline as hl
from hookline.callbacks import Checkpointer
from hookline.callbacks.weights import EMA, SWA, Pruning, QuantizationAwareTraining
from hookline.checkpoint import Store
from hookline.errors import ArgumentError, CheckpointMismatchError, DurationError, SetupError
from hookline.loop import Trainer
from hookline.testing import TinyModel, tiny_data
from tests.support import CE, crash_at, fit, same_tensors, sgd, state_of

pytest.importorskip("torchao")


momentum_sgd = partial(sgd, momentum=0.9)
fit_three_epochs = partial(fit, optimizer=momentum_sgd, max_duration="3ep")


def rounded(weight: Tensor, bits: int) -> Tensor:
    """One scale for each output channel, symmetric; the gradient passes where nothing was cut off."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    raw = weight.detach()
    scale = raw.abs().amax(1, keepdim=True) / ((high - low) / 2)
    steps = (raw * (1.0 / scale.clamp(min=1e-30))).round()  # the largest is half a step out: a tie, to the last bit
    inside = (steps >= low) & (steps <= high)
    return steps.clamp(low, high) * scale + (weight - raw) * inside


def plain(bits: int, steps: int = 12, start: int = 0) -> nn.Module:
    """A plain loop that rounds the weights itself."""
    model = TinyModel()
    optimizer, data = momentum_sgd(model.parameters()), tiny_data(4)
    for step in range(steps):
        x, y = data[step % 4]
        first, second = model.hidden.weight, model.out.weight
        if step >= start:
            first, second = rounded(first, bits), rounded(second, bits)
        hidden = torch.relu(nn.functional.linear(x, first, model.hidden.bias))
        optimizer.zero_grad()
        CE(nn.functional.linear(hidden, second, model.out.bias), y).backward()
        optimizer.step()
    return model


# -- rounding --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8])
def test_training_rounds_the_weights_and_moves_the_ones_behind_them(bits: int) -> None:
    result = fit_three_epochs(QuantizationAwareTraining(bits, None, convert=False))
    expected = plain(bits)
    for name, value in state_of(result.model).items():
        torch.testing.assert_close(value, expected.get_parameter(name), rtol=1e-3, atol=1e-4)
    assert bits == 8 or not torch.allclose(
        state_of(result.model)["out.weight"], fit_three_epochs().model.out.weight, atol=1e-3
    )


def test_rounding_may_begin_later() -> None:
    result = fit_three_epochs(QuantizationAwareTraining(2, None, convert=False, start="2ep"))
    for name, value in state_of(result.model).items():
        torch.testing.assert_close(value, plain(2, start=8).get_parameter(name), rtol=1e-3, atol=1e-4)
    until = fit_three_epochs(QuantizationAwareTraining(2, None, convert=False, start="2ep"), max_duration="8st")
    assert same_tensors(
        state_of(until.model), state_of(fit_three_epochs(max_duration="8st").model)
    )  # not a bit differs before


def test_activations_are_rounded_unless_they_are_not_to_be() -> None:
    x = tiny_data(1)[0][0]
    for bits in (8, None):
        fitted = fit_three_epochs(
            QuantizationAwareTraining(8, bits, convert=False), model=TinyModel(), max_duration="1st"
        ).model
        layer = fitted.hidden
        assert (layer.activation_fake_quantizer is None) == (bits is None)
        with torch.no_grad():
            exact = nn.functional.linear(x, rounded(layer.weight, 8), layer.bias)
        assert torch.allclose(layer(x), exact, atol=1e-6) == (bits is None)
        assert torch.allclose(layer(x), exact, atol=0.05)


def test_only_the_named_layers_are_rounded() -> None:
    qat = QuantizationAwareTraining(modules="hid*")
    result = fit_three_epochs(qat, max_duration="1st")
    assert qat.layers == ["hidden"]
    assert type(result.model.out) is nn.Linear
    assert type(result.model.out.weight.data) is Tensor
    assert type(result.model.hidden.weight.data) is not Tensor


def test_a_name_means_all_layers_inside_it() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8)), nn.Linear(8, 3))
    qat = QuantizationAwareTraining(modules="0")
    fit_three_epochs(qat, model=model, max_duration="1st")
    assert qat.layers == ["0.0", "0.2"]


def test_names_weights_modes_and_hooks_of_the_layers_stay() -> None:
    model, calls = TinyModel(), []
    model.out.register_forward_hook(lambda *_: calls.append(1))
    model.hidden.eval()
    before = dict(model.named_parameters())
    qat = QuantizationAwareTraining(convert=False)
    result = fit_three_epochs(qat, model=model, max_duration="2st")
    assert all(parameter is before[name] for name, parameter in result.model.named_parameters())
    assert len(calls) == 2
    assert not model.hidden.training
    assert model.out.training


def test_a_layer_that_is_used_twice_stays_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.again = self.first
            self.out = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.again(self.first(x)))

    for convert in (False, True):
        model = fit_three_epochs(QuantizationAwareTraining(convert=convert), model=Twice(), max_duration="2st").model
        assert model.first is model.again
        assert type(model.first).__name__ == ("Linear" if convert else "FakeQuantizedLinear")


def test_random_numbers_are_drawn_as_without_it() -> None:
    with_it, without = (
        fit_three_epochs(*callbacks, model=TinyModel(dropout=0.5), max_duration="6st")
        for callbacks in ([QuantizationAwareTraining(start="9st", convert=False)], [])
    )
    assert same_tensors(state_of(with_it.model), state_of(without.model))


# -- converting ------------------------------------------------------------------------------------------


def test_the_converted_model_gives_what_the_last_evaluation_gave() -> None:
    val = tiny_data(1, seed=5)
    result = fit_three_epochs(QuantizationAwareTraining(4), val=val)
    weight: Any = result.model.out.weight.data
    assert type(weight).__name__ == "IntxUnpackedToInt8Tensor"
    assert weight.qdata.dtype is torch.int8
    assert int(weight.qdata.abs().max()) <= 8  # whole numbers of four bits
    x, y = val[0]
    with torch.no_grad():
        assert CE(result.model(x), y).item() == pytest.approx(result.history["val/loss"][-1], rel=1e-5)


def test_after_an_error_it_is_not_converted_and_a_second_fit_goes_on() -> None:
    class Fails(hl.Callback):
        fails = True

        def on_train_step_end(self, run: Any) -> None:
            if run.clock.step == 5 and self.fails:
                self.fails = False
                raise ValueError("planted")

    model = TinyModel()
    trainer = Trainer(callbacks=[QuantizationAwareTraining(), Fails()], max_duration="3ep", folder=False)
    with pytest.raises(ValueError, match="planted"):
        trainer.fit(model, tiny_data(4), loss=CE, optimizer=momentum_sgd)
    assert type(model.out).__name__ == "FakeQuantizedLinear"
    trainer.fit(model, tiny_data(4), loss=CE, optimizer=momentum_sgd)
    assert type(model.out.weight.data) is not Tensor


def test_a_second_fit_goes_on_from_the_weights_in_full_precision() -> None:
    model = TinyModel()
    trainer = Trainer(callbacks=[QuantizationAwareTraining(4)], max_duration="2ep", folder=False)
    trainer.fit(model, tiny_data(4), loss=CE, optimizer=momentum_sgd)
    trainer.evaluate(model, tiny_data(1))
    trainer.predict(model, tiny_data(1))
    trainer.fit(model, tiny_data(4), loss=CE, optimizer=momentum_sgd, extend="1ep")
    x, straight = tiny_data(1)[0][0], fit_three_epochs(QuantizationAwareTraining(4)).model
    with torch.no_grad():
        assert torch.equal(model(x), straight(x))


def test_a_configuration_of_torchao_may_be_given() -> None:
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup

    config = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(4))
    by_config = fit_three_epochs(QuantizationAwareTraining(config=config), max_duration="4st").model
    by_words = fit_three_epochs(QuantizationAwareTraining(4, None, group_size=4), max_duration="4st").model
    x = tiny_data(1)[0][0]
    with torch.no_grad():
        assert torch.equal(by_config(x), by_words(x))


# -- checkpoints, and with others ------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [3, 9])
def test_a_resume_is_exact(tmp_path: Path, stop: int) -> None:
    def make() -> QuantizationAwareTraining:
        return QuantizationAwareTraining(4, start="5st", convert=False)

    straight = fit_three_epochs(make(), model=TinyModel(dropout=0.2), val=tiny_data(1))
    common: dict[str, Any] = {"folder": tmp_path, "resume": "auto", "val": tiny_data(1)}
    with pytest.raises(RuntimeError, match="planted"):
        fit_three_epochs(
            make(), Checkpointer("1st"), crash_at(stop, "step_settled"), model=TinyModel(dropout=0.2), **common
        )
    result = fit_three_epochs(make(), Checkpointer("1st"), model=TinyModel(dropout=0.2, seed=8), **common)
    assert same_tensors(state_of(result.model), state_of(straight.model))
    assert result.history["val/loss"] == straight.history["val/loss"]


def test_checkpoints_hold_the_weights_in_full_precision_under_their_names(tmp_path: Path) -> None:
    fit_three_epochs(QuantizationAwareTraining(4), Checkpointer(), folder=tmp_path)
    weights = load_file(Store(tmp_path / "checkpoints").latest().path / "model.safetensors")  # type: ignore[union-attr]
    TinyModel().load_state_dict(weights)
    assert same_tensors(weights, state_of(fit_three_epochs(QuantizationAwareTraining(4, convert=False)).model))


def test_a_finished_run_that_is_asked_for_again_gives_the_converted_model(tmp_path: Path) -> None:
    x = tiny_data(1)[0][0]
    first = fit_three_epochs(QuantizationAwareTraining(4), Checkpointer(), folder=tmp_path).model
    again = fit_three_epochs(
        QuantizationAwareTraining(4), Checkpointer(), folder=tmp_path, resume="auto", model=TinyModel(seed=5)
    )
    with torch.no_grad():
        assert torch.equal(first(x), again.model(x))


def test_a_resume_with_other_layers_is_refused(tmp_path: Path) -> None:
    class Named(QuantizationAwareTraining):
        """The same identity, whatever its layers."""

        state_key = "Named"  # type: ignore[assignment]

    fit_three_epochs(Named(), Checkpointer(), folder=tmp_path, max_duration="2st")
    with pytest.raises(CheckpointMismatchError, match=r"fake quantization in other layers \(out\)"):
        fit_three_epochs(Named(modules="hidden"), Checkpointer(), folder=tmp_path, resume="auto", max_duration="4st")


def test_the_average_is_what_is_quantized_and_zeros_stay_zeros() -> None:
    model = TinyModel()
    ema, pruning = EMA(0.9), Pruning(amount=0.5)
    trainer = Trainer(callbacks=[QuantizationAwareTraining(4, None), ema, pruning], max_duration="2ep", folder=False)
    trainer.fit(model, tiny_data(4), tiny_data(1), loss=CE, optimizer=momentum_sgd)
    quantized: Any = model.out.weight.data
    trainer.fit(model, tiny_data(4), tiny_data(1), loss=CE, optimizer=momentum_sgd, extend="1ep")
    assert type(quantized) is not Tensor
    found, average = model.out.weight.data.dequantize(), ema.weights["out.weight"]
    scale = average.abs().amax(1, keepdim=True) / 7.5
    torch.testing.assert_close(model.out.weight.data.scale.flatten(), scale.flatten())
    assert bool(((found - average).abs() <= 0.5001 * scale).all())
    assert not found[~pruning.masks["out.weight"]].any()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    "average", [lambda: EMA(0.9, apply_at_end=False), lambda: SWA(start="1ep", apply_at_end=False)]
)
def test_after_a_fit_that_leaves_the_average_out_the_converted_model_is_what_is_evaluated(
    average: Any, again: bool, tmp_path: Path
) -> None:
    """Also where the run was over already, and is only read back."""
    val = tiny_data(1, seed=5)

    def make() -> Trainer:
        callbacks = [QuantizationAwareTraining(4), average(), Checkpointer()]
        return Trainer(callbacks=callbacks, max_duration="2ep", folder=tmp_path, resume="auto", seed=0)

    model, trainer = TinyModel(), make()
    trainer.fit(model, tiny_data(4), val, loss=CE, optimizer=momentum_sgd)
    if again:
        model, trainer = TinyModel(seed=7), make()
        trainer.fit(model, tiny_data(4), val, loss=CE, optimizer=momentum_sgd)
    x, y = val[0]
    with torch.no_grad():
        own = CE(model(x), y).item()
    assert trainer.evaluate(model, val, loss=CE)["val/loss"] == pytest.approx(own, rel=1e-6)
    assert type(model.out.weight.data).__name__ == "IntxUnpackedToInt8Tensor"


# -- mistakes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_bits": 1}, r"QuantizationAwareTraining\(weight_bits=1\): must be from 2 to 8\."),
        ({"weight_bits": 16}, r"QuantizationAwareTraining\(weight_bits=16\): must be from 2 to 8\."),
        ({"activation_bits": 4}, r"QuantizationAwareTraining\(activation_bits=4\): must be 8, or None\."),
        ({"group_size": 0}, r"QuantizationAwareTraining\(group_size=0\): must be >= 1, or None\."),
    ],
)
def test_a_number_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        QuantizationAwareTraining(**options)


def test_a_start_that_is_no_duration_is_refused() -> None:
    with pytest.raises(DurationError):
        QuantizationAwareTraining(start="later")


def test_a_name_that_matches_nothing_is_an_error_before_the_first_step() -> None:
    with pytest.raises(
        SetupError, match=r"\(modules='hiden'\): no nn.Linear of the model matches. The nearest names: hidden"
    ):
        fit_three_epochs(QuantizationAwareTraining(modules=["hiden"]))


def test_a_group_that_does_not_fit_is_an_error_that_names_the_layer() -> None:
    with pytest.raises(
        SetupError, match=r"QuantizationAwareTraining: hidden \(Linear.*cannot be quantized: in_features"
    ):
        fit_three_epochs(QuantizationAwareTraining(group_size=3))


def test_a_model_without_linear_layers_inside_is_an_error() -> None:
    with pytest.raises(SetupError, match=r"no nn\.Linear inside the model"):
        fit_three_epochs(QuantizationAwareTraining(), model=nn.Linear(4, 3))


def test_a_model_that_is_quantized_already_is_an_error() -> None:
    model = fit_three_epochs(QuantizationAwareTraining(), max_duration="1st").model
    with pytest.raises(SetupError, match="hidden is quantized already"):
        fit_three_epochs(QuantizationAwareTraining(), model=model)


def test_without_torchao_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(SetupError, match=r"needs torchao: pip install 'hookline\[quantize\]'"):
        fit_three_epochs(QuantizationAwareTraining())
