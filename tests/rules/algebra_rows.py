"""For each law of rules/algebra.py: cases it proves, and near misses that its guard refuses.

In a near miss `right` is what the law would give without its guard. `guard` names the kind of
condition that refuses it, empty where the pattern itself does not match; `wrong` says that the two
sides differ in value, otherwise the guard only saves work.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from terms import Terms, add, div, mul, sub

from eqsat.graph.index import var
from eqsat.terms.algebra import Term

Pair = tuple[Term, Term]


@dataclass(frozen=True)
class Miss:
    """A near miss. Buffers in `awkward` hold zeros and infinities; the others are finite."""

    left: Term
    right: Term
    guard: str = ""
    wrong: bool = True
    awkward: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """What a rule proves, one case or more for each of its rewrites, and what it refuses."""

    proves: tuple[Pair, ...]
    refuses: tuple[Miss, ...]


ROWS: dict[str, Callable[[Terms], Row]] = {}


def row(function: Callable[[Terms], Row]) -> Callable[[Terms], Row]:
    """Enter the row of the rule that has the function's name."""
    ROWS[function.__name__] = function
    return function


@row
def mul_commute(t: Terms) -> Row:
    a, b = t.read("a", "ij"), t.read("b", "jk")
    return Row(((mul(a, b), mul(b, a)),), (Miss(div(a, b), div(b, a)),))


@row
def add_commute(t: Terms) -> Row:
    a, b = t.read("a", "ij"), t.read("b", "jk")
    return Row(((add(a, b), add(b, a)),), (Miss(sub(a, b), sub(b, a)),))


@row
def mul_associate(t: Terms) -> Row:
    a, b, c = t.read("a", "i"), t.read("b", "j"), t.read("c", "ij")
    half = [t.read(name, "ij", "float16") for name in "xyz"]
    x, y, z = (t.read(name, "ij") for name in "xyz")
    h, k = half[0], t.read("h", "i", "float16")
    two, s = Term("literal", 2.0, "float32"), t.read("s", "")
    return Row(
        (
            (mul(mul(a, b), c), mul(a, mul(b, c))),  # a lacks j
            (mul(mul(c, a), a), mul(c, mul(a, a))),  # a * a lacks j
            (mul(mul(a, two), s), mul(a, mul(two, s))),  # numbers join
        ),
        (
            Miss(mul(mul(c, a), s), mul(c, mul(a, s)), "nonempty", wrong=False),
            Miss(mul(mul(two, s), two), mul(two, mul(s, two)), "nonempty", wrong=False),
            Miss(mul(mul(x, y), z), mul(x, mul(y, z)), "differ", wrong=False),
            Miss(mul(mul(k, h), h), mul(k, mul(h, h)), "dtype_in", wrong=False),
        ),
    )


@row
def divide_by_positive(t: Terms) -> Row:
    a, b, c = t.read("a", "ij"), t.read("b", "i"), t.read("c", "ij")
    above, wide = (add(Term("square", x), t.number(1)) for x in (b, c))
    return Row(
        ((div(a, above), mul(a, Term("reciprocal", above))),),
        (
            Miss(div(a, b), mul(a, Term("reciprocal", b)), "positive", wrong=False),
            Miss(div(a, wide), mul(a, Term("reciprocal", wide)), "differ", wrong=False),
        ),
    )


@row
def divide_by_reciprocal(t: Terms) -> Row:
    a, b = t.read("a", "ij"), t.read("b", "i")
    n, m = t.read("n", "ij", "int32"), t.read("m", "i", "int32")
    return Row(
        ((div(a, b), mul(a, Term("reciprocal", b))),),
        (
            Miss(div(b, a), mul(b, Term("reciprocal", a)), "differ", wrong=False),
            Miss(div(n, m), mul(n, Term("reciprocal", m)), "dtype_in"),
        ),
    )


