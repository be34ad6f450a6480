"""Runs emitted CUDA on the CPU: every thread of a block is a coroutine, in lockstep at barriers.

The kernel's source is compiled by g++ with the device functions that hold PTX replaced by the
meanings that the PTX ISA gives. The threads of a warp must reach the same shuffle or `__syncwarp`,
those of a block the same barrier. Between them threads run in either order, so a missing barrier
shows as a wrong answer. Shared memory starts as NaN; a pending asynchronous copy leaves NaN in its
target. `cuda_threads` says in which order threads and what they wait for run.
"""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock

import numpy as np
import pytest
from cuda_async_emulation import ASYNC, tensor_map, translate_async
from cuda_threads import THREADS
from kernel_building import Sample, arrays, check

from eqsat.codegen.cuda.emit import CudaSource, emit
from eqsat.codegen.cuda.place.operations import TABLE, MatrixOperation
from eqsat.codegen.cuda.prelude.functions import FUNCTIONS, load_matrix_name
from eqsat.codegen.cuda.prelude.math import storage_type
from eqsat.codegen.cuda.products.pairs import FUNCTIONS as PAIRS
from eqsat.codegen.cuda.stream_k import FUNCTIONS as SUMS
from eqsat.kernel.ir import Kernel
from eqsat.specs.model import ParallelOperation

COMPILER = shutil.which("g++")
# Fortified, a jump to another stack is refused. Kernels are compiled sooner so than by -O1.
OPTIONS = ("-std=c++20", "-O1", "-U_FORTIFY_SOURCE", "-w", "-fPIC")
OF_KERNELS = '#pragma GCC optimize("Og")'
COMPILING = Lock()
SHARED_LIMIT = 1 << 18
SCHEDULES = 4
GUARD = 64  # elements around each array

SHIM = r"""
struct Copy { void* target; const void* source; int bytes; bool exists; };
static uint64_t slots[MOST_THREADS][12];
static std::vector<std::vector<Copy>> copies[MOST_THREADS];

static void begin_async();
static void begin_block() {
    for (auto& one : copies) one.assign(1, {});
    begin_async();
}

template <typename T> T exchange(T value, int from, int site) {
    memcpy(slots[threadIdx.x], &value, sizeof value);
    stop(WARP, site);
    T result;
    memcpy(&result, slots[from], sizeof result);
    stop(WARP, site + 1);
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

static int __all_sync(unsigned, int yes) {
    int all = 1;
    for (int lane = 0; lane < 32; ++lane)
        all &= exchange(yes != 0, threadIdx.x / 32 * 32 + lane, 1000010 + 2 * lane);
    return all;
}

template <typename To, typename From> To bits_as(From from) {
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static double rsqrt(double x) { return 1.0 / sqrt(x); }
static float __int_as_float(int bits) { return bits_as<float>(bits); }
static float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }
static unsigned __float_as_uint(float value) { return bits_as<unsigned>(value); }
static double __longlong_as_double(long long bits) { return bits_as<double>(bits); }

static unsigned __byte_perm(unsigned low, unsigned high, unsigned selected) {
    const uint64_t bytes = low | uint64_t(high) << 32;
    unsigned found = 0;
    for (int n = 0; n < 4; ++n)
        found |= unsigned(bytes >> (selected >> 4 * n & 7) * 8 & 0xff) << 8 * n;
    return found;
}
static int __float_as_int(float value) { return bits_as<int>(value); }
static long long __double_as_longlong(double value) { return bits_as<long long>(value); }
template <typename T> T atomicAdd(T* target, T value) {
    const T old = *target;
    *target = old + value;
    return old;
}
template <typename T> void atomicMax(T* target, T value) { *target = std::max(*target, value); }
template <typename T> void atomicMin(T* target, T value) { *target = std::min(*target, value); }

struct float4 { float x, y, z, w; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
#define __threadfence()
#define __builtin_assume(condition) if (!(condition)) abort();

static unsigned short bfloat16_bits(float value) {
    const unsigned bits = __float_as_uint(value);
    return value != value ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static unsigned short float16_bits(double value) {
    return bits_as<unsigned short>(_Float16(value));
}

static void load_matrices(unsigned* fragment, const void* row, int count, bool transposed) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 * 32;
    if (uintptr_t(row) % 16) fail("ldmatrix row is not aligned");
    slots[threadIdx.x][0] = uintptr_t(row);
    stop(WARP, 1000006);
    for (int q = 0; q < count; ++q) {
        uint16_t part[2];
        for (int e = 0; e < 2; ++e) {
            const int r = transposed ? lane % 4 * 2 + e : lane / 4;
            const int c = transposed ? lane / 4 : lane % 4 * 2 + e;
            part[e] = ((const uint16_t*)slots[warp + q * 8 + r][0])[c];
        }
        fragment[q] = part[0] | unsigned(part[1]) << 16;
    }
    stop(WARP, 1000007);
}

static int elements(char kind) {  // in 32 bits
    return kind == 't' ? 1 : kind == 'b' || kind == 'h' ? 2 : 4;
}
static double operand(uint64_t bits, char kind, int e) {
    if (kind == 'd') return bits_as<double>(bits);
    const int count = elements(kind);
    const unsigned part = count == 1 ? bits : bits >> 32 / count * e & (count == 2 ? 0xffff : 0xff);
    if (kind == '2') return bits_as<_Float16>(uint16_t(part << 8));
    if (kind == '3') {
        const int power = part >> 3 & 15, low = part & 7;
        if (power == 15 && low == 7) return NAN;
        const double size = power ? std::ldexp(8 + low, power - 10) : std::ldexp(low, -9);
        return part & 0x80 ? -size : size;
    }
    if (kind == 't') return __uint_as_float(part & 0xffffe000u);
    if (kind == 'b') return __uint_as_float(part << 16);
    if (kind == 'h') return bits_as<_Float16>(uint16_t(part));
    return kind == 's' ? double(int8_t(part)) : double(part);
}
template <typename T, typename R>
void multiply(T* d, const R* a, const R* b, int k, char kind, int packed) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 * 32, halves = k / (4 * packed);
    for (int r = 0; r < 2 * halves; ++r) memcpy(&slots[threadIdx.x][r], &a[r], sizeof(R));
    for (int r = 0; r < halves; ++r) memcpy(&slots[threadIdx.x][8 + r], &b[r], sizeof(R));
    stop(WARP, 1000008);
    for (int n = 0; n < 4; ++n) {
        const int column = lane % 4 * 2 + n % 2;
        double sum = d[n];
        for (int i = 0; i < k; ++i) {
            const int quad = i % (4 * packed) / packed, half = i / (4 * packed), e = i % packed;
            const auto& left = slots[warp + lane / 4 * 4 + quad];
            const auto& right = slots[warp + column * 4 + quad];
            sum += operand(left[n / 2 + 2 * half], kind, e) * operand(right[8 + half], kind, e);
        }
        d[n] = T(sum);
    }
    stop(WARP, 1000009);
}
"""

