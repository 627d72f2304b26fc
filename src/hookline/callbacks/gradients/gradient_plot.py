"""``GradientPlot``: how the gradients of each layer are spread, as a picture."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.callbacks.gradients.layers import (
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
from hookline.callbacks.run_paths import check_writable, written_path
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
    """Draws a histogram of the gradients of each layer, and logs the figure as ``gradients/distribution``.

    It is drawn of the first step, and then of each step that completes ``every``: with ``"1ep"`` the last step of each
    epoch. Gradients are seen as they are before clipping, and not after they were cleared. In the run's folder the
    images are ``media/gradients/distribution/step-00000100.png``; with ``dirpath`` (a relative path is in the run's
    folder) they are also written there, as ``gradients-00000100`` in each of ``formats`` (``"png"``, ``"pdf"``,
    ``"svg"``).

    Each panel has a scale of its own, from the largest gradient to its opposite; counts are on a logarithmic scale, so
    that the tails are seen. Beside the name stand the standard deviation, the share of zeros, and how many numbers are
    NaN or infinite. A layer is a module with parameters of its own. ``layers`` chooses: ``True`` for all, or names
    (with all that is inside) and patterns; one that means no layer is an error. A figure has 24 panels at most.
    With several optimizers each has its figure: ``gradients/distribution/<optimizer>``.

    It needs matplotlib (``hookline[plots]``), and leaves pyplot alone.

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
        dirpath: str | os.PathLike[str] | None = None,
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
        self.dirpath = None if dirpath is None else path_to_write(dirpath, "dirpath", "GradientPlot")
        self._folder: Path | None = None
        self._measured: dict[str, Tensor] = {}

    def on_setup(self, run: Run) -> None:
        self._sampling.begin(run)
        self._measured = {}
        check_layers(run.model, self._patterns, "GradientPlot")
        self._folder = None
        if self.dirpath is not None and run.is_training_run and not run.rank:
            self._folder = written_path(run, self.dirpath, "dirpath", "GradientPlot")
            check_writable(self._folder / "plot", "GradientPlot(dirpath=…)")
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
        step, of = run.clock.step + 1, ""
        if len(run.optimizers) > 1:
            of = run.optimizer_name
        measured, self._measured = self._measured, {}
        if run.rank:  # it was needed to make sharded gradients whole; rank zero draws
            return
        spreads = {layer: read(its) for layer, its in measured.items()}
        figure = draw(spreads, f"gradients of {run.project}/{run.name}, step {step:,}{of and f', {of}'}")
        with warnings.catch_warnings():  # a name may have letters that the font has not
            warnings.simplefilter("ignore")
            run.log_figure(f"{NAME}/{of}" if of else NAME, figure, step=step)
            if self._folder is not None:
                for suffix in self.formats:
                    figure.savefig(self._folder / f"gradients-{step:08d}{of and f'-{of}'}.{suffix}", format=suffix)
