"""Tensors as bytes: which can be saved, names of dtypes in files, and conversions."""

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
"""Names of dtypes in safetensors. Other dtypes are stored as bytes."""
READ_AS: Final[Mapping[str, torch.dtype]] = MappingProxyType({name: dtype for dtype, name in STORED_AS.items()})
DTYPES: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
)
"""Every dtype of torch by its name."""
QUANTIZED: Final = frozenset({torch.qint8, torch.qint32, torch.quint8, torch.quint4x2, torch.quint2x4})
# Copies use integers of the same width, because torch cannot copy some of its dtypes.
_SAME_WIDTH: Final[Mapping[int, torch.dtype]] = MappingProxyType(
    {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
)


def dtype_named(name: object) -> torch.dtype | None:
    """Return the dtype of this name, or ``None`` if it is unknown or cannot be saved."""
    found = DTYPES.get(name) if isinstance(name, str) else None
    return None if found in QUANTIZED else found


def refusal(tensor: Tensor) -> str:
    """Return why a tensor cannot be saved and what to save instead, or an empty string.

    >>> refusal(torch.zeros(2))
    ''
    >>> refusal(torch.zeros(2, device="meta"))
    'a tensor on the meta device has no values. Materialize it first.'
    """
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        kind = type(tensor).__name__
        return f"a {kind} holds its values in other tensors. Save those, or the full_tensor() of a DTensor."
    if is_lazy(tensor):
        return "a lazy parameter has no values yet. Run a batch through the model first."
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else f"of the layout {tensor.layout}"
        return f"a tensor that is {kind} is not dense. Save the dense tensors of which it consists."
    if tensor.is_quantized or tensor.dtype in QUANTIZED:
        return f"a quantized tensor ({tensor.dtype}) also has a scale. Save int_repr() and the scale."
    if tensor.device.type == "meta":
        return "a tensor on the meta device has no values. Materialize it first."
    if _end(tensor) > tensor.untyped_storage().nbytes():  # Reading it would crash the process.
        return "a tensor whose memory has been freed has no values. Gather it first."
    return ""


def _end(tensor: Tensor) -> int:
    """Return the byte after the last element of a tensor in its storage."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (int(tensor.storage_offset()) + last + 1) * tensor.element_size()


def identity(tensor: Tensor) -> tuple[object, ...] | None:
    """Return a key that is equal for equal views of the same memory, or ``None`` without memory."""
    tensor = part_of(tensor)  # The memory of a sharded tensor is that of its local shard.
    if not tensor.numel():
        return None
    lazy = (tensor.is_conj(), tensor.is_neg())
    return (str(tensor.device), tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), lazy)


def on_cpu_in_order(tensor: Tensor) -> Tensor:
    """Return the values on the CPU in contiguous memory, without a copy if they already are."""
    plain = tensor.detach().as_subclass(Tensor).resolve_conj().resolve_neg().cpu()
    if plain.is_contiguous():
        return plain
    return as_bits(plain).contiguous().view(plain.dtype)


def as_bits(tensor: Tensor) -> Tensor:
    """Return a view as integers of the same width, which torch can copy without changing bits."""
    return tensor.view(_SAME_WIDTH[tensor.dtype.itemsize])


def memory(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor. The view keeps the tensor alive."""
    if not tensor.nbytes:
        return memoryview(b"")
    # torch does not offer the buffer protocol, and NumPy may not be installed.
    array = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    array.owner = tensor  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def from_bytes(data: Tensor, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int] | None) -> Tensor:
    """Return a tensor from contiguous bytes, without a copy unless it has other strides."""
    if strides is None:
        return data.view(dtype).view(tuple(shape))
    width = _SAME_WIDTH[dtype.itemsize]
    strided = torch.empty_strided(tuple(shape), tuple(strides), dtype=width)
    return strided.copy_(data.view(width).view(tuple(shape))).view(dtype)


def own_strides(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides of a dense tensor that is not contiguous, else ``None``.

    Strides are saved because they decide the order in which values are added, and so the last bits of a sum.
    """
    if tensor.is_contiguous() or not fills(tensor.shape, tensor.stride()):
        return None
    return tensor.stride()


def fills(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if the strides use each position in memory exactly once, in any order.

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
