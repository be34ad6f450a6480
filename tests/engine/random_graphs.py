"""Random tensor graphs with data, and a bound on what rounding may do to each output.

Each value carries its largest magnitude and the error that any order of rounding may reach, so
that a wrong result cannot hide behind a tolerance. Steps that jump (comparisons, argmax, casts to
integers) are taken on exact values alone: small multiples of a power of two.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, prod

import numpy as np
from hypothesis import strategies as st

import eqsat.graph as g
from eqsat.graph.dtypes import BY_NAME
from eqsat.graph.tensor import Tensor

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
FLOATS = tuple(EPSILON)
MOST = 2000.0  # the largest magnitude of a float; float16 ends at 65504
Draw = Callable[[st.SearchStrategy], object]


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: |values| <= bound, |error| <= error; multiples of `granule` if > 0."""

    tensor: Tensor
    bound: float = 0.0
    error: float = 0.0
    granule: float = 0.0

    @property
    def is_float(self) -> bool:
        return self.tensor.dtype.kind == "float"

    @property
    def is_exact(self) -> bool:
        """Whether the values are the same however they are computed."""
        if not self.is_float:
            return True
        room = 1 / EPSILON[self.tensor.dtype.name]
        return self.granule > 0 and self.bound / self.granule <= room


@dataclass(frozen=True)
class Graph:
    """Outputs with the error allowed to each, and the inputs' arrays."""

    outputs: tuple[Value, ...]
    arrays: dict[str, np.ndarray]

    def __repr__(self) -> str:
        return "\n" + g.describe([o.tensor for o in self.outputs])


