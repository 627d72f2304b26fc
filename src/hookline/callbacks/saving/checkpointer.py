"""``Checkpointer``: when a run is saved, and which checkpoints are kept."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from hookline.callbacks.monitor_mode import monitor_mode
from hookline.checkpoint.plan import FOLDER, SavePlan
from hookline.checkpoint.retention import Keep
from hookline.errors import HooklineWarning, RegistrationError, SetupError
from hookline.events import Callback
from hookline.progress import Duration
from hookline.records.file_names import check_links
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import Run


class Checkpointer(Callback):
    """Saves the run, so that ``resume="auto"`` goes on exactly where it was.

    **When.** ``every`` so much training (``"1ep"``, ``"500st"``, ``"30m"``), after each evaluation (``on_eval``), at
    the end (``at_end``), after an error (``on_exception``; such a checkpoint is passed over by ``resume="auto"``),
    and whenever a callback calls ``run.request_save()``. It is saved at the end of the step, after the evaluation.

    **What is kept.** The last ``keep_last``, the best ``keep_best`` by ``monitor``, and one for ``keep_every`` so
    much training: all of them together. ``keep_last=None`` keeps all. An old one is deleted only when the new one
    is whole on the disk. With ``keep_last=0`` and ``keep_best=2`` a finished run has the best two and nothing else;
    until then the newest is kept as well, so that a run that was interrupted can be resumed. ``monitor`` is
    ``"val/loss"`` if ``keep_best`` is given alone. A checkpoint counts for ``monitor`` if the metric was measured at
    its step. So it is also saved after each evaluation if there is a monitor, unless ``on_eval=False``.

    **What is written.** ``<folder>/<dirpath>/step-00000500/`` with the weights in ``model.safetensors``, which every
    other tool can read, the rest of the state, and a manifest with sizes and hashes. Nothing in it is a pickle.
    ``weights_only`` leaves the rest out; a run cannot go on from that. ``name`` is a template such as
    ``"{epoch}-{step:06d}-{val/loss:.3f}"``; a metric that was not measured at the step is ``none`` there, and
    a name that is taken gets a number: ``"best-2"``.
    ``resume="auto"`` looks in the default ``dirpath`` alone: another is for a second ``Checkpointer``.

    **How.** With ``background=True`` the state is copied while training waits, and written while it goes on; one save
    at a time, an error comes at the next step, and the last save is always waited for. ``on_save_error="warn"`` goes
    on without a checkpoint when the disk is full or gone; ``"raise"`` ends the run.

    >>> import tempfile, torch
    >>> from hookline.loop import Trainer
    >>> from hookline.testing import TinyModel, tiny_data
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trainer = Trainer(max_duration="6st", folder=folder, callbacks=[Checkpointer(every="2st", keep_last=2)])
    ...     result = trainer.fit(TinyModel(), tiny_data(), loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD)
    ...     print(sorted(path.name for path in result.folder.glob("checkpoints/*")))
    ['step-00000004', 'step-00000006']
    """

    reads: tuple[str, ...] = ("*",)  # it runs last: what the others have just decided is in the checkpoint

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
        dirpath: str = FOLDER,
        on_save_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        if keep_last is None and (keep_best or keep_every):
            raise RegistrationError("Checkpointer(keep_last=None) keeps all: leave out keep_best and keep_every")
        if keep_best and monitor is None:
            monitor = "val/loss"
        if keep_best is None:
            keep_best = 0 if monitor is None else 1
        if on_eval is None:
            on_eval = monitor is not None and not monitor.startswith("train/")
        if every is None and not on_eval:
            every = "1ep"
        folder = path_to_write(dirpath, "dirpath", "Checkpointer")
        parts = folder.parts
        if folder.is_absolute() or ".." in parts or not parts:
            raise RegistrationError(f"Checkpointer(dirpath={dirpath!r}): give a folder inside the run's own")
        if parts[0] == FOLDER and len(parts) > 1:
            raise RegistrationError(f"Checkpointer(dirpath={dirpath!r}): {FOLDER!r} holds nothing but checkpoints")
        if monitor is not None:
            self.reads = ("*", monitor)  # a metric that no callback logs is found before the first step
        self.monitor = monitor
        self.mode = "min" if monitor is None else monitor_mode("Checkpointer", monitor, mode)
        self.on_eval = on_eval
        self._said = False
        given = None if keep_every is None else Duration.parse(keep_every, "Checkpointer(keep_every=…)")
        self._share = given if given is not None and given.unit == "dur" else None  # until max_duration is known
        keep = _keep(
            last=1 if keep_last is None else keep_last,
            best=keep_best,
            monitor=monitor,
            mode=self.mode,
            every=Duration(1, "ep") if self._share else given,  # a share is put in its place in on_setup
        )
        self.plan = SavePlan(
            every=None if every is None else Duration.parse(every, "Checkpointer(every=…)"),
            at_end=at_end,
            on_exception=on_exception,
            keep=None if keep_last is None else keep,
            monitor=monitor,
            mode=self.mode,
            weights_only=weights_only,
            background=background,
            name=name,
            folder=str(folder),
            on_error=on_save_error,
        )
        self._plan = self.plan  # with ``keep_every`` as a number of epochs or steps

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
        if self.on_eval and run.stage == "val" and run.entry_point == "fit":
            run.request_save(self._plan)

    def on_checkpoint_save(self, run: Run) -> None:
        if self.monitor is None or self._said:
            return
        value = run.metrics.get(self.monitor)
        if isinstance(value, float) and math.isnan(value):
            self._said = True
            warnings.warn(
                f"Checkpointer: {self.monitor} is NaN at step {run.clock.step}; such a checkpoint is never the best",
                HooklineWarning,
                stacklevel=2,
            )


def _keep(**rules: Any) -> Keep:
    """The rules, in the words of ``Checkpointer`` if they are wrong."""
    try:
        return Keep(**rules)
    except SetupError as error:
        mine = re.sub(r"\b(last|best|every)=", r"keep_\1=", str(error))
        raise RegistrationError(f"Checkpointer: {mine}") from None
