"""``StopOnConstantPredictions``: stop when a model predicts the same for every input."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class StopOnConstantPredictions(Callback):
    """Stop training when all predictions of an evaluation are the same.

    The callback reads ``run.outputs`` of each batch of the evaluations in ``fit``, so it computes nothing twice. NaN is
    not a constant prediction; use ``StopOnNaN`` for it.

    Args:
        value: Only predictions that all equal this value count: ``value=0`` finds a model that always predicts 0.
            ``None``: any constant.
        action: ``"stop"`` the run, or ``"warn"`` and continue.
        predictions: Function of the outputs that returns a tensor with one prediction per row. ``None``: the class with
            the largest output along dimension 1, for each sample, pixel or token. If dimension 1 has a single entry or
            does not exist, the output itself.
        patience: Number of evaluations in a row with constant predictions.
        tolerance: Numbers that differ by no more than this are the same.

    Raises:
        ArgumentError: If an argument is invalid.
        SetupError: If ``fit`` has no validation loader, or the outputs need ``predictions``.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> model = TinyModel()
        >>> torch.nn.init.zeros_(model.out.weight).sum().item()
        0.0
        >>> trainer = Trainer(max_duration="9ep", callbacks=[StopOnConstantPredictions()], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(model, tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        >>> result.stop_reason
        'all 32 predictions are 2'
    """

    writes = ()  # The callback logs no metric.
    state = ("in_a_row",)
    state_depends_on = ("value", "tolerance")

    def __init__(
        self,
        value: float | None = None,
        *,
        action: Literal["stop", "warn"] = "stop",
        predictions: Callable[[Any], Tensor] | None = None,
        patience: int = 1,
        tolerance: float = 0.0,
    ) -> None:
        if patience < 1:
            raise ArgumentError(f"StopOnConstantPredictions(patience={patience!r}): must be >= 1.")
        if tolerance < 0:
            raise ArgumentError(f"StopOnConstantPredictions(tolerance={tolerance!r}): must be >= 0.")
        if value is not None and not math.isfinite(value):
            raise ArgumentError(f"StopOnConstantPredictions(value={value!r}): must be finite.")
        self.value = value
        self.action = action
        self.predictions = predictions
        self.patience = patience
        self.tolerance = tolerance
        self.in_a_row = 0
        """Number of evaluations in a row with constant predictions."""
        self._begin()

    def _begin(self) -> None:
        """Reset the smallest and largest prediction for a new evaluation."""
        self._least: Tensor | None = None
        self._most: Tensor | None = None
        self._count = 0

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        if getattr(run, "task", None) is not None and "val" not in run.loaders:
            raise SetupError(
                "StopOnConstantPredictions looks at evaluations, and there is nothing to evaluate on: "
                "pass a validation loader to fit"
            )

    def on_eval_start(self, run: Run) -> None:
        self._begin()

    def on_eval_batch_end(self, run: Run) -> None:
        if run.stage != "val" or not run.is_training_run:
            return
        rows = self._rows(run.outputs)
        least, most = rows.amin(0), rows.amax(0)
        if self._least is not None and self._most is not None:
            if least.shape != self._least.shape:
                raise SetupError(
                    f"StopOnConstantPredictions: rows of {least.numel()} numbers after rows of {self._least.numel()}; "
                    f"give predictions=, a function that makes rows of one size"
                )
            least, most = torch.minimum(least, self._least), torch.maximum(most, self._most)
        self._least, self._most = least, most
        self._count += len(rows)

    def on_eval_end(self, run: Run) -> None:
        if self._least is None or self._most is None:
            return
        least, most = torch.stack([self._least, self._most]).double().tolist()
        count = self._count
        self._begin()
        if not self._are_alike(least, most):
            self.in_a_row = 0
            return
        self.in_a_row += 1
        if self.in_a_row < self.patience:
            return
        shown = ", ".join(f"{number:.6g}" for number in least[:4]) + (", …" if len(least) > 4 else "")
        often = f" in {self.in_a_row} evaluations" if self.patience > 1 else ""
        said = f"all {count} predictions are {shown if len(least) == 1 else f'({shown})'}{often}"
        if self.action == "stop":
            run.stop(said)
        else:
            logger.warning("StopOnConstantPredictions: %s, at step %d", said, run.clock.step)

    def _are_alike(self, least: list[float], most: list[float]) -> bool:
        """True if the predictions are constant. NaN never is, because it is not equal to itself."""
        if self.value is not None:
            return all(abs(number - self.value) <= self.tolerance for number in (*least, *most))
        return all(high - low <= self.tolerance for low, high in zip(least, most, strict=True))

    def _rows(self, outputs: Any) -> Tensor:
        """Return a tensor with one prediction in each row."""
        if self.predictions is not None:
            found = self.predictions(outputs)
        elif not isinstance(outputs, Tensor) or not outputs.ndim:
            raise SetupError(
                f"StopOnConstantPredictions: the outputs are a {type(outputs).__name__}, not a tensor with one row for "
                f"each sample; give predictions=, a function that makes one of them"
            )
        else:
            several = outputs.ndim > 1 and outputs.shape[1] > 1
            found = (outputs.argmax(1) if several else outputs).reshape(-1)
        found = found.detach()
        return found.reshape(len(found), -1)
