"""Averages of the weights of a model, and their use in the model."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookline.callbacks._ending import has_returned
from hookline.distributed.dtensors import is_spread, part_of, spread_like
from hookline.errors import ArgumentError, CheckpointMismatchError, RegistrationError
from hookline.events import Callback
from hookline.progress import Duration, Schedule

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")

HALVES = (torch.float16, torch.bfloat16)


class Averages:
    """One averaged tensor per weight, by name. ``bind`` sets the model to average.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> averages = Averages.of(model)
        >>> with torch.no_grad():
        ...     _ = model.weight.add_(1.0)
        >>> before = averages.tensors["weight"].clone()
        >>> averages.move(0.25)
        >>> torch.allclose(averages.tensors["weight"] - before, torch.tensor(0.25))
        True
    """

    def __init__(self, tensors: dict[str, Tensor], dtype: torch.dtype | None = None) -> None:
        self.tensors = tensors
        self._dtype = dtype
        self._model: weakref.ref[nn.Module] | None = None
        self._bound: dict[str, Tensor] = {}
        """Weights that are averaged."""
        self._alike: list[tuple[list[Tensor], list[Tensor]]] = []
        """Averages and weights of the same dtype, grouped by device and dtype."""
        self._unlike: list[tuple[list[Tensor], list[Tensor]]] = []
        """Averages and weights of different dtypes, grouped in the same way."""

    @classmethod
    def of(cls, model: nn.Module, *, use_buffers: bool = False, dtype: torch.dtype | None = None) -> Averages:
        """Start with the current weights of a model."""
        found = dict(_averaged(model, use_buffers=use_buffers))
        averages = cls(
            {name: tensor.detach().to(_kept_in(tensor, dtype), copy=True) for name, tensor in found.items()}, dtype
        )
        averages.bind(model)
        return averages

    def follows(self, model: nn.Module) -> bool:
        """True if these are averages of this model."""
        return self._model is not None and self._model() is model

    def fits(self, model: nn.Module) -> bool:
        """True if these are averages of this model and no parameter was replaced (quantization)."""
        own = dict(model.named_parameters(remove_duplicate=False))
        return self.follows(model) and all(
            own.get(name) is bound for name, bound in self._bound.items() if isinstance(bound, nn.Parameter)
        )

    def bind(self, model: nn.Module) -> None:
        """Average the weights with the same names in this model from now on."""
        own = named_tensors(model)
        if lost := [name for name in self.tensors if name not in own]:
            raise CheckpointMismatchError(
                f"there is an average of {', '.join(lost[:5])}, which the model does not have; "
                f"continue with the model that it was made of"
            )
        groups: dict[tuple[Any, ...], tuple[list[Tensor], list[Tensor]]] = {}
        for name, average in self.tensors.items():
            weight = own[name]
            if average.shape != weight.shape:
                raise CheckpointMismatchError(
                    f"the average of {name} has the shape {tuple(average.shape)}, the model's {tuple(weight.shape)}"
                )
            average = average.to(weight.device, _kept_in(weight, self._dtype))
            average = self.tensors[name] = spread_like(average, weight)
            kind = (average.device, is_spread(weight), average.dtype, weight.dtype)
            kept, live = groups.setdefault(kind, ([], []))
            kept.append(average)
            live.append(weight)
        self._alike = [group for (*_, kept, live), group in groups.items() if kept == live]
        self._unlike = [group for (*_, kept, live), group in groups.items() if kept != live]
        self._bound = {name: own[name] for name in self.tensors}
        self._model = weakref.ref(model)

    @torch.no_grad()
    def move(self, share: float) -> None:
        """Move each average by this fraction towards its weight."""
        for kept, live in map(_held, self._alike):
            torch._foreach_lerp_(kept, live, share)
        for kept, live in map(_held, self._unlike):
            torch._foreach_lerp_(kept, [tensor.to(kept[0].dtype) for tensor in live], share)

    def take(self, tensors: Mapping[str, Tensor]) -> bool:
        """Copy saved values into the averages. Return False if they do not fit."""
        if tensors.keys() != self.tensors.keys():
            return False
        if any(
            tensors[name].shape != own.shape or tensors[name].dtype != own.dtype for name, own in self.tensors.items()
        ):
            return False
        for name, own in self.tensors.items():
            own.copy_(spread_like(tensors[name], own))
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which has no model until ``bind``."""
        return {
            "tensors": self.tensors,
            "_dtype": self._dtype,
            "_model": None,
            "_bound": {},
            "_alike": [],
            "_unlike": [],
        }


