"""What the emulator makes of sm_90's device functions: barriers that count bytes, copies of boxes,
products of warpgroups.

A copy leaves NaN in its target until it arrives. One that stores reads shared memory when it is
waited for, or in some schedules at once. Products leave poison in their accumulators until
they are waited for, and read shared memory only then.
"""

import ctypes

import numpy as np

from eqsat.codegen.cuda.place.box import TensorBox
from eqsat.codegen.cuda.place.warpgroup_operations import WARPGROUP_TABLE, WarpgroupOperation
from eqsat.codegen.cuda.prelude.asynchronous import (
    ASYNC_FUNCTIONS,
    MOST_DIMENSIONS,
    copy_box_name,
    store_box_name,
)

ASYNC = r"""
struct TensorMap {
    const unsigned char* base;
    long long extent[5], stride[5];  // stride in bytes
    int box[5], step[5], rank, itemsize, row_bytes;
    int count[5], first[5];  // of a run of pixels: how many lie along an axis, where they begin
};
struct Box {
    int block;
    unsigned target;
    TensorMap map;
    Barrier* barrier;
    int at[5], within[5];
};
struct Stored { unsigned source; TensorMap map; int at[5], group; bool done; };
struct Product {
    int group, n, k, accumulate;
    char kind, other;
    bool held, rows, columns;
    uint64_t a, b;
    unsigned left[4];
    unsigned *d[128], value[128];
};
constexpr unsigned POISON = 0x7fbadbad;  // NaN
static std::deque<Box> boxes;
struct Thread {
    std::deque<Product> products;
    int committed, registers;  // that it asked for
    bool fenced;
    std::deque<Stored> stored;
    int groups;    // of boxes that it stores
    bool written;  // what it wrote is there for the accelerator
};
static Thread threads_of[MOST_BLOCKS][MOST_THREADS];
#define products(t) threads_of[block_rank][t].products
#define committed(t) threads_of[block_rank][t].committed
#define registers(t) threads_of[block_rank][t].registers
#define fenced(t) threads_of[block_rank][t].fenced
#define stored(t) threads_of[block_rank][t].stored
#define groups(t) threads_of[block_rank][t].groups
#define written(t) threads_of[block_rank][t].written

static void begin_async() {
    boxes.clear();
    for (Thread& one : threads_of[block_rank]) one = {};
}

static unsigned shared_address(const void* place) {
    return (const unsigned char*)place - shared;
}
static unsigned swizzled(unsigned address, int row_bytes) {
    return address ^ (address >> 7 & (row_bytes / 16 - 1)) << 4;
}

static void end_thread() {
    if (!products(threadIdx.x).empty()) fail("a thread ends while its products are under way");
    if (!stored(threadIdx.x).empty()) fail("a thread ends while its boxes are read");
}
static const char* end_block() {
    for (size_t t = 0; t < fibers.size(); ++t)
        if (registers(t) != registers(t / GROUP_THREADS * GROUP_THREADS))
            return "the threads of a warpgroup ask for different registers";
    return boxes.empty() ? nullptr : "a block ends before its copies arrive";
}

// barriers

static void settle(Barrier& barrier) {
    if (barrier.expected == 0x7fff) fail("a barrier is used before it is set up");
    if (barrier.pending || barrier.bytes) return;
    barrier.phase ^= 1;
    barrier.pending = barrier.expected;
}
static void barrier_init(unsigned long long* place, unsigned arrivals) {
    *(Barrier*)place = {0, uint16_t(arrivals), uint16_t(arrivals), 0};
}
static void barrier_expect(unsigned long long* place, unsigned bytes) {
    Barrier& barrier = *(Barrier*)place;
    if (!barrier.pending) return fail("a barrier counts fewer arrivals than there are");
    barrier.bytes += bytes;
    --barrier.pending;
    settle(barrier);
}
static void barrier_arrive(unsigned long long* place, bool present) {
    if (present) barrier_expect(place, 0);
}
static void barrier_arrive_in(unsigned long long* place, int rank, bool present) {
    if (!present) return;
    bool ended = true;
    for (const Fiber& fiber : fibers_of[rank]) ended &= fiber.wait == DONE;
    if (ended) fail("a barrier of a block that has ended is used");
    barrier_expect((unsigned long long*)(shared_of[rank] + shared_address(place)), 0);
}
static void barrier_wait(unsigned long long* place, unsigned parity) {
    Fiber& fiber = fibers[threadIdx.x];
    fiber.barrier = (Barrier*)place, fiber.parity = parity;
    if (fiber.barrier->expected == 0x7fff) fail("a barrier is used before it is set up");
    if (fiber.barrier->phase == parity) stop(PHASE, __LINE__);
}

// copies of boxes

static void copy_box(void* target, const TensorMap& map, unsigned long long* barrier, int rank,
                     const int* at, const int* within = nullptr) {
    Box box{block_rank, shared_address(target), map, (Barrier*)barrier};
    int bytes = map.itemsize;
    for (int n = 0; n < rank; ++n) box.at[n] = at[n], bytes *= map.box[n];
    for (int n = 1; within && n < rank - 1; ++n) box.within[n] = within[n - 1];
    if (bool(map.count[1]) != bool(within)) return fail("a box is no run of pixels, or is one");
    if (rank != map.rank || box.target % 128 || box.target + bytes > SHARED_LIMIT)
        return fail("a box is copied to no such place");
    memset(shared + box.target, 0xff, bytes);
    boxes.push_back(box);
}
static void copy_box_to_all(void* target, const TensorMap& map, unsigned long long* barrier,
                            int rank, const int* at, int blocks, const int* within = nullptr) {
    const int own = block_rank;
    unsigned char* const from = shared;
    for (block_rank = 0; block_rank < blocks; ++block_rank) {
        unsigned char* const place = shared + ((unsigned char*)target - from);
        unsigned char* const count = shared + ((unsigned char*)barrier - from);
        copy_box(place, map, (unsigned long long*)count, rank, at, within);
    }
    block_rank = own;
}
static int elements_of(const TensorMap& map) {
    int elements = 1;
    for (int n = 0; n < map.rank; ++n) elements *= map.box[n];
    return elements;
}
// Where an element of a box lies in memory; null where it does not exist.
static unsigned char* far_place(const TensorMap& map, const int* first, int e) {
    const unsigned char* place = map.base;
    bool exists = true;
    for (int n = 0, rest = e; n < map.rank; rest /= map.box[n++]) {
        const long long at = first[n] + (long long)(rest % map.box[n]) * map.step[n];
        exists &= at >= 0 && at < map.extent[n];
        place += at * map.stride[n];
    }
    return exists ? (unsigned char*)place : nullptr;
}
// The same in a run of pixels: counted on from the first one's number along each axis.
static unsigned char* pixel_place(const Box& box, int e) {
    const TensorMap& map = box.map;
    long long number = e / map.box[0];
    const long long channel = box.at[0] + e % map.box[0];
    const unsigned char* place = map.base + channel * map.stride[0];
    bool exists = channel >= 0 && channel < map.extent[0];
    for (int n = 1; n < map.rank; ++n) {
        const bool inside = n < map.rank - 1;
        number += inside ? (box.at[n] - map.first[n]) / map.step[n] : box.at[n];
        long long at = number;
        if (inside) {
            at = map.first[n] + number % map.count[n] * map.step[n] + box.within[n];
            number /= map.count[n];
        }
        exists &= at >= 0 && at < map.extent[n];
        place += at * map.stride[n];
    }
    return exists ? (unsigned char*)place : nullptr;
}
static bool deliver(bool reversed) {
    if (boxes.empty()) return false;
    const Box box = reversed ? boxes.back() : boxes.front();
    reversed ? boxes.pop_back() : boxes.pop_front();
    const TensorMap& map = box.map;
    const int elements = elements_of(map);
    for (int e = 0; e < elements; ++e) {
        const unsigned char* source =
            map.count[1] ? pixel_place(box, e) : far_place(map, box.at, e);
        const unsigned place = swizzled(box.target + e * map.itemsize, map.row_bytes);
        unsigned char* to = shared_of[box.block] + place;
        source ? memcpy(to, source, map.itemsize) : memset(to, 0, map.itemsize);
    }
    box.barrier->bytes -= elements * map.itemsize;
    settle(*box.barrier);
    return true;
}

// boxes that are stored

static void store_now(Stored& one) {
    const TensorMap& map = one.map;
    for (int e = 0; e < elements_of(map) && !one.done; ++e) {
        const unsigned from = swizzled(one.source + e * map.itemsize, map.row_bytes);
        if (unsigned char* to = far_place(map, one.at, e)) memcpy(to, shared + from, map.itemsize);
    }
    one.done = true;
}
static void store_box(const void* source, const TensorMap& map, int rank, const int* at) {
    const int warp = threadIdx.x / 32 * 32;
    Stored one{shared_address(source), map, {}, groups(threadIdx.x), false};
    std::copy(at, at + rank, one.at);
    if (rank != map.rank || one.source % (8 * map.row_bytes))
        return fail("a box is stored from no such place");
    for (int lane = 0; lane < 32; ++lane)
        if (!written(warp + lane)) return fail("a box is stored before it is written");
    stored(threadIdx.x).push_back(one);
    if (eager) store_now(stored(threadIdx.x).back());
}
static void shared_written() { written(threadIdx.x) = true; }
static void boxes_commit() {
    ++groups(threadIdx.x);
    const int first = threadIdx.x / 32 * 32;
    for (int lane = 0; lane < 32; ++lane) written(first + lane) = false;
}
static void boxes_read() {
    auto& own = stored(threadIdx.x);
    while (!own.empty() && own.front().group < groups(threadIdx.x)) {
        store_now(own.front());
        own.pop_front();
    }
}
static void boxes_stored() { boxes_read(); }

static void store_matrices(void* row, unsigned a, unsigned b, unsigned c, unsigned d) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 32;
    const unsigned values[] = {a, b, c, d};
    if (uintptr_t(row) % 16) fail("stmatrix row is not aligned");
    written(threadIdx.x) = false;
    slots[threadIdx.x][0] = uintptr_t(row);
    stop(WARP, 1000080);
    for (int q = 0; q < 4; ++q)
        memcpy((unsigned char*)slots[first + q * 8 + lane / 4][0] + lane % 4 * 4, &values[q], 4);
    stop(WARP, 1000081);
}

// products of a warpgroup

static void products_begin() { fenced(threadIdx.x) = true; }
static void products_commit() { ++committed(threadIdx.x); }
template <int Pending> void products_wait() {
    stop(GROUP, -1, Pending);
    fenced(threadIdx.x) = false;
}
template <int Count> void more_registers() {
    registers(threadIdx.x) = Count;
    stop(WARP, -Count);
}
template <int Count> void fewer_registers() { more_registers<Count>(); }

static void issue(unsigned** d, Product product) {
    auto& under_way = products(threadIdx.x);
    if (!fenced(threadIdx.x)) fail("products begin without products_begin");
    bool chained = false;
    for (const Product& other : under_way) chained |= other.d[0] == d[0];
    product.group = committed(threadIdx.x);
    for (int n = 0; n < product.n / 2; ++n) {
        product.d[n] = d[n];
        product.value[n] = *d[n];
        if (!chained) *d[n] = POISON;
    }
    under_way.push_back(product);
}

// Element (mn, k) of a factor in shared memory, as its descriptor says.
static double element(uint64_t descriptor, bool transposed, char kind, int mn, int k) {
    const int from = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
    const int stride = (descriptor >> 32 & 0x3fff) << 4, code = descriptor >> 62;
    if (!code) fail("a factor is not swizzled");
    const int row = 256 >> code, size = 4 / elements(kind), wide = row / size;
    const unsigned place =
        transposed ? mn / wide * leading + k / 8 * stride + k % 8 * row + mn % wide * size
                   : mn / 8 * stride + mn % 8 * row + k * size;
    unsigned bits = 0;
    memcpy(&bits, shared + swizzled(from + place, row), size);
    return operand(bits, kind, 0);
}

static std::vector<double> left_factor(int first, size_t number) {
    const Product& one = products(first)[number];
    std::vector<double> left(64 * one.k);
    const int packed = elements(one.kind);
    for (int m = 0; m < 64; ++m)
        for (int k = 0; k < one.k; ++k) {
            const int lane = m / 16 * 32 + m % 8 * 4 + k % (4 * packed) / packed;
            const unsigned* held = products(first + lane)[number].left;
            left[m * one.k + k] =
                one.held ? operand(held[m % 16 / 8 + 2 * (k / (4 * packed))], one.kind, k % packed)
                         : element(one.a, one.rows, one.kind, m, k);
        }
    return left;
}

// d of one thread; what comes after it on the same accumulators goes on from there.
static void finish_product(std::deque<Product>& under_way, size_t number, const double* sums) {
    Product& one = under_way[number];
    Product* next = nullptr;
    for (size_t n = under_way.size() - 1; n > number; --n)
        if (under_way[n].d[0] == one.d[0]) next = &under_way[n];
    for (int n = 0; n < one.n / 2; ++n) {
        unsigned bits = one.accumulate ? one.value[n] : 0;
        if (one.kind == 's' || one.kind == 'u')
            bits += unsigned((long long)sums[n]);
        else
            bits = __float_as_uint(float(__uint_as_float(bits) + sums[n]));
        if (next)
            next->value[n] = bits;
        else if (*one.d[n] != POISON)
            fail("accumulators are written while products are under way");
        else
            *one.d[n] = bits;
    }
}

static void finish_products(int first, int pending) {
    const auto& leader = products(first);
    size_t count = 0;
    while (count < leader.size() && leader[count].group < committed(first) - pending) ++count;
    for (int t = 0; t < GROUP_THREADS; ++t) {
        const auto& own = products(first + t);
        bool same = own.size() == leader.size() && committed(first + t) == committed(first);
        for (size_t n = 0; same && n < count; ++n)
            same = own[n].b == leader[n].b && own[n].n == leader[n].n && own[n].a == leader[n].a;
        if (!same) return fail("the threads of a warpgroup issue different products");
    }
    for (size_t number = 0; number < count; ++number) {
        const Product& one = leader[number];
        const std::vector<double> left = left_factor(first, number);
        std::vector<double> right(one.n * one.k);
        for (int n = 0; n < one.n; ++n)
            for (int k = 0; k < one.k; ++k)
                right[n * one.k + k] = element(one.b, one.columns, one.other, n, k);
        for (int t = 0; t < GROUP_THREADS; ++t) {
            double sums[128] = {};
            for (int n = 0; n < one.n / 2; ++n) {
                const int row = t / 32 * 16 + t % 32 / 4 + n / 2 % 2 * 8;
                const int column = n / 4 * 8 + t % 4 * 2 + n % 2;
                for (int k = 0; k < one.k; ++k)
                    sums[n] += left[row * one.k + k] * right[column * one.k + k];
            }
            finish_product(products(first + t), number, sums);
        }
    }
    for (int t = 0; t < GROUP_THREADS; ++t)
        products(first + t).erase(products(first + t).begin(), products(first + t).begin() + count);
}
"""

