"""``ComposerModel`` as the model of a run."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any

import torch

from hookline.errors import LossError
from hookline.events import Callback
from hookline.interop.composer.signals import restore_default_handlers
from hookline.interop.composer.state import ComposerHost
from hookline.run import Run


class ModelLogger(Callback):
    """Sets ``model.logger`` for the time of a run, as Composer does."""

    writes = ()
    host = ComposerHost
    after = (ComposerHost,)

    def on_setup(self, run: Run) -> None:
        run.model.logger = ComposerHost.of(run).logger

    def on_teardown(self, run: Run) -> None:
        run.model.logger = None


class ComposerSteps:
    """Methods of a task for a ``ComposerModel``: the loop makes a task of this class and of ``hl.Task``.

    Args:
        model: The model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        restore_default_handlers()
        self.model = model
        self._metrics: dict[tuple[str, str | None], dict[str, Any]] = {}

    def own_callbacks(self) -> list[object]:
        """Return the callback that gives the model its ``logger``."""
        return [ModelLogger()]

    def on_setup(self, run: Run) -> None:
        self._metrics.clear()
        self._host = ComposerHost.of(run)

    def train_batch(self, run: Run, batch: Any, /) -> dict[str, Any]:
        self._host.serve(run)
        outputs = self._forward(run, batch, self.model)
        loss = self._loss(run, self.model.loss(outputs, batch))
        metrics = self._metrics_of(run, None)
        if metrics:
            was_training = self.model.training
            self.model.eval()
            with torch.no_grad():
                self._update(run, batch, self.model.eval_forward(batch, outputs), metrics)
            self.model.train(was_training)
        return {"loss": loss, "outputs": outputs}

    def eval_batch(self, run: Run, batch: Any, /) -> None:
        self._host.serve(run)
        outputs = self._forward(run, batch, self.model.eval_forward)
        self._update(run, batch, outputs, self._metrics_of(run, run.loader_name))

    def predict_batch(self, run: Run, batch: Any, /) -> Any:
        self._host.serve(run)
        return self._forward(run, batch, self.model)

    @staticmethod
    def _forward(run: Run, batch: Any, call: Any) -> Any:
        """Call the model, which may remove the targets from a dict."""
        run.emit("forward_start")
        outputs = run.outputs = call(copy(batch) if isinstance(batch, Mapping) else batch)
        run.emit("forward_end")
        return outputs

    def _loss(self, run: Run, found: Any) -> Any:
        """Return the loss, and log the losses of which it is the sum."""
        if isinstance(found, torch.Tensor):
            return found.mean() if found.ndim else found
        losses = found if isinstance(found, Mapping) else {f"loss{number}": its for number, its in enumerate(found)}
        losses = {name: loss.mean() for name, loss in losses.items()}
        if not losses:
            raise LossError(f"{type(self.model).__name__}.loss returned no loss. Return a tensor, or several.")
        run.log({name: loss.detach() for name, loss in losses.items()})
        return losses["total"] if "total" in losses else sum(losses.values())

    def _metrics_of(self, run: Run, loader: str | None) -> dict[str, Any]:
        """Return the metrics of this stage and loader, which are copies of those of the model."""
        key = (run.stage, loader)
        if key not in self._metrics:
            found = deepcopy(self.model.get_metrics(is_train=run.stage == "train"))
            self._metrics[key] = {name: metric.to(run.device) for name, metric in found.items()}
        return self._metrics[key]

    def _update(self, run: Run, batch: Any, outputs: Any, metrics: dict[str, Any]) -> None:
        for metric in metrics.values():
            self.model.update_metric(batch, outputs, metric)
        if metrics:
            run.log(metrics)
