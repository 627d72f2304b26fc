"""``SupervisedTask``: a task of a plain model, a loss and an optimizer.

Users may subclass it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isclass, signature
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hookline.errors import DataError, HooklineError, SetupError, StopTraining, describe, describe_arguments
from hookline.loop.tasks.loss_weights import LossWeights
from hookline.loop.tasks.task import Task, counter
from hookline.progress.counted import counted
from hookline.run.state import MISSING
from hookline.run.targets import SEQUENCES, TARGET_KEYS, argument_names, find_target, model_inputs

if TYPE_CHECKING:
    from hookline.run import Run


class SupervisedTask(Task[Any]):
    """The task that ``Trainer.fit(model, …)`` creates.

    How the loss of a batch is computed:

    - ``(inputs, targets)``: ``loss(model(inputs), targets)``. With more items, all but the last are inputs.
    - A dict with a target: the target is the first of the keys ``"labels"``, ``"label"``, ``"targets"``, ``"target"``,
      ``"y"``, ``"masks"`` and ``"mask"`` that the dict has. The model gets the other items by name, and the target as
      well if it takes an argument of that name.
    - Any other batch: ``loss(model(batch), batch)``.
    - Without a loss function: the model computes the loss. It returns a tensor, ``outputs.loss`` or
      ``outputs["loss"]``.

    A loss function may return ``(loss, weight)``. The weight of a batch is the number that its loss is a mean over.
    With it, accumulation, several ranks and evaluation give the same result as one full batch. Hookline knows the
    weight for the losses of torch, with class weights and ignored targets, and for models of Hugging Face with
    ``labels``. For any other loss it is the number of samples, or the result of ``weight``. Hookline calls copies of
    such a loss on halves of some batches, and warns if it is not a mean over samples.

    Args:
        model: The model.
        loss: A loss module or a function of outputs and targets. ``None`` if the model computes its loss.
        optimizer: An optimizer, or a class or function of the parameters.
        scheduler: A scheduler, or a function of the optimizer.
        weight: A function of ``(outputs, batch)`` that returns the weight of the batch.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any] | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        *,
        weight: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        super().__init__()
        if loss is not None and (isclass(loss) or not callable(loss)):
            hint = f"write loss={loss.__name__}()" if isclass(loss) else "pass a loss module or a function"
            raise SetupError(f"loss={loss!r} cannot be called with outputs and targets; {hint}")
        self.model: Any = model
        self.loss = loss
        self.optimizer = optimizer
        self.scheduler = scheduler
        self._arguments: tuple[Any, frozenset[str] | None] = (None, None)  # a model, and its argument names
        self.loss_weights = LossWeights(weight)
        self.loss_weights.choose(loss, model)

    def configure_optimizers(self, run: Run) -> Any:
        """Return the optimizer and the scheduler that were passed to the constructor.

        Args:
            run: The run.
        """
        return self.optimizer, self.scheduler

    def train_batch(self, run: Run, batch: Any, /) -> Any:
        """Return the loss of a training batch.

        Args:
            run: The run.
            batch: The batch, on the device of the model.
        """
        given = run._state.batch
        outputs = self.call_model(run, batch)
        return self.compute_loss(outputs, _now(run, given, batch))

    def eval_batch(self, run: Run, batch: Any, /) -> Any:
        """Return a dict with the loss and the outputs of an evaluation batch.

        Args:
            run: The run.
            batch: The batch, on the device of the model.
        """
        given = run._state.batch
        outputs = self.call_model(run, batch)
        found = self.compute_loss(outputs, _now(run, given, batch))
        return {**found, "outputs": outputs} if isinstance(found, dict) else {"loss": found, "outputs": outputs}

    def predict_batch(self, run: Run, batch: Any, /) -> Any:
        """Return the predictions for a batch: the outputs of the model.

        Args:
            run: The run.
            batch: The batch, on the device of the model.
        """
        return self.call_model(run, batch)

    def call_model(self, run: Run, batch: Any, /) -> Any:
        """Run the forward on the inputs of a batch, between ``forward_start`` and ``forward_end``.

        Args:
            run: The run.
            batch: The batch, on the device of the model.
        """
        state = run._state
        line = state.line
        if line.hooks.forward_start:
            given = state.batch
            line.emit(line.hooks.forward_start)
            if state.batch is not given:
                _check_count(self, given, state.batch)
                batch = state.batch
        model: Any = self._modules["model"]  # nn.Module.__getattr__ would take 0.4 µs.
        try:
            if isinstance(batch, SEQUENCES):
                outputs = model(batch[0]) if len(batch) <= 2 else model(*batch[:-1])
            elif isinstance(batch, Mapping):
                outputs = model(**model_inputs(batch, self._arguments_of(model)))
            else:
                outputs = model(batch)
        except Exception as error:
            note_model_error(error, model, batch)
            raise
        state.show_outputs(outputs)
        if line.hooks.forward_end:
            line.emit(line.hooks.forward_end)
            outputs = state.outputs
        return outputs

    def _arguments_of(self, model: nn.Module) -> frozenset[str] | None:
        if self._arguments[0] is not model:
            self._arguments = model, argument_names(model.forward)
        return self._arguments[1]

    def compute_loss(self, outputs: Any, batch: Any, /) -> Any:
        """Return the loss of a batch, or a dict with the loss and its weight.

        Args:
            outputs: The outputs of the model.
            batch: The batch, on the device of the model.
        """
        compute = self._modules.get("loss") or self.loss
        weights = self.loss_weights
        if isinstance(batch, SEQUENCES) and batch:
            targets = batch[-1]
        elif (targets := find_target(batch)) is None:
            targets = batch
        if weights.loss is not compute:  # A callback has replaced the loss.
            weights.choose(compute, self._modules["model"])
        try:
            loss = _loss_of(outputs) if compute is None else compute(outputs, targets)
        except Exception as error:
            note_loss_error(error, compute, outputs, targets, batch)
            raise
        if type(loss) is tuple:
            return {"loss": loss[0], "weight": loss[1]}
        weights.computed(outputs, batch, targets)
        return loss

    def note_error(self, error: Exception, outputs: Any, batch: Any) -> None:
        """Note what the model or the loss was called with, if a step has called them and one has failed.

        Args:
            error: The error.
            outputs: The outputs of the model, or ``MISSING`` if it has failed.
            batch: The batch, a pair.
        """
        if outputs is MISSING:
            note_model_error(error, self.model, batch)
        else:
            note_loss_error(error, self.loss, outputs, batch[1], batch)


