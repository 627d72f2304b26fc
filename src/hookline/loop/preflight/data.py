"""Checks of the data: its order, its values, and samples that loaders share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from hookline.loop.data.notes import own_generators
from hookline.loop.preflight.evidence import Evidence
from hookline.loop.preflight.samples import LoaderFacts, hashes_of, labels_of
from hookline.records.finding import Finding

MIN_SHARED: Final = 0.01
"""Smallest fraction of equal samples that is not a coincidence."""
MAX_FEATURE: Final = 1_000.0
LARGEST_PIXEL: Final = 255
MIN_SAMPLES: Final = 8


def check_shared_samples(evidence: Evidence) -> Iterator[Finding]:
    """Find validation and test samples that are also trained on."""
    train, known = evidence.train, None
    for facts in evidence.loaders[1:]:
        if "train" in facts.name:  # A loader of this name is meant to be of training data.
            continue
        count, of = _shared_indices(train, facts)
        if not count and train.columns.tensors and train.columns.tensors.keys() == facts.columns.tensors.keys():
            known = hashes_of(train.columns) if known is None else known
            count, of = _equal_samples(known, facts)
        if count:
            yield Finding(
                "warning",
                "shared-samples",
                f"{count} of {of} samples of the {facts.name} loader are in the training data, so that its metrics are "
                f"too good.",
                "Split the data into parts that share no sample, for example with random_split.",
            )


def check_order(evidence: Evidence) -> Iterator[Finding]:
    """Find training data that is sorted by label and not shuffled."""
    train = evidence.train
    if not train.is_in_order or (train.batches or 0) < 2:
        return
    columns = [column for path, column in train.columns.tensors.items() if column.ndim == 1 and path]
    labels = [column for column in columns if not column.is_floating_point() and column.dtype != torch.bool][-1:]
    own = labels_of(train)
    for column in labels if own is None else [own]:
        classes = _distinct(column)
        changes = int((column[1:] != column[:-1]).sum())
        if 1 < classes <= len(column) // 4 and changes == classes - 1:
            yield Finding(
                "warning",
                "order",
                f"The training samples are sorted by label ({classes} classes, {len(column)} samples), and the loader "
                f"does not shuffle them, so that most batches have one class.",
                "Write DataLoader(…, shuffle=True).",
            )


def check_labels(evidence: Evidence) -> Iterator[Finding]:
    """Find training data with a single class."""
    paths = _target_paths(evidence)
    for path, column in evidence.train.columns.tensors.items():
        is_classes = not column.is_floating_point() and path in paths
        if is_classes and len(column) > 1 and bool((column == column[0]).all()) and evidence.train.columns.is_whole:
            yield Finding(
                "warning",
                "labels",
                f"All {len(column)} training samples have the same label.",
                "Check how the labels are read, and how the data is split.",
            )


def check_finite(evidence: Evidence) -> Iterator[Finding]:
    """Find inputs and targets in memory that are NaN or infinite."""
    raw, targets = _layer_paths(evidence), _target_paths(evidence)
    for facts in evidence.loaders:
        for path, column in facts.columns.tensors.items():
            if not column.is_floating_point() or (path not in raw and path not in targets):
                continue
            broken = ~column.isfinite().reshape(len(column), -1).all(1)
            if bool(broken.any()):
                first = int(broken.nonzero()[0])
                yield Finding(
                    "warning",
                    "not-finite-data",
                    f"{int(broken.sum())} of {len(column)} samples of the {facts.name} loader have "
                    f"{'targets' if path in targets else 'inputs'} that are NaN or infinite. The first is sample "
                    f"{first}.",
                    "Leave these samples out, or replace the values.",
                )


def check_scale(evidence: Evidence) -> Iterator[Finding]:
    """Find inputs that go into the first layer with very large values."""
    trial = evidence.trial
    for path, layer, where in () if trial is None or trial.calls is None else trial.calls.layer_inputs:
        values = trial.inputs.get(path) if trial is not None else None
        if values is None or not values.is_floating_point() or not values.numel():
            continue
        largest = float(values.abs().max())
        is_pixels = values.ndim >= 3 and LARGEST_PIXEL / 2 < largest <= LARGEST_PIXEL and _are_integers(values)
        if is_pixels or (values.ndim == 2 and largest > MAX_FEATURE):
            what = "pixels from 0 to 255" if is_pixels else f"values up to {largest:.3g}"
            yield Finding(
                "warning",
                "input-scale",
                f"The first layer ({layer}) gets {what} as they are.",
                "Scale the inputs: divide pixels by 255, or subtract the mean and divide by the standard deviation.",
                where,
            )
            return
        if values.ndim >= 3 and 0 < largest <= 1 / LARGEST_PIXEL + 1e-6 and _are_divided_twice(values):
            yield Finding(
                "warning",
                "input-scale",
                f"The first layer ({layer}) gets pixels from 0 to 1/255: they are divided by 255 twice.",
                "Divide by 255 once. ToTensor does so itself.",
                where,
            )
            return


def check_constant_inputs(evidence: Evidence) -> Iterator[Finding]:
    """Find a batch whose samples all have the same inputs."""
    trial = evidence.trial
    inputs = {} if trial is None else trial.inputs
    found = [inputs[path] for path in _layer_paths(evidence) if path in inputs]  # type: ignore[index]
    if found and all(len(each) >= MIN_SAMPLES and bool((each == each[:1]).all()) for each in found if each.ndim > 1):
        yield Finding(
            "warning",
            "constant-inputs",
            f"All {len(found[0])} samples of a batch have the same inputs.",
            "Check that the data set uses its index, and how it converts the values.",
        )


def check_batch_dimension(evidence: Evidence) -> Iterator[Finding]:
    """Find layers over time that take the samples of the batch as time steps."""
    trial = evidence.trial
    for call in () if trial is None or trial.calls is None else trial.calls.sequences[:1]:
        yield Finding(
            "warning",
            "batch-dimension",
            f"The {call.layer} gets inputs of the shape {call.shape}, and takes the {call.shape[0]} samples of the "
            f"batch as time steps.",
            "Give the layer batch_first=True, or transpose the first two dimensions.",
            call.where,
        )


def check_indices(evidence: Evidence) -> Iterator[Finding]:
    """Find indices that an embedding does not have."""
    trial = evidence.trial
    for call in () if trial is None or trial.calls is None else trial.calls.embeddings:
        low, high, at = call.smallest, call.largest, ""
        for facts in evidence.loaders:
            column = None if call.origin is None else facts.columns.tensors.get(call.origin)
            if column is not None and column.numel() and not column.is_floating_point():
                its_low, its_high = (int(value) for value in column.aminmax())
                if its_low < 0 or its_high >= call.rows:
                    low, high, at = its_low, its_high, f" in the {facts.name} data"
        if low < 0 or high >= call.rows:
            yield Finding(
                "warning" if at else "error",
                "index",
                f"An embedding of {call.rows} rows gets the index {low if low < 0 else high}{at}.",
                f"Give it {high + 1} rows, or replace unknown indices." if low >= 0 else "Replace negative indices.",
                call.where,
            )


def check_random(evidence: Evidence) -> Iterator[Finding]:
    """Find random generators of a data set that workers copy."""
    for facts in evidence.loaders:
        workers = getattr(facts.loader, "num_workers", 0)
        found = own_generators(getattr(facts.loader, "dataset", None), "dataset") if workers > 1 else []
        if found:
            yield Finding(
                "warning",
                "data-random",
                f"Each of {workers} workers of the {facts.name} loader has a copy of {found[0][0]}, so that they draw "
                f"the same numbers.",
                "Draw from torch, random or numpy.random, which Hookline seeds for each batch.",
            )


def _shared_indices(train: LoaderFacts, other: LoaderFacts) -> tuple[int, int]:
    """Return how many samples two loaders read from the same data set by the same index, and how many there are."""
    if train.source is None or train.source is not other.source:
        return 0, 0
    total = len(train.source)
    indices = [torch.arange(total) if its.indices is None else its.indices for its in (train, other)]
    return int(torch.isin(indices[1], indices[0]).sum()), len(indices[1])


def _equal_samples(known: Tensor, other: LoaderFacts) -> tuple[int, int]:
    """Return how many samples have equal values, and how many there are.

    Data with few possible values has equal samples anyway: it also has them within the training data.
    """
    own = hashes_of(other.columns)
    if not len(known) or not len(own):
        return 0, 0
    shared = int(torch.isin(own, known).sum())
    fraction, repeated = shared / len(own), 1 - _distinct(known) / len(known)
    return (shared, len(own)) if fraction > MIN_SHARED and shared > 1 and repeated < fraction / 4 else (0, 0)


def _target_paths(evidence: Evidence) -> set[object]:
    """Return the paths of the targets in a batch."""
    trial = evidence.trial
    calls = [] if trial is None or trial.calls is None else trial.calls.losses
    return {call.origin for call in calls if call.origin is not None}


def _layer_paths(evidence: Evidence) -> set[object]:
    """Return the paths of the inputs that go into a layer as they are."""
    trial = evidence.trial
    return set() if trial is None or trial.calls is None else {path for path, _, _ in trial.calls.layer_inputs}


def _are_divided_twice(values: Tensor) -> bool:
    pixels = values.double() * LARGEST_PIXEL**2
    return bool(((pixels - pixels.round()).abs() < 0.01).all())


def _are_integers(values: Tensor) -> bool:
    return bool(((values >= 0) & (values == values.round())).all())


def _distinct(values: Tensor) -> int:
    found: Tensor = values.unique()  # type: ignore[no-untyped-call]
    return found.numel()
