"""The table of events: the only place where an event is declared.

The hooks of ``Callback``, ``docs/events.md``, ``hookline events`` and the map of foreign hooks are
generated from it or checked against it. To add an event: add its row here, and emit it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One moment of a run. Its hook is ``on_<name>``.

    A task or a callback makes its own with ``events = (Event("verify", gives=("x", "y")),)`` and
    fires it with ``run.emit("verify", x=…, y=…)``, which calls ``on_verify(self, run, x, y)``.

    >>> Event("verify_train_batch", gives=("xb", "yb")).hook
    'on_verify_train_batch'
    """

    name: str
    when: str = ""
    gives: tuple[str, ...] = ()
    """The keywords that follow ``run`` (custom events only)."""
    scope: str = ""
    """The innermost scope that is open, or that this event opens or closes."""
    valid: tuple[str, ...] = ()
    """The fields of ``run`` that have a value here and not everywhere."""
    stages: tuple[str, ...] = ()
    """The values that ``run.stage`` can have here."""

    @property
    def hook(self) -> str:
        return f"on_{self.name}"


@dataclass(frozen=True, slots=True)
class Scope:
    """A part of a run that a callback can wrap with the generator ``around_<name>``."""

    name: str
    when: str

    @property
    def hook(self) -> str:
        return f"around_{self.name}"


TRAIN = ("train",)
EVAL = ("val", "test")
PREDICT = ("predict",)
ANY = ("train", "val", "test", "predict")

BATCH = ("batch",)
FORWARD = ("batch", "outputs")
LOSS = ("batch", "outputs", "loss")
UPDATE = ("batch", "outputs", "loss", "optimizer")
STEP = ("batch", "outputs", "loss")
EVAL_LOADER = ("loader_name",)
EVAL_BATCH = ("loader_name", "batch")
EVAL_DONE = ("loader_name", "batch", "outputs")

SCOPES: tuple[Scope, ...] = (
    Scope("fit", "the whole of a fit, sanity check and final test included"),
    Scope("train", "training, with the evaluations inside it"),
    Scope("epoch", "one pass over the training loader and the evaluation due at its edge"),
    Scope("step", "one update of the weights, made of one or more batches"),
    Scope("batch", "one batch of training: forward and backward"),
    Scope("eval", "one evaluation over all of its loaders"),
    Scope("predict", "one prediction over a loader"),
    Scope("save", "one checkpoint being collected and written"),
)

