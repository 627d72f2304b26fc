"""``SpikeGuard``: skip or roll back steps on which the loss or the gradient norm spikes."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch

from hookline.callbacks.stopping._guards import BeforeBatch, gradients_of, module_of, total_norm
from hookline.callbacks.stopping._spikes import BadBatches, Judgement, Measured, Method, Row, StepWindow, UsualValues
from hookline.checkpoint.decode import decode
from hookline.checkpoint.encode import encode
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback
from hookline.progress import Duration, Schedule

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

THRESHOLDS = {"zscore": 8.0, "factor": 3.0}


class SpikeGuard(Callback):
    """Skip or roll back steps whose loss or gradient norm is far above its usual values.

    A value that is not finite is always a spike. ``spikes`` has one row for each spike, and the metric ``train/spikes``
    counts them.

    Args:
        monitor: ``"loss"`` of each batch, or ``"gradients"``: the gradient norm before clipping.
        action: ``"skip"``: do not update the weights, and restore buffers and random states, as if the run had never
            seen the batches. ``"rollback"``: also undo the steps since the last snapshot, because the cause may already
            be in the weights.
        method: ``"zscore"``: compare with the median, in robust standard deviations of at least 5 % of the median.
            ``"factor"``: compare with the mean.
        threshold: A value is a spike if it is more than this many standard deviations above the median, or more than
            this many times the mean. ``None``: 8 for ``"zscore"``, 3 for ``"factor"``.
        window: Number of recent good values to compare with.
        warmup: Number of values that the callback needs before it judges finite values. From 2 to ``window``.
        max_spikes: Stop the run after more spikes than this, counted over all resumes.
        snapshot_every: How often ``"rollback"`` takes a snapshot of the run, for example ``"100st"``. The snapshot is a
            second copy of weights and optimizer state, in memory and in each checkpoint.
        keep_batches: Write each spike to ``spikes/spikes.jsonl`` in the run's folder, and the tensors of its batches
            next to it.

    Raises:
        ArgumentError: If an argument is invalid.
        SetupError: If ``action="skip"`` is used with several optimizers or with LBFGS, whose updates may happen before
            the spike is found.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> data = tiny_data(batches=30)
        >>> data[25][0].mul_(1000.0).shape
        torch.Size([8, 4])
        >>> guard = SpikeGuard()
        >>> trainer = Trainer(max_duration="1ep", callbacks=[guard], folder=False)
        >>> result = trainer.fit(TinyModel(), data, loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        >>> result.clock.batch, result.clock.step, guard.spikes[0]["batches"]
        (30, 29, [25])
    """

    handles_nan = True
    writes = ("train/spikes",)
    role = "guard"
    state_depends_on = ("monitor",)
    settings = ("max_spikes",)

    def __init__(
        self,
        monitor: Literal["loss", "gradients"] = "loss",
        *,
        action: Literal["skip", "rollback"] = "skip",
        method: Method = "zscore",
        threshold: float | None = None,
        window: int = 100,
        warmup: int = 20,
        max_spikes: int = 20,
        snapshot_every: str | Duration = "100st",
        keep_batches: bool = True,
    ) -> None:
        self.threshold = THRESHOLDS[method] if threshold is None else float(threshold)
        if not (math.isfinite(self.threshold) and self.threshold > (1 if method == "factor" else 0)):
            raise ArgumentError(f"SpikeGuard(threshold={threshold}): must be finite and > {int(method == 'factor')}.")
        if not 2 <= warmup <= window or max_spikes < 0:
            raise ArgumentError(
                f"SpikeGuard(window={window}, warmup={warmup}, max_spikes={max_spikes}): "
                f"needs 2 <= warmup <= window and max_spikes >= 0."
            )
        self.monitor, self.action, self.method = monitor, action, method
        self.window, self.warmup, self.max_spikes = window, warmup, max_spikes
        self.snapshot_every = Duration.parse(snapshot_every, "SpikeGuard(snapshot_every=…)")
        self.keep_batches = keep_batches
        self.reads = (monitor,)
        self._before = BeforeBatch(random_states=True)
        self._aside: BadBatches | None = None
        self.spikes: list[Row] = []
        """One row for each spike, the newest last."""
        self._usual: dict[str, UsualValues] = {}
        self._taken: dict[str, Any] | None = None  # The snapshot and the usual values at its step.
        self._schedule: Schedule | None = None
        self._snapshots: dict[str, Any] | None = None  # The state of the schedule of snapshots.
        self._step = StepWindow()

    # -- state -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {**self.snapshot_dict(), "taken": None if self._taken is None else _packed(self._taken)}

    def snapshot_dict(self) -> dict[str, Any]:
        """Return the state without the guard's own snapshot.

        With two guards, each snapshot would contain the snapshot of the other guard and grow each time.
        """
        return {
            "spikes": self.spikes,
            "usual": self._usual_now(),
            "taken": None,
            "snapshots": self._snapshots if self._schedule is None else self._schedule.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.spikes = [dict(row) for row in state["spikes"]]
        self._put_usual(state["usual"])
        taken = state["taken"] if self.action == "rollback" else None
        self._taken = None if taken is None else _unpacked(taken)
        self._snapshots = state["snapshots"]

    def _usual_now(self) -> dict[str, list[float]]:
        """Return the usual values by name, for a snapshot or a checkpoint."""
        return {name: usual.values for name, usual in self._usual.items()}

    def _put_usual(self, values: Mapping[str, list[float]]) -> None:
        """Restore the usual values from a snapshot or a checkpoint."""
        self._usual = {}
        for name, its in values.items():
            self._of(name).values = its

    def _of(self, name: str) -> UsualValues:
        """Return the usual values of one loss or gradient norm. Create them at the first call."""
        if name not in self._usual:
            self._usual[name] = UsualValues(self.method, self.threshold, self.window, self.warmup)
        return self._usual[name]

    # -- start of a run ------------------------------------------------------------------------------

    def on_fit_start(self, run: Run) -> None:
        closure = any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in run.optimizers.values())
        if self.action == "skip" and (closure or len(run.optimizers) > 1):
            raise SetupError(
                f"SpikeGuard(action='skip') cannot leave out a step of {', '.join(run.optimizers)}: an update is made "
                f"before all of its losses are known; use action='rollback'"
            )
        self._aside = BadBatches(run.folder, run.rank) if run.has_folder else None
        if self._aside is not None:
            self._aside.tidy(self.spikes)

    def on_train_start(self, run: Run) -> None:
        self._step.clear()
        self._before.watch(module_of(run))
        if self.action == "rollback":
            if self._schedule is not None:  # An earlier fit of this run made the schedule.
                self._snapshots = self._schedule.state_dict()
            self._schedule = Schedule(self.snapshot_every.of(run.max_duration))
            if self._snapshots is not None:
                self._schedule.load_state_dict(self._snapshots)

    # -- a step --------------------------------------------------------------------------------------

    def on_batch_fetch_start(self, run: Run) -> None:
        if self.action == "skip" and not self._step.open and run.stage == "train":
            self._before.save()

    def on_train_step_start(self, run: Run) -> None:
        self._step.clear()
        self._step.open = True
        if self._schedule is not None and (self._taken is None or self._schedule.due(run.clock)):
            self._schedule.fired(run.clock)
            self._taken = {"moment": run.snapshot(), "usual": self._usual_now()}

    def on_train_batch_start(self, run: Run) -> None:
        kept = run.batch if self.keep_batches and self._aside is not None else None
        self._step.add_batch(run.clock.batch_in_epoch, kept)

    def on_backward_end(self, run: Run) -> None:
        if self.monitor == "loss":
            self._step.add_loss(run.loss.detach())

    def on_gradients_ready(self, run: Run) -> None:
        if not run.skip_requested and not self._step.found:
            self._judge(run, self._norm(run) if self.monitor == "gradients" else self._step.read_losses())

    def on_step_skipped(self, run: Run) -> None:
        if not run.skip_requested and not self._step.found:
            # This is an fp16 overflow. The gradient scaler handles it, unless the loss itself is not finite.
            self._judge(run, [found for found in self._step.read_losses() if not math.isfinite(found.value)])
        if self._step.found and self.action == "skip":
            self._before.restore()
        self._step.open = False

    def on_train_step_end(self, run: Run) -> None:
        self._step.open = False

    def on_rollback(self, run: Run) -> None:
        if self._step.found and self._taken is not None:
            self._put_usual(self._taken["usual"])
            run.log({"train/spikes": float(len(self.spikes))}, reduce="last")

    # -- decision ------------------------------------------------------------------------------------

    def _norm(self, run: Run) -> list[Measured]:
        """Return the gradient norm of the current optimizer."""
        return [Measured(f"gradients/{run.optimizer_name}", None, total_norm(gradients_of([run.optimizer])).item())]

    def _judge(self, run: Run, values: list[Measured]) -> None:
        """Compare the values of a step with the usual values and act on a spike.

        All ranks judge the losses of all ranks in the same order, so they have the same usual values and decide alike.
        """
        owners = [run.rank] * len(values)
        if self.monitor == "loss":  # Gradients are already reduced over all ranks.
            gathered = run.gather([list(found) for found in values])
            values = [Measured(*found) for its in gathered for found in its]
            owners = [rank for rank, its in enumerate(gathered) for _ in its]
        judged = [(found, self._of(found.name).judge(found.value)) for found in values]
        bad = [(found, judgement) for found, judgement in judged if judgement.spike]
        if bad:
            self._step.found = True
            spiky = [owner for owner, (_, judgement) in zip(owners, judged, strict=True) if judgement.spike]
            self._act(run, bad, here=run.rank in spiky)
        else:
            for found in values:
                self._of(found.name).add(found.value)

    def _act(self, run: Run, bad: list[tuple[Measured, Judgement]], *, here: bool) -> None:
        """Record the spike, log it, keep its batches, and skip or roll back the step."""
        worst, judgement = max(bad, key=lambda found: (not math.isfinite(found[0].value), found[0].value))
        batches = self._step.batches
        guilty = sorted({found.batch for found, _ in bad if found.batch is not None}) or list(batches)
        row = self._row(run, worst.value, judgement, guilty)
        self.spikes.append(row)
        text = self._describe(row)
        done = "skipped" if self.action == "skip" else "rolled back"
        logger.warning("spike %d: %s: %s", len(self.spikes), text, done)
        if self._aside is not None and self.keep_batches and here:
            self._keep({number: batches[number] for number in guilty})
        self._leave_out(run)
        if len(self.spikes) > self.max_spikes:
            run.stop(f"{len(self.spikes)} spikes are more than max_spikes={self.max_spikes}; the last: {text}")

    def _leave_out(self, run: Run) -> None:
        """Roll back to the snapshot, or skip the step, or drop the gradients that are left."""
        if self._taken is not None:
            run.roll_back(self._taken["moment"])
            return
        if run.can_skip_step:
            run.skip_step(together=True)
        else:
            run.optimizer.zero_grad(set_to_none=True)
            logger.warning("SpikeGuard: an update of this step was made before the spike was seen, and stays")
        run.log({"train/spikes": float(len(self.spikes))}, reduce="last")

    def _keep(self, batches: dict[int, Any]) -> None:
        """Write the batches of the last spike. Log an error if the disk does not take them."""
        try:
            if self._aside is not None:
                self._aside.keep(self.spikes, batches)
        except OSError as error:
            logger.error("SpikeGuard could not keep the batches of a spike, and the run continues: %s", error)

    def _row(self, run: Run, value: float, judgement: Judgement, guilty: list[int]) -> Row:
        """Return the row of ``spikes`` for one spike."""
        epoch = run.clock.epoch
        return {
            "step": run.clock.step,
            "epoch": epoch,
            "batches": list(self._step.batches),
            "guilty": guilty,
            "samples": {str(number): run.sample_indices(number) for number in guilty},
            "monitor": self.monitor,
            "value": value if math.isfinite(value) else str(value),
            "usual": judgement.usual,
            "score": judgement.score,
            "action": self.action,
            "file": f"epoch-{epoch}-batch-{guilty[0]}.safetensors",
        }

    def _describe(self, row: Row) -> str:
        """Return the description of a spike for messages."""
        what = "the loss" if self.monitor == "loss" else "the norm of the gradients"
        value = row["value"] if isinstance(row["value"], str) else f"{row['value']:.6g}"
        usual = "" if row["usual"] is None else f", usually {row['usual']:.6g},"
        batches = ("batch " if len(row["guilty"]) == 1 else "batches ") + ", ".join(map(str, row["guilty"]))
        return f"{what} is {value}{usual} in epoch {row['epoch']}, {batches}"


def _packed(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a snapshot as a JSON string and a dict of tensors.

    A checkpoint could not store the snapshot itself: some of its keys are integers, and some of its sequences are
    tuples.
    """
    plain, tensors = encode(tree)
    return {"plain": json.dumps(plain), "tensors": tensors}


def _unpacked(packed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the snapshot that ``_packed`` has encoded."""
    tree: dict[str, Any] = decode(json.loads(packed["plain"]), packed["tensors"], "the snapshot of SpikeGuard")
    return tree
