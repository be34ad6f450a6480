"""The first elements of rows on the GPU, read twice at most where no data is against it.

A block takes a row, or a part of one. Each element has a key, its order above and its position in
32 bits below, so that no two are equal. The block's threads are in groups, each with the first key
of its own; the `count`th of these is a level that at least `count` keys reach, and with random data
few more do. Those that do are gathered in shared memory, where each finds its rank by counting. If
they are too many, the level is halved until they are not, at most once for each bit of a key.
The keys that parts give are rows of the same kernel again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eqsat.codegen.order_keys import UNSIGNED, ordering
from eqsat.layout.needs import VECTOR_BYTES
from eqsat.library import PART, LibraryCall

from . import target as cuda_target

INVOCATION = "cuda_select"
VECTORS = 4  # that a thread reads of a row in a pass
THREADS = (32, 1024)

# What has an element's order, and with its position a key, by the bytes of a key.
_WORDS = {
    8: ("unsigned int", "unsigned long long"),
    16: ("unsigned long long", "unsigned __int128"),
}
_HEAD = """// {title}
typedef {word} word;
typedef {wide} wide;
"""
_KERNEL = """
struct alignas({vector_bytes}) {name}_vector {{ {element} at[{vector}]; }};

extern "C" __global__ void __launch_bounds__({threads}) {name}(
        const {element}* given, {result}* made) {{
    __shared__ wide firsts[{threads}];
    __shared__ wide found[{room}];
    __shared__ wide level;
    __shared__ unsigned reached;
    const unsigned me = threadIdx.x;
    const unsigned begin = blockIdx.x % {parts} * {part}u;
    const unsigned end = begin + {part}u < {length}u ? begin + {part}u : {length}u;
    const unsigned wanted = end - begin < {count} ? end - begin : {count};
    const {element}* row = given + blockIdx.x / {parts} * {length}ull;

    wide first = ~(wide) 0;
    for (unsigned i = begin + me * {vector}; i < end; i += {stride}) {{
        const {name}_vector some = *(const {name}_vector*) (row + i);
        #pragma unroll
        for (unsigned e = 0; e < {vector}; ++e) {{
            const wide key = {key};
            first = key < first ? key : first;
        }}
    }}
    firsts[me] = first;
    __syncthreads();
    if (me < {groups}) {{
        for (unsigned other = me + {groups}; other < {threads}; other += {groups})
            first = firsts[other] < first ? firsts[other] : first;
        firsts[me] = first;
    }}
    __syncthreads();
{level}
    wide few = 0, many = level, at = level;
    unsigned all;
    while (true) {{
        if (me == 0) reached = 0;
        __syncthreads();
        for (unsigned i = begin + me * {vector}; i < end; i += {stride}) {{
            const {name}_vector some = *(const {name}_vector*) (row + i);
            #pragma unroll
            for (unsigned e = 0; e < {vector}; ++e) {{
                const wide key = {key};
                if (key <= at) {{
                    const unsigned slot = atomicAdd(&reached, 1u);
                    if (slot < {room}) found[slot] = key;
                }}
            }}
        }}
        __syncthreads();
        all = reached;
        if (all >= wanted && all <= {room}) break;
        if (all < wanted) few = at;
        else many = at;
        at = few + (many - few) / 2;
        __syncthreads();
    }}

{order}
    for (unsigned none = wanted + me; none < {count}; none += {threads})
        made[blockIdx.x * {count}ull + none] = ~({result}) 0;
}}
"""

# By counting, each thread for an element of its own, or by sorting, where that takes longer.
_FIRSTS_BY_RANK = """    if (me < {groups}) {{
        unsigned rank = 0;
        for (unsigned other = 0; other < {groups}; ++other)
            rank += firsts[other] < first || (firsts[other] == first && other < me);
        if (rank == {count} - 1) level = first;
    }}
    __syncthreads();
"""
_FIRSTS_BY_SORT = """    sort<{groups}, {threads}>(firsts);
    if (me == 0) level = firsts[{count} - 1];
    __syncthreads();
