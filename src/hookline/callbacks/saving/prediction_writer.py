"""``PredictionWriter``: write the predictions of a model to files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from hookline.callbacks._paths import check_names, check_own, check_writable, file_name, replacing, written_path
from hookline.callbacks._trees import columns
from hookline.callbacks.saving._predictions import (
    FORMATS,
    Columns,
    Write,
    check_columns,
    check_installed,
    column,
    joined,
)
from hookline.errors import ArgumentError, DataError, NotAvailableError, SetupError
from hookline.events import Callback
from hookline.run.paths import path_to_write

if TYPE_CHECKING:
    from hookline.run import Run

STAGES = ("predict", "val", "test")
SHUFFLED = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class PredictionWriter(Callback):
    """Write predictions to files, one row per sample, with its index, in the loader's order.

    Each file is written completely or not at all.

    Args:
        folder: Folder for the files, absolute or inside the run's folder.
        interval: ``"epoch"``: keep all predictions in memory and write one file at the end, ``predict.parquet``.
            ``"batch"``: write ``predict/part-0000000000.parquet`` and so on during the prediction. Each part is named
            by the position of its first row. Parts of an earlier prediction are deleted.
        format: ``"parquet"`` (needs ``hookline[parquet]``), ``"csv"``, ``"npz"``, or a function of a path and the
            columns.
        suffix: Suffix of the files. ``None``: that of the format, or none for a function.
        stages: One or more of ``"predict"``, ``"val"`` and ``"test"``. An evaluation writes ``run.outputs`` to
            ``val-step-00000500.parquet``. A named loader has its name in it: ``predict-<name>.parquet``,
            ``val-<name>-step-…``.
        columns: Function of ``run`` that returns the columns: ``lambda run: {"label": run.outputs.argmax(1)}``.
            ``None``: a tensor becomes ``prediction``, a dict its keys, a tuple ``prediction.0``, ``prediction.1``, ….
        index: Function of ``run`` that returns the index of each sample. ``None``: the position in the loader's order.
            A loader that shuffles needs this function.
        batches_per_file: Number of batches in each file with ``interval="batch"``.

    Raises:
        ArgumentError: If an argument is invalid.
        SetupError: If a package is missing, the folder cannot be written, or the loader shuffles and ``index`` is
            missing.
        DataError: If the columns of a batch do not fit together or differ from those of the batches before.

    Example:
        >>> import tempfile, torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     writer = PredictionWriter(format="csv", columns=lambda run: {"label": run.outputs.argmax(1)})
        ...     found = Trainer(folder=folder, callbacks=[writer]).predict(
        ...         TinyModel(), tiny_data(batches=2, batch_size=2)
        ...     )
        ...     print(Path(folder, "predictions", "predict.csv").read_text().split())
        ['index,label', '0,2', '1,2', '2,2', '3,2']
    """

    reads = ("weights",)

    def __init__(
        self,
        folder: str | os.PathLike[str] = "predictions",
        *,
        interval: Literal["batch", "epoch"] = "epoch",
        format: str | Callable[[Path, Mapping[str, Any]], None] = "parquet",
        suffix: str | None = None,
        stages: str | Iterable[str] = ("predict",),
        columns: Callable[[Run], Mapping[str, Any]] | None = None,
        index: Callable[[Run], Any] | None = None,
        batches_per_file: int = 1,
    ) -> None:
        if isinstance(format, str) and format not in FORMATS:
            raise ArgumentError(
                f"PredictionWriter(format={format!r}): no such format. Use {', '.join(map(repr, FORMATS))}, or a "
                f"function of a path and the columns."
            )
        self.stages = (stages,) if isinstance(stages, str) else tuple(stages)
        if not self.stages or set(self.stages) - set(STAGES):
            raise ArgumentError(f"PredictionWriter(stages={stages!r}): use one or more of {', '.join(STAGES)}.")
        if batches_per_file < 1:
            raise ArgumentError(f"PredictionWriter(batches_per_file={batches_per_file!r}): must be >= 1.")
        self.folder = path_to_write(folder, "folder", "PredictionWriter")
        self.interval = interval
        self.format = format
        self.suffix = suffix if suffix is not None else f".{format}" if isinstance(format, str) else ""
        self.columns = columns
        self.index = index
        self.batches_per_file = batches_per_file
        self._clear()

    def _clear(self) -> None:
        """Drop everything that belongs to one prediction."""
        self._target: Path | None = None
        self._names: list[str] = []
        self._kept: list[dict[str, Any]] = []
        self._length: int | None = None
        self._rows = self._batches = self._written = 0
        """Rows and batches of the prediction, and rows in files."""
        self._is_whole = False
        """True if this rank has seen its last batch."""

    # -- when ----------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        if isinstance(self.format, str):
            check_installed(self.format)
        check_writable(self._folder(run) / "file", "PredictionWriter")
        check_names(run, self.stages, "PredictionWriter")
        check_own(run, self, PredictionWriter, lambda its: its._paths(run), "folder")

    def on_predict_start(self, run: Run) -> None:
        if "predict" in self.stages:
            check_names(run, ("predict",), "PredictionWriter")  # A dict of loaders is known only now.
            self._begin(run, file_name("predict", run.loader_name), _loader(run))

    def on_predict_batch_end(self, run: Run) -> None:
        if "predict" in self.stages:
            self._add(run)

    def on_predict_end(self, run: Run) -> None:
        if "predict" in self.stages:
            self._end(run)

    def on_eval_loader_start(self, run: Run) -> None:
        if run.stage in self.stages:
            check_names(run, (run.stage,), "PredictionWriter")  # A custom loop gives its loaders only now.
            self._begin(run, f"{file_name(run.stage, run.loader_name)}-step-{run.clock.step:08d}", _loader(run))

    def on_eval_batch_end(self, run: Run) -> None:
        if run.stage in self.stages:
            self._add(run)

    def on_eval_loader_end(self, run: Run) -> None:
        if run.stage in self.stages:
            self._end(run)

    def on_teardown(self, run: Run) -> None:
        self._clear()

    def _folder(self, run: Run) -> Path:
        """Return the folder for the files."""
        return written_path(run, self.folder, "folder", "PredictionWriter")

    def _paths(self, run: Run) -> list[Path]:
        """Return a file or folder for each stage. Evaluations add their step to the name."""
        folder, suffix = self._folder(run), self.suffix if self.interval == "epoch" else ""
        return [folder / f"{stage}{suffix}" for stage in self.stages]

    # -- how -----------------------------------------------------------------------------------

    def _begin(self, run: Run, name: str, loader: Any) -> None:
        """Start the prediction of one loader."""
        self._clear()
        if self.index is None and isinstance(getattr(loader, "sampler", None), SHUFFLED):
            raise SetupError(
                "PredictionWriter: the loader shuffles, so an index in its order says nothing; give shuffle=False, or "
                "index=lambda run: run.batch['id']"
            )
        several = run.world_size > 1
        self._target = self._folder(run) / (f"{name}-rank{run.rank}" if several else name)
        self._length = None if several else run.num_batches(run.stage, loader)
        if self.interval == "batch":
            for part in self._target.glob(f"part-*{self.suffix}"):
                part.unlink()

    def _add(self, run: Run) -> None:
        """Add the columns of the current batch, and write a part if it is full."""
        if self._target is None:  # The callback was added during the prediction.
            return
        columns, rows = self._columns(run)
        self._names = self._names or list(columns)
        if list(columns) != self._names:
            raise DataError(
                f"PredictionWriter: the columns of one batch are {self._names}, of another {list(columns)}. "
                f"Return the same columns for each batch."
            )
        if isinstance(self.format, str):
            check_columns(self.format, columns)  # Raise now, not after the whole prediction.
        self._batches += 1
        self._rows += rows
        self._kept.append(columns)
        shard = run.eval_shard
        self._is_whole = self._batches == self._length if shard is None else shard.is_last
        if self.interval == "batch" and (len(self._kept) == self.batches_per_file or self._is_whole):
            self._write_kept(self._target / f"part-{self._written:010d}{self.suffix}")

    def _end(self, run: Run) -> None:
        """Write the last file if the prediction is complete."""
        is_whole = self._length is None or self._batches >= self._length  # Otherwise it was interrupted.
        if run.world_size > 1:
            is_whole = self._is_whole  # A rank without any batch writes no file.
        if self._target is not None and is_whole and self._kept:
            part = self._target / f"part-{self._written:010d}{self.suffix}"
            file = self._target.with_name(f"{self._target.name}{self.suffix}")
            self._write_kept(part if self.interval == "batch" else file)
        self._clear()

    def _write_kept(self, path: Path) -> None:
        """Write the batches in memory to a file."""
        with replacing(path) as fresh:
            self._write(fresh, joined(self._kept))
        self._kept, self._written = [], self._rows

    def _write(self, path: Path, columns: Columns) -> None:
        """Write columns to a path in the format."""
        write: Write = FORMATS[self.format] if isinstance(self.format, str) else self.format
        write(path, columns)

    # -- what ----------------------------------------------------------------------------------

    def _columns(self, run: Run) -> tuple[dict[str, Any], int]:
        """Return the columns of the current batch, on the CPU, and the number of rows."""
        found = dict(columns(self.columns(run) if self.columns else _outputs(run)))
        found = {name or "prediction": value for name, value in found.items()}
        if not self.columns:
            found = {f"prediction.{name}" if name[0].isdigit() else name: value for name, value in found.items()}
        chosen = {name: column(name, value) for name, value in found.items()}
        sizes = {name: len(value) for name, value in chosen.items()}
        if len(set(sizes.values())) != 1:
            listed = ", ".join(f"{name} has {size}" for name, size in sizes.items()) or "there are none"
            raise DataError(
                f"PredictionWriter: each column needs one value a sample, and {listed}; choose with columns="
            )
        rows = next(iter(sizes.values()))
        index = torch.arange(rows) + self._first(run) if self.index is None else self.index(run)
        index = column("index", index)
        if len(index) != rows:
            raise DataError(f"PredictionWriter(index=…) gave {len(index)} for {rows} samples; give one for each")
        return {"index": index, **chosen}, rows

    def _first(self, run: Run) -> int:
        """Return the position of the batch's first sample in the order of the whole loader."""
        if run.world_size == 1:
            return self._rows
        shard = run.eval_shard
        if shard is None or shard.first is None:
            raise SetupError(
                "PredictionWriter: in several processes the place of a batch in the order of this loader is not known; "
                "give index=lambda run: run.batch['id'], or pass a DataLoader over a data set with __getitem__"
            )
        return shard.first


def _outputs(run: Run) -> Any:
    """Return ``run.outputs``, or raise with the ways to provide them."""
    try:
        return run.outputs
    except NotAvailableError as error:
        raise SetupError(
            "PredictionWriter finds no outputs: let eval_batch return {'loss': …, 'outputs': …}, set run.outputs in "
            "a custom loop, or give columns=lambda run: {…}"
        ) from error


def _loader(run: Run) -> Any:
    """Return the current loader of an evaluation or a prediction."""
    loaders = run.loaders.get(run.stage)
    return loaders.get(run.loader_name) if isinstance(loaders, Mapping) else loaders
