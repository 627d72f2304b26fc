"""The weight of a loss: how much one batch counts in a mean over several batches.

Accumulation, several ranks and evaluation take such a mean. It equals the loss of one full batch if the weight of each
batch is the number that the loss has divided its sum by: samples, targets that are not ignored, class weights, tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from inspect import isclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hookline.errors import LossError, SetupError
from hookline.loop.tasks.loss_halves import Halves, compare_halves

logger = logging.getLogger("hookline")

IGNORED = -100
"""The default ``ignore_index`` of torch, and that of the models of Hugging Face."""
FUNCTIONS: tuple[Any, ...] = (functional.cross_entropy, functional.nll_loss)
MAX_COMPARED_BATCHES = 3
ALWAYS_CHECKED_BATCHES = 8
REMEDY = "pass weight=lambda outputs, batch: <the number that the loss divides by>, or return (loss, weight) from it"
REMEDY_FOR_SUM = "Write reduction='mean', or return (loss_sum / n, n) from a loss function"


class LossWeights:
    """Weigh the loss of each batch. How it is weighed is chosen once for a loss.

    A weight of ``None`` stands for the number of samples.

    Args:
        given: The function that the user has passed as ``weight=``.
    """

    __slots__ = ("_computed", "_given", "_way", "has_usual_targets", "in_plain_step", "loss")

    def __init__(self, given: Callable[[Any, Any], Any] | None) -> None:
        if given is not None and (isclass(given) or not callable(given)):
            raise SetupError(
                f"weight={given!r}: not a function. Write weight=lambda outputs, batch: <number or tensor>, which "
                f"returns how much the loss of the batch counts, such as its number of tokens."
            )
        self._given = given
        self._computed: tuple[Any, Any, Any] | None = None  # outputs, batch and targets of the last loss
        self.choose(None, None)

    @property
    def is_given(self) -> bool:
        """True if the user has passed ``weight=``."""
        return self._given is not None

    def choose(self, loss: Any, model: Any) -> None:
        """Choose how a loss is weighed.

        Args:
            loss: The loss module or function. ``None``: the model computes its own loss.
            model: The model.
        """
        self.loss = loss
        self._way = way = _way_of(loss, model, self._given)
        self.in_plain_step = None if type(way) in (BySamples, Sums) else way.weigh
        """The function that weighs, for a step that calls the loss itself. ``None`` if samples are the weight."""
        self.has_usual_targets = type(way) is ByTargets and way.is_usual
        """True if a step of one batch in one process weighs one-dimensional targets by the number of samples."""

    def computed(self, outputs: Any, batch: Any, targets: Any) -> None:
        """Note the values from which the task has computed its loss.

        The loop asks for the weight next.
        """
        self._computed = outputs, batch, targets

    def parts(self) -> list[object]:
        """Return the objects that remember what was computed."""
        return [self, self._way]

    def check(self, accumulate: int, ranks: int) -> None:
        """Raise an error if a loss cannot be used with accumulation or several ranks."""
        if type(self._way) is Sums and (accumulate > 1 or ranks > 1):
            raise _refused_sum(self.loss, f"accumulate={accumulate}" if accumulate > 1 else f"{ranks} processes")

    def of_pair(self, outputs: Any, batch: Any) -> Any:
        """Return the weight of the loss of a pair, in a step of one batch in one process. ``None``: the samples.

        With one class per sample, ignored targets count as samples: to count them would take 4 µs.
        """
        weigh, targets = self.in_plain_step, batch[1]
        return (
            None if weigh is None or (self.has_usual_targets and targets.ndim == 1) else weigh(outputs, batch, targets)
        )

    def in_training(self, *, needed: bool) -> Any:
        """Return the weight of the last loss in training.

        Args:
            needed: True if gradients depend on the weight, and not only the mean in the metrics.
        """
        computed, self._computed = self._computed, None
        if computed is None or (not needed and self.has_usual_targets and getattr(computed[2], "ndim", 0) == 1):
            return None
        weight = self._way.weigh(*computed)
        if needed and weight is None:
            self._way.check_samples(*computed)
        return weight

    def in_evaluation(self, loss: Any, samples: int) -> tuple[Any, Any]:
        """Return the loss of a batch in an evaluation, and its weight."""
        if self._computed is not None and type(self._way) is Sums:
            self._computed = None
            return loss / max(samples, 1), samples  # The metric must not depend on the batch size.
        return loss, self.in_training(needed=True)


class Way:
    """A way to weigh the loss of a batch."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def weigh(self, outputs: Any, batch: Any, targets: Any) -> Any:
        """Return the weight of a batch. ``None`` stands for the number of samples."""

    def check_samples(self, outputs: Any, batch: Any, targets: Any) -> None:
        """Warn or raise an error if the number of samples is not the right weight of this batch."""


