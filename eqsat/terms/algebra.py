"""Terms of the first search: tensor expressions over named indices, interned.

An expression is a value over a set of *free* indices; operations join on names, so nothing is ever
transposed. Index sets are bit masks over the names of a `Universe`. Reductions bind the index name
itself, and an inner binding shadows an outer one.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from eqsat.carry_law import CarryLaw
from eqsat.graph.dtypes import DType, as_dtype
from eqsat.graph.index import Affine, free_names, unit_names
from eqsat.kernel.ir import Guard
from eqsat.kernel.joined import Joined

REDUCTIONS = {"reduce_sum": "sum", "reduce_prod": "prod", "reduce_max": "max", "reduce_min": "min"}
# scatter_m(S, v, p, x): m over S of x where v is p; a kernel combines x with what lies at v.
SCATTERS = {"scatter_sum": "sum", "scatter_max": "max", "scatter_min": "min"}
WEIGHTED_SUMS = ("weighted_sum", "weighted_contract")
# weighted_min_S(s, v, law): the least of w * v, where each v is at most 0 and w is 0 or 1.
WEIGHTED = (*WEIGHTED_SUMS, "weighted_min")
SCANS = frozenset({"scan_sum", "scan_affine"})
LEAVES = frozenset({"read", "literal", "position"})
CONDITIONS = frozenset(
    {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
    | {"logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isfinite", "isinf"}
)
MOST_NAMES = 63  # of one e-graph: egglog's integers, which hold masks of them, have a sign bit


@dataclass(frozen=True)
class Read:
    """Elements of a buffer at a flat address affine in index names; `fill` where a guard fails.

    With `extent` > 0 the read is a gather: the address grows by `stride` times the value of the
    term's argument, and yields `fill` where that value lies outside 0 <= value < extent. What is
    `joined` lies in pieces, and the address is one in the whole of them.
    """

    buffer: str
    dtype: DType
    address: Affine
    guards: tuple[Guard, ...] = ()
    fill: bool | int | float = 0
    stride: int = 0
    extent: int = 0
    joined: Joined | None = None

    @property
    def buffers(self) -> tuple[str, ...]:
        """What is read from: of what is joined the pieces."""
        return tuple(p.buffer for p in self.joined.pieces) if self.joined else (self.buffer,)

    @property
    def names(self) -> frozenset[str]:
        """Index names that the read depends on."""
        names = free_names(self.address)
        for guard in self.guards:
            names |= free_names(guard.expression)
        return frozenset(names)


@dataclass(frozen=True)
class Renaming:
    """A re-indexing: `source[i]` is read at `target[i]`; yields `fill` where a guard fails."""

    source: tuple[str, ...]
    target: tuple[Affine, ...]
    guards: tuple[Guard, ...] = ()
    fill: bool | int | float = 0

    @property
    def names(self) -> frozenset[str]:
        """Index names that the targets and guards use."""
        names: set[str] = set()
        for expression in (*self.target, *(guard.expression for guard in self.guards)):
            names |= free_names(expression)
        return frozenset(names)


Atom = int | float | str | Read | Renaming | Affine | CarryLaw


def names_of(atom: Affine | Read | Renaming) -> frozenset[str]:
    """Index names that an expression, a read or the targets of a re-indexing use."""
    return free_names(atom) if isinstance(atom, Affine) else atom.names


class Term:
    """An operation applied to terms and atoms. Interned: equal terms are the same object.

    `children` are the arguments that are terms.
    """

    __slots__ = ("__weakref__", "args", "children", "op")
    op: str
    args: tuple["Term | Atom", ...]
    children: tuple["Term", ...]

    def __new__(cls, op: str, *args: "Term | Atom") -> "Term":
        key = (op, *((type(a), repr(a)) if isinstance(a, int | float) else a for a in args))
        found = _interned.get(key)
        if found is None:
            found = object.__new__(cls)
            found.op, found.args = op, args
            found.children = tuple(a for a in args if isinstance(a, Term))
            _interned[key] = found
        return found

    def __repr__(self) -> str:
        return f"({' '.join([self.op, *map(repr, self.args)])})"


_interned: weakref.WeakValueDictionary[tuple[object, ...], Term] = weakref.WeakValueDictionary()


@dataclass
class Universe:
    """The index names of one program segment: bit position, extent; grows as names are needed."""

    names: list[str] = field(default_factory=list)
    extents: dict[str, int] = field(default_factory=dict)
    _members: dict[int, tuple[str, ...]] = field(default_factory=dict, repr=False, compare=False)

    def add(self, extent: int, stem: str = "i") -> str:
        """A fresh name with that extent."""
        name = f"{stem}{len(self.names)}"
        self.names.append(name)
        self.extents[name] = extent
        return name

    def mask(self, names: Iterable[str]) -> int:
        """Bit mask of a set of names."""
        return sum(1 << self.names.index(name) for name in set(names))

    def members(self, mask: int) -> tuple[str, ...]:
        """Names in a mask, in the universe's order."""
        if mask not in self._members:
            self._members[mask] = tuple(
                name for bit, name in enumerate(self.names) if mask >> bit & 1
            )
        return self._members[mask]

    def size(self, mask: int) -> int:
        """Number of points spanned by a mask."""
        size = 1
        for name in self.members(mask):
            size *= self.extents[name]
        return size


