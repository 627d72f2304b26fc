"""The state and the logger that callbacks of Composer see, and the host that keeps their books."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib import import_module
from time import perf_counter
from typing import Any, ClassVar, Final

import torch

from hookline.interop.adapter import Adapter, Host
from hookline.interop.composer.support import VERSIONS
from hookline.interop.facade import Facade, of_host
from hookline.interop.names import MetricNames
from hookline.interop.plain_model import as_module_of
from hookline.run import MISSING, Run

NAMES: Final = MetricNames((("eval/", "val/"),))
UNITS: Final = {"ep": "ep", "st": "ba", "sp": "sp", "tok": "tok", "s": "sec"}
"""Units of Hookline, and those of Composer: a step of Hookline is a batch of Composer."""
PRECISIONS: Final = {"fp32": "fp32", "bf16": "amp_bf16", "fp16": "amp_fp16"}
COUNTS: Final = ("epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch", "token_in_epoch")
TIMES: Final = ("total_wct", "epoch_wct", "batch_wct")
"""Fields of a ``Timestamp``: counters, and times in seconds."""
EVAL: Final = "eval"
"""Label of an evaluation with one loader."""

Stamp = tuple[int, int, int, int, int, int, int, float, float, float]
"""Values of ``COUNTS`` and ``TIMES``."""
NEW: Final[Stamp] = (0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0)


def metric_name(metric: str, label: str) -> str:
    """Return the name in Hookline of a metric of the loader with this label.

    >>> [metric_name("acc", label) for label in ("train", "eval", "hard")]
    ['train/acc', 'val/acc', 'val/hard/acc']
    """
    return f"{_prefix(label)}{metric}"


def _prefix(label: str, stage: str = "val") -> str:
    if label == "train":
        return "train/"
    return f"{stage}/" if label == EVAL else f"{stage}/{label}/"


class ComposerHost(Host):
    """The books of the state that all callbacks of Composer share: timestamps, labels, a requested stop."""

    library = "Composer"
    shows = "the state"
    state = ("seconds", "seconds_in_epoch")

    def _start(self) -> None:
        super()._start()
        self.seconds = self.seconds_in_epoch = 0.0
        """Time of training, without evaluations."""
        self.stamp: Stamp = NEW
        self.previous: Stamp | None = None
        self.eval_stamp: Stamp = self.stamp
        """Counts from the beginning of the loader, until the next evaluation or prediction."""
        self.max_duration: Any = None
        """Where training stops after a request."""
        self.label: str | None = None
        self._step_began = self._eval_began = self._paused = 0.0
        self._eval_before = (0, 0, 0)
        self._built: dict[str, tuple[Stamp, Any]] = {}
        self.replaced: tuple[weakref.ref[torch.Tensor], Any] | None = None
        """Outputs that a callback has set after the loss, with that loss."""
        self._logger: Any = None
        self._model: Any = None
        self.state_of_composer = State(self)

    @property
    def logger(self) -> Any:
        """A ``Logger`` of Composer, of which Hookline is the destination."""
        if self._logger is None:
            self._logger = make_logger(self)
        return self._logger

    @property
    def model(self) -> Any:
        """The model of the run, as a ``ComposerModel``."""
        if self._model is None:
            self._model = as_composer_model(self.run.model, self)
        return self._model

    def timestamp(self, name: str, stamp: Stamp) -> Any:
        """Return a ``Timestamp`` of Composer. It is made once per step, when a callback asks for it.

        Args:
            name: Name of the attribute.
            stamp: Its values.
        """
        built = self._built.get(name)
        if built is None or built[0] is not stamp:
            built = self._built[name] = stamp, make_timestamp(stamp)
        return built[1]

    def request_stop(self) -> None:
        """Stop training, for the callback that is called now."""
        if self.max_duration is None:
            limit = self.state_of_composer.max_duration
            unit = "ba" if limit is None or limit.unit.value == "ep" else limit.unit.value
            self.max_duration = self.state_of_composer.timestamp.get(unit)
            self.run.stop(f"{self.run.member.name} called state.stop_training()")

    # -- the books -----------------------------------------------------------------------------

    def on_model_ready(self, run: Run) -> None:
        self.serve(run)
        self._read_clock(run)

    def on_fit_start(self, run: Run) -> None:
        self.label = "train"

    def on_train_start(self, run: Run) -> None:
        self._step_began = perf_counter()
        self._read_clock(run)

    def _read_clock(self, run: Run) -> None:
        clock = run.clock
        counts = (clock.step_in_epoch, clock.sample_in_epoch, clock.token_in_epoch)
        times = (self.seconds, self.seconds_in_epoch, 0.0)
        self.stamp = (clock.epoch, clock.step, clock.sample, clock.token, *counts, *times)

    def on_train_step_end(self, run: Run) -> None:
        now = perf_counter()
        spent, self._step_began = now - self._step_began, now
        self.seconds += spent
        self.seconds_in_epoch += spent
        clock, self.previous = run.clock, self.stamp
        self.stamp = (
            clock.epoch,
            clock.step,
            clock.sample,
            clock.token,
            clock.step_in_epoch,
            clock.sample_in_epoch,
            clock.token_in_epoch,
            self.seconds,
            self.seconds_in_epoch,
            spent,
        )

    on_step_skipped = on_train_step_end

    def on_train_epoch_end(self, run: Run) -> None:
        clock, self.previous, self.seconds_in_epoch = run.clock, self.stamp, 0.0
        self.stamp = (clock.epoch, clock.step, clock.sample, clock.token, 0, 0, 0, self.seconds, 0.0, 0.0)

    def on_eval_start(self, run: Run) -> None:
        self._paused = perf_counter() - self._step_began

    def on_eval_end(self, run: Run) -> None:
        self._step_began = perf_counter() - self._paused
        self.label = "train" if run.is_training_run else None

    def on_eval_loader_start(self, run: Run) -> None:
        clock, self.label = run.clock.eval, run.loader_name or EVAL
        self._eval_before = (clock.batch, clock.sample, clock.token)
        self._eval_began, self.eval_stamp = perf_counter(), NEW

    def on_predict_start(self, run: Run) -> None:
        self.label, self._eval_before = "predict", (0, 0, 0)
        self._eval_began, self.eval_stamp = perf_counter(), NEW

    def on_eval_batch_end(self, run: Run) -> None:
        clock, (batch, sample, token) = run.clock.eval, self._eval_before
        counts = (clock.batch - batch, clock.sample - sample, clock.token - token)
        seconds = perf_counter() - self._eval_began
        self.eval_stamp = (0, *counts, *counts, seconds, seconds, seconds - self.eval_stamp[7])

    on_predict_batch_end = on_eval_batch_end


class Metrics(Mapping[str, Any]):
    """``state.train_metrics``, or the metrics of one evaluation: objects with ``compute()``.

    Args:
        host: The host of the run.
        label: Label of the loader.
    """

    def __init__(self, host: ComposerHost, label: str) -> None:
        stage = host.run.stage if host.run.stage in ("val", "test") else "val"
        self._host, self._prefix = host, _prefix(label, stage)

    def __getitem__(self, name: str) -> Metric:
        ours = self._host.aliases.get(name) or f"{self._prefix}{name}"
        value = self._host.run.metrics.get(ours)
        if value is None:
            raise KeyError(name)
        return Metric(torch.tensor(value))

    def __iter__(self) -> Iterator[str]:
        names = [name.removeprefix(self._prefix) for name in self._host.run.metrics if name.startswith(self._prefix)]
        return iter(dict.fromkeys([*(name for name in names if "/" not in name), *self._host.aliases]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Metric:
    """The newest value of a metric."""

    def __init__(self, value: torch.Tensor) -> None:
        self._value = value

    def compute(self) -> torch.Tensor:
        """Return the value."""
        return self._value


class State(Facade):
    """``state``: what callbacks may ask of a run."""

    __slots__ = ()

    stands_for: ClassVar[str] = f"Composer's State (tested with {VERSIONS})"
    is_model_ddp: ClassVar[bool] = False
    profiler: ClassVar[None] = None
    load_path: ClassVar[None] = None
    _host: ComposerHost

    # -- progress ------------------------------------------------------------------------------

    @property
    def timestamp(self) -> Any:
        host = self._host
        return host.timestamp("timestamp", host.stamp)

    @property
    def previous_timestamp(self) -> Any:
        host = self._host
        return None if host.previous is None else host.timestamp("previous_timestamp", host.previous)

    @property
    def eval_timestamp(self) -> Any:
        return self._host.timestamp("eval_timestamp", self._host.eval_stamp)

    predict_timestamp = eval_timestamp

    @property
    def max_duration(self) -> Any:
        if self._host.max_duration is not None:
            return self._host.max_duration
        limit = self._host.run.max_duration
        if limit is None or limit.unit not in UNITS:
            return None
        return import_module("composer.core").Time(int(limit.value), UNITS[limit.unit])

    def get_elapsed_duration(self) -> Any:
        """Return the completed fraction of the run."""
        limit = self.max_duration
        return None if limit is None else self.timestamp.get(limit.unit) / limit

    def stop_training(self) -> None:
        """Stop training when the step ends."""
        self._host.request_stop()

    # -- the current batch ---------------------------------------------------------------------

    batch = of_host("run.batch")

    def batch_get_item(self, key: Any) -> Any:
        """Return an item of the batch, by an index, a key or a function."""
        return import_module("composer.utils.batch_helpers").batch_get(self.batch, key)

    @property
    def outputs(self) -> Any:
        host = self._host
        if host.replaced is not None and host.replaced[0]() is getattr(host.run, "loss", MISSING):
            return host.replaced[1]
        return host.run.outputs

    @outputs.setter
    def outputs(self, value: Any) -> None:
        run = self._host.run
        loss = getattr(run, "loss", None)
        if loss is None:
            run.outputs = value
        else:  # Hookline keeps its own until the next batch.
            self._host.replaced = weakref.ref(loss), value

    loss = of_host("run.loss")

    # -- metrics -------------------------------------------------------------------------------

    @property
    def train_metrics(self) -> Metrics:
        return Metrics(self._host, "train")

    @property
    def eval_metrics(self) -> dict[str, Metrics]:
        return {label: Metrics(self._host, label) for label in _labels(self._host.run)}

    @property
    def train_metric_values(self) -> dict[str, Any]:
        return {name: metric.compute() for name, metric in self.train_metrics.items()}

    @property
    def eval_metric_values(self) -> dict[str, Any]:
        found = self.eval_metrics.values()
        return {name: metric.compute() for metrics in found for name, metric in metrics.items()}

    # -- model and data ------------------------------------------------------------------------

    model = of_host("model")

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return list(self._host.run.optimizers.values())

    @property
    def schedulers(self) -> list[Any]:
        return [its.scheduler for its in self._host.run.schedulers]

    dataloader_label = of_host("label")

    @property
    def dataloader(self) -> Any:
        run, label = self._host.run, self._host.label
        loader = run.loaders.get("train" if label == "train" else run.stage)
        return loader.get(label) if isinstance(loader, Mapping) and label != EVAL else loader

    @property
    def train_dataloader(self) -> Any:
        return self._host.run.loaders.get("train")

    @property
    def dataloader_len(self) -> Any:
        run, label, batches = self._host.run, self._host.label, None
        if label == "train":
            batches = run.num_batches("train")
            batches = None if batches is None else -(-batches // run.accumulate)
        elif label in (EVAL, "predict"):
            batches = run.num_batches(run.stage)
        elif hasattr(self.dataloader, "__len__"):  # One of several.
            batches = -(-len(self.dataloader) // run.data_parallel_size)
        return None if batches is None else import_module("composer.core").Time(batches, "ba")

    @property
    def evaluators(self) -> list[Any]:
        loaders = self._host.run.loaders.get("val")
        if loaders is None:
            return []
        make = import_module("composer.core").Evaluator
        named = loaders if isinstance(loaders, Mapping) else {EVAL: loaders}
        return [make(label=label, dataloader=loader) for label, loader in named.items()]

    # -- the run -------------------------------------------------------------------------------

    @property
    def callbacks(self) -> list[Any]:
        run = self._host.run
        return [its.callback for its in run.callbacks if isinstance(its, Adapter) and its.library == "Composer"]

    run_name = of_host("run.name")

    @property
    def seed(self) -> Any:
        return self._host.run.config.get("seed")

    @property
    def device(self) -> Any:
        device = self._host.run.device
        devices = import_module("composer.devices")
        if device.type == "cuda":
            return devices.DeviceGPU(device_id=device.index or 0)
        return devices.DeviceMPS() if device.type == "mps" else devices.DeviceCPU()

    @property
    def precision(self) -> Any:
        return import_module("composer.core").Precision(PRECISIONS[self._host.run.precision])

    fsdp_enabled = of_host("run.is_sharded")


def _labels(run: Run) -> list[str]:
    loaders = run.loaders.get(run.stage if run.stage in ("val", "test") else "val")
    return list(loaders) if isinstance(loaders, Mapping) else [EVAL]


def make_timestamp(stamp: Stamp) -> Any:
    """Return a ``Timestamp`` of Composer.

    Args:
        stamp: Its values.
    """
    fields: dict[str, Any] = dict(zip((*COUNTS, *TIMES), stamp, strict=True))
    fields |= {name: timedelta(seconds=fields[name]) for name in TIMES}
    # Composer calls all epochs together one iteration, by default.
    whole = {"epoch_in_iteration": stamp[0], "token_in_iteration": stamp[3], "iteration_wct": fields["total_wct"]}
    return import_module("composer.core").Timestamp(**fields, **whole)


def state_of_timestamp(timestamp: Any) -> dict[str, Any]:
    """Return a ``Timestamp`` as plain values, for a checkpoint."""
    state = timestamp.state_dict()
    return {name: its.total_seconds() if isinstance(its, timedelta) else its for name, its in state.items()}


def timestamp_of_state(state: Mapping[str, Any]) -> Any:
    """Return the ``Timestamp`` of which ``state_of_timestamp`` returned the values."""
    times = {name: timedelta(seconds=value) for name, value in state.items() if name.endswith("_wct")}
    return import_module("composer.core").Timestamp(**{**state, **times})


def as_composer_model(model: torch.nn.Module, host: ComposerHost) -> Any:
    """Return a model as a ``ComposerModel``.

    Args:
        model: The model of the run.
        host: The host of the run.

    Returns:
        The model itself, if it is a ``ComposerModel``.
    """
    base = import_module("composer.models").ComposerModel
    if isinstance(model, base):
        return model
    concrete = type("PlainModel", (base,), {"forward": torch.nn.Module.forward, "loss": _no_loss})
    return as_module_of(concrete, model, copies_model=True, logger=host.logger)


def _no_loss(self: Any, *values: Any) -> Any:
    raise AttributeError("state.model.loss: the model of this run is a plain model. Read state.loss after the loss.")


def make_logger(host: ComposerHost) -> Any:
    """Return a ``Logger`` of Composer with one destination, which logs to the run of the callback that is called."""
    loggers = import_module("composer.loggers")
    base: Any = loggers.LoggerDestination

    class HooklineLogger(base):  # type: ignore[misc]
        """It logs everything to the run."""

        def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
            host.run.log(metrics, step=_step(step))

        def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
            host.run.config.update(hyperparameters)
            # The files of the run and its sinks have the config already.
            text = "\n".join(f"{name}: {value}" for name, value in hyperparameters.items())
            host.run.log_text("hyperparameters", text)

        def log_table(
            self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
        ) -> None:
            host.run.log_table(name, rows, columns, step=_step(step))

        def log_images(
            self,
            images: Any,
            name: str = "Images",
            channels_last: bool = False,
            step: int | None = None,
            masks: dict[str, Any] | None = None,
            mask_class_labels: dict[int, str] | None = None,
            use_table: bool = True,
        ) -> None:
            run, step = host.run, _step(step)
            run.log_image(name, _images(images, channels_last=channels_last), step=step)
            for part, mask in (masks or {}).items():
                found = _images(mask)
                run.log_image(f"{name}/{part}", found[:, None] if found.ndim == 3 else found, step=step)

        def upload_file(self, state: Any, remote_file_name: str, file_path: Any, *, overwrite: bool = False) -> None:
            host.run.log_file(remote_file_name, file_path)

    def _step(step: int | None) -> int | None:
        return None if step == host.run.clock.step else step

    return loggers.Logger(host.state_of_composer, [HooklineLogger()])


def _images(images: Any, *, channels_last: bool = False) -> torch.Tensor:
    """Return images as one tensor, with the channels before height and width."""
    if isinstance(images, list | tuple):
        found = torch.stack([torch.as_tensor(image) for image in images])
    else:
        found = torch.as_tensor(images)
    return found.movedim(-1, -3) if channels_last else found
