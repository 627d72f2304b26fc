"""``SpikeGuard``: leave out batches on which the loss or the gradients jump, and go on as if they were not there."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch

from hookline.callbacks.stopping.bad_batches import BadBatches, Row
from hookline.callbacks.stopping.before_batch import BeforeBatch, module_of
from hookline.callbacks.stopping.gradient_norm import gradients_of, total_norm
from hookline.callbacks.stopping.step_window import Measured, StepWindow
from hookline.callbacks.stopping.usual_values import Judgement, Method, UsualValues
from hookline.checkpoint.decode import decode
from hookline.checkpoint.encode import encode
from hookline.errors import RegistrationError, SetupError
from hookline.events import Callback
from hookline.progress import Duration, Schedule

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

THRESHOLDS = {"zscore": 8.0, "factor": 3.0}


class SpikeGuard(Callback):
    """Leaves out a step whose loss, or whose gradient norm, is far above what is usual; then training goes on.

    **What a spike is.** ``monitor`` is ``"loss"`` (of each batch) or ``"gradients"`` (their norm, not clipped). With
    ``method="zscore"`` a spike is more than ``threshold`` (8) robust standard deviations above the median of the last
    ``window`` good values; at least 5 % of the median count as one. With ``method="factor"`` it is more than
    ``threshold`` (3) times their mean. Nothing is judged before ``warmup`` values are there; but a value that is not
    finite is always a spike. One number is read from the device a step.

    **What is done.** ``action="skip"`` makes no update on the step. Buffers (the statistics of batch norm) and random
    states go back to before its first batch was fetched, so the run goes on as one that never saw these batches, bit
    for bit. ``action="rollback"`` also takes back the steps since the last snapshot, whose batches stay used: what led
    to the spike may be in the weights. A snapshot is taken ``snapshot_every`` so much training. It is a second copy
    of weights and optimizer, in memory and in each checkpoint.

    **What is kept.** ``spikes`` has one row for each: step, epoch, numbers of its batches in the epoch, indices of the
    samples where the loader knows them, value, what was usual. With a folder, ``<folder>/spikes/spikes.jsonl`` has
    the same, and the tensors of the batches are beside it; ``keep_batches=False`` writes neither. ``train/spikes``
    counts.

    **When it is enough.** More than ``max_spikes`` in a run, resumes included, stop it.

    With several optimizers, or one that needs a closure, ``"skip"`` is refused: an update may be made before the
    spike is seen. Lightning's ``SpikeDetection`` raises an error after the update and leaves the skipping to you.

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
        for name, value, known in (
            ("monitor", monitor, ("loss", "gradients")),
            ("action", action, ("skip", "rollback")),
            ("method", method, tuple(THRESHOLDS)),
        ):
            if value not in known:
                raise RegistrationError(f"SpikeGuard({name}={value!r}): use {' or '.join(map(repr, known))}")
        self.threshold = THRESHOLDS[method] if threshold is None else float(threshold)
        if not (math.isfinite(self.threshold) and self.threshold > (1 if method == "factor" else 0)):
            raise RegistrationError(f"SpikeGuard(threshold={threshold}): give more than {int(method == 'factor')}")
        if not 2 <= warmup <= window or max_spikes < 0:
            raise RegistrationError(
                f"SpikeGuard(window={window}, warmup={warmup}, max_spikes={max_spikes}): "
                f"warmup is from 2 to window, max_spikes 0 or more"
            )
        self.monitor, self.action, self.method = monitor, action, method
        self.window, self.warmup, self.max_spikes = window, warmup, max_spikes
        self.snapshot_every = Duration.parse(snapshot_every, "SpikeGuard(snapshot_every=…)")
        self.keep_batches = keep_batches
        self.reads = (monitor,)
        self._before = BeforeBatch(random_states=True)
        self._aside: BadBatches | None = None
        self._forget()

    def _forget(self) -> None:
        """A new run begins: nothing of an earlier one counts."""
        self._used = False
        self.spikes: list[Row] = []
        """One row for each spike, the newest last."""
        self._usual: dict[str, UsualValues] = {}
        self._taken: dict[str, Any] | None = None  # the snapshot, and what was usual then
        self._schedule: Schedule | None = None
        self._snapshots: dict[str, Any] | None = None  # the state of their schedule
        self._step = StepWindow()

    # -- state -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {**self.snapshot_dict(), "taken": None if self._taken is None else _packed(self._taken)}

    def snapshot_dict(self) -> dict[str, Any]:
        """Without its own snapshot: two guards would hold one another's, each larger than the last."""
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
        return {name: usual.values for name, usual in self._usual.items()}

    def _put_usual(self, values: Mapping[str, list[float]]) -> None:
        self._usual = {}
        for name, its in values.items():
            self._of(name).values = its

    def _of(self, name: str) -> UsualValues:
        if name not in self._usual:
            self._usual[name] = UsualValues(self.method, self.threshold, self.window, self.warmup)
        return self._usual[name]

    # -- the beginning -------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        if run.is_training_run and run.clock.step == 0 and self._used:
            self._forget()

    def on_fit_start(self, run: Run) -> None:
        self._used = True
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
            if self._schedule is not None:  # of an earlier fit of this run
                self._snapshots = self._schedule.state_dict()
            self._schedule = Schedule(self.snapshot_every.of(run.max_duration))
            if self._snapshots is not None:
                self._schedule.load_state_dict(self._snapshots)

    # -- a step --------------------------------------------------------------------------------------

    def on_batch_fetch_start(self, run: Run) -> None:
        if self.action == "skip" and not self._step.open and run.stage == "train":
            self._before.note()

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
        if not run.skip_requested and not self._step.found:  # an fp16 overflow, which the scaler handles
            self._judge(run, [found for found in self._step.read_losses() if not math.isfinite(found.value)])
        if self._step.found and self.action == "skip":
            self._before.put_back()
        self._step.open = False

    def on_train_step_end(self, run: Run) -> None:
        self._step.open = False

    def on_rollback(self, run: Run) -> None:
        if self._step.found and self._taken is not None:
            self._put_usual(self._taken["usual"])
            run.log({"train/spikes": float(len(self.spikes))}, reduce="last")

    # -- the judgement -------------------------------------------------------------------------------

    def _norm(self, run: Run) -> list[Measured]:
        return [Measured(f"gradients/{run.optimizer_name}", None, total_norm(gradients_of([run.optimizer])).item())]

    def _judge(self, run: Run, values: list[Measured]) -> None:
        """The losses of all ranks, in one order: each rank knows the same usual ones, and decides alike."""
        own = values
        if self.monitor == "loss":  # the gradients are those of all ranks already
            told = run.gather([list(found) for found in values])
            values = [Measured(*found) for its in told for found in its]
        judged = [(found, self._of(found.name).judge(found.value)) for found in values]
        bad = [(found, judgement) for found, judgement in judged if judgement.spike]
        if bad:
            self._step.found = True
            self._act(run, bad, here=any(found in own for found, _ in bad))
        else:
            for found in values:
                self._of(found.name).add(found.value)

    def _act(self, run: Run, bad: list[tuple[Measured, Judgement]], *, here: bool) -> None:
        worst, judgement = max(bad, key=lambda found: (not math.isfinite(found[0].value), found[0].value))
        batches = self._step.batches
        guilty = sorted({found.batch for found, _ in bad if found.batch is not None}) or list(batches)
        row = self._row(run, worst.value, judgement, guilty)
        self.spikes.append(row)
        said = self._said(row)
        done = "skipped" if self.action == "skip" else "rolled back"
        logger.warning("spike %d: %s: %s", len(self.spikes), said, done)
        if self._aside is not None and self.keep_batches and here:
            self._keep({number: batches[number] for number in guilty})
        self._leave_out(run)
        if len(self.spikes) > self.max_spikes:
            run.stop(f"{len(self.spikes)} spikes are more than max_spikes={self.max_spikes}; the last: {said}")

    def _leave_out(self, run: Run) -> None:
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
        try:
            if self._aside is not None:
                self._aside.keep(self.spikes, batches)
        except OSError as error:
            logger.error("SpikeGuard could not keep the batches of a spike, and the run goes on: %s", error)

    def _row(self, run: Run, value: float, judgement: Judgement, guilty: list[int]) -> Row:
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

    def _said(self, row: Row) -> str:
        what = "the loss" if self.monitor == "loss" else "the norm of the gradients"
        value = row["value"] if isinstance(row["value"], str) else f"{row['value']:.6g}"
        usual = "" if row["usual"] is None else f", usually {row['usual']:.6g},"
        batches = ("batch " if len(row["guilty"]) == 1 else "batches ") + ", ".join(map(str, row["guilty"]))
        return f"{what} is {value}{usual} in epoch {row['epoch']}, {batches}"


def _packed(tree: dict[str, Any]) -> dict[str, Any]:
    """A snapshot as a text and tensors: some of its keys are numbers, and some of its lists tuples."""
    plain, tensors = encode(tree)
    return {"plain": json.dumps(plain), "tensors": tensors}


def _unpacked(packed: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = decode(json.loads(packed["plain"]), packed["tensors"], "the snapshot of SpikeGuard")
    return tree
