"""The derivative of every primitive: one row each, a vector-Jacobian product for each operand.

A row gives, from the cotangent of the node (the derivative of the loss by its elements), what
each operand gets. None says that the derivative by that operand is 0 wherever it exists, or that
the operand is no real number. Cotangents have the dtype in which the operand is computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import log, pi, prod
from math import sqrt as square_root

from eqsat.graph.build import build, cast, is_number, view
from eqsat.graph.dtypes import neutral
from eqsat.graph.elementwise import (
    cos,
    cosh,
    equal,
    exp,
    floor_divide,
    logical_and,
    pow,
    rsqrt,
    sign,
    sin,
    sinh,
    square,
    where,
)
from eqsat.graph.elementwise import log as logarithm
from eqsat.graph.gradient_views import gathered, scatter, spread, sum_axes
from eqsat.graph.index import add, const, floordiv, mod, scale, sub, var
from eqsat.graph.manipulation import flip, permute_dims, reshape
from eqsat.graph.ordered import along_rows, ordered
from eqsat.graph.tensor import Tensor

MOST_LARGER = 4  # times its factors' elements, below which what they leave is stored


@dataclass(frozen=True)
class Step:
    """One step back: a node, its cotangent g, and the values of the forward pass.

    x are the operands and y is the result, floats below 32 bits widened to float32, as g is.
    """

    node: Tensor
    g: Tensor
    y: Tensor
    x: tuple[Tensor, ...]

    @property
    def a(self) -> Tensor:
        return self.x[0]

    @property
    def b(self) -> Tensor:
        return self.x[1]

    @cached_property
    def states(self) -> Tensor:
        """The cotangent of each state h_t = a_t * h_(t-1) + b_t of an affine scan, all that it
        leads to included: d_t = g_t + a_(t+1) * d_(t+1), a scan from the end.
        """
        axis = self.node.attributes["axis"]
        scanned = (_later(flip(self.a, axis), axis), flip(self.g, axis))
        return flip(build("scan_affine", scanned, {"axis": axis}), axis)


Product = Callable[[Step], Tensor]


def _pass(s: Step) -> Tensor:
    return s.g


def _negate(s: Step) -> Tensor:
    return -s.g


def _exp(s: Step) -> Tensor:
    """g * y; 0 where g is 0 and y overflowed, as in 1 / (1 + exp(-x)) far below 0."""
    lost = logical_and(equal(s.g, 0.0), equal(s.y, float("inf")))
    return where(lost, 0.0, s.g * s.y)


def _pow_base(s: Step) -> Tensor:
    """b * a**(b - 1); 0 where b is 0, also at a = 0."""
    exponent = where(equal(s.b, 0.0), 1.0, s.b)
    return s.g * (s.b * pow(s.a, exponent - 1.0))


def _pow_exponent(s: Step) -> Tensor:
    """y * log(a); 0 at a = 0, where 0**b is 0 on the side where it is defined."""
    return s.g * (s.y * logarithm(where(equal(s.a, 0.0), 1.0, s.a)))


def _larger(this: Tensor, other: Tensor, g: Tensor) -> Tensor:
    """g where this > other, half of it where they are equal."""
    return where(this > other, g, where(equal(this, other), g * 0.5, 0.0))


def _by_circle(s: Step) -> Tensor:
    return s.g / (square(s.a) + square(s.b))


def _rational(s: Step) -> Tensor:
    """g / sqrt(1 - a²), written so that it is accurate near 1."""
    return s.g * rsqrt((1.0 - s.a) * (1.0 + s.a))


def _cast(s: Step) -> Tensor:
    """Rounded as the value was, where that was a result of 16 bits: what products of the gradient
    read then is no wider than what those of the value do. What is much larger than its factors,
    as the scores of attention, no kernel should store: its gradient stays in float32.
    """
    source, dtype = s.node.operands[0], s.node.dtype
    rounds = dtype.kind == "float" and dtype.itemsize == 2 and source.dtype == dtype.compute
    if rounds and source.size < MOST_LARGER * _factor_sizes(source):
        return cast(cast(s.g, dtype), source.dtype)
    return cast(s.g, source.dtype.compute)


def _factor_sizes(x: Tensor) -> int:
    """Elements of what is multiplied and summed for a value; 0 where that is made otherwise."""
    found: set[Tensor] = set()
    stack = [*x.operands] if x.op == "reduce_sum" else []
    while stack:
        one = stack.pop()
        if one.op in {"view", "cast", "mul"}:
            stack += one.operands
        else:
            found.add(one)
    return sum(one.size for one in found)


# --- reductions, scans ----------------------------------------------------------------------------


def _sum(s: Step) -> Tensor:
    return spread(s.g, s.node.attributes["axes"], s.a.shape)


def _extremum(s: Step) -> Tensor:
    """g, shared equally among the positions that hold the extremum."""
    axes, shape = s.node.attributes["axes"], s.a.shape
    found = spread(s.y, axes, shape)
    hit = equal(s.a, found)
    least = neutral(s.node.op.removeprefix("reduce_"), s.a.dtype)
    if s.a.op == "where" and is_number(s.a.operands[2], least):
        chosen, value, _ = s.a.operands  # no gradient is of what is in place of others
        hit = logical_and(chosen, equal(value, found))
    count = sum_axes(cast(hit, s.g.dtype), axes)
    return where(hit, spread(s.g / count, axes, shape), 0.0)


def _product(s: Step) -> Tensor:
    """g times the product of the others, right with any number of zeros.

    The products of 2, 4, ... neighbours go up a tree; down it, each node gets the product of what
    lies outside it: that of its parent times its sibling.
    """
    axes: tuple[int, ...] = s.node.attributes["axes"]
    shape = s.a.shape
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    n = prod(shape[axis] for axis in axes)
    outer = tuple(shape[axis] for axis in kept)
    lines = reshape(permute_dims(s.a, (*kept, *axes)), (*outer, n))
    *before, at = (var(f"i{axis}") for axis in range(len(kept) + 1))
    levels = [view(lines, (*outer, 1 << max(n - 1, 0).bit_length()), [*before, at], fill=1)]
    while levels[-1].shape[-1] > 1:
        below = levels[-1]
        size = (*outer, below.shape[-1] // 2)
        left = view(below, size, [*before, scale(at, 2)])
        levels.append(left * view(below, size, [*before, add(scale(at, 2), const(1))]))
    outside = view(s.g, levels[-1].shape, before)
    for level in reversed(levels[:-1]):
        parent = view(outside, level.shape, [*before, floordiv(at, 2)])
        other = sub(add(at, const(1)), scale(mod(at, 2), 2))
        outside = parent * view(level, level.shape, [*before, other])
    outside = view(outside, lines.shape, [*before, at])
    back = sorted(range(len(shape)), key=lambda place: (*kept, *axes)[place])
    return permute_dims(reshape(outside, tuple(shape[d] for d in (*kept, *axes))), back)


def _scan(s: Step) -> Tensor:
    """The sums of g from the end."""
    axis = s.node.attributes["axis"]
    return flip(build("scan_sum", (flip(s.g, axis),), {"axis": axis}), axis)


def _affine_factor(s: Step) -> Tensor:
    """The state before each step, times that step's cotangent."""
    return s.states * _later(s.y, s.node.attributes["axis"])


