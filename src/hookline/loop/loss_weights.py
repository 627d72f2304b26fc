"""The weight of a loss: how much the loss of one batch counts in a mean over several batches.

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

logger = logging.getLogger("hookline")

IGNORED = -100
"""The default ``ignore_index`` of torch, and that of the models of Hugging Face."""
FUNCTIONS: tuple[Any, ...] = (functional.cross_entropy, functional.nll_loss)
MAX_COMPARED_BATCHES = 3
REMEDY = "pass weight=lambda outputs, batch: <number>, or let the loss return (loss, weight)"


class LossWeights:
    """Weighs the loss of each batch in the way that fits the loss; the way is chosen once for a loss.

    A weight of ``None`` stands for the number of samples.
    """

    __slots__ = (
        "_compared",
        "_computed",
        "_given",
        "_ignores",
        "_is_checked",
        "_is_warned",
        "_shifts",
        "_weigh",
        "loss",
        "model",
    )

    def __init__(self, given: Callable[[Any, Any], Any] | None) -> None:
        if given is not None and (isclass(given) or not callable(given)):
            raise SetupError(
                f"weight={given!r}: not a function. Write weight=lambda outputs, batch: <number or tensor>, which "
                f"returns how much the loss of the batch counts, such as its number of tokens."
            )
        self._given = given
        self._computed: tuple[Any, Any, Any] | None = None  # outputs, batch and targets of the newest loss
        self.choose(None, None)

    def choose(self, loss: Any, model: Any) -> None:
        """Choose how the losses of ``loss`` are weighed; ``None`` stands for a model that computes its own loss."""
        self.loss, self.model = loss, model
        self._shifts: bool | None = None  # labels, by one token; see _shifts_by_its_loss
        self._compared = 0  # batches
        self.reset_ignored()
        self._is_checked = _is_of_torch(loss)
        if self._given is not None:
            self._weigh = self._by_function
        elif _option(loss, "reduction", "mean") == "sum":
            self._weigh = self._of_sum
        elif loss is None:
            self._weigh = self._by_labels
        elif _divides_by_class_weights(loss):
            self._weigh = self._by_targets
        else:
            self._weigh = self._by_samples

    def computed(self, outputs: Any, batch: Any, targets: Any) -> None:
        """Note that the task has computed its loss from these; the loop asks for the weight next."""
        self._computed = outputs, batch, targets

    def check(self, accumulate: int, ranks: int) -> None:
        """Refuse a loss that cannot be used with accumulation or several ranks."""
        if self._weigh == self._of_sum and (accumulate > 1 or ranks > 1):
            raise _refused_sum(self.loss, f"accumulate={accumulate}" if accumulate > 1 else f"{ranks} processes")

    @property
    def in_plain_step(self) -> Callable[..., Any] | None:
        """The way of weighing, for a step that calls the loss itself; ``None`` where samples are what counts."""
        return None if self._weigh in (self._by_samples, self._of_sum) else self._weigh

    @property
    def has_usual_targets(self) -> bool:
        """True if a step of one batch in one process weighs flat targets by the samples."""
        loss = self.loss
        return self._weigh == self._by_targets and _ignored(loss) == IGNORED and _class_weights(loss) is None

    def reset_ignored(self) -> None:
        """Let the next batch decide whether flat targets are counted on several ranks."""
        self._ignores: bool | None = None  # flat targets of the first batch contain -100
        self._is_warned = False  # of -100 in a later batch

    @property
    def ignores_targets(self) -> bool:
        """True if the first batch of flat targets on this rank contains -100."""
        return bool(self._ignores)

    def in_training(self, samples: int, *, needed: bool, several_ranks: bool = False) -> Any:
        """Return the weight of the loss that was computed last.

        ``needed``: for gradients, not only for the mean. ``several_ranks``: there are other ranks, and no rank has
        told them that its first batch contains -100.
        """
        computed, self._computed = self._computed, None
        return None if computed is None else self._weigh(*computed, samples, needed, several_ranks)

    def in_evaluation(self, loss: Any, samples: int) -> tuple[Any, Any]:
        """Return the loss of a batch of an evaluation and its weight."""
        computed, self._computed = self._computed, None
        if computed is None:
            return loss, None
        if self._weigh == self._of_sum:  # the number must not depend on the batch size
            return loss / max(samples, 1), samples
        return loss, self._weigh(*computed, samples, True, False)

    # -- the ways ------------------------------------------------------------------------------

    def _by_function(self, outputs: Any, batch: Any, targets: Any, samples: int, needed: bool, several: bool) -> Any:
        given: Any = self._given
        weight = given(outputs, batch)
        if isinstance(weight, Tensor) and weight.numel() == 1:
            return _number(weight.detach().reshape(()).clone())
        if isinstance(weight, Real) and float(weight) >= 0:
            return weight
        raise LossError(
            f"weight={getattr(given, '__name__', given)} returned {weight!r:.80}; return one number that is not "
            f"negative, or a tensor with one"
        )

    def _by_samples(self, outputs: Any, batch: Any, targets: Any, samples: int, needed: bool, several: bool) -> None:
        if needed and not self._is_checked:
            self._is_checked = True
            self._warn_if_doubtful(targets)

    def _of_sum(self, outputs: Any, batch: Any, targets: Any, samples: int, needed: bool, several: bool) -> None:
        if needed:
            raise _refused_sum(self.loss, "accumulation or several processes")

    def _by_targets(self, outputs: Any, batch: Any, targets: Any, samples: int, needed: bool, several: bool) -> Any:
        """A mean over the targets that are not ignored, each with the weight of its class."""
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            return None  # probabilities of classes: the sum is divided by the samples
        targets = targets.long()  # uint8 equals -100 at 156, and as an index it is a mask
        ignored, weights = _ignored(self.loss), _class_weights(self.loss)
        if weights is None:
            return self._kept(targets, ignored, samples, needed, several)
        kept = targets != ignored
        return _number(torch.where(kept, weights[torch.where(kept, targets, 0)], 0).sum())

    def _by_labels(self, outputs: Any, batch: Any, targets: Any, samples: int, needed: bool, several: bool) -> Any:
        """A model that is given labels and computes its own loss, as those of Hugging Face do."""
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        if not isinstance(labels, Tensor) or labels.is_floating_point() or not labels.ndim:
            return None
        if "shift_labels" in batch:
            return _number((batch["shift_labels"].long() != IGNORED).sum())
        labels = labels.long()
        if labels.ndim == 1:
            return self._kept(labels, IGNORED, samples, needed, several)
        kind = _loss_type(self.model)
        if "SemanticSegmentation" in kind:
            config = getattr(self.model, "config", None)
            return _number((labels != getattr(config, "semantic_loss_ignore_index", 255)).sum())
        if self._shifts is None and self._compared < MAX_COMPARED_BATCHES:
            self._compared += 1
            self._shifts = _shifts_by_its_loss(outputs, labels)
        shifts = _shifts_by_its_name(self.model, kind) if self._shifts is None else self._shifts
        if shifts is None:
            return self._by_samples(outputs, batch, labels, samples, needed, several)
        return _number(((labels[..., 1:] if shifts else labels) != IGNORED).sum())

    # ------------------------------------------------------------------------------------------

    def _kept(self, targets: Tensor, ignored: int, samples: int, needed: bool, several: bool) -> Any:
        """The number of targets that are not ignored. Flat targets that all count are as many as the samples."""
        if targets.ndim > 1 or ignored != IGNORED:
            return _number((targets != ignored).sum())
        if not needed:
            return None
        if several:  # the first batch decides: a weight that only this rank knows costs a vote in every step
            if self._ignores is None:
                self._ignores = bool((targets == ignored).any())
            if not self._ignores:
                self._warn_if_ignored_late(targets, ignored)
                return None
        found = _number((targets != ignored).sum())
        return None if isinstance(found, int) and found == samples else found

    def _warn_if_ignored_late(self, targets: Tensor, ignored: int) -> None:
        """Warn once. Only on the CPU: on an accelerator each look at the targets would wait for the device."""
        if targets.is_cpu and not self._is_warned and bool((targets == ignored).any()):
            self._is_warned = True
            logger.warning(
                "The targets of this batch contain %d, and those of the first batch did not: in several processes "
                "Hookline weighs such batches by their samples. To weigh them by the targets that count, pass "
                "weight=lambda outputs, batch: (batch[1] != %d).sum()",
                ignored,
                ignored,
            )

    def _warn_if_doubtful(self, targets: Any) -> None:
        """Warn where the mean that the loss takes is probably not one over samples."""
        ignored = getattr(self.loss, "ignore_index", IGNORED)
        counts = isinstance(targets, Tensor) and not targets.is_floating_point() and isinstance(ignored, int)
        if counts and bool((targets == ignored).any()):
            why = f"the targets contain {ignored}, and it may leave these out"
        elif isinstance(self.loss, nn.Module) and any(map(_divides_by_class_weights, self.loss.modules())):
            why = "it contains a loss with class weights or an ignore_index"
        else:
            return
        of = self.model if self.loss is None else self.loss
        logger.warning(
            "Hookline weighs the batches of a step or an evaluation by their samples, but the loss of %s may not be "
            "a mean over samples: %s. If so, %s.",
            getattr(of, "__name__", type(of).__name__),
            why,
            REMEDY,
        )


def _option(loss: Any, name: str, default: Any) -> Any:
    """An argument of a loss: the attribute of a module, the keyword of a ``partial``, or torch's default."""
    if isinstance(loss, partial):
        return loss.keywords.get(name, default)
    return getattr(loss, name, default)


