"""Makes SciPy's sgemm and dgemm known to LLVM under names of our own, and calls them.

Compiled code refers to the names, not the addresses, so it can be kept on disk. Importing this
module (generated source that calls `gemm` does) also keeps that BLAS to one thread from then on.
"""

from pathlib import Path

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic
from threadpoolctl import ThreadpoolController

from .runtime import address

SYMBOLS = {"float32": "eqsat_scipy_sgemm", "float64": "eqsat_scipy_dgemm"}

for _dtype, _routine in (("float32", "sgemm"), ("float64", "dgemm")):
    llvm.add_symbol(
        SYMBOLS[_dtype], get_cython_function_address("scipy.linalg.cython_blas", _routine)
    )


def _scalar_pointer(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    return cgutils.alloca_once_value(builder, value)


def _limit_threads() -> None:
    """One thread for SciPy's BLAS: the tiles of a kernel are the parallel work.

    In the wheels of NumPy and SciPy each has a BLAS of its own, and NumPy's is left alone.
    """
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    own = [library for library in libraries if "scipy" in Path(library.filepath).parent.as_posix()]
    for library in own or libraries:
        library.set_num_threads(1)


_limit_threads()


@intrinsic
def gemm(typingctx, trans_a, trans_b, m, n, k, a, at_a, ld_a, b, at_b, ld_b, beta, c, at_c, ld_c):
    """c[m,n] = sum_k a[m,k] b[k,n] + beta * c, row-major, by the BLAS that SciPy links.

    `trans_a`: a lies as [k,m]; `at_*` are offsets, `ld_*` row strides in elements. BLAS is
    column-major: it gets the transposed problem, c' = b' a'.
    """

    def emit(context, builder, signature, arguments):
        (ta, tb, m, n, k, a, at_a, ld_a, b, at_b, ld_b, beta, c, at_c, ld_c) = arguments
        kinds = signature.args
        real = context.get_value_type(a_kind.dtype)
        int32 = ir.IntType(32)

        def integer(value):
            return _scalar_pointer(builder, builder.trunc(value, int32))

        def letter(flag):
            byte = ir.IntType(8)
            chosen = builder.select(flag, ir.Constant(byte, ord("T")), ir.Constant(byte, ord("N")))
            return _scalar_pointer(builder, chosen)

        def matrix(position, array, offset):
            return address(context, builder, kinds[position], array, offset)

        operands = (
            letter(tb), letter(ta), integer(n), integer(m), integer(k),
            _scalar_pointer(builder, ir.Constant(real, 1.0)),
            matrix(8, b, at_b), integer(ld_b),
            matrix(5, a, at_a), integer(ld_a),
            _scalar_pointer(builder, beta),
            matrix(12, c, at_c), integer(ld_c),
        )  # fmt: skip
        kind = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
        name = SYMBOLS[str(a_kind.dtype)]
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(function, operands)
        return context.get_dummy_value()

    a_kind, i, flag = a, types.intp, types.boolean
    signature = types.void(flag, flag, i, i, i, a, i, i, b, i, i, a.dtype, c, i, i)
    return signature, emit
