"""``LabelSmoothing``: smooth the labels of the cross entropy in training, and not in evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

from hookline.callbacks.regularization._mixing import Mixing
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run


class LabelSmoothing(Callback):
    """Smooth the labels of ``nn.CrossEntropyLoss`` in training, and not in evaluations.

    Gradients and ``train/loss`` are those of ``nn.CrossEntropyLoss(label_smoothing=…)``, with its class weights and its
    ignored targets. ``val/loss`` is the loss without smoothing.

    Args:
        smoothing: Fraction of each label that is spread over all classes.

    Raises:
        ArgumentError: If ``smoothing`` is not between 0 and 1.
        SetupError: If the loss contains no ``nn.CrossEntropyLoss``, or smooths labels itself.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="1ep", callbacks=[LabelSmoothing(0.1)], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> loss.label_smoothing
        0.0
    """

    writes = ("loss",)
    before = (Mixing,)

    def __init__(self, smoothing: float = 0.1) -> None:
        if not 0 < smoothing < 1:
            raise ArgumentError(f"LabelSmoothing(smoothing={smoothing!r}): must be > 0 and < 1, such as 0.1.")
        self.smoothing = smoothing
        self._losses: list[nn.CrossEntropyLoss] = []

    def on_train_start(self, run: Run) -> None:
        task = getattr(run, "task", None)
        within = run.model if task is None else task
        self._losses = [part for part in within.modules() if isinstance(part, nn.CrossEntropyLoss)]
        if not self._losses:
            raise SetupError(
                "LabelSmoothing: the loss is not an nn.CrossEntropyLoss. Write loss=nn.CrossEntropyLoss(), make the "
                "loss an attribute of the task, or smooth the labels in the loss."
            )
        if already := [loss.label_smoothing for loss in self._losses if loss.label_smoothing]:
            raise SetupError(
                f"LabelSmoothing: the loss is nn.CrossEntropyLoss(label_smoothing={already[0]}) already. Leave out "
                f"that argument or this callback."
            )

    def around_batch(self, run: Run) -> Iterator[None]:
        for loss in self._losses:
            loss.label_smoothing = self.smoothing
        try:
            yield
        finally:
            for loss in self._losses:
                loss.label_smoothing = 0.0