# fmt: off
EVENTS: tuple[Event, ...] = (
    Event("setup", "once in each process, before loaders, device, wrapping and loading", stages=ANY),
    Event("model_ready", "the model is on its device, wrapped, compiled and loaded", stages=ANY),
    Event("fit_start", "a fit begins", scope="fit", stages=TRAIN),
    Event("sanity_check_start", "the check of the evaluation before step 1 begins", scope="fit", stages=("val",)),
    Event("sanity_check_end", "the check is over and has left no trace", scope="fit", stages=("val",)),
    Event("train_start", "training begins", scope="train", stages=TRAIN),
    Event("train_epoch_start", "an epoch begins; not sent again when a run goes on inside an epoch", scope="epoch", stages=TRAIN),
    Event("batch_fetch_start", "the next batch is asked for", scope="epoch", stages=ANY),
    Event("batch_fetch_end", "the batch is here, on its device", scope="epoch", valid=BATCH, stages=ANY),
    Event("train_step_start", "a step begins: its first batch is here", scope="step", valid=BATCH, stages=TRAIN),
    Event("train_batch_start", "one loader batch is about to go through the model", scope="batch", valid=BATCH, stages=TRAIN),
    Event("forward_start", "the model is about to be called", scope="batch", valid=BATCH, stages=ANY),
    Event("forward_end", "the model has answered", scope="batch", valid=FORWARD, stages=ANY),
    Event("loss_ready", "the loss is known, backward has not begun", scope="batch", valid=LOSS, stages=TRAIN),
    Event("backward_start", "backward is about to run", scope="batch", valid=LOSS, stages=TRAIN),
    Event("backward_end", "the gradients of this batch are added up, not yet averaged or unscaled", scope="batch", valid=LOSS, stages=TRAIN),
    Event("train_batch_end", "the batch has been through forward and backward", scope="batch", valid=LOSS, stages=TRAIN),
    Event("gradients_ready", "the gradients are complete, averaged and unscaled, not yet clipped: change them here", scope="step", valid=UPDATE, stages=TRAIN),
    Event("optimizer_step_start", "the gradients are final; the weights are about to move", scope="step", valid=UPDATE, stages=TRAIN),
    Event("optimizer_step_end", "the weights have moved; the gradients are still there", scope="step", valid=UPDATE, stages=TRAIN),
    Event("scheduler_step", "the learning-rate schedulers that were due have moved", scope="step", stages=TRAIN),
    Event("zero_grad", "the gradients have been cleared", scope="step", valid=UPDATE, stages=TRAIN),
    Event("step_skipped", "no update was made: fp16 overflow, or `run.skip_step()`", scope="step", valid=UPDATE, stages=TRAIN),
    Event("rollback", "the weights went back to an earlier snapshot", scope="step", stages=TRAIN),
    Event("train_step_end", "the step is done, its weights have moved, `clock.step` counts it", scope="step", valid=STEP, stages=TRAIN),
    Event("metrics_ready", "an interval of training metrics is final, in `run.metrics` and the history", scope="epoch", valid=STEP, stages=TRAIN),
    Event("train_epoch_end", "the updates are done, the evaluation not yet; after a stop in the epoch `clock.epoch` does not count it", scope="epoch", valid=STEP, stages=TRAIN),
    Event("eval_start", "an evaluation begins", scope="eval", stages=EVAL),
    Event("eval_loader_start", "an evaluation goes on to this loader", scope="eval", valid=EVAL_LOADER, stages=EVAL),
    Event("eval_batch_start", "one evaluation batch is about to go through the model", scope="eval", valid=EVAL_BATCH, stages=EVAL),
    Event("eval_batch_end", "the evaluation batch is done", scope="eval", valid=EVAL_DONE, stages=EVAL),
    Event("eval_loader_end", "this loader is done, its metrics can be read", scope="eval", valid=EVAL_LOADER, stages=EVAL),
    Event("eval_end", "the evaluation is done, its metrics can be read", scope="eval", stages=EVAL),
    Event("epoch_end", "the epoch and its evaluation are done; after a stop in the epoch `clock.epoch` does not count it", scope="epoch", valid=STEP, stages=TRAIN),
    Event("step_settled", "the step is evaluated and decided upon, not yet saved", scope="train", valid=STEP, stages=TRAIN),
    Event("checkpoint_save", "a checkpoint is being collected", scope="save", stages=ANY),
    Event("checkpoint_saved", "a checkpoint is committed", scope="save", valid=("checkpoint",), stages=ANY),
    Event("checkpoint_failed", "a checkpoint could not be written", scope="save", valid=("exception",), stages=ANY),
    Event("checkpoint_rejected", "a checkpoint was found invalid and is not used", valid=("checkpoint",), stages=ANY),
    Event("checkpoint_loaded", "a checkpoint has been loaded", valid=("checkpoint",), stages=ANY),
    Event("interrupt", "Ctrl-C was pressed once, or a time limit ends this process; the step is finished, the run is stopping", valid=("stop_reason",), stages=ANY),
    Event("preempt", "a signal asked the run to leave", valid=("stop_reason",), stages=ANY),
    Event("stop", "the run stops before `max_duration`", scope="train", valid=("stop_reason", *STEP), stages=TRAIN),
    Event("train_end", "training is over", scope="train", stages=TRAIN),
    Event("fit_end", "the fit is over, final test included", scope="fit", stages=TRAIN),
    Event("predict_start", "a prediction begins", scope="predict", stages=PREDICT),
    Event("predict_batch_start", "one batch is about to be predicted", scope="predict", valid=BATCH, stages=PREDICT),
    Event("predict_batch_end", "the batch is predicted", scope="predict", valid=FORWARD, stages=PREDICT),
    Event("predict_end", "the prediction is done", scope="predict", stages=PREDICT),
    Event("callback_disabled", "an optional callback failed and was switched off: `run.callbacks.disabled[-1]`", stages=ANY),
    Event("exception", "the run fails; all scopes are left", valid=("exception",), stages=ANY),
    Event("teardown", "the very last, on every way out", stages=ANY),
)
# fmt: on

BY_NAME: dict[str, Event] = {event.name: event for event in EVENTS}

STEP_EVENTS: frozenset[str] = frozenset(
    event.name
    for event in EVENTS
    if event.scope in {"step", "batch"} or event.name in {"batch_fetch_start", "batch_fetch_end", "step_settled"}
)
"""The events of every step: their cost is sampled (one step in 64), that of all others is measured."""

INSIDE_STEPS: frozenset[str] = STEP_EVENTS - {"train_step_start", "train_step_end"}
"""The events between the two ends of a step. Where nobody hears them, steps are plain (``loop/plain.py``)."""

RESOURCES: frozenset[str] = frozenset({"weights", "gradients", "optimizer", "batch", "loss"})
"""What a callback can read or write that is not a metric; ``"optimizer/<name>"`` is one of several optimizers."""


def is_resource(name: str) -> bool:
    return name in RESOURCES or name.startswith("optimizer/")


def moments(field: str) -> tuple[str, ...]:
    """The events at which a field of ``run`` that is not always there has a value."""
    return tuple(event.name for event in EVENTS if field in event.valid)
