"""Callers' arrays as CuPy arrays and back. float16 and bfloat16 travel as their bits."""

import sys
from functools import cache
from typing import Any

import numpy as np

from eqsat.codegen.host.arrays import check_dense, titled
from eqsat.errors import ArgumentError
from eqsat.graph.dtypes import BY_NAME, DType

from .launch import import_cupy


def library_of(value: Any) -> str:
    """The name of the package that an array's type comes from."""
    return type(value).__module__.split(".")[0]


def carrier(dtype: DType) -> np.dtype:
    """The dtype that carries an element on the device: narrow floats as unsigned integers."""
    return _bits(dtype.itemsize) if dtype.compute != dtype else dtype.numpy


def _bits(itemsize: int) -> np.dtype:
    return np.dtype(f"uint{8 * itemsize}")


def as_cupy(value: Any, name: str | None) -> Any:
    """The elements of an input, or with no name of `out=`, on the device; narrow floats viewed as
    unsigned integers.
    """
    cupy = import_cupy()
    library = library_of(value)
    if library == "torch" and (lent := _lent(value)) is not None:
        return lent
    if library == "torch":
        check_dense(value, name)
    narrow = library == "torch" and value.element_size() <= 2 and value.is_floating_point()
    if library == "torch":
        value = value.detach()
        if narrow:
            bits = {1: "uint8", 2: "int16"}[value.element_size()]
            value = value.contiguous().view(getattr(sys.modules["torch"], bits))
        array = cupy.from_dlpack(value) if value.is_cuda else cupy.asarray(value.numpy())
    elif isinstance(value, np.ndarray | np.generic):
        plain = np.asarray(value, order="C")
        own = plain.dtype
        array = cupy.asarray(plain.view(_bits(own.itemsize)) if _is_narrow(own) else plain)
    elif hasattr(value, "__cuda_array_interface__") or hasattr(value, "__dlpack__"):
        array = cupy.asarray(value)
    else:
        raise ArgumentError(
            f"{titled(name)} is of type {type(value).__name__}; pass a CuPy, NumPy or DLPack array."
        )
    if _is_narrow(array.dtype) or narrow:
        return cupy.ascontiguousarray(array).view(_bits(array.dtype.itemsize))
    return array


def borrowed(shape: tuple[int, ...], dtype: DType, like: Any) -> tuple[Any, Any] | None:
    """An uninitialised tensor of torch and its memory as a CuPy array; None where `_lent` is."""
    torch = sys.modules["torch"]
    if not like.is_cuda:
        return None
    tensor = torch.empty(shape, dtype=getattr(torch, dtype.name), device=like.device)
    array = _lent(tensor)
    return None if array is None else (tensor, array)


def _lent(tensor: Any) -> Any:
    """A torch tensor's memory as a CuPy array, without DLPack, which orders streams and takes ten
    times as long; None where the tensor is no plain one of this device, or the streams differ.
    """
    if not tensor.is_cuda or tensor.layout is not sys.modules["torch"].strided or tensor.is_neg():
        return None
    if not tensor.is_contiguous() or not tensor.numel():
        return None
    cuda, number = import_cupy().cuda, tensor.device.index
    dtype, stream = _carrier_of(tensor.dtype), cuda.get_current_stream().ptr
    if dtype is None or number != cuda.runtime.getDevice() or stream != stream_of_torch(number):
        return None
    memory = cuda.UnownedMemory(tensor.data_ptr(), tensor.nbytes, tensor, number)
    return import_cupy().ndarray(tensor.shape, dtype, cuda.MemoryPointer(memory, 0))


def stream_of_torch(device: int) -> int:
    """The address of torch's current stream, by the short way where there is one."""
    torch = sys.modules["torch"]
    short = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return short(device) if short else torch.cuda.current_stream(device).cuda_stream


@cache
def _carrier_of(dtype: Any) -> np.dtype | None:
    """What carries the elements of a dtype of torch; None where programs have no such dtype."""
    known = BY_NAME.get(str(dtype).removeprefix("torch."))
    return known and carrier(known)


def _is_narrow(dtype: np.dtype) -> bool:
    return dtype.itemsize <= 2 and dtype.kind in "fV"


def same_dtype(value: Any, array: Any, wanted: DType) -> bool:
    """Whether a caller's value has the wanted dtype, or the one that carries it."""
    name = str(value.dtype).removeprefix("torch.")
    return name == wanted.name or (name == carrier(wanted).name and wanted.compute != wanted)
