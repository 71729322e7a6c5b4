"""One view of everything that holds numbers: numpy arrays, CPU tensors, and any writable buffer.

torch is never imported here; a tensor brings its own module.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .errors import LocalProtocolError

__all__ = ["byte_view_of"]

_AVERAGED = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "float64": "float64",
    "complex64": "float32",
    "complex128": "float64",
}
"""dtype of the array → dtype of the elements that are averaged."""


def byte_view_of(
    array: Any, *, what: str, writable: bool, numeric: bool = True
) -> tuple[memoryview, str]:
    """(bytes, element dtype) of `array`, sharing its memory.

    Args:
        array: numpy array, CPU tensor (also pinned), or any object with the buffer protocol.
        what: names the argument in errors, such as "grad".
        writable: whether the array will be written.
        numeric: whether elements are averaged; False accepts every dtype.

    Raises:
        LocalProtocolError: not contiguous, not writable, not on the CPU, sparse, or a dtype that
            cannot be averaged.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        view, dtype = _tensor_bytes(array, torch, what)
    else:
        view, dtype = _array_bytes(array, what)
    if writable and view.readonly:
        raise LocalProtocolError(
            f"{what} is read-only, and its result is written in place: pass a writable copy"
        )
    if numeric:
        if dtype not in _AVERAGED:
            raise LocalProtocolError(
                f"{what} has dtype {dtype}, which has no mean: convert it to one of "
                f"{', '.join(_AVERAGED)}"
            )
        dtype = _AVERAGED[dtype]
    return view, dtype


def _tensor_bytes(tensor: Any, torch: Any, what: str) -> tuple[memoryview, str]:
    if tensor.layout != torch.strided:
        raise LocalProtocolError(
            f"{what} is a sparse tensor ({tensor.layout}): pass {what}.to_dense()"
        )
    if tensor.device.type != "cpu":
        raise LocalProtocolError(
            f"{what} is on {tensor.device}: copy it to the CPU first, such as {what}.cpu()"
        )
    if not tensor.is_contiguous():
        raise LocalProtocolError(f"{what} is not contiguous: pass {what}.contiguous()")
    if tensor.is_conj() or tensor.is_neg():  # resolved in a copy, which would get the result
        raise LocalProtocolError(
            f"{what} is a lazy conjugate or negative: pass {what}.resolve_conj().resolve_neg()"
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    flat = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    if flat.numel() == 0:
        return memoryview(bytearray()), dtype
    return memoryview(flat.reshape(-1).view(torch.uint8).numpy()), dtype


def _array_bytes(array: Any, what: str) -> tuple[memoryview, str]:
    if not isinstance(array, np.ndarray):
        try:
            view = memoryview(array)
        except TypeError as error:
            raise LocalProtocolError(
                f"{what} is a {type(array).__name__}: pass a numpy array, a CPU tensor or a buffer"
            ) from error
        if not view.contiguous:
            raise LocalProtocolError(f"{what} is not contiguous: pass a contiguous copy")
        array = np.asarray(view)
    if not array.flags.c_contiguous:
        raise LocalProtocolError(
            f"{what} is not contiguous (strides {array.strides}): pass "
            f"numpy.ascontiguousarray({what}) and copy the result back"
        )
    if array.dtype.hasobject:
        raise LocalProtocolError(f"{what} holds Python objects: pass an array of numbers")
    if array.dtype.byteorder == (">" if sys.byteorder == "little" else "<"):
        raise LocalProtocolError(
            f"{what} has foreign byte order: pass {what}.astype({what}.dtype.newbyteorder('='))"
        )
    name = "bfloat16" if array.dtype.name == "bfloat16" else str(array.dtype)
    if array.size == 0:
        return memoryview(bytearray()), name
    return memoryview(array.reshape(-1).view(np.uint8)), name
