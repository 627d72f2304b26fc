"""``CallWatch``: notes the losses, embeddings and normalizations that a training step computes."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import hookline

PACKAGES: Final = (str(Path(torch.__file__).parent), str(Path(hookline.__file__).parent))
"""Folders of the code that is not the user's."""

CLASS_LOSSES: Final = ("cross_entropy", "nll_loss")
PAIR_LOSSES: Final = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
BINARY_LOSSES: Final = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
LOSSES: Final = (*CLASS_LOSSES, *PAIR_LOSSES, *BINARY_LOSSES, "kl_div", "ctc_loss")

KINDS: Final = {
    "softmax": "softmax",
    "log_softmax": "log_softmax",
    "sigmoid": "sigmoid",
    "logsigmoid": "logsigmoid",
    "relu": "ReLU",
    "relu_": "ReLU",
    "tanh": "tanh",
    "dropout": "dropout",
}
"""Functions whose result is recognized as the input of a loss."""
OVER_TIME: Final = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
ATTENTION: Final = "multi_head_attention_forward"
LAYERS: Final = ("linear", "conv1d", "conv2d", "conv3d")
PAIRWISE: Final = ("sub", "__sub__", "rsub", "__rsub__", "subtract", "eq", "__eq__")

SAME_VALUES: Final = frozenset(
    {"view", "reshape", "flatten", "squeeze", "unsqueeze", "contiguous", "float", "double", "half", "bfloat16", "to"}
    | {"long", "int", "type", "clone", "detach", "view_as", "type_as", "requires_grad_", "cpu", "pin_memory"}
)
"""Functions that keep the values and their order."""
SAME_KIND: Final = frozenset(
    {"permute", "transpose", "t", "movedim", "swapaxes", "clamp", "clamp_min", "__getitem__", "select", "narrow"}
    | {"index_select", "unbind", "chunk", "split", "unflatten", "expand"}
)
"""Functions after which probabilities are still probabilities."""
MAX_EPSILON: Final = 1e-2
"""Largest number that a model adds to probabilities before it takes their logarithm."""


