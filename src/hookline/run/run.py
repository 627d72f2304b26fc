"""``Run``: fields of a run that a hook reads, and methods that it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never

from hookline.errors import MetricError, NotAvailableError, RoleError, SetupError, kind_of
from hookline.events import Member, Messages
from hookline.events.spec import moments
from hookline.progress import Clock, Duration
from hookline.progress.read_only import ReadOnly
from hookline.run.callbacks import Callbacks
from hookline.run.ending import Ending
from hookline.run.history import History
from hookline.run.paths import in_run_folder, leaves_folder
from hookline.run.requests import StopRequest
from hookline.run.state import MISSING, EvalShard, RunState, Trial

if TYPE_CHECKING:
    import torch

    from hookline.checkpoint.plan import SavePlan

Stage = Literal["train", "val", "test", "predict"]

MEANT = {
    **{name: f"run.clock.{name}" for name in ("epoch", "step", "batch_in_epoch", "sample", "token", "seconds")},
    **dict.fromkeys(("current_epoch", "epoch_idx", "num_epochs_completed"), "run.clock.epoch"),
    **dict.fromkeys(("global_step", "iteration", "num_steps_completed"), "run.clock.step"),
    **dict.fromkeys(("batch_idx", "batch_index"), "run.clock.batch_in_epoch"),
    **dict.fromkeys(("timestamp", "progress"), "run.clock"),
    **dict.fromkeys(("max_epochs", "max_steps", "total_steps"), "run.max_duration"),
    **dict.fromkeys(("callback_metrics", "logged_metrics", "logs"), "run.metrics"),
    **dict.fromkeys(("log_dict", "log_metrics", "add_scalar"), "run.log({'name': value})"),
    **dict.fromkeys(("module", "pl_module", "net"), "run.model"),
    **dict.fromkeys(("run_dir", "default_root_dir", "log_dir"), "run.folder"),
    **dict.fromkeys(("global_rank", "local_rank"), "run.rank"),
    **dict.fromkeys(("save", "save_checkpoint", "checkpoint_now"), "run.request_save()"),
    **dict.fromkeys(("should_stop", "stop_training"), "run.stop('why')"),
    **dict.fromkeys(("is_stopping", "interrupted", "received_sigterm"), "run.ending"),
    **dict.fromkeys(("accumulate_grad_batches", "gradient_accumulation_steps"), "run.accumulate"),
    **dict.fromkeys(("num_training_batches", "num_val_batches"), "run.num_batches('train')"),
    "control": "run.stop('why'), run.request_eval() or run.request_save()",
    **dict.fromkeys(("lr", "learning_rate"), "run.optimizers"),
    "val_loader": "run.loaders['val']",
    "train_loader": "run.loaders['train']",
}
"""Names that users of other libraries write, and the Hookline names."""

INSTEAD = {
    "model": "Change its parameters in place, or pass another model to fit.",
    "metrics": "Write run.log({'name': value}).",
    "loaders": "Write run.loaders['train'] = ….",
    "stop_reason": "Call run.stop('why').",
    "clock": "Only the loop counts.",
    "optimizers": "Change their param_groups in place, or return others from configure_optimizers.",
    "optimizer": "Change its param_groups in place.",
    "schedulers": "Add to the list, or remove from it.",
    "callbacks": "Call run.callbacks.add(callback) or run.callbacks.remove(callback).",
    "config": "Write run.config['name'] = value.",
    "folder": "Give Trainer(folder=…).",
    "name": "Give Trainer(name=…).",
    "project": "Give Trainer(name='project/run').",
    "device": "Give Trainer(device=…).",
    "messages": "Call run.messages.send(key, value).",
    "ending": "Call run.stop('why') or run.pause('why').",
    "eval_every": "Give Trainer(eval_every=…), or call run.request_eval().",
    "log_every": "Give Trainer(log_every=…).",
    "precision": "Give Trainer(precision=…).",
    "skip_requested": "Call run.skip_step().",
}
"""Advice for an assignment to a read-only field of ``run``."""

TAKEN = {"forward_start": "batch", "forward_end": "outputs"}
"""Events at which a hook may replace a field.