LETTERS = {
    "bfloat16": "b", "float16": "h", "float32": "t", "int8": "s", "uint8": "u",
    "float8_e4m3fn": "3", "float8_e5m2": "2",
}  # fmt: skip

HOST_ASYNC = dict.fromkeys(
    (
        "TensorMap", "shared_address", "barrier_init", "barrier_expect", "barrier_arrive",
        "barrier_arrive_in", "barrier_wait", "products_begin", "products_commit", "products_wait",
        "fewer_registers", "more_registers", "shared_written", "store_matrices", "boxes_commit",
        "boxes_read", "boxes_stored",
    ),
    "",
)  # fmt: skip
HOST_ASYNC["barriers_ready"] = "inline void barriers_ready() {}"
HOST_ASYNC["prefetch_map"] = "inline void prefetch_map(const TensorMap&) {}"


def _host_copy(dimensions: int, shared: bool, pixels: bool) -> str:
    where = [f"c{i}" for i in range(dimensions)]
    within = [f"o{i}" for i in range(dimensions - 2)] if pixels else []
    head = "template <int Blocks>\n" if shared else ""
    numbers = ", ".join(f"int {name}" for name in (*where, *within))
    further = ", within" if pixels else ""
    further = (", Blocks" if shared else "") + further
    return f"""{head}inline void {copy_box_name(dimensions, shared, pixels)}(void* target,
        const TensorMap& map, unsigned long long* barrier, {numbers}) {{
    const int at[] = {{{", ".join(where)}}}, within[] = {{{", ".join([*within, "0"])}}};
    copy_box{"_to_all" if shared else ""}(target, map, barrier, {dimensions}, at{further});
}}"""


