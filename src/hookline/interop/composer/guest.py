"""``to_composer``: callbacks of Hookline as one callback of Composer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch

from hookline.errors import NotAvailableError, SetupError
from hookline.interop.composer.state import EVAL, PRECISIONS, UNITS, metric_name
from hookline.interop.guest import Guest, samples_in
from hookline.progress import Duration
from hookline.run import MISSING

LACKS: Final = frozenset(
    {
        *("batch_fetch_start", "batch_fetch_end", "scheduler_step", "zero_grad"),
        *("exception", "interrupt", "sanity_check_start", "sanity_check_end"),
        *("checkpoint_save", "checkpoint_saved", "checkpoint_loaded", "around_save"),
    }
)
"""Events and scopes of Hookline that have no counterpart among Composer's events."""


class ComposerTrainerHost:
    """Answers for Composer's trainer.

    Args:
        state: The state of the trainer.
        logger: Its logger.
    """

    library = "Composer"
    folder: Path | None = None
    log_every: Duration | None = Duration(1, "st")

    def __init__(self, state: Any, logger: Any) -> None:
        dist = import_module("composer.utils").dist
        self._state, self._logger, self._dist = state, logger, dist
        self.model = state.model.module if state.is_model_ddp else state.model
        self.device = next((its.device for its in self.model.parameters()), torch.device("cpu"))
        self.rank, self.world_size = dist.get_global_rank(), dist.get_world_size()
        self.precision = {theirs: ours for ours, theirs in PRECISIONS.items()}.get(state.precision.value, "fp32")
        self.max_duration = _duration(state.max_duration)
        self.eval_every: Duration | None = None
        self.optimizers = {type(optimizer).__name__: optimizer for optimizer in state.optimizers}
        self.loaders = {"train": state.train_dataloader} if state.train_dataloader is not None else {}
        if state.evaluators:
            self.loaders["val"] = {its.label: its.dataloader.dataloader for its in state.evaluators}
        self.microbatches = 1
        self._evaluated: dict[str, Any] = {}

    def start_batch(self) -> None:
        """Count the parts into which Composer splits the batch."""
        size = self._state.device_train_microbatch_size
        samples = samples_in(self._state.batch)
        self.microbatches = -(-samples // int(size)) if isinstance(size, int | float) and size >= 1 else 1

    def end_evaluation(self, label: str) -> None:
        """Take over the metrics of a loader."""
        found = self._state.eval_metrics[label]
        self._evaluated |= {metric_name(name, label): metric.compute() for name, metric in found.items()}

    def metrics(self) -> dict[str, Any]:
        losses = getattr(self._state, "total_loss_dict", None) or {}
        found = {f"train/{name.removeprefix('loss/train/')}": value for name, value in losses.items()}
        if "train/total" in found:
            found["train/loss"] = found.pop("train/total")
        values = self._state.train_metric_values.items()
        return {**found, **{f"train/{name}": value for name, value in values}, **self._evaluated}

    def log(self, values: Mapping[str, Any]) -> None:
        self._logger.log_metrics(dict(values))

    def stop(self) -> None:
        self._state.stop_training()

    def accumulate(self) -> int:
        return self.microbatches

    def num_batches(self, stage: str) -> int | None:
        length = self._state.dataloader_len
        return None if length is None else int(length) * (self.microbatches if stage == "train" else 1)

    def reduce(self, value: Any, op: str) -> Any:
        found = torch.as_tensor(value, device=self.device).clone()
        self._dist.all_reduce(found, {"mean": "SUM"}.get(op, op.upper()))
        if op == "mean":
            found = found / self.world_size
        return found if isinstance(value, torch.Tensor) else float(found)


def to_composer(*callbacks: object) -> Any:
    """See ``hookline.interop.to_composer``."""
    if "composer" not in sys.modules:
        raise SetupError("hl.interop.to_composer(): Composer is not imported. Import composer first.")
    guest = Guest(callbacks, "Composer", LACKS)
    return type("HooklineCallbacks", (_Hooks, import_module("composer").Callback), {})(guest)


class _Hooks:
    """The hooks of the callback that Composer calls."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._is_open = self._has_ended_epoch = False
        self._loaded: Mapping[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        return self._guest.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = state

    # -- the run -----------------------------------------------------------------------------------

    def _open(self, state: Any, logger: Any, entry_point: str) -> None:
        self._close()
        self._host = ComposerTrainerHost(state, logger)
        self._guest.open(self._host, entry_point, is_new=entry_point == "fit" and not state.timestamp.batch.value)
        self._is_open = True
        if self._loaded is not None:
            self._guest.load_state_dict(self._loaded)
            self._loaded = None
        self._guest.send("model_ready")

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._guest.send("teardown")

    def fit_start(self, state: Any, logger: Any) -> None:
        self._open(state, logger, "fit")
        self._guest.enter("fit", "fit_start")
        self._guest.show_stage("train")
        self._guest.enter("train", "train_start")

    def epoch_start(self, state: Any, logger: Any) -> None:
        self._guest.clock.mark_epoch()
        self._guest.enter("epoch", "train_epoch_start")

    def epoch_end(self, state: Any, logger: Any) -> None:
        if not self._has_ended_epoch:  # The length of the loader is not known.
            self._guest.clock.end_epoch()
        self._guest.send("train_epoch_end")

    def epoch_checkpoint(self, state: Any, logger: Any) -> None:
        self._guest.leave("epoch", "epoch_end")

    def fit_end(self, state: Any, logger: Any) -> None:
        guest = self._guest
        guest.leave("epoch")  # It is open if training has ended inside of an epoch.
        if guest.requests.agreed.stop is not None:
            guest.send("stop")
        guest.requests.end_training()
        guest.state.clear_batch()
        guest.leave("train", "train_end")
        guest.leave("fit", "fit_end")

    def close(self, state: Any, logger: Any) -> None:
        self._close()

    # -- steps -------------------------------------------------------------------------------------

    def batch_start(self, state: Any, logger: Any) -> None:
        guest = self._guest
        self._host.start_batch()
        guest.state.show_batch(state.batch)
        guest.enter("step", "train_step_start")

    def before_forward(self, state: Any, logger: Any) -> None:
        guest = self._guest
        guest.state.show_batch(state.batch)
        guest.state.count_batch(samples_in(state.batch), None)
        guest.enter("batch", "train_batch_start", "forward_start")

    def after_forward(self, state: Any, logger: Any) -> None:
        self._guest.state.show_outputs(state.outputs)
        self._guest.send("forward_end")
        state.outputs = self._guest.state.outputs

    def after_loss(self, state: Any, logger: Any) -> None:
        loss = state.loss
        is_tensor = isinstance(loss, torch.Tensor)
        if not is_tensor:
            parts = loss if not isinstance(loss, Mapping) else [loss["total"]] if "total" in loss else loss.values()
            loss = sum(part.mean() for part in parts)
        run = self._guest.state
        run.show_loss(loss)
        self._guest.send("loss_ready")
        if run.loss is not loss:
            if not is_tensor:
                raise NotAvailableError("run.loss = …: the loss of this Composer model has several parts. Use hl.fit.")
            state.loss = run.loss

    def before_backward(self, state: Any, logger: Any) -> None:
        self._guest.send("backward_start")

    def after_backward(self, state: Any, logger: Any) -> None:
        guest = self._guest
        guest.leave("batch", "backward_end", "train_batch_end")
        guest.clock.batch += 1
        guest.clock.count_samples(guest.state.samples, None)

    def after_train_batch(self, state: Any, logger: Any) -> None:
        self._guest.state.optimizer = state.optimizers[0]
        self._guest.send("gradients_ready", "optimizer_step_start")

    def batch_end(self, state: Any, logger: Any) -> None:
        guest = self._guest
        guest.send("optimizer_step_end")
        guest.state.optimizer = MISSING
        guest.clock.step += 1
        guest.leave("step", "train_step_end")
        self._has_ended_epoch = state.dataloader_len == state.timestamp.batch_in_epoch
        if self._has_ended_epoch:
            guest.clock.end_epoch()
        guest.metrics.record("step")
        guest.send("metrics_ready")

    def batch_checkpoint(self, state: Any, logger: Any) -> None:
        self._guest.send("step_settled")

    # -- evaluations and predictions ---------------------------------------------------------------

    def eval_before_all(self, state: Any, logger: Any) -> None:
        guest = self._guest
        guest.show_stage("val")
        guest.clock.begin_eval()
        guest.enter("eval", "eval_start")

    def eval_standalone_start(self, state: Any, logger: Any) -> None:
        self._open(state, logger, "evaluate")
        self.eval_before_all(state, logger)

    def eval_start(self, state: Any, logger: Any) -> None:
        label = state.dataloader_label
        self._guest.state.show_loader(None if label == EVAL else label)
        self._guest.send("eval_loader_start")

    def eval_batch_start(self, state: Any, logger: Any) -> None:
        self._guest.state.show_batch(state.batch)
        self._guest.send("eval_batch_start")

    def eval_before_forward(self, state: Any, logger: Any) -> None:
        self._guest.send("forward_start")

    def eval_after_forward(self, state: Any, logger: Any) -> None:
        self._guest.state.show_outputs(state.outputs)
        self._guest.send("forward_end")
        state.outputs = self._guest.state.outputs

    def eval_batch_end(self, state: Any, logger: Any) -> None:
        self._guest.clock.eval.batch_done(samples_in(state.batch), None)
        self._guest.send("eval_batch_end")

    def eval_end(self, state: Any, logger: Any) -> None:
        self._host.end_evaluation(state.dataloader_label)
        self._guest.state.clear_batch()
        self._guest.send("eval_loader_end")
        self._guest.state.show_loader(MISSING)

    def eval_after_all(self, state: Any, logger: Any) -> None:
        guest = self._guest
        guest.metrics.record("eval")
        guest.leave("eval", "eval_end")
        guest.clock.end_eval()
        guest.show_stage("train")

    def eval_standalone_end(self, state: Any, logger: Any) -> None:
        self.eval_after_all(state, logger)
        self._close()

    def predict_start(self, state: Any, logger: Any) -> None:
        self._open(state, logger, "predict")
        self._guest.show_stage("predict")
        self._guest.clock.begin_eval()
        self._guest.enter("predict", "predict_start")

    def predict_batch_start(self, state: Any, logger: Any) -> None:
        self._guest.state.show_batch(state.batch)
        self._guest.send("predict_batch_start")

    def predict_before_forward(self, state: Any, logger: Any) -> None:
        self._guest.send("forward_start")

    def predict_after_forward(self, state: Any, logger: Any) -> None:
        self._guest.state.show_outputs(state.outputs)
        self._guest.send("forward_end")

    def predict_batch_end(self, state: Any, logger: Any) -> None:
        self._guest.clock.eval.batch_done(samples_in(state.batch), None)
        self._guest.send("predict_batch_end")

    def predict_end(self, state: Any, logger: Any) -> None:
        self._guest.leave("predict", "predict_end")
        self._guest.clock.end_eval()
        self._close()


def _duration(limit: Any) -> Duration | None:
    unit = None if limit is None else {theirs: ours for ours, theirs in UNITS.items()}.get(limit.unit.value)
    return None if unit is None else Duration(limit.value, unit)
