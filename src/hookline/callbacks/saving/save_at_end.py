"""``SaveAtEnd``: save the final model, predictions, metrics, settings and source."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hookline.callbacks._ending import is_complete
from hookline.callbacks._paths import check_names, check_own, check_writable, file_name, write_parts, written_path
from hookline.callbacks._trees import columns, concatenate, map_tensors
from hookline.callbacks.saving._source import check_paths, packed, script
from hookline.callbacks.saving._weights import check_whole, copy_of, write_weights
from hookline.errors import ArgumentError, NotAvailableError, SetupError
from hookline.events import Callback
from hookline.records.plain import plain, public
from hookline.run.paths import path_to_read, path_to_write
from hookline.run.targets import find_target

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

STAGES = ("val", "test", "train")
USUAL = ("val", "test")


class SaveAtEnd(Callback):
    """Save the final model, predictions, metrics, settings and source in one folder.

    ``source.zip`` is written when ``fit`` starts, so that a run that crashes has it. The other files follow when the
    ``fit`` is complete, not after an error, a signal or Ctrl-C. The model is the one that ``fit`` returns, also if
    ``SaveBest`` has just loaded the best weights.

    Args:
        folder: Folder for the files, absolute or inside the run's folder.
        predictions: Loaders to predict: one or more of ``"val"``, ``"test"`` and ``"train"``. ``()``: none. ``None``:
            ``"val"`` and ``"test"``, if the run has them and its task can predict.
        labels: Function of a batch that returns the labels. ``None``: the last element of a tuple, or the entry
            ``"labels"``, ``"target"``, ``"y"``, … of a dict.
        source: Files and folders to pack into ``source.zip`` in addition to the script. ``True``: only the script.
            ``False``: nothing. Hookline does not remove secrets from the source.

    Raises:
        ArgumentError: If an argument is invalid.
        SetupError: If the model is sharded, a path cannot be used, or the run cannot make the requested predictions.

    Example:
        >>> import tempfile, torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trainer = Trainer(max_duration="1ep", folder=folder, callbacks=[SaveAtEnd(source=False)])
        ...     loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        ...     result = trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        ...     print(sorted(path.name for path in result.folder.glob("final/*")))
        ['metrics.json', 'model.safetensors', 'predictions-val.safetensors', 'settings.json']
    """

    ranks = "zero"
    reads = ("weights", "*")
    """The callback runs last, after all others have changed the model and logged their metrics."""

    def __init__(
        self,
        folder: str | os.PathLike[str] = "final",
        *,
        predictions: str | Iterable[str] | None = None,
        labels: Callable[[Any], Any] | None = None,
        source: bool | str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = True,
    ) -> None:
        if predictions is not None:
            predictions = (predictions,) if isinstance(predictions, str) else tuple(predictions)
            if wrong := [stage for stage in predictions if stage not in STAGES]:
                raise ArgumentError(f"SaveAtEnd(predictions={wrong[0]!r}): no such stage. Use {', '.join(STAGES)}.")
        self.folder = path_to_write(folder, "folder", "SaveAtEnd")
        self.predictions: tuple[str, ...] | None = predictions
        self.labels = find_target if labels is None else labels
        self.source = source if isinstance(source, bool) else _paths(source)
        self._alone = True

    @property
    def _stages(self) -> tuple[str, ...]:
        """Stages to predict."""
        usual = USUAL if self._alone else ()  # The callback runs on rank 0, but a prediction needs all ranks.
        return usual if self.predictions is None else self.predictions

    def _folder(self, run: Run) -> Path:
        """Return the folder for the files."""
        return written_path(run, self.folder, "folder", "SaveAtEnd")

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        check_whole(run, "SaveAtEnd")
        check_writable(self._folder(run) / "model.safetensors", "SaveAtEnd")
        check_own(run, self, SaveAtEnd, lambda its: [its._folder(run)], "folder")
        self._alone = run.world_size == 1
        if self.predictions:
            if not self._alone:
                raise SetupError(
                    f"SaveAtEnd(predictions={self.predictions!r}): in {run.world_size} processes each predicts a part; "
                    f"use PredictionWriter, or predict in one process"
                )
            if not _can_predict(run):
                raise SetupError(
                    f"SaveAtEnd(predictions={self.predictions!r}) needs a task with predict_batch(run, batch); "
                    f"add one, or leave out predictions"
                )
            if missing := [stage for stage in self.predictions if stage not in run.loaders]:
                known = ", ".join(run.loaders) or "none"
                raise SetupError(f"SaveAtEnd(predictions={missing[0]!r}): this run has no such loader; it has {known}")
        if _can_predict(run):
            check_names(run, self._stages, "SaveAtEnd")
        self._check_source()

    def on_fit_start(self, run: Run) -> None:
        """Write the source now: a user may edit it during the run, and the run may crash."""
        if found := self._pack():
            write_parts(self._folder(run) / "source.zip", [found])

    def _check_source(self) -> None:
        """Raise if a file or folder of the source does not exist."""
        if not isinstance(self.source, bool):
            check_paths(self.source, "SaveAtEnd")

    def _pack(self) -> bytes:
        """Return the zip file of the source. It is empty if there is nothing to pack."""
        if self.source is False:
            return b""
        first, more = script(), () if self.source is True else self.source
        if first is None and not more:
            logger.info("SaveAtEnd packs no source: there is no script; give source=…")
            return b""
        return packed([*([first] if first else []), *more])

    def on_teardown(self, run: Run) -> None:
        if not is_complete(run):
            return
        folder = self._folder(run)
        write_weights(folder / "model.safetensors", copy_of(run.model), {"step": str(run.clock.step)})
        for name, loader in self._loaders(run):
            self._write_predictions(run, folder / f"predictions-{name}", loader)
        _write_json(folder / "settings.json", _settings(run))
        _write_json(folder / "metrics.json", _metrics(run))

    # -- predictions ---------------------------------------------------------------------------

    def _loaders(self, run: Run) -> Iterator[tuple[str, Any]]:
        """Yield the loaders to predict, with the names of their files."""
        if not _can_predict(run):
            return
        for stage in self._stages:
            loaders = run.loaders.get(stage)
            named = loaders if isinstance(loaders, Mapping) else {None: loaders}
            for name, loader in named.items():
                if loader is not None and hasattr(loader, "__next__"):
                    logger.warning("SaveAtEnd: the %s loader is used up, so it is not predicted", stage)
                elif loader is not None:
                    yield file_name(stage, name), loader

    def _write_predictions(self, run: Run, path: Path, loader: Any) -> None:
        """Predict a loader and write predictions and labels."""
        seen = _Seen(loader, self.labels)
        found = dict(columns(run.predict(seen), "predictions"))
        if any(label is not None for label in seen.labels):
            found |= {name: concatenate(batches) for name, batches in _columns(seen.labels).items()}
        tensors = {key: value.detach().cpu() for key, value in found.items() if isinstance(value, Tensor)}
        rest = {key: value for key, value in found.items() if key not in tensors}
        if tensors:
            write_weights(path.with_name(f"{path.name}.safetensors"), tensors)
        if rest:
            _write_json(path.with_name(f"{path.name}.json"), {key: _listed(value) for key, value in rest.items()})


class _Seen:
    """Loader that collects the labels of the batches that it yields.

    A second pass over the loader could have another order.
    """

    def __init__(self, loader: Any, labels: Callable[[Any], Any]) -> None:
        self._loader = loader
        self._labels = labels
        self.labels: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        self.labels = []
        for batch in self._loader:
            self.labels.append(self._labels(batch))
            yield batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _columns(labels: list[Any]) -> dict[str, list[Any]]:
    """Return the labels of all batches by name, for labels that are dicts or tuples."""
    found: dict[str, list[Any]] = {}
    for batch in labels:
        for name, value in columns(batch, "labels"):
            found.setdefault(name, []).append(value)
    return found


def _listed(value: Any) -> Any:
    """Return a value for JSON, with tensors as lists of numbers."""
    return plain(map_tensors(lambda tensor: tensor.detach().cpu().tolist(), value))


# -- contents of the files -----------------------------------------------------------------------


def _paths(source: Any) -> tuple[Path, ...]:
    """Return the argument ``source`` as paths."""
    paths = (source,) if isinstance(source, str | os.PathLike) else source
    return tuple(path_to_read(path, "source", "SaveAtEnd") for path in paths)


def _can_predict(run: Run) -> bool:
    """True if the task of the run has ``predict_batch``."""
    try:
        return hasattr(run.task, "predict_batch")
    except NotAvailableError:  # A custom loop has no task.
        return False


def _settings(run: Run) -> dict[str, Any]:
    """Return the content of ``settings.json``, without secrets."""
    return {
        "project": run.project,
        "name": run.name,
        "started": run.started.isoformat(timespec="seconds"),
        "max_duration": None if run.max_duration is None else str(run.max_duration),
        "model": type(run.model).__qualname__,
        "callbacks": public([repr(callback) for callback in run.callbacks]),
        "config": public(run.config),
    }


def _metrics(run: Run) -> dict[str, Any]:
    """Return the content of ``metrics.json``."""
    clock, history = run.clock, run.history
    return {
        "step": clock.step,
        "epoch": clock.epoch,
        "seconds": clock.seconds,
        "stop_reason": public("not trained" if run.ending is None else run.ending.reason),
        "metrics": plain(dict(run.metrics)),
        "history": {name: {"steps": plain(history.steps(name)), "values": plain(history[name])} for name in history},
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file completely or not at all."""
    write_parts(path, [json.dumps(content, indent=2, allow_nan=False).encode(), b"\n"])
