"""``OverfitBatches``: the same few batches over and over, which any model that can learn should learn by heart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from hookline.errors import NotAvailableError, RegistrationError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run


class OverfitBatches(Callback):
    """Each epoch is the same ``batches`` batches of training, and evaluations are on them, too.

    They are the first ones of the first epoch, shuffled or not, with the same random changes each time (for a plain
    ``DataLoader``; an iterable of your own gives what it gives). A loss that does not go to nearly zero says that
    something is wrong: the loss, the labels, a layer that is frozen, a learning rate that is far off. ``batches=1`` is
    the usual first try.

    In place of the validation loader, if there is one, a fit evaluates on these batches, so that ``val/…`` is what the
    model without dropout makes of them; they are kept in memory for that. Named loaders keep their names, and each is
    these batches. The test at the end stays what it is. In a loop of your own only training is repeated: what you
    evaluate on is in your hands.

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
    before = ("DryRun",)

    def __init__(self, batches: int = 1) -> None:
        if not isinstance(batches, int) or isinstance(batches, bool) or batches < 1:
            raise RegistrationError(f"OverfitBatches({batches!r}): give a number of batches, 1 or more")
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
        count = run.limit_batches("train", self.batches, repeat=True) or self.batches  # others may limit it further
        with suppress(TypeError, NotImplementedError):  # a loader without a length
            count = min(count, len(run.loaders["train"]))
        with run.trial() as trial:
            batches = list(trial.batches(count, whole=True))
        val = run.loaders["val"]
        run.loaders["val"] = dict.fromkeys(val, batches) if isinstance(val, Mapping) else batches


def _has_task(run: Run) -> bool:
    try:
        return run.task is not None
    except NotAvailableError:
        return False
