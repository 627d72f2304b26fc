"""``GradientClip``: gradients that are too large are made smaller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from hookline.errors import RegistrationError, SetupError
from hookline.events import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from hookline.run import Run

Limit = float | Mapping[str, float]


class GradientClip(Callback):
    """Clips the gradients before each update: by their norm, or each number of them by its value.

    ``norm=1.0``: where the norm of all gradients of an optimizer is above 1, all are scaled down together, so that the
    direction stays. ``value=0.5``: what is below -0.5 or above 0.5 is set to that. Give one of the two. With several
    optimizers, each has the norm of its own parameters; a dict by their names gives each a limit of its own, and those
    that are not in it are not clipped: ``norm={"critic": 0.5}``.

    It acts when the gradients are complete: averaged over the window, and unscaled in fp16. Monitors of the gradients
    see them as they were before. ``norm_type`` is the order of the norm (``math.inf`` for the largest number). With
    ``error_if_nonfinite`` a norm that is NaN or infinite is an error; this reads a number from the device in each step.

    With ``norm``, ``grad_clip/norm`` (before clipping) and ``grad_clip/share`` (the share of the steps that were
    clipped, from 0 to 1) are logged, as means over the interval; with several optimizers ``grad_clip/norm/<name>``.
    ``log=False`` leaves this out. A step that is skipped, as by ``SpikeGuard``, is neither counted nor an error.

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
            raise RegistrationError(
                f"GradientClip(norm={norm!r}, value={value!r}): give one of them, such as GradientClip(norm=1.0)"
            )
        for name, limit in (("norm", norm), ("value", value)):
            _check_limit(name, limit)
        if not isinstance(norm_type, int | float) or isinstance(norm_type, bool) or not norm_type > 0:
            raise RegistrationError(f"GradientClip(norm_type={norm_type!r}): give a number above 0, such as 2 or inf")
        if value is not None and error_if_nonfinite:
            raise RegistrationError(
                "GradientClip(value=…, error_if_nonfinite=True): only a norm is looked at; give norm="
            )
        self.norm = norm
        self.value = value
        self._limits: Limit = norm if norm is not None else value  # type: ignore[assignment]  # one of them is given
        self.norm_type = float(norm_type)
        self.error_if_nonfinite = error_if_nonfinite
        self.log = log and norm is not None
        self._names: dict[str, tuple[str, str]] = {}
        self._found: tuple[str, Tensor, float] | None = None
        """Of the update that is being prepared: the optimizer, the norm and its limit."""
        if self.log:
            self.writes = ("gradients", "grad_clip/*")

    def on_setup(self, run: Run) -> None:
        self._names.clear()
        self._found = None

    def on_train_start(self, run: Run) -> None:
        for name in self._limits if isinstance(self._limits, Mapping) else ():
            if name not in run.optimizers:
                close = get_close_matches(name, run.optimizers, n=1, cutoff=0.4)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise SetupError(
                    f"GradientClip: there is no optimizer {name!r}; {hint}There are: {', '.join(run.optimizers)}"
                )

    def on_gradients_ready(self, run: Run) -> None:
        optimizer, limits, name = run.optimizer, self._limits, ""
        if len(run.optimizers) > 1 or isinstance(limits, Mapping):
            name = run.optimizer_name
        limit = limits.get(name) if isinstance(limits, Mapping) else limits
        if limit is None:
            return
        found = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        parameters = [_dense(p) if p.grad.is_sparse else p for p in found]
        if self.norm is None:
            clip_grad_value_(parameters, limit)
            return
        # While the step may still be skipped by one who comes later, an error waits.
        strict = self.error_if_nonfinite and not run.can_skip_step
        self._found = name, clip_grad_norm_(parameters, limit, self.norm_type, strict), limit

    def on_optimizer_step_start(self, run: Run) -> None:
        if self.error_if_nonfinite and self._found is not None and not torch.isfinite(self._found[1]):
            raise RuntimeError(
                f"GradientClip: the norm of order {self.norm_type} of the gradients is non-finite "
                f"({self._found[1].item()}), so they cannot be clipped; error_if_nonfinite=False goes on"
            )

    def on_optimizer_step_end(self, run: Run) -> None:
        if self._found is not None:
            (name, total, limit), self._found = self._found, None
            if self.log:
                norm, share = self._names.get(name) or self._named(run, name)
                run.log({norm: total, share: (total > limit).to(total.dtype)})

    def on_step_skipped(self, run: Run) -> None:
        self._found = None

    def _named(self, run: Run, optimizer: str) -> tuple[str, str]:
        """The names of its metrics, which are made once."""
        of = f"/{optimizer}" if len(run.optimizers) > 1 else ""
        self._names[optimizer] = names = (f"grad_clip/norm{of}", f"grad_clip/share{of}")
        return names


def _dense(parameter: Tensor) -> Tensor:
    """A stand-in whose gradient is what a sparse one holds: torch clips dense ones only, in place."""
    parameter.grad = parameter.grad.coalesce()  # type: ignore[union-attr]  # it has one
    values = parameter.grad._values()
    stand_in = torch.empty_like(values)
    stand_in.grad = values
    return stand_in


def _check_limit(name: str, limit: Limit | None) -> None:
    if isinstance(limit, Mapping) and not limit:
        raise RegistrationError(f"GradientClip({name}={{}}): give a limit for at least one optimizer, by its name")
    for its in limit.values() if isinstance(limit, Mapping) else () if limit is None else (limit,):
        is_number = isinstance(its, int | float) and not isinstance(its, bool)
        if not is_number or math.isnan(its) or its <= 0:
            raise RegistrationError(f"GradientClip({name}={limit!r}): give a number above 0")