def post_order(roots: Iterable[Term]) -> Iterator[Term]:
    """Each distinct term below the roots once, arguments first."""
    seen: set[Term] = set()
    stack: list[tuple[Term, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        term, ready = stack.pop()
        if ready:
            yield term
        elif term not in seen:
            seen.add(term)
            if not term.children:
                yield term
                continue
            stack.append((term, True))
            stack += [(child, False) for child in reversed(term.children) if child not in seen]


def _unknown(root: Term, known: Mapping[Term, object]) -> Iterator[Term]:
    """The terms below a root of which a table lacks the value, arguments first; what is beneath one
    that it has is not looked at. The table is to have a term's value before the next is asked for.
    """
    stack = [] if root in known else [root]
    while stack:
        term = stack[-1]
        lacking = [child for child in term.children if child not in known]
        if lacking:
            stack += lacking
            continue
        stack.pop()
        if term not in known:
            yield term


def read_along(terms: Iterable[Term]) -> set[str]:
    """Names along which memory is walked by the reads among some terms."""
    reads = [term.args[0] for term in terms if term.op == "read"]
    return {n for read in reads if isinstance(read, Read) for n in unit_names(read.address)}


def guarded_names(terms: Iterable[Term]) -> set[str]:
    """Names of positions that the reads among some terms ask to be there."""
    reads = (term.args[0] for term in terms if term.op == "read")
    guards = (guard for read in reads if isinstance(read, Read) for guard in read.guards)
    return {name for guard in guards for name in free_names(guard.expression)}


class Facts:
    """Free indices and dtype of terms, memoised for one universe.

    `whole`: names of which every tile has all points, so that reductions over them are no loops.
    """

    def __init__(self, universe: Universe, whole: int = 0) -> None:
        self.universe, self.whole = universe, whole
        self._free: dict[Term, int] = {}
        self._dtype: dict[Term, DType] = {}
        self.ranges: dict[Term, tuple[int, int] | None] = {}  # of integers, where known

    def free(self, term: Term) -> int:
        """Mask of the free indices."""
        for sub in _unknown(term, self._free):
            self._free[sub] = self._free_of(sub)
        return self._free[term]

    def _free_of(self, term: Term) -> int:
        below = 0
        for child in term.children:
            below |= self._free[child]
        match term.op, term.args:
            case (("read" | "gather"), (Read() as read, *_)):
                return below | self.universe.mask(read.names)
            case "position", (Affine() as expression,):
                return self.universe.mask(free_names(expression))
            case "reindex", (Renaming() as renaming, Term()):
                return below & ~self.universe.mask(renaming.source) | self.universe.mask(
                    renaming.names
                )
            case (("reduce_sum" | "reduce_prod" | "reduce_max" | "reduce_min"), (int(mask), _)):
                return below & ~mask
            case (
                ("contract" | "narrow_contract"),
                (int(mask), *_),
            ):
                return below & ~mask
            case (("scan_sum" | "scan_affine"), (int(mask), *_)):
                return below | mask
            case op, (int(mask), *_) if op in SCATTERS or op in WEIGHTED:
                return below & ~mask
            case _:
                return below

    def dtype(self, term: Term) -> DType:
        """Element type."""
        for sub in _unknown(term, self._dtype):
            self._dtype[sub] = self._dtype_of(sub)
        return self._dtype[term]

    def _dtype_of(self, term: Term) -> DType:
        if term.op in CONDITIONS:
            return as_dtype("bool")
        match term.op, term.args:
            case (("read" | "gather"), (Read() as read, *_)):
                return read.dtype
            case "literal", (_, str(name)):
                return as_dtype(name)
            case (("cast" | "rounded"), (str(name), _)):
                return as_dtype(name)
            case "position", _:
                return as_dtype("int64")
            case "where", (_, Term() as chosen, _):
                return self._dtype[chosen]
            case op, _ if op in WEIGHTED:
                return self._dtype[term.children[1]]
            case op, _ if op in SCATTERS:
                return self._dtype[term.children[2]]
            case _:
                return self._dtype[term.children[0]]


def read_from(roots: Iterable[Term]) -> frozenset[str]:
    """The buffers that terms read."""
    atoms = (atom for term in post_order(roots) for atom in term.args)
    return frozenset(b for atom in atoms if isinstance(atom, Read) for b in atom.buffers)


def rebuild(term: Term, change: Callable[[Term, tuple[Term, ...]], Term]) -> Term:
    """Bottom-up map over a term: `change` gets each term and its new children."""
    done: dict[Term, Term] = {}
    for sub in post_order([term]):
        done[sub] = change(sub, tuple(done[child] for child in sub.children))
    return done[term]


def substituted(term: Term, instead: Mapping[Term, Term]) -> Term:
    """A term with other terms in place of some below it."""
    return rebuild(term, lambda sub, children: instead.get(sub) or with_children(sub, children))


def sum_of_products(contract: Term, factors: tuple[Term, ...]) -> Term:
    """The sum of products of such factors that a contraction stands for."""
    return Term("reduce_sum", contract.args[0], Term("mul", *factors))


def with_children(term: Term, children: tuple[Term, ...]) -> Term:
    """The same operation over other children."""
    rest = iter(children)
    return Term(term.op, *(next(rest) if isinstance(a, Term) else a for a in term.args))