_PACK = "inline unsigned pack_{0}(float a, float b) {{ return {0}_bits(a) | {0}_bits(b) << 16; }}"
_TO = "inline unsigned short to_{0}({1} value) {{ return {0}_bits(value); }}"
_EXTREME = """template <typename T> T {0}(T a, T b) {{ return (a {1} b || a != a) ? a : b; }}"""
HOST = {
    "unpack_float8_e4m3fn": """template <int Words, int Count>
void unpack_float8_e4m3fn(const Pack<unsigned, Words>& from, float (&values)[Count]) {
    for (int n = 0; n < Count; ++n) values[n] = operand(from.item[n / 4], '3', n % 4);
}""",
    "given_or_zero": """template <typename T, typename I>
T given_or_zero(const T* values, bool present, I place) {
    return present ? values[place] : T(0);
}""",
    "hold": "template <typename T> inline void hold(T&) {}",
    "earlier_launches_done": "inline void earlier_launches_done() {}",
    "next_launch_may_begin": "inline void next_launch_may_begin() {}",
    "maximum": _EXTREME.format("maximum", ">="),
    "minimum": _EXTREME.format("minimum", "<="),
    "to_bfloat16": _TO.format("bfloat16", "float"),
    "to_float16": _TO.format("float16", "double"),  # exact for a float argument
    "from_float16": "inline float from_float16(unsigned short b) { return bits_as<_Float16>(b); }",
    "pack_bfloat16": _PACK.format("bfloat16"),
    "pack_float16": _PACK.format("float16"),
    "divide_nearly": "inline float divide_nearly(float a, float b) { return a / b; }",
    "reciprocal_nearly": "inline float reciprocal_nearly(float a) { return 1.0f / a; }",
    "inverse_root_nearly": "inline float inverse_root_nearly(float a) { return rsqrtf(a); }",
    "exp_nearly": "inline float exp_nearly(float a) { return expf(a); }",
    "round_tf32": "inline unsigned round_tf32(float a) { return a != a ? 0x7fffffffu : a - a != 0 "
    "? __float_as_uint(a) : (__float_as_uint(a) + 0x1000u) & 0xffffe000u; }",
    "pack_bfloat16_cut": """inline unsigned pack_bfloat16_cut(float a, float b) {
    const auto cut = [](float x) { return x != x ? 0x7fffu : __float_as_uint(x) >> 16; };
    return cut(a) | cut(b) << 16;
}""",
    "copy_async": """template <int Bytes, bool Near = false>
void copy_async(void* target, const void* source, bool exists) {
    if (uintptr_t(target) % Bytes || (exists && uintptr_t(source) % Bytes))
        fail("cp.async is not aligned");
    memset(target, 0xff, Bytes);
    copies[threadIdx.x].back().push_back({target, source, Bytes, exists});
}""",
    "power_of_two": "inline float power_of_two(float a) { return exp2f(a); }",
    "cluster_rank": "inline int cluster_rank() { return block_rank; }",
    "in_block": """template <typename T> T* in_block(T* place, int rank) {
    return (T*)(shared_of[rank] + ((unsigned char*)place - shared));
}""",
    "cluster_arrive": "inline void cluster_arrive() {}",
    "cluster_arrive_relaxed": "inline void cluster_arrive_relaxed() {}",
    "cluster_wait": "inline void cluster_wait() { stop(CLUSTER, __LINE__); }",
    "four_from_cache": """inline float4 four_from_cache(const float* place) {
    return {place[0], place[1], place[2], place[3]};
}""",
    # Blocks run in the order of their numbers, so that this one could wait for ever.
    "await_sums": """template <int Others> void await_sums(int* given, int apart) {
    int& own = given[threadIdx.x % 32 * apart];
    if (threadIdx.x % 32 < Others && own != 1) fail("the sums of a later block are awaited");
    if (threadIdx.x % 32 < Others) own = 0;
    __syncwarp();
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
_HALF = {
    "bfloat16": "bits_as<float>((p >> 16 * e) << 16)",
    "float16": "float(bits_as<_Float16>((unsigned short)(p >> 16 * e)))",
}
_PAIR = {
    "add": "x + y",
    "sub": "x - y",
    "mul": "x * y",
    "maximum": "x >= y || x != x ? x : y",
    "minimum": "x <= y || x != x ? x : y",
}
for _name in PAIRS:
    _, _op, _dtype = _name.split("_")
    HOST[_name] = f"""inline unsigned {_name}(unsigned a, unsigned b) {{
    const auto half = [](unsigned p, int e) {{ return {_HALF[_dtype]}; }};
    const auto bits = [&](int e) {{
        const float x = half(a, e), y = half(b, e);
        return unsigned({_dtype}_bits({_PAIR[_op]}));
    }};
    return bits(0) | bits(1) << 16;
}}"""
for _n in (1, 2, 4):
    for _t in (False, True):
        _name = load_matrix_name(_n, _t)
        HOST[_name] = f"""inline void {_name}(unsigned* fragment, const void* row) {{
    load_matrices(fragment, row, {_n}, {int(_t)});
}}"""


def _host_operation(operation: MatrixOperation) -> str:
    kind, register = storage_type(operation.result), operation.register
    letter = {"bfloat16": "b", "float16": "h", "float32": "t", "int8": "s", "uint8": "u"}
    letter["float64"] = "d"
    call = f"{operation.k}, '{letter[operation.operand.name]}', {operation.packed}"
    return f"""inline void {operation.function}({kind}& d0, {kind}& d1, {kind}& d2, {kind}& d3,
        const {register}* a, const {register}* b) {{
    {kind} d[4] = {{d0, d1, d2, d3}};
    multiply(d, a, b, {call});
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}}"""


def translate(text: str) -> str:
    """Emitted source with the functions that hold PTX replaced, as for devices before sm_89."""
    text = re.sub(r"__device__ .* void block_barrier\(\) \{[^}]*\}\n", "", text)  # a macro
    text = translate_async(text)
    text = re.sub(r"#if __CUDA_ARCH__ >= 890\n.*?#else\n(.*?)#endif\n", r"\1", text, flags=re.S)
    for name, host in HOST.items():
        text = text.replace({**FUNCTIONS, **SUMS, **PAIRS}[name].strip(), host)
    for operation in TABLE:
        text = text.replace(operation.definition.strip(), _host_operation(operation))
    assert "asm" not in text
    text = re.sub(r"__cluster_dims__\([^)]*\) ", "", text)
    return re.sub(r"extern __shared__.*\n", "\n", text).replace('extern "C"', "")


def emulate(
    kernels: Sequence[Kernel],
    folder: Path,
    operations: Mapping[str, ParallelOperation] | None = None,
) -> "Emulator":
    """The kernels as `emit` writes them; the test is skipped where no compiler is."""
    if COMPILER is None:
        pytest.skip("no g++ on this machine")
    return Emulator(kernels, [emit(kernel, operations) for kernel in kernels], folder)


def asked(
    request: pytest.FixtureRequest, test: Callable[..., None], parameter: str = "number"
) -> list:
    """The values of a parameter of a test that this run has: cases that do not run cost nothing."""
    items = [item for item in request.session.items if getattr(item, "function", None) is test]
    return [item.callspec.params[parameter] for item in items]  # type: ignore[attr-defined]


def run_between_guards(
    emulator: "Emulator", number: int, sample: Sample, blocks: int = 0, schedule: int = 0
) -> None:
    """Run a sample's kernel; its answer is right, and nothing around its arrays has changed."""
    found = arrays(sample, GUARD)
    edges = {name: array.base.copy() for name, array in found.items()}
    emulator.run(number, found, blocks, schedule)
    check(sample, found)
    for name, array in found.items():
        for part in (slice(None, GUARD), slice(-GUARD, None)):
            assert array.base[part].tobytes() == edges[name][part].tobytes(), name


def common_part(folder: Path) -> tuple[Path, int]:
    """A header of all that libraries have in common, compiled once a run, and its lines."""
    path, limit = folder.parent / "emulator.h", str(SHARED_LIMIT)
    text = "\n".join([THREADS, SHIM, ASYNC]).replace("SHARED_LIMIT", limit)
    with COMPILING:
        if not path.with_suffix(".h.gch").exists():
            path.write_text(text)
            command = [COMPILER or "g++", *OPTIONS, "-x", "c++-header", str(path)]
            subprocess.run(command, check=True)
    return path, text.count("\n")


def blocks_library(parts: Sequence[str], folder: Path) -> ctypes.CDLL:
    """C++ in which the threads of a block are coroutines, with these functions, compiled."""
    path, library = folder / "kernels.cpp", folder / "kernels.so"
    common, lines = common_part(folder)
    # A line tells where threads wait: none of the header has the number of another here.
    path.write_text("\n".join([OF_KERNELS + "\n" * lines, *parts]))
    command = [COMPILER or "g++", *OPTIONS, "-shared", "-include", str(common), "-o"]
    subprocess.run([*command, str(library), str(path)], check=True)
    return ctypes.CDLL(str(library))


class Emulator:
    """Kernels compiled together; `run(number, arrays)` launches one of them."""

    def __init__(self, kernels: Sequence[Kernel], sources: Sequence[CudaSource], folder: Path):
        self.kernels, self.sources = kernels, sources
        parts: list[str] = []
        for number, (kernel, source) in enumerate(zip(kernels, sources, strict=True)):
            kinds = [storage_type(b.dtype) for b in kernel.buffers]
            arguments = [f"({kind}*)p[{i}]" for i, kind in enumerate(kinds)]
            arguments += [f"*(TensorMap*)p[{len(kinds) + i}]" for i in range(len(source.maps))]
            listed = ", ".join(arguments)
            parts.append(f"namespace n{number} {{\n{translate(source.text)}\n}}")
            together = kernel.cluster * kernel.multicast
            blocks = f"n, all, {together}"
            threads = f"{source.threads}, {kernel.threads}, {source.shared_bytes}"
            parts.append(
                f'extern "C" const char* launch_{number}(void** p, int n, int all, int plan) {{\n'
                f"    body = [](void** p) {{ n{number}::{source.entry}({listed}); }};\n"
                "    given = p;\n"
                f"    return run_cluster({blocks}, {threads}, plan);\n}}"
            )
        self.library = blocks_library(parts, folder)

    def run(
        self, number: int, arrays: Mapping[str, np.ndarray], blocks: int = 0, schedule: int = 0
    ) -> None:
        """Every block, in order, on arrays that the kernel's stores write in place.

        Of a kernel whose blocks take several tiles, so many `blocks`. The first block runs by this
        `schedule`, the others by those that follow.
        """
        kernel, source = self.kernels[number], self.sources[number]
        maps = [tensor_map(box, arrays[box.buffer]) for box in source.maps]
        pointers = [arrays[b.name].ctypes.data for b in kernel.buffers]
        pointers += [ctypes.addressof(one) for one in maps]
        launch = getattr(self.library, f"launch_{number}")
        launch.restype = ctypes.c_char_p
        grid = min(source.grid, blocks or source.grid) if source.resident else source.grid
        for block in range(0, grid, kernel.cluster * kernel.multicast):
            plan = (schedule + block) % SCHEDULES
            fault = launch((ctypes.c_void_p * len(pointers))(*pointers), block, grid, plan)
            assert not fault, f"{kernel.name}, block {block}: {fault.decode()}\n{source.text}"
