"""One phase of a kernel: its carries, its loop over chunks with a ring of tiles, its statements."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

from eqsat.codegen.cuda import stream_k
from eqsat.graph.dtypes import int64
from eqsat.graph.index import free_names
from eqsat.kernel.idle_chunks import live_ranges, told
from eqsat.kernel.ir import Axis, Carry, Contract, Load, Phase, Reduce, Update, store_operands

from .copy.ahead import load_chunks_ahead
from .copy.copies import told_value
from .copy.ring import Ring
from .copy.tile_copy import can_copy_async, copy
from .copy.tiles import tile_for
from .overlap import (
    ChainedStatements,
    HeldStatements,
    WholeStatements,
    declare_packed,
    held_products,
    hold_factors,
    issue_delayed,
    release_delayed,
)
from .pipeline import Pipeline
from .place.block import Block
from .place.placement import COMPUTED, SHARED
from .place.tile import Point
from .prelude.math import cast, identity, register_type
from .products.chains import BESIDE, LATER, holds_factor, is_lagging
from .products.contract import monoid_of
from .statements import Statements
from .steps import Ahead, SteppedStatements, commit_slot, declare_slots, fill_slot, loads_ahead
from .values.collective import reduce_threads

FAR = 1 << 30  # beyond all positions
LEAST_WHOLE = 3  # chunks of a loop beside which the last chunk is worth code of its own
AT_ONCE = 4  # chunks in a producer's code: of more its few registers do not hold the addresses


def emit_phase(block: Block, phase: Phase, pipeline: Pipeline | None = None) -> None:
    """Write a phase; values that later phases see stay in scope.

    With a pipeline, what its producer does for the phase is written into its program.
    """
    start = block.shared_bytes
    if phase.stream:
        _emit_stream(block, phase, pipeline)
    elif pipeline and phase in pipeline.rings:
        pipeline.allocate(phase)
        with pipeline.producing():
            pipeline.fill(phase)
        with pipeline.converter.converting():
            pipeline.convert(phase)
        boxes: set[str] = set()
        for ring in pipeline.rings[phase]:
            pipeline.wait(ring)
            boxes |= set(ring.boxes)
        WholeStatements(block, phase, pipeline, boxes).emit()
        return  # slots that others read besides products are let go of at the end of the tile
    else:
        body = Statements(block, phase)
        body.emit()
    if pipeline is None and not _tiles_outlive(block, phase):
        block.shared_bytes = start
        block.tiles_read = block.tiles_read or block.tiles_written


def _tiles_outlive(block: Block, phase: Phase) -> bool:
    """Whether a later phase reads a tile of this one."""
    if phase.stream:
        return False
    later = block.kernel.phases[block.kernel.phases.index(phase) + 1 :]
    shared = (SHARED, COMPUTED)
    own = {s.name for s in phase.body if block.placement.where[s.name] in shared}
    readers = {s.name for p in later for s in p.body}
    stored = {name for p in later for store in p.stores for name in store_operands(store)}
    return any(own & stored or set(block.placement.users[name]) & readers for name in own)


def _emit_stream(block: Block, phase: Phase, pipeline: Pipeline | None) -> None:
    out = block.out
    partial = partial_carries(block, phase)
    out.line()
    for carry in phase.carries:
        kind, count = register_type(carry.dtype), block.register_count(carry.indices)
        out.line(f"{kind} {block.value(carry.name)}[{count}];")
        neutral = identity(carry.monoid, carry.dtype)
        out.line("#pragma unroll")
        out.line(f"for (int e = 0; e < {count}; ++e) {block.value(carry.name)}[e] = {neutral};")
        block.readers[carry.name] = block.element_reader(carry.name)
    with out.block():
        if pipeline and phase in pipeline.rings:
            _emit_consumer(block, phase, pipeline, partial)
        else:
            _emit_loop(block, phase, partial)
    block.tiles_read |= pipeline is None
    for carry in phase.carries:
        if carry.name in partial:
            _combine(block, carry, partial[carry.name])


def _emit_loop(block: Block, phase: Phase, partial: Mapping[str, str]) -> None:
    """The loop over chunks, the phase's tiles before it."""
    out = block.out
    ring = _tiles(block, phase, max(phase.stages, 1))
    live = _live_chunks(block, phase)
    if ring:
        _start_ring(block, phase, ring, live)
    if block.tiles_written:
        block.barrier()
    block.tiles_read = True  # by the chunk before, from the second on
    ahead = loads_ahead(block.kernel, block.placement, block.distribution, phase)
    if ahead:
        _emit_steps(block, phase, partial, ahead)
        return
    load_chunks_ahead(block, phase, ring, live, lambda: _begin_chunk(block, phase))
    for first, last, whole in _turns(block, phase, live):
        with out.block(f"for (int chunk = {first}; chunk < {last}; ++chunk)"):
            block.whole = whole
            _begin_chunk(block, phase)
            if ring:
                _advance_ring(block, phase, ring, live[1])
            body = Statements(block, phase, ring, partial)
            body.emit()
            _copy_carries(block, body)
            block.whole = frozenset()


