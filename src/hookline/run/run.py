"""``Run``: fields of a run that a hook reads, and methods that it calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
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
from hookline.run.history import History
from hookline.run.requests import StopRequest
from hookline.run.state import MISSING, RunState

if TYPE_CHECKING:
    import torch

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

    __slots__ = ("_state", "member")

    _state: RunState
    member: Member[Run]

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
    def loader_name(self) -> str | None:
        """Name of the current evaluation loader, or ``None`` if it has no name."""
        return self._get("loader_name")  # type: ignore[no-any-return]

    @property
    def clock(self) -> Clock:
        """Progress of the run: steps, epochs, batches, samples, tokens and seconds."""
        return self._state.clock_view

    @property
    def max_duration(self) -> Duration | None:
        """Length of training. Assign a duration such as ``"20ep"`` to change it during the run."""
        return self._state.max_duration

    @max_duration.setter
    def max_duration(self, value: str | Duration) -> None:
        self._required("set run.max_duration")
        duration = Duration.parse(value, "run.max_duration = …")
        if duration.unit == "dur":
            raise SetupError(f"run.max_duration = {str(duration)!r}: 'dur' is a fraction of max_duration itself")
        self._state.max_duration = duration
        self._state.requests.attention = True

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
    def checkpoint(self) -> Path:
        """Path of the checkpoint that was saved, loaded or rejected."""
        return self._get("checkpoint")  # type: ignore[no-any-return]

    # -- metrics, callbacks, folder and ranks --------------------------------------------------

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Latest value of each metric: a float, or a list for an array.

        Reading a metric that is still being averaged causes a transfer from the device.
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
    def loop(self) -> Any:
        """Engine of the run.

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

        Raises:
            MetricError: If a value cannot be logged.
        """
        if values.__class__ is not dict or more:
            _check_logged(values, more)
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

    def stop(self, reason: str) -> None:
        """Ask to stop training at the end of this step, after the evaluation that is due.

        Args:
            reason: Reason that ``run.stop_reason`` and the result show.
        """
        self._required("called run.stop()")
        self._state.requests.ask_stop(StopRequest(reason, self.member.name, self.clock.step))

    def request_eval(self) -> None:
        """Ask for an evaluation at the end of this step.

        Raises:
            SetupError: If the run has no validation loader.
        """
        self._required("called run.request_eval()")
        self._state.requests.ask_eval()

    def request_save(self) -> None:
        """Ask for a checkpoint at the end of this step.

        Raises:
            SetupError: If the run has no folder.
        """
        self._required("called run.request_save()")
        self._state.requests.ask_save()

    def skip_step(self) -> None:
        """Skip the update of the current step. The weights and the step count do not change.

        The batches of the step stay read.

        Raises:
            ScopeError: If no update is being prepared, or if it is too late for all ranks to skip it.
        """
        self._required("called run.skip_step()")
        self._state.requests.ask_skip(self.member.name)

    def evaluate(self, what: Any = "val") -> dict[str, Any]:
        """Evaluate now and return the metrics. The run does not change.

        Hookline caches the result until the weights change.

        Args:
            what: ``"val"``, ``"test"``, ``"train"`` or a loader.
        """
        return self._state.answers.evaluate(what)

    def predict(self, what: Any = "val") -> Any:
        """Predict now and return the predictions in the loader's order. The run does not change.

        Hookline caches the result until the weights change.

        Args:
            what: ``"val"``, ``"test"``, ``"train"``, ``"predict"`` or a loader.
        """
        return self._state.answers.predict(what)

    def gather(self, value: Any) -> list[Any]:
        """Return the value of each process, by rank. All ranks must call it in the same hook.

        After an error on any rank, the list holds only the value of this process.

        Args:
            value: A value that JSON can represent.
        """
        return self._state.answers.gather(value)

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
    """Live view of the latest value of each metric."""

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
    parts = [f"run.{field} has no value at this moment", hint, f"it has one in {when}" if when else ""]
    return NotAvailableError("; ".join(part for part in parts if part))
