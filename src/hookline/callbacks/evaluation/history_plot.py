"""``HistoryPlot``: the metrics of a run as a figure in its folder."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import cycle
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hookline.callbacks._paths import check_folder, output_folder
from hookline.callbacks._plots import (
    BLUE,
    GREEN,
    MAX_PANELS,
    ORANGE,
    check_matplotlib,
    grid_of,
    new_figure,
    read_formats,
    save_figure,
    style_axes,
)
from hookline.callbacks._text import format_count
from hookline.events import Callback
from hookline.progress import Duration, Schedule
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import History, Run

SHARE = 0.02
"""Maximum fraction of the run's time that plotting takes if ``every`` is not given."""

STAGES = ("train", "val", "test")
COLORS = {"train": BLUE, "val": ORANGE, "test": GREEN}
OTHERS = ("#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b", "#79706e")
MAX_MAGNITUDE = 1e100
"""Larger magnitudes are treated as not finite: they would hide all other values of the axis."""
MAX_MARKED_POINTS = 40
"""A curve with at most this many points has a marker at each point."""


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
            The report and most trackers draw these curves themselves.

    Raises:
        SetupError: If matplotlib is not installed.
        ArgumentError: If ``formats`` is empty or has an unknown format.

    Example:
        >>> import torch
        >>> from pathlib import Path
        >>> from tempfile import mkdtemp
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> folder = mkdtemp()
        >>> trainer = Trainer(max_duration="2ep", callbacks=[HistoryPlot(formats=("png", "pdf"))], folder=folder)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        >>> sorted(path.name for path in Path(folder, "plots").iterdir())
        ['history.pdf', 'history.png']
    """

    optional = True
    ranks = "zero"
    reads = ("*",)
    role = "plot"
    """The callback runs last, so that the figure has the values that other callbacks log."""

    def __init__(
        self,
        metrics: str | Iterable[str] = (),
        *,
        folder: str | os.PathLike[str] | None = None,
        formats: str | Iterable[str] = ("png",),
        every: str | Duration | None = None,
        log_y: bool = False,
        log: bool = False,
    ) -> None:
        check_matplotlib("HistoryPlot")
        self.metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        self.formats = read_formats(formats, "HistoryPlot")
        self.folder = None if folder is None else path_to_write(folder, "folder", "HistoryPlot")
        self.every = None if every is None else Duration.parse(every, "HistoryPlot(every=…)")
        self.log_y = log_y
        self.log = log
        self._schedule: Schedule | None = None
        self._due = 0.0
        """Earliest ``perf_counter`` time of the next figure if ``every`` is not given."""

    @property
    def file_name(self) -> str:
        """Name of the files without the suffix: ``history``, or the selected metrics."""
        chosen = "-".join(re.sub(r"[^A-Za-z0-9_.]+", "-", metric).strip("-.") for metric in self.metrics)
        return chosen[:80] or "history"

    def on_setup(self, run: Run) -> None:
        self._schedule, self._due = None, 0.0
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
            for suffix in self.formats:
                save_figure(figure, folder / f"{self.file_name}.{suffix}")
        self._due = perf_counter() + (perf_counter() - began) / SHARE
        return figure


@dataclass(frozen=True, slots=True)
class Curve:
    """Values of one metric in one panel."""

    label: str
    stage: str
    steps: list[int]
    values: list[float]
    is_fine: bool = False
    """True for means over log intervals when the panel also has the means over epochs."""


def panels(history: History, metrics: Sequence[str]) -> dict[str, list[Curve]]:
    """Return the curves of each panel by its title. Metrics that are arrays are left out."""
    names = [name for name in history if _is_wanted(name, metrics) and not isinstance(history[name][-1], list)]
    found: dict[str, list[Curve]] = {}
    for name in sorted(names, key=_place):
        title, stage, label = _parts(name)
        values: list[Any] = history[name]
        fine = stage == "train" and f"{name}_epoch" in names
        found.setdefault(title, []).append(Curve(label, stage, history.steps(name), values, fine))
    return found


def draw(found: dict[str, list[Curve]], title: str, *, log_y: bool) -> Any:
    """Draw the figure."""
    shown = dict(list(found.items())[:MAX_PANELS])
    rows, columns = grid_of(len(shown))
    figure = new_figure(5.6 * columns, 3.4 * rows + 0.4, dpi=110, layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.1, h_pad=0.08, wspace=0.02, hspace=0.03)
    left_out = f" ({MAX_PANELS} of {len(found)} metrics)" if len(found) > MAX_PANELS else ""
    figure.suptitle(title + left_out, x=0.01, ha="left", fontsize=10, color="#777777", parse_math=False)
    for number, (name, curves) in enumerate(shown.items()):
        _panel(figure.add_subplot(rows, columns, number + 1), name, curves, log_y=log_y)
    return figure


def _panel(axes: Any, title: str, curves: list[Curve], *, log_y: bool) -> None:
    """Draw the curves of one panel."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if log_y and all(value > 0 for curve in curves for value in curve.values if math.isfinite(value)):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    colors: dict[str, str] = {}
    others = cycle(OTHERS)
    for curve in curves:
        if curve.label not in colors:
            own = COLORS.get(curve.stage)
            colors[curve.label] = next(others) if own is None or own in colors.values() else own
        _curve(axes, curve, colors[curve.label])
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", parse_math=False)
    axes.set_xlabel("step", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: format_count(step, digits=6)))
    style_axes(axes)
    legend = axes.legend(
        loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, frameon=False, fontsize=8, handlelength=1.4
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _curve(axes: Any, curve: Curve, color: str) -> None:
    """Draw one curve, with a cross at the bottom of the panel for each value that is not finite."""
    finite = [abs(value) < MAX_MAGNITUDE for value in curve.values]
    values = [value if is_finite else math.nan for value, is_finite in zip(curve.values, finite, strict=True)]
    last = f"{curve.values[-1]:.4g}"
    look: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.45} if curve.is_fine else {"linewidth": 1.7}
    if len(values) <= MAX_MARKED_POINTS and not curve.is_fine:
        look |= {"marker": "o", "markersize": 6 if len(values) == 1 else 3.5}
    # Matplotlib omits labels that start with an underscore from the legend. A space keeps the user's labels.
    label = "_" if curve.is_fine else f"{' ' * curve.label.startswith('_')}{curve.label} {last}"
    axes.plot(curve.steps, values, color=color, label=label, **look)
    odd = [step for step, is_finite in zip(curve.steps, finite, strict=True) if not is_finite]
    if odd:
        bottom = axes.get_xaxis_transform()
        axes.plot(odd, [0.03] * len(odd), "x", color=color, markersize=6, transform=bottom, label="not finite")


def _parts(name: str) -> tuple[str, str, str]:
    """Return the panel, the stage and the label of a metric."""
    first, _, rest = name.partition("/")
    if first not in STAGES:
        return (first, "", rest) if rest else (name, "", name)
    loader, _, last = rest.rpartition("/")
    is_epoch = first == "train" and last.endswith("_epoch")
    return last.removesuffix("_epoch") if is_epoch else last, first, f"{first}/{loader}" if loader else first


def _place(name: str) -> tuple[Any, ...]:
    """Sort key: losses, then other metrics of a stage, then the rest; train, val, test."""
    title, stage, label = _parts(name)
    return not stage, title != "loss", title, STAGES.index(stage) if stage else 0, label, name


def _is_wanted(name: str, metrics: Iterable[str]) -> bool:
    """True if the metric is selected, or belongs to a stage or is a learning rate if none is."""
    first = name.partition("/")[0]
    if not metrics:
        return first in (*STAGES, "lr")
    return any(fnmatchcase(name, metric) or metric == _parts(name)[0] for metric in metrics)
