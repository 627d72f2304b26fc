"""``Loop``: a custom training loop with callbacks attached to it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import nn

from hookline.checkpoint.request import Resume
from hookline.distributed.strategy import Strategy, StrategyName
from hookline.errors import DataError
from hookline.events import Member, explain
from hookline.loop.engine.answers import LoopAnswers
from hookline.loop.engine.engine import Engine
from hookline.loop.engine.preflight import Preflight
from hookline.loop.engine.trial import Trial, trial
from hookline.loop.keywords import checked
from hookline.loop.preflight.report import Inspection
from hookline.loop.result import Result
from hookline.loop.saving.mirror import checked_mirror
from hookline.loop.saving.replay import ReplayRequest
from hookline.loop.saving.verification import Verification
from hookline.loop.settings import InterruptName, PrecisionName, PreflightName, Settings, as_list, options_of
from hookline.progress import Duration
from hookline.run import Run


class Loop:
    """Add callbacks, checkpoints and records to a custom training loop.

    Args:
        model: A model or a ``Task``.
        optimizer: The optimizer: an instance, a class, a function of the parameters, or several in a list or dict.
        scheduler: Learning rate scheduler, or a function that makes one for the optimizer.
        callbacks: Callbacks of the run: instances of ``hl.Callback``, or functions decorated with ``hl.on``.
        task: The task that drives the loop. ``Trainer`` sets it; a custom loop has none.
        max_duration: How long to train: ``"5ep"``, ``"500st"``, ``"1e6tok"`` or ``"2h"``. Training needs it.
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
        >>> model = TinyModel()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Loop(model, optimizer, max_duration="2ep", folder=False) as loop:
        ...     for x, y in loop.batches(tiny_data(batches=3)):
        ...         loop.backward(torch.nn.functional.cross_entropy(model(x), y))
        ...         moved = loop.step()
        >>> loop.run.clock.step
        6
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        *,
        scheduler: Any = None,
        callbacks: Iterable[object] = (),
        task: Any = None,
        max_duration: str | Duration | None = None,
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
        asked, verification = Settings.read(options_of(locals()), "Loop"), Verification.asked_for()
        settings = asked
        if verification is not None:
            resume = Resume() if verification.resume else None
            settings = replace(settings, folder=verification.folder, resume=resume, remote=None)
        given, replayed = as_list(callbacks, "Loop"), ReplayRequest.asked_for()
        if replayed is not None:
            settings, given = replayed.settings(settings), replayed.callbacks_with(given)
        inspection = Inspection.asked_for()
        if inspection is not None:
            inspection = replace(inspection, target=settings.folder or None)
            folder = settings.folder if settings.folder is False else inspection.folder
            settings = replace(settings, folder=folder, resume=None, preflight=True, remote=None)
        callbacks = [*checked_mirror(given, asked.remote, settings.remote), *settings.callbacks_of_sinks()]
        self.engine = Engine(model, task, optimizer, scheduler, callbacks, settings, self, verification, replayed)
        self.preflight = Preflight(self.engine, inspection)
        """The checks before step 1."""
        self.engine.state.answer_with(LoopAnswers(self.engine))
        self._steps = self.engine.steps

    @property
    def run(self) -> Run:
        """The ``run`` that hooks get, for the body of the loop: ``loop.run.log({...})``."""
        return self.engine.run

    @property
    def accumulate(self) -> int:
        """Number of batches per step. It can be changed between two steps."""
        return self.engine.steps.accumulate

    @accumulate.setter
    def accumulate(self, batches: int) -> None:
        self.engine.steps.set_accumulate(batches)

    def explain(self) -> str:
        """Return the hooks of each event in their order, with the reasons for the order."""
        return explain(self.engine.line)

    def __enter__(self) -> Self:
        self.engine.open()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        return self.engine.close(error)

    def batches(self, loader: Any) -> Generator[Any, None, Any]:
        """Return the batches of training, epoch after epoch, until ``max_duration`` or a stop.

        Args:
            loader: Loader of the training batches: a ``DataLoader`` or any other iterable.
        """
        batches = self.engine.batches(loader)
        self.preflight.run(self.engine.state.loaders["train"], {}, {})
        return batches

    def backward(self, loss: Any, optimizer: Any = None, *, weight: Any = None, outputs: Any = None) -> None:
        """Compute the gradients of the loss of a batch.

        Args:
            loss: Mean loss over the batch.
            optimizer: Optimizer whose parameters get gradients, if there are several.
            weight: How much the loss counts in the step. The default is the number of samples.
            outputs: Outputs of the model, for ``run.outputs``.
        """
        self._steps.backward(loss, optimizer, weight=weight, outputs=outputs)

    def step(self, optimizer: Any = None, *, closure: Callable[[], Any] | None = None) -> bool:
        """Complete the batch, and update the weights if it is the last batch of the step.

        Args:
            optimizer: One of several optimizers, which steps now. The batch continues.
            closure: Function that computes the loss, for an optimizer such as LBFGS. The batch continues.

        Returns:
            True if the weights were updated.
        """
        return self._steps.step(optimizer, closure=closure)

    @property
    def eval_due(self) -> bool:
        """True if an evaluation is due now: by ``eval_every``, by request, or at the end.

        To find out, it goes through the end of the step up to the evaluation. Hooks such as ``on_metrics_ready`` and
        ``on_train_epoch_end`` run in it, and a rollback is made. Read it after ``loop.step()``.
        """
        return self.engine.eval_due()

    def eval_batches(self, loaders: Any, stage: str = "val") -> Generator[Any, None, Any]:
        """Return the batches of one evaluation.

        Args:
            loaders: Loader of the batches, or a dict of named loaders.
            stage: ``"val"`` or ``"test"``, the prefix of the metrics.
        """
        self.engine.begin_call("eval_batches")
        return self.engine.evaluate(loaders, stage)

    def predict_batches(self, loader: Any) -> Generator[Any, None, Any]:
        """Return the batches of one prediction.

        Set ``loop.run.outputs`` to the prediction of each batch.

        Args:
            loader: Loader of the batches.
        """
        self.engine.begin_call("predict_batches")
        named = self.engine.prediction_loaders(loader)
        if None not in named:
            raise DataError(
                f"loop.predict_batches({{{', '.join(map(repr, named))}: …}}): predicts on one loader. Call it once for "
                f"each."
            )
        return self.engine.predict(named[None])

    def trial(self) -> AbstractContextManager[Trial]:
        """Return a context manager for training steps that leave no trace.

        Open it in ``on_fit_start`` or ``on_train_start``.
        """
        return trial(self.engine)

    def result(self) -> Result:
        """Return the result of the run: why it stopped, its metrics and its costs."""
        return self.engine.result()

    def added(self, member: Member[Run]) -> None:
        """Set up a callback that joined an open run.

        Args:
            member: The callback.
        """
        self.engine.added(member)

    def removed(self, member: Member[Run]) -> None:
        """Tear down a callback that leaves an open run.

        Args:
            member: The callback.
        """
        self.engine.removed(member)
