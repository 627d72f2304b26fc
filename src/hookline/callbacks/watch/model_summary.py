"""``ModelSummary``: the layers of the model, their sizes, and what they cost to compute."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from hookline.callbacks.watch.model_calls import Observer, Seen
from hookline.callbacks.watch.model_table import layers, render, short
from hookline.callbacks.watch.redirect import is_terminal
from hookline.errors import RegistrationError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

PLAIN_WIDTH = 200


class ModelSummary(Callback):
    """Shows the layers of the model as a table, once, and logs it as ``model/summary``.

    A row is a layer with all that is inside it: type, output shape, parameters, those that are trained, MB (10⁶
    bytes, with buffers), and FLOPs: operations of one forward pass, a sample. ``depth`` is how deep it looks (``1``:
    the parts of the model; ``None``: all of it). Weights that two layers share are counted once, in the first.

    Shapes are those of the first training batch, noted while it goes through the model. The FLOPs are counted on a
    copy of the model that holds no data: nothing is computed a second time, and weights, gradients, statistics, random
    states and modes stay as they are. Both are left out where that does not work, such as FLOPs in a model whose
    ``forward`` asks for values (``if x.sum() > 0``). With ``flops=False`` the model is left alone: no shapes, no
    FLOPs, and the table comes before the first step. ``print=False`` only logs it.

    What a training step costs, forward and backward, is sent as the message ``"flops_per_sample"``: ``SpeedMonitor``
    tells by it how much of the hardware is used. It listens to the first batch only; later steps are not slower.

    >>> import torch
    >>> from hookline.loop import Trainer
    >>> from hookline.testing import TinyModel, tiny_data
    >>> trainer = Trainer(max_duration="1ep", callbacks=[ModelSummary()], folder=False)
    >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
    >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
    layer   type       output  parameters  trainable     MB  FLOPs
    ──────────────────────────────────────────────────────────────
    hidden  Linear     8 x 8           40         40  <0.01     64
    drop    Dropout    8 x 8            0          0      0      0
    out     Linear     8 x 3           27         27  <0.01     48
    <BLANKLINE>
    total   TinyModel  8 x 3           67         67  <0.01    112
    FLOPs a sample: 112 forward, 272 forward and backward
    """

    writes = ()  # it logs no metric
    optional = True
    ranks = "zero"

    def __init__(self, depth: int | None = 2, *, flops: bool = True, print: bool = True) -> None:
        if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool) or depth < 1):
            raise RegistrationError(f"ModelSummary(depth={depth!r}): a number of levels, 1 or more, or None for all")
        self.depth = depth
        self.flops = flops
        self.print = print
        self._is_shown = self._goes_on = False
        self._first_batch: _FirstBatch | None = None

    def on_setup(self, run: Run) -> None:
        if not run.clock.step:  # a second fit goes on with the same model
            self._is_shown = False

    def on_train_start(self, run: Run) -> None:
        self._goes_on = run.clock.step > 0
        if not self.flops:
            self._show(run, Seen())
        elif not self._is_shown:
            self._first_batch = _FirstBatch(self)
            run.callbacks.add(self._first_batch)

    def on_train_end(self, run: Run) -> None:
        self._show(run, Seen())  # if there was no batch

    def on_teardown(self, run: Run) -> None:
        if self._first_batch is not None and self._first_batch in run.callbacks:  # there was none
            run.callbacks.remove(self._first_batch)

    def _show(self, run: Run, seen: Seen) -> None:
        if self._is_shown:
            return
        self._is_shown = True
        samples = run.batch_size if seen.flops else 1
        rows = layers(run.model, self.depth, seen, samples)
        if not self._goes_on:  # after a resume it is in metrics.jsonl already
            run.log_table("model/summary", [row.cells for row in rows])
        note, forward = "", rows[-1].flops
        if forward is not None:
            note = f"FLOPs a sample: {short(forward)} forward"
            if seen.backward is not None:
                training = forward + round(seen.backward / samples)
                note += f", {short(training)} forward and backward"
                run.messages.send("flops_per_sample", training, keep="forever", replace=True)
        if self.print:
            color, ascii_only = is_terminal(sys.stdout), not _is_utf8()
            width = shutil.get_terminal_size().columns if color else PLAIN_WIDTH
            _write(render(rows, note, width=width, color=color, ascii_only=ascii_only))


class _FirstBatch(Callback):
    """Watches one batch go through the model, and leaves: a hook in every batch would slow the loop down."""

    optional = True
    ranks = "zero"

    def __init__(self, summary: ModelSummary) -> None:
        self.name = f"the first batch of {summary.state_key}"
        self._summary = summary
        self._observer: Observer | None = None

    def around_batch(self, run: Run) -> Iterator[None]:
        self._observer = observer = Observer(run.model)
        try:
            observer.attach()
            yield
        finally:
            observer.detach()
            self._observer = None
            run.callbacks.remove(self)
        try:
            observer.count()
        except Exception as error:  # what a model does in its forward, its copy may not be able to do
            observer.seen.flops.clear()
            observer.seen.backward = None
            logger.info("ModelSummary counts no FLOPs: %s: %s", type(error).__name__, error)
        self._summary._show(run, observer.seen)

    def on_backward_start(self, run: Run) -> None:
        if self._observer is not None:
            self._observer.active = False

    def on_backward_end(self, run: Run) -> None:
        if self._observer is not None:
            self._observer.active = True


def _is_utf8() -> bool:
    return "utf" in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()


def _write(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # a broken pipe, a full disk; closed; None: nobody is there
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