@row
def factor_out_of_sum(t: Terms) -> Row:
    a, b, c = t.read("a", "i"), t.read("b", "ij"), t.read("c", "j")
    inner, ic = t.sum("j", b), t.read("ic", "i", "int8")
    h, big = t.read("h", "i", "float16"), t.read("big", "ij", "float16")
    return Row(
        (
            (t.sum("j", mul(a, b)), mul(a, t.sum("j", b))),
            (t.sum("j", mul(inner, c)), mul(inner, t.sum("j", c))),
            (t.sum("j", mul(ic, ic)), mul(ic, t.sum("j", ic))),
        ),
        (
            Miss(t.sum("j", mul(c, b)), mul(c, t.sum("j", b)), "disjoint"),
            Miss(t.sum("ij", mul(a, c)), mul(a, t.sum("ij", c)), "disjoint"),
            Miss(t.sum("j", mul(h, big)), mul(h, t.sum("j", big)), "dtype_in", wrong=False),
        ),
    )


@row
def negate_outside_sum(t: Terms) -> Row:
    a, n = t.read("a", "ij"), t.read("n", "ij", "int32")
    h = t.read("h", "ij", "float16")

    def sides(x: Term) -> Pair:
        return t.sum("j", Term("neg", x)), Term("neg", t.sum("j", x))

    return Row(
        (sides(a), sides(n)),
        (
            Miss(t.max("j", Term("neg", a)), Term("neg", t.max("j", a))),
            Miss(*sides(h), "dtype_in", wrong=False),
        ),
    )


@row
def split_sum_of_product(t: Terms) -> Row:
    a, b, h = t.read("a", "i"), t.read("b", "ij"), t.read("h", "i", "float16")
    half = t.read("hb", "ij", "float16")
    return Row(
        ((t.sum("ij", mul(a, b)), t.sum("i", mul(a, t.sum("j", b)))),),
        (
            Miss(t.sum("i", mul(a, b)), t.sum("i", mul(a, t.sum("", b))), "nonempty", wrong=False),
            Miss(
                t.sum("ij", mul(h, half)),
                t.sum("i", mul(h, t.sum("j", half))),
                "dtype_in",
                wrong=False,
            ),
        ),
    )


@row
def nest_sums(t: Terms) -> Row:
    a, b, c = t.read("a", "i"), t.read("b", "ij"), t.read("c", "ij")
    h, half = t.read("h", "i", "float16"), t.read("hb", "ij", "float16")
    shadowed = t.sum("i", t.read("b", "ij"))  # binds i again
    return Row(
        ((t.sum("i", mul(a, t.sum("j", b))), t.sum("ij", mul(a, b))),),
        (
            Miss(t.sum("i", mul(c, t.sum("j", b))), t.sum("ij", mul(c, b)), "disjoint"),
            Miss(
                t.sum("ij", mul(t.read("d", "j"), shadowed)),
                t.sum("ij", mul(t.read("d", "j"), b)),
                "disjoint",
            ),
            Miss(
                t.sum("i", mul(h, t.sum("j", half))),
                t.sum("ij", mul(h, half)),
                "dtype_in",
                wrong=False,
            ),
            Miss(
                t.sum("i", mul(a, t.sum("j", b))),
                t.sum("ij", mul(a, b)),
                "finite",
                awkward=("a",),
            ),
        ),
    )


@row
def merge_sums(t: Terms) -> Row:
    b, half = t.read("b", "ij"), t.read("hb", "ij", "float16")
    return Row(
        ((t.sum("i", t.sum("j", b)), t.sum("ij", b)),),
        (
            Miss(t.sum("i", t.sum("ij", b)), t.sum("ij", b), "disjoint"),
            Miss(t.sum("i", t.sum("j", half)), t.sum("ij", half), "dtype_in", wrong=False),
        ),
    )