def _ignored(loss: Any) -> int:
    found: int = _option(loss, "ignore_index", IGNORED)
    return found


def _class_weights(loss: Any) -> Tensor | None:
    found: Tensor | None = _option(loss, "weight", None)
    return found


def _is_of_torch(loss: Any) -> bool:
    """Whether torch computes it, so that it is known what its mean is over."""
    function = type(loss).forward if isinstance(loss, nn.Module) else getattr(loss, "func", loss)
    return str(getattr(function, "__module__", "")).startswith("torch.nn.")


def _divides_by_class_weights(loss: Any) -> bool:
    """Whether it is torch's cross entropy or negative log likelihood, as a module or a function."""
    if isinstance(loss, nn.Module):
        return _is_of_torch(loss) and hasattr(loss, "ignore_index")
    function = loss.func if isinstance(loss, partial) and not loss.args else loss
    return any(function is its for its in FUNCTIONS)


def _refused_sum(loss: Any, what: str) -> SetupError:
    name = getattr(getattr(loss, "func", loss), "__name__", type(loss).__name__)
    return SetupError(
        f"loss={name}(reduction='sum') with {what}: a sum depends on how a step is split into batches. "
        f"Write reduction='mean', or {REMEDY}."
    )


def _number(weight: Tensor) -> Any:
    """Read it where nothing has to be waited for, as on the CPU."""
    return weight.tolist() if weight.is_cpu and type(weight) is Tensor else weight


