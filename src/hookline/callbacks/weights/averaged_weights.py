"""``AveragedWeights``: the common part of ``EMA`` and ``SWA``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookline.callbacks._ending import has_returned
from hookline.callbacks.weights._averaging import Averages
from hookline.callbacks.weights.applied import Applied
from hookline.errors import RegistrationError

if TYPE_CHECKING:
    from hookline.run import Run

logger = logging.getLogger("hookline")


class AveragedWeights:
    """An average of weights, with its updates, its use in a model and its state."""

    def __init__(self, owner: str, *, use_buffers: bool, dtype: torch.dtype | str | None) -> None:
        self._owner = owner
        self._use_buffers = use_buffers
        self._dtype = floating_dtype(owner, dtype)
        self._averages: Averages | None = None
        self._applied = Applied()
        self.updates = 0
        """Number of weights in the average."""
        self.statistics: dict[str, Tensor] = {}
        """Buffers that were computed for the average. They replace averaged buffers."""

    @property
    def exists(self) -> bool:
        """True after the first update."""
        return self._averages is not None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The averaged weights by name."""
        return {} if self._averages is None else {**self._averages.tensors, **self.statistics}

    def forget(self) -> None:
        """Reset the average."""
        self._averages, self.updates, self.statistics = None, 0, {}

    # -- training ------------------------------------------------------------------------------

    def begin(self, run: Run) -> None:
        """Reset the average at the start of a new run. Call it in ``on_setup``."""
        if run.clock.step == 0:
            self.forget()
            self._applied.forget()

    def get_ready(self, run: Run) -> None:
        """Restore the raw weights of the model. Call it in ``on_model_ready``."""
        if not self._applied.take_back(run.model, self.tensors):
            logger.info("%s begins anew: the weights were changed since the last fit", self._owner)
            self.forget()
        if self._averages is not None:
            self._averages.bind(run.model)

    def update(self, model: nn.Module, share: float) -> None:
        """Move the average by this fraction towards the weights. The first update copies them."""
        if self._averages is None:
            self._averages = Averages.of(model, use_buffers=self._use_buffers, dtype=self._dtype)
        else:
            if not self._averages.follows(model):
                self._averages.bind(model)
            self._averages.move(share)
        self.updates += 1
        if self.statistics:
            self.statistics = {}

    # -- evaluation and end of the fit -----------------------------------------------------------

    @contextmanager
    def swapped_in(self, run: Run) -> Iterator[None]:
        """Put the average into the model for a while, if it belongs to this model."""
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
        """Broadcast the averaged buffers of rank zero. All ranks must call this.

        Batch norm statistics differ between ranks, because each rank has its own shard of the data.
        """
        own = {name for name, _ in run.model.named_parameters(remove_duplicate=False)}
        buffers = [tensor for name, tensor in self.tensors.items() if name not in own]
        if buffers:
            run.broadcast(buffers)

    def constrain(self, run: Run) -> None:
        """Apply the constraints of other callbacks to the average, such as the zeros of ``Pruning``."""
        for callback in run.callbacks:
            hold = getattr(callback, "constrain_weights", None)
            if hold is not None and self._averages is not None:
                hold(self._averages.tensors)

    def note_end(self, run: Run) -> None:
        """Note the end of training. Call it in ``on_train_end``."""
        self._applied.note_end(run.model)
        if self._averages is None:
            logger.warning("%s has averaged nothing: the run ended before its first update", self._owner)

    def put_in(self, run: Run) -> None:
        """Load the average into the model that ``fit`` returns. Call it in ``on_teardown``."""
        averages = self._averages
        if averages is None or not averages.fits(run.model) or not has_returned(run):
            return
        if not self._applied.is_in(run.model):
            self.constrain(run)
            self._share_buffers(run)
            self._applied.put(run.model, self.tensors)

    # -- checkpoints -----------------------------------------------------------------------------

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
    """Return a floating-point dtype that was given by name or as a dtype."""
    if given is None:
        return None
    dtype = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise RegistrationError(f"{owner}(dtype={given!r}): give a floating-point dtype, such as 'float32', or None")
    return dtype
