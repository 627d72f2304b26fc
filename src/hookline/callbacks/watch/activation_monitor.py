"""``ActivationMonitor``: what comes out of the layers of a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookline.callbacks.name_patterns import check_patterns, matches, patterns_of, patterns_or_all
from hookline.callbacks.sampled_steps import SampledSteps
from hookline.callbacks.watch.activation_statistics import STATISTICS, measure
from hookline.callbacks.watch.model_calls import tensors
from hookline.errors import RegistrationError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from hookline.progress import Duration
    from hookline.run import Run

logger = logging.getLogger("hookline")

DEFAULT = ("norm", "mean", "max", "skewness", "kurtosis", "zeros")


class ActivationMonitor(Callback):
    """Logs statistics of what each layer gives: ``activations/norm/<layer>``, ``activations/mean/<layer>`` and so on.

    ``statistics`` are some of ``"norm"`` (L2, of all numbers, so it grows with the batch), ``"mean"``, ``"max"`` (the
    largest magnitude), ``"std"``, ``"skewness"`` (0 if symmetric), ``"kurtosis"`` (3 for a normal distribution) and
    ``"zeros"`` (their share, from 0 to 1). A layer that gives several tensors has ``<layer>.0``, ``<layer>.1``; what
    is no floating-point number, and what is sparse, is left out.

    It looks at the first step, and then at each step that completes ``every``; each of them has its row, whatever
    ``log_every`` is. Of a step it takes the first batch, and of a layer that is called several times the first call.
    Only in these steps are there hooks on the model; they are taken off on every way out.

    ``layers=True`` means every module that has no others inside; names and patterns, each with all inside it, choose
    any. ``ignore`` leaves out names, patterns, classes and their names: ``("*.norm", nn.Dropout, "GELU")``. What means
    nothing in the model is an error. A part that ``torch.compile`` has made is not looked into: this is said once.

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
            raise RegistrationError(
                f"ActivationMonitor(statistics={self.statistics!r}): choose from {', '.join(STATISTICS)}"
            )
        self._detach: list[Callable[[], None]] = []
        self._values: dict[str, Tensor] = {}
        self._error: Exception | None = None
        self._said = False

    # -- when ----------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        self._leave()
        self._said = False
        self._steps.begin(run)
        names = [name or "model" for name, _ in run.model.named_modules()]
        check_patterns(self._patterns, names, "ActivationMonitor")
        kinds = [type(part).__name__ for part in run.model.modules()]
        check_patterns(self._ignored, [*names, *kinds], "ActivationMonitor", "ignore")

    def on_train_step_start(self, run: Run) -> None:
        self._leave_skipped()
        if self._steps.reaches(run):
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
                run.log(largest, reduce="max", step=run.clock.step)  # that of all processes, and not their mean

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
        self._leave()
        for name, part in self._wanted(run.model):
            self._detach.append(part.register_forward_hook(self._look(name, run)).remove)
        if not self._detach:
            raise SetupError(
                "ActivationMonitor finds no layer to look at: all of them are ignored, or inside a part that "
                "torch.compile has made"
            )

    def _leave_skipped(self) -> None:
        """A step that was looked at and had no end was skipped: the next is looked at in its place."""
        if self._detach:
            self._steps.take_back()
            self._leave()

    def _leave(self) -> tuple[dict[str, Tensor], Exception | None]:
        """Take the hooks off; what they saw."""
        while self._detach:
            self._detach.pop()()
        found = self._values, self._error
        self._values, self._error = {}, None
        return found

    def _wanted(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        inside: tuple[str, ...] = ()
        for name, part in model.named_modules():
            if name.startswith(inside) and inside:
                continue
            if part._compiled_call_impl is not None or hasattr(part, "_orig_mod"):
                inside += (f"{name}." if name else "",)
                self._say_compiled(name)
            elif self._is_wanted(name or "model", part):
                yield name or "model", part

    def _is_wanted(self, name: str, part: nn.Module) -> bool:
        if self._patterns is None and any(True for _ in part.children()):
            return False
        kind = type(part).__name__
        ignored = matches(name, self._ignored) or matches(kind, self._ignored)
        return matches(name, self._patterns) and not ignored and not isinstance(part, self._ignored_types)

    def _look(self, name: str, run: Run) -> Callable[..., None]:
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
            except Exception as error:  # not in the user's forward: it is raised when the step ends
                self._error = error

        seen: list[str] = []
        return look

    def _say_compiled(self, name: str) -> None:
        if not self._said:
            self._said = True
            logger.warning("ActivationMonitor does not look into %s, which torch.compile has made", name or "the model")


def _is_measured(tensor: Tensor) -> bool:
    """Numbers with a fraction, and not of a sparse or nested layout, which torch computes little of."""
    is_plain = tensor.layout == torch.strided and not tensor.is_nested
    return is_plain and bool(tensor.numel()) and (tensor.is_floating_point() or tensor.is_complex())
