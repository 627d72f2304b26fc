"""``QuantizationAwareTraining``: train with the rounding errors of the quantized model."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookline.callbacks._ending import has_returned
from hookline.callbacks._modules import check_patterns, matches, patterns_or_all
from hookline.errors import ArgumentError, CheckpointMismatchError, SetupError
from hookline.events import Callback
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

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


class QuantizationAwareTraining(Callback):
    """Train linear layers with simulated quantization and convert them at the end.

    The callback uses torchao (``pip install 'hookline[quantize]'``), which quantizes ``nn.Linear`` layers. Other
    layers do not change. Checkpoints hold the weights in full precision.

    Args:
        weight_bits: Number of bits per weight, from 2 to 8. There is one scale per output channel.
        activation_bits: 8: quantize activations dynamically, with one scale per row of a batch. ``None``: keep them
            in full precision.
        group_size: Number of inputs that share a scale. ``None``: one scale per output channel.
        config: torchao configuration for ``QATConfig``. It replaces the three arguments above.
        modules: Names or patterns of the layers, such as ``"encoder"`` or ``"*.mlp"``. A name includes everything
            inside it.
        start: When simulated quantization starts. ``None``: at the first step.
        convert: Convert the layers to integer weights when ``fit`` returns. ``False``: keep the weights in full
            precision, with simulated quantization.

    Raises:
        ArgumentError: If ``weight_bits``, ``activation_bits`` or ``group_size`` is out of range.
        SetupError: If torchao is missing, a pattern matches no ``nn.Linear``, or a layer is already quantized.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="1ep", callbacks=[QuantizationAwareTraining(4)], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> type(result.model.out.weight.data).__name__
        'IntxUnpackedToInt8Tensor'
    """

    writes = ("weights",)
    role = "convert"
    structural = True
    state = ("layers",)

    def __init__(
        self,
        weight_bits: int = 8,
        activation_bits: int | None = 8,
        *,
        group_size: int | None = None,
        config: Any = None,
        modules: Sequence[str] | str = ("*",),
        start: str | Duration | None = None,
        convert: bool = True,
    ) -> None:
        if weight_bits not in range(2, 9):
            raise ArgumentError(f"QuantizationAwareTraining(weight_bits={weight_bits!r}): must be from 2 to 8.")
        if activation_bits not in (8, None):
            raise ArgumentError(f"QuantizationAwareTraining(activation_bits={activation_bits!r}): must be 8, or None.")
        if group_size is not None and group_size < 1:
            raise ArgumentError(f"QuantizationAwareTraining(group_size={group_size!r}): must be >= 1, or None.")
        self.weight_bits = weight_bits
        self.activation_bits = activation_bits
        self.group_size = group_size
        self.config = config
        self.modules = patterns_or_all(modules, "QuantizationAwareTraining", "modules")
        self.start = None if start is None else Duration.parse(start, "QuantizationAwareTraining(start=…)")
        self.convert = convert
        self.layers: list[str] = []
        """Names of the layers with fake quantization."""
        self._config: Any = None
        self._model: weakref.ref[nn.Module] | None = None
        self._prepared: dict[str, nn.Linear] = {}
        self._is_converted = self._is_on = False

    # -- hooks ---------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        need_torchao()
        model: nn.Module = run.model
        if self._model is not None and self._model() is model:
            # The converted layers of the last fit cannot be trained.
            put_layers(model, self._prepared)
        else:
            self._prepare(model)
        self._is_converted = False

    def on_model_ready(self, run: Run) -> None:
        if run.is_training_run:
            self._switch(run)

    def on_rollback(self, run: Run) -> None:
        self._switch(run)

    def on_train_step_end(self, run: Run) -> None:
        if not self._is_on:
            self._switch(run)

    def on_train_epoch_end(self, run: Run) -> None:
        if not self._is_on:
            self._switch(run)

    def on_teardown(self, run: Run) -> None:
        if self.convert and self._prepared and not self._is_converted and has_returned(run):
            convert(run.model, self._prepared, self._config)
            self._is_converted = True

    # -- fake quantization ---------------------------------------------------------------------

    def _prepare(self, model: nn.Module) -> None:
        """Replace the chosen layers of a model by layers with fake quantization."""
        layers = quantizable(model)
        if not layers:
            raise SetupError(
                "QuantizationAwareTraining: there is no nn.Linear inside the model, and others it cannot do"
            )
        check_patterns(self.modules, list(layers), "QuantizationAwareTraining", "modules", kind="nn.Linear")
        names = [name for name in layers if matches(name, self.modules)]
        if done := [name for name in names if is_quantized(layers[name])]:
            raise SetupError(
                f"QuantizationAwareTraining: {done[0]} is quantized already and cannot be trained; begin with the "
                f"model in full precision, or continue with the same trainer"
            )
        self._config = self.config or make_config(self.weight_bits, self.activation_bits, self.group_size)
        self._prepared = prepare(model, names, self._config)
        self.layers = list(self._prepared)
        self._model = weakref.ref(model)
        logger.info("fake quantization in %d linear layers", len(names))

    def _switch(self, run: Run) -> None:
        """Enable fake quantization when ``start`` is reached."""
        start = None if self.start is None else self.start.of(run.max_duration)
        self._is_on = start is None or run.clock.elapsed(start.unit) >= start.value
        set_enabled(self._prepared.values(), self._is_on)

    # -- checkpoints ---------------------------------------------------------------------------

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise if the checkpoint has fake quantization in other layers.

        A resume with other layers would continue with a different computation.
        """
        super().load_state_dict(state)
        if self._prepared and set(self.layers) != set(self._prepared):
            other = ", ".join(sorted(set(self.layers) ^ set(self._prepared))[:5])
            raise CheckpointMismatchError(
                f"QuantizationAwareTraining: the checkpoint has fake quantization in other layers ({other}); "
                f"give the same modules=[…] and the same model as before"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which does not belong to a model."""
        return {**self.__dict__, "_model": None, "_prepared": {}, "_is_converted": False}


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
