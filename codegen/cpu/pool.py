"""Threads bound to cores that take ranges of a compiled kernel, and spin a moment for the next.

A thread that sleeps takes 20 to 150 us to wake (measured), longer than many kernels run. So what a
caller hands out lies in memory that a thread which has just been at work watches for about a
millisecond, outside of Python's lock; only then does it sleep. A caller does its part of the ranges
and takes back what no thread has begun by then, so that it never waits for one to wake.
"""

import atexit
import ctypes
import os
import platform
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from eqsat.codegen.host.memory import ALIGNED, address_of

SPINS = 20_000  # pauses until a thread that finds nothing to do sleeps: about a millisecond
WORD, LINE = 8, ALIGNED  # bytes of an integer, and what two cores do not share

# What lies in a mailbox, at its start: nothing, what a thread has taken, an end to all, or the
# address of a job. A line further: whether its thread sleeps.
FREE, TAKEN, STOP = 0, 1, 2
ASLEEP = LINE

# A job: the kernel's address, its tiles, into how many ranges they are cut, the address of the
# first range's table of arrays, and how far the next one is; a line further the number of the next
# range; then whether one failed.
KERNEL, TILES, RANGES, TABLE, STEP, NEXT, FAILED = 0, 8, 16, 24, 32, LINE, 2 * LINE
JOB_WORDS = 3 * LINE // WORD

_I64 = ir.IntType(64)


def _pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.inttoptr(address, _I64.as_pointer())


@intrinsic
def _load(context, address):
    """The integer at an address, with what was written before it."""

    def emit(context, builder, signature, arguments):
        return builder.load_atomic(_pointer(builder, *arguments), "seq_cst", WORD)

    return types.intp(types.intp), emit


@intrinsic
def _store(context, address, value):
    def emit(context, builder, signature, arguments):
        address, value = arguments
        builder.store_atomic(value, _pointer(builder, address), "seq_cst", WORD)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), emit


@intrinsic
def _add(context, address, value):
    """What was at an address before a number was added to it."""

    def emit(context, builder, signature, arguments):
        address, value = arguments
        return builder.atomic_rmw("add", _pointer(builder, address), value, "seq_cst")

    return types.intp(types.intp, types.intp), emit