def _now(run: Run, given: Any, batch: Any) -> Any:
    """Return the batch for the loss: another one if a hook has replaced it before the forward."""
    now = run._state.batch
    return batch if now is given else now


def _check_count(task: SupervisedTask, given: Any, replaced: Any) -> None:
    """Raise if a replaced batch has another number of samples than the batch that was counted."""
    count = counter(task)
    before, now = count(given), count(replaced)
    if before != now:
        raise DataError(
            f"run.batch = … in on_forward_start: the batch has {counted(now[0], 'sample')}, and {before[0]} are "
            f"counted already. Replace it in on_train_batch_start or on_eval_batch_start."
        )


def title_of(module: nn.Module) -> str:
    """Return the name of the user's class, for messages: the model, if Hookline made the task.

    >>> title_of(SupervisedTask(nn.Linear(2, 2)))
    'Linear'
    """
    return type(module.model if type(module) is SupervisedTask else module).__name__


def loss_of_task(task: Any) -> Callable[..., Any] | None:
    """Return the loss function of a ``SupervisedTask``.

    ``None`` for any other task, which computes its own loss.
    """
    return task.loss if isinstance(task, SupervisedTask) else None


def own_loss_of(task: Any) -> Any:
    """Return the loss of a task if a plain step may call the model and the loss itself.

    That is a loss module of torch without hooks: it returns a new scalar tensor. ``None`` for any other loss.
    """
    if type(task) is not SupervisedTask or not type(task.loss).__module__.startswith("torch.nn."):
        return None
    loss: Any = task.loss
    return loss if getattr(loss, "reduction", "none") != "none" and not loss._forward_hooks else None


