"""``QuantizationAwareTraining``: train with the rounding errors of the quantized model."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from hookline.callbacks._ending import has_returned
from hookline.callbacks._modules import check_patterns, matches, patterns_or_all
from hookline.callbacks.weights.fake_quantized import (
    convert,
    is_quantized,
    make_config,
    need_torchao,
    prepare,
    put_layers,
    quantizable,
    set_enabled,
)
from hookline.errors import CheckpointMismatchError, RegistrationError, SetupError
from hookline.events import Callback
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


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
        RegistrationError: If ``weight_bits``, ``activation_bits`` or ``group_size`` is out of range.
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
            raise RegistrationError(f"QuantizationAwareTraining(weight_bits={weight_bits!r}): give 2 to 8")
        if activation_bits not in (8, None):
            raise RegistrationError(
                f"QuantizationAwareTraining(activation_bits={activation_bits!r}): give 8, or None to leave them alone"
            )
        if group_size is not None and (not isinstance(group_size, int) or group_size < 1):
            raise RegistrationError(f"QuantizationAwareTraining(group_size={group_size!r}): give 1 or more, or None")
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
                f"model in full precision, or go on with the same trainer"
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
