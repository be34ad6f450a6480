"""How the sample kernels are written, given buffers to run on, and checked."""

from dataclasses import dataclass

import numpy as np

from eqsat.graph import index
from eqsat.graph.dtypes import DType, float32
from eqsat.graph.index import Affine
from eqsat.kernel.ir import (
    Access,
    Axis,
    Buffer,
    Contract,
    Kernel,
    Literal,
    Load,
    Map,
    Phase,
    Reduce,
    Statement,
    Store,
    Update,
)

Tiles = tuple[int, int, int]
TILES: Tiles = (8, 16, 4)


@dataclass(frozen=True)
class Sample:
    """A kernel, its inputs, and the outputs that NumPy computes from them (in float64)."""

    kernel: Kernel
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    tolerance: float = 1e-5


class Body:
    """Statements in order; each method appends one and returns its name."""

    def __init__(self, dtype: DType = float32) -> None:
        self.dtype = dtype
        self.statements: list[Statement] = []

    def add(self, kind: type, name: str, indices: str, *rest: object, **more: object) -> str:
        dtype = more.pop("dtype", self.dtype)
        self.statements.append(kind(name, dtype, tuple(indices.split()), *rest, **more))
        return name

    def load(self, name: str, indices: str, access: Access, **more: object) -> str:
        return self.add(Load, name, indices, access, **more)

    def map(self, name: str, indices: str, op: str, *arguments: str, **more: object) -> str:
        return self.add(Map, name, indices, op, arguments, **more)

    def literal(self, name: str, value: float, **more: object) -> str:
        self.statements.append(Literal(name, more.get("dtype", self.dtype), value))
        return name

    def reduce(self, name: str, indices: str, monoid: str, over: str, argument: str) -> str:
        return self.add(Reduce, name, indices, monoid, tuple(over.split()), argument)

    def contract(
        self, name: str, indices: str, over: str, left: str, right: str, operation: str = ""
    ) -> str:
        return self.add(Contract, name, indices, tuple(over.split()), left, right, operation)

    def update(self, name: str, indices: str, *rest: str) -> str:
        return self.add(Update, name, indices, *rest)

    def phase(self, *stores: Store, stream: tuple[Axis, ...] = (), carries: tuple = ()) -> Phase:
        return Phase(stream, tuple(self.statements), tuple(carries), tuple(stores))


def at(buffer: Buffer, *coordinates: str | Affine, **more: tuple) -> Access:
    """The element of a row-major buffer at some coordinates."""
    address, stride = index.const(0), buffer.size
    for coordinate, extent in zip(coordinates, buffer.shape, strict=True):
        stride //= max(extent, 1)
        part = index.var(coordinate) if isinstance(coordinate, str) else coordinate
        address = index.add(address, index.scale(part, stride))
    return Access(buffer.name, address, **more)


def buffers(dtype: DType = float32, **shapes: tuple[int, ...]) -> tuple[Buffer, ...]:
    """One buffer per keyword; those whose name starts with y are outputs."""
    return tuple(
        Buffer(name, shape, dtype, "output" if name.startswith("y") else "input")
        for name, shape in shapes.items()
    )


def normal(*shapes: tuple[int, ...], dtype: DType = float32) -> list[np.ndarray]:
    """Normal(0, 1) arrays of a dtype, the same on every call."""
    random = np.random.default_rng(7)
    return [np.asarray(random.standard_normal(shape)).astype(dtype.numpy) for shape in shapes]


def wide(array: np.ndarray) -> np.ndarray:
    """In float64."""
    return array.astype(np.float64)


def softmax(x: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def erf(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf as scipy_erf  # imported here: 0.1 s

    return scipy_erf(x)


def arrays(sample: Sample, guard: int = 0) -> dict[str, np.ndarray]:
    """Buffers by name: the inputs, and outputs filled with NaN (integers: with -77).

    With a `guard`, each is flat and lies that many elements inside a larger array of such filling.
    """
    result = {}
    for buffer in sample.kernel.buffers:
        filling = np.nan if buffer.dtype.kind == "float" else -77
        memory = np.full(buffer.size + 2 * guard, filling).astype(buffer.dtype.numpy)
        array = memory[guard : guard + buffer.size]
        if buffer.role == "input":
            array[:] = sample.inputs[buffer.name].ravel()
        elif buffer.role == "zeroed":
            array[:] = 0
        result[buffer.name] = array if guard else array.reshape(buffer.shape)
    return result


def check(sample: Sample, found: dict[str, np.ndarray]) -> None:
    """Assert that the outputs are the expected ones, NaN where NaN is expected."""
    for name, expected in sample.expected.items():
        assert_close(found[name].reshape(expected.shape), expected, sample.tolerance)


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Equal for integers; else within `tolerance` of each value, or of 1 for smaller ones."""
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected)
        return
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(wide(found), expected, rtol=tolerance, atol=tolerance)
