"""Kernels with a producer: one thread copies boxes ahead into rings, the others compute.

A ring has, for each of its slots, a barrier that is full when the bytes have arrived and one that
is empty when every warp of the computing threads has let go of it. Producer and computing threads
go through tiles, phases and chunks in the same order; each side keeps a slot number and a parity
for each ring. Tiles of the grid are taken by blocks that stay: block b computes tiles b, b + the
number of blocks, and so on; there and back where tiles get shorter. Where tiles are long and two
blocks share an SM, each has one.

Where registers allow, two teams of threads compute every other one of these tiles: one stores its
own while the other multiplies. Each passes over the other's slots, and waits until the other has
its last chunk: a parity tells a slot's use only from the one before.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from eqsat.codegen.cuda import stream_k
from eqsat.errors import UnsupportedError
from eqsat.kernel.ir import Load, Phase
from eqsat.price.conversion import GROUPS, slots_made
from eqsat.price.pipeline import whole_slots

from .copy.box_tile import BoxTile, box_tile
from .copy.converter import Converter
from .copy.copies import copy_boxes, edge_name, find_boxes
from .copy.edges import Edge, find_edge
from .copy.joined import copy_from_piece, piece_boxes
from .copy.multicast import Share, shares
from .copy.ring import WARPS, Ring
from .place.block import Block, Writer
from .place.box import PERIOD, TensorBox
from .place.distribution import WARP
from .place.placement import Matrix
from .place.registers import AROUND, registers_of
from .place.warpgroup_operations import WARPGROUP, WarpgroupOperation
from .prelude.math import storage_type
from .products.chains import BOTH, Chain, by_role, chain_registers, find_chain, is_lagging

MOST_COMPUTING = 896  # threads of a block, less the producer's warpgroup
SHARED_BYTES, RESERVED_BYTES = 233472, 1024  # of an SM of sm_90, and for each block
LONG = 16  # times that a tile fills its rings, from which on no block stays for the next


class Pipeline:
    """The rings of a kernel and what its producer runs."""

    def __init__(self, block: Block, turns: int = 1) -> None:
        threads = block.kernel.threads
        most = MOST_COMPUTING - block.placement.converting
        if threads % WARPGROUP or threads > most:
            raise UnsupportedError(
                f"kernel {block.kernel.name} has {threads} threads that compute; operations of a "
                f"warpgroup take multiples of {WARPGROUP} up to {most}. Choose one."
            )
        self.block = block
        block.has_producer, block.turns = True, turns
        if turns > 1:
            block.thread = "thread"
        self.producer = Writer(depth=4)
        self.rings: dict[Phase, tuple[Ring, ...]] = {}
        self.chains: dict[Phase, Chain] = {}
        self.maps: dict[str, TensorBox] = {}
        self.shares: dict[str, Share] = {}
        self.edges: dict[str, Edge] = {}
        self.pieces: dict[str, TensorBox] = {}
        self.converter = Converter(block)
        self.numbered = 0  # rings
        self.barriers = 0
        self.offset = 0
        self.blocks = 1
        self.chunks: dict[Phase, int | None] = {}  # of each stream; None where tiles differ
        for phase in block.kernel.phases:
            boxes = find_boxes(block, phase)
            if boxes:
                self.shares |= shares(block.kernel, boxes)
                own = {name: one.box for name, one in self.shares.items() if name in boxes}
                self.maps.update(boxes | own)
                for name, box in boxes.items():
                    further = piece_boxes(block, name, box)
                    apart = shares(block.kernel, further)
                    self.maps |= {n: apart[n].box if n in apart else b for n, b in further.items()}
                    self.pieces, self.shares = self.pieces | further, self.shares | apart
                    edge = find_edge(block.kernel, box, self.shares.get(name))
                    self.edges |= {name: edge} if edge and not further else {}
            conversions = self.converter.find(phase)
            self.maps |= {one.source.name: one.copied for one in conversions.values()}
            made = {name: one.made for name, one in conversions.items()}
            if boxes or made:
                self.rings[phase] = tuple(self._rings(phase, boxes | made))
        self.whole = [one for phase, own in self.rings.items() if not phase.stream for one in own]
        self.order = self.barriers
        self.barriers += turns if turns > 1 else 0
        block.areas = self.areas

    @property
    def all_rings(self) -> list[Ring]:
        """Of every phase, that computing threads read."""
        return [ring for rings in self.rings.values() for ring in rings]

    @property
    def every_ring(self) -> list[Ring]:
        """These, and those that converting threads read."""
        return [*self.all_rings, *self.converter.rings]

    def _rings(self, phase: Phase, boxes: dict[str, TensorBox]) -> Iterator[Ring]:
        """One ring for a phase; of a chain, one for each role that boxes have."""
        stages = max(phase.stages, 1) if phase.stream else self._slots(boxes)
        chain = find_chain(self.block, phase, boxes) if phase.stream and stages > 1 else None
        conversions = self.converter.found.get(phase, {})
        groups = {"": list(boxes)}
        if chain and not is_lagging(self.block, phase):
            roles = by_role(self.block, chain, boxes)
            if self._has_room(chain, phase) and (BOTH not in roles or stages > 2):
                self.chains[phase], groups = chain, roles
        for role, names in groups.items():
            own = {name: boxes[name] for name in names}
            shared = {name: self.shares[name] for name in names if name in self.shares}
            made = [name for name in names if name in conversions]
            if made and (not role or len(made) == len(names)):  # else all of a role have one ring
                apart = {name: own.pop(name) for name in made}
                slots = int(slots_made(np.asarray(stages), len(conversions)))
                yield self._ring(slots, apart, role=role, made=made)
                made = []
            if own:
                yield self._ring(stages, own, shares=shared, role=role, made=made)
        rest = stages % GROUPS if stages > 1 and len(conversions) % GROUPS else 0
        for one in conversions.values():
            one.ring = self._ring(stages - rest, {one.source.name: one.copied}, readers=WARPS)

    def _ring(self, stages: int, boxes: Mapping[str, TensorBox], **more: Any) -> Ring:
        """A ring with barriers of its own."""
        self.barriers += 2 * stages
        self.numbered += 1
        return Ring(self.numbered - 1, stages, boxes, barriers=self.barriers - 2 * stages, **more)

    def _has_room(self, chain: Chain, phase: Phase) -> bool:
        """Whether registers hold what a chain of several first products needs."""
        held = chain_registers(self.block, phase, chain) + AROUND
        most = registers_of(self.threads, 1, converting=self.block.placement.converting)[1]
        return len(chain.heads) == 1 or held <= most

    def room_beside(self, phase: Phase) -> int:
        """Registers that a chain leaves a thread, where an SM holds one block."""
        shared = self.block.shared_bytes + RESERVED_BYTES
        if self.may_share and 2 * shared <= SHARED_BYTES:
            return 0
        most = registers_of(self.threads, 1, converting=self.block.placement.converting)[1]
        return most - AROUND * 3 // 2 - chain_registers(self.block, phase, self.chains[phase])

    def _slots(self, boxes: Mapping[str, TensorBox]) -> int:
        """Slots for boxes that lie there for a whole tile: several where a tile is nothing else."""
        if any(phase.stream for phase in self.block.kernel.phases):
            return 1
        size = np.asarray(float(sum(box.bytes for box in boxes.values())))
        return int(whole_slots(size, SHARED_BYTES))

    def allocate(self, phase: Phase) -> None:
        """Slots for the boxes of a phase, and the tiles that read them."""
        for ring in (*self.rings[phase], *self.converter.copied(phase)):
            self._allocate(ring)

    def _allocate(self, ring: Ring) -> None:
        block = self.block
        for name, box in ring.boxes.items():
            tile = box_tile(f"s_{block.names.of(name)}", box, ring.stages)
            size = tile.size * ring.stages * box.dtype.itemsize
            ring.offsets[name] = block.allocate(size, box.alignment)
            block.tiles[name] = tile

    # the computing threads

    def wait(self, ring: Ring) -> None:
        """Wait for the slot's boxes and point at them."""
        out = self.block.out
        n = ring.number
        out.line(f"barrier_wait({ring.full(f'slot_{n}')}, parity_{n});")
        for name in ring.boxes:
            ring.point_at(out, name, self.block.tiles)

    def before(self, ring: Ring, name: str) -> BoxTile:
        """A tile in the slot before that at hand."""
        out = self.block.out
        tile = self.block.tiles[name]
        assert isinstance(tile, BoxTile)
        kind, pointer = storage_type(tile.dtype), f"{tile.pointer}_before"
        slot = f"(slot_{ring.number} + {ring.stages - 1}) % {ring.stages} * {tile.size}"
        place = f"reinterpret_cast<const {kind}*>(shared + {ring.offsets[name]}) + {slot}"
        out.line(f"const {kind}* const {pointer} = {place};")
        return replace(tile, pointer=pointer)

    def release(self, ring: Ring, behind: bool = False, condition: str = "") -> None:
        """Let go of the slot in use, or of the one before; where a condition holds."""
        out = self.block.out
        n = ring.number
        slot = f"slot_{n}"
        if behind:
            slot = f"(slot_{n} + {ring.stages - 1}) % {ring.stages}"
        out.line("__syncwarp();")
        lane, beyond = f"threadIdx.x % {WARP}", f" && {condition}" if condition else ""
        if ring.writers == 1:
            out.line(f"barrier_arrive({ring.empty(slot)}, {lane} == 0{beyond});")
            return
        present = f"{lane} < {ring.writers}{beyond}"  # a lane for each block's barrier
        out.line(f"barrier_arrive_in({ring.empty(slot)}, {lane}, {present});")

    def begin_turn(self) -> None:
        """Wait until the other team has the last chunk of its tile."""
        if self.block.turns > 1:
            self.block.out.line(f"barrier_wait(barriers + {self.order} + turn, order);")
            self.block.out.line("order ^= 1;")

    def end_turn(self) -> None:
        """The chunks that come now are the other team's."""
        if self.block.turns > 1:
            self.block.out.line("__syncwarp();")
            other = f"barriers + {self.order} + (turn ^ 1)"
            self.block.out.line(f"barrier_arrive({other}, threadIdx.x % {WARP} == 0);")

    def pass_over(self, out: Writer) -> None:
        """The slots that another team's tile takes."""
        for phase, rings in self.rings.items():
            chunks = self.chunks[phase]
            assert chunks is not None
            for ring in rings:
                n, stages = ring.number, ring.stages
                if self.block.kernel.stream_k:
                    out.line(stream_k.passed(f"slot_{n}", f"parity_{n}", stages))
                    continue
                if chunks % stages:
                    slot = f"slot_{n} += {chunks % stages}"
                    out.line(f"if (({slot}) >= {stages}) slot_{n} -= {stages}, parity_{n} ^= 1;")
                if chunks // stages % 2:
                    out.line(f"parity_{n} ^= 1;")

    def finish(self, over: Collection[str] | None = None) -> None:
        """Let go of boxes that lie there for a whole tile: of those that only products which are
        `over` read; at the end of a tile of all that are left.
        """
        for ring in list(self.whole):
            if over is None or self._is_read_by(ring, over):
                self.release(ring)
                ring.advance(self.block.out)
                self.whole.remove(ring)

    def _is_read_by(self, ring: Ring, products: Collection[str]) -> bool:
        users = self.block.placement.users
        return all(user in products for name in ring.boxes for user in users[name])

    # the producer

    @contextmanager
    def producing(self) -> Iterator[None]:
        """Lines go to the producer's program."""
        block = self.block
        block.out, consumer = self.producer, block.out
        yield
        block.out = consumer

    def fill(self, phase: Phase) -> None:
        """Copy the boxes of the chunk at hand into the next slots."""
        for ring in (*self.rings[phase], *self.converter.copied(phase)):
            if ring.copied:
                self._fill(ring)

    def convert(self, phase: Phase) -> None:
        """Make the factors of the chunk at hand that are converted, in the next slots."""
        self.converter.convert(phase, self.rings[phase])

    def _fill(self, ring: Ring) -> None:
        block = self.block
        n, out = ring.number, block.out
        slot = f"slot_{n}"
        out.line(f"barrier_wait({ring.empty(slot)}, parity_{n} ^ 1);")
        out.line(f"barrier_expect({ring.full(slot)}, {self._expected(ring)});")
        for name, box in ring.copied.items():
            size = block.tiles[name].size * box.dtype.itemsize
            offset = f" + {slot} * {size}" if ring.stages > 1 else ""
            place = f"{ring.offsets[name]}{offset}"

            def copy(one: Load, place: str = place, box: TensorBox = box) -> None:
                what = self.shares.get(one.name) or self.pieces.get(one.name, box)
                copy_boxes(block, one, what, place, ring.full(slot), self.edges.get(one.name))

            copy_from_piece(block, name, copy)
        ring.advance(out)

    def _expected(self, ring: Ring) -> str:
        """Bytes that fill a slot, as text: fewer in the last tile of an axis."""
        whole, parts = 0, []
        for name, box in ring.copied.items():
            edge = self.edges.get(name)
            if edge:
                here = edge.is_here(self.block.frame.origin)
                parts.append(f"({here} ? {edge.bytes(box)} : {box.bytes})")
            else:
                whole += box.bytes
        return " + ".join([*parts, *([str(whole)] if whole else [])])

    # the whole kernel

    def close(self, shared: int) -> int:
        """End the tile, and place the barriers behind so much shared memory; the bytes in all."""
        self.finish()
        if self.block.tiles_written or self.block.tiles_read:
            self.block.barrier()
        self.offset = -(-shared // 8) * 8
        total = self.offset + 8 * self.barriers
        self.maps.update(self.block.stored)
        self.maps.update({edge_name(n): e.box for n, e in self.edges.items() if e.box})
        held = self.held
        twice = 2 * (total + RESERVED_BYTES) <= SHARED_BYTES and self.may_share
        twice = twice and not self.block.kernel.stream_k  # as many blocks as there are SMs
        self.blocks = 2 if twice else 1
        launch, each = registers_of(self.threads, 1, converting=self.block.placement.converting)
        widest = max(m.operation.n for m in self.block.placement.matrices.values()) // 2
        if self.shares and None in self.chunks.values():
            raise UnsupportedError(
                f"kernel {self.block.kernel.name} has clusters of {self.block.kernel.multicast} "
                f"blocks that copy for each other, and tiles of different numbers of chunks. Give "
                f"each tile a block by itself."
            )
        self.fits = self.block.turns == 1 or not (
            twice
            or held + AROUND > each
            or widest + AROUND > launch  # one instruction must do with what a launch gives
            or self.block.scratch_bytes
            or self.block.kernel.tiles == 1
            or self.chains
            or any(m.partial for m in self.block.placement.matrices.values())  # waits by itself
            or len(self.rings) > 1
            or None in map(self.chunks.get, self.rings)
            or any("block_barrier" in line for line in self.block.out.lines)
        )
        return total

    @property
    def held(self) -> int:
        """Registers of a thread that hold results of products."""
        return sum(
            self.block.register_count(m.contract.indices) + bool(m.partial) * m.operation.n // 2
            for m in self.block.placement.matrices.values()
        )

    @property
    def may_share(self) -> bool:
        """Whether registers allow two blocks on an SM: not where threads convert besides."""
        fit = self.held + AROUND <= registers_of(self.block.kernel.threads, 2)[0]
        return fit and not self.converter.found

    def areas(self, wanted: int, each: int) -> int:
        """How many areas of `each` bytes, a divisor of those wanted, fit beside what is there: two
        blocks on an SM where one more area leaves that possible, else one.
        """
        used = self.block.shared_bytes + self.block.scratch_bytes + 8 * self.barriers
        used += PERIOD + RESERVED_BYTES
        for blocks in (2, 1) if self.may_share else (1,):
            room = (SHARED_BYTES // blocks - used) // each
            if room > 0:
                return max(n for n in range(1, wanted + 1) if wanted % n == 0 and n <= room)
        return 0

    @property
    def threads(self) -> int:
        """Those that compute, of all teams."""
        return self.block.turns * self.block.kernel.threads

    @property
    def resident(self) -> int:
        """Blocks of an SM that stay for tile after tile. None where a tile is so long that its
        first copies count for nothing: an SM that is faster than others then takes more tiles,
        and another block of it works while one begins.
        """
        slots = max((ring.stages for ring in self.all_rings), default=1)
        streams = [phase.stream for phase in self.block.kernel.phases if phase.stream]
        chunks = [prod(axis.count for axis in stream) for stream in streams]
        if self.block.kernel.stream_k:
            return 0  # each block is launched once
        alone = self.blocks == 1 or self.shares or self.block.kernel.uneven
        return self.blocks if alone or sum(chunks) < LONG * slots else 0

    @property
    def launch_bounds(self) -> str:
        """Threads, and the blocks that an SM is to hold."""
        return f"{self.all_threads}, {self.blocks}"

    @property
    def all_threads(self) -> int:
        """Those that compute, that produce, and that convert."""
        return self.threads + WARPGROUP + self.block.placement.converting


def needs_producer(matrices: Iterable[Matrix]) -> bool:
    """Whether some contraction is computed by whole warpgroups."""
    return any(isinstance(m.operation, WarpgroupOperation) for m in matrices)
