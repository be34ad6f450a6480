"""Float64 products by mma.sync: samples of narrower floats, all of their dtypes made float64."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from cuda_cases import Case, case, convolution, flash, product
from kernel_building import Sample
from kernel_products import attention_online, matmul, matmul_batched

from eqsat.graph.dtypes import DType, bfloat16, float32, float64

M8 = "mma.sync.aligned.m8n8k4.row.col"
M16 = tuple(f"mma.sync.aligned.m16n8k{k}.row.col" for k in (4, 8, 16))  # of sm_90
SIZES = (
    ((33, 37, 19), (32, 16, 16)),
    ((64, 64, 32), (48, 40, 32)),
    ((1, 1, 1), (16, 16, 16)),
    ((17, 24, 41), (32, 32, 8)),
)
TOLERANCE = 1e-12


def early_cases() -> Iterator[Case]:
    """By the instruction of sm_80."""
    return _cases(M8)


def hopper_cases() -> Iterator[Case]:
    """By the instructions that only sm_90 has."""
    for operation in M16:
        yield from _cases(operation)


def _cases(operation: str) -> Iterator[Case]:
    """Both factors across the sum or along it, computed, of several batches, and in registers."""
    shape = operation.split(".")[3]
    for size, tiles in SIZES:
        label = f"f64-{shape}-{'x'.join(map(str, (*size, *tiles)))}"
        for stages in (1, 3):
            yield case(
                f"{label}-stages{stages}",
                wide(product(size, tiles, float32, float32, operation)),
                128,
                stages,
            )
        across = product(size, tiles, float32, float32, operation, True)
        yield case(f"{label}-transposed", wide(across), 64, 2)
        yield case(f"{label}-gelu", wide(matmul(*size, tiles, float32, operation)), 64)
        yield case(f"{label}-batched", wide(matmul_batched(*size, tiles, operation)), 96)
        yield case(f"{label}-online", wide(attention_online(*size, tiles, operation)), 64, 2)
    label = f"f64-{shape}"
    doubled = convolution(6, 9, 20, (2, 4, 16), operation, doubled=True)
    yield case(f"{label}-computed", wide(doubled), 128, 2)
    yield case(f"{label}-flash", wide(flash(33, 37, 19, (32, 32, 1), operation)), 64, 2)


def wide(sample: Sample) -> Sample:
    """The sample on the same values, everything in float64."""
    inputs = {
        name: value.astype(np.float64) if value.dtype in NARROW else value
        for name, value in sample.inputs.items()
    }
    kernel = sample.kernel
    buffers = tuple(replace(b, dtype=_wide(b.dtype)) for b in kernel.buffers)
    phases = tuple(
        replace(
            phase,
            body=tuple(replace(s, dtype=_wide(s.dtype)) for s in phase.body),
            carries=tuple(replace(c, dtype=_wide(c.dtype)) for c in phase.carries),
        )
        for phase in kernel.phases
    )
    made = replace(kernel, buffers=buffers, phases=phases)
    return replace(sample, kernel=made, inputs=inputs, tolerance=TOLERANCE)


NARROW = tuple(dtype.numpy for dtype in (float32, bfloat16))


def _wide(dtype: DType) -> DType:
    return float64 if dtype in (float32, bfloat16) else dtype
