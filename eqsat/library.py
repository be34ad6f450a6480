"""Library calls: operations on whole rows that a library of the target does, named and priced by
the spec.

A call is a launch of a program beside its kernels: what it reads lies in memory before, what it
gives lies there after, and nothing is fused with it. Four ways of ordering rows are known, by the
function that an operation of the spec `implements`:

- `compare_sort`, `compare_argsort`: one invocation for each element and each halving of a row.
- `select`: one invocation for each element, and `select_kept` for each of those that are asked for
  times the root of their number.
- `select_parts`: the same of rows that are taken in parts of at most PART elements, and of what the
  parts give; as if at least FEW were asked for, and at most MOST.
- `radix_sort`: one invocation for each byte moved, by passes over the bits of integer keys, and
  `radix_element` for each element in a pass; each pass waits for the one before.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2, prod

from eqsat.errors import SpecError, UnsupportedError
from eqsat.graph.build import with_operands
from eqsat.graph.dtypes import DType, as_dtype
from eqsat.graph.evaluate import topological
from eqsat.graph.ops import LIBRARY
from eqsat.graph.selection import one_by_one
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Buffer
from eqsat.specs import ParallelOperation, ParallelProcessingUnit

KEY_BITS = (16, 32, 64)  # of integers that are sorted
RADIX_BITS = 8  # that a pass settles
PLACE_BYTES = 8  # of a position that is sorted beside a key
PART = 1 << 15  # elements, that one group of threads takes of a row
FEW, MOST = 16, 256  # elements that it gives
ROUNDS = 8  # of elements that kernels find one after the other, where no operation finds them
LONGEST = 1 << 31  # of rows whose positions a group counts


@dataclass(frozen=True)
class LibraryCall:
    """One launch of a library's function over rows, the last axis of its first buffer.

    `function`: sort or argsort. `method`: how the operation of the spec orders rows. `invocation`:
    the name by which the target knows what to call. `buffers`: what is read, what is written (of
    argsort the first positions of each row), and keys, where integers are sorted in their place.
    """

    name: str
    function: str
    method: str
    descending: bool
    buffers: tuple[Buffer, ...]
    operation: str
    invocation: str
    spec: str = ""

    @property
    def rules(self) -> tuple[str, ...]:
        """No rewrite leads to a call."""
        return ()

    @property
    def fingerprint(self) -> str:
        """sha256 over everything that running it depends on."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    @property
    def length(self) -> int:
        """Elements of a row."""
        return self.buffers[0].shape[-1]

    @property
    def count(self) -> int:
        """Elements of a row that are asked for."""
        return self.buffers[1].shape[-1]

    @property
    def rows(self) -> int:
        """How many rows."""
        return prod(self.buffers[0].shape[:-1])

    @property
    def parts(self) -> int:
        """How many parts a row is taken in."""
        return -(-self.length // PART) if self.method == "select_parts" else 1

    @property
    def key_bytes(self) -> int:
        """Bytes that hold an element and its position beside others of a row."""
        return 8 if self.buffers[0].dtype.itemsize <= 4 else 16

    @property
    def packed(self) -> bool:
        """Whether a key holds the row, the element and its position, so that one sort does all."""
        source = self.buffers[0]
        return bool(key_bits(source.dtype, source.shape, self.function == "argsort"))

    def show(self) -> str:
        """The printed form, as explain, tests and people read it."""
        buffers = ", ".join(f"{b.name}: {b.dtype.name}{list(b.shape)}" for b in self.buffers)
        order = "descending" if self.descending else "ascending"
        first = f", the first {self.count}" if self.count < self.length else ""
        keys = f" of keys in {self.buffers[2].name}" if len(self.buffers) > 2 else ""
        return (
            f"call {self.name}({buffers})\n"
            f"  {self.buffers[1].name} = {self.function} {self.buffers[0].name} along its rows, "
            f"{order}{first}\n"
            f"  by {self.operation} ({self.method}{keys})   spec {self.spec}"
        )


@dataclass(frozen=True)
class PricedCall:
    """A call with its predicted seconds and the largest part of them, as a kernel has them."""

    kernel: LibraryCall
    seconds: float
    bottleneck: str
    followers: int = 0
    alternatives: tuple[()] = ()
    drawn: bool = False
    share: float = 1.0

    @property
    def per_run(self) -> float:
        """The seconds that it adds to each run."""
        return self.seconds


def key_bits(dtype: DType, shape: tuple[int, ...], places: bool) -> int:
    """The width of keys that order rows of elements, with their positions; 0 where 64 are too few.

    A key has the number of the row above, the element's own bits, and its position below.
    """
    rows, length = prod(shape[:-1]), shape[-1]
    bits = 8 * dtype.itemsize + (rows - 1).bit_length()
    bits += (length - 1).bit_length() if places else 0
    return next((width for width in KEY_BITS if bits <= width), 0)


def library_call(
    name: str,
    tensor: Tensor,
    buffers: tuple[str, str],
    spec: ParallelProcessingUnit,
    invocations: frozenset[str],
) -> PricedCall:
    """The cheapest call for a sort or argsort from one buffer to another.

    `invocations`: what the target can call.

    UnsupportedError where no operation of the spec serves.
    """
    (source,) = tensor.operands
    given, made = (
        Buffer(buffer, one.shape, one.dtype, role)
        for buffer, one, role in zip(buffers, (source, tensor), ("input", "output"), strict=True)
    )
    found: list[PricedCall] = []
    for row, method in _ways(tensor, spec, invocations):
        call = LibraryCall(
            name, tensor.op, method, bool(tensor.attributes["descending"]),
            (given, made), row.name, row.invocation_name, spec.name,
        )  # fmt: skip
        call = replace(call, buffers=(given, made, *_keys(call)))
        parts = _parts(call, row, spec)
        most = max(parts, key=lambda part: parts[part])
        found.append(PricedCall(call, sum(parts.values()), most))
    if not found:
        raise UnsupportedError(
            f"{tensor.op} of {source}: no operation of spec {spec.name} that its target "
            f"{spec.target!r} can call orders rows of {source.dtype.name}. Add one that implements "
            f"compare_{tensor.op} or radix_sort to the spec, or select for a few elements of each "
            f"row, as those of specs/cpu.toml."
        )
    return min(found, key=lambda one: one.seconds)


def served(
    outputs: Sequence[Tensor], spec: ParallelProcessingUnit, invocations: frozenset[str]
) -> list[Tensor]:
    """The outputs; a few positions that no operation of the spec finds one after the other."""
    done: dict[Tensor, Tensor] = {}
    for tensor in topological(outputs):
        operands = tuple(done[operand] for operand in tensor.operands)
        done[tensor] = with_operands(tensor, operands)
        count = tensor.attributes.get("count", MOST)
        if tensor.op == "argsort" and count <= ROUNDS and not _ways(tensor, spec, invocations):
            largest = bool(tensor.attributes["descending"])
            _, done[tensor] = one_by_one(*operands, count, tensor.ndim - 1, largest)
    return [done[output] for output in outputs]


def check_call(call: LibraryCall, tensor: Tensor, spec: ParallelProcessingUnit) -> None:
    """Raise SpecError unless the call computes the tensor, by an operation that the spec has."""
    again = library_call(
        call.name,
        tensor,
        (call.buffers[0].name, call.buffers[1].name),
        spec,
        frozenset({call.invocation}),
    ).kernel
    if again != call:
        raise SpecError(f"{call.show()}\nis not what spec {spec.name} has for it: {again.show()}")


def is_call(tensor: Tensor) -> bool:
    """Whether a library computes a tensor."""
    return tensor.op in LIBRARY


def _ways(
    tensor: Tensor, spec: ParallelProcessingUnit, invocations: frozenset[str]
) -> list[tuple[ParallelOperation, str]]:
    """The operations of a spec that order the rows of a tensor's operand, and how."""
    dtype = tensor.operands[0].dtype.name
    rows = (row for row in spec.operations if row.invocation_name in invocations)
    return [(r, method) for r in rows if r.supports({"a": dtype}) for method in _methods(r, tensor)]


def _methods(row: ParallelOperation, tensor: Tensor) -> Iterator[str]:
    if "radix_sort" in row.implements:
        yield "radix"
    if f"compare_{tensor.op}" in row.implements:
        yield "compare"
    length = tensor.operands[0].shape[-1]
    count = tensor.attributes.get("count", length)
    if "select" in row.implements and count < length:
        yield "select"
    if "select_parts" in row.implements and count < length < LONGEST and count <= MOST:
        yield "select_parts"


def _keys(call: LibraryCall) -> tuple[Buffer, ...]:
    """Integers that are ordered in place of elements: as wide as keys must be, the elements' own
    order in 64 bits where they are packed in nothing; what parts of rows give.
    """
    source = call.buffers[0]
    shape, bits = source.shape, 64
    if call.method == "select_parts" and call.parts > 1:
        shape = (call.rows, call.parts * call.count * (call.key_bytes // 8))
    elif call.method == "radix":
        bits = key_bits(source.dtype, source.shape, call.function == "argsort") or bits
    else:
        return ()
    return (Buffer(f"{call.buffers[1].name}_keys", shape, as_dtype(f"int{bits}"), "temporary"),)


def _parts(
    call: LibraryCall, row: ParallelOperation, spec: ParallelProcessingUnit
) -> dict[str, float]:
    """Seconds: the call itself, the ordering, and what is read and written besides."""
    source, made, *keys = call.buffers
    moved = source.bytes + made.bytes + 2 * sum(one.bytes for one in keys)
    memory = next(one for one in spec.memory_domains if one.managed == "hardware")
    turns = _passes(call) if call.method == "radix" else 1
    return {
        "call": turns * row.latency_cycles / spec.cycles_per_s,
        row.name: _invocations(call, row) / spec.invocations_per_s(row),
        memory.name: moved / (memory.sustained_gb_per_s * 1e9),
    }


def _invocations(call: LibraryCall, row: ParallelOperation) -> float:
    size = call.buffers[0].size
    if call.method == "radix":
        bytes_moved = 2 * (call.buffers[2].dtype.itemsize + (0 if call.packed else PLACE_BYTES))
        slots = row.implements["radix_sort"] * bytes_moved
        return size * _passes(call) * (slots + row.implements.get("radix_element", 0.0))
    if call.method in ("select", "select_parts"):
        least = FEW if call.method == "select_parts" else 1
        groups = call.rows * (call.parts + (call.parts > 1))
        kept = groups * max(call.count, least) ** 1.5
        size += sum(one.size for one in call.buffers[2:])
        return row.implements[call.method] * size + row.implements.get("select_kept", 0.0) * kept
    return row.implements[f"compare_{call.function}"] * size * log2(call.length)


def _passes(call: LibraryCall) -> int:
    """Passes of a radix sort; keys too wide to hold rows and positions are sorted with positions
    beside them, and those again by their rows."""
    each = 8 * call.buffers[2].dtype.itemsize // RADIX_BITS
    return each if call.packed or call.rows == 1 else 2 * each
