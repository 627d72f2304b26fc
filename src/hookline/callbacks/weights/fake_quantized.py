"""The layers of a model with fake quantization in them, through torchao. It is imported here alone, on use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

from hookline.errors import SetupError

KEPT = (
    "training",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
"""What a layer has of its own, besides its weights."""
QUANTIZERS = ("weight_fake_quantizer", "activation_fake_quantizer")


def need_torchao() -> None:
    """An error that says what to install, if it is missing."""
    try:
        import_module("torchao")
    except ImportError as error:
        raise SetupError("QuantizationAwareTraining needs torchao: pip install 'hookline[quantize]'") from error


def make_config(weight_bits: int, activation_bits: int | None, group_size: int | None) -> Any:
    """The configuration of torchao for whole numbers of so many bits."""
    torchao = import_module("torchao.quantization")
    dtype = getattr(torch, f"int{weight_bits}")
    granularity = torchao.PerAxis(0) if group_size is None else torchao.PerGroup(group_size)
    if activation_bits is None:
        return torchao.IntxWeightOnlyConfig(weight_dtype=dtype, granularity=granularity)
    return torchao.Int8DynamicActivationIntxWeightConfig(weight_dtype=dtype, weight_granularity=granularity)


def quantizable(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers inside a model, by name; the model itself cannot be replaced."""
    return {name: part for name, part in model.named_modules() if name and isinstance(part, nn.Linear)}


def is_quantized(layer: nn.Linear) -> bool:
    """Whether it has been converted: its weight is a tensor of torchao then."""
    return type(layer.weight.data) is not torch.Tensor


def prepare(model: nn.Module, names: Iterable[str], config: Any) -> dict[str, nn.Linear]:
    """Put fake quantization into these layers, in place. The weights stay the same objects."""
    return _replaced(model, names, config, "prepare")


def convert(model: nn.Module, names: Iterable[str], config: Any) -> dict[str, nn.Linear]:
    """Quantize the weights of these layers for good."""
    return _replaced(model, names, config, "convert")


def put_layers(model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    """Put layers into their places in a model."""
    for name, layer in layers.items():
        path, _, last = name.rpartition(".")
        setattr(model.get_submodule(path), last, layer)


def set_enabled(layers: Iterable[nn.Module], enabled: bool) -> None:
    """Switch the fake quantization of layers on or off."""
    for layer in layers:
        for name in QUANTIZERS:
            quantizer = getattr(layer, name, None)
            if quantizer is not None:
                quantizer.enabled = enabled


def _replaced(model: nn.Module, names: Iterable[str], config: Any, step: str) -> dict[str, nn.Linear]:
    quantize_: Any = import_module("torchao.quantization").quantize_
    config = import_module("torchao.quantization.qat").QATConfig(config, step=step)
    places = list(model.named_modules(remove_duplicate=False))  # one layer may be used under two names
    own: dict[str, Any] = dict(places)
    made: dict[int, Any] = {}
    with torch.random.fork_rng(devices=[]):  # a new layer draws weights that nobody uses
        for name in names:
            layer = own[name]
            if id(layer) not in made:
                made[id(layer)] = _one_replaced(quantize_, layer, config, name)
    found = {name: made[id(part)] for name, part in places if id(part) in made}
    put_layers(model, found)
    return found


def _one_replaced(quantize_: Any, layer: nn.Module, config: Any, name: str) -> nn.Module:
    holder = nn.ModuleDict({"layer": layer})
    try:
        quantize_(holder, config, filter_fn=lambda part, _: part is layer)
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise SetupError(f"QuantizationAwareTraining: {name} ({layer}) cannot be quantized: {error}") from error
    for attribute in KEPT:
        setattr(holder["layer"], attribute, getattr(layer, attribute))
    return holder["layer"]