"""
_FOUND_BY_RANK = """    for (unsigned one = me; one < all; one += {threads}) {{
        const wide key = found[one];
        unsigned rank = 0;
        for (unsigned other = 0; other < all; ++other) rank += found[other] < key;
        if (rank < wanted) made[blockIdx.x * {count}ull + rank] = {made};
    }}"""
_FOUND_BY_SORT = """\
    for (unsigned none = all + me; none < {room}; none += {threads}) found[none] = ~(wide) 0;
    __syncthreads();
    if (all <= {room} / 2) sort<{room} / 2, {threads}>(found);
    else sort<{room}, {threads}>(found);
    for (unsigned one = me; one < wanted; one += {threads}) {{
        const wide key = found[one];
        made[blockIdx.x * {count}ull + one] = {made};
    }}"""
_SORT = """
// Bitonic: runs of 2, 4, ... keys, each rising or falling.
template <unsigned N, unsigned Threads>
static __device__ __forceinline__ void sort(wide* keys) {
    for (unsigned run = 2; run <= N; run *= 2)
        for (unsigned apart = run / 2; apart; apart /= 2) {
            for (unsigned pair = threadIdx.x; pair < N / 2; pair += Threads) {
                const unsigned low = 2 * pair - pair % apart, high = low + apart;
                const wide a = keys[low], b = keys[high];
                if ((a > b) == !(low & run)) keys[low] = b, keys[high] = a;
            }
            __syncthreads();
        }
}
"""
MOST_RANKED = 64  # groups, beyond which sorting takes less than counting


def kernels(call: LibraryCall) -> dict[str, tuple[int, int]]:
    """The blocks and threads of each kernel, in the order of their launches."""
    vector = VECTOR_BYTES // call.buffers[0].dtype.itemsize
    threads = _threads(call, -(-min(call.length, PART) // vector))
    found = {"select_elements": (call.rows * call.parts, threads)}
    if call.parts > 1:
        found["select_keys"] = (call.rows, _threads(call, call.parts * call.count))
    return found


def select_source(call: LibraryCall) -> str:
    """The CUDA C++ of a call: a kernel over elements and, of rows in parts, one over their keys."""
    source = call.buffers[0]
    vector = VECTOR_BYTES // source.dtype.itemsize
    while call.length % vector:
        vector //= 2
    title = f"the first {call.count} of {source.dtype.name}{list(source.shape)}"
    word, wide = _WORDS[call.key_bytes]
    text = _HEAD.format(title=title, word=word, wide=wide)
    text += ordering(source.dtype, call.descending, ties=True)
    text += _SORT if _groups(call) > MOST_RANKED else ""
    place = "(long long) (unsigned) key"
    text += _kernel(
        call,
        "select_elements",
        length=call.length,
        vector=vector,
        element=UNSIGNED[source.dtype.itemsize],
        key="(wide) ordered(some.at[e]) << 32 | i + e",
        result="wide" if call.parts > 1 else "long long",
        made="key" if call.parts > 1 else place,
    )
    if call.parts > 1:
        length = call.parts * call.count
        text += _kernel(
            call,
            "select_keys",
            length=length,
            vector=2 - length % 2 if call.key_bytes == 8 else 1,
            element="wide",
            key="some.at[e]",
            result="long long",
            made=place,
        )
    return text


def _kernel(call: LibraryCall, name: str, *, length: int, vector: int, **words: str) -> str:
    elements = name == "select_elements"
    threads, groups = kernels(call)[name][1], _groups(call)
    room = max(256, 2 * groups)
    by_rank = groups <= MOST_RANKED
    parts = (_FIRSTS_BY_RANK, _FOUND_BY_RANK) if by_rank else (_FIRSTS_BY_SORT, _FOUND_BY_SORT)
    counts = {"threads": threads, "groups": groups, "count": call.count, "room": room}
    level, ordered = (part.format(**counts, made=words["made"]) for part in parts)
    size = call.buffers[0].dtype.itemsize if elements else call.key_bytes
    return _KERNEL.format(
        name=name,
        length=length,
        vector=vector,
        vector_bytes=vector * size,
        parts=call.parts if elements else 1,
        part=PART if elements and call.parts > 1 else length,
        stride=threads * vector,
        level=level,
        order=ordered,
        **counts,
        **words,
    )


def _groups(call: LibraryCall) -> int:
    """Twice as many as elements are asked for: of random data 1.4 as many reach the level."""
    return max(THREADS[0], 1 << (2 * call.count - 1).bit_length())


def _threads(call: LibraryCall, vectors: int) -> int:
    wanted = 1 << max(-(-vectors // VECTORS) - 1, 0).bit_length()
    return min(max(wanted, _groups(call)), THREADS[1])


def cuda_select(call: LibraryCall, arch: str, folder: Path) -> Callable[[Sequence[Any]], None]:
    """The call as a function of its buffers' CuPy arrays, in order, on CuPy's current stream."""
    path = cuda_target.stored(select_source(call), arch, folder)
    module = cuda_target.import_cupy().RawModule(path=str(path))
    steps = [(module.get_function(name), *size) for name, size in kernels(call).items()]

    def run(arrays: Sequence[Any]) -> None:
        given, made, *keys = arrays
        for (function, blocks, threads), source, target in zip(
            steps, [given, *keys], [*keys, made], strict=True
        ):
            function((blocks,), (threads,), (source, target))

    return run
