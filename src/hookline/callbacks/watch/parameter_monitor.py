"""``ParameterMonitor``: statistics of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookline.callbacks._modules import check_patterns, matches, patterns_or_all
from hookline.callbacks.watch._interval import IntervalMonitor
from hookline.distributed.dtensors import whole
from hookline.errors import ArgumentError
from hookline.progress import Duration, Schedule

if TYPE_CHECKING:
    from hookline.run import Run

STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": torch.linalg.vector_norm,
    "mean": torch.mean,
    "std": lambda values: torch.std(values, correction=0),
    "zeros": lambda values: 1 - torch.count_nonzero(values) / values.numel(),
}


class ParameterMonitor(IntervalMonitor):
    """Log the norm, mean, standard deviation and fraction of zeros of each parameter.

    The names are ``parameters/norm/encoder.0.weight``, ``parameters/mean/…``, ``parameters/std/…`` and
    ``parameters/zeros/…`` (0 to 1). ``parameters/norm/total`` is the norm of all selected parameters; a
    parameter that is itself named ``total`` is logged as ``model.total``. Frozen parameters are included.
    Values stay on the device until the next log interval ends; only histograms are read at once. For the norms
    of gradients and updates, use ``GradientMonitor``.

    Args:
        every: How often to log: at the end of the first log interval or epoch after each ``every``. ``None``:
            at the end of each log interval and each epoch.
        layers: ``True``: all parameters. Or names and patterns, each including its submodules, for example
            ``("encoder", "*.bias")``.
        statistics: Statistics to log: ``"norm"``, ``"mean"``, ``"std"``, ``"zeros"``.
        histograms: Also log a histogram of each parameter as ``parameters/values/<name>``.

    Raises:
        ArgumentError: If a statistic is unknown. At setup, also if a name or pattern matches no parameter.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> monitor = ParameterMonitor(statistics=("norm", "zeros"), layers="*.weight")
        >>> trainer = Trainer(max_duration="2ep", callbacks=[monitor], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> result.history.steps("parameters/norm/total"), result.metrics["parameters/zeros/hidden.weight"]
        ([4, 8], 0.0)
    """

    writes = ("parameters/*",)

    def __init__(
        self,
        every: str | Duration | None = None,
        *,
        layers: bool | str | Iterable[str] = True,
        statistics: str | Iterable[str] = tuple(STATISTICS),
        histograms: bool = False,
    ) -> None:
        self.every = None if every is None else Duration.parse(every, "ParameterMonitor(every=…)")
        self._patterns = patterns_or_all(layers, "ParameterMonitor")
        self.statistics = (statistics,) if isinstance(statistics, str) else tuple(statistics)
        if not set(self.statistics) <= STATISTICS.keys() or not (self.statistics or histograms):
            raise ArgumentError(
                f"ParameterMonitor(statistics={self.statistics!r}): use one or more of {', '.join(STATISTICS)}."
            )
        self.histograms = histograms
        super().__init__()
        self._schedule: Schedule | None = None

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        self._schedule = None
        if self.every is not None and run.is_training_run:
            self._schedule = Schedule(self.every.of(run.max_duration))
            self._schedule.fired(run.clock)  # A checkpoint that is loaded later overrides this.
        names = [name for name, _ in run.model.named_parameters()]
        check_patterns(self._patterns, names, "ParameterMonitor", kind="parameter")

    def state_dict(self) -> dict[str, Any]:
        schedule = None if self._schedule is None else self._schedule.state_dict()
        return {"interval": self._interval.state_dict(), "schedule": schedule}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._interval.load_state_dict(state["interval"])
        if state["schedule"] is not None and self.every is not None:
            if self._schedule is None:
                self._schedule = Schedule(Duration.parse(state["schedule"]["every"]))
            self._schedule.load_state_dict(state["schedule"])

    def report(self, run: Run) -> None:
        """Log a row."""
        if self._schedule is not None:
            if not self._schedule.due(run.clock):
                return
            self._schedule.fired(run.clock)
        chosen = ((name, its) for name, its in run.model.named_parameters() if matches(name, self._patterns))
        # The norm of all parameters has the name ``total``.
        found: dict[str, dict[str, Tensor]] = {kind: {} for kind in self.statistics}
        for given, parameter in chosen:
            name = "model.total" if given == "total" else given
            values = _numbers(parameter)  # One at a time, so that no rank holds all sharded parameters in full.
            if not values.numel():
                continue
            for kind, measured in found.items():
                measured[name] = STATISTICS[kind](values)
            if self.histograms:
                run.log_histogram(f"parameters/values/{name}", values)
        if any(found.values()):
            run.log(_named(found), reduce="last")


def _named(found: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the values by metric name, with the total norm."""
    values = {f"parameters/{kind}/{name}": value for kind, its in found.items() for name, value in its.items()}
    if norms := list(found.get("norm", {}).values()):
        values["parameters/norm/total"] = torch.linalg.vector_norm(torch.stack([norm.to(norms[0]) for norm in norms]))
    return values


def _numbers(parameter: nn.Parameter) -> Tensor:
    """Return the values of a parameter as a full real tensor in float32 or float64."""
    values = whole(parameter.detach())
    if values.is_complex():
        values = torch.view_as_real(values)
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
