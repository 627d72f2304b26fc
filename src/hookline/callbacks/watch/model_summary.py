"""``ModelSummary``: a table of the layers, their sizes and their FLOPs."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from hookline.callbacks._text import format_count
from hookline.callbacks.watch._model_inspection import Observer, Seen, layers, render
from hookline.callbacks.watch.progress.redirect import is_terminal
from hookline.errors import ArgumentError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

PLAIN_WIDTH = 200


class ModelSummary(Callback):
    """Print a table of the model's layers once, and log it as ``model/summary``.

    Each row is a layer including its submodules: type, output shape, parameters, trainable parameters, MB (10⁶
    bytes, including buffers) and FLOPs of one forward pass per sample. Weights that two layers share are
    counted once, in the first layer. Shapes and FLOPs come from the first batch of training, or of ``evaluate``,
    ``test`` and ``predict``, without computing the batch twice. In training, the callback also sends the message
    ``"flops_per_sample"`` (forward and backward), from which ``SpeedMonitor`` computes the hardware utilization.

    Args:
        depth: Number of levels to show. ``1``: the direct children of the model. ``None``: all levels.
        flops: Determine output shapes and FLOPs. ``False``: only count parameters, before the first step.
        print: Print the table. ``False``: only log it.

    Raises:
        ArgumentError: If ``depth`` is less than 1.

    Example:
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

    writes = ()  # The callback logs a table, not a metric.
    optional = True
    ranks = "zero"

    def __init__(self, depth: int | None = 2, *, flops: bool = True, print: bool = True) -> None:
        if depth is not None and depth < 1:
            raise ArgumentError(f"ModelSummary(depth={depth!r}): must be >= 1, or None for all levels.")
        self.depth = depth
        self.flops = flops
        self.print = print
        self._is_shown = self._goes_on = False
        self._first_batch: _FirstBatch | None = None

    def on_setup(self, run: Run) -> None:
        if not run.clock.step:  # A second fit continues with the same model.
            self._is_shown = False

    def on_train_start(self, run: Run) -> None:
        self._goes_on = run.clock.step > 0
        self._begin(run, _FirstTrainBatch(self))

    def on_eval_start(self, run: Run) -> None:
        if not run.is_training_run:
            self._begin(run, _FirstEvalBatch(self))

    def on_predict_start(self, run: Run) -> None:
        if not run.is_training_run:
            self._begin(run, _FirstEvalBatch(self))

    def _begin(self, run: Run, first_batch: _FirstBatch) -> None:
        """Show the table now if it needs no batch, or else after the first batch."""
        if not self.flops:
            self._show(run, Seen())
        elif not self._is_shown:
            self._first_batch = first_batch
            run.callbacks.add(first_batch)

    def on_train_end(self, run: Run) -> None:
        self._show(run, Seen())  # This does nothing unless there was no batch.

    def on_teardown(self, run: Run) -> None:
        if self._first_batch is not None and self._first_batch in run.callbacks:  # There was no batch.
            run.callbacks.remove(self._first_batch)

    def _show(self, run: Run, seen: Seen) -> None:
        """Log and print the table, once."""
        if self._is_shown:
            return
        self._is_shown = True
        samples = run.batch_size if seen.flops else 1
        rows = layers(run.model, self.depth, seen, samples)
        if not self._goes_on:  # After a resume, metrics.jsonl already has the table.
            run.log_table("model/summary", [row.cells for row in rows])
        note, forward = "", rows[-1].flops
        if forward is not None:
            note = f"FLOPs a sample: {format_count(forward)} forward"
            if seen.backward is not None and run.is_training_run:
                training = forward + round(seen.backward / samples)
                note += f", {format_count(training)} forward and backward"
                run.messages.send("flops_per_sample", training, keep="forever", replace=True)
        if self.print:
            color, ascii_only = is_terminal(sys.stdout), not _is_utf8()
            width = shutil.get_terminal_size().columns if color else PLAIN_WIDTH
            _write(render(rows, note, width=width, color=color, ascii_only=ascii_only))


class _FirstBatch(Callback):
    """Observe one batch and be removed: a hook for every batch would slow the loop down."""

    optional = True
    ranks = "zero"

    def __init__(self, summary: ModelSummary) -> None:
        self.name = f"the first batch of {summary.state_key}"
        self._summary = summary
        self._observer: Observer | None = None

    def _attach(self, run: Run) -> Observer:
        """Begin to observe the model."""
        self._observer = observer = Observer(run.model)
        observer.attach()
        return observer

    def _detach(self) -> None:
        """Stop observing the model, if it is observed."""
        if self._observer is not None:
            self._observer.detach()
            self._observer = None

    def _show(self, run: Run, observer: Observer) -> None:
        """Show the table of what was observed."""
        try:
            observer.count()
        except Exception as error:  # The copy without data may not support all that forward does.
            observer.seen.flops.clear()
            observer.seen.backward = None
            logger.info("ModelSummary counts no FLOPs: %s: %s", type(error).__name__, error)
        self._summary._show(run, observer.seen)


class _FirstTrainBatch(_FirstBatch):
    """The first batch of training."""

    def around_batch(self, run: Run) -> Iterator[None]:
        try:
            observer = self._attach(run)
            yield
        finally:
            self._detach()
            run.callbacks.remove(self)
        self._show(run, observer)

    def on_backward_start(self, run: Run) -> None:
        if self._observer is not None:
            self._observer.active = False

    def on_backward_end(self, run: Run) -> None:
        if self._observer is not None:
            self._observer.active = True


class _FirstEvalBatch(_FirstBatch):
    """The first batch of an evaluation or a prediction without training."""

    def on_eval_batch_start(self, run: Run) -> None:
        self._attach(run)

    def on_predict_batch_start(self, run: Run) -> None:
        self._attach(run)

    def on_eval_batch_end(self, run: Run) -> None:
        self._finish(run)

    def on_predict_batch_end(self, run: Run) -> None:
        self._finish(run)

    def _finish(self, run: Run) -> None:
        """Show the table, once."""
        observer = self._observer
        run.callbacks.remove(self)
        if observer is not None:
            self._show(run, observer)

    def on_teardown(self, run: Run) -> None:
        self._detach()


def _is_utf8() -> bool:
    """True if standard output can show all characters of the table."""
    return "utf" in (getattr(sys.stdout, "encoding", None) or "utf-8").lower()


def _write(text: str) -> None:
    """Write to standard output, and ignore that it is closed or missing."""
    with suppress(OSError, ValueError, AttributeError):  # A broken pipe or a full disk; closed; None.
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
