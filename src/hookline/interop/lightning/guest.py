"""``to_lightning``: callbacks of Hookline as one callback of Lightning."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch

from hookline.errors import NotAvailableError, SetupError
from hookline.interop.guest import Guest, samples_in
from hookline.interop.lightning.trainer import NAMES, PRECISIONS
from hookline.progress import Duration
from hookline.run import MISSING

ENTRY_POINTS: Final = {"fit": "fit", "validate": "evaluate", "test": "test", "predict": "predict"}
LACKS: Final = frozenset(
    {
        *("batch_fetch_start", "batch_fetch_end", "forward_start", "forward_end", "scheduler_step", "zero_grad"),
        *("step_settled", "checkpoint_save", "checkpoint_saved", "checkpoint_loaded", "around_save"),
    }
)
"""Events and scopes of Hookline that have no counterpart among Lightning's hooks.

Events that never happen in Lightning, such as a rollback, are not among them.
"""


class LightningTrainerHost:
    """Answers for Lightning's trainer.

    Args:
        trainer: The trainer.
        module: The module that it trains.
    """

    library = "Lightning"

    def __init__(self, trainer: Any, module: Any) -> None:
        self._trainer = trainer
        self.model, self.device = module, trainer.strategy.root_device
        self.rank, self.world_size = trainer.global_rank, trainer.world_size
        self.folder: Path | None = Path(trainer.default_root_dir)
        self.precision = {theirs: ours for ours, theirs in PRECISIONS.items()}.get(str(trainer.precision), "fp32")
        self.max_duration = _duration(trainer.max_epochs, "ep") or _duration(trainer.max_steps, "st")
        self.eval_every = _duration(trainer.check_val_every_n_epoch, "ep")
        self.log_every = _duration(trainer.log_every_n_steps, "st")
        self.optimizers: dict[str, Any] = {}
        self.loaders: dict[str, Any] = {}

    def start_fit(self) -> None:
        """Take over what the trainer has made: optimizers and loaders."""
        for optimizer in self._trainer.optimizers:
            name = type(optimizer).__name__
            self.optimizers[name if name not in self.optimizers else f"{name}{len(self.optimizers) + 1}"] = optimizer

    def start_training(self) -> None:
        self.loaders["train"] = self._trainer.train_dataloader
        if self._trainer.val_dataloaders is not None:
            self.loaders["val"] = self._trainer.val_dataloaders

    def metrics(self) -> dict[str, Any]:
        return {NAMES.ours(name): value for name, value in self._trainer.callback_metrics.items()}

    def log(self, values: Any) -> None:
        trainer = self._trainer
        theirs = {NAMES.theirs(name): value for name, value in values.items()}
        trainer.callback_metrics.update(theirs)
        if trainer.global_step % trainer.log_every_n_steps == 0:
            for logger in trainer.loggers:
                logger.log_metrics({name: float(value) for name, value in theirs.items()}, step=trainer.global_step)

    def stop(self) -> None:
        self._trainer.should_stop = True

    def accumulate(self) -> int:
        return int(self._trainer.accumulate_grad_batches)

    def num_batches(self, stage: str) -> int | None:
        found = {"train": self._trainer.num_training_batches}.get(stage)
        return int(found) if found is not None and found != float("inf") else None

    def reduce(self, value: Any, op: str) -> Any:
        found = self._trainer.strategy.reduce(torch.as_tensor(value, device=self.device), reduce_op=op)
        return found if isinstance(value, torch.Tensor) else float(found)


def to_lightning(*callbacks: object) -> Any:
    """See ``hookline.interop.to_lightning``."""
    packages = [package for package in ("lightning.pytorch", "pytorch_lightning") if package in sys.modules]
    if not packages:
        raise SetupError("hl.interop.to_lightning(): Lightning is not imported. Import lightning first.")
    guest = Guest(callbacks, "Lightning", LACKS)
    bases = tuple(import_module(package).Callback for package in packages)
    return type("HooklineCallbacks", (_Hooks, *bases), {})(guest)


class _Hooks:
    """The hooks of the callback that Lightning calls."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._steps = 0
        self._is_sanity_check = False
        self._loader: int | None = None

    @property
    def state_key(self) -> str:
        return "hookline"

    def state_dict(self) -> dict[str, Any]:
        return self._guest.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._guest.load_state_dict(state_dict)

    # -- the run -----------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if not pl_module.automatic_optimization:
            raise SetupError(
                f"hl.interop.to_lightning(): {type(pl_module).__name__} steps its optimizers itself "
                f"(automatic_optimization=False), so Lightning calls no hooks around its updates. Use hl.fit."
            )
        self._host = LightningTrainerHost(trainer, pl_module)
        entry_point = ENTRY_POINTS[str(getattr(stage, "value", stage))]
        self._guest.open(self._host, entry_point, is_new=entry_point == "fit" and not trainer.global_step)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._host.start_fit()
        self._guest.send("model_ready")
        self._guest.enter("fit", "fit_start")

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._is_sanity_check = True

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        self._is_sanity_check = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._host.start_training()
        self._guest.show_stage("train")
        self._guest.enter("train", "train_start")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._guest.clock.mark_epoch()
        self._guest.enter("epoch", "train_epoch_start")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._guest.leave("epoch", "epoch_end")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        guest = self._guest
        if guest.requests.agreed.stop is not None:
            guest.send("stop")
        guest.requests.end_training()
        guest.state.clear_batch()
        guest.leave("train", "train_end")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._guest.leave("fit", "fit_end")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._guest.fail(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._guest.send("teardown")

    # -- steps -------------------------------------------------------------------------------------

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        guest = self._guest
        guest.state.show_batch(batch)
        guest.state.count_batch(samples_in(batch), None)
        self._steps = trainer.global_step
        if batch_idx % trainer.accumulate_grad_batches == 0:
            guest.enter("step", "train_step_start")
        guest.enter("batch", "train_batch_start")

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        state, batches = self._guest.state, trainer.accumulate_grad_batches
        shown = loss if batches == 1 else loss * batches  # Lightning has divided it already.
        state.show_loss(shown)
        self._guest.send("loss_ready", "backward_start")
        if state.loss is not shown:
            raise NotAvailableError("run.loss = …: Lightning drives this run, and keeps its loss. Use hl.fit.")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        guest = self._guest
        guest.leave("batch", "backward_end", "train_batch_end")
        guest.clock.batch += 1
        guest.clock.count_samples(guest.state.samples, None)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self._guest.state.optimizer = optimizer
        self._guest.send("gradients_ready", "optimizer_step_start")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        guest, clock, state = self._guest, self._guest.clock, self._guest.state
        if trainer.global_step > self._steps:
            guest.send("optimizer_step_end")
            state.optimizer = MISSING
            clock.step += 1
            guest.leave("step", "train_step_end")
            if clock.step % trainer.log_every_n_steps == 0:
                guest.metrics.record("step")
                guest.send("metrics_ready")
        if trainer.is_last_batch:
            clock.end_epoch()
            guest.send("train_epoch_end")

    # -- evaluations and predictions ---------------------------------------------------------------

    def _start(self, stage: str) -> None:
        if not self._is_sanity_check:
            self._loader = None
            self._guest.show_stage(stage)
            self._guest.clock.begin_eval()
            self._guest.enter("eval", "eval_start")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._start("val")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._start("test")

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        guest = self._guest
        if self._is_sanity_check:
            return
        if self._loader != dataloader_idx:
            self._leave_loader()
            self._loader = dataloader_idx
            guest.state.show_loader(None if dataloader_idx == 0 else f"dataloader_idx_{dataloader_idx}")
            guest.send("eval_loader_start")
        guest.state.show_batch(batch)
        guest.send("eval_batch_start")

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not self._is_sanity_check:
            self._guest.state.show_outputs(outputs)
            self._guest.clock.eval.batch_done(samples_in(batch), None)
            self._guest.send("eval_batch_end")

    on_test_batch_start, on_test_batch_end = on_validation_batch_start, on_validation_batch_end

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        guest = self._guest
        if self._is_sanity_check:
            return
        self._leave_loader()
        guest.state.clear_batch()
        guest.metrics.record("eval")
        guest.leave("eval", "eval_end")
        guest.clock.end_eval()
        guest.show_stage("train")

    on_test_end = on_validation_end

    def _leave_loader(self) -> None:
        if self._loader is not None:
            self._guest.send("eval_loader_end")
            self._guest.state.show_loader(MISSING)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self._guest.show_stage("predict")
        self._guest.enter("predict", "predict_start")

    def on_predict_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._guest.state.show_batch(batch)
        self._guest.send("predict_batch_start")

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._guest.state.show_outputs(outputs)
        self._guest.send("predict_batch_end")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self._guest.leave("predict", "predict_end")


def _duration(value: Any, unit: str) -> Duration | None:
    return Duration(value, unit) if isinstance(value, int) and value > 0 else None
