"""``Checkpointer``: save checkpoints, and choose which ones to keep."""

from __future__ import annotations

import math
import os
import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from hookline.callbacks._monitor import monitor_mode
from hookline.checkpoint.plan import FOLDER, SavePlan
from hookline.checkpoint.retention import Keep
from hookline.errors import ArgumentError, HooklineWarning
from hookline.events import Callback
from hookline.progress import Duration
from hookline.records.file_names import check_links
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import Run


class Checkpointer(Callback):
    """Save checkpoints of the whole run, so that ``resume="auto"`` continues it exactly.

    The engine saves at the end of a step, after the evaluation that is due. ``run.request_save()`` asks for a save from
    any callback. Hookline keeps a checkpoint if at least one of the ``keep_…`` rules keeps it.

    Args:
        every: How often to save: ``"1ep"``, ``"500st"``, ``"30m"``. ``None``: ``"1ep"``, or only after evaluations if
            ``on_eval`` is true.
        on_eval: Save after each evaluation. ``None``: only with a ``monitor`` that is not a ``train/…`` metric.
        at_end: Save when training ends.
        on_exception: Save after an error. ``resume="auto"`` skips such a checkpoint if the error was raised inside a
            step.
        keep_last: Number of newest checkpoints to keep. ``None``: keep all. With 0, the newest checkpoint is still kept
            until the run is finished.
        keep_best: Number of best checkpoints by ``monitor`` to keep. A checkpoint counts if the metric was measured at
            its step. ``None``: 1 with a ``monitor``, else 0.
        keep_every: Keep one checkpoint for each of these durations, for example ``"10ep"``. ``None``: no such rule.
        monitor: Name of the metric for ``keep_best``. ``None``: ``"val/loss"`` if ``keep_best`` is given, else no
            metric.
        mode: ``"min"`` or ``"max"``. ``None``: inferred from the metric's name (``loss``, ``acc``, …).
        weights_only: Save the weights without the rest of the state. A run cannot resume from such a checkpoint.
        background: Copy the state while training waits, and write it while training continues.
        name: Template for the names, such as ``"{epoch}-{step:06d}-{val/loss:.3f}"``. A metric that was not measured at
            the step becomes ``none``. A name that exists gets a number: ``"best-2"``. ``None``: ``step-00000500``.
        folder: Folder inside the run's folder. ``resume="auto"`` reads only the default one; use another folder for a
            second ``Checkpointer``.
        on_error: ``"raise"`` if a checkpoint cannot be written, or ``"warn"`` and continue without it.

    Raises:
        ArgumentError: If an argument is invalid, or ``mode`` cannot be inferred from the metric's name.

    Example:
        >>> import tempfile, torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trainer = Trainer(max_duration="6st", folder=folder, callbacks=[Checkpointer(every="2st", keep_last=2)])
        ...     result = trainer.fit(
        ...         TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD
        ...     )
        ...     print(sorted(path.name for path in result.folder.glob("checkpoints/*")))
        ['step-00000004', 'step-00000006']
    """

    reads: tuple[str, ...] = ("*",)  # Run last, so that the checkpoint has the decisions of all callbacks.

    def __init__(
        self,
        every: str | Duration | None = None,
        *,
        on_eval: bool | None = None,
        at_end: bool = True,
        on_exception: bool = False,
        keep_last: int | None = 3,
        keep_best: int | None = None,
        keep_every: str | Duration | None = None,
        monitor: str | None = None,
        mode: Literal["min", "max"] | None = None,
        weights_only: bool = False,
        background: bool = False,
        name: str | None = None,
        folder: str | os.PathLike[str] = FOLDER,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        if keep_last is None and (keep_best or keep_every):
            raise ArgumentError("Checkpointer(keep_last=None): keeps all. Leave out keep_best and keep_every.")
        if mode is not None and monitor is None and not keep_best:
            raise ArgumentError(f"Checkpointer(mode={mode!r}): needs a metric. Add monitor='val/loss'.")
        if keep_best and monitor is None:
            monitor = "val/loss"
        if keep_best is None:
            keep_best = 0 if monitor is None else 1
        if on_eval is None:
            on_eval = monitor is not None and not monitor.startswith("train/")
        if every is None and not on_eval:
            every = "1ep"
        path = path_to_write(folder, "folder", "Checkpointer")
        parts = path.parts
        if path.is_absolute() or ".." in parts or not parts:
            raise ArgumentError(f"Checkpointer(folder={folder!r}): must be a folder inside the run's folder.")
        if parts[0] == FOLDER and len(parts) > 1:
            raise ArgumentError(
                f"Checkpointer(folder={folder!r}): {FOLDER!r} holds nothing but checkpoints. Give another folder."
            )
        if monitor is not None:
            self.reads = ("*", monitor)  # Hookline then finds a metric that is never logged before step 1.
        self.monitor = monitor
        self.mode = "min" if monitor is None else monitor_mode("Checkpointer", monitor, mode)
        self.on_eval = on_eval
        self._warned = False
        interval = None if every is None else Duration.parse(every, "Checkpointer(every=…)")
        given = None if keep_every is None else Duration.parse(keep_every, "Checkpointer(keep_every=…)")
        # A fraction of the run has no length until ``on_setup`` knows ``max_duration``.
        self._share = given if given is not None and given.unit == "dur" else None
        try:
            keep = Keep(
                last=1 if keep_last is None else keep_last,
                best=keep_best,
                monitor=monitor,
                mode=self.mode,
                every=Duration(1, "ep") if self._share else given,  # on_setup replaces this value for a fraction.
            )
            self.plan = SavePlan(
                every=interval,
                at_end=at_end,
                on_exception=on_exception,
                keep=None if keep_last is None else keep,
                monitor=monitor,
                mode=self.mode,
                weights_only=weights_only,
                background=background,
                name=name,
                folder=str(path),
                on_error=on_error,
            )
        except ArgumentError as error:  # Name the arguments of this class.
            text = re.sub(r"\b(last|best|every)=", r"keep_\1=", str(error))
            raise ArgumentError(re.sub(r"^(Keep|SavePlan)\(", "Checkpointer(", text)) from None
        self._plan = self.plan  # on_setup sets ``keep_every`` as a number of epochs or steps.

    def on_setup(self, run: Run) -> None:
        if run.is_training_run:
            plan = self.plan
            if self._share is not None and plan.keep is not None:
                plan = replace(plan, keep=replace(plan.keep, every=self._share.of(run.max_duration)))
            if run.has_folder:
                check_links(run.folder / plan.folder)
            self._plan = plan
            run.add_save_plan(plan)

    def on_eval_end(self, run: Run) -> None:
        if self.on_eval and run.stage == "val" and run.is_training_run:
            run.request_save(self._plan)

    def on_checkpoint_save(self, run: Run) -> None:
        if self.monitor is None or self._warned:
            return
        value = run.metrics.get(self.monitor)
        if isinstance(value, float) and math.isnan(value):
            self._warned = True
            warnings.warn(
                f"Checkpointer: {self.monitor} is NaN at step {run.clock.step}; such a checkpoint is never the best",
                HooklineWarning,
                stacklevel=2,
            )
