"""``OverfitBatches``: train on the same few batches, which every working model can memorize."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from hookline.callbacks.debug.limit_batches import LimitBatches
from hookline.errors import ArgumentError, NotAvailableError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run


class OverfitBatches(Callback):
    """Train on the same few batches in every epoch, and evaluate on them.

    The callback uses the first batches of the first epoch, with the same random augmentation each time (for a plain
    ``DataLoader``). If the loss does not approach zero, something is wrong with the model, the loss or the labels. If
    there is a validation loader, the batches replace it and stay in memory. A custom loop only repeats the training
    batches.

    Args:
        batches: Number of batches. Start with 1.

    Raises:
        ArgumentError: If ``batches`` is below 1.
        SetupError: If the training loader can be iterated over only once.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="100ep", callbacks=[OverfitBatches(1)], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), lambda parameters: torch.optim.Adam(parameters, lr=0.1)
        >>> result = trainer.fit(TinyModel(), tiny_data(8), tiny_data(2, seed=1), loss=loss, optimizer=optimizer)
        >>> result.clock.step, result.metrics["val/loss"] < 0.01
        (100, True)
    """

    reads = ("*",)
    writes = ("batch",)
    after = (LimitBatches,)

    def __init__(self, batches: int = 1) -> None:
        if batches < 1:
            raise ArgumentError(f"OverfitBatches(batches={batches!r}): must be >= 1.")
        self.batches = batches

    def on_setup(self, run: Run) -> None:
        if run.is_training_run:
            run.limit_batches("train", self.batches, repeat=True)

    def on_fit_start(self, run: Run) -> None:
        if isinstance(run.loaders.get("train"), Iterator):
            raise SetupError(
                "OverfitBatches takes the same batches again, and the training loader can be iterated over only "
                "once; pass a DataLoader or a list of batches"
            )
        if "val" not in run.loaders or not _has_task(run):
            return
        # Another callback may have set a smaller limit.
        count = run.limit_batches("train", self.batches, repeat=True) or self.batches
        # Some loaders have no length.
        with suppress(TypeError, NotImplementedError):
            count = min(count, len(run.loaders["train"]))
        with run.trial() as trial:
            batches = list(trial.batches(count, whole=True))
        val = run.loaders["val"]
        run.loaders["val"] = dict.fromkeys(val, batches) if isinstance(val, Mapping) else batches


def _has_task(run: Run) -> bool:
    """True if the run has a task."""
    try:
        return run.task is not None
    except NotAvailableError:
        return False
