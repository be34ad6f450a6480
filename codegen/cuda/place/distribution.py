"""How the points of a tile are spread over the threads of a block and their registers.

Each index has factors, outermost first, whose product covers its tile: a register factor, or a
thread factor with coordinate (thread / stride) % count. Where a cluster computes a tile, the
threads of all its blocks are numbered through. One distribution serves the whole kernel, so values
pass from phase to phase without moving; a value is replicated over the threads of the indices that
it lacks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from eqsat.errors import UnsupportedError
from eqsat.kernel.ir import Access, Contract, Kernel, Load, Reduce, Scan
from eqsat.layout.needs import VECTOR_BYTES

from .access import places_in_vectors, sliding_axes, unit_stride, vector_width
from .operations import COLUMNS
from .placement import FETCH, REGISTERS, Matrix, Placement, register_sets, store_indices
from .roles import (
    comes_together,
    interleaved,
    is_done_again,
    is_summed_alone,
    kept_apart,
    neighbours,
    products_only,
    rows_of_chunks,
    rows_of_factors,
    summed_in_factors,
    summed_in_steps,
    widths_anywhere,
)
from .square import Side, square, square_factors
from .threads import (
    ROWS_IN_PAIRS,
    WARP,
    Factor,
    Units,
    are_digits,
    between,
    fragments,
    shares,
    split_warps,
    spread_over,
    thread_digits,
)
from .warpgroup_operations import WARPGROUP, WarpgroupOperation

LANE_BYTES = 4  # that each lane of a warp reads, where lines are read whole
MOST_UNEQUAL = 16  # bytes along one index that may outweigh those along another, which cross it


@dataclass(frozen=True)
class Part:
    """What one of several row (or column) indices is of a fragment.

    Row f of a fragment has the coordinate f / below % count in this index; a warp holds `blocks`
    fragments along it. `pair`: the two rows of a lane (8 apart), or its two columns, lie along it.
    """

    count: int
    below: int
    blocks: int
    pair: bool


@dataclass(frozen=True)
class Distribution:
    """For each index its factors, outermost first; for rows and columns their part of fragments.

    `threads` are those of all `blocks` that compute a tile.
    """

    threads: int
    factors: Mapping[str, tuple[Factor, ...]]
    parts: Mapping[str, Part] = field(default_factory=dict)
    blocks: int = 1

    def padded(self, index: str) -> int:
        """Points covered; at least the tile."""
        return prod(factor.count for factor in self.factors[index])

    def registers(self, index: str) -> int:
        """Points of the index that one thread holds."""
        return prod(f.count for f in self.factors[index] if f.kind == "register")

    def vector(self, index: str) -> int:
        """Consecutive points in one thread's registers."""
        last = self.factors[index][-1:]
        return last[0].count if last and last[0].kind == "register" else 1

    def weighted(self, index: str, kind: str) -> list[tuple[Factor, int]]:
        """The factors of a kind, outermost first, each with the points between its coordinates."""
        result, weight = [], 1
        for factor in reversed(self.factors[index]):
            if factor.kind == kind and factor.count > 1:
                result.append((factor, weight))
            weight *= factor.count
        return result[::-1]

    def spread(self, indices: Iterable[str]) -> list[Factor]:
        """The thread factors of some indices, lanes first."""
        found = [f for i in indices for f, _ in self.weighted(i, "thread")]
        return sorted(found, key=lambda factor: factor.stride)

    def unused(self, indices: Iterable[str]) -> list[Factor]:
        """Runs of threads that none of the indices uses, lanes first."""
        return between(self.spread(indices), self.threads, self.threads // self.blocks)


def distribute(kernel: Kernel, placement: Placement) -> Distribution:
    """The distribution of a kernel: fragments for matrix operations, else by contiguity. Raises
    UnsupportedError where indices of one value would lie over the same threads.
    """
    choice = _Choice(kernel, placement)
    found = choice.run()
    for indices in sorted(map(sorted, choice.held_sets)):
        if not are_digits(found.spread(indices)):
            raise UnsupportedError(
                f"kernel {kernel.name}: operations lay out each of the indices "
                f"{', '.join(indices)} over the same threads. Use others for them."
            )
    return found


def cover(order: Sequence[tuple[str, int]], vector: int, threads: int) -> Distribution:
    """A distribution for copying: (index, points) outermost first, the last in vectors."""
    free = thread_digits(threads)
    factors: dict[str, tuple[Factor, ...]] = {}
    for position, (index, points) in enumerate(reversed(order)):
        width = vector if position == 0 else 1
        taken: list[tuple[int, int]] = []
        while free and width * prod(r for _, r in taken) < points:
            taken.append(free.pop(0))
        factors[index] = spread_over(points, width, taken)
    return Distribution(threads, factors)


class _Choice:
    """The state of one choice: digits taken so far, and what is known of each index."""

    def __init__(self, kernel: Kernel, placement: Placement) -> None:
        self.kernel, self.placement = kernel, placement
        self.axes, self.rows = kernel.axes(), rows_of_chunks(kernel)
        self.digits = thread_digits(kernel.tile_threads, kernel.cluster)
        self.taken: dict[str, list[tuple[int, int]]] = {}
        self.width: dict[str, int] = {}
        self.inner: dict[str, str] = {}  # what lies inside an index for some accesses
        self.held: dict[str, int] = {}  # registers of an index, where that is settled first
        self.factors: dict[str, tuple[Factor, ...]] = {}
        self.parts: dict[str, Part] = {}
        self.neighbours: dict[str, set[str]] = {i: set() for i in self.axes}
        reduced = [s.over for s in kernel.statements() if isinstance(s, Reduce | Contract)]
        reduced += [(s.over,) for s in kernel.statements() if isinstance(s, Scan)]
        self.reduced = {i for over in reduced for i in over}
        self.slid = self.sliding()
        self.shared = neighbours(kernel)
        self.held_sets = set(register_sets(kernel, placement))
        for indices in self.held_sets:
            for i in indices:
                self.neighbours[i] |= indices - {i}
        self.votes = self.count_votes()

    def run(self) -> Distribution:
        kernel, placement = self.kernel, self.placement
        if placement.matrices:
            self.assign_fragments(list(self.placement.matrices.values()))
            used = [f for own in self.factors.values() for f in own if f.kind == "thread"]
            self.digits = thread_digits(kernel.tile_threads, kernel.cluster, used)
        held = [i for i in self.axes if self.neighbours[i] or self.votes[i]]
        held += [i for i in self.axes if i not in held and self.is_held(i)]
        if crossed := self.crossed([i for i in held if i not in self.factors]):
            self.assign_square(*crossed)
        open_indices = [i for i in held if i not in self.factors]
        moved_along = {i for i in open_indices if self.votes[i]} & self.reduced
        own = {i for i in moved_along - {*self.partners} if is_summed_alone(kernel, placement, i)}
        again = {i for i in open_indices if is_done_again(kernel, placement, i)}
        short = {i: self.points(i) for i in own | again | self.shared}
        moved = [access for access, _ in self.accesses()]
        runs = interleaved(kernel, moved, {*open_indices} - self.reduced | own)
        self.inner = {outer: inside for outer, inside in runs.items() if self.votes[outer]}
        short |= {inside: self.points(inside) for inside in self.inner.values()}
        self.width |= short
        contiguous = [i for i in open_indices if self.votes[i] and i not in short]
        contiguous.sort(key=lambda i: (-self.votes[i], -self.points(i)))
        contiguous = [i for i in contiguous if i == contiguous[0] or i not in self.rows]
        limits = self.block_limits() | (lanes := self.step_lanes())
        for i in contiguous:
            self.width[i] = self.vector(i)
            self.take(i, min(WARP, limits.get(i, WARP)))
        out = self.reduced - products_only(kernel, placement) | {*contiguous, *short}
        free = [i for i in open_indices if i not in out]
        beside = self.beside(contiguous)
        free.sort(key=lambda i: (i in self.slid, i not in beside, -self.points(i)))
        for i, width in rows_of_factors(kernel, placement).items():
            while width > 1 and (self.points(i) % width or self.repeats(i, width // 2)):
                width //= 2
            self.width |= {i: width} if i in free else {}
        inside = {i for i in summed_in_factors(kernel, placement) if self.points(i) < WARP}
        rest = sorted({*open_indices} - inside, key=open_indices.index)
        for i in [*self.rows, *free, *contiguous, *rest]:
            self.take(i, lanes.get(i, kernel.tile_threads))
        scanned = {s.over for s in kernel.statements() if isinstance(s, Scan)} & {*open_indices}
        # rows of a thread lie side by side: they share places, and are scanned at once
        lined = {i for i in contiguous if self.lined.get(i)}
        for i in self.slid.keys() & {*free} | scanned - {*contiguous} | lined:
            step = self.width[i] if i in lined else 1
            self.width[i] = step * -(-self.points(i) // (step * prod(r for _, r in self.taken[i])))
        for i in self.axes:
            if i not in self.factors:
                digits = self.taken.get(i, [])
                width = self.width.get(i, 1)
                self.factors[i] = spread_over(self.points(i), width, digits, kernel.threads)
        return Distribution(kernel.tile_threads, self.factors, self.parts, kernel.cluster)

    def points(self, index: str) -> int:
        axis = self.axes[index]
        return max(min(axis.tile, axis.extent), 1)

    def is_held(self, index: str) -> bool:
        return any(index in s for s in register_sets(self.kernel, self.placement))

    def count_votes(self) -> dict[str, int]:
        """Bytes that the tile's register accesses move with unit stride, by index."""
        votes = dict.fromkeys(self.axes, 0)
        for access, indices in self.accesses():
            moved = prod(self.points(i) for i in indices)
            for i in indices:
                if unit_stride(access, i) and self.points(i) > 1:
                    votes[self.partners.get(i, i)] += (
                        moved * self.kernel.buffer(access.buffer).dtype.itemsize
                    )
        return votes

    def sliding(self) -> dict[str, int]:
        """The bytes by which windows of registers slide, for each index along which they do."""
        found: dict[str, int] = {}
        self.lined: dict[str, bool] = {}  # whether threads read what windows span in vectors
        self.partners: dict[str, str] = {}  # of an index inside windows, the one that moves them
        for s in self.kernel.statements():
            held = isinstance(s, Load) and self.placement.where[s.name] in (REGISTERS, FETCH)
            for axis in sliding_axes(self.kernel, s) if held else ():
                steps = {str(atom): step for atom, step in axis.place.terms}
                most = max((self.axes[i].extent for i in steps if i not in self.reduced), default=0)
                inside = [i for i in steps if i in self.reduced and self.axes[i].extent <= most]
                moving = [i for i in steps if i not in self.reduced and self.points(i) > 1]
                if inside and len(moving) == 1:
                    size = self.kernel.buffer(s.access.buffer).dtype.itemsize
                    found[moving[0]] = steps[moving[0]] * axis.stride * size
                    wide = places_in_vectors(self.kernel, s, axis, moving[0]) > 0
                    self.lined[moving[0]] = self.lined.get(moving[0], True) and wide
                    self.partners.update(dict.fromkeys(inside, moving[0]))
        return found

    def accesses(self) -> list[tuple[Access, tuple[str, ...]]]:
        """The loads into registers and the stores, each with the indices that it runs over."""
        found = [
            (access, s.indices)
            for s in self.kernel.statements()
            if isinstance(s, Load) and self.placement.where[s.name] == REGISTERS
            for access in s.accesses
        ]
        for phase in self.kernel.phases:
            for store in phase.stores:
                found.append((store.access, tuple(sorted(store_indices(self.placement, store)))))
        return found

    def vector(self, index: str) -> int:
        """The widest vector that most bytes along the index can use, threads kept busy."""
        choices, volume = dict[int, int](), 1
        loads = [s.access for s in self.kernel.statements() if isinstance(s, Load) and self.shared]
        anywhere, aligned = dict[Access, int](), dict[Access, int]()
        if index not in self.slid:
            anywhere = widths_anywhere(self.kernel, self.placement, index, self.accesses())
        for access, indices in self.accesses():
            if index not in indices:
                continue
            volume = max(volume, prod(self.points(i) for i in indices))
            if unit_stride(access, index):
                buffer = self.kernel.buffer(access.buffer)
                width = vector_width(access, index, buffer, self.axes, self.placement.indices)
                aligned[access] = width
                width = max(width, anywhere.get(access, 1))
                width = 1 if access in loads else width  # of many neighbours
                moved = prod(self.points(i) for i in indices) * buffer.dtype.itemsize
                if width > 1 or index not in self.slid:  # windows are read one by one anyway
                    choices[width] = choices.get(width, 0) + moved
        width = max(choices, key=lambda w: (choices[w], w), default=1)
        if index in kept_apart(self.kernel, self.placement):
            width = 1  # lanes side by side are in different banks
        if index in self.inner:  # lanes side by side move whole runs of what lies inside it
            inside = self.inner[index]
            run = self.points(inside) * self.itemsize(inside)
            width = min(width, max(VECTOR_BYTES // run, 1))
        if index in self.slid and self.lined[index]:
            width = VECTOR_BYTES // self.slid[index]
        elif index in self.slid:  # lanes side by side read lines of memory together
            width = min(width, max(LANE_BYTES // self.slid[index], 1))
        while width > 1 and width // 2 * self.kernel.tile_threads >= volume:
            width //= 2
        while width > 1 and self.repeats(index, width // 2):
            width //= 2
        if width < max(anywhere.values(), default=1):  # none from anywhere
            width = min(width, *(aligned[access] for access in anywhere))
        return min(width, VECTOR_BYTES)

    def repeats(self, index: str, width: int) -> bool:
        """Whether registers that hold so many points, beside those of other indices, are enough
        for all values: with more of them some threads would do the work of others again.
        """
        for indices in self.held_sets:
            others = prod(self.held.get(i, self.width.get(i, 1)) for i in indices - {index})
            points = prod(self.points(i) for i in indices | {*self.rows})
            if index in indices and width * others * self.kernel.tile_threads < points:
                return False
        return True

    def step_lanes(self) -> dict[str, int]:
        """Threads along each index that every step of a stream sums over: as few as keep all at
        work, since each of them computes what lacks the index, and steps wait for their sums.
        """
        lanes: dict[str, int] = {}
        volumes = (prod(self.points(i) for i in indices) for indices in self.held_sets)
        each = max(volumes, default=1) // self.kernel.threads
        for i in sorted(summed_in_steps(self.kernel)):
            self.held[i] = min(self.points(i), max(each, 1))
            lanes[i] = -(-self.points(i) // self.held[i])
            each //= self.held[i]
        return lanes

    def crossed(self, open_indices: Sequence[str]) -> tuple[str, str] | None:
        """Two indices of one tile along which different accesses are contiguous, loads' first."""
        if self.placement.matrices or self.placement.serial:
            return None
        runs = [
            (i, set(indices))
            for access, indices in self.accesses()
            for i in indices
            if unit_stride(access, i) and i in open_indices and i not in self.reduced
        ]
        pairs = [
            (a, b)
            for n, (a, first) in enumerate(runs)
            for b, second in runs[n + 1 :]
            if a != b and {a, b} <= first & second
        ]
        worth = [p for p in pairs if MOST_UNEQUAL * self.votes[p[1]] >= self.votes[p[0]]]
        return max(worth, key=lambda p: self.votes[p[0]] + self.votes[p[1]], default=None)

    def assign_square(self, along: str, across: str) -> None:
        """A square of both indices for each warp, the warps first along the loads' index."""
        sides = [Side(self.points(i), self.vector(i), self.itemsize(i)) for i in (along, across)]
        both = {along, across}
        volumes = [prod(self.points(i) for i in s) for _, s in self.accesses() if both <= set(s)]
        whole = comes_together(self.kernel, self.placement)
        chosen = square(*sides, max(volumes) // self.kernel.tile_threads, whole)
        if chosen is None:
            return
        warps = [digit for digit in self.digits if digit[0] >= WARP]
        found = square_factors(chosen, *(side.points for side in sides), warps, self.kernel.threads)
        self.factors |= dict(zip((along, across), found, strict=True))

    def itemsize(self, index: str) -> int:
        """Bytes of the widest element that accesses move along an index."""
        return max(
            self.kernel.buffer(access.buffer).dtype.itemsize
            for access, indices in self.accesses()
            if index in indices and unit_stride(access, index)
        )

    def block_limits(self) -> dict[str, int]:
        """Threads along the contiguous index of a scalar product: registers form a square."""
        limits: dict[str, int] = {}
        for name in self.placement.serial:
            indices = sorted(self.placement.indices[name], key=lambda i: -self.votes[i])
            each = prod(self.points(i) for i in indices) // self.kernel.threads
            side = 1
            while side * side * 4 <= each:
                side *= 2
            if side > 1 and indices and self.votes[indices[0]] and indices[0] not in self.slid:
                limits[indices[0]] = self.whole_lanes(indices[0], side)
        return limits

    def whole_lanes(self, index: str, side: int) -> int:
        """So many threads along an index that each has about `side` points of it, those of the most
        that pass its end least.
        """
        runs = -(-self.points(index) // self.vector(index))
        most = 1 << (max(self.points(index) // side, 1) - 1).bit_length()
        offered = [max(most >> shift, 1) for shift in range(3)]
        return min(offered, key=lambda threads: -(-runs // threads) * threads)

    def beside(self, contiguous: Sequence[str]) -> set[str]:
        """The indices that a factor of a scalar product has with one along which its result is
        contiguous: of these a thread has enough points, of the other factor's it may have more.
        """
        products = [self.placement.statements[name] for name in self.placement.serial]
        factors = [n for c in products for n in self.placement.factors(c)]
        found = [{*self.placement.indices[n]} for n in factors]
        return set().union(*(own for own in found if own & {*contiguous}))

    def take(self, index: str, most: int) -> None:
        """Give the index free thread digits, lanes first, until its tile or `most` is covered."""
        own = self.taken.setdefault(index, [])
        width = self.width.get(index, 1)
        used = {s for i in (index, *self.neighbours[index]) for s in self.used_strides(i)}
        for stride, radix in self.digits:
            threads = prod(r for _, r in own)
            if width * threads >= self.points(index) or threads >= most:
                return
            if stride not in used:
                own.append((stride, radix))

    def used_strides(self, index: str) -> set[int]:
        if index not in self.factors:
            return {stride for stride, _ in self.taken.get(index, [])}
        ranges = [(f.stride, f.stride * f.count) for f in self.factors[index] if f.kind == "thread"]
        return {s for s, r in self.digits if any(low < s * r and s < high for low, high in ranges)}

    def assign_fragments(self, matrices: Sequence[Matrix]) -> None:
        """The result layout of matrix operations for every row and column index.

        rows: warps x blocks x 2 x 8 lanes; columns: warps x blocks x 4 lanes x 2. Of several
        rows, the innermost takes its part of the 16 first. Where the operation is a warpgroup's,
        its four warps lie along the rows, and warpgroups are spread as warps are otherwise.
        """
        steps = self.placement.matrix_steps
        wide = [m.operation for m in matrices if isinstance(m.operation, WarpgroupOperation)]
        if wide and len(wide) < len(matrices):
            raise UnsupportedError(
                f"kernel {self.kernel.name} has matrix operations of warps and of warpgroups, "
                f"which lay out results differently. Use one kind in a kernel."
            )
        team = WARPGROUP if wide else WARP

        def covered(index: str) -> int:
            """Points, rounded up where a later operation sums over them."""
            points, step = self.points(index), steps.get(index, 1)
            return -(-points // step) * step

        rows = {m.rows: [covered(i) for i in m.rows] for m in matrices}
        columns = {m.columns: [covered(i) for i in m.columns] for m in matrices}
        held = {i for group in columns for i in group}
        stay = bool(held & self.reduced)  # a row inside one warp: reductions by shuffles
        row_units = (Factor("thread", 8, 4), Factor("register", 2))
        row_units += (Factor("thread", 4, WARP),) if wide else ()
        if all(m.gathered and m.operation.packed == 1 for m in matrices):
            row_units = ROWS_IN_PAIRS
        column_units = (Factor("register", 2), Factor("thread", 4, 1))
        whole = {m.columns: m.operation.n if wide else COLUMNS for m in matrices}
        row_blocks = [fragments(points, row_units) for points in rows.values()]
        column_blocks = [
            [-(-n * COLUMNS // whole[group]) for n in fragments(points, column_units)]
            for group, points in columns.items()
        ]
        if self.kernel.threads < team:
            raise UnsupportedError(
                f"kernel {self.kernel.name} has {self.kernel.threads} threads; its matrix "
                f"operation takes {team}. Give it more."
            )
        along, across = split_warps(self.kernel.threads // team, row_blocks, column_blocks, stay)
        for group, points in rows.items():
            self.assign_group(group, points, row_units, along, team * across)
        for group, points in columns.items():
            if len(group) == 1:
                unit = whole[group] * across
                points = [-(-points[0] // unit) * unit]
            self.assign_group(group, points, column_units, across, team)
        loops = {i for m in matrices for i in m.contract.over} - {*steps, *self.factors}
        self.factors.update({i: (Factor("register", self.points(i)),) for i in loops})
        for i in steps:
            if self.is_held(i) and i not in self.factors and not self.neighbours[i] & held:
                # a computed left factor: the layout of columns, which is that of its fragments
                blocks = Factor("register", covered(i) // COLUMNS)
                self.factors[i] = (blocks, Factor("thread", 4, 1), Factor("register", 2))

    def assign_group(
        self, group: Sequence[str], points: Sequence[int], units: Units, warps: int, stride: int
    ) -> None:
        """Spread fragments over row (or column) indices, and warps over the one with most."""
        found = shares(points, units)
        blocks = [count for _, count in found]
        most = blocks.index(max(blocks))
        below = 1
        for n in reversed(range(len(group))):
            taken, count = found[n]
            over = warps if n == most else 1
            each = -(-count // over)
            size = prod(f.count for f in taken)
            spread = (Factor("thread", over, stride), Factor("register", each), *reversed(taken))
            self.factors[group[n]] = spread
            pair = any(f.kind == "register" and f.count == 2 for f in taken)
            self.parts[group[n]] = Part(size, below, each, pair)
            below *= size
