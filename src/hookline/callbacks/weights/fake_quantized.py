"""Layers with fake quantization. Only this module imports torchao, when it is used."""

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
"""Attributes that the replacement of a layer keeps."""
QUANTIZERS = ("weight_fake_quantizer", "activation_fake_quantizer")


def need_torchao() -> None:
    """Raise with installation instructions if torchao is missing."""
    try:
        import_module("torchao")
    except ImportError as error:
        raise SetupError("QuantizationAwareTraining needs torchao: pip install 'hookline[quantize]'") from error


def make_config(weight_bits: int, activation_bits: int | None, group_size: int | None) -> Any:
    """Return the torchao configuration for integers with these numbers of bits."""
    torchao = import_module("torchao.quantization")
    dtype = getattr(torch, f"int{weight_bits}")
    granularity = torchao.PerAxis(0) if group_size is None else torchao.PerGroup(group_size)
    if activation_bits is None:
        return torchao.IntxWeightOnlyConfig(weight_dtype=dtype, granularity=granularity)
    return torchao.Int8DynamicActivationIntxWeightConfig(weight_dtype=dtype, weight_granularity=granularity)


def quantizable(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers inside a model by name. The model itself cannot be replaced."""
    return {name: part for name, part in model.named_modules() if name and isinstance(part, nn.Linear)}


def is_quantized(layer: nn.Linear) -> bool:
    """True if the layer was converted: its weight is then a torchao tensor."""
    return type(layer.weight.data) is not torch.Tensor


def prepare(model: nn.Module, names: Iterable[str], config: Any) -> dict[str, nn.Linear]:
    """Replace these layers by layers with fake quantization, which keep the parameter objects."""
    return _replaced(model, names, config, "prepare")


def convert(model: nn.Module, names: Iterable[str], config: Any) -> dict[str, nn.Linear]:
    """Quantize the weights of these layers permanently."""
    return _replaced(model, names, config, "convert")


def put_layers(model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    """Set layers in a model by name."""
    for name, layer in layers.items():
        path, _, last = name.rpartition(".")
        setattr(model.get_submodule(path), last, layer)


def set_enabled(layers: Iterable[nn.Module], enabled: bool) -> None:
    """Enable or disable the fake quantization of layers."""
    for layer in layers:
        for name in QUANTIZERS:
            quantizer = getattr(layer, name, None)
            if quantizer is not None:
                quantizer.enabled = enabled


def _replaced(model: nn.Module, names: Iterable[str], config: Any, step: str) -> dict[str, nn.Linear]:
    """Replace layers and return the new layers by name."""
    quantize_: Any = import_module("torchao.quantization").quantize_
    config = import_module("torchao.quantization.qat").QATConfig(config, step=step)
    # Duplicates stay, because a model may use one layer under two names.
    places = list(model.named_modules(remove_duplicate=False))
    own: dict[str, Any] = dict(places)
    made: dict[int, Any] = {}
    # A new layer draws random weights that are not used.
    with torch.random.fork_rng(devices=[]):
        for name in names:
            layer = own[name]
            if id(layer) not in made:
                made[id(layer)] = _one_replaced(quantize_, layer, config, name)
    found = {name: made[id(part)] for name, part in places if id(part) in made}
    put_layers(model, found)
    return found


def _one_replaced(quantize_: Any, layer: nn.Module, config: Any, name: str) -> nn.Module:
    """Return the replacement of one layer, with its hooks and its mode."""
    holder = nn.ModuleDict({"layer": layer})
    try:
        quantize_(holder, config, filter_fn=lambda part, _: part is layer)
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise SetupError(f"QuantizationAwareTraining: {name} ({layer}) cannot be quantized: {error}") from error
    for attribute in KEPT:
        setattr(holder["layer"], attribute, getattr(layer, attribute))
    return holder["layer"]
