"""What a spec says of the parts of kernels: rates of operations, memories, roles of indices."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import truediv

import numpy as np
from numpy.typing import NDArray

from eqsat.graph.dtypes import as_dtype, is_held
from eqsat.layout.needs import SIXTEEN, Need, needs
from eqsat.price.issue import ISSUED, instruction_seconds
from eqsat.price.partial_sums import rounded
from eqsat.price.siblings import Family, family, siblings
from eqsat.specs import ParallelOperation, ParallelProcessingUnit
from eqsat.terms.algebra import WEIGHTED_SUMS, Term, read_from
from eqsat.terms.form import Form

RUNS = 1000  # of a program, over which what runs once is spread
SIMPLE = 15  # times a product's seconds that an operation may take and count as one
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Blocking:
    """What a schedule settles besides grid tiles, an array entry for each choice.

    chunks: streamed extents of reduced names; threads of a block; stages in flight; staged: whether
    operands of contractions lie in memory that the whole tile shares; blocks of a cluster that
    compute a tile; blocks of one that copy factors for each other; parts of the last tiles.
    """

    chunks: Mapping[str, Array]
    threads: Array
    stages: Array
    staged: bool
    cluster: Array
    shared: Array
    last_parts: Array


@dataclass(frozen=True)
class Contraction:
    """A sum of products by names: batch, rows, columns, summed; and the operand dtypes."""

    term: Term
    left: Term
    right: Term
    batch: int
    rows: int
    columns: int
    summed: int


class Rates:
    """Rates of one spec. `operations`: invocation names that the target can emit; `precision`: what
    may be rounded, as of eqsat.rule: beside a bfloat16 factor a float32 one, and weights to either
    16-bit float; `constants`: buffers that hold the same in every run.
    """

    def __init__(
        self,
        spec: ParallelProcessingUnit,
        operations: frozenset[str],
        buffer_bytes: Mapping[str, int] | None = None,
        float32_products: Mapping[str, int] | None = None,
        precision: str = "default",
        constants: Iterable[str] = (),
    ) -> None:
        self.spec = spec
        self.constants = {*constants}
        self.operations = operations
        self.sizes = dict(buffer_bytes or {})
        self.float32_products = dict(float32_products or {})
        self.precision = precision
        self.overlap = spec.overlaps
        self._steps: dict[tuple[str, str], int] = {}
        self._rates: dict[tuple[str, str], list[tuple[str, float]]] = {}
        self._needs: dict[tuple[str, str], Need | None] = {}
        self._siblings: dict[str, list[ParallelOperation]] = {}
        self._families: dict[tuple[str, ...], list[list[ParallelOperation]]] = {}
        self._contractions: dict[tuple[str, str, str], list[ParallelOperation]] = {}
        memories = [m for m in spec.memory_domains if m.managed == "hardware"]
        self.dram = memories[0]
        self.cache = memories[1] if len(memories) > 1 else memories[0]
        private = [m for m in memories if m.shared_across == spec.tile_group]
        self.private = private[0] if private else self.cache
        self.nearest = private[-1] if private else self.cache

    def run_share(self, read: Collection[str]) -> float:
        """The part of a kernel's seconds that counts for each run, given the buffers that it reads:
        one that reads constants alone runs once.
        """
        return 1 / RUNS if read and self.constants.issuperset(read) else 1.0

    def share_of(self, terms: Iterable[Term]) -> float:
        """The same of a kernel that stores terms."""
        return self.run_share(read_from(terms)) if self.constants else 1.0

    def contraction(self, form: Form, term: Term) -> Contraction | None:
        """The index roles of a sum of products, or None."""
        factors = form.contraction(term)
        return _roles(form, term, *factors) if factors else None

    def outer(
        self, form: Form, term: Term, factors: tuple[Term, Term] | None
    ) -> Contraction | None:
        """Those of another reduction whose results threads share `factors` of, or None."""
        return _roles(form, term, *factors) if factors and self.overlap else None

    def matrix_operations(self, form: Form, found: Contraction) -> list[ParallelOperation]:
        """Operations of the spec that compute such a contraction and that the target can emit."""
        a, b = form.facts.dtype(found.left).name, form.facts.dtype(found.right).name
        weights = found.term.op in WEIGHTED_SUMS  # in [0, 1]
        pairs = [(a, b)]
        if "float32" in (a, b) and self.precision != "exact":
            other = b if a == "float32" else a
            rounds = SIXTEEN if weights else ("bfloat16",)
            fit = [w for w in rounds if w == other or (weights and is_held(other, w))]
            pairs = [(w, w) for w in fit] or pairs
        output = form.facts.dtype(found.term).name
        matrix = found.rows and found.columns
        return [
            o
            for pair in pairs
            for o in self._operations_for(*pair, output)
            if (matrix or not any(o.extents.values())) and self._keeps_enough(o, form)
        ]

    def has_products(self, dtype: str) -> bool:
        """Whether operations of the spec multiply matrices of a float of 16 bits or fewer."""
        if as_dtype(dtype).kind != "float" or as_dtype(dtype).itemsize > 2:
            return False
        return bool(self._operations_for(dtype, dtype, "float32"))

    def _operations_for(self, a: str, b: str, output: str) -> list[ParallelOperation]:
        """Those that multiply factors of two dtypes, as they are or in one that holds both."""
        key = (a, b, output)
        if key not in self._contractions:
            self._contractions[key] = self._found_operations(*key)
        return self._contractions[key]

    def _found_operations(self, a: str, b: str, output: str) -> list[ParallelOperation]:
        rounding = self.float32_products if a == b == output == "float32" else ()
        found = [*map(self.spec.operation, rounding), *self.spec.contractions(a, output, b)]
        for wide in ("float16", "bfloat16") if output == "float32" else ():
            cast = [name for name in (a, b) if name != wide]
            if cast and all(is_held(name, wide) for name in cast):
                for operation in self.spec.contractions(wide, output):
                    held = operation.factor_memories.count("registers")  # where they can be cast
                    ahead = operation.asynchronous and not held
                    held += operation.asynchronous  # another one is converted
                    found += [operation] if ahead or len(cast) <= held else []
        return [
            operation
            for operation in found
            if operation.name in rounding
            or operation.invocation_name in self.operations
            or self.spec.target in operation.native_implementation
        ]

    def _keeps_enough(self, operation: ParallelOperation, form: Form) -> bool:
        """Whether an operation's sums have bits enough for what is stored of them."""
        if not operation.accumulator_bits or self.precision in ("tf32", "bf16"):
            return True
        return self.precision == "default" and rounded(form)

    def siblings(self, operation: ParallelOperation) -> list[ParallelOperation]:
        """Those that a tile may use in an operation's place, itself among them."""
        if operation.name not in self._siblings:
            found = siblings(self.spec, operation, self.operations)
            self._siblings[operation.name] = found or [operation]
        return self._siblings[operation.name]

    def families(self, operations: Sequence[ParallelOperation]) -> list[list[ParallelOperation]]:
        """The operations, those that differ in columns alone together."""
        key = tuple(operation.name for operation in operations)
        if key not in self._families:
            found: dict[Family, list[ParallelOperation]] = {}
            for operation in operations:
                found.setdefault(family(operation), []).append(operation)
            self._families[key] = list(found.values())
        return self._families[key]

    def need(self, operation: ParallelOperation, dtype: str) -> Need | None:
        """What an operation asks of a factor of that dtype in memory."""
        key = (operation.name, dtype)
        if key not in self._needs:
            self._needs[key] = needs(self.spec, operation, dtype)
        return self._needs[key]

    def rates(self, op: str, dtype: str) -> list[tuple[str, float]]:
        """(unit, seconds an element) of an elementwise operation on the whole device: of the unit
        of each row that it takes, and of those that issue their instructions, whatever units.
        """
        key = (op, dtype)
        if key not in self._rates:
            rows = self.spec.elementwise(op, dtype)
            found = [(row.name, slots / self.spec.invocations_per_s(row)) for row, slots in rows]
            if self.overlap:
                every = sum(slots for _, slots in rows)
                found.append((ISSUED, every * instruction_seconds(self.spec)))
            self._rates[key] = found
        return self._rates[key]

    def products(self, dtype: str) -> list[tuple[str, float]]:
        """(unit, seconds each) of a multiply-add of a sum of products on the whole device."""
        rates = [(name, s) for name, s in self.rates("fma", dtype) if name != ISSUED]
        return [(name, s / self.spec.operation(name).product_fraction) for name, s in rates]

    def steps(self, op: str, dtype: str) -> int:
        """How many simple operations an operation counts as: one, but for those that are dear."""
        key = (op, dtype)
        if key not in self._steps:
            known = self.spec.has_elementwise(op, dtype) and self.spec.has_elementwise("mul", dtype)
            ways = (self.spec.elementwise_elements_per_s(name, dtype) for name in ("mul", op))
            self._steps[key] = max(int(truediv(*ways)) // SIMPLE, 1) if known else 1
        return self._steps[key]


def power_above(count: Array) -> Array:
    """The least power of two that is no less, at least 1."""
    return np.asarray(2.0 ** np.ceil(np.log2(np.maximum(count, 1.0))))


def _roles(form: Form, term: Term, left: Term, right: Term) -> Contraction:
    a, b, s = form.facts.free(left), form.facts.free(right), term.args[0]
    assert isinstance(s, int)
    return Contraction(term, left, right, a & b & ~s, a & ~b & ~s, b & ~a & ~s, s)