def _later(x: Tensor, axis: int) -> Tensor:
    """x moved on by one along an axis, 0 in front."""
    at = [var(f"i{d}") for d in range(x.ndim)]
    at[axis] = sub(at[axis], const(1))
    return view(x, x.shape, at, fill=0)


def _sort(s: Step) -> Tensor:
    """g, each element back where it came from: read in the order that sorts the positions."""
    places = ordered(s.a, s.node.attributes["descending"], s.a.shape[-1])
    return along_rows(s.g, ordered(places, False, s.a.shape[-1]))


def _view(s: Step) -> Tensor:
    return scatter(s.g, s.node.attributes["coordinates"], s.a.shape)


# --- the table ------------------------------------------------------------------------------------

_SOURCES: dict[str, tuple[Product | None, ...]] = {"input": (), "constant": (), "iota": ()}

_UNARY: dict[str, Product | None] = {
    "neg": _negate,
    "abs": lambda s: s.g * sign(s.a),  # 0 at 0
    "square": lambda s: s.g * (s.a * 2.0),
    "exp": _exp,
    "expm1": lambda s: s.g * (s.y + 1.0),
    "log": lambda s: s.g / s.a,
    "log1p": lambda s: s.g / (s.a + 1.0),
    "log2": lambda s: s.g / (s.a * log(2.0)),
    "sqrt": lambda s: s.g / (s.y * 2.0),  # infinite at 0, as the derivative is
    "rsqrt": lambda s: s.g * (s.y * square(s.y) * -0.5),
    "sin": lambda s: s.g * cos(s.a),
    "cos": lambda s: -(s.g * sin(s.a)),
    "tan": lambda s: s.g * (square(s.y) + 1.0),
    "sinh": lambda s: s.g * cosh(s.a),
    "cosh": lambda s: s.g * sinh(s.a),
    "tanh": lambda s: s.g * (1.0 - square(s.y)),
    "asin": _rational,
    "acos": lambda s: -_rational(s),
    "atan": lambda s: s.g / (square(s.a) + 1.0),
    "erf": lambda s: s.g * (exp(-square(s.a)) * (2 / square_root(pi))),
    "reciprocal": lambda s: -((s.g * s.y) * s.y),  # whose square may be too small to hold
    "cast": _cast,
    # Constant between jumps.
    "sign": None,
    "floor": None,
    "ceil": None,
    "trunc": None,
    "round": None,
    # Of or to integers and truth values.
    "logical_not": None,
    "bitwise_invert": None,
    "isnan": None,
    "isfinite": None,
    "isinf": None,
}