def _held(group: tuple[list[Tensor], list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the local shards of sharded tensors. Read them each time: FSDP may move them."""
    kept, live = group
    return ([*map(part_of, kept)], [*map(part_of, live)]) if is_spread(kept[0]) else group


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model by name."""
    found: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    found.update(model.named_buffers(remove_duplicate=False))
    return found


def _averaged(model: nn.Module, *, use_buffers: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that can be averaged, with their names.

    These are floating-point or complex parameters, and finite floating-point buffers that are saved. The average of a
    ``-inf`` mask with itself would be NaN.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() or parameter.is_complex():
            yield name, parameter
    if not use_buffers:
        return
    saved = {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in model.named_modules()
        for name in part._buffers
        if name not in part._non_persistent_buffers_set
    }
    for name, buffer in model.named_buffers():
        if name in saved and buffer.is_floating_point() and bool(torch.isfinite(buffer).all()):
            yield name, buffer


def _kept_in(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype of an average: float32 for half precision, too coarse for small updates."""
    if tensor.is_complex():
        return tensor.dtype
    return (torch.float32 if tensor.dtype in HALVES else tensor.dtype) if dtype is None else dtype


class AveragingCallback(Callback):
    """Base class of ``EMA`` and ``SWA``: an average of the weights, its use in the model, and its state.

    A subclass calls ``update``.

    Args:
        every: How often to update the average.
        use_buffers: Also average the buffers.
        dtype: Floating-point dtype of the average.
        evaluate: Evaluate and predict with the average.
        apply_at_end: Load the average into the model when ``fit`` returns.
    """

    writes: tuple[str, ...] = ("weights",)
    role = "average"
    state_depends_on = ("use_buffers",)

    def __init__(
        self,
        every: str | Duration,
        *,
        use_buffers: bool,
        dtype: torch.dtype | str | None,
        evaluate: bool,
        apply_at_end: bool,
    ) -> None:
        who = type(self).__name__
        self.every = Duration.parse(every, f"{who}(every=…)")
        self.use_buffers = use_buffers
        self.evaluate = evaluate
        self.apply_at_end = apply_at_end
        self._dtype = floating_dtype(who, dtype)
        self._schedule = Schedule(Duration(1, "st"))
        self._applied = Applied()
        self._averages: Averages | None = None
        self.updates = 0
        """Number of updates of the average."""
        self.statistics: dict[str, Tensor] = {}
        """Buffers that were computed for the average. They replace averaged buffers."""

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Averaged weights and buffers by name. Empty before the first update."""
        return {} if self._averages is None else {**self._averages.tensors, **self.statistics}

    # -- training ------------------------------------------------------------------------------

    def on_setup(self, run: Run) -> None:
        if not run.is_training_run:
            return
        self._schedule = Schedule(self.every.of(run.max_duration))

    def on_model_ready(self, run: Run) -> None:
        if not run.is_training_run:
            return
        if not self._applied.restore(run.model, self.weights):
            logger.info("%s starts again: the weights were changed since the last fit", type(self).__name__)
            self._averages, self.updates, self.statistics = None, 0, {}
        if self._averages is not None:
            self._averages.bind(run.model)
        self._schedule.fired(run.clock)

    def on_rollback(self, run: Run) -> None:
        self._schedule.fired(run.clock)

    def update(self, model: nn.Module, share: float) -> None:
        """Move the average by this fraction towards the weights. The first update copies them."""
        if self._averages is None:
            self._averages = Averages.of(model, use_buffers=self.use_buffers, dtype=self._dtype)
        else:
            if not self._averages.follows(model):
                self._averages.bind(model)
            self._averages.move(share)
        self.updates += 1
        if self.statistics:
            self.statistics = {}

    # -- evaluation and end of the fit -----------------------------------------------------------

    def around_eval(self, run: Run) -> Iterator[None]:
        averages, model = self._averages, run.model
        is_settled = self._applied.is_in(model) or self._applied.was_replaced(model)
        if not self.evaluate or averages is None or not averages.fits(model) or is_settled:
            yield
            return
        self._constrain(run)
        self._share_buffers(run)
        with run.swap_weights(self.weights):
            yield

    def around_predict(self, run: Run) -> Iterator[None]:
        yield from AveragingCallback.around_eval(self, run)

    def on_train_end(self, run: Run) -> None:
        self._applied.note_end(run.model)
        if self._averages is None:
            who = type(self).__name__
            logger.warning("%s has averaged nothing: the run ended before its first update", who)

    def on_teardown(self, run: Run) -> None:
        averages = self._averages
        if not self.apply_at_end or averages is None or not averages.fits(run.model) or not has_returned(run):
            return
        if not self._applied.is_in(run.model):
            self._constrain(run)
            self._share_buffers(run)
            self._applied.load(run.model, self.weights)

    def _share_buffers(self, run: Run) -> None:
        """Broadcast the averaged buffers of rank zero. All ranks must call this.

        Batch norm statistics differ between ranks, because each rank has its own shard of the data.
        """
        own = {name for name, _ in run.model.named_parameters(remove_duplicate=False)}
        buffers = [tensor for name, tensor in self.weights.items() if name not in own]
        if buffers:
            run.broadcast(buffers)

    def _constrain(self, run: Run) -> None:
        """Apply the constraints of other callbacks to the average, such as the zeros of ``Pruning``."""
        for callback in run.callbacks:
            hold = getattr(callback, "constrain_weights", None)
            if hold is not None and self._averages is not None:
                hold(self._averages.tensors)

    # -- checkpoints -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        averages = None if self._averages is None else dict(self._averages.tensors)
        return {"averages": averages, "statistics": dict(self.statistics), "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if lacking := [key for key in ("averages", "statistics", "updates") if key not in state]:
            raise RegistrationError(f"{type(self).__name__}: the saved state lacks {', '.join(lacking)}")
        self.updates, self.statistics = state["updates"], dict(state["statistics"])
        self._applied.drop()
        saved = state["averages"]
        if saved is None:
            self._averages = None
        elif self._averages is None or not self._averages.take(saved):
            own = {name: tensor.detach().clone() for name, tensor in saved.items()}
            self._averages = Averages(own, self._dtype)


def floating_dtype(owner: str, given: torch.dtype | str | None) -> torch.dtype | None:
    """Return a floating-point dtype that was given by name or as a dtype."""
    if given is None:
        return None
    dtype = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ArgumentError(f"{owner}(dtype={given!r}): must be a floating-point dtype, such as 'float32', or None.")
    return dtype


class Applied:
    """Weights that replace the raw weights of a model between two fits."""

    def __init__(self) -> None:
        self._model: weakref.ref[nn.Module] | None = None
        self._raw: dict[str, Tensor] = {}
        self._noted: list[tuple[int, int]] | None = None

    def note_end(self, model: nn.Module) -> None:
        """Note the end of training. A later change of the weights is intended, and is kept."""
        self._noted = _versions(model)

    def is_in(self, model: nn.Module) -> bool:
        """True if the model has the other weights now."""
        return self._model is not None and self._model() is model

    def was_replaced(self, model: nn.Module) -> bool:
        """True if the weights of the model were changed after training."""
        return self._noted is not None and self._noted != _versions(model)

    @torch.no_grad()
    def load(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights into the model, unless it was changed after training (``restore_best``)."""
        if self.was_replaced(model):
            return
        self._noted = None
        own = named_tensors(model)
        self._model = weakref.ref(model)
        self._raw = {name: own[name].detach().clone() for name in weights}
        for name, tensor in weights.items():
            own[name].copy_(tensor)

    @torch.no_grad()
    def restore(self, model: nn.Module, weights: Mapping[str, Tensor]) -> bool:
        """Restore the raw weights for training. Return False if the user has changed the weights."""
        self._noted = None
        if not self.is_in(model):
            return True
        own, raw = named_tensors(model), self._raw
        self.drop()
        if not all(name in own and torch.equal(own[name], weights[name].to(own[name])) for name in raw):
            return False
        for name, tensor in raw.items():
            own[name].copy_(tensor)
        return True

    def drop(self) -> None:
        """Drop the raw weights, and the note about the end of training."""
        self._model, self._raw, self._noted = None, {}, None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which does not belong to a model."""
        return {"_model": None, "_raw": {}, "_noted": None}


def _versions(model: nn.Module) -> list[tuple[int, int]]:
    """Return a fingerprint of the parameters that changes with every write."""
    return [(parameter.data_ptr(), parameter._version) for parameter in model.parameters()]
