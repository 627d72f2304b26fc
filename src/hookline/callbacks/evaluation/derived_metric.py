"""``DerivedMetric``: a metric that is computed from other metrics."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hookline.errors import ArgumentError, MetricError
from hookline.events import Callback
from hookline.records import Value

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

EVALUATIONS = ("val/", "test/")


class DerivedMetric(Callback):
    """Log a metric that a function computes from other metrics.

    The callback computes the metric when the metrics that it reads are new:

    - After each evaluation that measures one of them, if one is named ``val/…`` or ``test/…``.
    - At the end of each epoch, if one is a mean over an epoch, such as ``train/loss_epoch``.
    - Otherwise at the end of each log interval that measures one of them.

    Nothing is logged until every metric in ``reads`` has a value. If the function divides by zero, overflows or
    takes the logarithm of zero, Hookline logs NaN and warns once. Any other error of the function stops the
    run, unless you set ``optional = True`` on the callback.

    Args:
        name: Name of the new metric. A name without a slash gets the prefix of ``reads``.
        function: Function of a dict with the metrics in ``reads``, by full name. It returns the value, or
            ``None`` to log nothing.
        reads: Full names of the metrics, or patterns such as ``"val/*/acc"``, which select every metric that
            matches.

    Raises:
        ArgumentError: If ``reads`` is empty or has a name without a slash, or if ``name`` has no slash and
            the metrics in ``reads`` have different prefixes.

    Example:
        >>> import math, torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> perplexity = DerivedMetric("perplexity", lambda m: math.exp(m["val/loss"]), reads=("val/loss",))
        >>> trainer = Trainer(max_duration="1ep", callbacks=[perplexity], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), tiny_data(seed=1), loss=loss, optimizer=optimizer)
        >>> result.metrics["val/perplexity"] == math.exp(result.metrics["val/loss"])
        True
    """

    state = ("seen",)
    state_depends_on = ("metric", "reads")

    def __init__(self, name: str, function: Callable[[dict[str, Any]], Any], reads: str | Iterable[str]) -> None:
        self.reads = (reads,) if isinstance(reads, str) else tuple(reads)
        if not self.reads or not all("/" in read for read in self.reads):
            raise ArgumentError(f"DerivedMetric(reads={self.reads!r}): must be full names, such as 'val/loss'.")
        self.metric = _full_name(name, self.reads)
        self.function = function
        self.writes = (self.metric,)
        self.seen: dict[str, int | None] = {}
        """Steps of the values that the last value was computed from. Used at log intervals only."""
        self._warned = False

    def on_setup(self, run: Run) -> None:
        self._warned = False

    def on_eval_end(self, run: Run) -> None:
        if any(read.startswith(f"{run.stage}/") for read in self.reads):
            self._derive(run)

    def on_metrics_ready(self, run: Run) -> None:
        if any(read.startswith(EVALUATIONS) or read.endswith("_epoch") for read in self.reads):
            return
        metrics = self._inputs(run) or {}
        steps = {name: run.metrics.step_of(name) for name in metrics}
        if steps != self.seen:  # Otherwise the curve would have points at which nothing was measured.
            self.seen = steps
            self._derive(run)

    def on_train_epoch_end(self, run: Run) -> None:
        of_epoch = any(read.endswith("_epoch") for read in self.reads)
        if of_epoch and not any(read.startswith(EVALUATIONS) for read in self.reads):
            self._derive(run)

    def _derive(self, run: Run) -> None:
        """Compute and log the metric if all values are available."""
        metrics = self._inputs(run)
        if metrics is None:
            return
        try:
            value = self.function(metrics)
        except (ArithmeticError, ValueError) as error:
            value = math.nan
            if not self._warned:
                self._warned = True
                text = "%s is not a number at step %d: %s: %s"
                logger.warning(text, self.metric, run.clock.step, type(error).__name__, error)
        except KeyError as error:
            raise MetricError(
                f"DerivedMetric({self.metric!r}) uses {error.args[0]!r}, and reads={self.reads!r}; name it there, so "
                f"that it is measured before"
            ) from error
        if value is not None:
            run.log({self.metric: value}, reduce="last")

    def _inputs(self, run: Run) -> dict[str, Value] | None:
        """Return the newest values to read, or ``None`` if one is missing or no longer updated."""
        found: dict[str, Value] = {}
        for read in self.reads:
            known = [read]
            if "*" in read:
                known = [name for name in run.metrics if fnmatchcase(name, read) and name != self.metric]
            if run.callbacks.lost(read) or not known or any(name not in run.metrics for name in known):
                return None
            found.update({name: run.metrics[name] for name in known})
        return found


def _full_name(name: str, reads: tuple[str, ...]) -> str:
    """Return the name with a prefix, or raise an error if the prefix is ambiguous."""
    if not name:
        raise ArgumentError("DerivedMetric(name=''): is empty. Write for example 'val/perplexity'.")
    prefixes = {read.partition("/")[0] for read in reads}
    if "/" not in name and len(prefixes) > 1:
        raise ArgumentError(
            f"DerivedMetric(name={name!r}): has no stage, and reads {', '.join(reads)}. Write for example 'val/{name}'."
        )
    return name if "/" in name else f"{prefixes.pop()}/{name}"
