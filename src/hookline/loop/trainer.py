"""``Trainer``: trains, evaluates and predicts with a model or a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import DataLoader

from hookline.checkpoint.request import Resume
from hookline.distributed.strategy import Strategy, StrategyName
from hookline.errors import ArgumentError, SetupError, StopTraining
from hookline.events import check_callbacks
from hookline.loop.data.loaders import check_loader, named_loaders
from hookline.loop.evaluation.eval_loader import without_intervals
from hookline.loop.evaluation.tasks import Returning
from hookline.loop.keywords import checked, later
from hookline.loop.loop import Loop
from hookline.loop.record.notices import log_new_run, under_way
from hookline.loop.result import Result
from hookline.loop.saving.choosing import check_ckpt, weights_of
from hookline.loop.settings import InterruptName, PrecisionName, PreflightName, Settings, as_list, options_of
from hookline.loop.tasks.foreign import foreign_loaders, foreign_task
from hookline.loop.tasks.supervised import SupervisedTask
from hookline.loop.tasks.task import Task
from hookline.loop.tasks.task_methods import check_task, missing_method
from hookline.progress import Duration
from hookline.run import Requests


class Trainer:
    """Train, evaluate and predict with a model or a task, and with callbacks.

    Args:
        max_duration: How long to train: ``"5ep"``, ``"500st"``, ``"1e6tok"`` or ``"2h"``. Training needs it.
        callbacks: Callbacks of the run: instances of ``hl.Callback``, or functions decorated with ``hl.on``.
        progress: Show a progress bar. ``hl.Trainer`` and the functions have one; ``hookline.loop.Trainer`` has none.
        eval_every: How often to evaluate on ``val``. ``None``: never.
        log_every: Interval over which training metrics are averaged. ``None``: only over epochs, without
            ``train/loss``.
        accumulate: Number of batches that make one step.
        precision: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        device: Device of the model. ``None``: the accelerator if this machine has one, else the CPU.
        compile: ``True``, or a dict of keyword arguments for ``torch.compile``. The model is compiled in place.
        strategy: How several processes train together: ``"auto"``, ``"ddp"``, ``"fsdp"``, ``hl.DDP(…)`` or
            ``hl.FSDP(…)``.
        seed: Seed for Python, NumPy and torch. ``None``: Hookline seeds nothing.
        folder: Folder of the run, or an address to copy it to. ``None``: a new folder under ``runs/``. ``False``:
            write nothing.
        resume: ``"auto"``: continue from the newest checkpoint in ``folder``, if there is one. Or the path or
            address of a checkpoint or run.
        name: Name of the run: ``"run"`` or ``"project/run"``.
        config: Hyper-parameters to store with the run.
        sinks: Where records are sent in addition to the folder: ``[hl.sinks.TensorBoard()]``, or objects with
            ``log(dict, step)``.
        interrupt: What ``fit`` does after Ctrl-C, when the step is finished and saved: ``"return"`` the result, or
            ``"raise"`` ``KeyboardInterrupt``.
        preflight: ``True``: find probable mistakes before step 1 and leave no trace. Errors raise ``SetupError``.
            ``"strict"``: warnings are errors as well. ``False``: only the sanity check of ``fit``.

    Example:
        >>> import torch
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="2ep", folder=False)
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        >>> result.stop_reason
        'max_duration (2ep) reached'
    """

    @checked
    def __init__(
        self,
        *,
        max_duration: str | Duration | None = None,
        callbacks: Iterable[object] = (),
        progress: bool = True,
        eval_every: str | Duration | None = "1ep",
        log_every: str | Duration | None = "100st",
        accumulate: int = 1,
        precision: PrecisionName = "fp32",
        device: str | torch.device | None = None,
        compile: bool | Mapping[str, Any] = False,
        strategy: StrategyName | Strategy = "auto",
        seed: int | None = None,
        folder: str | Path | Literal[False] | None = None,
        resume: str | Path | Resume | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        sinks: Iterable[Any] = (),
        interrupt: InterruptName = "return",
        preflight: bool | PreflightName = False,
    ) -> None:
        self._options = options_of(locals())
        if not isinstance(progress, bool):
            raise ArgumentError(f"Trainer(progress={progress!r}): must be True or False.")
        self.progress = progress
        settings = Settings.read(self._options, "Trainer")  # Raise here for a wrong option, not at the first fit.
        self._callbacks = as_list(callbacks, "Trainer")
        check_callbacks([*self._callbacks, *self.default_callbacks(self._callbacks), *settings.callbacks_of_sinks()])
        self._given: tuple[Any, ...] = ()
        self._loop: Loop | None = None

    def default_callbacks(self, given: list[object]) -> list[object]:
        """Return the callbacks to add to the user's. A subclass may add some.

        Args:
            given: The user's callbacks.
        """
        return []

    def when_written(self, folder: Path) -> None:
        """Write more into the folder of a fit that has ended. A subclass may write a report.

        Args:
            folder: The folder of the run.
        """

    # -- entry points --------------------------------------------------------------------------

    @checked
    def fit(
        self,
        model: nn.Module,
        train: Any,
        val: Any = None,
        test: Any = None,
        *,
        loss: Callable[..., Any] | None = None,
        weight: Callable[[Any, Any], Any] | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        callbacks: Iterable[object] = (),
        extend: str | Duration | None = None,
    ) -> Result:
        """Train the model, evaluate on ``val`` during training and on ``test`` at the end.

        A second ``fit`` with the same model continues the first.

        Args:
            model: A model or a ``Task``.
            train: Loader of the training batches: a ``DataLoader`` or any other iterable.
            val: Loader for the evaluations during training, or a dict of named loaders.
            test: Loader for one evaluation after training, or a dict of named loaders.
            loss: Loss function of a plain model, called with outputs and targets.
            weight: Function of ``(outputs, batch)`` that returns how much the loss of the batch counts in a mean.
            optimizer: Optimizer of a plain model: an instance, a class, a function of the parameters, or several in
                a list or dict.
            scheduler: Learning rate scheduler, or a function that makes one for the optimizer.
            callbacks: Callbacks for this call only, in addition to those of the trainer.
            extend: Continue the last ``fit`` for this much longer, for example ``"2ep"``.
        """
        return later(self._fit, "fit", model, train, val, test, loss, weight, optimizer, scheduler, callbacks, extend)

    @checked
    def train(
        self,
        model: nn.Module,
        train: Any,
        *,
        loss: Callable[..., Any] | None = None,
        weight: Callable[[Any, Any], Any] | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        callbacks: Iterable[object] = (),
        extend: str | Duration | None = None,
    ) -> Result:
        """Train the model without any evaluation.

        Args:
            model: A model or a ``Task``.
            train: Loader of the training batches: a ``DataLoader`` or any other iterable.
            loss: Loss function of a plain model, called with outputs and targets.
            weight: Function of ``(outputs, batch)`` that returns how much the loss of the batch counts in a mean.
            optimizer: Optimizer of a plain model: an instance, a class, a function of the parameters, or several in
                a list or dict.
            scheduler: Learning rate scheduler, or a function that makes one for the optimizer.
            callbacks: Callbacks for this call only, in addition to those of the trainer.
            extend: Continue the last ``fit`` for this much longer, for example ``"2ep"``.
        """
        return later(
            self._fit, "train", model, train, None, None, loss, weight, optimizer, scheduler, callbacks, extend
        )

    @checked
    def evaluate(
        self,
        model: nn.Module,
        val: Any,
        *,
        loss: Callable[..., Any] | None = None,
        weight: Callable[[Any, Any], Any] | None = None,
        callbacks: Iterable[object] = (),
        ckpt: str | Path | None = None,
    ) -> dict[str, Any]:
        """Evaluate the model on ``val`` and return the metrics, named ``val/…``.

        Args:
            model: A model or a ``Task``.
            val: Loader of the batches, or a dict of named loaders.
            loss: Loss function of a plain model, called with outputs and targets.
            weight: Function of ``(outputs, batch)`` that returns how much the loss of the batch counts in a mean.
            callbacks: Callbacks for this call only, in addition to those of the trainer.
            ckpt: Use the weights of a checkpoint for this call: ``"best"``, ``"last"``, or a path or address.
        """
        return self._evaluate("evaluate", "val", model, val, loss, weight, callbacks, ckpt)

    @checked
    def test(
        self,
        model: nn.Module,
        test: Any,
        *,
        loss: Callable[..., Any] | None = None,
        weight: Callable[[Any, Any], Any] | None = None,
        callbacks: Iterable[object] = (),
        ckpt: str | Path | None = None,
    ) -> dict[str, Any]:
        """Evaluate the model on ``test`` and return the metrics, named ``test/…``.

        Args:
            model: A model or a ``Task``.
            test: Loader of the batches, or a dict of named loaders.
            loss: Loss function of a plain model, called with outputs and targets.
            weight: Function of ``(outputs, batch)`` that returns how much the loss of the batch counts in a mean.
            callbacks: Callbacks for this call only, in addition to those of the trainer.
            ckpt: Use the weights of a checkpoint for this call: ``"best"``, ``"last"``, or a path or address.
        """
        return self._evaluate("test", "test", model, test, loss, weight, callbacks, ckpt)

    @checked
    def predict(
        self,
        model: nn.Module,
        loader: Any,
        *,
        targets: bool = False,
        callbacks: Iterable[object] = (),
        ckpt: str | Path | None = None,
    ) -> Any:
        """Return the predictions of the model in the loader's order.

        Args:
            model: A model or a ``Task``.
            loader: Loader of the batches, or a dict or list of loaders.
            targets: Return a tuple of the predictions and the targets, in the same order.
            callbacks: Callbacks for this call only, in addition to those of the trainer.
            ckpt: Use the weights of a checkpoint for this call: ``"best"``, ``"last"``, or a path or address.

        Returns:
            One tensor, or one dict or tuple of tensors, if the shapes allow it. Otherwise a list of batches. For a dict
            or a list of loaders, a dict or a list of these.
        """
        check_ckpt(ckpt, "predict")
        loop = self._prepare("predict", model, None, None, None, None)
        _need(loop.engine.state.task, "predict_batch", "predict")
        loader = foreign_loaders(loader, "predict", loop.engine.state.task).get("predict", loader)
        several = type(loader) in (list, tuple) and loader and all(isinstance(item, DataLoader) for item in loader)
        if several:
            loader = {str(index): item for index, item in enumerate(loader)}
        engine = loop.engine
        with _with(loop, callbacks), self._weights_of(ckpt, loop):
            found = {}
            for name, one in engine.prediction_loaders(loader).items():
                engine.begin_call("predict_batches")
                found[name] = engine.tasks.predict(engine.predict(one, name), targets=targets)
        return list(found.values()) if several else found.get(None, found)

    def explain(self, model: nn.Module | None = None) -> str:
        """Return the hooks of each event in their order, with the reasons for the order.

        Args:
            model: A model or a ``Task``. It is used only before the first call of another method.
        """
        loop = self._loop or self._prepare("fit", model or nn.Identity(), None, None, None, None)
        return loop.explain()

    # -- how -----------------------------------------------------------------------------------

    def _fit(
        self,
        entry: str,
        model: nn.Module,
        train: Any,
        val: Any,
        test: Any,
        loss: Any,
        weight: Any,
        optimizer: Any,
        scheduler: Any,
        callbacks: Iterable[object],
        extend: str | Duration | None,
    ) -> Result:
        before = self._loop
        loop = self._prepare(entry, model, loss, weight, optimizer, scheduler)
        if extend is not None and before is not None and loop is not before:
            raise SetupError(
                "extend= continues the last fit, but model, loss, weight, optimizer or scheduler is another one; "
                "pass the same objects again"
            )
        engine, state = loop.engine, loop.engine.state
        engine.prepare(entry, None if extend is None else Duration.parse(extend, f"{entry}(extend=…)"))
        if state.max_duration is None and extend is None:
            raise SetupError("how long? pass max_duration, for example Trainer(max_duration='10ep')")
        _need(state.task, "train_batch", "fit")
        if given := foreign_loaders(train, entry, state.task):
            train, val = given["train"], given.get("val") if val is None else val
        check_loader(train, "training")
        shown = without_intervals(val, "val")[0]
        vals = {} if val is None else named_loaders(shown, "val")
        tests = {} if test is None else named_loaders(test, "test")
        if vals or tests:
            _need(state.task, "eval_batch", "evaluation")
        state.loaders.clear()  # An earlier fit may have left loaders.
        state.loaders.update({"train": train} | ({"val": shown} if vals else {}) | ({"test": test} if tests else {}))
        engine.requests.allow_evaluation(bool(vals))
        engine.edge.evaluate_with((lambda: engine.tasks.evaluate(loop.eval_batches(val))) if vals else None)
        with _with(loop, callbacks):
            loop.preflight.run(engine.data.loader_of("train", train), vals, tests)
            if engine.prepare_training(train):
                engine.training.with_task(engine.run)
            if tests and not engine.loaded_finished and not engine.requests.is_interrupted:
                engine.tasks.evaluate(loop.eval_batches(test, "test"))
        return loop.result()

    def _evaluate(
        self,
        entry: str,
        stage: str,
        model: nn.Module,
        loaders: Any,
        loss: Any,
        weight: Any,
        callbacks: Iterable[object],
        ckpt: str | Path | None,
    ) -> dict[str, Any]:
        check_ckpt(ckpt, entry)
        loop = self._prepare(entry, model, loss, weight, None, None)
        engine = loop.engine
        _need(engine.state.task, "eval_batch", entry)
        loaders = foreign_loaders(loaders, entry, engine.state.task).get(stage, loaders)
        engine.state.loaders[stage] = without_intervals(loaders, stage)[0]
        with _with(loop, callbacks), self._weights_of(ckpt, loop):
            batches = Returning(loop.eval_batches(loaders, stage))
            engine.tasks.evaluate(batches)
        if engine.requests.leave_evaluation and not batches.value:
            raise _left_before_end(engine.requests, entry)
        return dict(batches.value)

    def _weights_of(self, ckpt: str | Path | None, loop: Loop) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights of a checkpoint of the last fit."""
        if ckpt is None:
            return nullcontext()
        engine, last = loop.engine, self._loop or loop
        return engine.weights.swap(weights_of(ckpt, last.engine.state.folder, engine.state, engine.world.group))

    def _prepare(self, entry: str, model: nn.Module, loss: Any, weight: Any, optimizer: Any, scheduler: Any) -> Loop:
        """Return the loop of the last call if it has the same arguments, else a new loop."""
        given = (model, loss, weight, optimizer, scheduler)
        loop = self._loop
        if loop is not None and loop.engine.is_open and self._goes_on(entry, given):
            raise under_way(entry)  # An optional callback may make this call, so the run must not change first.
        if loop is None or not self._goes_on(entry, given):
            task: Any = model if isinstance(model, Task) else foreign_task(model)
            is_task = task is not None
            is_foreign = is_task and task is not model
            takes_loss = is_foreign and hasattr(task, "use_loss")
            if takes_loss:
                task.use_loss(loss)
            if task is not None:
                check_task(task, None if takes_loss else loss, weight, optimizer)
            brought = task.own_callbacks() if is_foreign else []
            loop = Loop(
                task.model if is_foreign else model,
                optimizer if is_task else None,
                scheduler=scheduler if is_task else None,
                callbacks=[*self._callbacks, *self.default_callbacks(self._callbacks), *brought],
                task=task or SupervisedTask(model, loss, optimizer, scheduler, weight=weight),
                **self._options,
            )
            loop.engine.record.write_report_with(self.when_written)
            if self._loop is not None:
                loop.engine.records.stream.after(self._loop.engine.records.stream)
                if entry in ("fit", "train") and model is self._given[0]:
                    others = zip(("loss", "weight", "optimizer", "scheduler"), given[1:], self._given[1:], strict=True)
                    log_new_run(self._loop.engine.state, [name for name, *pair in others if not _same(*pair)])
            # A fit can still continue after an evaluation of another model.
            if self._loop is None or entry in ("fit", "train"):
                self._given, self._loop = given, loop
        weights = loop.engine.loss_weights
        if entry in ("fit", "train") and weights is not None:
            weights.check(loop.accumulate, loop.engine.state.world_size)
        loop.engine.prepare(entry)
        return loop

    def _goes_on(self, entry: str, given: tuple[Any, ...]) -> bool:
        """True if a call continues the last loop. An evaluation may leave out loss and weight."""
        if entry in ("fit", "train"):
            return given[0] is self._given[0] and all(map(_same, given[1:], self._given[1:]))
        return given[0] is self._given[0] and all(
            its is None or its is last for its, last in zip(given[1:3], self._given[1:3], strict=True)
        )


