"""``HistoryPlot``: the curves of a run as a picture."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hookline.callbacks.evaluation.curves import draw, panels
from hookline.callbacks.run_paths import check_dirpath, output_folder
from hookline.errors import RegistrationError, SetupError
from hookline.events import Callback
from hookline.progress import Duration, Schedule
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import Run

FORMATS = ("png", "pdf", "svg")
SHARE = 0.02
"""So much of the time it takes at most, unless ``every`` is given."""


class HistoryPlot(Callback):
    """Draws the curves of the run into ``plots/history.png`` in its folder, over and over, and when the fit ends.

    A panel for each quantity has training and evaluations in one: ``train/loss``, ``train/loss_epoch`` and
    ``val/loss`` together. ``metrics`` chooses: names (``"val/loss"``), quantities (``"loss"``), patterns
    (``"memory/*"``); without any, all numbers of ``train``, ``val`` and ``test``, and learning rates. A value that is
    NaN or infinite is a cross at the bottom, an array is left out.

    ``formats`` are ``"png"``, ``"pdf"`` and ``"svg"``; ``dirpath`` is another folder; a relative path is in the run's.
    ``every`` is how often it is drawn; by default at the end of each epoch, but in no more than two per cent of the
    time. ``log_y`` draws a panel whose values are all positive on a logarithmic scale. With ``log`` the last figure is
    also logged, as ``plots/history``, so that sinks have it too. It needs matplotlib (``hookline[plots]``), and leaves
    pyplot alone.

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
    """It runs last, and so draws what the others have logged."""

    def __init__(
        self,
        metrics: str | Iterable[str] = (),
        *,
        dirpath: str | os.PathLike[str] | None = None,
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
        self.dirpath = None if dirpath is None else path_to_write(dirpath, "dirpath", "HistoryPlot")
        self.every = None if every is None else Duration.parse(every, "HistoryPlot(every=…)")
        self.log_y = log_y
        self.log = log
        self._forget()

    def _forget(self) -> None:
        self._schedule: Schedule | None = None
        self._due = 0.0
        """The moment from which it may be drawn again, if ``every`` is not given."""

    @property
    def file_name(self) -> str:
        """``history``, or the names that were chosen."""
        chosen = "-".join(re.sub(r"[^A-Za-z0-9_.]+", "-", metric).strip("-.") for metric in self.metrics)
        return chosen[:80] or "history"

    def on_setup(self, run: Run) -> None:
        self._forget()
        if run.is_training_run:
            check_dirpath(run, self.dirpath, "HistoryPlot")
        if self.every is not None and (self.every.unit != "dur" or run.max_duration is not None):
            self._schedule = Schedule(self.every.of(run.max_duration))

    def on_fit_start(self, run: Run) -> None:
        if self._schedule is not None:
            self._schedule.fired(run.clock)  # a run that goes on has its picture

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
        if schedule.due(run.clock):
            schedule.fired(run.clock)
            self._draw(run)

    def _draw(self, run: Run) -> Any:
        """The figure, which is written; ``None`` as long as there is nothing to draw, or nobody to draw it for."""
        folder = output_folder(run, self.dirpath, "plots", "HistoryPlot")
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
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in self.formats:
            path = folder / f"{self.file_name}.{suffix}"
            fresh = path.with_name(f".{path.name}")
            with warnings.catch_warnings():  # a name may have letters that the font has not
                warnings.simplefilter("ignore")
                figure.savefig(fresh, format=suffix)
            fresh.replace(path)  # in one piece: somebody may be looking at it
