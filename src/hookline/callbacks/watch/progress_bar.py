"""``ProgressBar``: how far a run is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from hookline.callbacks.watch import styles
from hookline.callbacks.watch.display import ProgressDisplay
from hookline.callbacks.watch.following import Following
from hookline.errors import RegistrationError
from hookline.events import Callback
from hookline.progress import Duration

if TYPE_CHECKING:
    from hookline.run import Run


class ProgressBar(Following, Callback):
    """Shows how far a run is, how fast, when it will be done, and its newest metrics.

    In a terminal and in a notebook: a bar for the epochs and one for the steps (or a single one, in the unit of
    ``max_duration``), and one for the evaluation or prediction that is under way; what the program prints
    meanwhile appears above. In a log: a line now and then, and one at the end of each epoch and evaluation, but
    never many in a short time: 10,000 steps stay under 100 KB. It closes on every way out of a run.

    ``metrics`` are the names to show; none means those that callbacks monitor, then some of ``train/…`` and
    ``val/…``. A value is that of the
    last complete interval (``log_every``), since to read one that is still being averaged would stop the device;
    before the first interval is over, ``train/loss`` is the loss of a step (on a GPU, of the first). ``style`` is
    ``"auto"`` (bars in a terminal that can move the cursor and in a notebook, else lines), ``"rich"``, ``"plain"``,
    ``"notebook"``, ``"tqdm"`` (as ``"auto"``, with the bars of tqdm in a terminal), ``None`` for no bar at all, or a
    ``ProgressDisplay`` of your own. ``every`` is how often it is updated, as a time or a count (``"30s"``,
    ``"100st"``); by default ten times a second, and in a log every 10 s, in a long run more rarely. It fires after
    each step and each batch of an evaluation, and takes at most about one per cent of the time.

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
    """It runs last, and so shows what the others have logged and decided."""

    def __init__(
        self,
        metrics: Iterable[str] = (),
        *,
        style: Literal["auto", "rich", "plain", "notebook", "tqdm"] | ProgressDisplay | None = "auto",
        every: str | Duration | None = None,
    ) -> None:
        if isinstance(metrics, str):
            raise RegistrationError(f"ProgressBar({metrics!r}): give a tuple of names, ({metrics!r},)")
        styles.check(style)
        self.metrics = tuple(metrics)
        if not all(isinstance(name, str) for name in self.metrics):
            raise RegistrationError(f"ProgressBar({self.metrics!r}): the names of metrics are texts, ('val/loss',)")
        self.style = style
        self.every = None if every is None else Duration.parse(every, "ProgressBar(every=…)")
        super().__init__()

    def _style(self, run: Run) -> styles.Style | None:
        return None if self.style is None else styles.choose(self.style)
