"""``hl.Trainer`` with its default callbacks, and ``hl.fit`` and the other functions.

This is the only module that imports loop, callbacks and sinks together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from hookline import loop
from hookline.callbacks.saving import Upload
from hookline.callbacks.watch import LogFile, ModelSummary, ProgressBar
from hookline.checkpoint.request import Resume
from hookline.distributed.strategy import Strategy, StrategyName
from hookline.errors import ArgumentError
from hookline.loop import Result
from hookline.loop.keywords import checked, later
from hookline.loop.settings import InterruptName, PrecisionName, PreflightName, options_of
from hookline.progress import Duration
from hookline.run.paths import is_address


class Trainer(loop.Trainer):
    """Train, evaluate and predict with a model or a task, and callbacks.

    It shows a progress bar and writes a summary of the model, ``log.txt`` and ``report.html``. Pass your own
    ``ProgressBar``, ``ModelSummary`` or ``LogFile`` to change these. ``hookline.loop.Trainer`` does without them.

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
        >>> trainer = Trainer(max_duration="2ep", progress=False, folder=False)
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
        >>> result.clock.epoch
        2
    """

    def default_callbacks(self, given: list[object]) -> list[object]:
        if not self.progress and any(isinstance(callback, ProgressBar) for callback in given):
            raise ArgumentError("Trainer(progress=False): callbacks has a ProgressBar. Leave out one of them.")
        defaults = (*[ProgressBar()] * self.progress, ModelSummary(depth=1, flops=False, print=False), LogFile())
        found: list[object] = [
            default for default in defaults if not any(isinstance(callback, type(default)) for callback in given)
        ]
        mirrored = any(isinstance(callback, Upload) and callback.is_mirror for callback in given)
        if isinstance(self._options["folder"], str) and is_address(self._options["folder"]) and not mirrored:
            found.append(Upload())
        return found

    def when_written(self, folder: Path) -> None:
        from hookline.report.page import write_report  # Only the end of a run needs it.

        write_report(folder)


@checked
def fit(
    model: nn.Module,
    train: Any,
    val: Any = None,
    test: Any = None,
    *,
    loss: Callable[..., Any] | None = None,
    weight: Callable[[Any, Any], Any] | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    extend: str | Duration | None = None,
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
) -> Result:
    """Train a model, evaluate on ``val`` during training and on ``test`` at the end.

    This is ``Trainer(…).fit(…)`` in one call.

    Args:
        model: A model or a ``Task``.
        train: Loader of the training batches: a ``DataLoader`` or any other iterable.
        val: Loader for the evaluations during training, or a dict of named loaders.
        test: Loader for one evaluation after training, or a dict of named loaders.
        loss: Loss function of a plain model, called with outputs and targets.
        weight: Function of ``(outputs, batch)`` that returns how much the loss of the batch counts in a mean.
        optimizer: Optimizer of a plain model: an instance, a class, a function of the parameters, or several in a
            list or dict.
        scheduler: Learning rate scheduler, or a function that makes one for the optimizer.
        extend: Continue the last ``fit`` for this much longer, for example ``"2ep"``.
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

    Returns:
        The result of the run: metrics, history, clock, and why and by whom training was stopped.
    """
    trainer = Trainer(callbacks=callbacks, progress=progress, **options_of(locals()))
    return later(trainer._fit, "fit", model, train, val, test, loss, weight, optimizer, scheduler, (), extend)


@checked
def train(
    model: nn.Module,
    train: Any,
    *,
    loss: Callable[..., Any] | None = None,
    weight: Callable[[Any, Any], Any] | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    extend: str | Duration | None = None,
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
) -> Result:
    """Train a model without any evaluation.

    This is ``Trainer(…).train(…)`` in one call.

    Args:
        model: A model or a ``Task``.
        train: Loader of the training batches: a ``DataLoader`` or any other iterable.
        loss: Loss function of a plain model, called with outputs and targets.
        weight: Function of ``(outputs, batch)`` that returns how much the loss of the batch counts in a mean.
        optimizer: Optimizer of a plain model: an instance, a class, a function of the parameters, or several in a
            list or dict.
        scheduler: Learning rate scheduler, or a function that makes one for the optimizer.
        extend: Continue the last ``fit`` for this much longer, for example ``"2ep"``.
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

    Returns:
        The result of the run: metrics, history, clock, and why and by whom training was stopped.
    """
    trainer = Trainer(callbacks=callbacks, progress=progress, **options_of(locals()))
    return later(trainer._fit, "train", model, train, None, None, loss, weight, optimizer, scheduler, (), extend)


@checked
def evaluate(
    model: nn.Module,
    val: Any,
    *,
    loss: Callable[..., Any] | None = None,
    weight: Callable[[Any, Any], Any] | None = None,
    callbacks: Iterable[object] = (),
    ckpt: str | Path | None = None,
    progress: bool = True,
    precision: PrecisionName = "fp32",
    device: str | torch.device | None = None,
    compile: bool | Mapping[str, Any] = False,
    strategy: StrategyName | Strategy = "auto",
    seed: int | None = None,
    folder: str | Path | Literal[False] | None = None,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    sinks: Iterable[Any] = (),
) -> dict[str, Any]:
    """Evaluate a model on ``val`` and return the metrics, named ``val/…``.

    Args:
        model: A model or a ``Task``.
        val: Loader of the batches, or a dict of named loaders.
        loss: Loss function of a plain model, called with outputs and targets.
        weight: Function of ``(outputs, batch)`` that returns how much the loss of the batch counts in a mean.
        callbacks: Callbacks of the run: instances of ``hl.Callback``, or functions decorated with ``hl.on``.
        ckpt: Use the weights of a checkpoint for this call: ``"best"``, ``"last"``, or a path or address.
        progress: Show a progress bar. ``hl.Trainer`` and the functions have one; ``hookline.loop.Trainer`` has none.
        precision: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        device: Device of the model. ``None``: the accelerator if this machine has one, else the CPU.
        compile: ``True``, or a dict of keyword arguments for ``torch.compile``. The model is compiled in place.
        strategy: How several processes train together: ``"auto"``, ``"ddp"``, ``"fsdp"``, ``hl.DDP(…)`` or
            ``hl.FSDP(…)``.
        seed: Seed for Python, NumPy and torch. ``None``: Hookline seeds nothing.
        folder: Folder of the run, or an address to copy it to. ``None``: a new folder under ``runs/``. ``False``:
            write nothing.
        name: Name of the run: ``"run"`` or ``"project/run"``.
        config: Hyper-parameters to store with the run.
        sinks: Where records are sent in addition to the folder: ``[hl.sinks.TensorBoard()]``, or objects with
            ``log(dict, step)``.

    Returns:
        The metrics by name.
    """
    trainer = Trainer(callbacks=callbacks, progress=progress, **options_of(locals()))
    return trainer.evaluate(model, val, loss=loss, weight=weight, ckpt=ckpt)


@checked
def test(
    model: nn.Module,
    test: Any,
    *,
    loss: Callable[..., Any] | None = None,
    weight: Callable[[Any, Any], Any] | None = None,
    callbacks: Iterable[object] = (),
    ckpt: str | Path | None = None,
    progress: bool = True,
    precision: PrecisionName = "fp32",
    device: str | torch.device | None = None,
    compile: bool | Mapping[str, Any] = False,
    strategy: StrategyName | Strategy = "auto",
    seed: int | None = None,
    folder: str | Path | Literal[False] | None = None,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    sinks: Iterable[Any] = (),
) -> dict[str, Any]:
    """Evaluate a model on ``test`` and return the metrics, named ``test/…``.

    Args:
        model: A model or a ``Task``.
        test: Loader of the batches, or a dict of named loaders.
        loss: Loss function of a plain model, called with outputs and targets.
        weight: Function of ``(outputs, batch)`` that returns how much the loss of the batch counts in a mean.
        callbacks: Callbacks of the run: instances of ``hl.Callback``, or functions decorated with ``hl.on``.
        ckpt: Use the weights of a checkpoint for this call: ``"best"``, ``"last"``, or a path or address.
        progress: Show a progress bar. ``hl.Trainer`` and the functions have one; ``hookline.loop.Trainer`` has none.
        precision: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        device: Device of the model. ``None``: the accelerator if this machine has one, else the CPU.
        compile: ``True``, or a dict of keyword arguments for ``torch.compile``. The model is compiled in place.
        strategy: How several processes train together: ``"auto"``, ``"ddp"``, ``"fsdp"``, ``hl.DDP(…)`` or
            ``hl.FSDP(…)``.
        seed: Seed for Python, NumPy and torch. ``None``: Hookline seeds nothing.
        folder: Folder of the run, or an address to copy it to. ``None``: a new folder under ``runs/``. ``False``:
            write nothing.
        name: Name of the run: ``"run"`` or ``"project/run"``.
        config: Hyper-parameters to store with the run.
        sinks: Where records are sent in addition to the folder: ``[hl.sinks.TensorBoard()]``, or objects with
            ``log(dict, step)``.

    Returns:
        The metrics by name.
    """
    trainer = Trainer(callbacks=callbacks, progress=progress, **options_of(locals()))
    return trainer.test(model, test, loss=loss, weight=weight, ckpt=ckpt)


@checked
def predict(
    model: nn.Module,
    loader: Any,
    *,
    targets: bool = False,
    callbacks: Iterable[object] = (),
    ckpt: str | Path | None = None,
    progress: bool = True,
    precision: PrecisionName = "fp32",
    device: str | torch.device | None = None,
    compile: bool | Mapping[str, Any] = False,
    strategy: StrategyName | Strategy = "auto",
    seed: int | None = None,
    folder: str | Path | Literal[False] | None = None,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    sinks: Iterable[Any] = (),
) -> Any:
    """Return the predictions in the loader's order.

    Args:
        model: A model or a ``Task``.
        loader: Loader of the batches, or a dict or list of loaders.
        targets: Return a tuple of the predictions and the targets, in the same order.
        callbacks: Callbacks of the run: instances of ``hl.Callback``, or functions decorated with ``hl.on``.
        ckpt: Use the weights of a checkpoint for this call: ``"best"``, ``"last"``, or a path or address.
        progress: Show a progress bar. ``hl.Trainer`` and the functions have one; ``hookline.loop.Trainer`` has none.
        precision: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        device: Device of the model. ``None``: the accelerator if this machine has one, else the CPU.
        compile: ``True``, or a dict of keyword arguments for ``torch.compile``. The model is compiled in place.
        strategy: How several processes train together: ``"auto"``, ``"ddp"``, ``"fsdp"``, ``hl.DDP(…)`` or
            ``hl.FSDP(…)``.
        seed: Seed for Python, NumPy and torch. ``None``: Hookline seeds nothing.
        folder: Folder of the run, or an address to copy it to. ``None``: a new folder under ``runs/``. ``False``:
            write nothing.
        name: Name of the run: ``"run"`` or ``"project/run"``.
        config: Hyper-parameters to store with the run.
        sinks: Where records are sent in addition to the folder: ``[hl.sinks.TensorBoard()]``, or objects with
            ``log(dict, step)``.

    Returns:
        One tensor, or one dict or tuple of tensors, if the shapes allow it. Otherwise a list of batches. For a dict or
        a list of loaders, a dict or a list of these.
    """
    trainer = Trainer(callbacks=callbacks, progress=progress, **options_of(locals()))
    return trainer.predict(model, loader, targets=targets, ckpt=ckpt)
