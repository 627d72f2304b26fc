"""The hooks of a callback or task. Generated from events/spec.py by `make docs`; do not edit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookline.run import Run


class Hooks:
    """Every hook, empty. A hook that is not overridden costs nothing."""

    def on_event(self, event: str, run: Run) -> None:
        """Every event, by name, before the named hook of the same callback."""

    def on_setup(self, run: Run) -> None:
        """Once in each process, before loaders, device, wrapping and loading."""

    def on_model_ready(self, run: Run) -> None:
        """The model is on its device, wrapped, compiled and loaded."""

    def on_fit_start(self, run: Run) -> None:
        """A fit begins."""

    def on_sanity_check_start(self, run: Run) -> None:
        """The check of the evaluation before step 1 begins."""

    def on_sanity_check_end(self, run: Run) -> None:
        """The check is over and has left no trace."""

    def on_train_start(self, run: Run) -> None:
        """Training begins."""

    def on_train_epoch_start(self, run: Run) -> None:
        """An epoch begins; not sent again when a run goes on inside an epoch."""

    def on_batch_fetch_start(self, run: Run) -> None:
        """The next batch is asked for."""

    def on_batch_fetch_end(self, run: Run) -> None:
        """The batch is here, on its device."""

    def on_train_step_start(self, run: Run) -> None:
        """A step begins: its first batch is here."""

    def on_train_batch_start(self, run: Run) -> None:
        """One loader batch is about to go through the model."""

    def on_forward_start(self, run: Run) -> None:
        """The model is about to be called."""

    def on_forward_end(self, run: Run) -> None:
        """The model has answered."""

    def on_loss_ready(self, run: Run) -> None:
        """The loss is known, backward has not begun."""

    def on_backward_start(self, run: Run) -> None:
        """Backward is about to run."""

    def on_backward_end(self, run: Run) -> None:
        """The gradients of this batch are added up, not yet averaged or unscaled."""

    def on_train_batch_end(self, run: Run) -> None:
        """The batch has been through forward and backward."""

    def on_gradients_ready(self, run: Run) -> None:
        """The gradients are complete, averaged and unscaled, not yet clipped: change them here."""

    def on_optimizer_step_start(self, run: Run) -> None:
        """The gradients are final; the weights are about to move."""

    def on_optimizer_step_end(self, run: Run) -> None:
        """The weights have moved; the gradients are still there."""

    def on_scheduler_step(self, run: Run) -> None:
        """The learning-rate schedulers that were due have moved."""

    def on_zero_grad(self, run: Run) -> None:
        """The gradients have been cleared."""

    def on_step_skipped(self, run: Run) -> None:
        """No update was made: fp16 overflow, or `run.skip_step()`."""

    def on_rollback(self, run: Run) -> None:
        """The weights went back to an earlier snapshot."""

    def on_train_step_end(self, run: Run) -> None:
        """The step is done, its weights have moved, `clock.step` counts it."""

    def on_metrics_ready(self, run: Run) -> None:
        """An interval of training metrics is final, in `run.metrics` and the history."""

    def on_train_epoch_end(self, run: Run) -> None:
        """The updates are done, the evaluation not yet; after a stop in the epoch `clock.epoch` does not count it."""

    def on_eval_start(self, run: Run) -> None:
        """An evaluation begins."""

    def on_eval_loader_start(self, run: Run) -> None:
        """An evaluation goes on to this loader."""

    def on_eval_batch_start(self, run: Run) -> None:
        """One evaluation batch is about to go through the model."""

    def on_eval_batch_end(self, run: Run) -> None:
        """The evaluation batch is done."""

    def on_eval_loader_end(self, run: Run) -> None:
        """This loader is done, its metrics can be read."""

    def on_eval_end(self, run: Run) -> None:
        """The evaluation is done, its metrics can be read."""

    def on_epoch_end(self, run: Run) -> None:
        """The epoch and its evaluation are done; after a stop in the epoch `clock.epoch` does not count it."""

    def on_step_settled(self, run: Run) -> None:
        """The step is evaluated and decided upon, not yet saved."""

    def on_checkpoint_save(self, run: Run) -> None:
        """A checkpoint is being collected."""

    def on_checkpoint_saved(self, run: Run) -> None:
        """A checkpoint is committed."""

    def on_checkpoint_failed(self, run: Run) -> None:
        """A checkpoint could not be written."""

    def on_checkpoint_rejected(self, run: Run) -> None:
        """A checkpoint was found invalid and is not used."""

    def on_checkpoint_loaded(self, run: Run) -> None:
        """A checkpoint has been loaded."""

    def on_interrupt(self, run: Run) -> None:
        """Ctrl-C was pressed once, or a time limit ends this process; the step is finished, the run is stopping."""

    def on_preempt(self, run: Run) -> None:
        """A signal asked the run to leave."""

    def on_stop(self, run: Run) -> None:
        """The run stops before `max_duration`."""

    def on_train_end(self, run: Run) -> None:
        """Training is over."""

    def on_fit_end(self, run: Run) -> None:
        """The fit is over, final test included."""

    def on_predict_start(self, run: Run) -> None:
        """A prediction begins."""

    def on_predict_batch_start(self, run: Run) -> None:
        """One batch is about to be predicted."""

    def on_predict_batch_end(self, run: Run) -> None:
        """The batch is predicted."""

    def on_predict_end(self, run: Run) -> None:
        """The prediction is done."""

    def on_callback_disabled(self, run: Run) -> None:
        """An optional callback failed and was switched off: `run.callbacks.disabled[-1]`."""

    def on_exception(self, run: Run) -> None:
        """The run fails; all scopes are left."""

    def on_teardown(self, run: Run) -> None:
        """The very last, on every way out."""

    def around_fit(self, run: Run) -> Iterator[None]:
        """Wrap the whole of a fit, sanity check and final test included: one ``yield``."""
        yield

    def around_train(self, run: Run) -> Iterator[None]:
        """Wrap training, with the evaluations inside it: one ``yield``."""
        yield

    def around_epoch(self, run: Run) -> Iterator[None]:
        """Wrap one pass over the training loader and the evaluation due at its edge: one ``yield``."""
        yield

    def around_step(self, run: Run) -> Iterator[None]:
        """Wrap one update of the weights, made of one or more batches: one ``yield``."""
        yield

    def around_batch(self, run: Run) -> Iterator[None]:
        """Wrap one batch of training: forward and backward: one ``yield``."""
        yield

    def around_eval(self, run: Run) -> Iterator[None]:
        """Wrap one evaluation over all of its loaders: one ``yield``."""
        yield

    def around_predict(self, run: Run) -> Iterator[None]:
        """Wrap one prediction over a loader: one ``yield``."""
        yield

    def around_save(self, run: Run) -> Iterator[None]:
        """Wrap one checkpoint being collected and written: one ``yield``."""
        yield