def _turns(
    block: Block, phase: Phase, live: tuple[str, str]
) -> Iterator[tuple[str, str, frozenset[str]]]:
    """The loops over chunks: from which to which, and the names of which each has all points.

    A loop of plain loads that would ask for each point whether it exists leaves the last chunk,
    which is smaller, to a loop of its own.
    """
    where = block.placement.where
    plain = all(where[s.name] not in (SHARED, COMPUTED) for s in phase.body)
    (axis, *others) = phase.stream
    full = str(axis.extent // axis.tile)
    uneven = axis.extent % axis.tile and axis.count > LEAST_WHOLE
    if others or not plain or not uneven or live != ("0", str(axis.count)):
        yield *live, frozenset()
    else:
        yield "0", full, frozenset({axis.name})
        yield full, str(axis.count), frozenset()


def _emit_steps(block: Block, phase: Phase, partial: Mapping[str, str], ahead: Ahead) -> None:
    """The loop over single steps, as many at a time as are loaded ahead."""
    out, (axis,) = block.out, phase.stream
    count, steps = axis.count, ahead.steps
    rest = count % steps
    declare_slots(block, ahead)
    with out.block("auto load_ahead = [&](int chunk, int slot)", ";"):
        _begin_chunk(block, phase)
        fill_slot(block, phase, ahead)
    each_slot = f"for (int slot = 0; slot < {steps}; ++slot)"
    out.line("#pragma unroll")
    with out.block(each_slot):
        out.line("load_ahead(slot, slot);")
        commit_slot(block, ahead)
    with out.block(f"for (int first = 0; first < {count}; first += {steps})"):
        later = f"first + {steps}"  # whole groups are loaded at fixed distances from the first
        if not rest:
            later = f"{later} < {count} ? {later} : first"
        out.line(f"const int next = {later};")
        out.line("#pragma unroll" if ahead.unrolled else "#pragma unroll 1")
        with out.block(each_slot):
            out.line("const int chunk = first + slot;")
            with out.block(f"if (chunk < {count})" if rest else ""):
                _begin_chunk(block, phase)
                body = SteppedStatements(block, phase, partial, ahead)
                body.take()
                load = "load_ahead(next + slot, slot);"
                out.line(f"if (next + slot < {count}) {load}" if rest else load)
                commit_slot(block, ahead)
                body.emit()
                _copy_carries(block, body)
    if ahead.copies:
        out.line("wait_copies<0>();")


def _emit_consumer(
    block: Block, phase: Phase, pipeline: Pipeline, partial: Mapping[str, str]
) -> None:
    """The loop over chunks that a producer copies ahead, and the producer's own loop."""
    pipeline.allocate(phase)
    _tiles(block, phase, 1, {name for ring in pipeline.rings[phase] for name in ring.boxes})
    with pipeline.producing(), _each_chunk(block, phase, AT_ONCE):
        pipeline.fill(phase)
    if pipeline.converter.copied(phase):
        with pipeline.converter.converting(), block.out.block():
            pipeline.converter.hold(phase, pipeline.rings[phase])
            with _each_chunk(block, phase):
                pipeline.convert(phase)
    first, last = _live_chunks(block, phase)
    known = prod(axis.count for axis in phase.stream) if block.kernel.stream_k else None
    pipeline.chunks[phase] = int(last) - int(first) if last.isdigit() else known
    emit = _emit_chain if phase in pipeline.chains else _emit_chunks
    emit(block, phase, pipeline, partial, (first, last))
    if block.kernel.stream_k:
        stream_k.join_sums(block, phase)


@contextmanager
def _each_chunk(block: Block, phase: Phase, at_once: int = 1) -> Iterator[None]:
    """The loop over chunks of threads that compute nothing of them."""
    with block.out.block():
        first, last = _live_chunks(block, phase)
        block.out.line(f"#pragma unroll {at_once}")
        with block.out.block(f"for (int chunk = {first}; chunk < {last}; ++chunk)"):
            for name, text in _chunk_origins(block, phase.stream, "chunk").items():
                block.out.line(f"const int {name} = {text};")
            yield


def _emit_chunks(
    block: Block,
    phase: Phase,
    pipeline: Pipeline,
    partial: Mapping[str, str],
    live: tuple[str, str],
) -> None:
    """The loop over chunks whose products, if they are all that a chunk starts, lag one behind."""
    out, rings, (first, last) = block.out, pipeline.rings[phase], live
    boxes = {name for ring in rings for name in ring.boxes}
    loop = f"for (int chunk = {first}; chunk < {last}; ++chunk)"
    if not last.isdigit():  # one at least: else a compiler has products wait for the sums' zeros
        loop = f"for (int chunk = {first}, more = 1; more; more = ++chunk < {last})"
    lagging = rings[0].stages > 1 and is_lagging(block, phase)
    held = lagging and holds_factor(block, phase)
    if held:
        declare_packed(block, held_products(block, phase))
    own = {s.name for s in phase.body if block.placement.where[s.name] in (SHARED, COMPUTED)}
    block.tiles_read |= bool(own - boxes)  # by the chunk before, from the second on
    pipeline.begin_turn()
    with out.block(loop):
        _begin_chunk(block, phase)
        for ring in rings:
            pipeline.wait(ring)
        if held:
            body: Statements = HeldStatements(block, phase, boxes, partial)
        else:
            body = Statements(block, phase, boxes, partial, lagging)
        early = not lagging and _waits_for_readers(block, phase, boxes)
        if early:
            body.let_go = lambda: _let_go(pipeline, rings)
        body.emit()
        _copy_carries(block, body)
        if lagging and not held:
            out.line("products_wait<1>();")
        for ring in rings:
            if lagging:  # the chunk before is done, and this one's products run
                pipeline.release(ring, behind=True, condition=f"chunk > {first}")
            elif not early:
                pipeline.release(ring)
            ring.advance(out)
    pipeline.end_turn()
    if lagging:
        out.line("products_wait<0>();")
        for ring in rings:
            pipeline.release(ring, behind=True)


def _waits_for_readers(block: Block, phase: Phase, boxes: Collection[str]) -> bool:
    """Whether all that reads the boxes is one product of warpgroups, which a chunk waits for."""
    found = [s.name for s in phase.body if s.name in block.placement.matrices]
    users = {user for name in boxes for user in block.placement.users[name]}
    return users == {*found} and len(found) == 1 and not block.placement.matrices[found[0]].partial


def _let_go(pipeline: Pipeline, rings: Sequence[Ring]) -> None:
    """Let go of the slot in use of each ring."""
    for ring in rings:
        pipeline.release(ring)


def _live_chunks(block: Block, phase: Phase) -> tuple[str, str]:
    """The first chunk that changes anything, and the one after the last; at least one."""
    if block.kernel.stream_k:
        return stream_k.FIRST, stream_k.LAST
    chunks = prod(axis.count for axis in phase.stream)
    ranges = live_ranges(block.kernel, phase)
    if not ranges:
        return "0", str(chunks)
    out, at = block.out, Point(dict(block.frame.origin), {}, block.frame.origin)
    out.line(f"int first_chunk = 0, last_chunk = {chunks};")
    values = {atom: told(atom) for start, _ in ranges for atom in free_names(start) if told(atom)}
    for n, (atom, name) in enumerate(values.items()):
        value = cast(block.placement.dtypes[name], int64, told_value(block, name, at, f"at_{n}"))
        out.line(f"const int bound_{n} = int(minimum(maximum({value}, {-FAR}LL), {FAR}LL));")
        at = Point({**at.at, atom: f"bound_{n}"}, {}, at.origin)
    for start, step in ranges:
        text = block.affine(start, at)
        if step == 0:
            out.line(f"if ({text} < 0) last_chunk = 0;")
        elif step < 0:
            last = f"floor_divide<int>({text}, {-step}) + 1"
            out.line(f"last_chunk = min(last_chunk, {last});")
        else:
            out.line(f"first_chunk = max(first_chunk, -floor_divide<int>({text}, {step}));")
    out.line("if (first_chunk >= last_chunk) first_chunk = 0, last_chunk = 1;")
    return "first_chunk", "last_chunk"


def _begin_chunk(block: Block, phase: Phase) -> None:
    """Where the chunk at hand begins."""
    for name, text in _chunk_origins(block, phase.stream, "chunk").items():
        block.out.line(f"const int {name} = {text};")
    block.define_bases(block.frame, [axis.name for axis in phase.stream])


def _emit_chain(
    block: Block,
    phase: Phase,
    pipeline: Pipeline,
    partial: Mapping[str, str],
    live: tuple[str, str],
) -> None:
    """The loop over chunks, its first run apart, where the later products lag a chunk behind."""
    out, chain = block.out, pipeline.chains[phase]
    rings = pipeline.rings[phase]
    own = [ring for ring in rings if ring.role != LATER]  # of the chunk at hand
    declare_packed(block, {chain.packed(u): u.chunk for u in chain.delayed})
    held = hold_factors(block, phase, pipeline)
    begin, end = live
    for first in (True, False):
        head = f"for (int chunk = {begin} + 1; chunk < {end}; ++chunk)"
        with out.block("" if first else head):
            if first:
                out.line(f"const int chunk = {begin};")
            _begin_chunk(block, phase)
            for ring in own:
                pipeline.wait(ring)
            body = ChainedStatements(block, phase, pipeline, partial, first, held)
            body.emit()
            _copy_carries(block, body)
            for ring in own:
                if ring.role == BESIDE:
                    pipeline.release(ring)
            for ring in own if first else rings:
                ring.advance(out)
    before = block.kernel.phases[: block.kernel.phases.index(phase) + 1]
    over = {s.name for one in before for s in one.body} & block.placement.matrices.keys()
    pipeline.finish(over - {update.chunk for update in chain.delayed})
    for ring in rings:
        if ring.role == LATER:
            pipeline.wait(ring)
    issue_delayed(block, phase, pipeline)
    out.line("products_wait<0>();")
    release_delayed(phase, pipeline)
    for ring in rings:
        if ring.role == LATER:
            ring.advance(out)


def _copy_carries(block: Block, body: Statements) -> None:
    """Carries whose next value has registers of its own take it over."""
    for carry, update in body.copied_carries():
        count = block.register_count(block.placement.indices[carry])
        source, target = block.value(update), block.value(carry)
        block.out.line("#pragma unroll")
        block.out.line(f"for (int e = 0; e < {count}; ++e) {target}[e] = {source}[e];")


def _tiles(block: Block, phase: Phase, stages: int, done: Collection[str] = ()) -> set[str]:
    """Allocate the tiles of the phase's loads; the names of those copied ahead into a ring."""
    ring: set[str] = set()
    for s in phase.body:
        if isinstance(s, Load) and block.placement.where[s.name] == SHARED and s.name not in done:
            mark, lines = block.shared_bytes, len(block.out.lines)
            tile = tile_for(block, s, stages)
            if tile.slots > 1 and can_copy_async(block, s, tile):
                ring.add(s.name)
            elif tile.slots > 1:
                block.shared_bytes = mark
                del block.out.lines[lines:]
                tile = tile_for(block, s)
            block.tiles[s.name] = tile
    return ring


def _chunk_origins(block: Block, stream: Sequence[Axis], chunk: str) -> dict[str, str]:
    """The first point of a chunk along each cut axis, the last axis fastest."""
    origins: dict[str, str] = {}
    inner = 1
    total = 1
    for axis in stream:
        total *= axis.count
    for axis in reversed(stream):
        if axis.count > 1:
            text = chunk if inner == 1 else f"{chunk} / {inner}"
            if inner * axis.count < total:
                text += f" % {axis.count}"
            scaled = text if axis.tile == 1 else f"{text} * {axis.tile}"
            origins[block.frame.origin[axis.name]] = scaled
            inner *= axis.count
    return origins


def _start_ring(block: Block, phase: Phase, ring: set[str], live: tuple[str, str]) -> None:
    """Define the copy of one chunk ahead, and start the first stages - 1 of them."""
    out = block.out
    if block.tiles_read or block.tiles_written:
        block.barrier()
    with out.block("auto copy_ahead = [&](int ahead)", ";"):
        origin = dict(block.frame.origin)
        renamed = {}
        for name, text in _chunk_origins(block, phase.stream, "ahead").items():
            out.line(f"const int {name}_ahead = {text};")
            renamed[name] = f"{name}_ahead"
        origin = {i: renamed.get(text, text) for i, text in origin.items()}
        for s in phase.body:
            if isinstance(s, Load) and s.name in ring:
                tile = block.tiles[s.name]
                slot = f"{tile.pointer}_ring + ahead % {phase.stages} * {tile.size}"
                copy(block, s, tile, origin, slot, True)
    first, last = live
    for stage in range(phase.stages - 1):
        out.line(f"if ({first} + {stage} < {last}) copy_ahead({first} + {stage});")
        out.line("commit_copies();")
    block.tiles_written = False


def _advance_ring(block: Block, phase: Phase, ring: set[str], last: str) -> None:
    """Wait for this chunk, then start the copy that takes the slot of the chunk before."""
    out, stages = block.out, phase.stages
    out.line(f"wait_copies<{stages - 2}>();")
    block.barrier()
    out.line(f"if (chunk + {stages - 1} < {last}) copy_ahead(chunk + {stages - 1});")
    out.line("commit_copies();")
    for name in sorted(ring):
        tile = block.tiles[name]
        slot = f"{tile.pointer}_ring + chunk % {stages} * {tile.size}"
        out.line(f"const auto* const {tile.pointer} = {slot};")


def partial_carries(block: Block, phase: Phase) -> dict[str, str]:
    """Carries whose threads' parts are combined only after the stream, each with its chunk.

    So where nothing reads the carry in the stream but its own update, with a reduction of the same
    monoid that spreads over threads: the monoid is associative, and sums are linear in `scale`.
    """
    found = {}
    statements, users = block.placement.statements, block.placement.users
    for update in (s for s in phase.body if isinstance(s, Update)):
        chunk = statements.get(update.chunk)
        if not isinstance(chunk, Reduce | Contract) or block.placement.is_whole(chunk):
            continue
        if not block.distribution.spread(chunk.over):
            continue
        monoid = monoid_of(chunk)
        later = set(users[update.carry]) & {s.name for s in phase.body} == {update.name}
        stored = {name for store in phase.stores for name in store_operands(store)}
        alone = users[chunk.name] == (update.name,) and not users[update.name]
        scaled = not update.scale or monoid == "sum"
        same = monoid == update.monoid and chunk.dtype.compute == update.dtype.compute
        if later and alone and scaled and same and update.carry not in stored:
            found[update.carry] = update.chunk
    return found


def _combine(block: Block, carry: Carry, chunk: str) -> None:
    over = block.placement.statements[chunk].over
    reduce_threads(block, carry.name, carry.indices, over, carry.monoid, carry.dtype)
