"""Hand-built sample kernels, each with inputs and the answer computed directly in NumPy.

`SAMPLES` lists them all; `arrays` gives the buffers to run a sample on, `check` compares.
"""

from collections.abc import Callable

from kernel_building import (
    TILES,
    Body,
    Sample,
    Tiles,
    arrays,
    assert_close,
    at,
    buffers,
    check,
    normal,
)
from kernel_outer import farthest, scaled_distances
from kernel_products import (
    attention,
    attention_blas,
    attention_online,
    attention_online_blas,
    matmul,
    matmul_batched,
    matmul_batched_blas,
    matmul_bfloat16,
    matmul_blas,
    matmul_float16,
    matmul_triangle,
    matmul_triangle_blas,
    matmul_whole,
)
from kernel_rows import (
    argmax,
    broadcast,
    column_reduce,
    elementwise_bfloat16,
    elementwise_chain,
    elementwise_float16,
    gather,
    integer_reduce,
    layer_norm,
    prefix_product,
    prefix_sum,
    reshape,
    row_reduce,
    row_reduction,
    scatter,
    softmax_online,
    softmax_resident,
    transpose,
    window,
)
from kernel_scans import recurrence, row_recurrence, row_scan

__all__ = [
    "SAMPLES",
    "TILES",
    "Body",
    "Sample",
    "Tiles",
    "argmax",
    "arrays",
    "assert_close",
    "at",
    "attention",
    "attention_blas",
    "attention_online",
    "attention_online_blas",
    "broadcast",
    "buffers",
    "check",
    "column_reduce",
    "elementwise_bfloat16",
    "elementwise_chain",
    "elementwise_float16",
    "farthest",
    "gather",
    "integer_reduce",
    "layer_norm",
    "matmul",
    "matmul_batched",
    "matmul_batched_blas",
    "matmul_bfloat16",
    "matmul_blas",
    "matmul_float16",
    "matmul_triangle",
    "matmul_triangle_blas",
    "matmul_whole",
    "normal",
    "prefix_product",
    "prefix_sum",
    "recurrence",
    "reshape",
    "row_recurrence",
    "row_reduce",
    "row_reduction",
    "row_scan",
    "scaled_distances",
    "scatter",
    "softmax_online",
    "softmax_resident",
    "transpose",
    "window",
]

SAMPLES: dict[str, Callable[..., Sample]] = {
    sample.__name__: sample
    for sample in (
        elementwise_chain, elementwise_float16, elementwise_bfloat16, broadcast, transpose, reshape,
        window, gather, scatter, row_reduce, column_reduce, integer_reduce, softmax_resident,
        softmax_online, layer_norm, argmax, prefix_sum, prefix_product, row_scan, row_recurrence,
        recurrence, matmul, matmul_float16, matmul_bfloat16, matmul_blas, matmul_whole,
        matmul_batched, matmul_batched_blas, attention, attention_blas, attention_online,
        attention_online_blas, farthest, scaled_distances, matmul_triangle, matmul_triangle_blas,
    )
}  # fmt: skip
