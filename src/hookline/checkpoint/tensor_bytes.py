"""A tensor as bytes in memory: which can be saved, how it is named in a file, and how it is put back."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from hookline.distributed.dtensors import part_of

STORED_AS: Final[Mapping[torch.dtype, str]] = MappingProxyType(
    {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int16: "I16",
        torch.int8: "I8",
        torch.uint64: "U64",
        torch.uint32: "U32",
        torch.uint16: "U16",
        torch.uint8: "U8",
        torch.bool: "BOOL",
        torch.complex64: "C64",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
        torch.float8_e5m2: "F8_E5M2",
        torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    }
)
"""What safetensors calls a dtype. One that is not here is kept as bytes, its own name beside it."""
READ_AS: Final[Mapping[str, torch.dtype]] = MappingProxyType({name: dtype for dtype, name in STORED_AS.items()})
DTYPES: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
)
"""Every dtype of torch by its name."""
QUANTIZED: Final = frozenset({torch.qint8, torch.qint32, torch.quint8, torch.quint4x2, torch.quint2x4})
# Copies are made as whole numbers of the same width: torch cannot copy some of its dtypes.
_SAME_WIDTH: Final[Mapping[int, torch.dtype]] = MappingProxyType(
    {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
)


def dtype_named(name: object) -> torch.dtype | None:
    """The dtype of this name, if tensors of it can be saved."""
    found = DTYPES.get(name) if isinstance(name, str) else None
    return None if found in QUANTIZED else found


def refusal(tensor: Tensor) -> str:
    """Why a tensor cannot be saved and what to save instead; empty if it can be.

    >>> refusal(torch.zeros(2))
    ''
    >>> refusal(torch.zeros(2, device="meta"))
    'a tensor on the meta device has no values; materialise it first'
    """
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        kind = type(tensor).__name__
        return f"a {kind} holds its values in other tensors; save those, or what full_tensor() gives for a DTensor"
    if is_lazy(tensor):
        return "a lazy parameter has no values yet; run a batch through the model first"
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else f"of the layout {tensor.layout}"
        return f"a tensor that is {kind} is not dense; save the plain tensors that it is made of"
    if tensor.is_quantized or tensor.dtype in QUANTIZED:
        return f"a quantized tensor ({tensor.dtype}) has a scale beside its values; save int_repr() and the scale"
    if tensor.device.type == "meta":
        return "a tensor on the meta device has no values; materialise it first"
    if _end(tensor) > tensor.untyped_storage().nbytes():  # to read it would end the process
        return "a tensor whose memory has been freed has no values; gather it first"
    return ""


def _end(tensor: Tensor) -> int:
    """Where the last value of a tensor ends in its memory."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (int(tensor.storage_offset()) + last + 1) * tensor.element_size()


def identity(tensor: Tensor) -> tuple[object, ...] | None:
    """The same for tensors that are one and the same memory, seen alike; ``None`` where there is no memory."""
    tensor = part_of(tensor)  # one that is spread over ranks has no memory of its own
    if not tensor.numel():
        return None
    lazy = (tensor.is_conj(), tensor.is_neg())
    return (str(tensor.device), tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), lazy)


def on_cpu_in_order(tensor: Tensor) -> Tensor:
    """The same values on the CPU, one after another; the tensor's own memory if it is so already."""
    plain = tensor.detach().as_subclass(Tensor).resolve_conj().resolve_neg().cpu()
    if plain.is_contiguous():
        return plain
    return as_bits(plain).contiguous().view(plain.dtype)


def as_bits(tensor: Tensor) -> Tensor:
    """The same memory as numbers of the same width, which torch can copy and leaves as they are."""
    return tensor.view(_SAME_WIDTH[tensor.dtype.itemsize])


def memory(tensor: Tensor) -> memoryview:
    """The bytes of a tensor that is in order; the view keeps the tensor alive."""
    if not tensor.nbytes:
        return memoryview(b"")
    # torch has no buffer protocol of its own, and NumPy need not be installed.
    array = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    array.owner = tensor  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def from_bytes(data: Tensor, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int] | None) -> Tensor:
    """A tensor made of bytes that are in order, without a copy unless its strides are others."""
    if strides is None:
        return data.view(dtype).view(tuple(shape))
    width = _SAME_WIDTH[dtype.itemsize]
    strided = torch.empty_strided(tuple(shape), tuple(strides), dtype=width)
    return strided.copy_(data.view(width).view(tuple(shape))).view(dtype)


def own_strides(tensor: Tensor) -> tuple[int, ...] | None:
    """The strides of a tensor that fills its memory in another order, such as channels last; else ``None``.

    They are kept because the other order makes sums in another order, which are not the same in every bit.
    """
    if tensor.is_contiguous() or not fills(tensor.shape, tensor.stride()):
        return None
    return tensor.stride()


def fills(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each place in memory is used once, in whatever order.

    >>> fills((2, 3), (1, 2)), fills((2, 3), (0, 1))
    (True, False)
    """
    if len(shape) != len(strides) or math.prod(shape) == 0:
        return False
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return all(stride >= 0 for stride in strides)
