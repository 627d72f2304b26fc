"""``GradientPlot``: plot the distribution of the gradients of each layer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.callbacks._paths import check_writable, written_path
from hookline.callbacks.gradients._layers import (
    REST,
    Layers,
    by_layer,
    check_layers,
    chosen_by,
    values_of,
    with_gradients,
)
from hookline.callbacks.gradients.sampling import Sampling
from hookline.callbacks.gradients.spread import draw, measure, read
from hookline.callbacks.whole import whole
from hookline.errors import RegistrationError, SetupError
from hookline.events import Callback
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from torch import Tensor

    from hookline.progress import Duration
    from hookline.run import Run

FORMATS = ("png", "pdf", "svg")
NAME = "gradients/distribution"


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
        RegistrationError: If a format is unknown, or ``layers`` is ``False``.
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
        if find_spec("matplotlib") is None:
            raise SetupError("GradientPlot needs matplotlib: pip install 'hookline[plots]'")
        self.formats = (formats,) if isinstance(formats, str) else tuple(formats)
        if not self.formats or not set(self.formats) <= set(FORMATS):
            raise RegistrationError(f"GradientPlot(formats={self.formats!r}): choose from {', '.join(FORMATS)}")
        if layers is False:
            raise RegistrationError("GradientPlot(layers=False): there would be nothing to draw; give True or names")
        self._sampling = Sampling("GradientPlot", every)
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
        if self._sampling.wants(run):
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
        # matplotlib warns about characters that are missing in the font.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.log_figure(f"{NAME}/{of}" if of else NAME, figure, step=step)
            if self._folder is not None:
                for suffix in self.formats:
                    figure.savefig(self._folder / f"gradients-{step:08d}{of and f'-{of}'}.{suffix}", format=suffix)
