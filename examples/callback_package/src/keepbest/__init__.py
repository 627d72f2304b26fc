"""A callback in its own package. It uses only the public fields and methods of ``run``."""

from __future__ import annotations

from matplotlib.figure import Figure
from safetensors.torch import save_file
from torch import Tensor

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

    writes = ("weights",)
    role = "select"
    state = ("best", "weights", "waited", "curve")
    state_depends_on = ("monitor",)

    def __init__(self, monitor: str = "val/loss", patience: int = 3, file: str = "best.safetensors") -> None:
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

    def on_eval_end(self, run: hl.Run) -> None:
        if run.stage != "val" or not run.is_training_run:
            return
        value = run.metrics[self.monitor]  # The same number on all ranks.
        self.curve.append((run.clock.step, value))
        run.log_figure("best/curve", self._figure())
        if self.best is None or value < self.best:
            self.best, self.waited = value, 0
            self.weights = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
            self._save(run)
        else:
            self.waited += 1
            if self.waited == self.patience:
                run.stop(f"{self.monitor} has not improved on {self.best:.3g} for {self.waited} evaluations")

    def on_train_end(self, run: hl.Run) -> None:
        if self.weights:
            run.model.load_state_dict(self.weights)
            self._save(run)  # After a resume in another folder, the file is not there yet.

    def _save(self, run: hl.Run) -> None:
        if run.rank == 0:
            save_file(self.weights, run.path(self.file))

    def _figure(self) -> Figure:
        figure = Figure()
        axes = figure.subplots()
        axes.plot([step for step, _ in self.curve], [value for _, value in self.curve], marker="o")
        axes.set(xlabel="step", ylabel=self.monitor)
        return figure