@row
def swap_in_sum(t: Terms) -> Row:
    a, b, inner = t.read("a", "i"), t.read("b", "jk"), t.sum("j", t.read("c", "ijk"))
    h, half = t.read("h", "i", "float16"), t.read("hb", "jk", "float16")
    return Row(
        ((mul(a, t.sum("j", b)), t.sum("j", mul(a, b))),),
        (
            Miss(
                mul(t.read("d", "ij"), t.sum("j", b)),
                t.sum("j", mul(t.read("d", "ij"), b)),
                "disjoint",
            ),
            Miss(mul(inner, t.sum("k", b)), t.sum("k", mul(inner, b)), "disjoint"),
            Miss(
                mul(t.read("e", "k"), t.sum("j", b)),
                t.sum("j", mul(t.read("e", "k"), b)),
                "nonempty",
                wrong=False,
            ),
            Miss(mul(h, t.sum("j", half)), t.sum("j", mul(h, half)), "dtype_in", wrong=False),
            Miss(mul(a, t.sum("j", b)), t.sum("j", mul(a, b)), "finite", awkward=("a",)),
        ),
    )


@row
def sum_of_constant(t: Terms) -> Row:
    a, n, m = t.read("a", "i"), t.read("n", "i", "int32"), t.read("m", "i", "int32")
    extents = t.universe.extents
    j = t.number(extents["j"])
    return Row(
        (
            (t.sum("ij", a), mul(j, t.sum("i", a))),
            (t.sum("j", a), mul(j, a)),
        ),
        (
            Miss(t.sum("ij", a), mul(j, a), "disjoint"),
            Miss(t.sum("j", n), mul(t.number(extents["j"], "int32"), n), "dtype_in", wrong=False),
            Miss(
                t.sum("ij", m),
                mul(t.number(extents["j"], "int32"), t.sum("i", m)),
                "dtype_in",
                wrong=False,
            ),
        ),
    )


@row
def add_sums(t: Terms) -> Row:
    a, b, c = t.read("a", "ij"), t.read("b", "ij"), t.read("c", "i")
    d = t.read("d", "ijk")
    half = [t.read(name, "ij", "float16") for name in "xy"]
    return Row(
        (
            (add(t.sum("j", a), t.sum("j", b)), t.sum("j", add(a, b))),
            (add(t.sum("j", a), t.sum("j", b), c), add(t.sum("j", add(a, b)), c)),
        ),
        (
            Miss(add(t.sum("j", a), t.sum("k", d)), t.sum("j", add(a, d))),
            Miss(
                add(*(t.sum("j", x) for x in half)), t.sum("j", add(*half)), "dtype_in", wrong=False
            ),
        ),
    )


@row
def factor_common(t: Terms) -> Row:
    a, b, c, d = t.read("a", "i"), t.read("b", "ij"), t.read("c", "j"), t.read("d", "ij")
    half = [t.read(name, "ij", "float16") for name in "xyz"]
    x, y, z = half
    return Row(
        (
            (add(mul(a, b), mul(a, c)), mul(a, add(b, c))),
            (add(mul(a, b), mul(a, c), d), add(mul(a, add(b, c)), d)),
        ),
        (
            Miss(add(mul(a, b), mul(d, c)), mul(a, add(b, c))),
            Miss(add(mul(x, y), mul(x, z)), mul(x, add(y, z)), "dtype_in", wrong=False),
            Miss(
                add(mul(a, b), mul(a, c)),
                mul(a, add(b, c)),
                "finite",
                wrong=False,
                awkward=("a", "b", "c"),
            ),
        ),
    )


@row
def shift_out_of_max(t: Terms) -> Row:
    a, b, c = t.read("a", "i"), t.read("b", "ij"), t.read("c", "ij")
    n, m = t.read("n", "i", "int8"), t.read("m", "ij", "int8")
    return Row(
        ((t.max("j", add(a, b)), add(a, t.max("j", b))),),
        (
            Miss(t.max("j", add(c, b)), add(c, t.max("j", b)), "disjoint"),
            Miss(t.max("j", add(n, m)), add(n, t.max("j", m)), "dtype_in"),  # integers wrap
        ),
    )


