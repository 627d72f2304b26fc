"""``SupervisedTask``: a plain model, a loss and an optimizer as a task; to be subclassed with ``super()``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isclass, signature
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hookline.errors import SetupError
from hookline.loop.task import Task

if TYPE_CHECKING:
    from hookline.run import Run


PARTS = (tuple, list)  # `tuple | list` would make a new type at every call


class SupervisedTask(Task[Any]):
    """What ``Trainer.fit(model, …)`` uses.

    A batch ``(inputs, targets)`` gives ``loss(model(inputs), targets)``; with more parts, all but the
    last are inputs. A dict gives ``model(**batch)``, anything else ``model(batch)``; the loss is then
    ``loss(outputs, batch)``, or without a loss function the model's own: a tensor, ``outputs.loss`` or
    ``outputs["loss"]``. A loss function may return ``(loss, weight)``.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any] | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
    ) -> None:
        super().__init__()
        if loss is not None and (isclass(loss) or not callable(loss)):
            hint = f"write loss={loss.__name__}()" if isclass(loss) else "pass a loss module or a function"
            raise SetupError(f"loss={loss!r} cannot be called with outputs and targets; {hint}")
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.scheduler = scheduler

    def configure_optimizers(self, run: Run) -> Any:
        """What was given: an optimizer, or a class or function that is given the parameters; and the scheduler."""
        return self.optimizer, self.scheduler

    def train_batch(self, run: Run, batch: Any) -> Any:
        return self.compute_loss(self.call_model(run, batch), batch)

    def eval_batch(self, run: Run, batch: Any) -> Any:
        outputs = self.call_model(run, batch)
        found = self.compute_loss(outputs, batch)
        return {**found, "outputs": outputs} if isinstance(found, dict) else {"loss": found, "outputs": outputs}

    def predict_batch(self, run: Run, batch: Any) -> Any:
        return self.call_model(run, batch)

    def call_model(self, run: Run, batch: Any) -> Any:
        """The forward pass on the inputs of a batch, between ``forward_start`` and ``forward_end``."""
        state = run._state
        line = state.line
        if line.hooks.forward_start:
            line.emit(line.hooks.forward_start)
        model: Any = self._modules["model"]  # nn.Module.__getattr__ would take 0.4 µs here
        try:
            if isinstance(batch, PARTS):
                outputs = model(batch[0]) if len(batch) <= 2 else model(*batch[:-1])
            elif isinstance(batch, Mapping):
                outputs = model(**batch)
            else:
                outputs = model(batch)
        except TypeError as error:
            if note := _misfit(model, batch):
                error.add_note(note)
            raise
        state.outputs = outputs
        if line.hooks.forward_end:
            line.emit(line.hooks.forward_end)
        return outputs

    def compute_loss(self, outputs: Any, batch: Any) -> Any:
        """The loss of the outputs on the targets of a batch, or a dict with its weight."""
        compute = self._modules.get("loss") or self.loss
        if compute is None:
            return _loss_of(outputs)
        loss = compute(outputs, batch[-1] if isinstance(batch, PARTS) and batch else batch)
        if type(loss) is tuple:
            return {"loss": loss[0], "weight": loss[1]}
        return loss


def title_of(module: nn.Module) -> str:
    """The class that the user wrote, for messages: of a plain model its own, not that of the task around it.

    >>> title_of(SupervisedTask(nn.Linear(2, 2)))
    'Linear'
    """
    return type(module.model if type(module) is SupervisedTask else module).__name__


def own_loss_of(task: Any) -> Any:
    """The loss of a task, where a plain step may call model and loss itself: one of torch's, which nobody looks into.

    It gives a scalar, and a tensor that nobody else holds. ``None`` for any other.
    """
    if type(task) is not SupervisedTask or not type(task.loss).__module__.startswith("torch.nn."):
        return None
    loss: Any = task.loss
    return loss if getattr(loss, "reduction", "none") != "none" and not loss._forward_hooks else None


def _misfit(model: nn.Module, batch: Any) -> str:
    """How a batch was spread over the arguments of a model that do not fit it; empty if they do, and it failed inside.

    >>> _misfit(nn.Linear(2, 2), {"image": 1, "label": 2})  # doctest: +ELLIPSIS
    'the batch is a dict, so that the model is called by its names: Linear(image=…, label=…), and takes (input); ...'
    """
    inputs: Sequence[Any] = ()
    by_name: Mapping[str, Any] = {}
    if isinstance(batch, Mapping):
        by_name, called = batch, [f"{name}=…" for name in batch]
        how, instead = "a dict, so that the model is called by its names", "give the batch the names of the arguments"
    elif isinstance(batch, PARTS):
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
    except (TypeError, ValueError):  # some callables have none
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
    """The loss that a model computes itself."""
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
