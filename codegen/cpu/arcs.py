"""Inverse trigonometric functions for generated Numba loops: branch-free bodies for `math.py`.

Arcs of small numbers, and what they lack of a half or a whole turn, which has two parts. Schemes:
Muller, "Elementary Functions", 3rd ed., ch. 11; special values as C's.
"""

import math

from .bits import Value, call, fma, horner, select
from .coefficients import ASIN, ATAN

# pi = high + low.
_PI = {
    "float32": (3.1415927410125732, -8.742278000372475e-08),
    "float64": (math.pi, 1.2246467991473532e-16),
}


def _less(angle: Value, turns: float) -> Value:
    """turns * pi - angle."""
    high, low = _PI[angle.format.name]
    return turns * high - (angle - turns * low)


def _arc_of_ratio(steep: Value, t: Value) -> Value:
    """atan t for t in [0, 1], or where it is steep atan 1 / t."""
    z = t * t
    arc = fma(t * z, horner(z, ATAN[t.format.name]), t)
    return select(steep, _less(arc, 0.5), arc)


def atan(x: Value) -> Value:
    a = call("fabs", x)
    steep = a > 1.0
    t = select(steep, x.constant(1.0), a) / select(steep, a, 1.0)
    return call("copysign", _arc_of_ratio(steep, t), x)


def atan2(y: Value, x: Value) -> Value:
    """The angle of (x, y). Two infinities are alike, and two zeros lie on an axis."""
    n, d = call("fabs", y), call("fabs", x)
    steep, alike = n > d, n.equals(d)
    t = select(steep, d, n) / select(steep, n, d)
    t = select(alike, select(n.equals(0.0), n, 1.0), t)
    angle = _arc_of_ratio(steep, t)
    left = (x.bits() >> (x.format.width - 1)).equals(1)
    return call("copysign", select(left, _less(angle, 1.0), angle), y)


def _arc_of_sine(x: Value) -> tuple[Value, Value]:
    """(far, arc) for a = |x|: asin a is the arc, or where a is far from zero pi / 2 - 2 arcs."""
    a = call("fabs", x)
    far = a > 0.5
    z = select(far, (1.0 - a) * 0.5, a * a)
    s = select(far, call("sqrt", z), a)
    return far, fma(s * z, horner(z, ASIN[x.format.name]), s)


def asin(x: Value) -> Value:
    far, arc = _arc_of_sine(x)
    return call("copysign", select(far, _less(arc * 2.0, 0.5), arc), x)


def acos(x: Value) -> Value:
    far, arc = _arc_of_sine(x)
    twice = arc * 2.0
    beyond = select(x > 0.0, twice, _less(twice, 1.0))
    return select(far, beyond, _less(call("copysign", arc, x), 0.5))
