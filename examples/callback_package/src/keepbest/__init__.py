"""A callback in its own package. It uses only the public fields and methods of ``run``."""

from __future__ import annotations

import os

from matplotlib.figure import Figure
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

import hookline as hl


class KeepBest(hl.Callback):
    """Save the weights with the lowest metric, stop without improvement, and load the best weights at the end.

    Args:
        monitor: Name of the metric.
        patience: Number of evaluations without improvement after which training stops.
        file: File of the weights, inside the folder of the run.

    Example:
        >>> trainer = hl.Trainer(max_duration="50ep", callbacks=[KeepBest("val/loss", patience=5)])
    """

    writes = ("weights",)  # The figure is not a metric.
    role = "select"
    state = ("best", "weights", "waited", "curve")
    state_depends_on = ("monitor",)
    settings = ("patience",)

    def __init__(self, monitor: str = "val/loss", patience: int = 3, file: str = "best.safetensors") -> None:
        if patience < 1:
            raise ValueError(f"KeepBest(patience={patience}): must be >= 1.")
        self.monitor = monitor
        self.patience = patience
        self.file = file
        self.reads = (monitor,)
        self.best: float | None = None
        self.weights: dict[str, Tensor] = {}
        self.waited = 0
        self.curve: list[tuple[int, float]] = []

    def on_setup(self, run: hl.Run) -> None:
        if run.is_training_run:
            run.path(self.file)  # Raises if the run has no folder.

    def on_train_start(self, run: hl.Run) -> None:
        self._save(run)  # After a resume, the file may be newer than the checkpoint, or in another folder.

    def on_rollback(self, run: hl.Run) -> None:
        self._save(run)  # The rollback has restored earlier weights.

    def on_eval_end(self, run: hl.Run) -> None:
        value = run.metrics.new().get(self.monitor)  # The same number on all ranks.
        if value is None or run.stage != "val" or not run.is_training_run:
            return
        self.curve.append((run.clock.step, value))
        run.log_figure("best/curve", self._figure())
        if self.best is None or value < self.best:
            self.best, self.waited = value, 0
            self.weights = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
            self._save(run)
        else:
            self.waited += 1
            if self.waited >= self.patience:  # `hookline set` may have lowered it.
                run.stop(f"{self.monitor} has not improved on {self.best:.3g} for {self.waited} evaluations")

    def on_train_end(self, run: hl.Run) -> None:
        if run.ending is not None and run.ending.can_resume:
            return  # Training is not finished: the resumed run loads the best weights.
        if self.weights:
            run.model.load_state_dict(self.weights)

    def _save(self, run: hl.Run) -> None:
        """Make the file equal to the state. All ranks call it, because they gather a sharded model together."""
        whole = {name: _whole(tensor) for name, tensor in self.weights.items()}
        if run.rank != 0:
            return
        file = run.path(self.file)
        if whole:
            partial = file.with_name(f"{file.name}.partial")
            save_file(whole, partial)
            os.replace(partial, file)  # A reader sees the old file or the new file, and never a part of one.
        else:
            file.unlink(missing_ok=True)

    def _figure(self) -> Figure:
        figure = Figure()
        axes = figure.subplots()
        axes.plot([step for step, _ in self.curve], [value for _, value in self.curve], marker="o")
        axes.set(xlabel="step", ylabel=self.monitor)
        return figure


def _whole(tensor: Tensor) -> Tensor:
    """Return a full tensor. Each rank holds only a shard of a ``DTensor``."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
