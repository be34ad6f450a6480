"""How the emulator runs the threads of a block: coroutines that stop where CUDA's threads wait.

Every thread that can runs on to where it waits: for its warp, its warpgroup, the block, or a phase
of a barrier in shared memory. Of four schedules two run threads forwards, two backwards. In one of
each, only when no thread can go on does a warpgroup see its products, and then one copy of a box
arrive: what a kernel does not wait for comes too late. In the other, one warpgroup runs ahead of
those that compute beside it: what they still need may be gone. Of a cluster each block runs as far
as it can before the next, and has shared memory of its own.
"""

THREADS = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

using std::max, std::min;

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __syncthreads() stop(BLOCK, __LINE__, fibers.size())
#define block_barrier() stop(BLOCK, __LINE__, team)
#define __syncwarp() stop(WARP, __LINE__)

enum Wait { READY, WARP, GROUP, BLOCK, PHASE, CLUSTER, DONE };
static const char* const WAITS[] = {"", "its warp", "its warpgroup", "the block", "a barrier",
                                    "its cluster", ""};
constexpr int LANES = 32, GROUP_THREADS = 128, MOST_THREADS = 1152, MOST_BLOCKS = 8;

struct Dimension { unsigned x; };
static Dimension threadIdx, blockIdx, gridDim;
static int block_rank;  // in its cluster
alignas(1024) static unsigned char shared_of[MOST_BLOCKS][SHARED_LIMIT];
#define shared (shared_of[block_rank])

struct Barrier { int32_t bytes; uint16_t pending; uint16_t expected : 15, phase : 1; };
struct Fiber {
    ucontext_t context;  // where it starts
    jmp_buf place;       // where it goes on: no call of the system, unlike swapcontext
    bool started;
    std::vector<char> stack;
    Wait wait;
    int site, count;  // where; of how many threads, or how many products may be under way
    const Barrier* barrier;
    unsigned parity;
};
static std::vector<Fiber> fibers_of[MOST_BLOCKS];
#define fibers (fibers_of[block_rank])
static jmp_buf scheduler;
static void (*body)(void**);
static void** given;  // to it
static bool eager;  // what could be read late is read at once
static size_t team;  // the threads that compute; the others produce
static const char* failure;
static char message[256];

static void fail(const char* what) {
    if (!failure) failure = what;
}
static void stop(Wait wait, int site, int count = 0) {
    Fiber& fiber = fibers[threadIdx.x];
    fiber.wait = wait, fiber.site = site, fiber.count = count;
    if (!_setjmp(fiber.place)) _longjmp(scheduler, 1);
}
// Until it stops.
static void __attribute__((noinline)) go_on(Fiber& fiber) {
    if (_setjmp(scheduler)) return;
    if (fiber.started) _longjmp(fiber.place, 1);
    fiber.started = true;
    setcontext(&fiber.context);
}

static void begin_block();
static void end_thread();
static void finish_products(int first, int pending);
static bool deliver(bool reversed);
static const char* end_block();

static void start() {
    body(given);
    end_thread();
    fibers[threadIdx.x].wait = DONE;
    _longjmp(scheduler, 1);
}

// Threads [first, first + count) have all stopped there: they go on.
static bool release(int first, int count, Wait wait) {
    for (int n = 0; n < count; ++n) {
        const Fiber& fiber = fibers[first + n];
        if (fiber.wait != wait || (wait == BLOCK && fiber.count != count)) return false;
    }
    const Fiber& one = fibers[first];
    for (int n = 0; n < count; ++n)
        if (fibers[first + n].site != one.site || fibers[first + n].count != one.count) {
            fail("threads diverge at a barrier");
            return false;
        }
    if (wait == GROUP) finish_products(first, one.count);
    for (int n = 0; n < count; ++n) fibers[first + n].wait = READY;
    return true;
}

