"""``QuantizationAwareTraining``: train with the rounding that the finished model will have."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from hookline.callbacks.ending import has_returned
from hookline.callbacks.name_patterns import check_patterns, matches, patterns_or_all
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
    """Trains linear layers with the rounding of the quantized model, which it makes of them at the end.

    It uses torchao (``pip install 'hookline[quantize]'``), where quantization in PyTorch is maintained now.
    ``torch.ao.quantization``, which older callbacks of this kind are built on, is still in torch 2.13, but it is
    deprecated and warns that it will be removed. torchao does linear layers (``nn.Linear``); others stay as they are.

    **What.** ``weight_bits`` are 2 to 8, with one scale for each output channel, or for each ``group_size`` inputs.
    ``activation_bits`` is 8, with a scale for each row of a batch, found anew each time; or ``None`` for activations
    that stay as they are. ``config`` is any configuration of torchao that its ``QATConfig`` takes, in place of these.
    ``modules`` are names (``"encoder"``) and patterns (``"*.mlp"``), each with all layers inside.

    **When.** When a fit begins, the layers are replaced by ones that round (their weights and names stay). With
    ``start`` the rounding begins after so much of training. When ``fit`` returns, the layers are converted
    (``convert``): their weights are whole numbers, and the model gives what it gave in its last evaluation. Checkpoints
    always hold the weights in full precision, so a resume is exact, and a further ``fit`` goes on from those.

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
        """The names of the layers that are trained with rounding."""
        self._config: Any = None
        self._model: weakref.ref[nn.Module] | None = None
        self._prepared: dict[str, nn.Linear] = {}
        self._is_converted = self._is_on = False

    # -- when ----------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        need_torchao()
        model: nn.Module = run.model
        if self._model is not None and self._model() is model:
            put_layers(model, self._prepared)  # again those with weights that can be trained
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

    # -- how -----------------------------------------------------------------------------------

    def _prepare(self, model: nn.Module) -> None:
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
        start = None if self.start is None else self.start.of(run.max_duration)
        self._is_on = start is None or run.clock.elapsed(start.unit) >= start.value
        set_enabled(self._prepared.values(), self._is_on)

    # -- in checkpoints ------------------------------------------------------------------------

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The record of the layers: a resume with others would go on with another computation."""
        super().load_state_dict(state)
        if self._prepared and set(self.layers) != set(self._prepared):
            other = ", ".join(sorted(set(self.layers) ^ set(self._prepared))[:5])
            raise CheckpointMismatchError(
                f"QuantizationAwareTraining: the checkpoint has fake quantization in other layers ({other}); "
                f"give the same modules=[…] and the same model as before"
            )

    def __getstate__(self) -> dict[str, Any]:
        """A copy of it belongs to no model."""
        return {**self.__dict__, "_model": None, "_prepared": {}, "_is_converted": False}
