"""Checks of checkpoints, monitors, sinks and callbacks."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from torch.utils.data.dataloader import default_collate

from hookline.errors import error_text
from hookline.loop.preflight.evidence import Evidence
from hookline.records.finding import Finding


def check_disk(evidence: Evidence) -> Iterator[Finding]:
    """Find checkpoints that do not fit on the disk."""
    for facts in evidence.saves:
        whole = facts.bytes_each * facts.count
        if facts.bytes_each > facts.free or whole > facts.free:
            is_one = facts.bytes_each > facts.free
            size = f"{facts.count:,.0f} checkpoints of {_size(facts.bytes_each)} need {_size(whole)}"
            yield Finding(
                "error" if is_one else "warning",
                "disk",
                f"{f'A checkpoint needs {_size(facts.bytes_each)}' if is_one else size}, and {facts.folder} has "
                f"{_size(facts.free)} free.",
                "Free some space, give another folder, or keep fewer: Checkpointer(keep_last=2).",
            )


def check_train_metrics(evidence: Evidence) -> Iterator[Finding]:
    """Find monitored training metrics that the steps of the trial have not logged."""
    trial = evidence.trial
    if trial is None or trial.failure is not None or not trial.losses:
        return
    is_users = [not type(callback).__module__.startswith("hookline.") for callback in evidence.callbacks]
    undeclared = [not (callback.reads or callback.writes) for callback in evidence.callbacks]
    may_be_logged = any(map(all, zip(is_users, undeclared, strict=True)))
    for reader, name in evidence.doubts:
        base = name.removesuffix("_epoch")
        if name in trial.logged or base in trial.logged or may_be_logged:
            continue
        close = get_close_matches(name, trial.logged, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        yield Finding(
            "warning",
            "monitor",
            f"{reader} monitors {name!r}, and two training steps have logged only "
            f"{', '.join(sorted(trial.logged)) or 'nothing'}.",
            f"Log it in train_batch, or monitor another metric.{hint}",
        )


def check_failure(evidence: Evidence) -> Iterator[Finding]:
    """Report an error that a training step on the smaller last batch raised."""
    failure = None if evidence.trial is None else evidence.trial.failure
    if failure is not None and failure.samples:
        is_cut_right = getattr(evidence.train.loader, "collate_fn", None) is default_collate
        yield Finding(
            "error" if is_cut_right else "warning",
            "last-batch",
            f"A training step on {failure.samples} of {evidence.train.batch_size} samples, the size of the last batch "
            f"of an epoch, raises {failure.words}",
            "Do not assume the batch size, or write DataLoader(…, drop_last=True).",
            failure.where,
        )


def ask_callbacks(evidence: Evidence) -> Iterator[Finding]:
    """Ask the callbacks what they know about the run."""
    for member in evidence.state.line.members:
        ask = getattr(member.callback, "preflight", None)
        if member.is_task or not callable(ask):
            continue
        try:
            yield from ask(member.view)
        except Exception as error:
            yield Finding(
                "warning" if member.callback.optional else "error",
                "callback",
                f"{member.name}.preflight raises {error_text(error)}.",
                "Correct the callback.",
            )


def _size(count: float) -> str:
    """Format a number of bytes.

    >>> _size(2_500_000)
    '2.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
