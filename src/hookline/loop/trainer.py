"""``Trainer``: the loop around a task. ``fit`` is forward, backward and step, in this order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from hookline.errors import SetupError, StopTraining
from hookline.loop.answers import Returning, check_returned, evaluate_task, predict_task
from hookline.loop.keywords import NoOptions, refuse
from hookline.loop.leaving import left_before_end
from hookline.loop.loaders import check_loader, named_loaders
from hookline.loop.loop import Loop
from hookline.loop.notices import say_anew, under_way
from hookline.loop.optimizers import needs_closure
from hookline.loop.plain import plain_steps
from hookline.loop.result import Result
from hookline.loop.sanity import sanity_check
from hookline.loop.settings import Options, Settings, as_list
from hookline.loop.supervised import SupervisedTask, title_of
from hookline.loop.task import Task
from hookline.loop.task_methods import check_task, missing_method
from hookline.progress import Duration
from hookline.records import Value


class Trainer:
    """Trains, evaluates and predicts with a task or a plain model, and callbacks.

    >>> import torch
    >>> from hookline.testing import TinyModel, tiny_data
    >>> trainer = Trainer(max_duration="2ep", folder=False)
    >>> result = trainer.fit(TinyModel(), tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    >>> result.stop_reason
    'max_duration (2ep) reached'
    """

    def __init__(self, *, callbacks: Iterable[object] = (), **options: Unpack[Options]) -> None:
        Settings.read(options)  # what is wrong is said here, not at the first fit
        self._options = options
        self._callbacks = as_list(callbacks)
        self._given: tuple[Any, ...] = ()
        self._loop: Loop | None = None

    def default_callbacks(self, given: list[object]) -> list[object]:
        """What is added to the user's callbacks; nothing in the bare engine."""
        return []

    def when_written(self, folder: Path) -> None:
        """All that a fit writes into its folder is there; nothing follows in the bare engine."""

    # -- entry points --------------------------------------------------------------------------

    def fit(
        self,
        model: nn.Module,
        train: Any,
        val: Any = None,
        test: Any = None,
        *,
        loss: Callable[..., Any] | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        callbacks: Iterable[object] = (),
        extend: str | Duration | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Result:
        """Train, evaluate on ``val`` as it goes and on ``test`` at the end.

        A second ``fit`` with the same model goes on from the first; ``extend="2ep"`` makes it longer.
        """
        refuse(self.fit, unknown, Options.__annotations__)
        return self._fit("fit", model, train, val, test, loss, optimizer, scheduler, callbacks, extend)

    def train(
        self,
        model: nn.Module,
        train: Any,
        *,
        loss: Callable[..., Any] | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        callbacks: Iterable[object] = (),
        extend: str | Duration | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Result:
        """``fit`` without any evaluation."""
        refuse(self.train, unknown, Options.__annotations__)
        return self._fit("train", model, train, None, None, loss, optimizer, scheduler, callbacks, extend)

    def evaluate(
        self,
        model: nn.Module,
        val: Any,
        *,
        loss: Callable[..., Any] | None = None,
        callbacks: Iterable[object] = (),
        **unknown: Unpack[NoOptions],
    ) -> dict[str, Value]:
        """The metrics of one evaluation on ``val``, a loader or a dict of named ones."""
        refuse(self.evaluate, unknown, Options.__annotations__)
        return self._evaluate("evaluate", "val", model, val, loss, callbacks)

    def test(
        self,
        model: nn.Module,
        test: Any,
        *,
        loss: Callable[..., Any] | None = None,
        callbacks: Iterable[object] = (),
        **unknown: Unpack[NoOptions],
    ) -> dict[str, Value]:
        """The metrics of one evaluation on ``test``; they are named ``test/…``."""
        refuse(self.test, unknown, Options.__annotations__)
        return self._evaluate("test", "test", model, test, loss, callbacks)

    def predict(
        self, model: nn.Module, loader: Any, *, callbacks: Iterable[object] = (), **unknown: Unpack[NoOptions]
    ) -> Any:
        """Predictions in the loader's order: one tensor where shapes allow it, else a list of batches."""
        refuse(self.predict, unknown, Options.__annotations__)
        loop = self._prepare("predict", model, None, None, None)
        self._need(loop, "predict_batch", "predict")
        with _with(loop, callbacks):
            return predict_task(loop, loop.predict_batches(loader))

    def explain(self, model: nn.Module | None = None) -> str:
        """For each event who runs, in which order, and why."""
        loop = self._loop or self._prepare("fit", model or nn.Identity(), None, None, None)
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
        optimizer: Any,
        scheduler: Any,
        callbacks: Iterable[object],
        extend: str | Duration | None,
    ) -> Result:
        before = self._loop
        loop = self._prepare(entry, model, loss, optimizer, scheduler)
        if extend is not None and before is not None and loop is not before:
            raise SetupError(
                "extend= goes on with the last fit, but model, loss, optimizer or scheduler is another one; "
                "pass the same objects again"
            )
        loop.extend = None if extend is None else Duration.parse(extend, f"{entry}(extend=…)")
        if loop.state.max_duration is None and extend is None:
            raise SetupError("how long? pass max_duration, for example Trainer(max_duration='10ep')")
        task, run = loop.session.task, loop.run
        self._need(loop, "train_batch", "fit")
        check_loader(train, "training")
        vals = {} if val is None else named_loaders(val, "val")
        tests = {} if test is None else named_loaders(test, "test")
        if vals or tests:
            self._need(loop, "eval_batch", "evaluation")
        loop.state.loaders.update({"train": train} | ({"val": val} if vals else {}) | ({"test": test} if tests else {}))
        loop.requests.can_evaluate = bool(vals)
        loop.course.evaluate = (lambda: evaluate_task(loop, loop.eval_batches(val))) if vals else None
        with _with(loop, callbacks):
            if loop.clock.step == 0:
                sanity_check(loop, loop.used("val", vals))
            batches = loop.batches(train)
            if any(needs_closure(optimizer) for optimizer in loop.state.optimizers.values()):
                self._train_with_closures(loop, task, batches)
            else:
                train_batch, backward, step = task.train_batch, loop.backward, loop.step
                for batch in batches:
                    try:
                        found = train_batch(run, batch)
                    except StopTraining as stop:
                        loop.drop_batch(stop.reason, title_of(task))
                        continue
                    if isinstance(found, dict):
                        check_returned("train_batch", found)
                        backward(found["loss"], weight=found.get("weight"), outputs=found.get("outputs"))
                    elif found is not None:
                        backward(found)
                    step()
                    if loop.look_due or loop.requests.rollback is not None:
                        loop.look()
                    batch = found = None  # they would stay in memory through all plain steps
                    plain_steps(loop, train_batch)
            if tests and not loop.finished and not (loop.requests.stop is not None and loop.requests.stop.interrupt):
                evaluate_task(loop, loop.eval_batches(test, "test"))
        return loop.result()

    def _train_with_closures(self, loop: Loop, task: Any, batches: Iterable[Any]) -> None:
        """An optimizer such as LBFGS computes the loss itself, several times a step."""
        for batch in batches:
            try:
                loop.step(closure=partial(task.train_batch, loop.run, batch))
            except StopTraining as stop:
                loop.drop_batch(stop.reason, title_of(task))
                continue
            loop.step()

    def _evaluate(
        self, entry: str, stage: str, model: nn.Module, loaders: Any, loss: Any, callbacks: Iterable[object]
    ) -> dict[str, Value]:
        loop = self._prepare(entry, model, loss, None, None)
        self._need(loop, "eval_batch", entry)
        with _with(loop, callbacks):
            batches = Returning(loop.eval_batches(loaders, stage))
            evaluate_task(loop, batches)
        if loop.requests.leave_evaluation and not batches.value:
            raise left_before_end(loop, entry)
        return dict(batches.value)

    def _prepare(self, entry: str, model: nn.Module, loss: Any, optimizer: Any, scheduler: Any) -> Loop:
        """The loop for this model: that of the last call if nothing differs, else a new one."""
        given = (model, loss, optimizer, scheduler)
        loop = self._loop
        if loop is not None and loop._open and self._goes_on(entry, given):
            raise under_way(entry)  # before anything of the run is changed: whoever asked may be optional
        if loop is None or not self._goes_on(entry, given):
            is_task = isinstance(model, Task)
            if isinstance(model, Task):
                check_task(model, loss, optimizer)
            loop = Loop(
                model,
                optimizer if is_task else None,
                scheduler=scheduler if is_task else None,
                callbacks=self._callbacks + self.default_callbacks(self._callbacks),
                task=model if is_task else SupervisedTask(model, loss, optimizer, scheduler),
                **self._options,
            )
            loop.record.when_written = self.when_written
            if self._loop is not None:
                loop.session.stream.after(self._loop.session.stream)
                if entry in ("fit", "train") and model is self._given[0]:
                    others = zip(("loss", "optimizer", "scheduler"), given[1:], self._given[1:], strict=True)
                    say_anew(self._loop, [name for name, *pair in others if not _same(*pair)])
            if self._loop is None or entry in ("fit", "train"):  # an evaluation of another model ends no fit
                self._given, self._loop = given, loop
        loop.entry_point = entry
        return loop

    def _goes_on(self, entry: str, given: tuple[Any, ...]) -> bool:
        """Whether a call goes on with the last loop; an evaluation may leave out loss and optimizer."""
        if entry in ("fit", "train"):
            return given[0] is self._given[0] and all(map(_same, given[1:], self._given[1:]))
        return given[0] is self._given[0] and given[1] in (None, self._given[1])

    def _need(self, loop: Loop, method: str, verb: str) -> None:
        if not hasattr(loop.session.task, method):
            raise missing_method(loop.session.task, method, verb)


def _same(one: Any, other: Any) -> bool:
    """The same object; or a loss such as ``nn.CrossEntropyLoss()`` that is written anew and has no state."""
    if one is other:
        return True
    if type(one) is not type(other) or not isinstance(one, nn.Module) or one.state_dict() or other.state_dict():
        return False
    return _settings(one) == _settings(other)


def _settings(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


@contextmanager
def _with(loop: Loop, callbacks: Iterable[object]) -> Iterator[None]:
    """The loop opened, with callbacks that are there for this call only."""
    extra = loop.line.add(as_list(callbacks))
    try:
        with loop:
            yield
    finally:
        for member in extra:
            loop.line.remove(member)