@dataclass(frozen=True, slots=True)
class LossCall:
    """One call of a loss function of torch."""

    name: str
    outputs: Tensor
    """Outputs of the model, detached."""
    targets: Tensor
    kind: str
    """Such as ``"softmax"``, ``"log_softmax"`` or ``"linear"`` if the outputs are the result of it. Else empty."""
    is_over_batch: bool
    """True if that function was applied over the batch dimension."""
    ignore_index: int
    origin: tuple[Any, ...] | None
    """Path of the targets in the batch, if they are one of its tensors."""
    where: str
    padded: Tensor | None = None
    """Marks the positions at which the inputs of an embedding are padding, if they correspond to the targets."""
    is_whole: bool = True
    """False if the loss has weights or no reduction, so that the caller may leave out some of the targets."""
    is_per_position: bool = False
    """True if the outputs are the result of a layer that is applied once for each target."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """An operation in which a tensor of the batch and another tensor both expand."""

    name: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    where: str


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """One lookup in an embedding."""

    rows: int
    smallest: int
    largest: int
    origin: tuple[Any, ...] | None
    where: str


@dataclass(frozen=True, slots=True)
class SequenceCall:
    """A layer over time steps that takes the samples of the batch as time steps."""

    layer: str
    shape: tuple[int, ...]
    where: str


@dataclass(frozen=True, slots=True)
class NormCall:
    """One batch normalization in training mode."""

    values_per_sample: int
    """Values of one sample for each channel. With 1, a batch of one sample has no variance."""
    where: str


@dataclass(frozen=True, slots=True)
class Mark:
    """The source of a tensor. It holds until an operation changes the tensor in place."""

    tensor: weakref.ref[Tensor] | None = None
    """A strong reference would keep the graph that gradient checkpointing frees."""
    version: int = 0
    kind: str = ""
    """The function whose result the tensor is."""
    dim: int = -1
    """Dimension of that function."""
    rows: int = 0
    """Number of times that a layer was applied."""
    is_from_batch: bool = False
    path: tuple[Any, ...] | None = None
    """Path in the batch. ``None``: a part of a tensor of the batch, or another tensor."""


UNMARKED: Final = Mark()


class CallWatch(TorchFunctionMode):
    """Note the calls of some functions of torch. No value changes."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[LossCall] = []
        self.broadcasts: list[Broadcast] = []
        self.embeddings: list[EmbeddingCall] = []
        self.norms: list[NormCall] = []
        self.sequences: list[SequenceCall] = []
        self.layer_inputs: list[tuple[tuple[Any, ...], str, str]] = []
        """Path in the batch, layer and line, for each tensor of the batch that goes into a layer as it is."""
        self._marks: dict[int, Mark] = {}
        self._padding: Tensor | None = None
        self._batch_size = 0

    def begin(self, batch: Any, batch_size: int) -> None:
        """Begin a step: forget the tensors of the last one."""
        self._batch_size = batch_size
        self.end()
        for path, tensor in tensors_in(batch):
            self._mark(tensor, Mark(is_from_batch=True, path=path))

    def end(self) -> None:
        """Forget the tensors of a step."""
        self._marks, self._padding = {}, None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and note what the checks need."""
        name, given = getattr(func, "__name__", ""), kwargs or {}
        if name in LOSSES:
            self._note_loss(name, args, given)
        elif name == "embedding":
            self._note_embedding(args, given)
        elif name == "batch_norm" and given.get("training"):
            self.norms.append(NormCall(args[0][0, 0].numel() if args[0].ndim > 2 else 1, place()))
        elif name in OVER_TIME or name == ATTENTION:
            self._note_sequence(name, args)
        elif name in PAIRWISE and len(args) == 2:
            self._note_pair(name, args)
        elif name in LAYERS and args and (path := self._mark_of(args[0]).path) is not None:
            self.layer_inputs.append((path, name, place()))
        before = self._mark_of(args[0]) if args else UNMARKED  # The call may change the tensor in place.
        found = func(*args, **given)
        if args and isinstance(args[0], Tensor):
            self._follow(name, before, args, given, found)
        return found

    # -- following tensors -----------------------------------------------------------------------

    def _mark(self, tensor: Tensor, mark: Mark) -> None:
        self._marks[id(tensor)] = replace(mark, tensor=weakref.ref(tensor), version=_version(tensor))

    def _mark_of(self, value: Any) -> Mark:
        """Return the mark of a tensor. ``UNMARKED`` if it has none, or if its values have changed since."""
        mark = self._marks.get(id(value), UNMARKED)
        tensor = None if mark.tensor is None else mark.tensor()
        return mark if tensor is not None and tensor is value and mark.version == _version(tensor) else UNMARKED

    def _follow(self, name: str, before: Mark, args: tuple[Any, ...], given: Mapping[str, Any], found: Any) -> None:
        """Mark a result. ``before`` is the mark of the first argument before the call."""
        first = args[0]
        if name == "dropout" and not _drops(args, given):
            self._copy_mark(before, found, first, keeps_path=True)
        elif name in KINDS and isinstance(found, Tensor):
            dim = given.get("dim", args[1] if len(args) > 1 else None) if "softmax" in name else None
            self._mark(found, Mark(kind=KINDS[name], dim=_dimension(dim, first.ndim)))
        elif name in LAYERS and isinstance(found, Tensor):
            classes = found.shape[-1 if name == "linear" else 1] if found.ndim > 1 else 1
            self._mark(found, Mark(kind="linear", rows=found.numel() // max(1, classes)))
        elif name == "log" and before.kind in ("softmax", "sigmoid"):
            kind = {"softmax": "log_softmax", "sigmoid": "logsigmoid"}[before.kind]
            self._mark(found, Mark(kind=kind, dim=before.dim))
        elif name in SAME_VALUES or name in SAME_KIND or (name in ("add", "__add__", "add_") and _is_epsilon(args)):
            for result in found if isinstance(found, tuple | list) else (found,):
                self._copy_mark(before, result, first, keeps_path=name in SAME_VALUES)

    def _copy_mark(self, before: Mark, result: Any, first: Tensor, *, keeps_path: bool) -> None:
        if before is not UNMARKED and isinstance(result, Tensor):
            is_same = keeps_path and result.numel() == first.numel()
            self._mark(result, before if is_same else replace(before, path=None))

    # -- noting calls ----------------------------------------------------------------------------

    def _note_loss(self, name: str, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        values = (*args, *(given[key] for key in ("input", "target") if key in given))
        outputs, targets = values[0], values[1]
        if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or not outputs.requires_grad:
            return
        mark = self._mark_of(outputs)
        is_over_batch = mark.dim == 0 and outputs.ndim > 1 and len(outputs) == self._batch_size != outputs.shape[1]
        padding = self._padding
        ignored = given.get("ignore_index", -100)
        self.losses.append(
            LossCall(
                name=name,
                outputs=outputs.detach(),
                targets=targets.detach(),
                kind=mark.kind,
                is_over_batch=is_over_batch,
                ignore_index=ignored if isinstance(ignored, int) else -100,
                origin=self._mark_of(targets).path,
                where=place(),
                padded=padding if padding is not None and padding.numel() == targets.numel() else None,
                is_whole=given.get("reduction") != "none" and given.get("weight") is None,
                is_per_position=mark.kind == "linear" and mark.rows == targets.numel(),
            )
        )

    def _note_embedding(self, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        values = (*args, *(given[key] for key in ("input", "weight") if key in given))
        indices, weight, padding = values[0], values[1], given.get("padding_idx")
        if isinstance(indices, Tensor) and isinstance(weight, Tensor) and indices.numel() and not indices.is_meta:
            smallest, largest = (int(value) for value in indices.aminmax())
            origin = self._mark_of(indices).path
            self.embeddings.append(EmbeddingCall(len(weight), smallest, largest, origin, place()))
            if padding is not None:
                self._padding = (indices == padding % max(1, len(weight))).detach()

    def _note_sequence(self, name: str, args: tuple[Any, ...]) -> None:
        is_packed = name in OVER_TIME and not isinstance(args[2], list | tuple)
        if not args or is_packed or (name in OVER_TIME and args[-1]):  # The last argument is batch_first.
            return
        shape = tuple(args[0].shape)
        if len(shape) == 3 and shape[0] == self._batch_size != shape[1] > 1:
            self.sequences.append(SequenceCall(OVER_TIME.get(name, "attention"), shape, place()))

    def _note_pair(self, name: str, args: tuple[Any, ...]) -> None:
        one, other = args
        if not isinstance(one, Tensor) or not isinstance(other, Tensor) or not both_expand(one.shape, other.shape):
            return
        if one.ndim == other.ndim:  # All pairs on purpose: (N, 1) with (1, N).
            return
        without_ones = [[size for size in value.shape if size > 1] for value in args]
        from_batch = [self._mark_of(value).is_from_batch for value in args]
        if without_ones[0] == without_ones[1] and any(from_batch) and not all(from_batch):
            self.broadcasts.append(Broadcast(name.strip("_"), (tuple(one.shape), tuple(other.shape)), place()))


def both_expand(one: torch.Size, other: torch.Size) -> bool:
    """True if two shapes can be broadcast, and the result is larger than each of them.

    >>> both_expand(torch.Size([8, 1]), torch.Size([8])), both_expand(torch.Size([8, 3]), torch.Size([3]))
    (True, False)
    """
    try:
        found: torch.Size = torch.broadcast_shapes(one, other)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return found.numel() > max(one.numel(), other.numel())


def tensors_in(batch: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Yield the tensors of a batch, each with its path."""
    if isinstance(batch, Tensor):
        yield path, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from tensors_in(value, (*path, key))
    elif isinstance(batch, list | tuple):
        for index, value in enumerate(batch):
            yield from tensors_in(value, (*path, index))


def place() -> str:
    """Return file and line of the innermost frame that is not in torch or Hookline."""
    frame = sys._getframe(1)
    found = frame.f_back
    while found is not None:
        file = found.f_code.co_filename
        if not file.startswith((*PACKAGES, "<")):
            return f"{shown_path(file)}:{found.f_lineno}"
        found = found.f_back
    return ""


def shown_path(file: str) -> str:
    """Return a path relative to the working directory if it is below it."""
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return Path(file).name


def _version(tensor: Tensor) -> int:
    """Return how often operations have changed a tensor in place. Inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version


def _drops(args: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
    """True if a call of dropout changes values."""
    p = given.get("p", args[1] if len(args) > 1 else 0.5)
    return bool(given.get("training", args[2] if len(args) > 2 else True)) and p > 0


def _dimension(dim: Any, ndim: int) -> int:
    return dim % ndim if isinstance(dim, int) and ndim else -1


def _is_epsilon(args: tuple[Any, ...]) -> bool:
    return len(args) == 2 and isinstance(args[1], int | float) and 0 <= args[1] <= MAX_EPSILON