for _n in range(1, MOST_DIMENSIONS + 1):
    _where = ", ".join(f"c{i}" for i in range(_n))
    for _shared, _pixels in ((False, False), (True, False), (False, True), (True, True)):
        if copy_box_name(_n, _shared, _pixels) in ASYNC_FUNCTIONS:
            _name = copy_box_name(_n, _shared, _pixels)
            HOST_ASYNC[_name] = _host_copy(_n, _shared, _pixels)
    HOST_ASYNC[store_box_name(_n)] = f"""inline void {store_box_name(_n)}(const void* source,
        const TensorMap& map, {_where.replace("c", "int c")}) {{
    const int at[] = {{{_where}}};
    store_box(source, map, {_n}, at);
}}"""


def _host_product(operation: WarpgroupOperation, held: bool) -> str:
    head = operation.definition(held).split(" {\n    asm")[0]
    places = ", ".join(f"(unsigned*)&d{i}" for i in range(operation.n // 2))
    rows, columns = ("Rows", "Columns") if operation.transposable else ("false", "false")
    left = ("0, b, {a[0], a[1], a[2], a[3]}", "false") if held else ("a, b, {}", rows)
    kinds = ", ".join(f"'{LETTERS[d.name]}'" for d in (operation.operand, operation.other))
    fields = f"0, {operation.n}, {operation.k}, accumulate, {kinds}"
    return f"""{head} {{
    unsigned* d[] = {{{places}}};
    issue(d, {{{fields}, {int(held)}, {left[1]}, {columns}, {left[0]}}});
}}"""


def translate_async(text: str) -> str:
    """Emitted source with sm_90's device functions replaced."""
    for name, host in HOST_ASYNC.items():
        text = text.replace(ASYNC_FUNCTIONS[name].strip(), host)
    for operation in WARPGROUP_TABLE:
        for held in (False, True):
            if f" {operation.name(held)}(" in text:
                definition = operation.definition(held).strip()
                text = text.replace(definition, _host_product(operation, held).strip())
    return text


class TensorMap(ctypes.Structure):
    """The emulator's tensor map."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        ("extent", ctypes.c_longlong * 5),
        ("stride", ctypes.c_longlong * 5),
        ("box", ctypes.c_int * 5),
        ("step", ctypes.c_int * 5),
        ("rank", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("row_bytes", ctypes.c_int),
        ("count", ctypes.c_int * 5),
        ("first", ctypes.c_int * 5),
    )


def tensor_map(box: TensorBox, array: np.ndarray) -> TensorMap:
    """The map of a box of the buffer in `array`; fails where the driver would refuse to make it."""
    size, dimensions = box.dtype.itemsize, box.dimensions
    strides = [d.stride * size for d in dimensions]
    base = array.ctypes.data + box.offset * size
    assert base % 16 == 0 and 0 < len(dimensions) <= 5, box
    assert strides[0] == size and all(s % 16 == 0 and 0 < s < 1 << 40 for s in strides[1:]), box
    assert all(0 < d.extent < 1 << 32 for d in dimensions), box
    assert all(0 < (d.box - 1) * d.step < 256 or d.box == 1 for d in dimensions), box
    assert all(0 < d.step <= 8 for d in dimensions) and dimensions[0].step == 1, box
    assert dimensions[0].box * size == box.row_bytes, box
    assert box.row_bytes in (32, 64, 128) or (box.rows == 1 and box.row_bytes % 128 == 0), box
    last = box.offset + sum(d.stride * (d.extent - 1) for d in dimensions)
    assert last < array.size, f"{box} reads beyond {array.size} elements"
    result = TensorMap(base, rank=len(dimensions), itemsize=size, row_bytes=box.swizzled_bytes)
    for n, d in enumerate(dimensions):
        result.extent[n], result.stride[n] = d.extent, strides[n]
        result.box[n], result.step[n] = d.box, d.step
    for n, d in enumerate(dimensions[1:-1] if box.pixels else (), 1):
        bits = {3: 16, 4: 8, 5: 5}[len(dimensions)]
        low, high = d.corners
        assert d.box == 1 and max(-low, low + 1, -high, high + 1) <= 1 << bits - 1, box
        result.first[n], result.count[n] = low, (d.extent - 1 + high - low) // d.step + 1
        assert result.count[n] > 0, box
    if box.pixels:
        assert len(dimensions) >= 3 and box.pixels <= 1024, box
        result.box[1] = box.pixels
    return result