def _loss_type(model: Any) -> str:
    """What transformers calls the loss of a model, such as ``ForCausalLM``."""
    found = getattr(model, "loss_type", None)
    return found if isinstance(found, str) else type(model).__name__


def _shifts_by_its_name(model: Any, kind: str) -> bool | None:
    """Whether a model compares the logits of a token with the label of the next one, as far as names tell."""
    if kind.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")):
        return not getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return False if kind.endswith(("ForMaskedLM", "ForTokenClassification")) else None


@torch.no_grad()
def _shifts_by_its_loss(outputs: Any, labels: Tensor) -> bool | None:
    """Whether a model compares the logits of a token with the label of the next one: which of the two gives its loss.

    ``None`` if neither does, or both.
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
    for scores, its in zip(logits, labels, strict=True):  # one sample at a time: all of them may not fit in memory
        scores = scores if scores.dtype == torch.float64 else scores.float()
        sums[0] += functional.cross_entropy(scores, its, reduction="sum").cpu()
        sums[1] += functional.cross_entropy(scores[:-1], its[1:], reduction="sum").cpu()
    counts = torch.stack([(labels != IGNORED).sum(), (labels[:, 1:] != IGNORED).sum()]).cpu()
    aligned, shifted = (sums / counts - float(loss)).abs().tolist()
    near, far, close = min(aligned, shifted), max(aligned, shifted), 1e-4 * abs(float(loss))
    return shifted < aligned if near < close and far > 10 * near + 1e-3 * close else None
