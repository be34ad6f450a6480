"""Callers' arrays as NumPy arrays of the same memory, and results as the caller's kind.

DLPack has no narrow floats of NumPy's: those of torch travel as their bits.
"""

import sys
from typing import Any

import ml_dtypes
import numpy as np

from eqsat.errors import ArgumentError


def titled(name: str | None) -> str:
    """An input's name as messages say it; None is what the caller gave as `out=`."""
    return "out=" if name is None else f"input {name!r}"


def as_numpy(value: Any, name: str | None) -> np.ndarray:
    """The elements of an input, or with no name of `out=`; ArgumentError if it has none here."""
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(
            f"{titled(name)} is a masked array, whose mask would be lost. Pass .filled(value), or "
            f"the mask as an input of its own."
        )
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if _is_torch(value):
        return _of_torch(value, name)
    if hasattr(value, "__cuda_array_interface__"):
        raise ArgumentError(_on_gpu(name))
    if hasattr(value, "__dlpack__"):
        return _through_dlpack(value, name)
    raise ArgumentError(
        f"{titled(name)} is of type {type(value).__name__}; pass a NumPy array or a DLPack array."
    )


def given_back(array: np.ndarray, like: Any) -> Any:
    """A result as an array of the kind of `like`, of the same memory; itself where the package of
    that kind takes none.
    """
    narrow = array.dtype.isbuiltin != 1
    if _is_torch(like):
        torch: Any = sys.modules["torch"]
        if narrow:
            bits = torch.from_dlpack(array.view(_bits(array.itemsize)))
            return bits.view(getattr(torch, array.dtype.name))
        return torch.from_dlpack(array)
    library = type(like).__module__.split(".")[0]
    if narrow or library in {"numpy", "ml_dtypes", "builtins"}:
        return array
    module = sys.modules[library]
    return module.from_dlpack(array) if hasattr(module, "from_dlpack") else array


def check_dense(tensor: Any, name: str | None) -> None:
    """ArgumentError for a tensor of torch whose elements do not lie in memory as they are."""
    torch: Any = sys.modules["torch"]
    if tensor.layout is not torch.strided:
        found, step = f"has the layout {tensor.layout}", "Pass .to_dense()"
    elif tensor.is_meta:
        found, step = "is on the device meta, which holds no elements", "Pass one that has some"
    elif tensor.is_conj():
        found, step = "is conjugated only when read", "Pass .resolve_conj()"
    elif tensor.is_neg():
        found, step = "is negated only when read", "Pass .resolve_neg()"
    elif tensor.is_quantized:
        found, step = "is quantized", "Pass .dequantize(), or .int_repr()"
    else:
        return
    raise ArgumentError(
        f"{titled(name)} {found}; programs take elements as they lie in memory. {step}."
    )


def _is_torch(value: Any) -> bool:
    """Whether torch, if it is imported at all, has made the value."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _of_torch(tensor: Any, name: str | None) -> np.ndarray:
    check_dense(tensor, name)
    if tensor.is_cuda:
        raise ArgumentError(_on_gpu(name))
    tensor = tensor.detach()
    narrow = getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch."), None)
    if narrow is None or not tensor.is_floating_point():
        return _through_dlpack(tensor, name)
    bits = getattr(sys.modules["torch"], _bits(tensor.element_size()).name)
    return np.from_dlpack(tensor.view(bits)).view(narrow)


def _through_dlpack(value: Any, name: str | None) -> np.ndarray:
    try:
        return np.from_dlpack(value.detach() if hasattr(value, "detach") else value)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        kind, reason = type(value).__name__, str(error).rstrip(".")
        raise ArgumentError(
            f"{titled(name)} of type {kind} and dtype {getattr(value, 'dtype', 'unknown')} gives "
            f"NumPy no memory through DLPack: {reason}. Pass a NumPy array."
        ) from error


def _bits(itemsize: int) -> np.dtype:
    """A dtype that NumPy, DLPack and torch of every version know."""
    return np.dtype({1: "uint8", 2: "int16"}[itemsize])


def _on_gpu(name: str | None) -> str:
    return (
        f"{titled(name)} lies on a GPU, and the program was compiled for the host. Copy it to the "
        f"host, or compile with a GPU spec."
    )
