"""The matrix operations of a warpgroup: shapes and instruction text of wgmma.mma_async (sm_90a).

All of them are m64: warp w of the four holds rows 16 w + lane/4 + {0, 8} of the result and columns
8 j + 2 (lane%4) + {0, 1}. The right factor, and unless it is held in registers the left one, lies
in shared memory as rows of 32, 64 or 128 bytes that are swizzled as the tensor memory accelerator
writes them. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate".
"""

from dataclasses import dataclass
from itertools import product

from eqsat.graph.dtypes import BY_NAME, DType, bfloat16

WARPGROUP = 128
WARPGROUP_ROWS = 64


@dataclass(frozen=True)
class WarpgroupOperation:
    """d[m,n] += a[m,k] * b[k,n] by one warpgroup, m = 64; a of dtype `operand`, b of `other`.

    `transposable`: the factors in shared memory may have m, or n, contiguous instead of k.
    """

    instruction: str
    n: int
    k: int
    operand: DType
    other: DType
    result: DType
    transposable: bool

    @property
    def packed(self) -> int:
        """Elements of an operand in one 32-bit register."""
        return 4 // self.operand.itemsize

    @property
    def halves(self) -> int:
        """Groups of four lanes' registers along k: 16 bytes of k each."""
        return self.k * self.operand.itemsize // 16

    @property
    def left_registers(self) -> int:
        """Registers of a left factor that a thread holds."""
        return 2 * self.halves

    @property
    def function(self) -> str:
        """The name of the device function around the instruction, both factors in shared memory."""
        return self.instruction.replace(".", "_")

    def name(self, held: bool) -> str:
        """The device function's name; `held`: the left factor in registers."""
        return self.function + ("_held" if held else "")

    def definition(self, held: bool) -> str:
        """The device function: accumulators, left factor, right factor, whether to accumulate.

        Template arguments say whether m and n are contiguous, for 16-bit operands.
        """
        count = self.n // 2
        letter, kind = ("f", "float") if self.result.kind == "float" else ("r", "int")
        results = ", ".join(f'"+{letter}"(d{i})' for i in range(count))
        parameters = ", ".join(f"{kind}& d{i}" for i in range(count))
        group = ", ".join(f"%{i}" for i in range(count))
        if held:
            left = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
            inputs = ['"r"(a[0])', '"r"(a[1])', '"r"(a[2])', '"r"(a[3])']
            parameter = "const unsigned* a"
        else:
            left, inputs, parameter = f"%{count}", ['"l"(a)'], "unsigned long long a"
        at = count + len(inputs)
        inputs += ['"l"(b)', '"r"(accumulate)']
        tail = "p"
        template = ""
        if self.result.kind == "float":
            tail += ", 1, 1"
        if self.transposable:
            sides = ["Columns"] if held else ["Rows", "Columns"]
            template = f"template <{', '.join(f'int {side}' for side in sides)}>\n"
            tail += "".join(f", %{at + 2 + i}" for i in range(len(sides)))
            inputs += [f'"n"({side})' for side in sides]
        return f"""
{template}__device__ __forceinline__ void {self.name(held)}(
    {parameters}, {parameter}, unsigned long long b, int accumulate) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{at + 1}, 0;\\n"
        "{self.instruction} {{{group}}}, {left}, %{at}, {tail};\\n}}"
        : {results}
        : {", ".join(inputs)});
}}"""


_NAMES = {
    "bfloat16": "bf16", "float16": "f16", "float32": "tf32", "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2", "int8": "s8", "uint8": "u8", "int32": "s32",
}  # fmt: skip


def _rows(left: str, right: str, result: str) -> list[WarpgroupOperation]:
    a, b, d = BY_NAME[left], BY_NAME[right], BY_NAME[result]
    kind = "f32" if result == "float32" else _NAMES[result]
    k = 32 // a.itemsize
    columns = [n for n in range(8, 257, 8) if result != "int32" or n % 16 == 0 or n in (8, 24)]
    return [
        WarpgroupOperation(
            f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{kind}.{_NAMES[left]}.{_NAMES[right]}",
            n, k, a, b, d, a.itemsize == 2,
        )
        for n in columns
    ]  # fmt: skip


_EIGHT = {"float32": ("float8_e4m3fn", "float8_e5m2"), "int32": ("int8", "uint8")}

WARPGROUP_TABLE: tuple[WarpgroupOperation, ...] = (
    *_rows("bfloat16", "bfloat16", "float32"),
    *_rows("float16", "float16", "float32"),
    *_rows("float32", "float32", "float32"),
    *(
        row
        for result, kinds in _EIGHT.items()
        for pair in product(kinds, kinds)
        for row in _rows(*pair, result)
    ),
)
"""One row for each instruction. A float32 operand of a tf32 instruction is cut to tf32."""

STORED_TERMS: frozenset[str] = frozenset(
    row.instruction for row in WARPGROUP_TABLE if row.operand == bfloat16
)
"""Invocation names by which the terms of float32 factors can be multiplied."""
