"""``GradientClip``: clip gradients before each optimizer step."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from hookline.errors import ArgumentError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from hookline.run import Run

Limit = float | Mapping[str, float]


class GradientClip(Callback):
    """Clip gradients before each optimizer step, by norm or by value.

    The callback clips complete gradients: averaged over the accumulation window, and unscaled in fp16. With ``norm``,
    Hookline logs ``grad_clip/norm``, the mean norm before clipping, and ``grad_clip/share``, the fraction of clipped
    steps. With several optimizers, the name of the optimizer follows: ``grad_clip/norm/<optimizer>``.

    Args:
        norm: Largest norm of all gradients of an optimizer. Larger gradients are scaled down together, so that their
            direction stays. A dict such as ``{"critic": 0.5}`` sets a limit per optimizer and does not clip the
            others.
        value: Largest absolute value of each gradient element, or a dict per optimizer. Give either ``norm`` or
            ``value``.
        norm_type: Order of the norm. ``math.inf`` is the largest absolute value.
        error_if_nonfinite: Raise if the norm is NaN or infinite. This synchronizes with the device at each step. A
            skipped step does not raise.
        log: Log the metrics. A skipped step is not counted.

    Raises:
        ArgumentError: If both or neither of ``norm`` and ``value`` are given, or a limit is not above 0.
        SetupError: If a dict names an optimizer that does not exist.

    Example:
        >>> import torch
        >>> from hookline.loop import Trainer
        >>> from hookline.testing import TinyModel, tiny_data
        >>> trainer = Trainer(max_duration="1ep", callbacks=[GradientClip(0.1)], folder=False)
        >>> loss, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD
        >>> result = trainer.fit(TinyModel(), tiny_data(), loss=loss, optimizer=optimizer)
        >>> result.metrics["grad_clip/norm"] > 0.1, result.metrics["grad_clip/share"]
        (True, 1.0)
    """

    writes: tuple[str, ...] = ("gradients",)

    settings = ("norm", "value")

    def __init__(
        self,
        norm: Limit | None = None,
        value: Limit | None = None,
        *,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        log: bool = True,
    ) -> None:
        if (norm is None) == (value is None):
            raise ArgumentError(f"GradientClip(norm={norm!r}, value={value!r}): needs one of them, such as norm=1.0.")
        for name, limit in (("norm", norm), ("value", value)):
            _check_limit(name, limit)
        if norm_type <= 0:
            raise ArgumentError(f"GradientClip(norm_type={norm_type!r}): must be > 0, such as 2 or inf.")
        if value is not None and error_if_nonfinite:
            raise ArgumentError("GradientClip(error_if_nonfinite=True): needs norm=. A value has no norm to check.")
        self.norm = norm
        self.value = value
        self.norm_type = float(norm_type)
        self.error_if_nonfinite = error_if_nonfinite
        self.log = log and norm is not None
        self._names: dict[str, tuple[str, str]] = {}
        self._found: tuple[str, Tensor, float] | None = None
        """Optimizer, norm and limit of the current step."""
        if self.log:
            self.writes = ("gradients", "grad_clip/*")

    def on_setup(self, run: Run) -> None:
        self._names.clear()
        self._found = None

    @property
    def _limits(self) -> Limit:
        """The norm or the value, of which exactly one is given."""
        return self.norm if self.norm is not None else self.value  # type: ignore[return-value]

    def on_train_start(self, run: Run) -> None:
        for name in self._limits if isinstance(self._limits, Mapping) else ():
            if name not in run.optimizers:
                close = get_close_matches(name, run.optimizers, n=1, cutoff=0.4)
                hint = f"Did you mean {close[0]!r}? " if close else ""
                raise SetupError(
                    f"GradientClip: there is no optimizer {name!r}. {hint}There are: {', '.join(run.optimizers)}"
                )

    def on_gradients_ready(self, run: Run) -> None:
        optimizer, limits, name = run.optimizer, self._limits, ""
        if len(run.optimizers) > 1 or isinstance(limits, Mapping):
            name = run.optimizer_name
        limit = limits.get(name) if isinstance(limits, Mapping) else limits
        if limit is None:
            return
        parameters = [
            _dense(p) if p.grad.is_sparse else p
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        if self.norm is None:
            clip_grad_value_(parameters, limit)
            return
        # A later callback may still skip the step, so the check waits until `on_optimizer_step_start`.
        strict = self.error_if_nonfinite and not run.can_skip_step
        self._found = name, clip_grad_norm_(parameters, limit, self.norm_type, strict), limit

    def on_optimizer_step_start(self, run: Run) -> None:
        if self.error_if_nonfinite and self._found is not None and not torch.isfinite(self._found[1]):
            raise RuntimeError(
                f"GradientClip: the norm of order {self.norm_type} of the gradients is non-finite "
                f"({self._found[1].item()}), so they cannot be clipped; error_if_nonfinite=False continues"
            )

    def on_optimizer_step_end(self, run: Run) -> None:
        if self._found is not None:
            (name, total, limit), self._found = self._found, None
            if self.log:
                norm, share = self._names.get(name) or self._named(run, name)
                if total.is_cpu and total.__class__ is torch.Tensor:  # To read it does not wait for a device.
                    value: float = total.tolist()  # type: ignore[assignment]  # A scalar is a number.
                    run.log({norm: value, share: float(value > limit)})
                else:
                    run.log({norm: total, share: (total > limit).to(total.dtype)})

    def on_step_skipped(self, run: Run) -> None:
        self._found = None

    def _named(self, run: Run, optimizer: str) -> tuple[str, str]:
        """Return the names of the metrics of an optimizer, and cache them."""
        of = f"/{optimizer}" if len(run.optimizers) > 1 else ""
        self._names[optimizer] = names = (f"grad_clip/norm{of}", f"grad_clip/share{of}")
        return names


def _dense(parameter: Tensor) -> Tensor:
    """Return a dense tensor whose gradient is the values of a sparse one, for in-place clipping."""
    parameter.grad = parameter.grad.coalesce()  # type: ignore[union-attr]  # It has a gradient.
    values = parameter.grad._values()
    stand_in = torch.empty_like(values)
    stand_in.grad = values
    return stand_in


def _check_limit(name: str, limit: Limit | None) -> None:
    """Raise if a limit is not a number above 0."""
    if isinstance(limit, Mapping) and not limit:
        raise ArgumentError(
            f"GradientClip({name}={{}}): is empty. Give a limit for at least one optimizer, by its name."
        )
    for its in limit.values() if isinstance(limit, Mapping) else () if limit is None else (limit,):
        if its <= 0:
            raise ArgumentError(f"GradientClip({name}={limit!r}): must be > 0.")