@row
def scale_out_of_max(t: Terms) -> Row:
    a, b, c, n = t.read("a", "i"), t.read("b", "ij"), t.read("c", "j"), t.number(0.3)
    positive, never = add(Term("exp", c), n), t.number(-math.inf)
    half, three = t.read("half", "ij", "float16"), t.number(3, "float16")
    m = Term("less", Term("position", var("j")), Term("literal", 2.0, "int64"))
    masked, without = Term("where", m, mul(n, b), never), Term("where", m, b, never)
    return Row(
        (
            (t.max("j", mul(n, b)), mul(n, t.max("j", b))),
            (t.max("j", masked), mul(n, t.max("j", without))),
        ),
        (
            Miss(t.max("j", mul(a, b)), mul(a, t.max("j", b)), "positive"),
            Miss(t.max("j", mul(positive, b)), mul(positive, t.max("j", b)), "disjoint"),
            Miss(
                t.max("j", mul(three, half)), mul(three, t.max("j", half)), "dtype_in", wrong=False
            ),
        ),
    )


@row
def cancel_shift(t: Terms) -> Row:
    a, b, c = t.read("a", "i"), t.read("b", "ij"), t.read("c", "i")
    d, n, m = t.read("d", "ij"), t.read("n", "i", "int8"), t.read("m", "ij", "int8")
    return Row(
        ((sub(add(a, b), add(a, c)), sub(b, c)),),
        (
            Miss(sub(add(a, b), add(c, a)), sub(b, c), wrong=False),
            Miss(sub(add(a, b), add(c, b)), sub(b, b)),
            Miss(sub(add(d, b), add(d, c)), sub(b, c), "differ", wrong=False),
            Miss(sub(add(n, m), add(n, n)), sub(m, n), "dtype_in", wrong=False),
            # NaN is what the source gives: the law would hide it
            Miss(sub(add(a, b), add(a, c)), sub(b, c), "finite", wrong=False, awkward=("a",)),
        ),
    )


@row
def mul_identity(t: Terms) -> Row:
    a, n = t.read("a", "i"), t.read("n", "i", "int8")
    return Row(
        ((mul(a, t.number(1)), a), (mul(n, t.number(1, "int8")), n)),
        (Miss(mul(a, t.number(2)), a), Miss(add(a, t.number(1)), a)),
    )


@row
def divide_by_root(t: Terms) -> Row:
    a, b = t.read("a", "ij"), Term("abs", t.read("b", "i"))
    c, d = t.read("c", "i", "float64"), Term("abs", t.read("d", "ij", "float64"))
    h, k = t.read("h", "i", "float16"), Term("abs", t.read("k", "i", "float16"))
    root = Term("sqrt", b)
    return Row(
        (
            (div(a, root), mul(a, Term("rsqrt", b))),
            (Term("reciprocal", root), Term("rsqrt", b)),
            (div(c, Term("sqrt", d)), mul(c, Term("rsqrt", d))),
        ),
        (
            Miss(div(root, a), mul(root, Term("rsqrt", a))),
            Miss(div(h, Term("sqrt", k)), mul(h, Term("rsqrt", k)), "dtype_in", wrong=False),
        ),
    )


@row
def add_one_to_erf(t: Terms) -> Row:
    a, b = t.read("a", "ij"), t.read("b", "i", "float64")
    h, one = t.read("h", "i", "float16"), t.number(1, "float16")
    curve = Term("erf", a)
    return Row(
        (
            (add(curve, t.number(1)), Term("one_plus_erf", a)),
            (add(t.number(1), curve), Term("one_plus_erf", a)),
            (add(Term("erf", b), t.number(1, "float64")), Term("one_plus_erf", b)),
            (add(t.number(1, "float64"), Term("erf", b)), Term("one_plus_erf", b)),
        ),
        (
            Miss(add(curve, t.number(2)), Term("one_plus_erf", a)),
            Miss(sub(t.number(1), curve), Term("one_plus_erf", a)),
            Miss(add(Term("erf", h), one), Term("one_plus_erf", h), "dtype_in", wrong=False),
        ),
    )


