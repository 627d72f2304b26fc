"""Checks of the parameters, their gradients, and the updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import SGD

from hookline.loop.model.optimizers import misplaced_parameters, needs_closure
from hookline.loop.preflight.evidence import Evidence, TrialFacts
from hookline.loop.preflight.watch import CLASS_LOSSES
from hookline.records.finding import Finding, Level

MAX_CHANGE: Final = 3.0
"""Largest change of the weights in two updates, relative to their size, that is not suspicious."""
MAX_LOSS_GROWTH: Final = 10.0
MIN_RATE: Final = 1e-7
MIN_CHANGE: Final = 1e-6
MAX_DECAY: Final = 0.1


def check_optimizers(evidence: Evidence) -> Iterator[Finding]:
    """Find trainable parameters that no optimizer holds, and frozen ones that one holds."""
    state, title = evidence.state, evidence.title
    for problem in misplaced_parameters(state, title):
        yield Finding("warning", "not-in-optimizer", *problem)
    if not evidence.brings_optimizer or evidence.changes_structure:
        return
    held = {
        id(parameter)
        for its in state.optimizers.values()
        for group in its.param_groups
        for parameter in group["params"]
    }
    frozen = [name for name, p in evidence.module.named_parameters() if not p.requires_grad and id(p) in held]
    if frozen:
        yield Finding(
            "warning",
            "frozen",
            f"The optimizer holds {len(frozen)} parameters of {title} that are frozen: {_shown(frozen)}.",
            "Call requires_grad_(True) to train them, or leave them out of the optimizer: "
            "filter(lambda p: p.requires_grad, model.parameters()).",
        )


def check_gradients(evidence: Evidence) -> Iterator[Finding]:
    """Find parameters without a gradient, with gradients of zero, and with gradients that are not finite."""
    trial = _complete(evidence)
    if trial is None or not trial.losses or evidence.drives_updates:
        return
    if not all(trial.losses):  # A loss of exactly 0 has nothing to learn from: a mask, a margin, a warm-up.
        return
    if not trial.gradients:
        if trial.has_moved:
            return
        yield Finding(
            "error",
            "gradients",
            f"No gradient reaches a parameter of {evidence.title}, so that no update changes it.",
            "Look for no_grad, detach, .data, .item() or argmax between the parameters and the loss, and for frozen "
            "parameters.",
        )
        return
    named = {name: parameter for name, parameter in evidence.module.named_parameters() if parameter.requires_grad}
    unused = [name for name in named if name not in trial.gradients]
    if unused and len(unused) < len(named):
        yield Finding(
            "warning",
            "unused",
            f"{len(unused)} of {len(named)} trainable parameters of {evidence.title} got no gradient in two steps: "
            f"{_shown(unused)}.",
            "Check that the forward uses them, and that no detach() or no_grad() is before them. If this is meant, "
            "freeze them with requires_grad_(False).",
        )
    if evidence.precision != "fp16":  # The first scales of fp16 overflow.
        broken = [name for name, facts in trial.gradients.items() if not facts.is_finite]
        if broken and not trial.is_finite and all(map(math.isfinite, trial.losses)):
            yield Finding(
                _level_of_nan(evidence, mends=evidence.writes("gradients")),
                "not-finite",
                f"The gradients of {len(broken)} parameters are NaN or infinite, though the loss is finite: "
                f"{_shown(broken)}.",
                "Look for sqrt, log, norm or a division at 0, and add a small number before it.",
            )
    zero = [name for name, facts in trial.gradients.items() if facts.is_zero]
    if zero and len(zero) == len(trial.gradients):
        if not _has_one_class(trial):
            yield Finding(
                "warning",
                "gradients",
                f"All gradients of {evidence.title} are 0, so that no update changes it.",
                "Look for a ReLU, clamp, round or argmax after the last layer, or for a softmax over one output.",
            )
        return
    zero = [name for name in zero if named[name].ndim > 1]  # A bias may cancel: a critic subtracts two of its outputs.
    if zero and _smallest_rate(evidence) > 0:
        yield Finding(
            "warning",
            "gradients",
            f"The gradients of {len(zero)} of {len(named)} parameters were 0 in two steps: {_shown(zero)}.",
            "Check that the loss depends on them: a ReLU may be 0 for all inputs.",
        )


def check_unregistered(evidence: Evidence) -> Iterator[Finding]:
    """Find layers and tensors that get gradients, and are not parameters of the model."""
    names = () if evidence.trial is None else evidence.trial.unregistered
    if names:
        yield Finding(
            "warning",
            "not-in-optimizer",
            f"{len(names)} tensors of {evidence.title} get gradients, and are not parameters of it: {_shown(names)}.",
            "Put layers into an nn.ModuleList or nn.ModuleDict, and tensors into an nn.Parameter.",
        )


def check_weight_decay(evidence: Evidence) -> Iterator[Finding]:
    """Find a weight decay that makes the weights 0 within a few steps."""
    for optimizer in evidence.state.optimizers.values():
        for group in optimizer.param_groups:
            is_direct = isinstance(optimizer, SGD) or group.get("decoupled_weight_decay", False)
            decay = float(group.get("lr", 0.0)) * float(group.get("weight_decay", 0.0))
            if is_direct and decay >= MAX_DECAY:
                yield Finding(
                    "warning",
                    "weight-decay",
                    f"Each step makes the weights {min(decay, 1):.0%} smaller: lr={float(group['lr']):g} times "
                    f"weight_decay={float(group['weight_decay']):g}.",
                    "Use a smaller weight_decay, such as 0.01.",
                )
                return


def check_losses(evidence: Evidence) -> Iterator[Finding]:
    """Find losses and weights that are NaN or infinite, and learning rates that are too large."""
    trial = _complete(evidence)
    if trial is None or not trial.losses or evidence.precision == "fp16":
        return
    if _ignores_a_batch(trial):
        return
    if not math.isfinite(trial.losses[0]):
        yield Finding(
            _level_of_nan(evidence),
            "not-finite",
            f"The loss of the first batch is {trial.losses[0]}.",
            "Look for NaN in the data, and for log, sqrt or a division at 0 in the loss.",
        )
        return
    if not trial.is_finite or not all(map(math.isfinite, trial.losses)):
        yield Finding(
            _level_of_nan(evidence, mends=evidence.writes("gradients")),  # Clipping prevents it.
            "learning-rate",
            f"The first updates make {'the weights' if not trial.is_finite else 'the loss'} NaN or infinite, with "
            f"{_rates(evidence)}.",
            "Use a smaller learning rate, and check the scale of inputs and targets.",
        )
        return
    if any(map(needs_closure, evidence.state.optimizers.values())):  # LBFGS searches along a line.
        return
    growth = max(trial.losses) / trial.losses[0] if trial.losses[0] > 0 else 0.0
    if growth > MAX_LOSS_GROWTH and trial.change > MAX_CHANGE:
        yield Finding(
            "warning",
            "learning-rate",
            f"The loss grows from {trial.losses[0]:.3g} to {max(trial.losses):.3g} after the first updates, with "
            f"{_rates(evidence)}.",
            "Use a smaller learning rate, or LRFinder to find one.",
        )


def check_updates(evidence: Evidence) -> Iterator[Finding]:
    """Find learning rates with which no update changes a weight."""
    state = evidence.state
    rates = [float(group["lr"]) for its in state.optimizers.values() for group in its.param_groups if "lr" in group]
    is_scheduled = bool(state.schedulers) or evidence.writes("optimizer") or evidence.changes_structure
    if rates and not any(rates):
        if not is_scheduled:
            yield Finding("warning", "learning-rate", "The learning rate is 0.", "Give the optimizer a larger lr.")
        return
    trial = _complete(evidence)
    if trial is None or not all(trial.losses) or not trial.losses or evidence.precision == "fp16":
        return
    if trial.has_moved:
        if max(rates, default=1.0) < MIN_RATE and trial.change < MIN_CHANGE and not is_scheduled:
            yield Finding(
                "warning",
                "learning-rate",
                f"Two updates change the weights of {evidence.title} by {trial.change:.1g} of their size, with "
                f"{_rates(evidence)}.",
                "Use a larger learning rate.",
            )
        return
    if evidence.drives_updates:
        return
    if any(not facts.is_zero for facts in trial.gradients.values()) and all(map(math.isfinite, trial.losses)):
        yield Finding(
            "warning",
            "learning-rate",
            f"Two updates change no weight of {evidence.title}, with {_rates(evidence)}.",
            "Use a larger learning rate. In bf16, keep the weights in fp32: a small change is rounded away.",
        )


def check_modes(evidence: Evidence) -> Iterator[Finding]:
    """Find parts that stay in eval mode during training."""
    trial = evidence.trial
    if trial is None:
        return
    parts = dict(evidence.module.named_modules())
    before = set(trial.evaluating_before)
    # A single layer in eval mode is a frozen batch norm. If a part has all of its layers in eval mode, eval() was
    # called on it, and train() was not.
    whole = [name for name in before if name.rpartition(".")[0] in before and _depends_on_mode(parts[name])]
    trained = sorted(name for name in whole if _is_trained(parts, name))
    if trained:
        yield Finding(
            "warning",
            "eval-mode",
            f"{len(trained)} parts of {evidence.title} are in eval mode and stay in it: {_shown(trained)}. Their "
            f"dropout or batch statistics are off during training.",
            "Call train() on them before fit. If this is meant, freeze their parameters as well.",
        )
    left = [
        name for name in trial.evaluating_after if name not in trial.evaluating_before and _depends_on_mode(parts[name])
    ]
    if left:
        yield Finding(
            "warning",
            "eval-mode",
            f"A training step leaves {len(left)} parts of {evidence.title} in eval mode: {_shown(left)}.",
            "Call train() on them again in train_batch or forward, after eval().",
        )


def _complete(evidence: Evidence) -> TrialFacts | None:
    """Return the trial if its steps were made."""
    trial = evidence.trial
    return None if trial is None or (trial.failure is not None and not trial.failure.samples) else trial


def _level_of_nan(evidence: Evidence, *, mends: bool = False) -> Level:
    """Return the level of values that are NaN. It is a warning if a callback handles them, or ``mends`` is true."""
    handles = any(getattr(callback, "handles_nan", False) for callback in evidence.callbacks)
    return "warning" if handles or mends else "error"


def _has_one_class(trial: TrialFacts) -> bool:
    """True if another check explains gradients of zero."""
    calls = () if trial.calls is None else trial.calls.losses
    return any(call.name in CLASS_LOSSES and call.outputs.ndim > 1 and call.outputs.shape[1] == 1 for call in calls)


def _ignores_a_batch(trial: TrialFacts) -> bool:
    """True if all targets of a batch are ignored, so that its mean loss is NaN."""
    calls = [] if trial.calls is None else trial.calls.losses
    classes = [call for call in calls if call.name in CLASS_LOSSES and not call.targets.is_floating_point()]
    return any(bool((call.targets == call.ignore_index).all()) for call in classes)


def _depends_on_mode(part: nn.Module) -> bool:
    return isinstance(part, _BatchNorm) or (isinstance(part, _DropoutNd) and part.p > 0)


def _is_trained(parts: dict[str, nn.Module], name: str) -> bool:
    """True if a part, or the module that it is in, has trainable parameters. A dropout has none itself."""
    part = parts[name]
    around = parts.get(name.rpartition(".")[0], part) if isinstance(part, _DropoutNd) else part
    return any(parameter.requires_grad for parameter in around.parameters())


def _smallest_rate(evidence: Evidence) -> float:
    groups = [group for its in evidence.state.optimizers.values() for group in its.param_groups]
    return min((float(group["lr"]) for group in groups if "lr" in group), default=1.0)


def _rates(evidence: Evidence) -> str:
    groups = [group for its in evidence.state.optimizers.values() for group in its.param_groups]
    return (
        ", ".join(dict.fromkeys(f"lr={float(group['lr']):g}" for group in groups if "lr" in group)) or "this optimizer"
    )


def _shown(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
