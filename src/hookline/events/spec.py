"""The table of events: the only module that declares built-in events.

The hooks of ``Callback``, ``docs/events.md``, ``hookline events`` and the table of foreign hooks are generated from it
or checked against it. ``docs/design.md`` lists the other steps to add an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Event:
    """Point of a run at which hooks are called. Its hook is ``on_<name>``.

    A task or a callback declares a custom event with ``events = (Event("verify", gives=("x", "y")),)``. It sends the
    event with ``run.emit("verify", x=…, y=…)``, which calls ``on_verify(self, run, x, y)``.

    Example:
        >>> Event("verify_train_batch", gives=("xb", "yb")).hook
        'on_verify_train_batch'
    """

    name: str
    """Name of the event, without ``on_``."""
    when: str = ""
    """Clause that completes the sentence "The hook runs when …"."""
    gives: tuple[str, ...] = ()
    """Keyword arguments of the hook after ``run``. Only custom events have any."""
    scope: str = ""
    """Innermost scope that is open at the event, or that the event opens or closes."""
    valid: tuple[str, ...] = ()
    """Fields of ``run`` that have a value at this event, but not at all events."""
    stages: tuple[str, ...] = ()
    """Values that ``run.stage`` can have at this event."""

    @property
    def hook(self) -> str:
        return f"on_{self.name}"


@dataclass(frozen=True, slots=True)
class Scope:
    """Part of a run that a callback can wrap with the generator ``around_<name>``."""

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
EVAL_DONE = ("loader_name", "batch", "outputs", "loss")

SCOPES: tuple[Scope, ...] = (
    Scope("fit", "a whole fit, with sanity check and final test"),
    Scope("train", "training, with the evaluations inside it"),
    Scope("epoch", "one training epoch, with the evaluation at its end"),
    Scope("step", "one update of the weights, from one or more batches"),
    Scope("batch", "forward and backward of one training batch"),
    Scope("eval", "one evaluation over all of its loaders"),
    Scope("predict", "one prediction over a loader"),
    Scope("save", "the collecting and writing of one checkpoint"),
)

# fmt: off
EVENTS: tuple[Event, ...] = (
    Event("setup", "a run starts, once per process, before loaders, device, wrapping and loading", stages=ANY),
    Event("model_ready", "the model is on its device, wrapped, compiled and loaded", stages=ANY),
    Event("fit_start", "a fit begins", scope="fit", stages=TRAIN),
    Event("sanity_check_start", "the sanity check begins: two batches of each evaluation loader, before step 1", scope="fit", stages=("val",)),
    Event("sanity_check_end", "the sanity check is done; nothing that it logged is kept", scope="fit", stages=("val",)),
    Event("train_start", "training begins", scope="train", stages=TRAIN),
    Event("train_epoch_start", "an epoch begins, but not when a run resumes inside an epoch", scope="epoch", stages=TRAIN),
    Event("batch_fetch_start", "the loop requests the next batch", scope="epoch", stages=ANY),
    Event("batch_fetch_end", "the next batch is fetched and on its device", scope="epoch", valid=BATCH, stages=ANY),
    Event("train_step_start", "a step begins and its first batch is on its device", scope="step", valid=BATCH, stages=TRAIN),
    Event("train_batch_start", "one loader batch is about to go through the model", scope="batch", valid=BATCH, stages=TRAIN),
    Event("forward_start", "the model is about to be called", scope="batch", valid=BATCH, stages=ANY),
    Event("forward_end", "the model has returned its outputs", scope="batch", valid=FORWARD, stages=ANY),
    Event("loss_ready", "the loss is computed and backward has not begun", scope="batch", valid=LOSS, stages=TRAIN),
    Event("backward_start", "backward is about to run", scope="batch", valid=LOSS, stages=TRAIN),
    Event("backward_end", "the gradients of this batch are accumulated, not yet averaged or unscaled", scope="batch", valid=LOSS, stages=TRAIN),
    Event("train_batch_end", "forward and backward of the batch are done", scope="batch", valid=LOSS, stages=TRAIN),
    Event("gradients_ready", "the gradients are complete, averaged and unscaled, not yet clipped: change them here", scope="step", valid=UPDATE, stages=TRAIN),
    Event("optimizer_step_start", "the gradients are final and the optimizer is about to update the weights", scope="step", valid=UPDATE, stages=TRAIN),
    Event("optimizer_step_end", "the optimizer has updated the weights and the gradients are not cleared yet", scope="step", valid=UPDATE, stages=TRAIN),
    Event("scheduler_step", "the learning rate schedulers that were due have stepped", scope="step", stages=TRAIN),
    Event("zero_grad", "the gradients have been cleared", scope="step", valid=UPDATE, stages=TRAIN),
    Event("step_skipped", "no update was made: fp16 overflow, or `run.skip_step()`", scope="step", valid=UPDATE, stages=TRAIN),
    Event("rollback", "the run has returned to an earlier snapshot", scope="step", stages=TRAIN),
    Event("train_step_end", "the step is done, the weights are updated and `clock.step` counts the step", scope="step", valid=STEP, stages=TRAIN),
    Event("metrics_ready", "the training metrics of an interval are final in `run.metrics` and `run.history`", scope="epoch", valid=STEP, stages=TRAIN),
    Event("train_epoch_end", "the updates of an epoch are done, before its evaluation", scope="epoch", valid=STEP, stages=TRAIN),
    Event("eval_start", "an evaluation begins", scope="eval", stages=EVAL),
    Event("eval_loader_start", "an evaluation begins on this loader", scope="eval", valid=EVAL_LOADER, stages=EVAL),
    Event("eval_batch_start", "one evaluation batch is about to go through the model", scope="eval", valid=EVAL_BATCH, stages=EVAL),
    Event("eval_batch_end", "the evaluation batch is done", scope="eval", valid=EVAL_DONE, stages=EVAL),
    Event("eval_loader_end", "this loader is done, its metrics can be read", scope="eval", valid=EVAL_LOADER, stages=EVAL),
    Event("eval_end", "the evaluation is done, its metrics can be read", scope="eval", stages=EVAL),
    Event("epoch_end", "the updates and the evaluation of an epoch are done", scope="epoch", valid=STEP, stages=TRAIN),
    Event("step_settled", "the step and a due evaluation are done, before a checkpoint is saved", scope="train", valid=STEP, stages=TRAIN),
    Event("checkpoint_save", "a checkpoint is about to be collected and written", scope="save", stages=ANY),
    Event("checkpoint_saved", "a checkpoint is committed", scope="save", valid=("checkpoint",), stages=ANY),
    Event("checkpoint_failed", "a checkpoint could not be written", scope="save", valid=("exception",), stages=ANY),
    Event("checkpoint_rejected", "a checkpoint was found invalid and is not used", valid=("checkpoint",), stages=ANY),
    Event("checkpoint_loaded", "a checkpoint has been loaded", valid=("checkpoint",), stages=ANY),
    Event("interrupt", "Ctrl-C or a time limit ends this process; the current step is finished", valid=("stop_reason",), stages=ANY),
    Event("preempt", "a signal asks the run to end this process", valid=("stop_reason",), stages=ANY),
    Event("stop", "the run stops before `max_duration`", scope="train", valid=("stop_reason", *STEP), stages=TRAIN),
    Event("train_end", "training is over", scope="train", stages=TRAIN),
    Event("fit_end", "the fit is over, final test included", scope="fit", stages=TRAIN),
    Event("predict_start", "a prediction begins", scope="predict", valid=EVAL_LOADER, stages=PREDICT),
    Event("predict_batch_start", "one batch is about to be predicted", scope="predict", valid=EVAL_BATCH, stages=PREDICT),
    Event("predict_batch_end", "the batch is predicted", scope="predict", valid=("loader_name", *FORWARD), stages=PREDICT),
    Event("predict_end", "the prediction is done", scope="predict", valid=EVAL_LOADER, stages=PREDICT),
    Event("callback_disabled", "an optional callback failed and was disabled: `run.callbacks.disabled[-1]`", stages=ANY),
    Event("exception", "the run fails, after all scopes are closed", valid=("exception",), stages=ANY),
    Event("teardown", "the run ends, also after an error; it is the last event", stages=ANY),
)
# fmt: on

BY_NAME: dict[str, Event] = {event.name: event for event in EVENTS}

STEP_EVENTS: frozenset[str] = frozenset(
    event.name
    for event in EVENTS
    if event.scope in {"step", "batch"} or event.name in {"batch_fetch_start", "batch_fetch_end", "step_settled"}
)
"""Events of every step.

Hookline measures their cost in one step out of 64, and the cost of all other events always.
"""

RESOURCES: frozenset[str] = frozenset({"weights", "gradients", "optimizer", "batch", "loss"})
"""Names in ``reads`` and ``writes`` that are not metrics.

``"optimizer/<name>"`` is one of several optimizers.
"""


def is_resource(name: str) -> bool:
    return name in RESOURCES or name.startswith("optimizer/")


@cache
def moments(field: str) -> tuple[str, ...]:
    """Return the events at which a field of ``run`` has a value. Empty if it always has one."""
    return tuple(event.name for event in EVENTS if field in event.valid)
