"""``AveragedWeights``: what ``EMA`` and ``SWA`` have in common, from the first update to the end of a fit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookline.callbacks.ending import has_returned
from hookline.callbacks.weights.applied import Applied
from hookline.callbacks.weights.averages import Averages
from hookline.errors import RegistrationError

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class AveragedWeights:
    """An average that is made, swapped in for evaluations, put into the model at the end, saved and loaded."""

    def __init__(self, owner: str, *, use_buffers: bool, dtype: torch.dtype | str | None) -> None:
        self._owner = owner
        self._use_buffers = use_buffers
        self._dtype = floating_dtype(owner, dtype)
        self._averages: Averages | None = None
        self._applied = Applied()
        self.updates = 0
        """How many models it is the average of."""
        self.statistics: dict[str, Tensor] = {}
        """Buffers that were computed for the average, in place of averaged ones."""

    @property
    def exists(self) -> bool:
        return self._averages is not None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The averaged weights by name."""
        return {} if self._averages is None else {**self._averages.tensors, **self.statistics}

    def forget(self) -> None:
        self._averages, self.updates, self.statistics = None, 0, {}

    # -- in training ---------------------------------------------------------------------------

    def begin(self, run: Run) -> None:
        """In ``on_setup`` of a fit: nothing of another run counts."""
        if run.clock.step == 0:
            self.forget()
            self._applied.forget()

    def get_ready(self, run: Run) -> None:
        """In ``on_model_ready``: the raw weights are in the model, and the average follows them."""
        if not self._applied.take_back(run.model, self.tensors):
            logger.info("%s begins anew: the weights were changed since the last fit", self._owner)
            self.forget()
        if self._averages is not None:
            self._averages.bind(run.model)

    def update(self, model: nn.Module, share: float) -> None:
        """Go this share of the way to the weights; the first time, all of it."""
        if self._averages is None:
            self._averages = Averages.of(model, use_buffers=self._use_buffers, dtype=self._dtype)
        else:
            if not self._averages.follows(model):
                self._averages.bind(model)
            self._averages.move(share)
        self.updates += 1
        if self.statistics:
            self.statistics = {}

    # -- in evaluations and at the end -----------------------------------------------------------

    @contextmanager
    def swapped_in(self, run: Run) -> Iterator[None]:
        """The averaged weights in the model, if there are any for this model and they are not in it already."""
        averages, model = self._averages, run.model
        is_settled = self._applied.is_in(model) or self._applied.was_replaced(model)
        if averages is None or not averages.fits(model) or is_settled:
            yield
            return
        self.constrain(run)
        self._share_buffers(run)
        with run.swap_weights(self.tensors):
            yield

    def _share_buffers(self, run: Run) -> None:
        """By all ranks: statistics of a batch norm are of each rank's own data; rank zero's are the average's, too."""
        own = {name for name, _ in run.model.named_parameters(remove_duplicate=False)}
        buffers = [tensor for name, tensor in self.tensors.items() if name not in own]
        if buffers:
            run.broadcast(buffers)

    def constrain(self, run: Run) -> None:
        """What other callbacks hold the weights to, such as the zeros of ``Pruning``, holds for the average, too."""
        for callback in run.callbacks:
            hold = getattr(callback, "constrain_weights", None)
            if hold is not None and self._averages is not None:
                hold(self._averages.tensors)

    def note_end(self, run: Run) -> None:
        """In ``on_train_end``."""
        self._applied.note_end(run.model)
        if self._averages is None:
            logger.warning("%s has averaged nothing: the run ended before its first update", self._owner)

    def put_in(self, run: Run) -> None:
        """In ``on_teardown``: the model that ``fit`` gives back has the averaged weights."""
        averages = self._averages
        if averages is None or not averages.fits(run.model) or not has_returned(run):
            return
        if not self._applied.is_in(run.model):
            self.constrain(run)
            self._share_buffers(run)
            self._applied.put(run.model, self.tensors)

    # -- in checkpoints --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        averages = None if self._averages is None else dict(self._averages.tensors)
        return {"averages": averages, "statistics": dict(self.statistics), "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if lacking := [key for key in ("averages", "statistics", "updates") if key not in state]:
            raise RegistrationError(f"{self._owner}: the saved state lacks {', '.join(lacking)}")
        self.updates, self.statistics = state["updates"], dict(state["statistics"])
        self._applied.forget()
        saved = state["averages"]
        if saved is None:
            self._averages = None
        elif self._averages is None or not self._averages.take(saved):
            own = {name: tensor.detach().clone() for name, tensor in saved.items()}
            self._averages = Averages(own, self._dtype)


def floating_dtype(owner: str, given: torch.dtype | str | None) -> torch.dtype | None:
    """A dtype for averages, by name or as it is."""
    if given is None:
        return None
    dtype = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise RegistrationError(f"{owner}(dtype={given!r}): give a floating-point dtype, such as 'float32', or None")
    return dtype
