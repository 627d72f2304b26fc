"""``ProgressBar``: progress of a run in a terminal, a notebook or a log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from hookline.callbacks.watch.progress import styles
from hookline.callbacks.watch.progress.display import ProgressDisplay
from hookline.callbacks.watch.progress.following import Following
from hookline.events import Callback
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class ProgressBar(Following, Callback):
    """Show the progress, speed, remaining time and newest metrics of a run.

    In a terminal or a notebook, there is a bar for the epochs and one for the steps, or a single bar in the
    unit of ``max_duration``. A running evaluation or prediction has its own bar. Output of the program appears
    above the bars. In a log, the callback prints lines instead. A metric has the value of the last complete log
    interval, because reading a value earlier would synchronize the device. Until then, ``train/loss`` is the
    loss of a step (on a GPU, of the first step). The display takes at most about 1 % of the time.

    Args:
        metrics: Names of the metrics to show, in this order. Default: those that callbacks monitor, then some
            of ``train/…`` and ``val/…``.
        style: ``"auto"``: bars in an interactive terminal or notebook, otherwise lines. ``"rich"``,
            ``"notebook"`` or ``"plain"``: always bars, a cell output, or lines. ``"tqdm"``: as ``"auto"``, with
            the bars of tqdm in a terminal. ``None``: nothing. Or an object with the methods of
            ``ProgressDisplay``.
        every: How often to update, for example ``"30s"`` or ``"100st"``. Default: ten times per second; in a
            notebook twice per second; in a log every 10 s, and less often in a long run.

    Raises:
        ArgumentError: If ``metrics`` is a string or ``style`` is unknown.
        SetupError: If ``style`` is ``"tqdm"`` and tqdm is not installed.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> class Percent:
        ...     def start(self, run): ...
        ...     def update(self, progress):
        ...         self.last = f"{progress.bars[0].name} {progress.bars[0].count}: {progress.bars[0].share:.0%}"
        ...
        ...     def close(self):
        ...         print(self.last)
        >>> trainer = Trainer(max_duration="2ep", callbacks=[ProgressBar(style=Percent())], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        epoch 2/2: 100%
    """

    optional = True
    ranks = "zero"
    reads = ("*",)
    """The callback runs last, so that it shows what other callbacks log and decide."""

    def __init__(
        self,
        metrics: Iterable[str] = (),
        *,
        style: Literal["auto", "rich", "plain", "notebook", "tqdm"] | ProgressDisplay | None = "auto",
        every: str | Duration | None = None,
    ) -> None:
        styles.check(style)
        self.metrics = tuple(metrics)
        self.style = style
        self.every = None if every is None else Duration.parse(every, "ProgressBar(every=…)")
        super().__init__()

    def _style(self, run: Run) -> styles.Style | None:
        return None if self.style is None else styles.choose(self.style)
