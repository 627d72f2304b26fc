"""``to_transformers``: callbacks of Hookline as one callback of transformers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch

from hookline.errors import SetupError
from hookline.interop.guest import Guest
from hookline.interop.transformers.trainer import NAMES
from hookline.progress import Duration
from hookline.run import MISSING

logger = logging.getLogger("hookline")

FILE: Final = "hookline.pt"
"""File with the states of the callbacks, in a checkpoint folder of transformers."""
LACKS: Final = frozenset(
    {
        *("batch_fetch_start", "batch_fetch_end", "forward_start", "forward_end", "loss_ready", "backward_start"),
        *("scheduler_step", "zero_grad", "step_settled", "eval_loader_start", "eval_batch_start", "eval_loader_end"),
        *("predict_start", "predict_batch_start", "predict_batch_end", "predict_end", "exception", "interrupt"),
        *("checkpoint_save", "checkpoint_saved", "checkpoint_loaded", "around_save"),
    }
)
"""Events and scopes of Hookline that have no counterpart among the hooks of transformers."""
REDUCTIONS: Final = {"sum": "SUM", "mean": "SUM", "max": "MAX", "min": "MIN"}


class TransformersTrainerHost:
    """Answers for the trainer of transformers.

    Args:
        args: Its ``TrainingArguments``.
        control: Its ``TrainerControl``.
        more: The other arguments of a hook.
    """

    library = "transformers"

    def __init__(self, args: Any, control: Any, more: Mapping[str, Any]) -> None:
        self._args, self.control = args, control
        self.model, self.device = more["model"], args.device
        self.rank, self.world_size = args.process_index, args.world_size
        self.folder: Path | None = Path(args.output_dir)
        self.precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"
        steps, epochs = args.max_steps, args.num_train_epochs
        self.max_duration: Duration | None = Duration(steps, "st") if steps > 0 else Duration(epochs, "ep")
        self.eval_every = _every(args.eval_strategy, args.eval_steps)
        self.log_every = _every(args.logging_strategy, args.logging_steps)
        optimizer = getattr(more["optimizer"], "optimizer", more["optimizer"])  # Accelerate wraps it.
        self.optimizers: dict[str, Any] = {type(optimizer).__name__: optimizer}
        self.loaders: dict[str, Any] = {"train": more["train_dataloader"]}
        self._values: dict[str, Any] = {}
        self._logged: dict[str, Any] = {}

    def show(self, logs: Mapping[str, Any]) -> None:
        """Take over metrics that the trainer logs."""
        self._values |= {NAMES.ours(name): value for name, value in logs.items() if name != "epoch"}

    def take_logged(self) -> dict[str, Any]:
        """Return what callbacks have logged since the last call, with the names of transformers."""
        found, self._logged = self._logged, {}
        return {NAMES.theirs(name): float(value) for name, value in found.items()}

    def metrics(self) -> dict[str, Any]:
        return self._values

    def log(self, values: Mapping[str, Any]) -> None:
        self._logged |= values

    def stop(self) -> None:
        self.control.should_training_stop = True

    def accumulate(self) -> int:
        return int(self._args.gradient_accumulation_steps)

    def num_batches(self, stage: str) -> int | None:
        try:
            return len(self.loaders[stage])
        except (KeyError, TypeError):
            return None

    def samples(self, batch: int) -> int:
        """Return the number of samples of a training batch. Hooks do not see the batch itself."""
        size: int = self._args.train_batch_size
        try:
            total = len(self.loaders["train"].dataset)
        except (AttributeError, TypeError):  # A loader without a data set, or a data set without a length.
            return size
        return min(size, total - batch * size) if self.world_size == 1 else size

    def reduce(self, value: Any, op: str) -> Any:
        found = torch.as_tensor(value, device=self.device).clone()
        torch.distributed.all_reduce(found, getattr(torch.distributed.ReduceOp, REDUCTIONS[op]))
        found = found / self.world_size if op == "mean" else found
        return found if isinstance(value, torch.Tensor) else float(found)


def to_transformers(*callbacks: object) -> Any:
    """See ``hookline.interop.to_transformers``."""
    if "transformers" not in sys.modules:
        raise SetupError("hl.interop.to_transformers(): transformers is not imported. Import it first.")
    base = import_module("transformers").TrainerCallback
    guest = Guest(callbacks, "transformers", LACKS)
    return type("HooklineCallbacks", (_Hooks, base), {})(guest)


class _Hooks:
    """The hooks of the callback that transformers calls."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._is_training = self._is_evaluating = False
        self._is_epoch_over = False
        self._waits_for_log = False
        self._logged_at = 0

    # -- the run -----------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if args.fp16 and not args.max_grad_norm:
            raise SetupError(
                "hl.interop.to_transformers(): with fp16=True and max_grad_norm=0, transformers shows scaled gradients "
                "to callbacks. Set max_grad_norm, or use bf16."
            )
        guest = self._guest
        self._host = TransformersTrainerHost(args, control, more)
        self._is_training, self._is_evaluating, self._is_epoch_over = True, False, False
        self._logged_at = state.global_step
        guest.requests.set_can_save(True)
        guest.open(self._host, "fit", is_new=not state.global_step)
        if state.global_step:
            self._load(Path(args.output_dir) / f"checkpoint-{state.global_step}" / FILE)
        guest.send("model_ready")
        guest.enter("fit", "fit_start")
        guest.show_stage("train")
        guest.enter("train", "train_start")
        if args.eval_on_start:
            self._start_evaluation()

    def _load(self, path: Path) -> None:
        if path.exists():
            self._guest.load_state_dict(torch.load(path, weights_only=True))
        else:
            logger.warning("%s is not there: callbacks of Hookline start from scratch in this resumed run", path)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self._is_training and args.should_save and folder.is_dir():
            torch.save(self._guest.state_dict(), folder / FILE)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        guest = self._follow(control)
        is_inside = state.epoch != int(state.epoch)  # After a resume.
        if not is_inside:
            guest.clock.mark_epoch()
        guest.enter("epoch", *(() if is_inside else ("train_epoch_start",)))
        self._request(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._follow(control).send("train_epoch_end")
        self._request(control)
        self._is_epoch_over = True
        self._announce(state, control)
        if not control.should_evaluate:
            self._end_epoch(control)

    def _end_epoch(self, control: Any) -> None:
        if self._is_epoch_over:
            self._is_epoch_over = False
            self._guest.leave("epoch", "epoch_end")
            self._request(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        guest = self._follow(control)
        self._end_epoch(control)
        if guest.requests.agreed.stop is not None:
            guest.send("stop")
        guest.requests.end_training()
        guest.leave("train", "train_end")
        guest.leave("fit", "fit_end")
        guest.send("teardown")
        self._is_training = False

    def _follow(self, control: Any) -> Guest:
        """Let a request to stop reach the control of this call, which another callback may have replaced."""
        self._host.control = control
        return self._guest

    def _request(self, control: Any) -> None:
        """Pass on requests of callbacks for an evaluation and a checkpoint."""
        requests = self._guest.requests
        if requests.agreed.evaluate:
            requests.drop_eval()
            control.should_evaluate = True
        if requests.take_save():
            control.should_save = True

    # -- steps -------------------------------------------------------------------------------------

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        guest = self._follow(control)
        guest.enter("step", "train_step_start")
        guest.enter("batch", "train_batch_start")

    def on_substep_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._end_batch(self._follow(control))
        self._guest.enter("batch", "train_batch_start")

    def _end_batch(self, guest: Guest) -> None:
        guest.leave("batch", "backward_end", "train_batch_end")
        guest.clock.count_samples(self._host.samples(guest.clock.batch_in_epoch), None)
        guest.clock.batch += 1

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        guest = self._follow(control)
        self._end_batch(guest)
        guest.state.optimizer = next(iter(self._host.optimizers.values()))
        guest.send("gradients_ready", "optimizer_step_start")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._follow(control).send("optimizer_step_end")
        self._guest.state.optimizer = MISSING

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        guest = self._follow(control)
        guest.clock.step += 1
        guest.leave("step", "train_step_end")
        if state.epoch == int(state.epoch):
            guest.clock.end_epoch()
        self._request(control)
        self._announce(state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **more: Any) -> None:
        if not self._is_training:
            return
        guest = self._follow(control)
        self._host.show(logs)
        if "loss" in logs:
            self._logged_at = state.global_step
            guest.metrics.record("step")
            guest.send("metrics_ready")
            self._request(control)
        found = self._host.take_logged()
        logs.update(found)
        state.log_history[-1].update(found)
        if self._waits_for_log:
            self._start_evaluation()

    # -- evaluations -------------------------------------------------------------------------------

    def _announce(self, state: Any, control: Any) -> None:
        """Open an evaluation that follows at once. Transformers has no hook before it, but logs before it."""
        if control.should_evaluate:
            self._waits_for_log = control.should_log and state.global_step > self._logged_at
            if not self._waits_for_log:
                self._start_evaluation()

    def _start_evaluation(self) -> None:
        guest = self._guest
        self._waits_for_log, self._is_evaluating = False, True
        guest.show_stage("val")
        guest.clock.begin_eval()
        guest.enter("eval", "eval_start")

    def on_prediction_step(self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **more: Any) -> None:
        if self._is_evaluating:
            self._guest.clock.eval.batch_done(args.eval_batch_size, None)
            self._follow(control).send("eval_batch_end")
        elif hasattr(self, "_host") and self._guest.line.hooks.around_eval:
            raise SetupError(
                "hl.interop.to_transformers(): transformers evaluates or predicts without a switch that was set at the "
                "end of a step or epoch, so callbacks such as hl.EMA could not swap the weights before. Put this "
                "callback after those that set control.should_evaluate, and remove it with trainer.remove_callback() "
                "before trainer.evaluate() or trainer.predict()."
            )

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **more: Any) -> None:
        if not self._is_evaluating:
            return
        guest = self._follow(control)
        self._is_evaluating = False
        guest.metrics.record("eval")
        guest.leave("eval", "eval_end")
        guest.clock.end_eval()
        guest.show_stage("train")
        self._request(control)
        self._end_epoch(control)


def _every(strategy: Any, steps: float | None) -> Duration | None:
    kind = getattr(strategy, "value", strategy)
    if kind == "steps" and steps is not None and steps >= 1:
        return Duration(int(steps), "st")
    return Duration(1, "ep") if kind == "epoch" else None
