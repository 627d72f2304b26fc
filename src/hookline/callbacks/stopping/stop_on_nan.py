"""``StopOnNaN``: stop training before a NaN or infinite value reaches the weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from hookline.callbacks._monitor import check_metric_name
from hookline.callbacks.stopping._guards import BeforeBatch, gradients_of, module_of, not_finite, total_norm
from hookline.callbacks.stopping.spike_guard import SpikeGuard
from hookline.errors import ArgumentError
from hookline.events import Callback
from hookline.progress import Duration, Schedule
from hookline.run.history import missing_metric

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class StopOnNaN(Callback):
    """Stop training when the loss, a gradient or a metric is NaN or infinite.

    The callback checks loss and gradients before each update and leaves a bad update out. Weights, optimizer state and
    buffers, such as batch norm statistics, are then those of the last finite step.

    Args:
        monitor: One or more of ``"loss"``, ``"gradients"`` and names of metrics. The callback checks a ``val/…`` metric
            after each evaluation, a ``train/…`` metric at each interval (``log_every``), and any other metric at the
            end of each epoch.
        every: How often to check loss and gradients, for example ``"100st"``. Losses between two checks are found at
            the next check, gradients are not, and either may be in the weights by then. ``None``: at every step.

    Raises:
        ArgumentError: If an argument is invalid, or ``every`` is given without ``"loss"`` or ``"gradients"``.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> data = tiny_data(batches=3)
        >>> data[1][0].fill_(float("nan")).shape
        torch.Size([8, 4])
        >>> trainer = Trainer(max_duration="2ep", callbacks=[StopOnNaN()], folder=False, preflight=False)
        >>> result = trainer.fit(TinyModel(), data, loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        >>> result.stop_reason
        'the loss is nan in epoch 0, batch 1; weights and optimizer are those of step 1'
    """

    handles_nan = True
    state = ("seen", "decided_epoch", "looked")
    shares_state = True
    role = "guard"
    state_depends_on = ("monitor",)
    after = (SpikeGuard,)  # A step that SpikeGuard skips is not a reason to stop.

    def __init__(
        self, monitor: str | Sequence[str] = ("loss", "gradients"), *, every: str | Duration | None = None
    ) -> None:
        names = (monitor,) if isinstance(monitor, str) else tuple(monitor)
        if not all(names) or not names:
            raise ArgumentError(f"StopOnNaN(monitor={monitor!r}): give 'loss', 'gradients' or names of metrics.")
        self.monitor = names
        self.every = None if every is None else Duration.parse(every, "StopOnNaN(every=…)")
        if self.every is not None and not {"loss", "gradients"} & set(names):
            raise ArgumentError(
                f"StopOnNaN(every={every!r}): is for 'loss' and 'gradients' only. Metrics are checked when they are "
                f"final. Leave it out."
            )
        for name in names:
            if name not in ("loss", "gradients"):
                check_metric_name(f"StopOnNaN(monitor={monitor!r})", name)
        self.reads = names
        self._loss, self._gradients = "loss" in names, "gradients" in names
        self._metrics = tuple(name for name in names if name not in ("loss", "gradients"))
        self._before = BeforeBatch()
        self._keeps = self.every is None and (self._loss or self._gradients)
        self._losses: list[tuple[int, torch.Tensor]] = []  # Pairs of batch number and loss.
        self._first = self._last = 0  # The first and last batch of the step.
        self._schedule: Schedule | None = None
        self._closures = False
        self._moment: dict[str, Any] | None = None  # The snapshot before the step of an optimizer with a closure.
        self.seen: torch.Tensor | None = None
        """With ``every``: zero, or NaN after a loss that was not finite. On the loss's device."""
        self.decided_epoch = 0
        self.looked: dict[str, Any] | None = None
        """With ``every``: state of the schedule at the last check."""

    # -- start of a run --------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        if self.every is not None and run.is_training_run:
            logger.warning(
                "StopOnNaN(every=%r) looks only then: what is not finite may be in the weights when it is found; "
                "leave every out to keep the weights of the last finite step",
                str(self.every),
            )

    def on_train_start(self, run: Run) -> None:
        self._losses.clear()
        self._moment = None
        if self.seen is not None:  # A checkpoint loads tensors on the CPU.
            self.seen = self.seen.to(run.device)
        self._before.watch(module_of(run))
        self._closures = any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in run.optimizers.values())
        if self.every is not None:
            self._schedule = Schedule(self.every.of(run.max_duration))
            if self.looked is not None:
                self._schedule.load_state_dict(self.looked)

    # -- a step ----------------------------------------------------------------------------------

    def on_train_step_start(self, run: Run) -> None:
        self._losses.clear()
        self._first = run.clock.batch_in_epoch
        if self._keeps:
            self._before.save()
            if self._closures:
                self._moment = run.snapshot()

    def on_backward_end(self, run: Run) -> None:
        self._last = run.clock.batch_in_epoch
        if self._loss:
            self._losses.append((self._last, run.loss.detach()))

    def on_gradients_ready(self, run: Run) -> None:
        if run.skip_requested:  # Another callback already skips this step.
            self._losses.clear()
            return
        if self._schedule is not None:
            self._fold()
            if not self._schedule.due(run.clock):
                return
            self._schedule.fired(run.clock)
            self.looked = self._schedule.state_dict()
        if any(run.gather(not math.isfinite(self._look(run)))):
            self._stop(run)

    def _fold(self) -> None:
        """Add the losses of the step to ``seen`` without reading them from the device."""
        for _, loss in self._losses:  # NaN or infinity times zero is NaN, and a sum with NaN stays NaN.
            self.seen = loss * 0 if self.seen is None else self.seen.add_(loss, alpha=0)
        self._losses.clear()

    def on_step_skipped(self, run: Run) -> None:
        """Check the loss after an fp16 overflow, because no scale makes a NaN loss finite."""
        losses = [loss for _, loss in self._losses]
        if not run.skip_requested and any(run.gather(not math.isfinite(_sum(losses)))):
            self._stop(run)
        self._losses.clear()

    def _look(self, run: Run) -> float:
        """Return one number that is finite if all monitored losses and gradients are finite."""
        parts = [loss for _, loss in self._losses]
        if self.seen is not None:
            parts.append(self.seen)
        if self._gradients:
            parts.append(total_norm(gradients_of(run.optimizers.values())))
        return _sum(parts)

    def _stop(self, run: Run) -> None:
        """Undo or leave out the update and stop the run on all ranks with the same reason."""
        what, batches = self._found(run)
        bad = run.gather(any(not math.isfinite(loss.item()) for _, loss in self._losses))
        whose = bad.index(True) if any(bad) else 0
        if any(bad) and len(bad) > 1:  # Each rank has its own loss, while gradients are reduced over all ranks.
            what = f"{what} on rank {whose}"
        kept = f"weights and optimizer are those of step {run.clock.step}"
        if self._moment is not None:
            run.roll_back(self._moment)
        elif run.can_skip_step:
            run.skip_step(together=True)
        else:  # Another optimizer has already made its update in this step. Without gradients, this one makes none.
            run.optimizer.zero_grad(set_to_none=True)
            kept = f"the update of {run.optimizer_name} is left out"
        where = f"epoch {run.clock.epoch}, {batches}"
        if self.every is None:
            self._before.restore()
            reason = f"{what} in {where}; {kept}"
        else:
            reason = f"{what} at or before {where}; it may be in the weights already"
        run.stop(run.gather(reason)[whose], together=True)
        self._losses.clear()
        self.seen = None  # The stop reason reports it, so on_train_end must not warn again.

    def _found(self, run: Run) -> tuple[str, str]:
        """Return a description of the value that is not finite, and of its batches."""
        read = [(batch, loss.item()) for batch, loss in self._losses]
        bad = [(batch, value) for batch, value in read if not math.isfinite(value)]
        if bad and self.every is None:
            return f"the loss is {bad[0][1]}", f"batch {bad[0][0]}"
        if bad or (self.seen is not None and not math.isfinite(self.seen.item())):
            return "the loss is not finite", f"batch {self._last}"
        names = list(not_finite(run))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        what = f"the gradients are not finite, {', '.join(names[:3])}{more}," if names else "the gradients overflow"
        one = self.every is not None or self._first == self._last
        return what, f"batch {self._last}" if one else f"batches {self._first} to {self._last}"

    # -- metrics -----------------------------------------------------------------------------------

    def on_eval_end(self, run: Run) -> None:
        if self._metrics and run.stage == "val" and run.is_training_run:
            self._check(run, [name for name in self._metrics if name.startswith("val/")])

    def on_metrics_ready(self, run: Run) -> None:
        if self._metrics:
            here = run.metrics
            self._check(run, [name for name in self._metrics if name.startswith("train/") and name in here])

    def on_epoch_end(self, run: Run) -> None:
        if self._metrics and run.clock.epoch > self.decided_epoch:
            self.decided_epoch = run.clock.epoch
            self._check(run, [name for name in self._metrics if not name.startswith("val/")])

    def on_train_end(self, run: Run) -> None:
        if self.seen is not None and not math.isfinite(self.seen.item()):
            logger.warning("StopOnNaN: a loss was not finite since the last look, and training has ended")

    def _check(self, run: Run, names: list[str]) -> None:
        """Stop the run if one of these metrics is not finite."""
        for name in names:
            if run.callbacks.lost(name):
                continue
            if name not in run.metrics:
                if run.callbacks.declare(name):
                    continue  # The callback that declares the metric may log it later.
                raise missing_metric("StopOnNaN", name, run.metrics)
            value = run.metrics[name]
            if not bool(torch.isfinite(torch.as_tensor(value)).all()):
                run.stop(f"{name} is {value}")


def _sum(parts: list[torch.Tensor]) -> float:
    """Return the sum of the parts in one transfer. It is finite if all parts are finite."""
    if len(parts) == 1:
        return parts[0].item()
    return torch.stack([part.double() for part in parts]).sum().item() if parts else 0.0