// The threads of a group of warps, each as far as it can go; the group's products.
static bool run_group(int number, bool reversed) {
    const int begin = number * GROUP_THREADS;
    const int end = std::min<int>(begin + GROUP_THREADS, fibers.size());
    bool moved = false;
    for (int warp = begin; warp < end && !failure; warp += LANES) {
        const int first = reversed ? begin + end - LANES - warp : warp;
        do {
            for (int n = 0; n < LANES; ++n) {
                threadIdx.x = first + (reversed ? LANES - 1 - n : n);
                Fiber& fiber = fibers[threadIdx.x];
                if (fiber.wait == PHASE && fiber.barrier->phase != fiber.parity) fiber.wait = READY;
                if (fiber.wait != READY) continue;
                go_on(fiber);
                moved = true;
            }
        } while (!failure && release(first, LANES, WARP));
    }
    return moved;
}
static bool release_group(int number) {
    const int first = number * GROUP_THREADS;
    return first + GROUP_THREADS <= fibers.size() && release(first, GROUP_THREADS, GROUP);
}

// All side by side, copies last; or one group ahead of the others, with what the producer copies.
static bool run_some(bool reversed, bool ahead) {
    const int groups = (fibers.size() + GROUP_THREADS - 1) / GROUP_THREADS;
    bool moved = false;
    for (int n = 0; n < groups; ++n) {
        const int number = reversed ? groups - 1 - n : n;
        moved |= run_group(number, reversed);
        if (ahead && (moved || release_group(number))) return true;
        if (ahead && n == 0 && (run_group(groups - 1, reversed) || deliver(reversed))) return true;
    }
    for (int n = 0; n < groups && !moved && !failure; ++n) moved = release_group(n);
    moved = moved || release(0, fibers.size(), BLOCK) || release(0, team, BLOCK);
    return moved || deliver(reversed);
}

static const char* stuck() {
    for (size_t t = 0; t < fibers.size(); ++t)
        if (fibers[t].wait != DONE) {
            const Fiber& fiber = fibers[t];
            const int place = fiber.barrier ? int((unsigned char*)fiber.barrier - shared) : 0;
            snprintf(message, sizeof message, "deadlock: thread %zu waits for %s (line %d, barrier "
                     "at %d, parity %u)", t, WAITS[fiber.wait], fiber.site, place, fiber.parity);
            return message;
        }
    return end_block();
}

static void begin(int threads) {
    memset(shared, 0xff, sizeof shared);
    fibers.resize(threads);
    for (Fiber& fiber : fibers) {
        fiber.stack.resize(1 << 17);
        fiber.wait = READY, fiber.barrier = nullptr, fiber.started = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, start, 0);
    }
    begin_block();
}

// All threads of the cluster have stopped for it: they go on.
static bool release_cluster(int cluster) {
    for (block_rank = 0; block_rank < cluster; ++block_rank)
        for (const Fiber& fiber : fibers)
            if (fiber.wait != CLUSTER && fiber.wait != DONE) return false;
    bool moved = false;
    for (block_rank = 0; block_rank < cluster; ++block_rank)
        for (Fiber& fiber : fibers)
            if (fiber.wait == CLUSTER) fiber.wait = READY, moved = true;
    return moved;
}

// The blocks of a cluster from block `number` on, of so many `blocks`.
static const char* run_cluster(int number, int blocks, int cluster, int threads, int computing,
                               int shared_bytes, int schedule) {
    const bool reversed = schedule & 1;
    failure = nullptr;
    team = computing, gridDim.x = blocks, eager = schedule & 2;
    for (block_rank = 0; block_rank < cluster; ++block_rank) begin(threads);
    bool moved;
    do {
        moved = false;
        for (int n = 0; n < cluster; ++n) {
            block_rank = reversed ? cluster - 1 - n : n;
            blockIdx.x = number + block_rank;
            while (!failure && run_some(reversed, schedule & 2)) moved = true;
        }
    } while (!failure && (moved || release_cluster(cluster)));
    if (failure) return failure;
    for (block_rank = 0; block_rank < cluster; ++block_rank) {
        if (const char* what = stuck()) return what;
        for (int n = shared_bytes; n < SHARED_LIMIT; ++n)
            if (shared[n] != 0xff) return "shared memory overrun";
    }
    return nullptr;
}
"""
