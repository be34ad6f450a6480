"""Which dimensions of a segment's tensors share an index name.

Dimensions are lists of *atoms*: a union-find unifies the atoms that an elementwise operation lays
over each other and splits them by radix at reshapes, so that permute, broadcast and head split
leave no trace. A union is refused where both atoms are alive in one scope (x @ x.T); that operand
alone is re-indexed. What reads a buffer without computing (an input, a constant, a value of an
earlier segment, and views of them) takes the names of each use: such a read is free.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.graph.index import Affine, FloorDiv, Mod, free_names
from eqsat.graph.tensor import Tensor
from eqsat.terms.algebra import SCANS


class Atoms:
    """Union-find over axis atoms; an atom may be split into an outer and an inner one."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._extent: list[int] = []
        self._parts: dict[int, tuple[int, int]] = {}

    def fresh(self, extent: int) -> int:
        """A new atom."""
        self._parent.append(len(self._parent))
        self._extent.append(extent)
        return len(self._parent) - 1

    def find(self, atom: int) -> int:
        """The representative of an atom."""
        while self._parent[atom] != atom:
            self._parent[atom] = self._parent[self._parent[atom]]
            atom = self._parent[atom]
        return atom

    def extent(self, atom: int) -> int:
        """Number of points."""
        return self._extent[self.find(atom)]

    def expand(self, atoms: Sequence[int]) -> list[int]:
        """Representatives, split atoms replaced by their parts."""
        out: list[int] = []
        for atom in atoms:
            root = self.find(atom)
            out += self.expand(self._parts[root]) if root in self._parts else [root]
        return out

    def split(self, atom: int, inner: int) -> bool:
        """Split an unsplit representative into (extent / inner, inner), if that divides."""
        extent = self.extent(atom)
        if extent % inner:
            return False
        self._parts[atom] = (self.fresh(extent // inner), self.fresh(inner))
        return True

    def union(self, a: int, b: int) -> None:
        """Make two unsplit representatives of one extent the same."""
        self._parent[self.find(b)] = self.find(a)


Dims = list[list[int] | None]


@dataclass
class _Node:
    """A tensor: the atoms of each dimension (None: does not depend on it), and those in scope.

    `scope` are the atoms that reassociation may bring together with the value's own; `below` all
    atoms that occur in its computation.
    """

    dims: Dims
    scope: list[int]
    below: frozenset[int] = frozenset()


def _digits(coordinate: Affine, extents: dict[str, int]) -> list[tuple[str, int, int]] | None:
    """A coordinate as mixed-radix digits (name, p, q) = (name // p) % q, outermost first."""
    if coordinate.constant:
        return None
    digits: list[tuple[int, str, int, int]] = []
    for atom, coefficient in coordinate.terms:
        digit = _digit(atom, extents)
        if digit is None or coefficient <= 0:
            return None
        digits.append((coefficient, *digit))
    digits.sort(reverse=True)
    radix = 1
    for coefficient, _, _, q in reversed(digits):
        if coefficient != radix:
            return None
        radix *= q
    return [(name, p, q) for _, name, p, q in digits]


def _digit(atom: object, extents: dict[str, int]) -> tuple[str, int, int] | None:
    if isinstance(atom, str):
        return atom, 1, extents[atom]
    if isinstance(atom, Mod):
        inner = _single(atom.numerator)
        digit = _digit(inner, extents) if inner is not None else None
        if digit is None or digit[2] % atom.divisor:
            return None
        return digit[0], digit[1], atom.divisor
    if isinstance(atom, FloorDiv):
        inner = _single(atom.numerator)
        digit = _digit(inner, extents) if inner is not None else None
        if digit is None or digit[2] % atom.divisor:
            return None
        return digit[0], digit[1] * atom.divisor, digit[2] // atom.divisor
    return None


def _single(expression: Affine) -> object | None:
    if expression.constant or len(expression.terms) != 1 or expression.terms[0][1] != 1:
        return None
    return expression.terms[0][0]


class Naming:
    """Names the axes of one segment."""

    def __init__(self, leaves: dict[Tensor, str]) -> None:
        self.leaves = leaves
        self.atoms = Atoms()
        self.nodes: dict[Tensor, _Node] = {}
        self.uses: dict[Tensor, int] = {}
        self.edges: dict[tuple[Tensor, int], Dims] = {}

    # -- reads that compute nothing -----------------------------------------------------------

    def is_leaf(self, tensor: Tensor) -> bool:
        """Whether a tensor is a buffer, a number, an index position, or a view of one."""
        if tensor in self.leaves or tensor.op in {"constant", "iota", "input"}:
            return True
        if tensor.op != "view" or tensor.attributes["fill"] is not None:
            return tensor.op == "view" and tensor.operands[0] in self.leaves
        return self.is_leaf(tensor.operands[0])

    def leaf_depends(self, tensor: Tensor) -> list[bool]:
        """For each dimension of a leaf, whether its value depends on it."""
        if tensor.op == "iota" and tensor not in self.leaves:
            return [axis == tensor.attributes["axis"] for axis in range(tensor.ndim)]
        if tensor.op == "view" and tensor not in self.leaves:
            below = self.leaf_depends(tensor.operands[0])
            used: set[str] = set()
            fill = tensor.attributes["fill"] is not None
            for needed, coordinate in zip(below, tensor.attributes["coordinates"], strict=True):
                if needed or fill:
                    used |= free_names(coordinate)
            return [f"i{axis}" in used for axis in range(tensor.ndim)]
        return [True] * tensor.ndim

    # -- first pass: unify atoms ----------------------------------------------------------------

    def visit(self, tensor: Tensor) -> None:
        """Give a tensor its dims; its operands have theirs."""
        if tensor.op == "view" and tensor not in self.leaves:
            self._visit_view(tensor)
        elif self.is_leaf(tensor):
            self.nodes[tensor] = _Node(self._fresh_dims(tensor, self.leaf_depends(tensor)), [])
        elif tensor.op == "gather":
            self._visit_gather(tensor)
        elif tensor.op.startswith("reduce_"):
            self._visit_reduce(tensor)
        else:
            self._visit_map(tensor)

    def _fresh_dims(self, tensor: Tensor, needed: Sequence[bool]) -> Dims:
        return [
            ([self.atoms.fresh(extent)] if extent != 1 else []) if need else None
            for extent, need in zip(tensor.shape, needed, strict=True)
        ]

    def _scope(self, tensor: Tensor, dims: Dims) -> list[int]:
        scope = [atom for dim in dims if dim for atom in dim]
        for operand in tensor.operands:
            if operand in self.nodes and self.uses[operand] == 1:
                scope += self.nodes[operand].scope
        return scope

    def _set(self, tensor: Tensor, dims: Dims) -> None:
        below = {atom for dim in dims if dim for atom in dim}
        for operand in tensor.operands:
            below |= self.nodes[operand].below
        self.nodes[tensor] = _Node(dims, self._scope(tensor, dims), frozenset(below))

    def _visit_map(self, tensor: Tensor) -> None:
        dims: Dims = [None] * tensor.ndim
        scope: list[int] = []

        def awkward(place: int) -> tuple[bool, bool, int]:
            operand = tensor.operands[place]
            return self.is_leaf(operand), self.uses[operand] > 1, place

        for place in sorted(range(len(tensor.operands)), key=awkward):
            operand = tensor.operands[place]
            node = self.nodes[operand]
            if self.is_leaf(operand):  # it takes any names, so it need not bring shadowing about
                scope = scope + [a for o in tensor.operands for a in self.nodes[o].below]
            used, shared = self._lay_over(dims, node.dims, scope, node.scope)
            if not shared:
                used = self._renamed(dims, operand)
            self.edges[tensor, place] = used
            dims = [d if d is not None else u for d, u in zip(dims, used, strict=True)]
            scope = [a for d in dims if d for a in d] + (node.scope if shared else []) + scope
        if tensor.op in SCANS and dims[tensor.attributes["axis"]] is None:
            axis = tensor.attributes["axis"]
            dims[axis] = [self.atoms.fresh(tensor.shape[axis])] if tensor.shape[axis] != 1 else []
        self._set(tensor, dims)

    def _lay_over(
        self, dims: Dims, other: Dims, scope: list[int], other_scope: list[int]
    ) -> tuple[Dims, bool]:
        """Unify the atoms of two dim lists; nothing is changed unless all of them may be."""
        live = set(self.atoms.expand(scope)) | {a for d in dims if d for a in self.atoms.expand(d)}
        theirs = set(self.atoms.expand(other_scope))
        taken = {a for d in dims if d for a in self.atoms.expand(d)}
        for dim, mine in zip(other, dims, strict=True):
            if dim is not None and mine is None and taken & set(self.atoms.expand(dim)):
                return other, False
        pairs = [
            (a, b) for a, b in zip(dims, other, strict=True) if a is not None and b is not None
        ]
        plan: list[tuple[int, int]] = []
        for mine, dim in pairs:
            matched = self._match(mine, dim)
            if matched is None:
                return other, False
            plan += matched
        for a, b in plan:
            a, b = self.atoms.find(a), self.atoms.find(b)
            if a == b:
                continue
            if b in live or a in theirs:
                return other, False
            bystanders = [n for n in self.nodes.values() if self._both(n.scope, a, b)]
            if bystanders:
                return other, False
        for a, b in plan:
            if self.atoms.find(a) != self.atoms.find(b):
                self.atoms.union(a, b)
        return other, True

    def _both(self, scope: list[int], a: int, b: int) -> bool:
        roots = set(self.atoms.expand(scope))
        return a in roots and b in roots

    def _match(self, mine: list[int], dim: list[int]) -> list[tuple[int, int]] | None:
        """Pairs of equal-extent atoms of two lists, splitting by radix; None if they won't fit."""
        left, right = self.atoms.expand(mine), self.atoms.expand(dim)
        pairs: list[tuple[int, int]] = []
        while left and right:
            a, b = left.pop(), right.pop()
            ea, eb = self.atoms.extent(a), self.atoms.extent(b)
            if ea != eb:
                big, small, rest = (a, eb, left) if ea > eb else (b, ea, right)
                if small == 0 or not self.atoms.split(big, small):
                    return None
                outer, inner = self.atoms.expand([big])
                rest.append(outer)
                a, b = (inner, b) if ea > eb else (a, inner)
            pairs.append((a, b))
        return pairs if not left and not right else None

    def _renamed(self, dims: Dims, operand: Tensor) -> Dims:
        """Dims for an operand that cannot share its own names here."""
        taken = {atom for dim in dims if dim for atom in self.atoms.expand(dim)}
        used: Dims = []
        for mine, theirs, extent in zip(dims, self.nodes[operand].dims, operand.shape, strict=True):
            if theirs is None or mine is not None:
                used.append(None if theirs is None else mine)
            elif taken & set(self.atoms.expand(theirs)):
                used.append([self.atoms.fresh(extent)])
            else:
                used.append(theirs)
        return used

    def _visit_reduce(self, tensor: Tensor) -> None:
        operand = tensor.operands[0]
        axes = tensor.attributes["axes"]
        inner = [
            [self.atoms.fresh(operand.shape[i])] if d is None and i in axes else d
            for i, d in enumerate(self.nodes[operand].dims)
        ]
        self.edges[tensor, 0] = inner
        dims = [d for axis, d in enumerate(inner) if axis not in axes]
        self._set(tensor, dims)
        bound = [a for d in inner if d for a in d]
        self.nodes[tensor].scope += bound
        self.nodes[tensor].below |= frozenset(bound)

    def _visit_view(self, tensor: Tensor) -> None:
        operand = tensor.operands[0]
        dims = self._rearranged(tensor)
        if dims is None:
            used: set[str] = set()
            for coordinate in tensor.attributes["coordinates"]:
                used |= free_names(coordinate)
            dims = self._fresh_dims(tensor, [f"i{a}" in used for a in range(tensor.ndim)])
        else:
            self.edges[tensor, 0] = self.nodes[operand].dims
        self._set(tensor, dims)

    def _rearranged(self, tensor: Tensor) -> Dims | None:
        """The dims of a view that only permutes, splits, merges or broadcasts dimensions."""
        if tensor.attributes["fill"] is not None:
            return None
        own = self.nodes[tensor.operands[0]].dims
        extents = {f"i{axis}": extent for axis, extent in enumerate(tensor.shape)}
        found: dict[str, list[tuple[int, int, list[int] | None]]] = {}
        shape = tensor.operands[0].shape
        for dim, coordinate, extent in zip(
            own, tensor.attributes["coordinates"], shape, strict=True
        ):
            digits = _digits(coordinate, extents)
            if digits is None or _product(q for *_, q in digits) != extent:
                return None
            parts = self._cut(dim, [q for *_, q in digits])
            if parts is None:
                return None
            for (name, p, q), part in zip(digits, parts, strict=True):
                found.setdefault(name, []).append((p, q, part))
        out: Dims = []
        for name, extent in extents.items():
            pieces = sorted(found.get(name, []), key=lambda piece: -piece[0])
            if not pieces:
                out.append(None if extent != 1 else [])
                continue
            if not _chains(pieces, extent):
                return None
            kept = [part for *_, part in pieces]
            if all(part is None for part in kept):
                out.append(None)
            elif any(part is None for part in kept):
                return None
            else:
                out.append([atom for part in kept if part for atom in part])
        flat = [atom for dim in out if dim for atom in self.atoms.expand(dim)]
        return out if len(set(flat)) == len(flat) else None

    def _cut(self, dim: list[int] | None, radices: list[int]) -> list[list[int] | None] | None:
        """Cut a dim's atoms into consecutive parts of the given sizes, outermost first."""
        if dim is None:
            return [None] * len(radices)
        left = self.atoms.expand(dim)
        parts: list[list[int] | None] = []
        for radix in reversed(radices):
            part: list[int] = []
            size = 1
            while size < radix:
                if not left:
                    return None
                atom = left.pop()
                extent = self.atoms.extent(atom)
                if radix % (size * extent):
                    if size and radix % size == 0 and extent % (radix // size) == 0:
                        self.atoms.split(atom, radix // size)
                        outer, atom = self.atoms.expand([atom])
                        left.append(outer)
                        extent = radix // size
                    else:
                        return None
                part.insert(0, atom)
                size *= extent
            parts.insert(0, part)
        return parts if not left else None

    def _visit_gather(self, tensor: Tensor) -> None:
        dims = list(self.nodes[tensor.operands[1]].dims)
        self.edges[tensor, 1] = list(dims)
        used: set[str] = set()
        for coordinate in tensor.attributes["coordinates"]:
            used |= free_names(coordinate) if coordinate is not None else set()
        for axis, extent in enumerate(tensor.shape):
            if dims[axis] is None and f"i{axis}" in used:
                dims[axis] = [self.atoms.fresh(extent)] if extent != 1 else []
        self._set(tensor, dims)


def _chains(pieces: list[tuple[int, int, list[int] | None]], extent: int) -> bool:
    """Whether digits (p, q), outermost first, cover an index of that extent exactly."""
    radix = 1
    for p, q, _ in reversed(pieces):
        if p != radix:
            return False
        radix *= q
    return radix == extent


def _product(values: object) -> int:
    product = 1
    for value in values:  # type: ignore[attr-defined]
        product *= value
    return product