_NO_PAIR = (None, None)

_BINARY: dict[str, tuple[Product | None, ...]] = {
    "add": (_pass, _pass),
    "sub": (_pass, _negate),
    "mul": (lambda s: s.g * s.b, lambda s: s.g * s.a),
    "div": (lambda s: s.g / s.b, lambda s: -(s.g * s.y / s.b)),
    "pow": (_pow_base, _pow_exponent),
    # a - b * floor(a / b)
    "remainder": (_pass, lambda s: -(s.g * floor_divide(s.a, s.b))),
    "maximum": (lambda s: _larger(s.a, s.b, s.g), lambda s: _larger(s.b, s.a, s.g)),
    "minimum": (lambda s: _larger(s.b, s.a, s.g), lambda s: _larger(s.a, s.b, s.g)),
    "atan2": (lambda s: s.b * _by_circle(s), lambda s: -(s.a * _by_circle(s))),
    # Constant between jumps.
    "floor_divide": _NO_PAIR,
    # Of or to integers and truth values.
    "equal": _NO_PAIR,
    "not_equal": _NO_PAIR,
    "less": _NO_PAIR,
    "less_equal": _NO_PAIR,
    "greater": _NO_PAIR,
    "greater_equal": _NO_PAIR,
    "logical_and": _NO_PAIR,
    "logical_or": _NO_PAIR,
    "logical_xor": _NO_PAIR,
    "bitwise_and": _NO_PAIR,
    "bitwise_or": _NO_PAIR,
    "bitwise_xor": _NO_PAIR,
    "shift_left": _NO_PAIR,
    "shift_right": _NO_PAIR,
}

_OTHERS: dict[str, tuple[Product | None, ...]] = {
    "where": (
        None,  # a truth value
        lambda s: where(s.a, s.g, 0.0),
        lambda s: where(s.a, 0.0, s.g),
    ),
    "reduce_sum": (_sum,),
    "reduce_prod": (_product,),
    "reduce_max": (_extremum,),
    "reduce_min": (_extremum,),
    "view": (_view,),
    "gather": (lambda s: gathered(s.g, s.node), None),  # the index is an integer
    "scan_sum": (_scan,),
    "scan_affine": (_affine_factor, lambda s: s.states),
    "sort": (_sort,),
    "argsort": (None,),  # positions are integers
}

ROWS: dict[str, tuple[Product | None, ...]] = {
    **_SOURCES,
    **{name: (product,) for name, product in _UNARY.items()},
    **_BINARY,
    **_OTHERS,
}
