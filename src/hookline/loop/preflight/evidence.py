"""The evidence of the pre-flight: what is collected once, and what every check reads."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookline.errors import error_text
from hookline.loop.preflight.samples import LoaderFacts
from hookline.loop.preflight.watch import PACKAGES, CallWatch, shown_path
from hookline.run import RunState

MAX_ITEMS: Final = 1_000
"""Largest number of items of a list in which layers are looked for."""


@dataclass(frozen=True, slots=True)
class GradientFacts:
    """The gradients of one parameter in the steps of the trial."""

    is_zero: bool
    """True if all of its gradients were zero in every step."""
    is_finite: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of a training step of the trial."""

    error: Exception
    words: str
    where: str
    """File and line of the innermost frame of the user's code."""
    samples: int | None = None
    """Number of samples of the batch, if it is the smaller last one."""

    @classmethod
    def of(cls, error: Exception, samples: int | None = None) -> Failure:
        """Return the failure of an error that was raised."""
        words = " ".join([error_text(error), *getattr(error, "__notes__", ())])
        return cls(error, words, place_of(error), samples)


@dataclass(frozen=True, slots=True)
class TrialFacts:
    """The observations of two training steps."""

    batch_size: int = 0
    losses: tuple[float, ...] = ()
    calls: CallWatch | None = None
    """The calls of losses and layers. ``None`` with ``compile``."""
    gradients: Mapping[str, GradientFacts] = field(default_factory=dict)
    """By name of the parameter. Parameters that no gradient has reached are missing."""
    is_finite: bool = True
    """True if all weights are finite after the updates."""
    has_moved: bool = True
    """True if an update has changed a weight."""
    change: float = 0.0
    """Size of the change of all weights, relative to their size."""
    inputs: Mapping[tuple[Any, ...], Tensor] = field(default_factory=dict)
    """The tensors of the first batch, by path."""
    evaluating_before: tuple[str, ...] = ()
    """Parts in eval mode when training begins."""
    evaluating_after: tuple[str, ...] = ()
    """Parts in eval mode after a step."""
    unregistered: tuple[str, ...] = ()
    """Tensors that got gradients, and are not parameters of the module."""
    logged: frozenset[str] = frozenset()
    """Metrics that the steps have logged."""
    seconds_per_batch: float = 0.0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How long the run is. ``None``: not known."""

    steps: float | None = None
    epochs: float | None = None
    batches_per_epoch: int | None = None
    steps_per_epoch: float | None = None
    accumulate: int = 1


@dataclass(frozen=True, slots=True)
class SaveFacts:
    """The checkpoints that the run will write into one folder."""

    bytes_each: int
    count: float
    """Number of checkpoints that are on the disk at once, at most."""
    free: int
    folder: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the checks read."""

    state: RunState
    title: str
    """Name of the model's class."""
    brings_optimizer: bool
    """True if the user has chosen the parameters of the optimizer."""
    drives_updates: bool
    """True if the task steps its optimizers itself."""
    precision: str
    plan: Plan
    loaders: tuple[LoaderFacts, ...]
    trial: TrialFacts | None
    saves: tuple[SaveFacts, ...] = ()
    doubts: tuple[tuple[str, str], ...] = ()
    """Reader and name of each monitored metric that only training can log."""

    @property
    def module(self) -> nn.Module:
        """The task, or the model of a custom loop."""
        return self.state.module  # type: ignore[no-any-return]

    @property
    def train(self) -> LoaderFacts:
        """The training loader."""
        return self.loaders[0]

    @property
    def callbacks(self) -> list[Any]:
        """The callbacks of the run."""
        return [member.callback for member in self.state.line.members if not member.is_task]

    def writes(self, resource: str) -> bool:
        """True if a callback declares that it writes a resource, such as ``"optimizer"``."""
        return any(name.partition("/")[0] == resource for callback in self.callbacks for name in callback.writes)

    @property
    def changes_structure(self) -> bool:
        """True if a callback changes layers, parameters or their groups later."""
        return any(callback.structural for callback in self.callbacks)


class GradientWatch:
    """Note for each parameter whether its gradients are zero or not finite.

    Args:
        named: The parameters by name.
    """

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        self._found: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
        self._handles = [
            parameter.register_hook(self._noting(name))  # type: ignore[no-untyped-call]
            for name, parameter in named.items()
            if parameter.requires_grad
        ]

    def _noting(self, name: str) -> Any:
        def note(gradient: Tensor) -> None:  # Before accumulation, after which an optimizer may clear it.
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            largest, finite = self._found.setdefault(name, ([], []))
            largest.append(values.detach().abs().max() if values.numel() else values.new_zeros(()))
            finite.append(values.detach().isfinite().all())

        return note

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def facts(self) -> dict[str, GradientFacts]:
        """Return what was noted, by name of the parameter."""
        return {
            name: GradientFacts(
                is_zero=not any(bool(value) for value in torch.stack(largest).isnan() | (torch.stack(largest) != 0)),
                is_finite=bool(torch.stack(finite).all()),
            )
            for name, (largest, finite) in self._found.items()
        }


def unregistered_tensors(module: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, Tensor]:
    """Return tensors that attributes hold, directly or in layers in a list, and that are in no optimizer.

    Args:
        module: The task, or the model.
        optimizers: The optimizers.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    known = {id(each) for each in (*module.parameters(), *(each for group in groups for each in group["params"]))}
    found: dict[str, Tensor] = {}
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            for number, item in enumerate(list(items)[:MAX_ITEMS]):
                inner = item.named_parameters() if isinstance(item, nn.Module) else [("", item)]
                for inner_name, tensor in inner:
                    if (
                        isinstance(tensor, Tensor)
                        and tensor.is_leaf
                        and tensor.requires_grad
                        and id(tensor) not in known
                    ):
                        found[".".join(filter(None, (prefix, name, str(number), inner_name)))] = tensor
    return found


def place_of(error: BaseException) -> str:
    """Return file and line of the innermost frame of the user's code in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith((*PACKAGES, "<"))]
    return f"{shown_path(users[-1].filename)}:{users[-1].lineno}" if users else ""