If a task sends such an event itself, a replacement is an error, because the task already holds batch and outputs.
"""


class Run:
    """Argument of every hook: fields to read, and methods that act on the run.

    Each callback has its own ``Run`` over one shared state, so that a request names its author. A field without a value
    at the current event raises ``NotAvailableError``, which lists the events at which it has a value. Methods and
    assignments that change the run raise ``RoleError`` in an optional callback.

    Args:
        state: The shared state of the run.
        member: The callback or task that gets this object.
    """

    __slots__ = {"_state": "The shared state.", "member": "Callback or task that gets this object."}

    _state: RunState
    member: Member[Run]
    """Callback or task that gets this object."""

    def __init__(self, state: RunState, member: Member[Run]) -> None:
        object.__setattr__(self, "_state", state)
        object.__setattr__(self, "member", member)

    # -- model, optimizers and data ------------------------------------------------------------

    @property
    def model(self) -> Any:
        """Model or task that was passed to ``fit``, ``Loop`` or another entry point."""
        return self._state.model

    @property
    def task(self) -> Any:
        """Task that was passed to ``fit``, or that ``fit`` made from a plain model.

        A custom loop has no task.
        """
        return self._get("task", "a custom loop has none; pass a task or a model to Trainer.fit")

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """Optimizers by name: the class name, with a number if several have the same class."""
        return ReadOnly(self._state.optimizers, "run.optimizers", INSTEAD["optimizers"])

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Optimizer that makes the current step."""
        return self._get("optimizer", "all of them are in run.optimizers, by name")  # type: ignore[no-any-return]

    @property
    def optimizer_name(self) -> str:
        """Name of ``run.optimizer`` in ``run.optimizers``."""
        optimizer = self.optimizer
        return next(name for name, other in self._state.optimizers.items() if other is optimizer)

    @property
    def schedulers(self) -> list[Any]:
        """List of ``hl.Scheduler`` objects. The loop steps only these, so add or remove them here."""
        return self._state.schedulers

    @property
    def loaders(self) -> Loaders:
        """Loaders for ``"train"``, ``"val"``, ``"test"`` and ``"predict"``, as the user passed them.

        After ``run.loaders["train"] = loader``, the next epoch uses the new loader. After an assignment to ``"val"`` or
        ``"test"``, the next evaluation uses it.
        """
        return Loaders(self)

    @property
    def config(self) -> dict[str, Any]:
        """Hyperparameters that were passed with ``config=``, and the seed."""
        return self._state.config

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self._state.device

    @property
    def precision(self) -> str:
        """Precision of the forward pass: ``"fp32"``, ``"bf16"`` or ``"fp16"``."""
        return self._state.answers.precision()

    @property
    def accumulate(self) -> int:
        """Number of batches that make one step.

        Assign another number at the edge of a step: in ``on_train_start``, ``on_train_epoch_start`` or
        ``on_train_step_end``.
        """
        return self._state.answers.accumulate()

    @accumulate.setter
    def accumulate(self, value: int) -> None:
        self._required("set run.accumulate")
        self._state.answers.set_accumulate(value)

    @property
    def eval_every(self) -> Duration | None:
        """Interval between two evaluations during training, or ``None`` for no evaluation."""
        return self._state.answers.eval_every()

    @property
    def log_every(self) -> Duration | None:
        """Interval over which training metrics are averaged, or ``None`` for means over epochs only."""
        return self._state.answers.log_every()

    # -- the current event ---------------------------------------------------------------------

    @property
    def batch(self) -> Any:
        """Current batch, on the device.

        Assign to it between ``on_batch_fetch_end`` and ``on_forward_start`` to replace the batch, and declare
        ``writes = ("batch",)``.
        """
        return self._get("batch")

    @batch.setter
    def batch(self, value: Any) -> None:
        self._required("set run.batch")
        state = self._state
        self._need_batch("batch")
        if state.outputs is not MISSING or state.loss is not MISSING:
            raise NotAvailableError(
                "run.batch = …: the model has had this batch already. Replace it in on_batch_fetch_end, "
                "on_train_batch_start, on_eval_batch_start, on_predict_batch_start or on_forward_start."
            )
        state.batch = value

    @property
    def outputs(self) -> Any:
        """Outputs of the model for the current batch.

        Assign to it in ``on_forward_end`` to replace the outputs from which the loss is computed.
        """
        return self._get("outputs", "a task that returns {'loss': …, 'outputs': …} provides them")

    @outputs.setter
    def outputs(self, value: Any) -> None:
        self._required("set run.outputs")
        self._need_batch("outputs")
        if self._state.loss is not MISSING and not self.member.is_task:
            raise NotAvailableError(
                "run.outputs = …: the loss of this batch is computed already. Replace the outputs in on_forward_end."
            )
        self._state.outputs = value

    @property
    def batch_size(self) -> int:
        """Number of samples in the current batch, as the task counts them."""
        return self._state.answers.batch_size(self.batch)

    @property
    def is_padding(self) -> bool:
        """True if this rank computes the current batch only because other ranks have one more.

        Such a batch changes no metric and adds nothing to the gradients. The field has its value from the forward pass
        to the end of the batch. In one process it is always False.
        """
        return self._state.answers.is_padding()

    @property
    def eval_shard(self) -> EvalShard | None:
        """Position of the current evaluation batch in the loader that several processes share.

        ``None`` in one process: there each batch follows the one before it.
        """
        return self._state.answers.eval_shard()

    @property
    def batches_read(self) -> int:
        """Number of batches of this epoch that this rank has read, the current batch included."""
        return self._state.answers.batches_read()

    @property
    def window_is_full(self) -> bool:
        """True if the current training batch is the last of its step. The update follows it."""
        return self._state.answers.window_is_full()

    @property
    def loss(self) -> torch.Tensor:
        """Loss of the current batch.

        Assign to it in ``on_loss_ready`` to replace the loss, and declare ``writes = ("loss",)``.
        """
        return self._get("loss")  # type: ignore[no-any-return]

    @loss.setter
    def loss(self, value: torch.Tensor) -> None:
        self._required("set run.loss")
        self._state.loss = value

    @property
    def stage(self) -> Stage:
        """Current stage: ``"train"``, ``"val"``, ``"test"`` or ``"predict"``."""
        return self._state.stage  # type: ignore[return-value]

    @property
    def entry_point(self) -> str:
        """Call of the user: ``"fit"``, ``"train"``, ``"evaluate"``, ``"test"`` or ``"predict"``."""
        return self._state.entry_point

    @property
    def is_training_run(self) -> bool:
        """True in ``fit``, ``train`` and a custom loop; False in ``evaluate``, ``test`` and ``predict``."""
        return self._state.entry_point in ("fit", "train")

    @property
    def loader_name(self) -> str | None:
        """Name of the current evaluation loader, or ``None`` if it has no name."""
        return self._get("loader_name")  # type: ignore[no-any-return]

    @property
    def clock(self) -> Clock:
        """Progress of the run: steps, epochs, batches, samples, tokens and seconds."""
        return self._state.clock_view

    @property
    def max_duration(self) -> Duration | None:
        """Length of training. Assign a duration such as ``"20ep"`` to change it during the run.

        ``None``: training continues until a request to stop.
        """
        return self._state.max_duration

    @max_duration.setter
    def max_duration(self, value: str | Duration | None) -> None:
        self._required("set run.max_duration")
        duration = None if value is None else Duration.parse(value, "run.max_duration = …")
        if duration is not None and duration.unit == "dur":
            raise SetupError(f"run.max_duration = {str(duration)!r}: 'dur' is a fraction of max_duration itself")
        self._state.answers.check_max_duration(duration)
        self._state.max_duration = duration
        self._state.requests.note_change("run.max_duration", str(duration))

    @property
    def exception(self) -> BaseException:
        """Error that ends the run, or that made a checkpoint fail."""
        return self._get("exception")  # type: ignore[no-any-return]

    @property
    def stop_reason(self) -> str:
        """Reason why training is about to stop.

        It has a value after a callback, the user or the task has asked to stop.
        """
        if self._state.requests.agreed.stop is None:
            raise _not_available("stop_reason", "no callback has asked to stop")
        return self._state.requests.agreed.stop.reason

    @property
    def ending(self) -> Ending | None:
        """How training ends: ``None`` while it continues, else an ``Ending``.

        It has a value after a request to stop, from the evaluation at the end of training on, and in all hooks after
        that. ``evaluate``, ``test`` and ``predict`` have none.

        Example:
            >>> import hookline as hl
            >>> class Goodbye(hl.Callback):
            ...     def on_fit_end(self, run):
            ...         if run.ending.can_resume:
            ...             print(f"Continue with resume='auto' ({run.ending.reason}).")
        """
        return self._state.answers.ending()

    @property
    def will_resume(self) -> bool:
        """True in ``on_setup`` if Hookline will load a checkpoint after it, to continue an earlier run."""
        return self._state.answers.will_resume()

    @property
    def can_skip_step(self) -> bool:
        """True if ``run.skip_step()`` can still skip the update of this step."""
        return self._state.requests.can_skip

    @property
    def skip_requested(self) -> bool:
        """True if a callback has asked to skip this step, and all ranks skip it."""
        return self._state.requests.agreed.skip is not None

    @property
    def interval_may_end(self) -> bool:
        """True in ``on_train_step_end`` if the interval of metrics may end after this step.

        A callback that measures something costly measures and logs it only then.
        """
        return self._state.answers.interval_may_end()

    @property
    def checkpoint(self) -> Path:
        """Path of the checkpoint that was saved, loaded or rejected."""
        return self._get("checkpoint")  # type: ignore[no-any-return]

    # -- metrics, callbacks, folder and ranks --------------------------------------------------

    @property
    def metrics(self) -> LatestMetrics:
        """Latest value of each metric: a float, or a list for an array.

        Reading a metric that is still being averaged causes a transfer from the device. ``run.metrics.new()`` returns
        the metrics of this step, and ``run.metrics.step_of(name)`` the step of a value.
        """
        return LatestMetrics(self._state)

    @property
    def history(self) -> History:
        """Past values of each metric, with their steps."""
        return self._state.history

    @property
    def callbacks(self) -> Callbacks:
        """Callbacks of the run: iterate over them, find one by name, add or remove one."""
        return Callbacks(self._state.line, self._state.loop)

    @property
    def messages(self) -> Messages:
        """Messages between callbacks."""
        return self._state.messages

    @property
    def project(self) -> str:
        """Project of the run: the part of ``name=`` before the slash."""
        return self._state.project

    @property
    def name(self) -> str:
        """Name of the run."""
        return self._state.name

    @property
    def folder(self) -> Path:
        """Folder of the run. Check ``run.has_folder`` first.

        Raises:
            NotAvailableError: If the run has no folder, because of ``folder=False``.
        """
        folder = self._state.folder
        if folder is None:
            raise no_folder("run")
        return folder

    @property
    def has_folder(self) -> bool:
        """True if the run has a folder. False with ``folder=False``."""
        return self._state.folder is not None

    @property
    def remote_folder(self) -> str | None:
        """Address of the run's folder, if ``folder=`` is an address. ``run.folder`` is copied there."""
        return self._state.remote_folder

    @property
    def started(self) -> datetime:
        """Time at which the run was created."""
        return self._state.started

    @property
    def rank(self) -> int:
        """Index of this process, from 0 to ``world_size - 1``."""
        return self._state.rank

    @property
    def world_size(self) -> int:
        """Number of processes that train together."""
        return self._state.world_size

    @property
    def is_sharded(self) -> bool:
        """True if the weights are sharded over the processes, as with ``hl.FSDP``."""
        return self._state.answers.is_sharded()

    @property
    def data_parallel_size(self) -> int:
        """Number of processes that read different data: ``world_size``, unless several share one shard of the data."""
        return self._state.answers.data_parallel_size()

    @property
    def loop(self) -> Any:
        """Engine of the run. Its fields may change between versions, so callbacks do not use it.

        A task can call ``run.loop.backward(loss, optimizer)`` and ``run.loop.step(optimizer)``.
        """
        return self._state.loop

    # -- methods -------------------------------------------------------------------------------

    def log(
        self,
        values: Mapping[str, Any] | torch.nn.Module,
        *more: Never,
        weight: float | torch.Tensor | None = None,
        reduce: Literal["mean", "sum", "last", "max", "min"] = "mean",
        step: int | None = None,
        padding: bool = False,
    ) -> None:
        """Log numbers or small arrays. A name without a slash gets the prefix of the stage.

        Hookline copies the values and keeps them on their device until the interval ends. A vector counts as one value
        per sample: Hookline logs its mean, with its length as the weight. Hookline computes and resets a torchmetrics
        metric or collection when the interval, the epoch or the evaluation ends.

        Args:
            values: Values by name, or a torchmetrics collection.
            *more: Not allowed. It exists so that ``run.log("name", value)`` raises a clear error.
            weight: Weight of the values in the mean.
            reduce: Reduction over the values of an interval.
            step: Step of the row, if it is not the clock's step. The steps of one metric must increase.
            padding: Log also in a batch that is padding (``run.is_padding``), for values that do not depend on its
                samples, such as times.

        Raises:
            MetricError: If a value cannot be logged.
        """
        if values.__class__ is not dict or more:
            _check_logged(values, more)
        if padding:
            with self._state.answers.padding_counts():
                self._state.metrics.log(values, weight, reduce, step, self)
            return
        self._state.metrics.log(values, weight, reduce, step, self)

    def log_image(self, name: str, image: Any, *, caption: str = "", step: int | None = None) -> None:
        """Log an image, or a batch of images as a grid. Hookline writes it immediately.

        Args:
            name: Name of the image.
            image: A tensor, an array or a Pillow image. Its shape is (height, width), (channels, height, width) or
                (height, width, channels), or that of a batch. It holds bytes from 0 to 255 or numbers from 0 to 1.
                Hookline scales other numbers and says so in the caption.
            caption: Caption of the image.
            step: Step of the image, if it is not the clock's step.
        """
        self._state.media.image(name, image, caption, step)

    def log_figure(self, name: str, figure: Any, *, step: int | None = None) -> None:
        """Log a Matplotlib figure as an image.

        Args:
            name: Name of the image.
            figure: The figure.
            step: Step of the image, if it is not the clock's step.
        """
        self._state.media.figure(name, figure, step)

    def log_text(self, name: str, text: str, *, step: int | None = None) -> None:
        """Log a string, such as a sample of generated text or a note.

        Args:
            name: Name of the text.
            text: The string.
            step: Step of the text, if it is not the clock's step.
        """
        self._state.media.text(name, text, step)

    def log_table(self, name: str, rows: Any, columns: Sequence[str] | None = None, *, step: int | None = None) -> None:
        """Log a table.

        Args:
            name: Name of the table.
            rows: A list of dicts, a list of lists with ``columns``, or a pandas DataFrame.
            columns: Names of the columns, for a list of lists.
            step: Step of the table, if it is not the clock's step.
        """
        self._state.media.table(name, rows, columns, step)

    def log_histogram(self, name: str, values: Any, *, bins: int = 64, step: int | None = None) -> None:
        """Log a histogram of the values of a tensor.

        Args:
            name: Name of the histogram.
            values: The values.
            bins: Number of bins.
            step: Step of the histogram, if it is not the clock's step.
        """
        self._state.media.histogram(name, values, bins, step)

    def log_file(self, name: str, path: str | Path, *, step: int | None = None) -> None:
        """Log a file. Hookline copies it into the run's folder, with one copy per step.

        Args:
            name: Name of the file in the run.
            path: Path of the file.
            step: Step of the file, if it is not the clock's step.
        """
        self._state.media.file(name, path, step)

    def log_event(self, name: str, text: str = "") -> None:
        """Add an event to the timeline of the run, in ``events.jsonl`` and in the report.

        Args:
            name: Kind of the event, such as ``"restore"``.
            text: What happened.
        """
        self._state.answers.log_event(name, text)

    def rename_metric(self, old: str, new: str, *, keep: bool = False) -> None:
        """Show a metric under another name from now on. Call it in ``on_setup``.

        Args:
            old: Full name under which the metric is logged, such as ``"val/acc"``.
            new: Full name under which history, sinks and callbacks find it.
            keep: True to show the metric under both names.
        """
        self._required("called run.rename_metric()")
        self._state.metrics.rename(old, new, keep=keep)

    def stop(self, reason: str, *, together: bool = False) -> None:
        """Ask to stop training at the end of this step, after the evaluation that is due.

        Args:
            reason: Reason that ``run.stop_reason`` and the result show.
            together: True if all ranks call it in the same hook, with the same reason: then the ranks need no vote.
        """
        self._required("called run.stop()")
        member = self.member
        request = StopRequest(reason, member.name, self.clock.step, asker=member.key)
        self._state.requests.ask_stop(request)
        if together:
            self._state.requests.agree_on_stop(request)

    def pause(self, reason: str) -> None:
        """Ask to end training at the end of this step so that a resumed run continues it, as after Ctrl-C.

        Hookline saves a checkpoint if the run has a folder, and makes no last evaluation.

        Args:
            reason: Reason that ``run.ending`` and the result show.

        Example:
            >>> import os
            >>> import hookline as hl
            >>> class PauseFile(hl.Callback):
            ...     def on_train_step_end(self, run):
            ...         if os.path.exists("pause"):
            ...             run.pause("the file 'pause' exists")
        """
        self._required("called run.pause()")
        member = self.member
        request = StopRequest(reason, member.name, self.clock.step, interrupt=True, asker=member.key)
        self._state.requests.ask_stop(request)
        if self.has_folder:
            self._state.requests.ask_save()

    def request_eval(self) -> None:
        """Ask for an evaluation at the end of this step.

        Raises:
            SetupError: If the run has no validation loader.
        """
        self._required("called run.request_eval()")
        self._state.requests.ask_eval()

    def request_save(self, plan: SavePlan | None = None) -> None:
        """Ask for a checkpoint at the end of this step.

        Args:
            plan: A plan that was added with ``run.add_save_plan``. ``None``: all plans of the run save or, if the run
                has no plan, Hookline saves in ``checkpoints``.

        Raises:
            SetupError: If the run has no folder.
        """
        self._required("called run.request_save()")
        if plan is None:
            self._state.requests.ask_save()
        else:
            self._state.answers.request_plan(plan)

    def add_save_plan(self, plan: SavePlan) -> None:
        """Let Hookline save checkpoints by a plan in this run. Call it in ``on_setup``.

        Args:
            plan: When to save, what, where, and which checkpoints to keep.

        Raises:
            SetupError: If the run has no folder, or if another plan has the same folder.

        Example:
            >>> import hookline as hl
            >>> from hookline.checkpoint import SavePlan
            >>> class SaveAfterEvaluations(hl.Callback):
            ...     plan = SavePlan(folder="evaluated", at_end=False)
            ...
            ...     def on_setup(self, run):
            ...         if run.is_training_run:
            ...             run.add_save_plan(self.plan)
            ...
            ...     def on_eval_end(self, run):
            ...         run.request_save(self.plan)
        """
        self._required("called run.add_save_plan()")
        self._state.answers.add_save_plan(plan)

    def listen_to_signals(self, signals: Iterable[int]) -> None:
        """Let more signals than SIGTERM save a checkpoint and end the process. Call it in ``on_setup``.

        Args:
            signals: The signals, such as ``[signal.SIGUSR1]``.
        """
        self._required("called run.listen_to_signals()")
        self._state.answers.listen_to_signals(signals)

    def when_written(self, call: Callable[[Path], None]) -> None:
        """Call a function when all files of this fit are written, after the last hook, on rank zero.

        Hookline logs an error of the function, and the run does not fail.

        Args:
            call: Function of the run's folder.
        """
        self._state.answers.when_written(call)

    def skip_step(self, *, together: bool = False) -> None:
        """Skip the update of the current step. The weights and the step count do not change.

        The batches of the step stay read.

        Args:
            together: True if all ranks call it in the same hook: then the ranks need no vote, and a step can be skipped
                until ``on_gradients_ready``.

        Raises:
            ScopeError: If no update is being prepared, or if it is too late for all ranks to skip it.
        """
        self._required("called run.skip_step()")
        if together:
            self._state.requests.agree_on_skip(self.member.name)
        else:
            self._state.requests.ask_skip(self.member.name)

    def limit_batches(self, stage: str, count: int | None, *, repeat: bool = False) -> int | None:
        """Limit the batches of an epoch, an evaluation or a prediction in this run, and return the limit that counts.

        Each callback has one limit for each stage. The smallest limit of all callbacks counts.

        Args:
            stage: ``"train"``, ``"val"``, ``"test"`` or ``"predict"``.
            count: Largest number of batches, of all ranks together. ``None`` removes the callback's limit.
            repeat: True to train on the same batches in every epoch. For ``"train"`` only.

        Raises:
            SetupError: If ``stage`` is unknown, or if ``count`` is less than 1.

        Example:
            >>> import hookline as hl
            >>> class ShortEvaluations(hl.Callback):
            ...     def on_setup(self, run):
            ...         run.limit_batches("val", 10)
        """
        self._required("called run.limit_batches()")
        return self._state.answers.limit_batches(stage, count, self.member, repeat=repeat)

    def num_batches(self, stage: str, loader: Any = None) -> int | None:
        """Return the number of batches of an epoch, an evaluation or a prediction on this rank, with its limits.

        Args:
            stage: ``"train"``, ``"val"``, ``"test"`` or ``"predict"``.
            loader: The loader. ``None``: the loader of the stage; for ``"train"`` in an epoch, that epoch's.

        Returns:
            The number, or ``None`` if the loader has no length.
        """
        return self._state.answers.num_batches(stage, loader)

    def sample_indices(self, batch: int) -> list[int] | None:
        """Return the indices in the data set of the samples in a training batch of this epoch.

        Args:
            batch: Number of the batch in the epoch, as ``run.clock.batch_in_epoch`` shows it in
                ``on_train_batch_start``.

        Returns:
            The indices, or ``None`` if the order of the loader is not known: it is known for a ``DataLoader`` over a
            data set with ``__getitem__`` and torch's own samplers.
        """
        return self._state.answers.sample_indices(batch)

    def to_device(self, batch: Any) -> Any:
        """Return a batch on the device of the model, as the loop moves it.

        Args:
            batch: A batch of a loader.
        """
        return self._state.answers.to_device(batch)

    def path(self, name: str | Path) -> Path:
        """Return the path of a file that a callback writes. A relative path is inside the run's folder.

        Args:
            name: Path of the file, such as ``"plots/loss.png"``. An absolute path stays as it is.

        Raises:
            SetupError: If the path is relative, and the run has no folder or the path leaves the folder.
        """
        path, folder = Path(name), self._state.folder
        if leaves_folder(path):
            raise SetupError(f"run.path({str(path)!r}): this path leaves the run's folder. Give a path inside it.")
        return in_run_folder(path, folder, "name", "run.path")

    def trial(self) -> AbstractContextManager[Trial]:
        """Make training steps that leave no trace, inside a ``with`` block in ``on_fit_start`` or ``on_train_start``.

        After the block weights, optimizers, random states, metrics and the position in the data are as before it. No
        hook is called inside it.

        Raises:
            SetupError: If the run has no task, as in a custom loop.
            ScopeError: If an epoch has begun.

        Example:
            >>> import hookline as hl
            >>> class FirstLoss(hl.Callback):
            ...     def on_fit_start(self, run):
            ...         with run.trial() as trial:
            ...             losses = [float(trial.step(batch)) for batch in trial.batches(10)]
            ...         print(f"after 10 steps the loss is {losses[-1]:.3f}")
        """
        return self._state.answers.trial()

    def evaluate(self, what: Any = "val") -> dict[str, Any]:
        """Evaluate now and return the metrics. The run does not change.

        Hookline caches the result until the weights change.

        Args:
            what: ``"val"``, ``"test"``, ``"train"`` or a loader.
        """
        return self._state.answers.evaluate(what)

    def predict(self, what: Any = "val", *, targets: bool = False) -> Any:
        """Predict now and return the predictions in the loader's order. The run does not change.

        Hookline caches the result until the weights change.

        Args:
            what: ``"val"``, ``"test"``, ``"train"``, ``"predict"`` or a loader.
            targets: Return a tuple of the predictions and the targets, in the same order.
        """
        return self._state.answers.predict(what, targets=targets)

    def gather(self, value: Any) -> list[Any]:
        """Return the value of each process, by rank. All ranks must call it in the same hook.

        After an error on any rank, the list holds only the value of this process.

        Args:
            value: A value that JSON can represent.
        """
        return self._state.answers.gather(value)

    def reduce(self, value: Any, op: Literal["sum", "mean", "max", "min"] = "sum") -> Any:
        """Return the sum, mean, maximum or minimum over the ranks. All ranks must call it in the same hook.

        Ranks with the same data count once in a sum or mean. After an error on any rank, the result is the value of
        this process.

        Args:
            value: A number, or a tensor of the same shape on all ranks. It does not change.
            op: ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``.

        Returns:
            A float for a number, a tensor on the same device for a tensor.
        """
        return self._state.answers.reduce(value, op)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the values of rank zero into the tensors of all ranks. All ranks must call it in the same hook.

        Args:
            tensors: Tensors of the same shapes and kinds on all ranks. They change in place.
        """
        self._state.answers.broadcast(tensors)

    def raw_weights(self) -> dict[str, torch.Tensor]:
        """Return the weights that training changes, by name, also while ``run.swap_weights`` is open.

        They are the tensors themselves, not copies.
        """
        return self._state.answers.raw_weights()

    def prediction_weights(self) -> AbstractContextManager[None]:
        """Use the weights of predictions inside a ``with`` block, such as the averages of ``EMA``.

        Hookline opens ``around_predict`` of each callback that declares ``writes = ("weights",)``.
        """
        return self._state.answers.prediction_weights()

    def swap_weights(self, weights: Mapping[str, torch.Tensor]) -> AbstractContextManager[None]:
        """Use other weights inside a ``with`` block, for example in ``around_eval``.

        This method is the only supported way to swap weights.

        Args:
            weights: Tensors by name of a parameter or buffer.
        """
        self._required("called run.swap_weights()")
        return self._state.answers.swap_weights(weights)

    def snapshot(self) -> dict[str, Any]:
        """Return a copy, in memory, of everything that the next step depends on, for ``roll_back``.

        Raises:
            ScopeError: If it is called inside a step or an evaluation.
        """
        return self._state.answers.snapshot(self.member)

    def roll_back(self, snapshot: Mapping[str, Any]) -> None:
        """Ask to return to a snapshot at the end of this step.

        Hookline restores weights, optimizers, schedulers, random states, the step and the other callbacks, and removes
        what was logged since the snapshot. Training repeats the steps with new data: batches that were read since the
        snapshot stay read.

        Args:
            snapshot: Result of ``run.snapshot()``.

        Raises:
            SetupError: If ``snapshot`` is anything else.
        """
        self._required("called run.roll_back()")
        if not isinstance(snapshot, Mapping) or not {"weights", "buffers", "state"} <= snapshot.keys():
            raise SetupError(f"run.roll_back({snapshot!r:.60}): give what run.snapshot() returned")
        self._state.requests.ask_rollback(snapshot, self.member)

    def emit(self, event: str, **payload: object) -> None:
        """Send an event that is declared in ``events``. A task may also send ``forward_*``.

        Args:
            event: Name of the event.
            **payload: Values that the event declares with ``gives``.

        Raises:
            RegistrationError: If the event is unknown or declares another payload.
            NotAvailableError: If a hook replaces the batch or the outputs in ``forward_*``.
        """
        state = self._state
        batch, outputs = state.batch, state.outputs
        state.line.emit_custom(event, payload)
        if event in TAKEN and (state.batch is not batch or state.outputs is not outputs):
            sender = type(self.member.callback).__name__
            raise NotAvailableError(
                f"run.{TAKEN[event]} = … in on_{event}: {sender} sends this event itself, so Hookline cannot hand "
                f"it on. Replace the batch in on_train_batch_start, or let the task use SupervisedTask.call_model."
            )

    # ------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # A type checker would accept every misspelt name.

        def __getattr__(self, name: str) -> Any:
            """Raise for a field without a value, or for an unknown field with a suggestion."""
            field = getattr(type(self), name, None)
            if isinstance(field, property) and field.fget is not None:
                return field.fget(self)  # The property raised an AttributeError: this call raises it again.
            known = [known for known in dir(type(self)) if not known.startswith("_")]
            close = get_close_matches(name, known, n=1)
            hint = MEANT.get(name) or (f"run.{close[0]}" if close else "")
            raise AttributeError(f"run has no {name!r}" + (f"; did you mean {hint}?" if hint else ""))

    if not TYPE_CHECKING:  # Type checkers already reject unknown fields.

        def __setattr__(self, name: str, value: object) -> None:
            found = getattr(type(self), name, None)
            if isinstance(found, property) and found.fset is not None:
                return found.fset(self, value)
            if isinstance(found, property):
                raise NotAvailableError(f"run.{name} = …: it cannot be replaced. {INSTEAD.get(name, '')}".rstrip())
            if callable(found) and not name.startswith("_"):
                raise NotAvailableError(f"run.{name} = …: it is a method. Call run.{name}(…).")
            close = get_close_matches(name, [known for known in dir(type(self)) if not known.startswith("_")], n=1)
            meant = MEANT.get(name, "")
            advice = (
                f"Did you mean run.{close[0]}?" if close else f"Keep your own values on the callback (self.{name} = …)."
            )
            if meant.startswith("run.clock"):
                advice = "Only the loop counts. Set run.max_duration, or call run.stop('why')."
            elif meant:
                advice = f"{'Call' if meant.endswith(')') else 'Write'} {meant}."
            raise NotAvailableError(f"run.{name} = …: run has no such field. {advice}")

    def _need_batch(self, field: str) -> None:
        if self._state.batch is MISSING:
            raise NotAvailableError(
                f"run.{field} = …: no batch is being processed now. Set it between on_batch_fetch_end and the end of "
                f"the batch."
            )

    def _get(self, field: str, hint: str = "") -> Any:
        value = getattr(self._state, field)
        if value is MISSING:
            raise _not_available(field, hint)
        return value

    def _required(self, act: str) -> None:
        if self.member.optional:
            raise RoleError(
                f"{self.member.name} is optional and {act}: an optional callback may log, emit and send "
                f"messages; set optional = False on it if the run depends on it"
            )

    def __repr__(self) -> str:
        return f"<Run {self.project}/{self.name} of {self.member.name}, {self.stage}, {self.clock!r}>"


class Loaders(MutableMapping[str, Any]):
    """Loaders of a run. The next epoch or evaluation uses an assigned loader."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getitem__(self, stage: str) -> Any:
        return self._run._state.loaders[stage]

    def __setitem__(self, stage: str, loader: Any) -> None:
        self._run._required(f"set run.loaders[{stage!r}]")
        self._run._state.answers.replace_loader(stage, loader)

    def __delitem__(self, stage: str) -> None:
        raise NotAvailableError(f"del run.loaders[{stage!r}]: a run keeps its loaders. Assign another one.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._run._state.loaders)

    def __len__(self) -> int:
        return len(self._run._state.loaders)

    def __repr__(self) -> str:
        return repr(self._run._state.loaders)


class LatestMetrics(ReadOnly[Any]):
    """Latest value of each metric, as ``run.metrics`` shows it: a read-only mapping from full names to values.

    A value is a float, or a list for an array. It stays until the metric is measured again. ``new()`` has only the
    numbers of this step, and ``step_of(name)`` returns the step of a value.

    Args:
        state: The shared state of the run.

    Example:
        >>> import hookline as hl
        >>> class ShowBest(hl.Callback):
        ...     reads = ("val/f1",)
        ...     best = 0.0
        ...
        ...     def on_eval_end(self, run):
        ...         value = run.metrics.new().get("val/f1")
        ...         if value is not None:  # This evaluation has measured the metric.
        ...             self.best = max(self.best, value)
    """

    __slots__ = ("_state",)

    def __init__(self, state: RunState) -> None:
        super().__init__({}, "run.metrics", INSTEAD["metrics"])
        self._state = state

    def __getitem__(self, name: str) -> Any:
        return self._state.metrics.value(name)

    def __iter__(self) -> Iterator[str]:
        return self._state.metrics.names()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def new(self, *, pending: bool = False) -> dict[str, float]:
        """Return the numbers that were measured at this step, also those of an evaluation that is not over.

        The result is a new dict from full names to floats. A metric that was not measured at this step is not in it,
        so ``run.metrics.new().get(name)`` is ``None`` if there is nothing to decide.

        Args:
            pending: True to include training metrics of the interval that is not over. Reading them causes a transfer
                from the device.
        """
        return self._state.metrics.measured_now(pending=pending)

    def step_of(self, name: str) -> int | None:
        """Return the step of the latest value of a metric, or ``None`` if it has no value.

        Args:
            name: Full name of the metric.
        """
        return self._state.metrics.measured_at(name)


def _check_logged(values: object, more: tuple[object, ...]) -> None:
    """Raise a clear error unless ``values`` is a mapping or a torchmetrics object."""
    if isinstance(values, str):
        given = f"{values!r}, {more[0]!r:.40}" if more else repr(values)
        raise MetricError(f"run.log({given}): give a dict of names and values: run.log({{{values!r}: value}})")
    if more:
        raise MetricError(
            f"run.log({values!r:.40}, {more[0]!r:.40}): give one dict; weight=, reduce= and step= by name"
        )
    if not isinstance(values, Mapping) and not hasattr(values, "compute"):
        raise MetricError(f"run.log({values!r:.40}): it is {kind_of(values)}; give a dict: {{'name': value}}")


def no_folder(owner: str) -> NotAvailableError:
    """Return the error of ``run.folder`` or ``result.folder`` for a run without a folder."""
    return NotAvailableError(
        f"{owner}.folder: this run has no folder, because of folder=False. Give the run a folder, or test "
        f"{owner}.has_folder first."
    )


def _not_available(field: str, hint: str) -> NotAvailableError:
    when = ", ".join(f"on_{event}" for event in moments(field))
    parts = [f"run.{field} has no value now", hint, f"it has one in {when}" if when else ""]
    return NotAvailableError("; ".join(part for part in parts if part))
