"""Tensor maps: what the tensor memory accelerator is told of an array, encoded by the driver."""

from functools import lru_cache

import numpy as np

from eqsat.errors import UnsupportedError

from ..place.box import LINE, UNIT, TensorBox

_TYPES = {
    "bfloat16": "BFLOAT16",
    "float16": "FLOAT16",
    "float32": "FLOAT32",
    "int32": "INT32",
    "float64": "FLOAT64",
    "int64": "INT64",
    "int16": "UINT16",
}
"""Element types by dtype; of one byte, whichever they are, UINT8. Absent elements are zero bits."""


@lru_cache(maxsize=4096)
def tensor_map(box: TensorBox, address: int) -> np.ndarray:
    """The 128-byte map of a box of the buffer at `address`, as an argument for a launch.

    What is copied often the cache fetches from memory 256 bytes at a time, so that it holds what a
    later chunk asks for. A stream that is read once, or a few times, loses a twelfth of memory's
    rate by that, and rows that lie no whole lines apart, of which each touches two, take 11 to 17%
    longer where the cache is the limit (measured on an H200).
    """
    from cuda.bindings import driver

    dimensions, size = box.dimensions, box.dtype.itemsize
    rank = len(dimensions)
    kind = "UINT8" if size == 1 else _TYPES[box.dtype.name]
    lines = all(d.stride * size % LINE == 0 for d in dimensions[1:] if d.extent > 1)
    fetched = 256 if box.often and lines else 128
    swizzle = f"{box.row_bytes}B" if box.swizzled_bytes > UNIT else "NONE"
    encode, extents = (
        driver.cuTensorMapEncodeTiled,
        ([driver.cuuint32_t((d.box - 1) * d.step + 1) for d in dimensions],),
    )
    if box.pixels:
        corners = [d.corners for d in dimensions[1:-1]]
        encode, extents = driver.cuTensorMapEncodeIm2col, (
            [low for low, _ in corners], [high for _, high in corners], box.width, box.pixels,
        )  # fmt: skip
    status, encoded = encode(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}"),
        rank,
        address + box.offset * size,
        [driver.cuuint64_t(d.extent) for d in dimensions],
        [driver.cuuint64_t(d.stride * size) for d in dimensions[1:]],
        *extents,
        [driver.cuuint32_t(d.step) for d in dimensions],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
        getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_L2_{fetched}B"),
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(status):
        raise UnsupportedError(
            f"the driver makes no tensor map of {box.buffer} at {address:#x} with dimensions "
            f"{dimensions}: {status!r}. Choose another operation for the contraction."
        )
    words = np.array([int(word) for word in encoded.opaque], np.uint64)
    return np.frombuffer(words.tobytes(), dtype=np.dtype((np.void, 128)))
