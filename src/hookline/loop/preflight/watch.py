"""``CallWatch``: notes the losses, embeddings and normalizations that a training step computes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
    """``"softmax"``, ``"log_softmax"`` or ``"sigmoid"`` if the outputs are the result of it. Else empty."""
    is_over_batch: bool
    """True if that function was applied over the batch dimension."""
    ignore_index: int
    origin: tuple[Any, ...] | None
    """Path of the targets in the batch, if they are one of its tensors."""
    where: str
    padded: Tensor | None = None
    """Marks the positions at which the inputs of an embedding are padding, if they correspond to the targets."""


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
        self._kinds: dict[int, tuple[Tensor, str, int]] = {}
        self._origins: dict[int, tuple[Tensor, tuple[Any, ...] | None]] = {}  # Without a path: a part of a tensor.
        self._padding: Tensor | None = None
        self._batch_size = 0

    def begin(self, batch: Any, batch_size: int) -> None:
        """Begin a step: forget the tensors of the last one."""
        self._batch_size = batch_size
        self.end()
        self._origins = {id(tensor): (tensor, path) for path, tensor in tensors_in(batch)}

    def end(self) -> None:
        """Free the tensors of a step."""
        self._kinds, self._origins, self._padding = {}, {}, None

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
        elif name in LAYERS and args and (origin := self._origin_of(args[0])) is not None:
            self.layer_inputs.append((origin, name, place()))
        found = func(*args, **given)
        if args and isinstance(args[0], Tensor):
            self._follow(name, args, given, found)
        return found

    # -- following tensors -----------------------------------------------------------------------

    def _follow(self, name: str, args: tuple[Any, ...], given: Mapping[str, Any], found: Any) -> None:
        """Note the kind and the origin of a result."""
        first = args[0]
        if name in KINDS and isinstance(found, Tensor):
            if name == "dropout" and not (args[2] if len(args) > 2 else given.get("training", True)):
                self._copy_marks(first, found, keeps_origin=True)
                return
            dim = given.get("dim", args[1] if len(args) > 1 else None) if "softmax" in name else None
            self._kinds[id(found)] = found, KINDS[name], _dimension(dim, first.ndim)
        elif name == "log" and (kind := self._kinds.get(id(first))) is not None:
            self._kinds[id(found)] = (
                found,
                {"softmax": "log_softmax", "sigmoid": "logsigmoid"}.get(kind[1], ""),
                kind[2],
            )
        elif name in SAME_VALUES or name in SAME_KIND or (name in ("add", "__add__", "add_") and _is_epsilon(args)):
            for result in found if isinstance(found, tuple | list) else (found,):
                self._copy_marks(first, result, keeps_origin=name in SAME_VALUES)

    def _copy_marks(self, first: Tensor, result: Any, *, keeps_origin: bool) -> None:
        if not isinstance(result, Tensor):
            return
        if (kind := self._kinds.get(id(first))) is not None:
            self._kinds[id(result)] = result, kind[1], kind[2]
        if (origin := self._origins.get(id(first))) is not None:
            is_same = keeps_origin and result.numel() == first.numel()
            self._origins[id(result)] = result, origin[1] if is_same else None

    def _origin_of(self, value: Any) -> tuple[Any, ...] | None:
        found = self._origins.get(id(value))
        return None if found is None else found[1]

    # -- noting calls ----------------------------------------------------------------------------

    def _note_loss(self, name: str, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        values = (*args, *(given[key] for key in ("input", "target") if key in given))
        outputs, targets = values[0], values[1]
        if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or not outputs.requires_grad:
            return
        _, kind, dim = self._kinds.get(id(outputs), (None, "", -1))
        is_over_batch = dim == 0 and outputs.ndim > 1 and len(outputs) == self._batch_size != outputs.shape[1]
        padding = self._padding
        ignored = given.get("ignore_index", -100)
        self.losses.append(
            LossCall(
                name=name,
                outputs=outputs.detach(),
                targets=targets.detach(),
                kind=kind,
                is_over_batch=is_over_batch,
                ignore_index=ignored if isinstance(ignored, int) else -100,
                origin=self._origin_of(targets),
                where=place(),
                padded=padding if padding is not None and padding.numel() == targets.numel() else None,
            )
        )

    def _note_embedding(self, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        values = (*args, *(given[key] for key in ("input", "weight") if key in given))
        indices, weight, padding = values[0], values[1], given.get("padding_idx")
        if isinstance(indices, Tensor) and isinstance(weight, Tensor) and indices.numel() and not indices.is_meta:
            smallest, largest = (int(value) for value in indices.aminmax())
            origin = self._origin_of(indices)
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
        without_ones = [[size for size in value.shape if size > 1] for value in args]
        from_batch = [id(value) in self._origins for value in args]
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


def _dimension(dim: Any, ndim: int) -> int:
    return dim % ndim if isinstance(dim, int) and ndim else -1


def _is_epsilon(args: tuple[Any, ...]) -> bool:
    return len(args) == 2 and isinstance(args[1], int | float) and 0 <= args[1] <= MAX_EPSILON
