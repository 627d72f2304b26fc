"""``GradientMonitor``: log the norms of gradients, weights and updates by layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hookline.callbacks._sampled_steps import SampledGradients
from hookline.callbacks.gradients._layers import (
    REST,
    Layers,
    by_layer,
    check_layers,
    chosen_by,
    norms,
    split_layers,
    values_of,
    with_gradients,
)
from hookline.distributed.dtensors import whole
from hookline.events import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from hookline.progress import Duration
    from hookline.run import Run


class GradientMonitor(Callback):
    """Log gradient norms of the whole model and of each layer.

    The metrics are ``grad_norm/total`` and ``grad_norm/<layer>``, measured before clipping. A layer is a module that
    directly owns parameters. Each measured step has its own row, independent of ``log_every``.

    Args:
        every: How often to measure. The first step is always measured.
        layers: Layers to log. ``True``: all. ``False``: only the total. Or names and patterns such as ``("encoder",
            "*.attn")``. A name includes everything inside it.
        weights: Also log ``weight_norm/…``.
        updates: Also log ``update_norm/…``, the norm of the change by the optimizer, and ``update_ratio/…``, this
            norm divided by the norm of the weights before. A ratio of about 0.001 is usual. Needs a copy of the
            weights during measured steps.
        statistics: Also log ``grad_mean/…``, ``grad_std/…`` and ``grad_zeros/…``, the fraction of zeros.
        histograms: Also log ``grad_histogram/<layer>``. This synchronizes with the device, while norms stay on the
            device until the interval ends.

    Raises:
        SetupError: If a name or pattern matches no layer.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> monitor = GradientMonitor(every="2st", updates=True)
        >>> trainer = Trainer(max_duration="1ep", callbacks=[monitor], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> result.history.steps("grad_norm/total")
        [1, 2, 4]
        >>> [name for name in result.history if name.startswith("update_ratio/")]
        ['update_ratio/hidden', 'update_ratio/out', 'update_ratio/total']
    """

    optional = True
    reads = ("gradients",)
    shares_state = True

    def __init__(
        self,
        every: str | Duration = "100st",
        *,
        layers: Layers = True,
        weights: bool = False,
        updates: bool = False,
        statistics: bool = False,
        histograms: bool = False,
    ) -> None:
        self._sampling = SampledGradients("GradientMonitor", every)
        self._patterns = chosen_by(layers, "GradientMonitor")
        self.every = self._sampling.every
        self.layers = layers
        self.weights = weights
        self.updates = updates
        self.statistics = statistics
        self.histograms = histograms
        wanted = {"grad_norm": True, "weight_norm": weights, "update_norm": updates, "update_ratio": updates}
        wanted |= dict.fromkeys(("grad_mean", "grad_std", "grad_zeros"), statistics) | {"grad_histogram": histograms}
        self.writes = tuple(f"{name}/*" for name, is_wanted in wanted.items() if is_wanted)
        self._clear()

    def _clear(self) -> None:
        """Drop the measurement of the current step."""
        self._groups: dict[str, list[Tensor]] = {}
        self._values: dict[str, Tensor] = {}
        self._held: dict[str, list[Tensor]] = {}
        """Weights before the optimizer step."""
        self._spread: dict[str, Tensor] = {}
        """Gradients of each layer, for histograms."""

    # -- hooks ---------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        self._sampling.begin(run)
        check_layers(run.model, self._patterns, "GradientMonitor")

    def on_gradients_ready(self, run: Run) -> None:
        if self._sampling.take(run):
            self._look(run)

    def on_optimizer_step_end(self, run: Run) -> None:
        if self._groups:
            self._report(run)

    def on_step_skipped(self, run: Run) -> None:
        self._sampling.skipped(run)
        self._clear()

    def on_teardown(self, run: Run) -> None:
        self._clear()

    def state_dict(self) -> dict[str, Any]:
        return self._sampling.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sampling.load_state_dict(state)

    # -- measurement ---------------------------------------------------------------------------

    def _look(self, run: Run) -> None:
        """Measure gradients and weights before the optimizer step."""
        self._groups = groups = self._grouped(run)
        gradients = {layer: [values_of(p.grad) for p in its if p.grad is not None] for layer, its in groups.items()}
        if not groups:
            return
        self._values = self._named(run, "grad_norm", gradients.values())
        if self.statistics:
            self._values |= self._statistics(run)
        if self.histograms:
            self._spread = {
                layer: torch.cat([whole(gradient).flatten() for gradient in its])
                for layer, its in gradients.items()
                if layer != REST
            }
        if self.weights or self.updates:
            self._values |= self._named(run, "weight_norm", groups.values())
        if self.updates:
            self._held = {layer: [p.detach().clone() for p in its] for layer, its in groups.items()}

    def _grouped(self, run: Run) -> dict[str, list[Tensor]]:
        """Return the parameters of the current optimizer, by the name to log."""
        groups = by_layer(with_gradients(run.optimizer), run.model, self._patterns)
        if len(run.optimizers) == 1:
            return groups
        split, of = split_layers(run.model, run.optimizers.values()), _of(run)
        return {f"{layer}{of}" if layer in split else layer: its for layer, its in groups.items()}

    def _report(self, run: Run) -> None:
        """Measure the update after the optimizer step and log everything."""
        values, step = self._values, run.clock.step + 1
        if self.updates:
            pairs = ((self._groups[layer], held) for layer, held in self._held.items())
            moved = [torch._foreach_sub([p.detach() for p in now], held) for now, held in pairs]
            updates = self._named(run, "update_norm", moved)
            weights = [values[name.replace("update", "weight", 1)] for name in updates]
            ratios = torch._foreach_div(list(updates.values()), weights)
            values |= updates
            values |= {name.replace("norm", "ratio", 1): ratio for name, ratio in zip(updates, ratios, strict=True)}
        if not self.weights:
            values = {name: value for name, value in values.items() if not name.startswith("weight_norm/")}
        run.log(values, reduce="last", step=step)
        for layer, gradients in self._spread.items():
            run.log_histogram(f"grad_histogram/{layer}", gradients, step=step)
        self._clear()

    def _statistics(self, run: Run) -> dict[str, Tensor]:
        """Return mean, standard deviation and fraction of zeros of the layers and in total, by metric name."""
        found = {layer: _moments([p.grad for p in its if p.grad is not None]) for layer, its in self._groups.items()}
        first = next(iter(found.values()))
        every = torch.stack([moments.to(first) for moments in found.values()])
        counts, means = every[:, 3], every[:, 0]
        fractions = counts / counts.sum()
        mean = (fractions * means).sum()
        variance = (fractions * (every[:, 1] ** 2 + (means - mean) ** 2)).sum()
        found = {layer: moments for layer, moments in found.items() if layer != REST}
        found[f"total{_of(run)}"] = torch.stack([mean, variance.sqrt(), (fractions * every[:, 2]).sum()])
        kinds = ("grad_mean", "grad_std", "grad_zeros")
        return {f"{kind}/{layer}": its[index] for index, kind in enumerate(kinds) for layer, its in found.items()}

    def _named(self, run: Run, kind: str, groups: Iterable[Sequence[Tensor]]) -> dict[str, Tensor]:
        """Return the norms of the layers and the total, by metric name."""
        total, parts = norms(groups)
        found = {f"{kind}/{layer}": part for layer, part in zip(self._groups, parts, strict=True) if layer != REST}
        return found | {f"{kind}/total{_of(run)}": total}


def _moments(gradients: Sequence[Tensor]) -> Tensor:
    """Return mean, standard deviation, fraction of zeros and number of the values, on their device."""
    full = [whole(gradient) for gradient in gradients]
    dense = [values_of(its if its.layout == torch.strided else its.to_dense()) for its in full]
    real = [torch.view_as_real(its) if its.is_complex() else its for its in dense]
    values = torch.cat([its.flatten() for its in real])
    zeros = 1 - torch.count_nonzero(values) / values.numel()
    count = torch.full_like(zeros, values.numel())
    return torch.stack([values.mean(), values.std(correction=0), zeros.to(values.dtype), count.to(values.dtype)])


def _of(run: Run) -> str:
    """Return the suffix of a metric name: the optimizer, if there are several."""
    if len(run.optimizers) == 1:
        return ""
    return "/" + run.optimizer_name