@dataclass
class Builder:
    """Draws one step after the other; `pool` holds every value so far."""

    draw: Draw
    rng: np.random.Generator
    pool: list[Value] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))  # type: ignore[return-value]

    def one_of(self, *choices: object) -> object:
        return choices[self.number(0, len(choices) - 1)]

    def value(self) -> Value:
        """A value of the pool, a late one more often."""
        return self.pool[len(self.pool) - 1 - self.number(0, len(self.pool) - 1)]

    # -- sources ---------------------------------------------------------------------------------

    def source(self, shape: tuple[int, ...], dtype: str) -> Value:
        """An input or a constant of that shape."""
        kind, numpy = BY_NAME[dtype].kind, BY_NAME[dtype].numpy
        if kind == "float":
            data = (self.rng.integers(-4, 5, shape) / 2).astype(numpy)
        elif kind == "bool":
            data = self.rng.random(shape) < 0.5
        else:
            least = 0 if kind == "uint" else -9
            data = self.rng.integers(least, 10, shape).astype(numpy)
        if self.number(0, 4) == 0:
            tensor = g.constant(data)
        else:
            name = f"in_{len(self.arrays)}"
            self.arrays[name] = data
            tensor = g.input(name, shape, dtype)
        return Value(tensor, 2.0 if kind == "float" else 9.0, 0.0, 0.5)

    def partner(self, x: Value) -> Value:
        """A value that x may be combined with by broadcasting, of the same dtype."""
        dtype, shape = x.tensor.dtype, x.tensor.shape
        found = [
            v
            for v in self.pool
            if v.tensor.dtype == dtype and _broadcast(v.tensor.shape, shape) is not None
        ]
        choice = self.number(0, len(found) + 1)
        if choice < len(found):
            return found[choice]
        own = tuple(n if self.number(0, 3) else 1 for n in shape[self.number(0, len(shape)) :])
        return self.source(own, dtype.name)

    # -- steps -----------------------------------------------------------------------------------

    def unary(self) -> Value:
        x = self.value()
        if x.tensor.dtype.kind == "bool":
            return Value(~x.tensor)
        if not x.is_float:
            function = self.one_of(g.abs, g.negative, g.square, lambda t: t // 3, lambda t: t % 5)
            return Value(function(x.tensor))  # type: ignore[operator]
        t, b, e, step = x.tensor, x.bound, x.error, EPSILON[x.tensor.dtype.name]
        which = self.number(0, 8)
        if which == 0:
            return Value(-t, b, e, x.granule)
        if which == 1:
            return Value(g.abs(t), b, e, x.granule)
        if which == 2 and b * b <= MOST:
            return self.rounded(g.square(t), b * b, 2 * b * e, x.granule**2)
        if which == 3 and b <= 3:
            return self.rounded(g.exp(t), exp(b), exp(b + e) * e)
        if which == 4:
            return self.rounded(g.sqrt(g.abs(t) + 0.5), (b + 0.5) ** 0.5, e + b * step)
        if which == 5:
            return self.rounded(g.gelu(t), b, 1.2 * e + 4 * b * step)
        if which == 6:
            return self.rounded(g.log(g.abs(t) + 1.0), b, e + (b + 1) * step)
        return self.rounded(g.tanh(t), 1.0, e)

    def rounded(self, t: Tensor, bound: float, error: float, granule: float = 0.0) -> Value:
        """A float result: rounded once more than its operands, a few units in the last place."""
        step = EPSILON[t.dtype.name]
        exact = granule > 0 and bound / granule <= 1 / step and error == 0
        return Value(t, bound, 0.0 if exact else error + 4 * step * (bound + 1e-3), granule)

    def binary(self) -> Value:
        x = self.value()
        y = self.partner(x)
        a, b = x.tensor, y.tensor
        if a.dtype.kind == "bool":
            return Value(self.one_of(g.logical_and, g.logical_or, g.equal)(a, b))  # type: ignore[operator]
        if not x.is_float:
            function = self.one_of(g.add, g.subtract, g.multiply, g.maximum, g.minimum)
            return Value(function(a, b))  # type: ignore[operator]
        granule = min(x.granule, y.granule)
        match self.number(0, 6):
            case 0:
                return self.rounded(a - b, x.bound + y.bound, x.error + y.error, granule)
            case 1 | 2 if x.bound * y.bound <= MOST:
                error = x.bound * y.error + (y.bound + y.error) * x.error
                return self.rounded(a * b, x.bound * y.bound, error, x.granule * y.granule)
            case 3:
                return Value(g.maximum(a, b), max(x.bound, y.bound), max(x.error, y.error), granule)
            case 4:
                error = x.error + x.bound * (y.error + EPSILON[a.dtype.name] * (y.bound + 1))
                return self.rounded(a / (g.abs(b) + 1.0), x.bound, error)
            case _:
                return self.rounded(a + b, x.bound + y.bound, x.error + y.error, granule)

    def compare(self) -> Value:
        x = self.value()
        y = self.partner(x)
        if not (x.is_exact and y.is_exact) or x.tensor.dtype.kind == "bool":
            return self.binary()
        function = self.one_of(g.less, g.equal, g.greater_equal, g.not_equal)
        return Value(function(x.tensor, y.tensor))  # type: ignore[operator]

    def select(self) -> Value:
        x = self.value()
        y = self.partner(x)
        shape = _broadcast(x.tensor.shape, y.tensor.shape)
        assert shape is not None
        conditions = [
            v.tensor
            for v in self.pool
            if v.tensor.dtype.kind == "bool" and _broadcast(v.tensor.shape, shape) is not None
        ]
        if conditions and self.number(0, 1):
            condition = conditions[self.number(0, len(conditions) - 1)]
        else:
            axis = self.number(0, max(len(shape) - 1, 0))
            condition = g.iota(shape, axis) >= 1 if shape else g.constant(True)
        return Value(
            g.where(condition, x.tensor, y.tensor),
            max(x.bound, y.bound),
            max(x.error, y.error),
            min(x.granule, y.granule),
        )

    def reduce(self) -> Value:
        x = self.value()
        t = x.tensor
        if not t.ndim:
            return self.unary()
        axes = tuple(d for d in range(t.ndim) if self.number(0, 1)) or (t.ndim - 1,)
        keep = bool(self.number(0, 1))
        n = prod(t.shape[d] for d in axes)
        if t.dtype.kind == "bool":
            return Value(self.one_of(g.any, g.all, g.sum)(t, axes, keepdims=keep))  # type: ignore[operator]
        which = self.number(0, 5)
        if which == 0:
            return Value(g.max(t, axes, keepdims=keep), x.bound, x.error, x.granule)
        if which == 1:
            return Value(g.min(t, axes, keepdims=keep), x.bound, x.error, x.granule)
        if which == 2 and x.is_exact:
            return Value(self.one_of(g.argmax, g.argmin)(t, axes[0], keepdims=keep))  # type: ignore[operator]
        if not x.is_float:
            return Value(self.one_of(g.sum, g.prod)(t, axes, keepdims=keep))  # type: ignore[operator]
        error = n * (x.error + n * EPSILON[t.dtype.name] * x.bound)
        if which == 3 or n * x.bound > MOST:
            return self.rounded(g.mean(t, axes, keepdims=keep), x.bound, error)
        return self.rounded(
            g.sum(t, axes, keepdims=keep), n * x.bound, 0.0 if x.is_exact else error, x.granule
        )

    def normalise(self) -> Value:
        x = self.value()
        t = x.tensor
        if not x.is_float or not t.ndim:
            return self.unary()
        axis = self.number(0, t.ndim - 1)
        n, step = t.shape[axis], EPSILON[t.dtype.name]
        spread = 4 * n * (x.error + step * (x.bound + 1))
        match self.number(0, 2):
            case 0:
                return self.rounded(g.softmax(t, axis), 1.0, spread)
            case 1:
                return self.rounded(g.logsumexp(t, axis), x.bound + 3, spread)
            case _:  # epsilon of 1: the derivative stays small
                return self.rounded(
                    g.layer_norm(t, axis=axis, epsilon=1.0), x.bound, 4 * (x.bound + 1) * spread
                )

    def scan(self) -> Value:
        x = self.value()
        t = x.tensor
        if not t.ndim or t.dtype.kind == "bool":
            return self.unary()
        axis = self.number(0, t.ndim - 1)
        n = t.shape[axis]
        if x.is_float and n * x.bound > MOST:
            return self.unary()
        sums = g.cumulative_sum(t, axis)
        if not x.is_float:
            return Value(sums)
        error = n * (x.error + n * EPSILON[t.dtype.name] * x.bound)
        return self.rounded(sums, n * x.bound, 0.0 if x.is_exact else error, x.granule)

    def matmul(self) -> Value:
        x = self.value()
        t = x.tensor
        if not t.ndim or t.dtype.kind == "bool":
            return self.unary()
        k = t.shape[-1]
        fitting = [
            v
            for v in self.pool
            if v.tensor.dtype == t.dtype
            and v.tensor.ndim in (1, 2)
            and v.tensor.shape[0] == k
            and v.tensor is not t
        ]
        if fitting and self.number(0, 1):
            y = fitting[self.number(0, len(fitting) - 1)]
        elif t.ndim == 2 and self.number(0, 3) == 0:
            y = Value(t.T, x.bound, x.error, x.granule)
        else:
            y = self.source((k, self.number(1, 4)), t.dtype.name)
        if not x.is_float:
            return Value(t @ y.tensor)
        if k * x.bound * y.bound > MOST:
            return self.unary()
        error = k * (x.bound * y.error + (y.bound + y.error) * x.error)
        if not (x.is_exact and y.is_exact):
            error += k * k * EPSILON[t.dtype.name] * x.bound * y.bound
        return self.rounded(t @ y.tensor, k * x.bound * y.bound, error, x.granule * y.granule)

    def move(self) -> Value:
        x = self.value()
        t = x.tensor
        moved = self.moved(t)
        if moved.size > 400 or moved.size == 0 or moved.ndim > 4:
            return x
        return Value(moved, max(x.bound, 1.0), x.error, x.granule)

    def moved(self, t: Tensor) -> Tensor:
        if not t.ndim:
            return g.broadcast_to(t, (self.number(1, 3), 2))
        axis = self.number(0, t.ndim - 1)
        n = t.shape[axis]
        match self.number(0, 9):
            case 0:
                return g.permute_dims(t, tuple(self.rng.permutation(t.ndim).tolist()))
            case 1:
                return g.flip(t, axis=axis)
            case 2:
                start, step = self.number(0, n - 1), self.one_of(1, 2, -1)
                key = [slice(None)] * t.ndim
                key[axis] = slice(start, None, step)  # type: ignore[arg-type]
                return t[tuple(key)]
            case 3:
                widths = [(self.number(0, 1), self.number(0, 2)) for _ in t.shape]
                return g.pad(t, widths, value=1 if t.dtype.kind != "bool" else True)
            case 4:
                return g.reshape(t, (t.size,)) if self.number(0, 1) else self.split(t, axis)
            case 5:
                return g.roll(t, self.number(-1, 2), axis=axis)
            case 6:
                key = [slice(None)] * t.ndim
                key[axis] = slice(self.number(0, n - 1), None)
                other = t[tuple(key)]
                return g.concat([t, other], axis)
            case 7:
                return g.expand_dims(t, axis)
            case 8:
                return g.stack([t, g.flip(t, axis=axis)], axis)
            case _:
                length = self.number(1, 3)
                name = f"in_{len(self.arrays)}"
                self.arrays[name] = self.rng.integers(-n, n, length)
                return g.take(t, g.input(name, (length,), "int64"), axis=axis)

    def split(self, t: Tensor, axis: int) -> Tensor:
        n = t.shape[axis]
        factors = [f for f in range(1, n + 1) if n % f == 0]
        f = factors[self.number(0, len(factors) - 1)]
        return g.reshape(t, (*t.shape[:axis], f, n // f, *t.shape[axis + 1 :]))

    def cast(self) -> Value:
        x = self.value()
        t = x.tensor
        if x.is_float:
            if x.is_exact and x.bound <= 100 and self.number(0, 1):
                return Value(g.astype(t, self.one_of("int8", "int32", "int64")))  # type: ignore[arg-type]
            dtype = str(self.one_of("float32", "float32", "float64", "float16", "bfloat16"))
            wide = Value(g.astype(t, dtype), x.bound, x.error, x.granule)
            return wide if wide.is_exact else self.rounded(wide.tensor, x.bound, x.error)
        if t.dtype.kind != "bool":
            t = t % 7
        return Value(g.astype(t, "float32"), 7.0, 0.0, 1.0)

    def step(self) -> None:
        steps = (
            self.unary, self.binary, self.binary, self.compare, self.select, self.reduce,
            self.reduce, self.normalise, self.scan, self.matmul, self.matmul, self.move,
            self.move, self.move, self.cast,
        )  # fmt: skip
        self.pool.append(steps[self.number(0, len(steps) - 1)]())


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


@st.composite
def graphs(draw: Draw, most_steps: int = 12) -> Graph:
    """A graph of up to `most_steps` steps over two or three sources."""
    seed = draw(st.integers(0, 2**16))
    builder = Builder(draw, np.random.default_rng(seed))  # type: ignore[arg-type]
    dtype = str(builder.one_of(*["float32"] * 5, "float64", "float16", "bfloat16", "int32", "int8"))
    for _ in range(builder.number(1, 3)):
        shape = tuple(builder.number(1, 5) for _ in range(builder.number(0, 3)))
        builder.pool.append(builder.source(shape, dtype))
    for _ in range(builder.number(1, most_steps)):
        builder.step()
    outputs = [builder.pool[-1]]
    for _ in range(builder.number(0, 2)):
        outputs.append(builder.value())
    used = g.evaluate.__globals__["input_nodes"]([o.tensor for o in outputs])
    arrays = {name: array for name, array in builder.arrays.items() if name in used}
    return Graph(tuple(outputs), arrays)