@row
def add_one_to_tanh(t: Terms) -> Row:
    a, b = t.read("a", "ij"), t.read("b", "i", "float64")
    h, one = t.read("h", "i", "float16"), t.number(1, "float16")

    def logistic(x: Term, one: Term) -> Term:
        """2 / (1 + exp(-2 x))"""
        half = Term("reciprocal", add(one, Term("exp", Term("neg", add(x, x)))))
        return add(half, half)

    curve, wide = Term("tanh", a), t.number(1, "float64")
    return Row(
        (
            (add(curve, t.number(1)), logistic(a, t.number(1))),
            (add(t.number(1), curve), logistic(a, t.number(1))),
            (add(Term("tanh", b), wide), logistic(b, wide)),
            (add(wide, Term("tanh", b)), logistic(b, wide)),
        ),
        (
            Miss(add(curve, t.number(2)), logistic(a, t.number(1))),
            Miss(sub(t.number(1), curve), logistic(a, t.number(1))),
            Miss(add(Term("tanh", h), one), logistic(h, one), "dtype_in", wrong=False),
        ),
    )


@row
def drop_rounding(t: Terms) -> Row:
    a, w, b = t.read("a", "i"), t.read("w", "i"), t.read("b", "i", "float64")

    def through(narrow: str, factor: Term) -> Term:
        return t.cast("float32", t.cast(narrow, factor))

    def product(factor: Term) -> Term:
        return t.sum("i", mul(factor, w))

    return Row(
        (
            (product(through("bfloat16", a)), product(a)),
            (product(through("float16", a)), product(a)),
            (t.sum("i", through("bfloat16", a)), t.sum("i", a)),
            (t.sum("i", through("float16", a)), t.sum("i", a)),
        ),
        (
            Miss(through("bfloat16", a), a),
            Miss(t.max("i", through("bfloat16", a)), t.max("i", a)),
            Miss(product(through("int8", a)), product(a)),
            Miss(product(through("float16", b)), product(t.cast("float32", b)), wrong=False),
        ),
    )


@row
def narrow_what_was_widened(t: Terms) -> Row:
    kinds = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
    narrow = [t.read(name, "i", kind) for name, kind in zip("mnpq", kinds, strict=True)]
    again = [t.cast(d, t.cast("float32", a)) for d, a in zip(kinds, narrow, strict=True)]
    return Row(
        tuple(zip(again, narrow, strict=True)),
        (
            Miss(t.cast("float16", t.cast("float32", narrow[0])), narrow[0], wrong=False),
            Miss(
                t.cast("float16", t.cast("float32", t.read("a", "i"))),
                t.read("a", "i"),
                wrong=False,
            ),
        ),
    )


@row
def widen_at_once(t: Terms) -> Row:
    kinds = ("float8_e4m3fn", "float8_e5m2")
    narrow = [t.read(name, "i", kind) for name, kind in zip("mn", kinds, strict=True)]
    a, h = t.read("a", "i"), t.read("h", "i", "float16")

    def through(wide: str, of: Term) -> Term:
        return t.cast("float32", t.cast(wide, of))

    return Row(
        tuple(
            (through(wide, of), t.cast("float32", of))
            for of in narrow
            for wide in ("bfloat16", "float16")
        ),
        (
            Miss(through("bfloat16", a), a),
            Miss(through("bfloat16", h), t.cast("float32", h)),
            Miss(through("float8_e4m3fn", h), t.cast("float32", h)),
        ),
    )


@row
def cast_twice(t: Terms) -> Row:
    a, n = t.read("a", "i"), t.read("n", "i", "int16")
    return Row(
        ((t.cast("float16", t.cast("float16", a)), t.cast("float16", a)),),
        (
            Miss(t.cast("float32", t.cast("float16", a)), t.cast("float32", a)),
            Miss(t.cast("int16", t.cast("int8", n)), t.cast("int16", n)),
        ),
    )
