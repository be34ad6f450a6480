"""A row of the benchmark table: one function over named extents, its peers, its work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from eqsat.bench.vocabulary import GraphVocabulary
from eqsat.graph import Tensor
from eqsat.graph import input as graph_input
from eqsat.nesting import flatten

Sizes = Mapping[str, int]
Function = Callable[..., Any]  # of a vocabulary and arrays of its library

GROUPS = ("gemm", "fused", "rows", "attention", "memory", "cpu", "model")
SCALES = ("full", "small", "tiny")

# What may differ from float64, by the dtype of a result; see `check.error` for the measure.
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}
# The same for products whose float32 factors are rounded, by precision.
ROUNDED = {"tf32": 4e-3, "bf16": 2e-2}


@dataclass(frozen=True)
class Input:
    """An array by the names of its extents: normal(0, 1), or integers from 0 below `below`.

    `scale`: the extent whose inverse square root scales the numbers, as in trained weights. `sign`:
    1 or -1 where all numbers have it.
    """

    axes: str
    dtype: str = "float32"
    scale: str = ""
    below: str = ""
    sign: int = 0

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """The extents of its axes."""
        return tuple(sizes[axis] for axis in self.axes.split())


@dataclass(frozen=True)
class Case:
    """A row.

    `function`: see `vocabulary`. `sizes`: the extents of each scale. `target`: of the specs for
    which the full scale is meant. `work`: what the cheapest known algorithm must do, as unit and
    dtype ("contract bfloat16": multiply-adds, "exp float32": elements) -> products of extents that
    add up. `rows`: the extent along which results are independent of one another. `options`:
    further arguments of `eqsat.compile`.
    """

    name: str
    group: str
    target: str
    function: Function
    inputs: Mapping[str, Input]
    sizes: Mapping[str, Sizes]
    work: Mapping[str, tuple[str, ...]]
    rows: str = ""
    peers: tuple[str, ...] = ("torch", "inductor")
    tolerance: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Instance:
    """A case at given extents, as a graph."""

    case: Case
    sizes: Sizes
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    precision: str = "default"

    @property
    def bytes(self) -> int:
        """Every input read once and every output written once."""
        return sum(x.size * x.dtype.itemsize for x in (*self.inputs, *self.outputs))

    @property
    def work(self) -> dict[str, float]:
        """Amounts by unit and dtype."""
        return {
            unit: sum(_product(term, self.sizes) for term in terms)
            for unit, terms in self.case.work.items()
        }

    @property
    def tolerance(self) -> float:
        """The case's own, or the widest of its outputs' dtypes; 0 where all are exact.

        What the precision lets be rounded is allowed besides.
        """
        own = self.case.tolerance
        if own is None:
            own = max(TOLERANCE.get(output.dtype.name, 0.0) for output in self.outputs)
        return max(own, ROUNDED.get(self.precision, 0.0)) if own else own


def instance(case: Case, sizes: Sizes, precision: str = "default") -> Instance:
    """The graph of a case at the extents."""
    inputs = tuple(
        graph_input(name, one.shape(sizes), one.dtype) for name, one in case.inputs.items()
    )
    outputs = flatten(case.function(GraphVocabulary, *inputs))
    return Instance(case, dict(sizes), inputs, tuple(outputs), precision)


def row_axes(case: Case, whole: Instance, few: Instance) -> list[int | None]:
    """For each output the axis of the case's `rows`; None for one that has no such axis."""
    axes: list[int | None] = []
    for a, b in zip(whole.outputs, few.outputs, strict=True):
        differ = [d for d, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n]
        assert len(differ) <= 1, f"{case.name}: rows {case.rows!r} changes axes {differ}"
        axes.append(differ[0] if differ else None)
    return axes


def input_axis(one: Input, rows: str) -> int | None:
    """The axis of an input that the row extent names."""
    names = one.axes.split()
    return names.index(rows) if rows in names else None


def _product(term: str, sizes: Sizes) -> float:
    return prod(sizes[word] if word in sizes else float(word) for word in term.split())


def described(inputs: Sequence[Tensor]) -> dict[str, str]:
    """Name -> dtype and shape."""
    return {x.attributes["name"]: f"{x.dtype.name}[{', '.join(map(str, x.shape))}]" for x in inputs}
