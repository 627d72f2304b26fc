"""``HistoryPlot``: the metrics of a run as a figure in its folder."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hookline.callbacks._paths import check_folder, output_folder
from hookline.callbacks.evaluation.curves import draw, panels
from hookline.errors import RegistrationError, SetupError
from hookline.events import Callback
from hookline.progress import Duration, Schedule
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import Run

FORMATS = ("png", "pdf", "svg")
SHARE = 0.02
"""Maximum fraction of the run's time that plotting takes if ``every`` is not given."""


class HistoryPlot(Callback):
    """Plot the metrics of the run and save the figure in the run's folder.

    The figure has one panel per quantity, which shows training and evaluations together: ``train/loss``,
    ``train/loss_epoch`` and ``val/loss`` share a panel. A cross at the bottom marks a value that is NaN or
    infinite. Metrics that are arrays are left out. The last figure is saved when the fit ends. The callback
    needs matplotlib (``hookline[plots]``) and does not use pyplot.

    Args:
        metrics: Metrics to plot: names (``"val/loss"``), quantities (``"loss"``) or patterns (``"memory/*"``).
            Default: all numbers of ``train``, ``val`` and ``test``, and the learning rates. The file is named
            after the selected metrics.
        folder: Folder for the files. ``None``: ``plots`` in the run's folder. A relative path is relative to
            the run's folder.
        formats: File formats: ``"png"``, ``"pdf"``, ``"svg"``.
        every: How often to save the figure, for example ``"1ep"``. ``None``: at the end of each epoch, but
            using at most 2 % of the run's time.
        log_y: Use a logarithmic y-axis in panels whose values are all positive.
        log: Also log the last figure as ``plots/history``, or under the name of the file, for sinks and the report.

    Raises:
        SetupError: If matplotlib is not installed.
        RegistrationError: If ``formats`` is empty or has an unknown format.

    Example:
        >>> import torch
        >>> from tempfile import mkdtemp
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> folder = mkdtemp()
        >>> trainer = Trainer(max_duration="2ep", callbacks=[HistoryPlot(formats=("png", "pdf"))], folder=folder)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> sorted(path.name for path in Path(folder, "plots").iterdir())
        ['history.pdf', 'history.png']
    """

    optional = True
    ranks = "zero"
    reads = ("*",)
    """The callback runs last, so that the figure has the values that other callbacks log."""

    def __init__(
        self,
        metrics: str | Iterable[str] = (),
        *,
        folder: str | os.PathLike[str] | None = None,
        formats: str | Iterable[str] = ("png",),
        every: str | Duration | None = None,
        log_y: bool = False,
        log: bool = True,
    ) -> None:
        if find_spec("matplotlib") is None:
            raise SetupError("HistoryPlot needs matplotlib: pip install 'hookline[plots]'")
        self.metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        self.formats = (formats,) if isinstance(formats, str) else tuple(formats)
        if not self.formats or set(self.formats) - set(FORMATS):
            raise RegistrationError(f"HistoryPlot(formats={self.formats!r}): choose from {', '.join(FORMATS)}")
        self.folder = None if folder is None else path_to_write(folder, "folder", "HistoryPlot")
        self.every = None if every is None else Duration.parse(every, "HistoryPlot(every=…)")
        self.log_y = log_y
        self.log = log
        self._forget()

    def _forget(self) -> None:
        """Reset the state of a run."""
        self._schedule: Schedule | None = None
        self._due = 0.0
        """Earliest ``perf_counter`` time of the next figure if ``every`` is not given."""

    @property
    def file_name(self) -> str:
        """Name of the files without the suffix: ``history``, or the selected metrics."""
        chosen = "-".join(re.sub(r"[^A-Za-z0-9_.]+", "-", metric).strip("-.") for metric in self.metrics)
        return chosen[:80] or "history"

    def on_setup(self, run: Run) -> None:
        self._forget()
        if run.is_training_run:
            check_folder(run, self.folder, "HistoryPlot")
        if self.every is not None and (self.every.unit != "dur" or run.max_duration is not None):
            self._schedule = Schedule(self.every.of(run.max_duration))

    def on_fit_start(self, run: Run) -> None:
        if self._schedule is not None:
            self._schedule.fired(run.clock)  # A resumed run already has its figure.

    def on_metrics_ready(self, run: Run) -> None:
        if self._schedule is not None and self._schedule.every.unit != "ep":
            self._draw_if_due(run, self._schedule)

    def on_epoch_end(self, run: Run) -> None:
        if self._schedule is not None:
            self._draw_if_due(run, self._schedule)
        elif self.every is None and perf_counter() >= self._due:
            self._draw(run)

    def on_fit_end(self, run: Run) -> None:
        figure = self._draw(run)
        if self.log and figure is not None:
            run.log_figure(f"plots/{self.file_name}", figure)

    def _draw_if_due(self, run: Run, schedule: Schedule) -> None:
        """Draw the figure if the schedule is due."""
        if schedule.due(run.clock):
            schedule.fired(run.clock)
            self._draw(run)

    def _draw(self, run: Run) -> Any:
        """Draw, save and return the figure, or return ``None`` if no figure is needed."""
        folder = output_folder(run, self.folder, "plots", "HistoryPlot")
        found = panels(run.history, self.metrics)
        if not found or not (folder or self.log):
            return None
        began = perf_counter()
        figure = draw(found, f"{run.project}/{run.name}, step {run.clock.step:,}", log_y=self.log_y)
        if folder is not None:
            self._save(figure, folder)
        self._due = perf_counter() + (perf_counter() - began) / SHARE
        return figure

    def _save(self, figure: Any, folder: Path) -> None:
        """Save the figure in every format."""
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in self.formats:
            path = folder / f"{self.file_name}.{suffix}"
            fresh = path.with_name(f".{path.name}")
            with warnings.catch_warnings():  # The font may lack characters of a metric's name.
                warnings.simplefilter("ignore")
                figure.savefig(fresh, format=suffix)
            fresh.replace(path)  # An image viewer may have the file open, so it is replaced atomically.
