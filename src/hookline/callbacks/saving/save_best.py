"""``SaveBest``: save the best weights of a run, and load them into the model at the end."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from hookline.callbacks._ending import has_returned, report_restored
from hookline.callbacks._paths import check_own, check_writable, written_path
from hookline.callbacks.saving._weights import BestSoFar, copy_of, load_into, whole_weights, write_weights
from hookline.distributed.dtensors import version_of
from hookline.errors import ArgumentError
from hookline.events import Callback
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class SaveBest(Callback):
    """Save the weights with the best value of a metric to one file.

    The callback decides after each evaluation, or at the end of each epoch for a ``train/…`` metric. It saves the
    weights that were evaluated: with ``EMA``, the average. The metadata of the file has the step and the value.

    Args:
        monitor: Name of the metric, for example ``"val/loss"``. A value that is not finite is never the best.
        mode: ``"min"`` or ``"max"``. ``None``: inferred from the metric's name (``loss``, ``acc``, …).
        path: A ``.safetensors`` file, absolute or inside the run's folder.
        load_best: Load the best weights into the model when ``fit`` returns, also after Ctrl-C, and use them for the
            test at the end of ``fit``. The final checkpoint still has the weights of the last step.
        min_delta: Smallest improvement. A value must be better than the best value by more than this.

    Raises:
        ArgumentError: If an argument is invalid, or ``mode`` cannot be inferred from the metric's name.
        SetupError: If the file cannot be written, or another ``SaveBest`` of the run has the same path.

    Example:
        >>> import tempfile, torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     best = SaveBest("val/loss")
        ...     trainer = Trainer(max_duration="3ep", folder=folder, callbacks=[best])
        ...     loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        ...     result = trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        ...     print((result.folder / "best.safetensors").exists(), best.best_step)
        True 12
    """

    role = "select"
    state_depends_on = ("monitor", "mode")

    def __init__(
        self,
        monitor: str = "val/loss",
        *,
        mode: Literal["min", "max"] | None = None,
        path: str | os.PathLike[str] = "best.safetensors",
        load_best: bool = True,
        min_delta: float = 0.0,
    ) -> None:
        self.path = path_to_write(path, "path", "SaveBest")
        if self.path.suffix != ".safetensors":
            raise ArgumentError(f"SaveBest(path={str(path)!r}): must end with '.safetensors', the format of the file.")
        self._best = BestSoFar("SaveBest", monitor, mode, min_delta)
        self.monitor = monitor
        self.mode = self._best.mode
        self.load_best = load_best
        self.reads = (monitor, "weights")
        self.writes = ("weights",) if load_best else ()
        self._last: _Last | None = None
        self._swap = ExitStack()
        self._file: Path | None = None
        self._on_disk: tuple[float | None, int] | None = None
        """Value and step of the weights that this process has written."""
        self._is_trained = False

    @property
    def best(self) -> float | None:
        """Best value so far. ``None`` before the first value."""
        return self._best.value

    @property
    def best_step(self) -> int:
        """Step of the best value. 0 before the first value."""
        return self._best.step

    def state_dict(self) -> dict[str, Any]:
        return self._best.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best.load_state_dict(state)

    # -- when ----------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        self._is_trained = False
        self._file = written_path(run, self.path, "path", "SaveBest")
        check_writable(self._file, "SaveBest")
        check_own(run, self, SaveBest, lambda its: [written_path(run, its.path, "path", "SaveBest")], "path")
        if self._last is not None and self._last.restore(run.model):
            self._last = None

    def on_model_ready(self, run: Run) -> None:
        if self._last is not None and run.is_training_run:  # The model has the layers of training by now.
            if not self._last.restore(run.model):
                logger.info("SaveBest leaves the weights as they are: they were changed since the last fit")
            self._last = None
        self._write_if_other(run)  # A resume may have loaded another best value.

    def on_rollback(self, run: Run) -> None:
        self._write_if_other(run)

    def on_eval_end(self, run: Run) -> None:
        if self._best.update_after_eval(run):
            self._write_if_other(run)

    def on_epoch_end(self, run: Run) -> None:
        if self._best.update_after_epoch(run):
            self._write_if_other(run)

    def on_train_end(self, run: Run) -> None:
        self._is_trained = True

    def around_eval(self, run: Run) -> Iterator[None]:
        """Run the test at the end of ``fit`` with the weights that ``fit`` returns."""
        is_last = run.stage == "test" and run.is_training_run and self._is_trained
        weights = self._best.to_use(run) if is_last and self.load_best else None
        if weights is None:
            yield
            return
        with self._swapped(run, weights):
            yield

    def on_fit_end(self, run: Run) -> None:
        """Swap the best weights in.

        The final checkpoint takes the swap into account and saves the weights of the last step.
        """
        self._write_if_other(run)
        goes_on = run.ending is not None and run.ending.can_resume  # The resumed run may still measure the metric.
        if self.best is None and self._is_trained and not goes_on:
            logger.warning("SaveBest has saved nothing: there was no finite %s to decide on in this run", self.monitor)
        weights = self._best.to_use(run) if self.load_best else None
        if weights is not None:
            self._swap.enter_context(self._swapped(run, weights))

    def on_teardown(self, run: Run) -> None:
        self._swap.close()
        weights = self._best.to_use(run) if self.load_best else None
        if weights is not None and has_returned(run):
            last = _Last(run.model)
            load_into(run.model, weights)
            last.note(run.model)
            self._last = last
            report_restored(run, self.best_step, self.monitor, self.best)

    # -- what ----------------------------------------------------------------------------------

    def _swapped(self, run: Run, weights: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Return a context in which the model has these weights."""
        own = {name for name, _ in (*run.model.named_parameters(), *run.model.named_buffers())}
        return run.swap_weights({name: value for name, value in weights.items() if name in own})

    def _write_if_other(self, run: Run) -> None:
        """Write the best weights if the file has others, also after a resume or a rollback."""
        now = (self.best, self.best_step)
        if self._file is None or self._best.weights is None or self._on_disk == now:
            return
        self._on_disk = now
        weights = whole_weights(self._best.weights, keep=run.rank == 0)  # This is a collective call.
        if run.rank == 0:
            notes = {"step": str(self.best_step), "monitor": self.monitor, "value": repr(self.best)}
            write_weights(self._file, weights, notes)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, which has no model yet."""
        return {**self.__dict__, "_last": None, "_swap": ExitStack()}


class _Last:
    """Weights of the last step, for a ``fit`` that continues after the best weights were loaded."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._weights = copy_of(model)
        self._version: tuple[tuple[int, int], ...] = ()

    def note(self, model: nn.Module) -> None:
        """Remember the versions of the tensors after the best weights were loaded."""
        self._version = _version(model)

    def restore(self, model: nn.Module) -> bool:
        """Restore the weights if the model is the same and unchanged. Return whether it is."""
        is_untouched = self._model() is model and _version(model) == self._version
        if is_untouched:
            load_into(model, self._weights)
        return is_untouched


def _version(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """Return the identity and version of each parameter and buffer."""
    return tuple(map(version_of, (*model.parameters(), *model.buffers())))
