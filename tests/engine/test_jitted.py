"""`jit`: which program a call takes, what may be passed, what is refused."""

from collections import namedtuple
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

import eqsat
import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.errors import ArgumentError
from eqsat.jitted import jit
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

OPTIONS = {"spec": replace(load("cpu"), target="oracle"), "cache": Cache(None)}
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)


def test_once_for_each_signature() -> None:
    @jit(**OPTIONS)
    def scaled(x, w, power: int = 1):
        """A docstring that stays."""
        return (x @ w) * float(power)

    assert scaled.__doc__ == "A docstring that stays."
    np.testing.assert_allclose(scaled(X, W), X @ W, rtol=1e-5)
    scaled(X + 1, w=W)
    assert len(scaled.programs) == 1
    np.testing.assert_allclose(scaled(X[:2], W, power=3), X[:2] @ W * 3, rtol=1e-5)
    scaled(X.astype(np.float64), W.astype(np.float64))
    assert len(scaled.programs) == 3


def test_arrays_within_structures_are_inputs() -> None:
    @jit(**OPTIONS)
    def layer(x, parameters, *others, out, **named):
        y = x @ parameters["w"] + parameters["b"][0] + named["more"]
        return {"y": y, "z": [out + others[0]]}

    def call(w):
        return layer(X, {"w": w, "b": (W[0], "tag")}, X, out=X, more=W[1])

    large = np.ones((60, 5), np.float32)  # whose middle a text would leave out
    for w in (W, W * 5, W + 1):
        found = call(w)
        np.testing.assert_allclose(found["y"], X @ w + W[0] + W[1], rtol=1e-5)
        np.testing.assert_array_equal(found["z"][0], X + X)
    assert len(layer.programs) == 1
    names = [a.name for a in next(iter(layer.programs.values())).arguments]
    assert names == ["x", "parameters_w", "parameters_b_0", "others_0", "out", "named_more"]
    bigger = layer(np.ones((4, 60), np.float32), {"w": large, "b": (W[0],)}, X, out=X, more=W[1])
    np.testing.assert_allclose(bigger["y"], 60 + np.tile(W[0] + W[1], (4, 1)), rtol=1e-5)


Pair = namedtuple("Pair", "first second")


def test_names_that_collide_get_apart() -> None:
    @jit(**OPTIONS)
    def add(a_b, a):
        return a_b - a["b"] * a["\u00e9"].first

    assert np.array_equal(add(X, {"b": X, "\u00e9": Pair(X, 1)}), X - X * X)


@dataclass(frozen=True)
class Frozen:
    scale: float


class Way(Enum):
    UP = 1
    DOWN = 2


class Mutable:
    def __init__(self, scale):
        self.scale = scale

    def __repr__(self):
        return "Mutable"


def test_another_plain_value_is_another_program() -> None:
    @jit(**OPTIONS)
    def apply(x, how, by=None):
        if isinstance(how, Frozen):
            return x * how.scale
        if isinstance(how, Way):
            return x + how.value
        return how(x) if callable(how) else x * float(how) + (1.0 if how is True else 0.0)

    for how, expected in (
        (1, X),
        (1.0, X),
        (True, X + 1),
        (0.0, X * 0),
        (-0.0, X * -0.0),
        (Frozen(2.0), X * 2),
        (Frozen(3.0), X * 3),
        (Way.DOWN, X + 2),
        (eqsat.abs, np.abs(X)),
    ):
        for _ in range(2):
            np.testing.assert_array_equal(apply(X, how), expected)
    assert len(apply.programs) == 9
    for k in range(4):  # closures that may lie where the one before lay
        np.testing.assert_array_equal(apply(X, lambda x, k=k: x + float(k)), X + np.float32(k))


@pytest.mark.parametrize("value", (Mutable(2.0), {1, 2}, bytearray(2), iter([X])))
def test_what_may_change_unseen_is_refused(value) -> None:
    @jit(**OPTIONS)
    def use(x, other):
        return x

    with pytest.raises(ArgumentError, match=r"other\[0\] is of type \w+, which may change"):
        use(X, [value])


@dataclass(frozen=True)
class Holder:
    part: object = field(compare=False)


