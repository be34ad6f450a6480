"""The matrix operations that the CUDA target can emit: shapes and fragments of mma.sync.

All of them are m16n8: a warp's lane holds rows lane/4 and lane/4 + 8 of the left factor and of the
result, column lane/4 of the right factor, and result columns 2 (lane%4) + {0, 1}. An operand
register holds `packed` consecutive k, of which it has 32 bits, or one float64. Source: PTX ISA,
"Matrix Fragments for mma".
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import BY_NAME, DType, float32, float64

from ..prelude.math import storage_type
from .warpgroup_operations import WARPGROUP_TABLE, WarpgroupOperation

ROWS, COLUMNS = 16, 8
LANES = 4  # of a warp, side by side along k
_LETTERS = {"double": "d", "float": "f", "int": "r", "unsigned": "r"}  # of constraints, by C type


@dataclass(frozen=True)
class MatrixOperation:
    """d[m,n] += a[m,k] * b[k,n] by one warp, m = 16 and n = 8.

    An instruction of fewer `rows` is issued for one part of them after the other.
    """

    instruction: str
    k: int
    operand: DType
    result: DType
    rows: int = ROWS

    @property
    def other(self) -> DType:
        """The dtype of the right factor."""
        return self.operand

    @property
    def register(self) -> str:
        """The C type of an operand register."""
        return "double" if self.operand == float64 else "unsigned"

    @property
    def packed(self) -> int:
        """Elements of an operand in one register."""
        return max(4 // self.operand.itemsize, 1)

    @property
    def is_rounded(self) -> bool:
        """Whether elements are rounded on their way: of float32 the instruction takes tf32."""
        return self.operand == float32

    @property
    def halves(self) -> int:
        """Registers of four lanes along k."""
        return self.k // (LANES * self.packed)

    @property
    def left_registers(self) -> int:
        return 2 * self.halves

    @property
    def right_registers(self) -> int:
        return self.halves

    @property
    def function(self) -> str:
        """The name of the device function around the instruction."""
        return self.instruction.replace(".", "_")

    @property
    def definition(self) -> str:
        """That device function."""
        kind = storage_type(self.result)
        parts = ROWS // self.rows
        statements = [self._statement(part, parts, _LETTERS[kind]) for part in range(parts)]
        parameters = ", ".join(f"{kind}& d{i}" for i in range(4))
        return f"""
__device__ __forceinline__ void {self.function}({parameters}, const {self.register}* a,
                                                const {self.register}* b) {{
{chr(10).join(statements)}
}}"""

    def _statement(self, part: int, parts: int, letter: str) -> str:
        """The instruction on one of several parts of the rows: every so many of their registers."""
        results = [f"d{i}" for i in range(4 // parts * part, 4 // parts * (part + 1))]
        left = [f"a[{i}]" for i in range(part, self.left_registers, parts)]
        right = [f"b[{i}]" for i in range(self.right_registers)]

        def group(start: int, count: int) -> str:
            return "{" + ", ".join(f"%{i}" for i in range(start, start + count)) + "}"

        d, a, b = len(results), len(left), len(right)
        form = f"{group(0, d)}, {group(d, a)}, {group(d + a, b)}, {group(0, d)}"
        own = _LETTERS[self.register]
        outputs = ", ".join(f'"+{letter}"({name})' for name in results)
        inputs = ", ".join(f'"{own}"({name})' for name in (*left, *right))
        return f"""    asm("{self.instruction} {form};"
        : {outputs}
        : {inputs});"""


def _row(shape: str, operand: str, name: str, result: str) -> MatrixOperation:
    kind = {"float32": "f32", "float64": "f64", "int32": "s32"}[result]
    instruction = f"mma.sync.aligned.{shape}.row.col.{kind}.{name}.{name}.{kind}"
    rows, _, k = (int(extent) for extent in re.split("[mnk]", shape)[1:])
    return MatrixOperation(instruction, k, BY_NAME[operand], BY_NAME[result], rows)


TABLE: tuple[MatrixOperation, ...] = (
    _row("m16n8k8", "bfloat16", "bf16", "float32"),
    _row("m16n8k16", "bfloat16", "bf16", "float32"),
    _row("m16n8k8", "float16", "f16", "float32"),
    _row("m16n8k16", "float16", "f16", "float32"),
    _row("m16n8k4", "float32", "tf32", "float32"),
    _row("m16n8k8", "float32", "tf32", "float32"),
    _row("m16n8k16", "int8", "s8", "int32"),
    _row("m16n8k32", "int8", "s8", "int32"),
    _row("m16n8k16", "uint8", "u8", "int32"),
    _row("m16n8k32", "uint8", "u8", "int32"),
    _row("m8n8k4", "float64", "f64", "float64"),
    _row("m16n8k4", "float64", "f64", "float64"),
    _row("m16n8k8", "float64", "f64", "float64"),
    _row("m16n8k16", "float64", "f64", "float64"),
)
"""One row for each instruction. A float32 operand of a tf32 instruction is rounded to tf32. Of
float64, m8n8k4 is that of sm_80, m16n8 are those of sm_90.
"""

_TYPES = ("f32", "f64", "s32")  # of results: where an instruction's types begin


def _untyped(instruction: str) -> str:
    parts = instruction.split(".")
    return ".".join(parts[: min(parts.index(kind) for kind in _TYPES if kind in parts)])


_BY_NAME: dict[tuple[str, DType, DType], MatrixOperation | WarpgroupOperation] = {
    (name, row.operand, row.other): row
    for row in (*TABLE, *WARPGROUP_TABLE)
    for name in (row.instruction, _untyped(row.instruction))
}

OPERATIONS: frozenset[str] = frozenset(name for name, *_ in _BY_NAME)
"""Invocation names with an emitter row, with their types (`....f32.bf16.bf16.f32`) or without."""


def find(
    invocation: str, left: DType, right: DType, result: DType
) -> MatrixOperation | WarpgroupOperation:
    """The row of an invocation name for factors and result of these dtypes."""
    row = _BY_NAME.get((invocation, left, right))
    if row is None or row.result != result:
        alike = {
            name: row
            for (name, a, b), row in _BY_NAME.items()
            if (a, b) == (left, right) and name != row.instruction
        }
        forms = sorted(
            f"{name} (to {row.result})"
            for name, row in alike.items()
            if isinstance(row, MatrixOperation) or row.n in (64, 128, 256)
        )
        raise UnsupportedError(
            f"the CUDA target cannot emit the operation {invocation!r} for factors of {left} and "
            f"{right} and a {result} result. For such factors it has: "
            f"{', '.join(forms) or 'none'}. Choose one of these, or leave the contraction's "
            f"operation empty."
        )
    return row


def find_shape(
    name: str, extents: Iterable[int], left: DType, right: DType, result: DType
) -> MatrixOperation:
    """The row whose fragments a native implementation takes: that of the same shape and dtypes."""
    shape, dtypes = tuple(extents), (left, right, result)
    for row in TABLE:
        if (ROWS, COLUMNS, row.k) == shape and (row.operand, row.other, row.result) == dtypes:
            return row
    raise UnsupportedError(
        f"the native implementation of {name} computes {' x '.join(map(str, shape))} of {left} by "
        f"{right} to {result}; the CUDA target has fragments for the 16 x 8 x k of mma.sync only. "
        f"Give the operation such extents."
    )
