"""Checks of the outputs and the targets of each loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from hookline.loop.preflight.evidence import Evidence
from hookline.loop.preflight.samples import LoaderFacts
from hookline.loop.preflight.watch import BINARY_LOSSES, CLASS_LOSSES, PAIR_LOSSES, LossCall, both_expand
from hookline.records.finding import Finding, Level

NAMES: Final = {
    "cross_entropy": "cross-entropy",
    "nll_loss": "NLL loss",
    "binary_cross_entropy": "binary cross-entropy",
    "binary_cross_entropy_with_logits": "binary cross-entropy with logits",
    "kl_div": "KL divergence",
    "ctc_loss": "CTC loss",
}
TOLERANCE: Final = 1e-4
ROUGH: Final = 0.05
"""Tolerance for values in bf16 or fp16."""
UNNORMALIZED: Final = ("softmax", "linear")
"""Kinds of outputs that are not log-probabilities."""
MIN_ROWS: Final = 8
"""Smallest number of rows from which probabilities are recognized by their values."""


def check_loss_inputs(evidence: Evidence) -> Iterator[Finding]:
    """Find outputs of a wrong kind: probabilities for logits, or the reverse."""
    for call in _calls(evidence):
        checks = {"cross_entropy": _of_cross_entropy, "nll_loss": _of_nll, "kl_div": _of_kl, "ctc_loss": _of_ctc}
        if call.name in checks:
            yield from checks[call.name](call)
        if call.name in BINARY_LOSSES:
            yield from _of_binary(call)
        if call.is_over_batch and call.name in CLASS_LOSSES:
            yield _input(
                call,
                f"The {call.kind} is over dimension 0, the samples of the batch, not over the classes.",
                "Write dim=1, or dim=-1 if the classes are the last dimension.",
                "warning",
            )


def check_targets(evidence: Evidence) -> Iterator[Finding]:
    """Find targets that are out of range, in the batches and in data sets in memory."""
    for call in _calls(evidence):
        if call.name in CLASS_LOSSES:
            yield from _class_targets(call, evidence)
        if call.name in BINARY_LOSSES:
            yield from _binary_targets(call, evidence)


def check_broadcasts(evidence: Evidence) -> Iterator[Finding]:
    """Find outputs and targets whose shapes are broadcast to a larger one."""
    for call in _calls(evidence):
        one, other = call.outputs.shape, call.targets.shape
        if call.name in PAIR_LOSSES and len(one) != len(other) and both_expand(one, other):
            yield _broadcast(call.name, tuple(one), tuple(other), call.where, "error")
    watch = None if evidence.trial is None else evidence.trial.calls
    for found in () if watch is None else watch.broadcasts:
        yield _broadcast(found.name, *found.shapes, found.where, "warning")  # All pairs may be meant.


def check_copied_tokens(evidence: Evidence) -> Iterator[Finding]:
    """Find a language model whose targets are the tokens that it reads at the same positions."""
    trial = evidence.trial
    for call in _calls(evidence):
        targets = None if trial is None or call.origin is None else trial.inputs.get(call.origin)
        for embedding in () if trial is None or trial.calls is None else trial.calls.embeddings:
            tokens = None if trial is None or embedding.origin is None else trial.inputs.get(embedding.origin)
            if tokens is None or targets is None or not call.is_per_position or tokens.ndim < 2:
                continue
            if tokens.dtype == targets.dtype and torch.equal(tokens, targets):
                yield _target(
                    call,
                    "The targets are the tokens that the model reads, at the same positions.",
                    "To predict the next token, use tokens[:, :-1] as inputs and tokens[:, 1:] as targets.",
                    "warning",
                )
                return


def check_padding(evidence: Evidence) -> Iterator[Finding]:
    """Find padded positions that count in the loss."""
    for call in _calls(evidence):
        if call.padded is None or call.name not in CLASS_LOSSES or call.targets.is_floating_point():
            continue
        at_padding = call.targets.reshape(-1)[call.padded.reshape(-1).to(call.targets.device)]
        if (
            len(at_padding)
            and bool((at_padding != call.ignore_index).any())
            and bool((at_padding == at_padding[0]).all())
        ):
            value = int(at_padding[0])
            yield Finding(
                "warning",
                "padding",
                f"{len(at_padding)} of {call.targets.numel()} targets are at padded positions, all with the value "
                f"{value}, and the {NAMES[call.name]} counts them.",
                f"Write ignore_index={value}, or give padded positions the target {call.ignore_index}.",
                call.where,
            )


def _calls(evidence: Evidence) -> Iterator[LossCall]:
    """Yield the losses of the trial that have values."""
    watch = None if evidence.trial is None else evidence.trial.calls
    for call in () if watch is None else watch.losses:
        if call.outputs.numel() and call.targets.numel() and not call.outputs.is_meta:
            yield call


def _input(call: LossCall, message: str, advice: str, level: Level = "error") -> Finding:
    return Finding(level, "loss-input", message, advice, call.where)


def _of_cross_entropy(call: LossCall) -> Iterator[Finding]:
    outputs = call.outputs
    classes = outputs.shape[1] if outputs.ndim > 1 else outputs.shape[0]
    if classes == 1:
        yield _input(
            call,
            "The cross-entropy is over 1 class, so it is always 0.",
            "Return one output per class, or use BCEWithLogitsLoss for one output.",
        )
    elif call.kind in ("softmax", "sigmoid") or (not call.kind and _are_probabilities(outputs)):
        what = "sigmoid" if call.kind == "sigmoid" else "softmax"
        yield _input(
            call,
            f"The cross-entropy gets the result of a {what}, and applies a softmax itself.",
            f"Return the logits: leave the {what} out of the model, and apply it to predictions only.",
            "error" if call.kind else "warning",
        )
    elif call.kind == "log_softmax":
        yield _input(
            call,
            "The cross-entropy gets the result of a log-softmax, and applies it again, which changes nothing.",
            "Leave the log-softmax out of the model, or use NLLLoss.",
            "warning",
        )
    elif call.kind in ("ReLU", "tanh", "dropout"):
        yield _input(
            call,
            f"The cross-entropy gets the result of a {call.kind}, which limits the logits.",
            f"Leave out the {call.kind} after the last layer.",
            "warning",
        )


def _of_ctc(call: LossCall) -> Iterator[Finding]:
    if call.kind in UNNORMALIZED and bool((call.outputs.float().logsumexp(-1).abs() > ROUGH).any()):
        yield _input(
            call,
            "The CTC loss gets values that are not log-probabilities: their exponentials do not sum to 1.",
            "Pass the result of log_softmax(-1).",
        )


def _of_nll(call: LossCall) -> Iterator[Finding]:
    outputs = call.outputs.float()
    if outputs.ndim < 1 or call.kind not in UNNORMALIZED:  # A focal loss weights log-probabilities first.
        return
    total = outputs.logsumexp(1 if outputs.ndim > 1 else 0)
    tolerance = ROUGH if call.outputs.dtype in (torch.bfloat16, torch.float16) else 1e-2
    if bool((total.abs() > tolerance).any()) and not call.is_over_batch:
        what = "the result of a softmax" if call.kind == "softmax" else "values that are not log-probabilities"
        yield _input(
            call,
            f"The NLL loss gets {what}: their exponentials do not sum to 1.",
            "End the model in a log-softmax, or return logits and use CrossEntropyLoss.",
        )


def _of_kl(call: LossCall) -> Iterator[Finding]:
    if call.kind == "softmax" or bool((call.outputs > TOLERANCE).any()):
        yield _input(
            call,
            "The KL divergence gets values above 0, and its input must be log-probabilities.",
            "Pass the result of log_softmax as the first argument.",
            "error" if call.kind == "softmax" else "warning",
        )


def _of_binary(call: LossCall) -> Iterator[Finding]:
    outputs = call.outputs
    if call.name == "binary_cross_entropy":
        if bool(((outputs < 0) | (outputs > 1)).any()):
            low, high = (float(value) for value in outputs.aminmax())
            yield _input(
                call,
                f"The binary cross-entropy gets values from {low:.3g} to {high:.3g}, and its input must be "
                f"probabilities.",
                "Use BCEWithLogitsLoss, or end the model in a sigmoid.",
            )
    elif call.kind in ("sigmoid", "softmax"):
        yield _input(
            call,
            f"The binary cross-entropy with logits gets the result of a {call.kind}, and applies a sigmoid itself.",
            f"Return the logits: leave the {call.kind} out of the model, or use BCELoss after a sigmoid.",
        )


def _are_probabilities(outputs: Tensor) -> bool:
    """True if all rows sum to 1, and differ from each other, so that this is not a coincidence."""
    if outputs.ndim < 2 or not outputs.is_floating_point():
        return False
    rows = outputs.float().movedim(1, -1).reshape(-1, outputs.shape[1])
    if len(rows) < MIN_ROWS or bool((rows < 0).any()) or bool((rows == rows[:1]).all()):
        return False
    tolerance = ROUGH if outputs.dtype in (torch.bfloat16, torch.float16) else TOLERANCE
    return bool(((rows.sum(1) - 1).abs() < tolerance).all())


def _class_targets(call: LossCall, evidence: Evidence) -> Iterator[Finding]:
    outputs, targets = call.outputs, call.targets
    classes = outputs.shape[1] if outputs.ndim > 1 else outputs.shape[0]
    if targets.is_floating_point():
        if targets.shape != outputs.shape:
            yield _target(
                call,
                f"The {NAMES[call.name]} gets class indices of the dtype {str(targets.dtype).removeprefix('torch.')}.",
                "Convert them to integers: targets.long().",
            )
        elif bool((targets < 0).any()) or bool(((targets.float().sum(1) - 1).abs() > ROUGH).any()):
            yield _target(
                call,
                "The cross-entropy gets class probabilities that do not sum to 1 for each sample.",
                "Use BCEWithLogitsLoss if a sample can have several classes.",
                "warning",
            )
        return
    if targets.ndim == outputs.ndim > 1 and targets.shape[1] == 1:
        yield _target(
            call,
            f"The targets have the shape {tuple(targets.shape)}, and the outputs {tuple(outputs.shape)}.",
            "Remove the dimension of size 1: targets.squeeze(1).",
        )
    wrong = _out_of_range(targets, classes, call.ignore_index)
    whole = {facts.name: column for facts, column in _columns(call, evidence)}
    if wrong is None and call.origin is not None:
        for name, column in whole.items():
            values = column if not column.is_floating_point() else None
            found = None if values is None else _out_of_range(values, classes, call.ignore_index)
            if found is not None:
                yield _target(call, *_classes_text(found, classes, f"the {name} data"), "warning")
    elif wrong is not None:
        seen = whole.get("train", targets)
        numbers = seen if not seen.is_floating_point() else targets
        yield _target(call, *_classes_text(_out_of_range(numbers, classes, call.ignore_index) or wrong, classes, ""))


def _classes_text(found: tuple[int, int, int], classes: int, where: str) -> tuple[str, str]:
    number, low, high = found
    value = low if low < 0 else high
    at = f" in {where}" if where else ""
    advice = f"Labels must be 0 to {classes - 1}."
    if low >= 0 and high == classes and not where:
        advice += " If they start at 1, subtract 1."
    elif high >= classes:
        advice += f" For labels up to {high}, return {high + 1} outputs."
    else:
        advice += f" To ignore a label, write ignore_index={low}."
    return f"{number} of the labels{at} are out of range, such as {value}: the outputs have {classes} classes.", advice


def _out_of_range(targets: Tensor, classes: int, ignored: int) -> tuple[int, int, int] | None:
    """Return the number of targets out of range, and the smallest and the largest target. ``None`` if all fit."""
    kept = targets[targets != ignored]
    wrong = (kept < 0) | (kept >= classes)
    count = int(wrong.sum())
    return (count, int(kept.min()), int(kept.max())) if count else None


def _binary_targets(call: LossCall, evidence: Evidence) -> Iterator[Finding]:
    columns = {"": call.targets, **{facts.name: column for facts, column in _columns(call, evidence)}}
    for name, column in columns.items():
        if not call.is_whole or not column.numel() or column.dtype == torch.bool:
            continue
        low, high = (float(value) for value in column.aminmax())
        if low < -TOLERANCE or high > 1 + TOLERANCE:  # Mixed targets are rounded.
            at = f" of the {name} data" if name else ""
            yield _target(
                call,
                f"The targets{at} of the {NAMES[call.name]} are from {low:g} to {high:g}, and must be from 0 to 1.",
                "Use CrossEntropyLoss for more than two classes, or number two classes 0 and 1.",
                "warning" if name else "error",
            )
            return


def _columns(call: LossCall, evidence: Evidence) -> Iterator[tuple[LoaderFacts, Tensor]]:
    """Yield the loaders whose targets are in memory, with all their targets."""
    for facts in evidence.loaders:
        column = None if call.origin is None else facts.columns.tensors.get(call.origin)
        if column is not None and column.numel():
            yield facts, column


def _target(call: LossCall, message: str, advice: str, level: Level = "error") -> Finding:
    return Finding(level, "loss-target", message, advice, call.where)


def _broadcast(name: str, one: tuple[int, ...], other: tuple[int, ...], where: str, level: Level) -> Finding:
    return Finding(
        level,
        "broadcast",
        f"{name} of the shapes {one} and {other} broadcasts both to a larger shape, so that each output is compared "
        f"with the targets of other samples.",
        "Give both the same shape, for example outputs.squeeze(1) or targets.unsqueeze(1).",
        where,
    )
