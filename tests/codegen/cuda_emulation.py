"""Runs emitted CUDA on the CPU: every thread of a block is a coroutine, in lockstep at barriers.

The kernel's source is compiled by g++ with the device functions that hold PTX replaced by the
meanings that the PTX ISA gives. A round runs each thread to its next barrier or shuffle; all must
reach the same one. Between them threads run in either order, so a missing barrier shows as a wrong
answer. Shared memory starts as NaN; a pending asynchronous copy leaves NaN in its target.
"""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from eqsat.codegen.cuda_emit import CudaSource
from eqsat.codegen.cuda_math import storage_type
from eqsat.codegen.cuda_operations import TABLE, MatrixOperation
from eqsat.codegen.cuda_prelude import FUNCTIONS, load_matrix_name
from eqsat.kernel import Kernel

COMPILER = shutil.which("g++")
SHARED_LIMIT = 1 << 18

SHIM = r"""
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __syncthreads() pause_at(__LINE__)

struct Dimension { unsigned x; };
static Dimension threadIdx, blockIdx;
alignas(1024) static unsigned char shared[SHARED_LIMIT];

struct Fiber { ucontext_t context; std::vector<char> stack; int site; };
struct Copy { void* target; const void* source; int bytes; bool exists; };
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static std::function<void()> body;
static uint64_t slots[1024][8];
static std::vector<std::vector<Copy>> copies[1024];
static const char* failure;

static void pause_at(int site) {
    fibers[threadIdx.x].site = site;
    swapcontext(&fibers[threadIdx.x].context, &scheduler);
}
static void start() { body(); fibers[threadIdx.x].site = -1; }

static int run_block(unsigned number, int threads, int shared_bytes, int reversed) {
    memset(shared, 0xff, sizeof shared);
    fibers.resize(threads);
    for (int t = 0; t < threads; ++t) {
        Fiber& fiber = fibers[t];
        fiber.stack.resize(1 << 17);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, start, 0);
        copies[t].assign(1, {});
    }
    blockIdx.x = number;
    do {
        for (int n = 0; n < threads; ++n) {
            threadIdx.x = reversed ? threads - 1 - n : n;
            swapcontext(&scheduler, &fibers[threadIdx.x].context);
        }
        for (Fiber& fiber : fibers)
            if (fiber.site != fibers[0].site) return 1;
    } while (fibers[0].site != -1);
    for (int n = shared_bytes; n < SHARED_LIMIT; ++n)
        if (shared[n] != 0xff) return 2;
    return failure ? 3 : 0;
}

template <typename T> T exchange(T value, int from, int site) {
    memcpy(slots[threadIdx.x], &value, sizeof value);
    pause_at(site);
    T result;
    memcpy(&result, slots[from], sizeof result);
    pause_at(site + 1);
    return result;
}
template <typename T> T __shfl_xor_sync(unsigned, T value, int lane) {
    return exchange(value, threadIdx.x ^ lane, 1000000);
}
template <typename T> T __shfl_up_sync(unsigned, T value, int delta) {
    const int lane = threadIdx.x % 32;
    return exchange(value, lane >= delta ? threadIdx.x - delta : threadIdx.x, 1000002);
}
template <typename T> T __shfl_sync(unsigned, T value, int lane) {
    return exchange(value, threadIdx.x / 32 * 32 + lane, 1000004);
}

template <typename To, typename From> To bits_as(From from) {
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static float __int_as_float(int bits) { return bits_as<float>(bits); }
static float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }
static unsigned __float_as_uint(float value) { return bits_as<unsigned>(value); }
static double __longlong_as_double(long long bits) { return bits_as<double>(bits); }

static unsigned short bfloat16_bits(float value) {
    const unsigned bits = __float_as_uint(value);
    return value != value ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static unsigned short float16_bits(double value) {
    return bits_as<unsigned short>(_Float16(value));
}

static void load_matrices(unsigned* fragment, const void* row, int count, bool transposed) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 * 32;
    if (uintptr_t(row) % 16) failure = "ldmatrix row is not aligned";
    slots[threadIdx.x][0] = uintptr_t(row);
    pause_at(1000006);
    for (int q = 0; q < count; ++q) {
        uint16_t part[2];
        for (int e = 0; e < 2; ++e) {
            const int r = transposed ? lane % 4 * 2 + e : lane / 4;
            const int c = transposed ? lane / 4 : lane % 4 * 2 + e;
            part[e] = ((const uint16_t*)slots[warp + q * 8 + r][0])[c];
        }
        fragment[q] = part[0] | unsigned(part[1]) << 16;
    }
    pause_at(1000007);
}

static double operand(unsigned bits, char kind, int e) {
    const unsigned part = kind == 't' ? bits : kind < 'c' || kind == 'h' ? bits >> 16 * e & 0xffff
                                                                        : bits >> 8 * e & 0xff;
    if (kind == 't') return __uint_as_float(part & 0xffffe000u);
    if (kind == 'b') return __uint_as_float(part << 16);
    if (kind == 'h') return bits_as<_Float16>(uint16_t(part));
    return kind == 's' ? double(int8_t(part)) : double(part);
}
template <typename T>
void multiply(T* d, const unsigned* a, const unsigned* b, int k, char kind, int packed) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 * 32, halves = k / (4 * packed);
    for (int r = 0; r < 2 * halves; ++r) slots[threadIdx.x][r] = a[r];
    for (int r = 0; r < halves; ++r) slots[threadIdx.x][4 + r] = b[r];
    pause_at(1000008);
    for (int n = 0; n < 4; ++n) {
        const int column = lane % 4 * 2 + n % 2;
        double sum = d[n];
        for (int i = 0; i < k; ++i) {
            const int quad = i % (4 * packed) / packed, half = i / (4 * packed), e = i % packed;
            const auto& left = slots[warp + lane / 4 * 4 + quad];
            const auto& right = slots[warp + column * 4 + quad];
            sum += operand(left[n / 2 + 2 * half], kind, e) * operand(right[4 + half], kind, e);
        }
        d[n] = T(sum);
    }
    pause_at(1000009);
}
"""

