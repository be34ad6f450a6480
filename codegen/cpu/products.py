"""Products of matrices by vector registers: tiles of sums that stay in registers, factors packed.

A tile of the product has ROWS rows of two vectors, as many as the registers hold. For each term of
the sum two vectors of the right factor and an element of each row of the left one are multiplied.
Factors are packed in panels, so that a tile reads its own in order: of the right factor as wide as
a tile, of the left as high. Blocks of a panel's length (DEPTH) stay in the first cache, blocks of
left panels (HEIGHT) in the second.

The routine is compiled once and kept beside this module; kernels call it by the name of a symbol.
"""

from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .runtime import address, peek, poke, room


def _registers() -> tuple[int, int]:
    """Bytes of a vector register, and how many there are."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 64, 32
    if features.get("fma"):
        return 32, 16
    return 16, 16 if features.get("sse2") else 32


VECTOR, REGISTERS = _registers()
WIDE = 2  # vectors of a tile's row
ROWS = (REGISTERS - WIDE - 1) // WIDE  # of the highest tile; one register holds the left element
HEIGHTS = (ROWS, *(n for n in (12, 10, 8, 6, 4, 2, 1) if n < ROWS))
DEPTH = 256  # terms of a panel
HEIGHT = 252  # rows of packed panels
WIDTH = 2048  # columns of packed panels
LONG = 16  # vectors of a row whose first columns are worth a panel of their own


def beginnings(*places: tuple[int, ...]) -> np.ndarray:
    """Where each term of a sum over several indices begins, the last index fastest: the places of
    their points added up.
    """
    return reduce(np.add.outer, map(np.array, places)).reshape(-1).astype(np.intp)


@cache
def product_routine(dtype: str) -> Callable[..., None]:
    """What kernels call, with the routine for float32 or float64 compiled.

    multiply(trans_a, trans_b, m, n, k, a, at_a, ld_a, b, at_b, ld_b, beta, c, at_c, ld_c):
    c[m,n] = sum_k a[m,k] b[k,n] + beta * c for a beta of 0 or 1, row-major. `trans_a`: a lies as
    [k,m]; `at_*` are offsets, `ld_*` row strides in elements.
    """
    pointer, i = types.CPointer(getattr(types, dtype)), types.intp
    signature = (i, i, i, i, i, pointer, i, pointer, i, getattr(types, dtype), pointer, i)
    routine = {"float32": _product_float32, "float64": _product_float64}[dtype]
    llvm.add_symbol(f"eqsat_product_{dtype}", _compiled(routine, signature))
    return multiply


@cache
def windowed_routine(dtype: str) -> Callable[..., None]:
    """What kernels call, with the routine for windows of float32 or float64 compiled.

    multiply_windows(m, n, k, a, b, at_b, terms, c, at_c, ld_c):
    c[m,n] = sum_k a[m,k] b[terms[k] + n], for an n of whole lines and what `pack_left` made of a.
    """
    pointer, i = types.CPointer(getattr(types, dtype)), types.intp
    signature = (i, i, i, pointer, pointer, types.CPointer(i), pointer, i)
    routine = {"float32": _windowed_float32, "float64": _windowed_float64}[dtype]
    llvm.add_symbol(f"eqsat_windowed_{dtype}", _compiled(routine, signature))
    return multiply_windows


def _compiled(routine: Callable[..., None], signature: tuple[Any, ...]) -> int:
    """The address of the compiled routine."""
    options = {"error_model": "numpy", "boundscheck": False}
    try:
        return cfunc(types.void(*signature), cache=True, **options)(routine).address
    except RuntimeError:  # no folder can be written to
        return cfunc(types.void(*signature), **options)(routine).address


@intrinsic
def multiply(
    typingctx, trans_a, trans_b, m, n, k, a, at_a, ld_a, b, at_b, ld_b, beta, c, at_c, ld_c
):
    """See `product_routine`."""

    def emit(context, builder, signature, arguments):
        (ta, tb, m, n, k, a, at_a, ld_a, b, at_b, ld_b, beta, c, at_c, ld_c) = arguments
        kinds = signature.args
        left, right, made = (
            address(context, builder, kinds[place], array, at)
            for place, array, at in ((5, a, at_a), (8, b, at_b), (12, c, at_c))
        )
        ta, tb = (builder.zext(flag, m.type) for flag in (ta, tb))
        operands = (ta, tb, m, n, k, left, ld_a, right, ld_b, beta, made, ld_c)
        _call(builder, f"eqsat_product_{a_kind.dtype}", operands)
        return context.get_dummy_value()

    a_kind, i, flag = a, types.intp, types.boolean
    signature = types.void(flag, flag, i, i, i, a, i, i, b, i, i, a.dtype, c, i, i)
    return signature, emit


@intrinsic
def multiply_windows(typingctx, m, n, k, a, b, at_b, terms, c, at_c, ld_c):
    """See `windowed_routine`."""

    def emit(context, builder, signature, arguments):
        m, n, k, a, b, at_b, terms, c, at_c, ld_c = arguments
        kinds, first = signature.args, m.type(0)
        left, right, where, made = (
            address(context, builder, kinds[place], array, at)
            for place, array, at in ((3, a, first), (4, b, at_b), (6, terms, first), (7, c, at_c))
        )
        operands = (m, n, k, left, right, where, made, ld_c)
        _call(builder, f"eqsat_windowed_{a_kind.dtype}", operands)
        return context.get_dummy_value()

    a_kind, i = a, types.intp
    return types.void(i, i, i, a, b, i, terms, c, i, i), emit


def _call(builder: ir.IRBuilder, name: str, operands: tuple[ir.Value, ...]) -> None:
    kind = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), operands)


# --- one tile ---


@intrinsic
def _tile(typingctx, rows, vectors, depth, a, at_a, b, at_b, b_step, c, at_c, c_step, adds):
    """c[rows, vectors * lanes] (+)= sum of a[depth, rows] times b[depth, vectors * lanes].

    `rows` is one of HEIGHTS, `vectors` 1 or WIDE; `b_step` and `c_step` are row strides. Where
    `b_step` is an array, it says where each row of b begins.
    """

    def emit(context, builder, signature, arguments):
        rows, vectors, depth, a, at_a, b, at_b, b_step, c, at_c, c_step, adds = arguments
        if isinstance(signature.args[7], types.Array):
            b_step = address(context, builder, signature.args[7], b_step, depth.type(0))
        kinds = signature.args
        a, b, c = (
            address(context, builder, kinds[n], array, at)
            for n, array, at in ((3, a, at_a), (5, b, at_b), (8, c, at_c))
        )
        done = builder.append_basic_block("tile_done")
        shape = builder.add(builder.mul(rows, depth.type(WIDE + 1)), vectors)
        choice = builder.switch(shape, done)
        for height in HEIGHTS:
            for width in range(1, WIDE + 1):
                block = builder.append_basic_block(f"tile_{height}_{width}")
                choice.add_case(depth.type(height * (WIDE + 1) + width), block)
                builder.position_at_end(block)
                _one_tile(builder, height, width, depth, a, b, b_step, c, c_step, adds)
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, i, i, a, i, b, i, b_step, c, i, i, types.boolean), emit


def _one_tile(builder, height, width, depth, a, b, b_step, c, c_step, adds) -> None:
    """A tile of `height` rows and `width` vectors: depth is at least 1."""
    count, vector = depth.type, _vector(a)
    lanes = vector.count
    align = VECTOR // lanes

    def place(start, offset):
        return builder.bitcast(builder.gep(start, [offset]), vector.as_pointer())

    def added(element, factor, total):
        product = builder.fmul(_spread(builder, element, vector), factor, flags=("contract",))
        return builder.fadd(product, total, flags=("contract",))

    before = builder.block
    loop, after = builder.append_basic_block("terms"), builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    n = builder.phi(count)
    sums = [[builder.phi(vector) for _ in range(width)] for _ in range(height)]
    left = builder.gep(a, [builder.mul(n, count(height))])
    by_table = isinstance(b_step.type, ir.PointerType)
    ahead = builder.load(builder.gep(b_step, [n])) if by_table else builder.mul(n, b_step)
    right = builder.gep(b, [ahead])
    factors = [builder.load(place(right, count(v * lanes)), align=align) for v in range(width)]
    made = []
    for r in range(height):
        element = builder.load(builder.gep(left, [count(r)]))
        made.append([added(element, *both) for both in zip(factors, sums[r], strict=True)])
    following = builder.add(n, count(1))
    n.add_incoming(count(0), before)
    n.add_incoming(following, loop)
    for row, made_row in zip(sums, made, strict=True):
        for phi, value in zip(row, made_row, strict=True):
            phi.add_incoming(ir.Constant(vector, None), before)
            phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
    builder.position_at_end(after)
    with builder.if_else(adds) as (more, first):
        for branch, adding in ((more, True), (first, False)):
            with branch:
                for r, row in enumerate(made):
                    start = builder.gep(c, [builder.mul(count(r), c_step)])
                    for v, value in enumerate(row):
                        at = place(start, count(v * lanes))
                        if adding:
                            value = builder.fadd(value, builder.load(at, align=align))
                        builder.store(value, at, align=align)


def _vector(array: ir.Value) -> ir.VectorType:
    """The vectors of what a pointer points to."""
    real = array.type.pointee
    return ir.VectorType(real, VECTOR // (8 if isinstance(real, ir.DoubleType) else 4))


def _spread(builder, element, vector):
    """The element in every lane."""
    index, undefined = ir.IntType(32), ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, element, index(0))
    zeros = ir.Constant(ir.VectorType(index, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, undefined, zeros)


# --- panels ---


@intrinsic
def _turn(typingctx, source, at, step, rows, to, at_to, to_step):
    """A square of as many rows as a vector has lanes, `step` apart, stored as columns `to_step`
    apart. There are `rows`; the last is read in place of those beyond.
    """

    def emit(context, builder, signature, arguments):
        source, at, step, rows, to, at_to, to_step = arguments
        kinds = signature.args
        source = address(context, builder, kinds[0], source, at)
        to = address(context, builder, kinds[4], to, at_to)
        count, vector = step.type, _vector(source)
        lanes, align = vector.count, VECTOR // vector.count

        def place(start, offset):
            return builder.bitcast(builder.gep(start, [offset]), vector.as_pointer())

        last = builder.sub(rows, count(1))
        held = []
        for r in range(lanes):
            row = builder.select(builder.icmp_signed("<", count(r), rows), count(r), last)
            held.append(builder.load(place(source, builder.mul(row, step)), align=align))
        apart = 1
        while apart < lanes:
            for r in (r for r in range(lanes) if not r & apart):
                first, second = held[r], held[r | apart]
                held[r], held[r | apart] = (
                    builder.shuffle_vector(first, second, _mask(lanes, apart, half))
                    for half in (0, apart)
                )
            apart *= 2
        for r, value in enumerate(held):
            builder.store(value, place(to, builder.mul(count(r), to_step)), align=align)
        return context.get_dummy_value()

    i = types.intp
    return types.void(source, i, i, i, to, i, i), emit


def _mask(lanes: int, apart: int, half: int) -> ir.Constant:
    """Lanes of two vectors, of which those `apart` change places: of the first result, or of the
    second (`half` = `apart`).
    """
    chosen = [(lane & ~apart) | half for lane in range(lanes)]
    chosen = [at + lanes if lane & apart else at for lane, at in enumerate(chosen)]
    return ir.Constant(ir.VectorType(ir.IntType(32), lanes), chosen)


@njit(nogil=True, error_model="numpy")
def _pack(source, at, row_step, step, rows, depth, to, at_to, width):
    """to[n, r] = source[r, n] for `rows` rows, `row_step` apart, of `depth` elements, `step` apart.

    Rows of `to` are `width` apart; what lies beyond `rows` in them is some finite value.
    """
    lanes = VECTOR // source.itemsize
    if row_step == 1:
        for n in range(depth):
            for r in range(rows):
                poke(to, at_to + n * width + r, peek(source, at + n * step + r))
            for r in range(rows, width):
                poke(to, at_to + n * width + r, source.dtype.type(0))
        return
    whole = depth // lanes * lanes
    for n in range(0, whole, lanes):
        for r in range((rows - 1) // lanes * lanes, -1, -lanes):  # each over what hangs across
            start = at + r * row_step + n
            _turn(source, start, row_step, rows - r, to, at_to + n * width + r, width)
    for n in range(whole, depth):
        for r in range(width):
            row = min(r, rows - 1)
            poke(to, at_to + n * width + r, peek(source, at + row * row_step + n))


@njit(nogil=True, error_model="numpy")
def _pack_rows(source, at, step, before, across, panels, depth, to, width):
    """The panels of `across` columns, the first of those `before`: row after row, as memory has
    them. What panel by panel reads of them, rows apart, lies in few sets of a cache.
    """
    for n in range(depth):
        for panel in range(panels):
            j, own = _columns(panel, before, width, across)
            place = (panel * depth + n) * width
            for r in range(own):
                poke(to, place + r, peek(source, at + n * step + j + r))
            for r in range(own, width):
                poke(to, place + r, source.dtype.type(0))


@njit(nogil=True, error_model="numpy")
def _height(rows):
    """The lowest of HEIGHTS that holds so many rows."""
    best = HEIGHTS[0]
    for height in HEIGHTS:
        if height >= rows:
            best = height
    return best


@njit(nogil=True, error_model="numpy")
def _before_line(c, ld_c, n, lanes):
    """Columns of a long row before the first that begins a vector's line of memory, where that is
    the same in all rows: vectors that cross lines take twice as long to write.
    """
    apart = c.ctypes.data // c.itemsize % lanes
    return lanes - apart if apart and ld_c % lanes == 0 and n >= LONG * lanes else 0


@njit(nogil=True, error_model="numpy")
def _columns(panel, before, wide, across):
    """The first column of a panel, and how many it has."""
    if before and panel == 0:
        return 0, before
    j = (panel - (before > 0)) * wide + before
    return j, min(wide, across - j)


@njit(nogil=True, error_model="numpy")
def _product(turned_a, turned_b, m, n, k, a, ld_a, b, ld_b, beta, c, ld_c):
    if k == 0:
        for i in range(m):
            for j in range(n):
                poke(c, i * ld_c + j, beta * peek(c, i * ld_c + j) if beta else beta)
        return
    lanes = VECTOR // a.itemsize
    wide = WIDE * lanes
    a_row, a_step = (1, ld_a) if turned_a else (ld_a, 1)
    parts = _parts(k)
    longest = (k + parts - 1) // parts
    panels = (min(m, HEIGHT) + ROWS - 1) // ROWS
    left = room(panels * ROWS * longest + lanes, a.dtype)
    apart = _before_line(c, ld_c, n, lanes)
    right = room(((min(n, WIDTH) + wide - 1) // wide + 1) * wide * longest, b.dtype)
    edge = room(ROWS * wide, c.dtype)
    for column in range(0, n, WIDTH):
        across = min(WIDTH, n - column)
        before = apart if apart < across else 0  # of the last columns there may be fewer
        columns = (across - before + wide - 1) // wide + (before > 0)
        for part in range(parts):
            first = part * k // parts
            depth = (part + 1) * k // parts - first
            adds = part > 0 or beta != 0
            if turned_b:
                for panel in range(columns):
                    j, width = _columns(panel, before, wide, across)
                    start, to = (column + j) * ld_b + first, panel * wide * depth
                    _pack(b, start, ld_b, 1, width, depth, right, to, wide)
            else:
                start = column + first * ld_b
                _pack_rows(b, start, ld_b, before, across, columns, depth, right, wide)
            for row in range(0, m, HEIGHT):
                down = min(HEIGHT, m - row)
                for i in range(0, down, ROWS):
                    height = min(ROWS, down - i)
                    start = (row + i) * a_row + first * a_step
                    to = i * depth
                    _pack(a, start, a_row, a_step, height, depth, left, to, _height(height))
                for panel in range(columns):
                    j, width = _columns(panel, before, wide, across)
                    vectors = (width + lanes - 1) // lanes
                    factor_at = panel * wide * depth
                    for i in range(0, down, ROWS):
                        height = min(ROWS, down - i)
                        rows = _height(height)
                        at = (row + i) * ld_c + column + j
                        heights = i * depth
                        if rows == height and width == vectors * lanes:
                            _tile(rows, vectors, depth, left, heights, right, factor_at, wide,
                                  c, at, ld_c, adds)  # fmt: skip
                            continue
                        _tile(rows, vectors, depth, left, heights, right, factor_at, wide,
                              edge, 0, wide, False)  # fmt: skip
                        _copy(edge, wide, height, width, c, at, ld_c, adds)


@njit(nogil=True, error_model="numpy")
def pack_left(turned, m, k, a, at_a, ld_a):
    """The panels of a left factor: of each part of the sum those of all rows, ROWS at a time."""
    row_step, step = (1, ld_a) if turned else (ld_a, 1)
    parts, down = _parts(k), (m + ROWS - 1) // ROWS * ROWS
    packed = room(down * k + VECTOR // a.itemsize, a.dtype)
    for part in range(parts):
        first = part * k // parts
        depth = (part + 1) * k // parts - first
        for i in range(0, m, ROWS):
            height, start = min(ROWS, m - i), at_a + i * row_step + first * step
            to = first * down + i * depth
            _pack(a, start, row_step, step, height, depth, packed, to, _height(height))
    return packed


@njit(nogil=True, error_model="numpy")
def _parts(k):
    """Parts of a sum, of DEPTH terms at the most."""
    return (k + DEPTH - 1) // DEPTH


@njit(nogil=True, error_model="numpy")
def _windowed(m, n, k, packed, b, terms, c, ld_c):
    lanes = VECTOR // b.itemsize
    wide = WIDE * lanes
    parts, down = _parts(k), (m + ROWS - 1) // ROWS * ROWS
    edge = room(ROWS * wide, c.dtype)
    for part in range(parts):
        first = part * k // parts
        depth = (part + 1) * k // parts - first
        begin, adds = terms[first:], part > 0
        for row in range(0, m, HEIGHT):
            for j in range(0, n, wide):
                vectors = min(WIDE, (n - j) // lanes)
                for i in range(row, min(m, row + HEIGHT), ROWS):
                    height = min(ROWS, m - i)
                    rows, panel, at = _height(height), first * down + i * depth, i * ld_c + j
                    if rows == height:
                        _tile(rows, vectors, depth, packed, panel, b, j, begin, c, at, ld_c, adds)
                        continue
                    _tile(rows, vectors, depth, packed, panel, b, j, begin, edge, 0, wide,
                          False)  # fmt: skip
                    _copy(edge, wide, height, vectors * lanes, c, at, ld_c, adds)


@njit(nogil=True, error_model="numpy")
def _copy(source, step, height, width, c, at, ld_c, adds):
    """c[height, width] (+)= what lies elsewhere, rows `step` apart."""
    for r in range(height):
        for x in range(width):
            value = peek(source, r * step + x)
            if adds:
                value += peek(c, at + r * ld_c + x)
            poke(c, at + r * ld_c + x, value)


def _product_float32(turned_a, turned_b, m, n, k, a, ld_a, b, ld_b, beta, c, ld_c):
    left, right, made = carray(a, (1,)), carray(b, (1,)), carray(c, (1,))
    _product(turned_a, turned_b, m, n, k, left, ld_a, right, ld_b, beta, made, ld_c)


def _product_float64(turned_a, turned_b, m, n, k, a, ld_a, b, ld_b, beta, c, ld_c):
    left, right, made = carray(a, (1,)), carray(b, (1,)), carray(c, (1,))
    _product(turned_a, turned_b, m, n, k, left, ld_a, right, ld_b, beta, made, ld_c)


def _windowed_float32(m, n, k, a, b, terms, c, ld_c):
    left, right, made, begin = carray(a, (1,)), carray(b, (1,)), carray(c, (1,)), carray(terms, k)
    _windowed(m, n, k, left, right, begin, made, ld_c)


def _windowed_float64(m, n, k, a, b, terms, c, ld_c):
    left, right, made, begin = carray(a, (1,)), carray(b, (1,)), carray(c, (1,)), carray(terms, k)
    _windowed(m, n, k, left, right, begin, made, ld_c)