def _need(task: Any, method: str, verb: str) -> None:
    if not hasattr(task, method):
        raise missing_method(task, method, verb)


def _left_before_end(requests: Requests, entry: str) -> StopTraining:
    """Return the error for an ``evaluate`` or ``test`` that ``StopTraining`` has ended.

    Without it, an empty dict of metrics would be the result.
    """
    stop = requests.agreed.stop or requests.unheard_stop
    error = StopTraining() if stop is None else StopTraining(stop.reason)
    by = "it" if stop is None else stop.by
    error.add_note(f"raised by {by}: {entry} has ended before its last batch, and measured nothing")
    return error


def _same(one: Any, other: Any) -> bool:
    """True if both are the same object, or equal modules without state.

    A script may construct ``nn.CrossEntropyLoss()`` again for each call.
    """
    if one is other:
        return True
    if type(one) is not type(other) or not isinstance(one, nn.Module) or one.state_dict() or other.state_dict():
        return False
    return _settings(one) == _settings(other)


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return the public attributes of a module."""
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


@contextmanager
def _with(loop: Loop, callbacks: Iterable[object]) -> Iterator[None]:
    """Open the loop, with additional callbacks for this call only."""
    line = loop.engine.line
    extra = line.add(as_list(callbacks, "fit"))
    try:
        with loop:
            yield
    finally:
        for member in extra:
            line.remove(member)
