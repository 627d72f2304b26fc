"""Hooks of a callback or task. Generated from events/spec.py by `make docs`; do not edit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookline.run import Run


class Hooks:
    """Empty default of every hook. A hook that is not overridden costs nothing."""

    def on_event(self, event: str, run: Run) -> None:
        """Run at every event, before the named hook of the same callback."""

    def on_setup(self, run: Run) -> None:
        """Run when a run starts, once per process, before loaders, device, wrapping and loading."""

    def on_model_ready(self, run: Run) -> None:
        """Run when the model is on its device, wrapped, compiled and loaded."""

    def on_fit_start(self, run: Run) -> None:
        """Run when a fit begins."""

    def on_sanity_check_start(self, run: Run) -> None:
        """Run when the sanity check begins: two batches of each evaluation loader, before step 1."""

    def on_sanity_check_end(self, run: Run) -> None:
        """Run when the sanity check is done; nothing that it logged is kept."""

    def on_train_start(self, run: Run) -> None:
        """Run when training begins."""

    def on_train_epoch_start(self, run: Run) -> None:
        """Run when an epoch begins, but not when a run resumes inside an epoch."""

    def on_batch_fetch_start(self, run: Run) -> None:
        """Run when the loop requests the next batch."""

    def on_batch_fetch_end(self, run: Run) -> None:
        """Run when the next batch is fetched and on its device."""

    def on_train_step_start(self, run: Run) -> None:
        """Run when a step begins and its first batch is on its device."""

    def on_train_batch_start(self, run: Run) -> None:
        """Run when one loader batch is about to go through the model."""

    def on_forward_start(self, run: Run) -> None:
        """Run when the model is about to be called."""

    def on_forward_end(self, run: Run) -> None:
        """Run when the model has returned its outputs."""

    def on_loss_ready(self, run: Run) -> None:
        """Run when the loss is computed and backward has not begun."""

    def on_backward_start(self, run: Run) -> None:
        """Run when backward is about to run."""

    def on_backward_end(self, run: Run) -> None:
        """Run when the gradients of this batch are accumulated, not yet averaged or unscaled."""

    def on_train_batch_end(self, run: Run) -> None:
        """Run when forward and backward of the batch are done."""

    def on_gradients_ready(self, run: Run) -> None:
        """Run when the gradients are complete, averaged and unscaled, not yet clipped: change them here."""

    def on_optimizer_step_start(self, run: Run) -> None:
        """Run when the gradients are final and the optimizer is about to update the weights."""

    def on_optimizer_step_end(self, run: Run) -> None:
        """Run when the optimizer has updated the weights and the gradients are not cleared yet."""

    def on_scheduler_step(self, run: Run) -> None:
        """Run when the learning rate schedulers that were due have stepped."""

    def on_zero_grad(self, run: Run) -> None:
        """Run when the gradients have been cleared."""

    def on_step_skipped(self, run: Run) -> None:
        """Run when no update was made: fp16 overflow, or `run.skip_step()`."""

    def on_rollback(self, run: Run) -> None:
        """Run when the run has returned to an earlier snapshot."""

    def on_train_step_end(self, run: Run) -> None:
        """Run when the step is done, the weights are updated and `clock.step` counts the step."""

    def on_metrics_ready(self, run: Run) -> None:
        """Run when the training metrics of an interval are final in `run.metrics` and `run.history`."""

    def on_train_epoch_end(self, run: Run) -> None:
        """Run when the updates of an epoch are done, before its evaluation."""

    def on_eval_start(self, run: Run) -> None:
        """Run when an evaluation begins."""

    def on_eval_loader_start(self, run: Run) -> None:
        """Run when an evaluation begins on this loader."""

    def on_eval_batch_start(self, run: Run) -> None:
        """Run when one evaluation batch is about to go through the model."""

    def on_eval_batch_end(self, run: Run) -> None:
        """Run when the evaluation batch is done."""

    def on_eval_loader_end(self, run: Run) -> None:
        """Run when this loader is done, its metrics can be read."""

    def on_eval_end(self, run: Run) -> None:
        """Run when the evaluation is done, its metrics can be read."""

    def on_epoch_end(self, run: Run) -> None:
        """Run when the updates and the evaluation of an epoch are done."""

    def on_step_settled(self, run: Run) -> None:
        """Run when the step and a due evaluation are done, before a checkpoint is saved."""

    def on_checkpoint_save(self, run: Run) -> None:
        """Run when a checkpoint is about to be collected and written."""

    def on_checkpoint_saved(self, run: Run) -> None:
        """Run when a checkpoint is committed."""

    def on_checkpoint_failed(self, run: Run) -> None:
        """Run when a checkpoint could not be written."""

    def on_checkpoint_rejected(self, run: Run) -> None:
        """Run when a checkpoint was found invalid and is not used."""

    def on_checkpoint_loaded(self, run: Run) -> None:
        """Run when a checkpoint has been loaded."""

    def on_interrupt(self, run: Run) -> None:
        """Run when Ctrl-C or a time limit ends this process; the current step is finished."""

    def on_preempt(self, run: Run) -> None:
        """Run when a signal asks the run to end this process."""

    def on_stop(self, run: Run) -> None:
        """Run when the run stops before `max_duration`."""

    def on_train_end(self, run: Run) -> None:
        """Run when training is over."""

    def on_fit_end(self, run: Run) -> None:
        """Run when the fit is over, final test included."""

    def on_predict_start(self, run: Run) -> None:
        """Run when a prediction begins."""

    def on_predict_batch_start(self, run: Run) -> None:
        """Run when one batch is about to be predicted."""

    def on_predict_batch_end(self, run: Run) -> None:
        """Run when the batch is predicted."""

    def on_predict_end(self, run: Run) -> None:
        """Run when the prediction is done."""

    def on_callback_disabled(self, run: Run) -> None:
        """Run when an optional callback failed and was disabled: `run.callbacks.disabled[-1]`."""

    def on_exception(self, run: Run) -> None:
        """Run when the run fails, after all scopes are closed."""

    def on_teardown(self, run: Run) -> None:
        """Run when the run ends, also after an error; it is the last event."""

    def around_fit(self, run: Run) -> Iterator[None]:
        """Wrap a whole fit, with sanity check and final test. Yield exactly once."""
        yield

    def around_train(self, run: Run) -> Iterator[None]:
        """Wrap training, with the evaluations inside it. Yield exactly once."""
        yield

    def around_epoch(self, run: Run) -> Iterator[None]:
        """Wrap one training epoch, with the evaluation at its end. Yield exactly once."""
        yield

    def around_step(self, run: Run) -> Iterator[None]:
        """Wrap one update of the weights, from one or more batches. Yield exactly once."""
        yield

    def around_batch(self, run: Run) -> Iterator[None]:
        """Wrap forward and backward of one training batch. Yield exactly once."""
        yield

    def around_eval(self, run: Run) -> Iterator[None]:
        """Wrap one evaluation over all of its loaders. Yield exactly once."""
        yield

    def around_predict(self, run: Run) -> Iterator[None]:
        """Wrap one prediction over a loader. Yield exactly once."""
        yield

    def around_save(self, run: Run) -> Iterator[None]:
        """Wrap the collecting and writing of one checkpoint. Yield exactly once."""
        yield