_PACK = "inline unsigned pack_{0}(float a, float b) {{ return {0}_bits(a) | {0}_bits(b) << 16; }}"
_TO = "inline unsigned short to_{0}({1} value) {{ return {0}_bits(value); }}"
_EXTREME = """template <typename T> T {0}(T a, T b) {{ return (a {1} b || a != a) ? a : b; }}"""
HOST = {
    "maximum": _EXTREME.format("maximum", ">="),
    "minimum": _EXTREME.format("minimum", "<="),
    "to_bfloat16": _TO.format("bfloat16", "float"),
    "to_float16": _TO.format("float16", "double"),  # exact for a float argument
    "from_float16": "inline float from_float16(unsigned short b) { return bits_as<_Float16>(b); }",
    "pack_bfloat16": _PACK.format("bfloat16"),
    "pack_float16": _PACK.format("float16"),
    "round_tf32": "inline unsigned round_tf32(float a) "
    "{ return (__float_as_uint(a) + 0x1000u) & 0xffffe000u; }",
    "copy_async": """template <int Bytes>
void copy_async(void* target, const void* source, bool exists) {
    if (uintptr_t(target) % Bytes || (exists && uintptr_t(source) % Bytes)) failure = "cp.async";
    memset(target, 0xff, Bytes);
    copies[threadIdx.x].back().push_back({target, source, Bytes, exists});
}""",
    "commit_copies": "inline void commit_copies() { copies[threadIdx.x].push_back({}); }",
    "wait_copies": """template <int Pending> void wait_copies() {
    auto& groups = copies[threadIdx.x];
    while (groups.size() > Pending + 1) {
        for (Copy& c : groups.front())
            c.exists ? memcpy(c.target, c.source, c.bytes) : memset(c.target, 0, c.bytes);
        groups.erase(groups.begin());
    }
}""",
}
for _n in (1, 2, 4):
    for _t in (False, True):
        _name = load_matrix_name(_n, _t)
        HOST[_name] = f"""inline void {_name}(unsigned* fragment, const void* row) {{
    load_matrices(fragment, row, {_n}, {int(_t)});
}}"""


def _host_operation(operation: MatrixOperation) -> str:
    kind = "float" if operation.result.kind == "float" else "int"
    letter = {"bfloat16": "b", "float16": "h", "float32": "t", "int8": "s", "uint8": "u"}
    call = f"{operation.k}, '{letter[operation.operand.name]}', {operation.packed}"
    return f"""inline void {operation.function}({kind}& d0, {kind}& d1, {kind}& d2, {kind}& d3,
        const unsigned* a, const unsigned* b) {{
    {kind} d[4] = {{d0, d1, d2, d3}};
    multiply(d, a, b, {call});
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}}"""


def translate(text: str) -> str:
    """Emitted source with the functions that hold PTX replaced."""
    for name, host in HOST.items():
        text = text.replace(FUNCTIONS[name].strip(), host)
    for operation in TABLE:
        text = text.replace(operation.definition.strip(), _host_operation(operation))
    assert "asm" not in text
    return re.sub(r"extern __shared__.*\n", "\n", text).replace('extern "C"', "")


class Emulator:
    """Kernels compiled together; `run(number, arrays)` launches one of them."""

    def __init__(self, kernels: Sequence[Kernel], sources: Sequence[CudaSource], folder: Path):
        self.kernels, self.sources = kernels, sources
        parts = [SHIM.replace("SHARED_LIMIT", str(SHARED_LIMIT))]
        for number, (kernel, source) in enumerate(zip(kernels, sources, strict=True)):
            arguments = ", ".join(
                f"({storage_type(b.dtype)}*)p[{i}]" for i, b in enumerate(kernel.buffers)
            )
            parts.append(f"namespace n{number} {{\n{translate(source.text)}\n}}")
            parts.append(
                f'extern "C" int launch_{number}(void** p, int block, int reversed) {{\n'
                f"    body = [=] {{ n{number}::{source.entry}({arguments}); }};\n"
                f"    return run_block(block, {source.threads}, {source.shared_bytes}, reversed);"
                "\n}"
            )
        path = folder / "kernels.cpp"
        path.write_text("\n".join(parts))
        library = folder / "kernels.so"
        command = [COMPILER or "g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-o"]
        subprocess.run([*command, str(library), str(path)], check=True)
        self.library = ctypes.CDLL(str(library))

    def run(self, number: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Every block, in order, on arrays that the kernel's stores write in place."""
        kernel, source = self.kernels[number], self.sources[number]
        pointers = [arrays[b.name].ctypes.data for b in kernel.buffers]
        launch = getattr(self.library, f"launch_{number}")
        for block in range(source.grid):
            status = launch((ctypes.c_void_p * len(pointers))(*pointers), block, block % 2)
            faults = ("", "threads diverge at a barrier", "shared memory overrun", "misaligned")
            assert not status, f"{kernel.name}, block {block}: {faults[status]}\n{source.text}"
