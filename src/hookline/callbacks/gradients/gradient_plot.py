"""``GradientPlot``: plot the distribution of the gradients of each layer."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hookline.callbacks._paths import check_writable, written_path
from hookline.callbacks._plots import (
    BLUE,
    GREY,
    MAX_PANELS,
    RED,
    check_matplotlib,
    grid_of,
    new_figure,
    quiet_fonts,
    read_formats,
    save_figure,
    style_axes,
)
from hookline.callbacks._sampled_steps import SampledGradients
from hookline.callbacks.gradients._layers import (
    REST,
    Layers,
    by_layer,
    check_layers,
    chosen_by,
    values_of,
    with_gradients,
)
from hookline.distributed.dtensors import whole
from hookline.errors import ArgumentError
from hookline.events import Callback
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.progress import Duration
    from hookline.run import Run

NAME = "gradients/distribution"

BINS = 61
"""Number of bins. It is odd, so that zero is in the middle of a bin."""


class GradientPlot(Callback):
    """Plot a histogram of the gradients of each layer.

    The figure is logged as ``gradients/distribution``. With several optimizers, each has a figure
    ``gradients/distribution/<optimizer>``. Gradients are measured before clipping. A figure has at most 24 panels.
    The callback needs matplotlib (``hookline[plots]``) and does not use pyplot.

    Args:
        every: How often to plot. The first step is always plotted. ``"1ep"`` plots the last step of each epoch.
        layers: Layers to plot. ``True``: all. Or names and patterns. A name includes everything inside it.
        folder: Folder to also write the figures to, as ``gradients-00000100.png``. A relative path is in the run's
            folder. ``None``: only log the figures.
        formats: File formats in ``folder``: ``"png"``, ``"pdf"``, ``"svg"``, or several of them.

    Raises:
        ArgumentError: If a format is unknown, or ``layers`` is ``False``.
        SetupError: If matplotlib is missing, a pattern matches no layer, or ``folder`` is not writable.

    Example:
        >>> import torch
        >>> from tempfile import mkdtemp
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> folder = mkdtemp()
        >>> trainer = Trainer(max_duration="2ep", callbacks=[GradientPlot()], folder=folder)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> sorted(path.name for path in Path(folder, "media/gradients/distribution").iterdir())
        ['step-00000001.png', 'step-00000004.png', 'step-00000008.png']
    """

    optional = True
    reads = ("gradients",)
    writes = (NAME, f"{NAME}/*")
    shares_state = True

    def __init__(
        self,
        every: str | Duration = "1ep",
        *,
        layers: Layers = True,
        folder: str | os.PathLike[str] | None = None,
        formats: str | Iterable[str] = ("png",),
    ) -> None:
        check_matplotlib("GradientPlot")
        self.formats = read_formats(formats, "GradientPlot")
        if layers is False:
            raise ArgumentError("GradientPlot(layers=False): leaves nothing to draw. Give True or names of layers.")
        self._sampling = SampledGradients("GradientPlot", every)
        self._patterns = chosen_by(layers, "GradientPlot")
        self.every = self._sampling.every
        self.layers = layers
        self.folder = None if folder is None else path_to_write(folder, "folder", "GradientPlot")
        self._folder: Path | None = None
        self._measured: dict[str, Tensor] = {}

    def on_setup(self, run: Run) -> None:
        self._sampling.begin(run)
        self._measured = {}
        check_layers(run.model, self._patterns, "GradientPlot")
        self._folder = None
        if self.folder is not None and run.is_training_run and not run.rank:
            self._folder = written_path(run, self.folder, "folder", "GradientPlot")
            check_writable(self._folder / "plot", "GradientPlot(folder=…)")
            self._folder.mkdir(parents=True, exist_ok=True)

    def on_gradients_ready(self, run: Run) -> None:
        if self._sampling.take(run):
            groups = by_layer(with_gradients(run.optimizer), run.model, self._patterns)
            self._measured = {
                layer: measure([whole(values_of(p.grad)) for p in its if p.grad is not None])
                for layer, its in groups.items()
                if layer != REST
            }

    def on_optimizer_step_end(self, run: Run) -> None:
        if self._measured:
            self._draw(run)

    def on_step_skipped(self, run: Run) -> None:
        self._sampling.skipped(run)
        self._measured = {}

    def on_teardown(self, run: Run) -> None:
        self._measured = {}

    def state_dict(self) -> dict[str, Any]:
        return self._sampling.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sampling.load_state_dict(state)

    def _draw(self, run: Run) -> None:
        """Draw, log and write the figure."""
        step, of = run.clock.step + 1, ""
        if len(run.optimizers) > 1:
            of = run.optimizer_name
        measured, self._measured = self._measured, {}
        if run.rank:
            # All ranks gather sharded gradients, but only rank zero draws.
            return
        spreads = {layer: read(its) for layer, its in measured.items()}
        figure = draw(spreads, f"gradients of {run.project}/{run.name}, step {step:,}{of and f', {of}'}")
        with quiet_fonts():
            run.log_figure(f"{NAME}/{of}" if of else NAME, figure, step=step)
        if self._folder is not None:
            for suffix in self.formats:
                save_figure(figure, self._folder / f"gradients-{step:08d}{of and f'-{of}'}.{suffix}")


@dataclass(frozen=True, slots=True)
class Spread:
    """Histogram of the gradients of one layer, from ``-largest`` to ``largest``."""

    counts: tuple[float, ...]
    largest: float
    std: float
    zeros: float
    """Fraction of the gradient elements that are exactly zero."""
    odd: int
    """Number of elements that are NaN or infinite."""


def measure(gradients: Sequence[Tensor]) -> Tensor:
    """Return the values of a ``Spread`` as one tensor, without synchronizing with the device."""
    values = torch.cat([gradient.flatten() for gradient in gradients])
    if values.is_complex():
        values = torch.view_as_real(values).flatten()
    finite = values.isfinite()
    sound = torch.where(finite, values, 0)
    largest = sound.abs().amax()
    # The value 2 is outside the range of the histogram, so it is not counted.
    scaled = torch.where(finite, sound / torch.where(largest == 0, 1, largest), 2)
    counts = torch.histc(scaled, BINS, -1, 1)
    odd = (~finite).sum()
    present = (values.numel() - odd).clamp(min=1)
    mean = sound.sum() / present
    std = (torch.where(finite, sound - mean, 0).square().sum() / present).sqrt()
    zeros = (values == 0).sum() / present
    return torch.cat([counts, torch.stack([part.to(counts) for part in (largest, std, zeros, odd)])])


def read(measured: Tensor) -> Spread:
    """Read a measured tensor from the device."""
    *counts, largest, std, zeros, odd = measured.tolist()
    return Spread(tuple(counts), largest, std, zeros, int(odd))


def draw(spreads: dict[str, Spread], title: str) -> Any:
    """Draw the figure."""
    shown = dict(list(spreads.items())[:MAX_PANELS])
    rows, columns = grid_of(len(shown))
    width, height = 3.9 * columns, 2.1 * rows + 0.4
    figure = new_figure(width, height, dpi=100)
    # The layout is fixed, in inches, because an automatic layout takes longer than drawing.
    left, right, top, bottom = 0.5 / width, 1 - 0.25 / width, 1 - 0.6 / height, 0.3 / height
    figure.subplots_adjust(left, bottom, right, top, wspace=0.22, hspace=0.42)
    left_out = f" ({MAX_PANELS} of {len(spreads)} layers; choose with layers=)" if len(spreads) > MAX_PANELS else ""
    figure.suptitle(
        title + left_out,
        x=0.1 / width,
        y=1 - 0.08 / height,
        ha="left",
        va="top",
        fontsize=10,
        color=GREY,
        parse_math=False,
    )
    for number, (layer, spread) in enumerate(shown.items()):
        _panel(figure.add_subplot(rows, columns, number + 1), layer, spread)
    return figure


def _panel(axes: Any, layer: str, spread: Spread) -> None:
    """Draw the histogram of one layer."""
    half = spread.largest or 1.0
    edges = [half * (2 * number / BINS - 1) for number in range(BINS + 1)]
    axes.stairs([math.log10(1 + count) for count in spread.counts], edges, fill=True, color=BLUE)
    powers = range(max(1, math.ceil(math.log10(1 + max(spread.counts)))) + 1)
    axes.set_yticks([0.0, *(math.log10(1 + 10**power) for power in powers)], ["0", *(f"{10**p:,}" for p in powers)])
    axes.set_ylim(0, math.log10(1 + 2 * max(1, *spread.counts)))
    axes.set_xlim(-half, half)
    axes.set_xticks([-half, 0.0, half], [f"{-half:.2g}", "0", f"{half:.2g}"])
    axes.set_title(layer, loc="left", y=1.0, fontsize=9, fontweight="bold", parse_math=False)
    parts = [f"std {spread.std:.2g}"]
    parts += [f"{spread.zeros:.0%} zeros"] if spread.zeros else []
    parts += [f"{spread.odd} not finite"] if spread.odd else []
    color = RED if spread.odd else GREY
    axes.set_title(", ".join(parts), loc="right", y=1.0, fontsize=8, color=color)
    style_axes(axes, label_size=7)
