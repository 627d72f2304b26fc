"""``LimitBatches``: shorten epochs and evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run


class LimitBatches(Callback):
    """Limit the number of batches per epoch, evaluation, test or prediction.

    An integer is a number of batches. A float is a fraction of each loader, from above 0.0 to 1.0, rounded down to at
    least one batch. A fraction needs a loader with a length. The remaining batches are not loaded. To skip an
    evaluation, pass no loader for it: 0 is not allowed. To use the same batches in every epoch, use
    ``OverfitBatches``.

    Args:
        train: Limit of each training epoch. ``None``: all batches.
        val: Limit of each validation loader. ``None``: all batches.
        test: Limit of each test loader. ``None``: all batches.
        predict: Limit of each prediction. ``None``: all batches.
        final: ``False``: the evaluation at the end of training is not limited.

    Raises:
        ArgumentError: If no limit is given, or a limit is out of range.
        SetupError: If a limit is a fraction and the loader has no length.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="2ep", callbacks=[LimitBatches(train=3, val=0.25)], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(10), tiny_data(8, seed=1), loss=loss, optimizer=optimizer)
        >>> result.clock.step, result.history.steps("val/loss")
        (6, [3, 6])
    """

    reads = ("*",)
    """The callback runs last, so that it limits the loaders that the other callbacks have set."""
    writes = ("batch",)

    def __init__(
        self,
        train: int | float | None = None,
        val: int | float | None = None,
        test: int | float | None = None,
        predict: int | float | None = None,
        *,
        final: bool = True,
    ) -> None:
        given = {"train": train, "val": val, "test": test, "predict": predict}
        self.final = final
        self.limits = {stage: _checked(stage, limit) for stage, limit in given.items() if limit is not None}
        if not self.limits:
            raise ArgumentError("LimitBatches(): no limit is given. Write for example LimitBatches(train=10, val=0.1).")

    def on_setup(self, run: Run) -> None:
        for stage, limit in self.limits.items():
            if isinstance(limit, int):
                run.limit_batches(stage, limit)
            else:
                self._set(run, stage)

    def on_train_start(self, run: Run) -> None:
        self._set(run, "train")

    def on_eval_loader_start(self, run: Run) -> None:
        if not self.final and run.stage == "val" and run.is_training_run and run.ending is not None:
            run.limit_batches("val", None)
        else:
            self._set(run, run.stage, run.loader_name)

    def on_predict_start(self, run: Run) -> None:
        self._set(run, "predict")

    def _set(self, run: Run, stage: str, name: str | None = None) -> None:
        """Set the limit of a stage that was given as a fraction.

        Before a loader is read, the limit is the fraction of the longest loader of the stage.
        """
        share, loaders = self.limits.get(stage), run.loaders.get(stage)
        if isinstance(share, float) and loaders is not None:
            named = loaders if isinstance(loaders, Mapping) else {None: loaders}
            read = named.values() if name is None else [named[name]]
            run.limit_batches(stage, max(_share_of(stage, share, loader) for loader in read))


def _checked(stage: str, limit: int | float) -> int | float:
    """Return the limit if it is a valid number of batches or fraction."""
    where = f"LimitBatches({stage}={limit!r})"
    if isinstance(limit, int) and limit < 1:
        raise ArgumentError(f"{where}: must be >= 1. To leave {stage} out, pass no loader for it.")
    if isinstance(limit, float) and not 0 < limit <= 1:
        raise ArgumentError(
            f"{where}: a fraction is above 0.0 and at most 1.0. Give an integer for a number of batches."
        )
    return limit


def _share_of(stage: str, share: float, loader: Any) -> int:
    """Return the fraction of a loader as a number of batches."""
    try:
        length = len(loader)
    except (TypeError, NotImplementedError):
        raise SetupError(
            f"LimitBatches({stage}={share}) is a fraction, and the {stage} loader, a {type(loader).__name__}, has no "
            f"length; give a number of batches"
        ) from None
    # Correct rounding errors: 100 * 0.29 is 28.999…
    return max(1, int(length * share + 1e-9))
