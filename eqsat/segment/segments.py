"""Cut a graph into segments: pieces small enough to search whole, and found again when repeated.

A cut falls where a single computed value is alive; it is then stored in memory. A piece that has no
such place and is too large to search, or has more index names than an e-graph holds, is cut where
the fewest bytes are alive that it uses up itself: the rest crosses any cut. Of what crosses,
elementwise values may be computed again by those who use them. What a gather looks up in lies in
memory too. A tensor that a library computes is a segment alone. Equal segments have equal
signatures, so that the layers of a model are solved once.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from eqsat.encode.encoding import AxisOrders, encode
from eqsat.graph.evaluate import topological
from eqsat.graph.ops import LIBRARY
from eqsat.graph.tensor import Tensor
from eqsat.segment.boundary import is_elementwise, stored_values
from eqsat.segment.finite_tensors import finite_tensors
from eqsat.terms.algebra import MOST_NAMES, SCANS
from eqsat.terms.extremes import COMPARED, EXTREMES

LEAST_NODES, MOST_NODES = 12, 90
MOST_PART = 128  # tensors of a piece that is cut where several values are alive
WIDELY_USED = 5  # a value with so many uses lies in memory anyway, and stands in no cut's way


@dataclass(frozen=True)
class Segment:
    """Computed tensors in topological order, those stored, and those read from memory.

    `finite` are the leaves that hold no infinity where the inputs hold none; `orders` of those read
    and stored that do not lie in memory row by row.
    """

    tensors: tuple[Tensor, ...]
    stored: tuple[Tensor, ...]
    leaves: tuple[Tensor, ...]
    signature: str
    finite: frozenset[Tensor] = frozenset()
    orders: AxisOrders = field(default_factory=dict)

    def laid(self, orders: AxisOrders) -> "Segment":
        """The segment, of what it reads and stores some with other orders of axes in memory."""
        number = {tensor: i for i, tensor in enumerate((*self.leaves, *self.stored))}
        own = {**self.orders, **{t: axes for t, axes in orders.items() if t in number}}
        text = repr(sorted((number[tensor], axes) for tensor, axes in own.items()))
        plain, *_ = self.signature.split()
        return replace(self, signature=f"{plain} {text}" if own else plain, orders=own)


def is_buffer(tensor: Tensor) -> bool:
    """Inputs, and constants that are not single numbers, lie in memory from the start."""
    if tensor.op == "constant":
        value = tensor.attributes["value"]
        if value.ndim or value.dtype.kind not in "iu":
            return value.ndim > 0
        return int(float(value[()])) != int(value[()])  # numbers of terms are float64
    return tensor.op == "input"


def anchor(tensor: Tensor) -> Tensor:
    """What a chain of views looks at."""
    while tensor.op == "view":
        tensor = tensor.operands[0]
    return tensor


def is_free(tensor: Tensor) -> bool:
    """Whether a tensor is, or looks at, something that needs no computing."""
    return anchor(tensor).op in {"input", "constant", "iota"}


def partition(outputs: Sequence[Tensor]) -> list[Segment]:
    """The segments of a program, producers first."""
    order = topological(outputs)
    forced, compared = _forced(order), _extremes(order)
    pieces = _all_pieces(order, forced)
    while apart := _parted(compared, pieces) - forced:
        forced |= apart
        pieces = _all_pieces(order, forced)
    owner = {tensor: number for number, piece in enumerate(pieces) for tensor in piece}
    # A scan is stored as it is, and what a library makes; a view of it is read from memory.
    whole = SCANS | LIBRARY
    looks = {t for t in outputs if t.op == "view" and anchor(t).op in whole}
    crossing = {anchor(output) for output in looks}
    for tensor in owner:
        for operand in tensor.operands:
            source = anchor(operand)
            if source in owner and owner[source] != owner[tensor]:
                crossing.add(source)
    resident = forced | {anchor(output) for output in outputs}
    resident |= {tensor for tensor in owner if tensor.op in LIBRARY}
    again: set[Tensor] = set()  # what later segments compute for themselves
    roots: list[dict[Tensor, None]] = []
    for piece in pieces:
        own = [t for t in piece if t in crossing]
        kept = stored_values(own, set(piece), resident, anchor)
        roots.append(dict.fromkeys(t for t in piece if t in kept))
        again |= {t for t in piece if is_elementwise(t) and t not in kept}
    copies: dict[Tensor, None] = {}
    for output in outputs:
        source = anchor(output)
        (roots[owner[source]] if source in owner and output not in looks else copies)[output] = None
    finite = finite_tensors(order)
    segments: list[Segment] = []
    laid: set[Tensor] = set()  # views that were stored for a library to read
    for piece, stored in zip(pieces, roots, strict=True):
        if piece[0].op not in LIBRARY:
            segments.append(_segment({*piece, *again}, tuple(stored), finite))
            continue
        (source,) = piece[0].operands
        if source not in owner and not is_buffer(source) and source not in laid:
            laid.add(source)
            segments.append(_segment(set(), (source,), finite))
        segments.append(_library_segment(piece[0]))
    return [*segments, *(_segment(set(), (copy,), finite) for copy in copies)]


def _forced(order: Sequence[Tensor]) -> set[Tensor]:
    """Values that must lie in memory whatever the search finds."""
    forced: set[Tensor] = set()
    for tensor in order:
        if tensor.op == "gather" or tensor.op in LIBRARY:
            forced.add(anchor(tensor.operands[0]))
    return {tensor for tensor in forced if not is_free(tensor)}


def _all_pieces(order: Sequence[Tensor], forced: set[Tensor]) -> list[list[Tensor]]:
    """The computed tensors in pieces that are small enough to search."""
    pieces = [p for p in _pieces(order, _cuts(order), forced) if p]
    pieces = [part for piece in pieces for part in _parts(piece, order)]
    return [part for piece in pieces for part in _of_few_names(piece, order)]


def _extremes(order: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each comparison of a value with its own extremum: the value, the extremum, the comparison."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for tensor in order:
        if tensor.op in COMPARED:
            a, b = map(anchor, tensor.operands)
            found += [
                (value, top, tensor)
                for value, top in ((a, b), (b, a))
                if top.op in EXTREMES and anchor(top.operands[0]) is value and not is_free(value)
            ]
    return found


def _parted(
    compared: Sequence[tuple[Tensor, Tensor, Tensor]], pieces: Sequence[Sequence[Tensor]]
) -> set[Tensor]:
    """Values that a cut parts from a comparison with their own extremum: computed twice, by kernels
    that round otherwise, they would differ from it.
    """
    owner = {tensor: number for number, piece in enumerate(pieces) for tensor in piece}
    return {value for value, *others in compared if any(owner[value] != owner[t] for t in others)}


def _cuts(order: Sequence[Tensor]) -> set[int]:
    """Positions after which a segment ends: of the large values computed in it, one is alive."""
    last_use = {tensor: i for i, tensor in enumerate(order)}
    consumers: dict[Tensor, list[Tensor]] = {}
    for i, tensor in enumerate(order):
        for operand in tensor.operands:
            last_use[anchor(operand)] = i
            consumers.setdefault(operand, []).append(tensor)
    cuts: set[int] = set()
    summed = _summed(order)
    alive: set[Tensor] = set()
    inside: set[Tensor] = set()  # what began in this segment; the rest crosses it anyway
    count, fallback = 0, None
    for i, tensor in enumerate(order):
        alive = {t for t in alive if last_use[t] > i}
        if tensor.op == "view" or is_free(tensor):
            continue
        count += 1
        if last_use[tensor] > i:
            alive.add(tensor)
            if len(consumers[tensor]) < WIDELY_USED:
                inside.add(tensor)
        largest = max((t.size for t in alive), default=0)
        alone = tensor in alive and not any(
            t is not tensor and t in inside and t.size * 64 > largest for t in alive
        )
        if not alone or count < LEAST_NODES or tensor in summed:
            continue
        users = consumers[tensor]
        if len(users) > 1 and any(_contracts(user, consumers) for user in users):
            cuts.add(i)
        elif count > MOST_NODES and fallback is not None:
            cuts.add(fallback)
        else:
            fallback = i if len(users) > 1 else fallback
            continue
        count, fallback = 0, None
        inside.clear()
    return cuts


def _of_few_names(piece: list[Tensor], order: Sequence[Tensor]) -> list[list[Tensor]]:
    """A piece in parts that have MOST_NAMES index names at most."""
    if len(piece) < 2 or _names(piece) <= MOST_NAMES:
        return [piece]
    halves = _parts(piece, order, -(-len(piece) // 2))
    return [part for half in halves for part in _of_few_names(half, order)]


def _names(piece: list[Tensor]) -> int:
    """How many index names a piece has, less those of what it may compute again."""
    whole = _segment(set(piece), tuple(piece), ())
    leaves = {leaf: f"b{i}" for i, leaf in enumerate(whole.leaves)}
    return len(encode(whole.tensors, whole.stored, leaves).universe.names)


def _parts(
    piece: list[Tensor], order: Sequence[Tensor], most: int = MOST_PART
) -> list[list[Tensor]]:
    """A piece in about equal parts of at most so many tensors, cut where little is alive."""
    last_use = {anchor(operand): tensor for tensor in order for operand in tensor.operands}
    summed = _summed(order)
    parts: list[list[Tensor]] = []
    while len(piece) > most:
        share = len(piece) // -(-len(piece) // most)
        window = piece[: min(most, share + share // 4)]
        alive = _used_up(window, last_use)
        ends = [i for i, t in enumerate(window) if i >= share * 3 // 4 and t not in summed]
        end = min(ends or [len(window) - 1], key=lambda at, alive=alive: (alive[at], -at))
        parts.append(piece[: end + 1])
        piece = piece[end + 1 :]
    return [*parts, piece]


def _used_up(window: Sequence[Tensor], last_use: Mapping[Tensor, Tensor]) -> list[int]:
    """Bytes alive after each of some tensors, less those that are used after the last one."""
    place = {tensor: i for i, tensor in enumerate(window)}
    alive = [0] * len(window)
    for i, tensor in enumerate(window):
        until = place.get(last_use[tensor], i) if tensor in last_use else i
        for at in range(i, until):
            alive[at] += tensor.size * tensor.dtype.itemsize
    return alive


def _summed(order: Sequence[Tensor]) -> set[Tensor]:
    """Values of which nothing but sums are taken: smaller ones are alive after these."""
    uses: dict[Tensor, set[bool]] = {}
    for tensor in order:
        for operand in tensor.operands if tensor.op != "view" else ():
            uses.setdefault(anchor(operand), set()).add(tensor.op.startswith("reduce_"))
    return {tensor for tensor, found in uses.items() if found == {True}}


def _contracts(user: Tensor, consumers: dict[Tensor, list[Tensor]]) -> bool:
    """Whether a use leads through views, casts and one product of two factors into a sum."""
    steps = 0
    while steps < 6:
        following = consumers.get(user, [])
        if user.op == "mul":
            squares = user.operands[0] is user.operands[1]
            return not squares and len(following) == 1 and following[0].op == "reduce_sum"
        if user.op not in {"view", "cast"} or len(following) != 1:
            return False
        user, steps = following[0], steps + 1
    return False


def _pieces(order: Sequence[Tensor], ends: set[int], forced: set[Tensor]) -> list[list[Tensor]]:
    """The computed tensors between cuts."""
    pieces: list[list[Tensor]] = [[]]
    for i, tensor in enumerate(order):
        if tensor.op in LIBRARY:
            pieces += [[tensor], []]
        elif tensor.op != "view" and not is_free(tensor):
            pieces[-1].append(tensor)
            if tensor in forced:
                pieces.append([])
        if i in ends:
            pieces.append([])
    return pieces


def _library_segment(tensor: Tensor) -> Segment:
    """What a library computes from a value in memory."""
    order = (*tensor.operands, tensor)
    signature = _signature(order, (tensor,), frozenset(tensor.operands), ())
    return Segment(order, (tensor,), tensor.operands, signature)


def _segment(
    inside: set[Tensor], stored: tuple[Tensor, ...], finite: Collection[Tensor]
) -> Segment:
    """A segment with every view and number that its tensors read."""
    tensors: dict[Tensor, None] = {}
    leaves: dict[Tensor, None] = {}
    stack: list[tuple[Tensor, bool]] = [(tensor, False) for tensor in reversed(stored)]
    while stack:
        tensor, ready = stack.pop()
        if ready:
            tensors[tensor] = None
        elif tensor not in tensors and tensor not in leaves:
            computed = tensor.op != "view" and not is_free(tensor) and tensor not in inside
            if is_buffer(tensor) or computed:
                leaves[tensor] = None
            else:
                stack.append((tensor, True))
                stack += [(operand, False) for operand in reversed(tensor.operands)]
    order = (*leaves, *tensors)
    known = frozenset(leaf for leaf in leaves if leaf in finite)
    signature = _signature(order, stored, leaves, known)
    return Segment(order, stored, tuple(leaves), signature, known)


def _signature(
    order: Sequence[Tensor],
    stored: Sequence[Tensor],
    leaves: Collection[Tensor],
    finite: Collection[Tensor],
) -> str:
    """A hash of everything that a segment's kernels depend on."""
    number = {tensor: i for i, tensor in enumerate(order)}
    parts: list[str] = []
    for tensor in order:
        head = f"{tensor.shape} {tensor.dtype.name}"
        if tensor in leaves:
            resident = tensor.op if is_buffer(tensor) else "computed"
            parts.append(f"leaf {resident} {head} {'finite' if tensor in finite else ''}")
            continue
        operands = [number[operand] for operand in tensor.operands]
        attributes = sorted((k, _text(v)) for k, v in tensor.attributes.items())
        parts.append(f"{tensor.op} {head} {operands} {attributes}")
    parts.append(f"stored {[number[tensor] for tensor in stored]}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _text(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return repr(value)