@intrinsic
def _swap(context, address, expected, value):
    """Whether an address had what was expected, and now has another value."""

    def emit(context, builder, signature, arguments):
        address, *pair = arguments
        found = builder.cmpxchg(_pointer(builder, address), *pair, "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(types.intp, types.intp, types.intp), emit


@intrinsic
def _pause(context):
    """Leave the core's other thread what it has, for a moment."""

    def emit(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [])
        if platform.machine() in ("x86_64", "AMD64"):
            name = "llvm.x86.sse2.pause"
            found = builder.module.globals.get(name)
            builder.call(found or ir.Function(builder.module, kind, name), [])
        elif platform.machine() in ("aarch64", "arm64"):
            builder.asm(kind, "yield", "", [], True)
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def _call(context, kernel, start, stop, table):
    """The status of a compiled function of three integers: 0 where it raised nothing."""

    def emit(context, builder, signature, arguments):
        address, *own = arguments
        any_pointer = ir.IntType(8).as_pointer()
        # Of a result and of an exception: once, since in a loop each would take more of the stack.
        places = [cgutils.alloca_once(builder, any_pointer) for _ in range(2)]
        kind = ir.FunctionType(ir.IntType(32), [places[0].type, places[1].type, _I64, _I64, _I64])
        function = builder.inttoptr(address, kind.as_pointer())
        return builder.sext(builder.call(function, [*places, *own]), _I64)

    return types.intp(types.intp, types.intp, types.intp, types.intp), emit


@intrinsic
def array_at(context, table, number, like):
    """The flat array of elements like one, of which a table has the address and the size."""
    made = types.Array(like, 1, "C")

    def emit(context, builder, signature, arguments):
        table, number, _ = arguments
        first = builder.gep(_pointer(builder, table), [builder.shl(number, ir.Constant(_I64, 1))])
        size = builder.load(builder.gep(first, [ir.Constant(_I64, 1)]))
        data = builder.inttoptr(builder.load(first), context.get_data_type(made.dtype).as_pointer())
        kind = ir.FunctionType(data.type, [data.type])
        data = builder.asm(kind, "", "=r,0", [data], False)  # LLVM: it points to no constant
        array = context.make_array(made)(context, builder)
        itemsize = ir.Constant(_I64, context.get_abi_sizeof(context.get_data_type(made.dtype)))
        context.populate_array(
            array,
            data=builder.bitcast(data, array.data.type),
            shape=[size],
            strides=[itemsize],
            itemsize=itemsize,
            meminfo=None,
        )
        return array._getvalue()

    return made(types.intp, types.intp, like), emit


@intrinsic
def wide_vectors(context):
    """Have the function that calls it made of the widest vectors there are. LLVM prefers 32 bytes
    on processors of Intel, for clocks that once fell with wider ones.
    """

    def emit(context, builder, signature, arguments):
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # unknown to llvmlite
        return context.get_dummy_value()

    return types.void(), emit


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled when it is first called, and kept on disk where there is a place to write."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # Numba's own, where neither this folder nor the user's can be written
        return njit(nogil=True)(function)


@_compiled
def _work(job):
    kernel, tiles, ranges = _load(job + KERNEL), _load(job + TILES), _load(job + RANGES)
    while True:
        turn = _add(job + NEXT, 1)
        if turn >= ranges:
            return
        table = _load(job + TABLE) + turn * _load(job + STEP)
        start, stop = turn * tiles // ranges, (turn + 1) * tiles // ranges
        if _call(kernel, start, stop, table) != 0:
            _store(job + FAILED, 1)


@_compiled
def _sleeps(mailbox):
    """Whether its thread sleeps, and is not being woken."""
    return _swap(mailbox + ASLEEP, 1, 0)


@_compiled
def _run(job, mailboxes):
    """Work on a job until it is done, beside whoever finds it in one of the mailboxes. From here
    nothing interrupts the caller, who keeps the job's memory.
    """
    for mailbox in mailboxes:
        _store(mailbox, job)
    _work(job)
    for mailbox in mailboxes:
        if not _swap(mailbox, job, FREE):
            while _load(mailbox) == TAKEN:
                _pause()


@_compiled
def _serve(mailbox):
    """Take jobs until there were none for a while; False at the end of all."""
    idle = 0
    while True:
        job = _load(mailbox)
        if job == STOP:
            return False
        if job > STOP and _swap(mailbox, job, TAKEN):
            _work(job)
            _store(mailbox, FREE)
            idle = 0
        elif idle < SPINS:
            _pause()
            idle += 1
        else:
            _store(mailbox + ASLEEP, 1)
            if _load(mailbox) == FREE or not _swap(mailbox + ASLEEP, 1, 0):
                return True  # it sleeps, or is being woken


class _Worker:
    """A thread bound to a core, its mailbox, and who may post there."""

    def __init__(self, core: int) -> None:
        words = np.zeros(3 * LINE // WORD, np.intp)
        self.words = words[-address_of(words) % LINE // WORD :]  # from where a line begins
        self.mailbox = address_of(self.words)
        self.lock, self.awake = threading.Lock(), threading.Semaphore(0)
        self.thread = threading.Thread(
            target=self._watch, args=(core,), name=f"eqsat-{core}", daemon=True
        )
        self.thread.start()
        atexit.register(self._end)

    def _watch(self, core: int) -> None:
        """Left to the scheduler, a woken thread often shares its waker's core for the 3 ms until
        the next rebalancing, while the other core idles: measured, every second program ran at
        half speed.
        """
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {core})
        while _serve(self.mailbox):
            self.awake.acquire()

    def _end(self) -> None:
        """Compiled code must not run on while it is taken down."""
        if self.thread.is_alive():
            self.words[0] = STOP
            self.awake.release()
            self.thread.join(1)


class _Workers:
    """The workers of a process, by their cores, and their mailboxes together."""

    def __init__(self) -> None:
        self.lock, self.by_core = threading.Lock(), dict[tuple[int, int], _Worker]()
        self.mailboxes: dict[tuple[int, ...], np.ndarray] = {}

    def of(self, cores: Sequence[int]) -> list[_Worker]:
        """Those of some cores; a forked process makes its own."""
        keys, made = [(os.getpid(), core) for core in cores], self.by_core
        if not all(key in made for key in keys):
            with self.lock:
                for key in keys:
                    if key not in made:
                        made[key] = _Worker(key[1])
        return [made[key] for key in keys]

    def posted(self, workers: Sequence[_Worker]) -> np.ndarray:
        """The addresses of their mailboxes."""
        key = tuple(one.mailbox for one in workers)
        if key not in self.mailboxes:
            self.mailboxes[key] = np.array(key, np.intp)
        return self.mailboxes[key]


_WORKERS = _Workers()


@cache
def _current_core() -> Callable[[], int]:
    """A function that gives the core of the calling thread, -1 where the system does not say."""
    library: Any = ctypes.PyDLL(None) if os.name == "posix" else None
    return getattr(library, "sched_getcpu", lambda: -1)


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def run_ranges(kernel: int, tiles: int, threads: int, ranges: int, tables: np.ndarray) -> None:
    """Run all tiles of the kernel at an address on `threads` cores, the caller's included; each
    takes the next range. `tables`: of the arrays of all ranges, or of each (range, word). Cores at
    work for another thread of Python are left out. MemoryError where a kernel found no room.
    """
    job = np.zeros(JOB_WORDS, np.intp)
    step = tables.strides[0] if tables.ndim > 1 else 0
    job[:5] = kernel, tiles, min(tiles, ranges), address_of(tables), step
    address = address_of(job)
    cores = sorted(_cores() - {_current_core()()})[: threads - 1]
    taken = [one for one in _WORKERS.of(cores) if one.lock.acquire(blocking=False)]
    try:
        for one in taken:
            if _sleeps(one.mailbox):
                one.awake.release()
        _run(address, _WORKERS.posted(taken))
    finally:
        for one in taken:
            one.lock.release()
    if job[FAILED // WORD]:
        raise MemoryError("a kernel failed, as one does that finds no room. Free some memory.")
