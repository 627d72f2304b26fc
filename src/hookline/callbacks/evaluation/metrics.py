"""``Metrics``: torchmetrics objects or functions of outputs and targets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookline.callbacks._trees import map_tensors
from hookline.errors import ArgumentError, MetricError, NotAvailableError, describe, kind_of
from hookline.events import Callback
from hookline.run.targets import find_target

if TYPE_CHECKING:
    from hookline.run import Run

STAGES = ("train", "val", "test")


class Metrics(Callback):
    """Compute metrics from the outputs and targets of each batch.

    In an evaluation, the callback logs one value of the whole evaluation: ``val/acc``, or ``val/<loader>/acc``
    with several named loaders. In training it logs ``train/acc`` per log interval and ``train/acc_epoch`` per
    epoch. An error in a metric stops the run.

    Args:
        metrics: Metrics by name. A torchmetrics object is copied for each stage and loader, and moved to the
            device. A function ``f(outputs, targets)`` returns a number, which is averaged with the batch size
            as weight, or a tensor with one value per sample. A ``MetricCollection`` instead of the dict logs
            under its own keys. A collection in the dict, or a metric whose ``compute`` returns a dict, logs
            ``val/<name>/<key>``.
        stages: Stages to measure: ``"train"``, ``"val"``, ``"test"``.
        outputs: Function of ``run`` that returns the outputs. Default: ``run.outputs``.
        targets: Function of ``run`` that returns the targets. Default: the last element of a batch that is a
            tuple, or ``"labels"``, ``"target"``, ``"y"``, … of a dict.

    Raises:
        ArgumentError: If a stage is unknown, a name contains a slash, or a metric is neither an object nor
            a function.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> def accuracy(outputs, classes):
        ...     return (outputs.argmax(1) == classes).float()
        >>> trainer = Trainer(max_duration="1ep", callbacks=[Metrics({"acc": accuracy})], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        >>> result.metrics["val/acc"]
        0.4375
    """

    state_depends_on = ("stages", "_given")

    def __init__(
        self,
        metrics: Mapping[str, Any] | nn.Module,
        *,
        stages: tuple[str, ...] = ("val", "test"),
        outputs: Callable[[Run], Any] | None = None,
        targets: Callable[[Run], Any] | None = None,
    ) -> None:
        self.stages = (stages,) if isinstance(stages, str) else tuple(stages)
        if not self.stages or not set(self.stages) <= set(STAGES):
            raise ArgumentError(f"Metrics(stages={stages!r}): use one or more of {', '.join(STAGES)}.")
        self._outputs, self._targets = outputs, targets
        self._given = {name: metric.clone() if _is_object(metric) else metric for name, metric in _checked(metrics)}
        self._copies: dict[tuple[str, str | None], dict[str, Any]] = {}
        self.writes = tuple(name for stage in self.stages for name in _rows(stage, self._given))
        if "train" in self.stages:
            self._of_training = {name: m.clone() if _is_object(m) else m for name, m in self._given.items()}
            # Hookline moves a module that a callback holds to the device, and saves its state in checkpoints.
            self._held = nn.ModuleList(metric for metric in self._of_training.values() if _is_object(metric))
            # The hook is set on this instance only: steps are faster without a hook for training batches.
            vars(self)["on_train_batch_end"] = self._measure_training

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint: the names of the metrics and the stages."""
        names = [name or type(metric).__name__ for name, metric in self._given.items()]
        return f"Metrics[{self.name or ', '.join(names)}]({', '.join(self.stages)})"

    def on_setup(self, run: Run) -> None:
        self._copies = {}
        if "train" in self.stages and run.clock.step == 0:  # Values of an earlier run must not count.
            for metric in filter(_is_object, self._of_training.values()):
                metric.reset()

    def on_eval_batch_end(self, run: Run) -> None:
        if run.stage in self.stages:
            key = (run.stage, run.loader_name)
            if key not in self._copies:
                self._copies[key] = {
                    name: metric.clone().to(run.device) if _is_object(metric) else metric
                    for name, metric in self._given.items()
                }
            self._measure(run, self._copies[key])

    def _measure_training(self, run: Run) -> None:
        """Measure a training batch, as ``on_train_batch_end``."""
        self._measure(run, self._of_training)

    def _measure(self, run: Run, metrics: Mapping[str, Any]) -> None:
        """Update or compute each metric with the current batch, and log it."""
        outputs, targets = self._outputs_of(run), self._targets_of(run)
        with torch.no_grad():
            for name, metric in metrics.items():
                try:
                    if not _is_object(metric):
                        run.log({name: metric(outputs, targets)}, weight=run.batch_size)
                        continue
                    metric.update(outputs, targets)
                except Exception as error:
                    shown = name or type(metric).__name__
                    error.add_note(f"in {shown!r} of Metrics, with {describe(outputs)} and {describe(targets)}")
                    raise
                run.log({name: metric} if name else metric)

    def _outputs_of(self, run: Run) -> Any:
        """Return the outputs of the batch, detached, or raise ``MetricError``."""
        if self._outputs is not None:
            return _detached(self._outputs(run))
        try:
            return _detached(run.outputs)
        except NotAvailableError as error:
            method = "train_batch" if run.stage == "train" else "eval_batch"
            raise MetricError(
                f"Metrics needs the outputs of the model: let {method} return {{'loss': …, 'outputs': …}} (in a "
                f"custom loop: loop.run.outputs = …), or give Metrics(…, outputs=function of run)"
            ) from error

    def _targets_of(self, run: Run) -> Any:
        """Return the targets of the batch, or raise ``MetricError``."""
        batch = run.batch
        if self._targets is not None:
            return self._targets(run)
        found = find_target(batch)
        if found is None:
            keys = f" with {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
            raise MetricError(
                f"Metrics finds no targets in a batch that is {kind_of(batch)}{keys}; give "
                f"Metrics(…, targets=lambda run: run.batch[…])"
            )
        return found


def _checked(metrics: Any) -> Iterator[tuple[str, Any]]:
    """Yield each metric with its name after checking it. A collection has an empty name."""
    if _is_object(metrics) and hasattr(metrics, "keys"):
        metrics = {"": metrics}
    elif not isinstance(metrics, Mapping) or not metrics or not all(isinstance(name, str) for name in metrics):
        raise ArgumentError(
            f"Metrics(metrics={metrics!r:.80}): must be metrics by name, {{'acc': metric_or_function}}."
        )
    for name, metric in metrics.items():
        if "/" in name:
            raise ArgumentError(f"Metrics(metrics={{{name!r}: …}}): Hookline adds the stage to the name. Leave it out.")
        if inspect.isclass(metric) or not (_is_object(metric) or callable(metric)):
            hint = f"Write {metric.__name__}(…)" if inspect.isclass(metric) else "Give a torchmetrics object"
            raise ArgumentError(
                f"Metrics(metrics={{{name!r}: {metric!r:.80}}}): is not a metric. {hint}, or a "
                f"function of (outputs, targets)."
            )
        yield name, metric


def _is_object(metric: object) -> bool:
    """True for a torchmetrics object."""
    return isinstance(metric, nn.Module) and all(hasattr(metric, name) for name in ("update", "compute", "clone"))


def _rows(stage: str, metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the metrics that are logged.

    The names of the loaders are not known yet.
    """
    for name, metric in metrics.items():
        keys = [str(key) for key in metric.keys()] if hasattr(metric, "keys") else [""]  # noqa: SIM118 (a collection)
        for key in ["*"] if _gives_dict(metric) else keys:
            row = "/".join(part for part in (name, key) if part)
            yield f"{stage}/{row}"
            yield f"{stage}/{row}_epoch" if stage == "train" else f"{stage}/*/{row}"


def _gives_dict(metric: Any) -> bool:
    """True if ``compute`` is annotated to return a dict, whose keys are known only at run time."""
    if hasattr(metric, "keys"):
        return any(_gives_dict(part) for part in metric.values())
    return _is_object(metric) and "dict" in str(inspect.signature(metric.compute).return_annotation).lower()


def _detached(value: Any) -> Any:
    """Detach all tensors: a metric that keeps all outputs would keep their graphs for an epoch."""
    return map_tensors(Tensor.detach, value)
