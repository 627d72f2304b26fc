"""``ActivationMonitor``: statistics of the outputs of the layers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookline.callbacks._modules import check_patterns, matches, patterns_of, patterns_or_all
from hookline.callbacks._sampled_steps import SampledSteps
from hookline.callbacks._trees import tensors
from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.progress import Duration
    from hookline.run import Run

logger = logging.getLogger("hookline")

DEFAULT = ("norm", "mean", "max", "skewness", "kurtosis", "zeros")

STATISTICS = ("norm", "mean", "max", "std", "skewness", "kurtosis", "zeros")


class ActivationMonitor(Callback):
    """Log statistics of the outputs of each layer, such as ``activations/norm/<layer>``.

    The callback samples the first step, and then each step that completes ``every``. Each sampled step gets its
    own row, independent of ``log_every``. Of a step it measures the first micro-batch, and of a layer that is
    called several times the first call. The model has forward hooks only during these steps. A layer that
    returns several tensors is logged as ``<layer>.0``, ``<layer>.1``. Integer, sparse and nested tensors are
    left out. Hookline skips modules that ``torch.compile`` has compiled, and warns once.

    Args:
        every: How often to sample a step.
        layers: ``True``: all modules without submodules. Or names and patterns of modules, each including its
            submodules.
        ignore: Modules to leave out: names, patterns, classes or class names, for example ``("*.norm",
            nn.Dropout, "GELU")``.
        statistics: Statistics to log: ``"norm"`` (L2 norm of all values, which grows with the batch size),
            ``"mean"``, ``"max"`` (largest magnitude), ``"std"``, ``"skewness"`` (0 if symmetric),
            ``"kurtosis"`` (3 for a normal distribution) and ``"zeros"`` (fraction of zeros, 0 to 1). Default:
            all except ``"std"``.

    Raises:
        ArgumentError: If a statistic is unknown. At setup, also if a name or pattern matches nothing in the
            model.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> monitor = ActivationMonitor(every="2st", ignore="Dropout", statistics=("mean", "zeros"))
        >>> trainer = Trainer(max_duration="1ep", callbacks=[monitor], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> result.history.steps("activations/mean/hidden")
        [1, 2, 4]
        >>> sorted(name for name in result.metrics if name.startswith("activations/zeros/"))
        ['activations/zeros/hidden', 'activations/zeros/out']
    """

    optional = True
    writes = ("activations/*",)
    shares_state = True

    def __init__(
        self,
        every: str | Duration = "100st",
        *,
        layers: bool | str | Iterable[str] = True,
        ignore: str | type[nn.Module] | Iterable[str | type[nn.Module]] = (),
        statistics: str | Iterable[str] = DEFAULT,
    ) -> None:
        self._steps = SampledSteps("ActivationMonitor", every)
        self.every = self._steps.every
        self._patterns = patterns_or_all(layers, "ActivationMonitor")
        given = (ignore,) if isinstance(ignore, str | type) else tuple(ignore)
        self._ignored_types = tuple(item for item in given if isinstance(item, type))
        names = [item for item in given if not isinstance(item, type)]
        self._ignored = patterns_of(names, "ActivationMonitor", "ignore") if names else ()
        self.statistics = (statistics,) if isinstance(statistics, str) else tuple(statistics)
        if not self.statistics or not set(self.statistics) <= set(STATISTICS):
            raise ArgumentError(
                f"ActivationMonitor(statistics={self.statistics!r}): use one or more of {', '.join(STATISTICS)}."
            )
        self._detach: list[Callable[[], None]] = []
        self._values: dict[str, Tensor] = {}
        self._error: Exception | None = None
        self._warned = False

    # -- when ----------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        self._leave()
        self._warned = False
        self._steps.begin(run)
        names = [name or "model" for name, _ in run.model.named_modules()]
        check_patterns(self._patterns, names, "ActivationMonitor")
        kinds = [type(part).__name__ for part in run.model.modules()]
        check_patterns(self._ignored, [*names, *kinds], "ActivationMonitor", "ignore")

    def on_train_step_start(self, run: Run) -> None:
        self._leave_skipped()
        if self._steps.take(run):
            self._attach(run)

    def on_train_step_end(self, run: Run) -> None:
        if self._detach:
            values, error = self._leave()
            if error is not None:
                raise error
            largest = {name: values.pop(name) for name in list(values) if name.startswith("activations/max/")}
            if values:
                run.log(values, reduce="last", step=run.clock.step)
            if largest:
                run.log(largest, reduce="max", step=run.clock.step)  # The maximum over all ranks, not their mean.

    def on_train_epoch_end(self, run: Run) -> None:
        self._leave_skipped()

    def on_train_end(self, run: Run) -> None:
        self._leave()

    def on_exception(self, run: Run) -> None:
        self._leave()

    def on_teardown(self, run: Run) -> None:
        self._leave()

    def state_dict(self) -> dict[str, Any]:
        return self._steps.state_dict(skipped=bool(self._detach))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._leave()
        self._steps.load_state_dict(state)

    # -- what ----------------------------------------------------------------------------------

    def _attach(self, run: Run) -> None:
        """Register a forward hook on each selected layer."""
        self._leave()
        for name, part in self._wanted(run.model):
            self._detach.append(part.register_forward_hook(self._look(name, run)).remove)
        if not self._detach:
            raise SetupError(
                "ActivationMonitor finds no layer to look at: all of them are ignored, or inside a part that "
                "torch.compile has made"
            )

    def _leave_skipped(self) -> None:
        """Remove the hooks of a step that was skipped, and sample the next step instead."""
        if self._detach:
            self._steps.return_last()
            self._leave()

    def _leave(self) -> tuple[dict[str, Tensor], Exception | None]:
        """Remove the hooks and return the values and the error that they recorded."""
        while self._detach:
            self._detach.pop()()
        found = self._values, self._error
        self._values, self._error = {}, None
        return found

    def _wanted(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Yield the selected layers by name, without the inside of compiled modules."""
        inside: tuple[str, ...] = ()
        for name, part in model.named_modules():
            if name.startswith(inside) and inside:
                continue
            if part._compiled_call_impl is not None or hasattr(part, "_orig_mod"):
                inside += (f"{name}." if name else "",)
                self._warn_compiled(name)
            elif self._is_wanted(name or "model", part):
                yield name or "model", part

    def _is_wanted(self, name: str, part: nn.Module) -> bool:
        """True if the layer is selected and not ignored."""
        if self._patterns is None and any(True for _ in part.children()):
            return False
        kind = type(part).__name__
        ignored = matches(name, self._ignored) or matches(kind, self._ignored)
        return matches(name, self._patterns) and not ignored and not isinstance(part, self._ignored_types)

    def _look(self, name: str, run: Run) -> Callable[..., None]:
        """Return the forward hook of a layer."""

        def look(module: nn.Module, args: Any, output: Any) -> None:
            if name in seen or run.stage != "train" or run.is_padding:
                return
            seen.append(name)
            try:
                found = [tensor for tensor in tensors(output) if _is_measured(tensor)]
                for number, tensor in enumerate(found):
                    of = name if len(found) == 1 else f"{name}.{number}"
                    for kind, value in measure(tensor, self.statistics).items():
                        self._values[f"activations/{kind}/{of}"] = value
            except Exception as error:  # Raised at the end of the step, not inside the user's forward.
                self._error = error

        seen: list[str] = []
        return look

    def _warn_compiled(self, name: str) -> None:
        """Warn once that the inside of a compiled module is not measured."""
        if not self._warned:
            self._warned = True
            logger.warning("ActivationMonitor does not look into %s, which torch.compile has made", name or "the model")


def _is_measured(tensor: Tensor) -> bool:
    """True for floating-point and complex tensors that are neither empty, sparse nor nested."""
    is_plain = tensor.layout == torch.strided and not tensor.is_nested
    return is_plain and bool(tensor.numel()) and (tensor.is_floating_point() or tensor.is_complex())


def measure(output: Tensor, statistics: Sequence[str]) -> dict[str, Tensor]:
    """Return statistics of all values of a tensor.

    Args:
        output: Tensor to measure. A complex tensor is measured as pairs of real numbers.
        statistics: Names from ``STATISTICS``. ``max`` is the largest magnitude. ``skewness`` is the third
            central moment divided by the cubed standard deviation: 0 if symmetric. ``kurtosis`` is the fourth
            central moment divided by the squared variance: 3 for a normal distribution.

    Example:
        >>> values = measure(torch.tensor([0.0, 0.0, 3.0, -4.0]), ("norm", "max", "zeros"))
        >>> {name: value.item() for name, value in values.items()}
        {'norm': 5.0, 'max': 4.0, 'zeros': 0.5}
    """
    values = output.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    moments = _moments(values) if {"std", "skewness", "kurtosis"}.intersection(statistics) else {}
    return {name: moments[name] if name in moments else _simple(name, values) for name in statistics}


def _simple(name: str, values: Tensor) -> Tensor:
    """Return a statistic that needs no central moments."""
    if name == "mean":
        return values.mean()
    if name == "zeros":
        return 1 - torch.count_nonzero(values) / values.numel()
    found: Tensor = torch.linalg.vector_norm(values, torch.inf if name == "max" else 2)
    return found


def _moments(values: Tensor) -> dict[str, Tensor]:
    """Return the statistics that need central moments."""
    centred = values - values.mean()
    squared = centred.square()
    variance = squared.mean()
    return {
        "std": variance.sqrt(),
        "skewness": (squared * centred).mean() / variance**1.5,
        "kurtosis": squared.square().mean() / variance.square(),
    }