@dataclass(eq=False)
class Changeable:
    scale: float = 1.0


def test_fields_of_dataclasses_are_told_apart_by_type_and_bits() -> None:
    @jit(**OPTIONS)
    def show(x, how):
        return x, g.constant(np.frombuffer(repr(how).encode(), np.uint8))

    same = (True, 1, 1.0, np.float32(1.0), np.float64(1.0), Fraction(1), (1,), (1.0,), ((True,),))
    sets, zeros = (frozenset({1}), frozenset({1.0})), (0.0, -0.0, 0j, complex(0.0, -0.0))
    values = [Holder(value) for value in (*same, *sets, *zeros, Holder(1), Holder(1.0), g.exp)]
    values += [0j, complex(0.0, -0.0), {1: "a"}, {1.0: "a"}, {True: "a"}, Holder(show)]
    for how in values:
        for _ in range(2):
            assert bytes(show(X, how)[1]).decode() == repr(how)
    assert len(show.programs) == len(values)


@pytest.mark.parametrize(
    "value",
    (
        X,
        [1],
        {1: 2},
        {1},
        (1, [2]),
        Holder([1]),
        Mutable(2.0),
        iter([1]),
        Mutable(2.0).__repr__,
        Changeable(),
    ),
)
def test_a_field_that_may_change_is_refused(value) -> None:
    @jit(**OPTIONS)
    def use(x, other):
        return x

    @jit(**OPTIONS)
    def outer(x):
        return use(x, [Holder(value)])

    for _ in range(2):
        message = r"use: other\[0\]\.part\S* is of type \w+, which may change .* Let fields"
        with pytest.raises(ArgumentError, match=message):
            use(X, [Holder(value)])
    np.testing.assert_array_equal(outer(X), X)


def test_a_dataclass_that_may_change_is_refused() -> None:
    with pytest.raises(ArgumentError, match="other is of type Changeable, which may change"):
        jit(lambda x, other: x, **OPTIONS)(X, Changeable())


def test_methods_and_functions_within_functions() -> None:
    @dataclass(frozen=True)
    class Model:
        scale: float

        @jit(**OPTIONS)
        def forward(self, x):
            return inner(x) * self.scale

    @jit(**OPTIONS)
    def inner(x):
        return x + 1.0

    np.testing.assert_allclose(Model(2.0).forward(X), (X + 1) * 2, rtol=1e-6)
    np.testing.assert_allclose(Model(3.0).forward(X), (X + 1) * 3, rtol=1e-6)
    assert not inner.programs


def test_wrong_calls_name_the_function() -> None:
    @jit(**OPTIONS)
    def pair(x, w):
        return x @ w

    with pytest.raises(ArgumentError, match=r"pair\(x, w\): missing a required argument: 'w'"):
        pair(X)
    with pytest.raises(ArgumentError, match="too many positional arguments"):
        pair(X, W, W)
    with pytest.raises(
        ArgumentError, match="jit takes a function of tensors; got a value of type int"
    ):
        jit(3)

    @jit(**OPTIONS)
    def wrong(x):
        return [g.exp(x), 1.0]

    with pytest.raises(
        ArgumentError, match="wrong returned a value of type float where programs give tensors"
    ):
        wrong(X)


def test_any_name_of_a_parameter_and_a_function_without_name() -> None:
    assert np.array_equal(jit(lambda self, args: self - args, **OPTIONS)(self=X, args=X), X - X)
    halved = jit(partial(lambda by, x: x * by, 0.5), **OPTIONS)
    assert np.array_equal(halved(X), X * np.float32(0.5))
    with pytest.raises(ArgumentError, match=r"partial: x\[0\] is of type Mutable"):
        halved([Mutable(1)])


def test_what_jit_cannot_take_is_refused_when_it_is_made() -> None:
    with pytest.raises(ArgumentError, match=r"Python knows none of max\. Wrap it .* lambda x: max"):
        jit(max)
    with pytest.raises(ArgumentError, match=r"no option 'foo'\. Its options .* spec, rules,"):
        jit(foo=1)
    for name in ("inputs", "outputs"):
        with pytest.raises(ArgumentError, match=f"jit takes no option '{name}'.* Drop it"):
            jit(g.exp, **{name: []})