class Given(Way):
    """The function that the user has passed as ``weight=``."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def weigh(self, outputs: Any, batch: Any, targets: Any) -> Any:
        weight = self.given(outputs, batch)
        if isinstance(weight, Tensor) and weight.numel() == 1:
            return _number(weight.detach().reshape(()).clone())
        if isinstance(weight, Real) and float(weight) >= 0:
            return weight
        raise LossError(
            f"weight={getattr(self.given, '__name__', self.given)} returned {weight!r:.80}; return one number that is "
            f"not negative, or a tensor with one"
        )


class Sums(Way):
    """A loss with ``reduction="sum"``. No weight makes a mean of such losses correct."""

    def check_samples(self, outputs: Any, batch: Any, targets: Any) -> None:
        raise _refused_sum(self.loss, "accumulation or several processes")


class ByTargets(Way):
    """A mean over the targets that are not ignored, each with the weight of its class."""

    def __init__(self, loss: Any) -> None:
        super().__init__(loss)
        self.is_usual = _ignored(loss) == IGNORED and _class_weights(loss) is None
        """True if all classes count the same, and -100 is ignored."""

    def weigh(self, outputs: Any, batch: Any, targets: Any) -> Any:
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            return None  # With class probabilities as targets, torch divides by the number of samples.
        if self.is_usual and targets.is_cpu and targets.numel() and targets.min().item() >= 0:
            return targets.numel()  # None is ignored. To look for the smallest is faster than to count.
        ignored, weights = _ignored(self.loss), _class_weights(self.loss)
        targets = targets.long()  # In uint8, 156 equals -100, and as an index the tensor would be a mask.
        kept = targets != ignored
        if weights is None:
            return _number(kept.sum())
        return _number(torch.where(kept, weights[torch.where(kept, targets, 0)], 0).sum())


class BySamples(Way):
    """A loss that is assumed to be a mean over samples.

    Hookline checks the assumption on some batches, unless the loss is one of torch.
    """

    def __init__(self, loss: Any, model: Any) -> None:
        super().__init__(loss)
        self.model = model
        self._is_warned = False
        self._batches = 0

    def check_samples(self, outputs: Any, batch: Any, targets: Any) -> None:
        self._batches += 1
        if is_of_torch(self.loss) or (self._batches > ALWAYS_CHECKED_BATCHES and self._batches.bit_count() > 1):
            return  # After the first batches, it checks batch 16, 32, 64, …
        # A loss with a collective inside must be called equally often on all ranks, so it runs after a warning as well.
        halves = None if self.loss is None else compare_halves(self.loss, outputs, targets)
        if self._is_warned or not (found := self._doubt(targets) if halves is None else _difference(halves)):
            return
        self._is_warned = True
        of = self.model if self.loss is None else self.loss
        logger.warning(
            "Hookline weighs the batches of a step or an evaluation by their samples, but the loss of %s %s",
            name_of_loss(of),
            found,
        )

    def _doubt(self, targets: Any) -> str:
        """Return why the loss may not be a mean over samples, if its halves cannot be compared."""
        ignored = getattr(self.loss, "ignore_index", IGNORED)
        counts = isinstance(targets, Tensor) and not targets.is_floating_point() and isinstance(ignored, int)
        if counts and bool((targets == ignored).any()):
            why = f"the targets contain {ignored}, and it may leave these out"
        elif isinstance(self.loss, nn.Module) and any(map(_divides_by_class_weights, self.loss.modules())):
            why = "it contains a loss with class weights or an ignore_index"
        else:
            return ""
        return f"may not be a mean over samples: {why}. If so, {REMEDY}."


class ByLabels(BySamples):
    """A model that gets labels and computes its own loss, as models of Hugging Face do."""

    def __init__(self, model: Any) -> None:
        super().__init__(None, model)
        self._shifts: bool | None = None  # labels, by one token; see _shifts_by_its_loss
        self._compared = 0  # batches

    def weigh(self, outputs: Any, batch: Any, targets: Any) -> Any:
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        if not isinstance(labels, Tensor) or labels.is_floating_point() or not labels.ndim:
            return None
        if "shift_labels" in batch:
            return _number((batch["shift_labels"].long() != IGNORED).sum())
        labels = labels.long()
        if labels.ndim == 1:
            return _number((labels != IGNORED).sum())
        kind = _loss_type(self.model)
        if "SemanticSegmentation" in kind:
            config = getattr(self.model, "config", None)
            return _number((labels != getattr(config, "semantic_loss_ignore_index", 255)).sum())
        if self._shifts is None and self._compared < MAX_COMPARED_BATCHES:
            self._compared += 1
            self._shifts = _shifts_by_its_loss(outputs, labels)
        shifts = _shifts_by_its_name(self.model, kind) if self._shifts is None else self._shifts
        return None if shifts is None else _number(((labels[..., 1:] if shifts else labels) != IGNORED).sum())


def _way_of(loss: Any, model: Any, given: Any) -> Way:
    if _option(loss, "reduction", "mean") == "sum":
        if given is not None:
            raise _refused_sum(loss, "weight=")
        return Sums(loss)
    if given is not None:
        return Given(given)
    if loss is None:
        return ByLabels(model)
    return ByTargets(loss) if _divides_by_class_weights(loss) else BySamples(loss, model)


def _difference(halves: Halves) -> str:
    """Return how the loss of a batch differs from those of its halves. Empty if it does not."""
    if halves.is_mean:
        return ""
    if halves.is_sum:
        return f"is a sum over samples: the loss of a batch is that of its halves added up. {REMEDY_FOR_SUM}."
    return (
        f"is not a mean over samples: the loss of a batch is {halves.whole:.6g}, and the mean over its halves is "
        f"{halves.mean:.6g}. To make a step and an evaluation equal one full batch, {REMEDY}. If no such number "
        f"exists, as in a contrastive loss, weight=lambda outputs, batch: len(outputs) turns this warning off."
    )


def _option(loss: Any, name: str, default: Any) -> Any:
    """Return an argument of a loss: an attribute of a module or a keyword of a ``partial``."""
    if isinstance(loss, partial):
        return loss.keywords.get(name, default)
    return getattr(loss, name, default)


def _ignored(loss: Any) -> int:
    found: int = _option(loss, "ignore_index", IGNORED)
    return found


def _class_weights(loss: Any) -> Tensor | None:
    found: Tensor | None = _option(loss, "weight", None)
    return found


def is_of_torch(loss: Any) -> bool:
    """True if torch computes the loss, so that Hookline knows what its mean is over."""
    function = type(loss).forward if isinstance(loss, nn.Module) else getattr(loss, "func", loss)
    return str(getattr(function, "__module__", "")).startswith("torch.nn.")


def _divides_by_class_weights(loss: Any) -> bool:
    """True for torch's cross entropy and negative log likelihood, as a module or a function."""
    if isinstance(loss, nn.Module):
        return is_of_torch(loss) and hasattr(loss, "ignore_index")
    function = loss.func if isinstance(loss, partial) and not loss.args else loss
    return any(function is its for its in FUNCTIONS)