def note_model_error(error: Exception, model: nn.Module, batch: Any) -> None:
    """Add a note to an error of the model: its inputs, and why they do not fit its arguments."""
    if isinstance(error, HooklineError | StopTraining):
        return
    note = _misfit(model, batch) if isinstance(error, TypeError) else ""
    if not note and isinstance(batch, Mapping):
        given = describe_arguments(model_inputs(batch, argument_names(model.forward)))
        note = f"in {type(model).__name__}, called with {given}"
    elif not note:
        inputs = (batch[:1] if len(batch) <= 2 else batch[:-1]) if isinstance(batch, SEQUENCES) else (batch,)
        note = f"in {type(model).__name__}, called with {' and '.join(map(describe, inputs))}"
    error.add_note(note)


def note_loss_error(error: Exception, loss: Any, outputs: Any, targets: Any, batch: Any) -> None:
    """Add a note to an error of the loss: its inputs, and why it got a dict."""
    if isinstance(error, HooklineError | StopTraining):
        return
    name = getattr(getattr(loss, "func", loss), "__name__", type(loss).__name__)
    error.add_note(f"in {name}, called with {describe(outputs)} and {describe(targets)}")
    if isinstance(batch, Mapping) and targets is batch:
        error.add_note(
            f"the batch is a dict with the keys {', '.join(map(str, batch))}, and the loss got all of it, because none "
            f"of them is {', '.join(TARGET_KEYS)}; give the target one of these keys, or write "
            f"loss=lambda outputs, batch: …"
        )


def _misfit(model: nn.Module, batch: Any) -> str:
    """Return how a batch became arguments that the model does not take. Empty if it takes them.

    >>> _misfit(nn.Linear(2, 2), {"image": 1, "label": 2})  # doctest: +ELLIPSIS
    'the batch is a dict, so that the model is called by its names: Linear(image=…), and takes (input); ...'
    """
    inputs: Sequence[Any] = ()
    by_name: Mapping[str, Any] = {}
    if isinstance(batch, Mapping):
        by_name = model_inputs(batch, argument_names(model.forward))
        called = [f"{name}=…" for name in by_name]
        how, instead = "a dict, so that the model is called by its names", "give the batch the names of the arguments"
    elif isinstance(batch, SEQUENCES):
        inputs = batch[:1] if len(batch) <= 2 else batch[:-1]
        called = [type(part).__name__ for part in inputs]
        which = "its first part" if len(batch) <= 2 else "all but the last part"
        how = f"a {type(batch).__name__} of {len(batch)}, so that the model is called with {which}"
        instead = "give the batch as many inputs as the model takes, and one target"
    else:
        inputs, called, how = (batch,), [type(batch).__name__], "one value, so that the model is called with it alone"
        instead = "give batches (inputs, targets)"
    try:
        takes = signature(model.forward)
    except (TypeError, ValueError):  # Some callables have no signature.
        return ""
    try:
        takes.bind(*inputs, **by_name)
    except TypeError:
        return (
            f"the batch is {how}: {type(model).__name__}({', '.join(called)}), and takes "
            f"({', '.join(takes.parameters)}); {instead}, or write a task (hl.Task), whose train_batch(run, batch) "
            f"calls the model as you like"
        )
    return ""


def _loss_of(outputs: Any) -> Any:
    """Return the loss that a model has computed."""
    if isinstance(outputs, Mapping) and "loss" in outputs:
        return outputs["loss"]
    if isinstance(getattr(outputs, "loss", None), Tensor):
        return outputs.loss
    if isinstance(outputs, Tensor) and outputs.ndim == 0:
        return outputs
    raise SetupError(
        f"no loss= was given and the model returned {type(outputs).__name__} without a loss; "
        f"pass loss=nn.CrossEntropyLoss() or the like, or return a scalar, .loss or ['loss'] from the model"
    )
