"""``MemorySnapshot``: record memory use during a few steps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hookline.callbacks._paths import check_folder, output_folder
from hookline.callbacks.debug._memory import CudaRecording, HostRecording
from hookline.errors import ArgumentError
from hookline.events import Callback
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import Run


class MemorySnapshot(Callback):
    """Record memory use during a few steps and write it to a file.

    On a CUDA device, the file ``train-00000004-rank0.pickle`` holds all allocations and releases with their stack
    traces. Open it at https://pytorch.org/memory_viz. A pickle can run code: open only files that you have recorded
    yourself.

    On other devices, the file ``train-00000004-rank0.txt`` compares the start and the end of the recorded steps:
    tensors by kind, dtype and shape, and Python memory by line. Growth from step to step is a leak. Hookline also
    logs the report as the text ``memory_snapshot/host``. Python is two to four times slower during these steps.

    Args:
        start: Number of steps before recording starts. ``evaluate``, ``test`` and ``predict`` count batches.
        steps: Number of steps to record.
        max_entries: Largest number of entries of the CUDA history.
        rows: Number of lines per section of the report.
        folder: Folder for the file. A relative path is in the run's folder. ``None``: ``memory/`` in the run's
            folder.

    Raises:
        ArgumentError: If a number is out of range.
        SetupError: If ``folder`` is not writable.

    Example:
        >>> import torch
        >>> from pathlib import Path
        >>> from tempfile import mkdtemp
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> folder = mkdtemp()
        >>> trainer = Trainer(max_duration="2ep", callbacks=[MemorySnapshot(start=1, steps=3)], folder=folder)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> [path.name for path in Path(folder, "memory").iterdir()]
        ['train-00000004-rank0.txt']
    """

    optional = True
    writes = ("memory_snapshot/*",)

    def __init__(
        self,
        start: int = 1,
        steps: int = 3,
        *,
        max_entries: int = 100_000,
        rows: int = 20,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        least = {"start": 0, "steps": 1, "max_entries": 1, "rows": 1}
        given = {"start": start, "steps": steps, "max_entries": max_entries, "rows": rows}
        for name, value in given.items():
            if value < least[name]:
                raise ArgumentError(f"MemorySnapshot({name}={value!r}): must be >= {least[name]}.")
        self.start = start
        self.steps = steps
        self.max_entries = max_entries
        self.rows = rows
        self.folder = None if folder is None else path_to_write(folder, "folder", "MemorySnapshot")
        self._recording: CudaRecording | HostRecording | None = None

    def on_setup(self, run: Run) -> None:
        check_folder(run, self.folder, "MemorySnapshot")

    def on_train_step_end(self, run: Run) -> None:
        self._tick(run, run.clock.step)

    def on_eval_batch_end(self, run: Run) -> None:
        if not run.is_training_run:
            self._tick(run, run.clock.eval.batch)

    def on_predict_batch_end(self, run: Run) -> None:
        if not run.is_training_run:
            self._tick(run, run.clock.eval.batch)

    def around_train(self, run: Run) -> Iterator[None]:
        yield from self._window(run, run.clock.step)

    def around_eval(self, run: Run) -> Iterator[None]:
        if run.is_training_run:
            yield
        else:
            yield from self._window(run, 0)

    def around_predict(self, run: Run) -> Iterator[None]:
        if run.is_training_run:
            yield
        else:
            yield from self._window(run, 0)

    def _window(self, run: Run, done: int) -> Iterator[None]:
        """Record inside a stage, and stop when the stage ends."""
        if self.start <= done < self.start + self.steps:
            self._begin(run)
        try:
            yield
        finally:
            # The stage may end before all steps are recorded.
            self._end(run)

    def _tick(self, run: Run, done: int) -> None:
        """Start or stop recording after a step."""
        if done == self.start:
            self._begin(run)
        elif done == self.start + self.steps:
            self._end(run)

    def _begin(self, run: Run) -> None:
        """Start recording."""
        # A rollback has returned to a step before the start.
        if self._recording is not None:
            self._recording.end()
        if run.device.type == "cuda":
            recording: CudaRecording | HostRecording = CudaRecording(self.max_entries)
        else:
            recording = HostRecording(run.model, run.optimizers, self.rows)
        recording.begin()
        self._recording = recording

    def _end(self, run: Run) -> None:
        """Stop recording and write the file."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        try:
            self._write(run, recording)
        finally:
            recording.end()

    def _write(self, run: Run, recording: CudaRecording | HostRecording) -> None:
        """Write the file and log its text."""
        folder = output_folder(run, self.folder, "memory", "MemorySnapshot")
        in_fit = run.is_training_run
        number, stage = (run.clock.step, "train") if in_fit else (run.clock.eval.batch, run.stage)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        elif isinstance(recording, CudaRecording):
            # A CUDA snapshot can only be written to a file.
            return
        text = recording.write(folder, f"{stage}-{number:08d}-rank{run.rank}")  # type: ignore[arg-type]
        run.log_text("memory_snapshot/host" if isinstance(recording, HostRecording) else "memory_snapshot/cuda", text)