def _refused_sum(loss: Any, what: str) -> SetupError:
    return SetupError(
        f"loss={name_of_loss(loss)}(reduction='sum') with {what}: a weighted mean of sums is not the sum of the full "
        f"batch. {REMEDY_FOR_SUM}."
    )


def name_of_loss(loss: Any) -> str:
    """Return the name of a function, or of a module's class."""
    found: str = getattr(getattr(loss, "func", loss), "__name__", type(loss).__name__)
    return found


def _number(weight: Tensor) -> Any:
    """Return the weight as a number if that does not wait for a device, else as a tensor."""
    return weight.tolist() if weight.is_cpu and type(weight) is Tensor else weight


def _loss_type(model: Any) -> str:
    """Return the name of a model's loss in transformers, such as ``ForCausalLM``."""
    found = getattr(model, "loss_type", None)
    return found if isinstance(found, str) else type(model).__name__


def _shifts_by_its_name(model: Any, kind: str) -> bool | None:
    """True if a model compares the logits of a token with the next label, by its name.

    ``None`` if the name does not show it.
    """
    if kind.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")):
        return not getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return False if kind.endswith(("ForMaskedLM", "ForTokenClassification")) else None


@torch.no_grad()
def _shifts_by_its_loss(outputs: Any, labels: Tensor) -> bool | None:
    """True if a model compares the logits of a token with the next label, by its loss.

    ``None`` if both ways of comparing, or neither, give the loss of the model.
    """
    read = outputs.get if isinstance(outputs, Mapping) else partial(getattr, outputs)
    logits, loss = read("logits", None), read("loss", None)
    if type(logits) is not Tensor or logits.shape[:-1] != labels.shape or labels.ndim != 2 or len(labels[0]) < 2:
        return None
    labels = labels.long()
    classes = torch.where(labels == IGNORED, 0, labels)
    if bool((classes < 0).any()) or bool((classes >= logits.shape[-1]).any()):
        return None
    sums = torch.zeros(2, dtype=torch.float64)
    for scores, its in zip(logits, labels, strict=True):  # All samples at once may not fit in memory.
        scores = scores if scores.dtype == torch.float64 else scores.float()
        sums[0] += functional.cross_entropy(scores, its, reduction="sum").cpu()
        sums[1] += functional.cross_entropy(scores[:-1], its[1:], reduction="sum").cpu()
    counts = torch.stack([(labels != IGNORED).sum(), (labels[:, 1:] != IGNORED).sum()]).cpu()
    aligned, shifted = (sums / counts - float(loss)).abs().tolist()
    near, far, close = min(aligned, shifted), max(aligned, shifted), 1e-4 * abs(float(loss))
    return shifted < aligned if near < close and far > 10 * near + 1e-3 * close else None
