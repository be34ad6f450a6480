"""Calls of programs: the nesting of results, the names of inputs, `out=` of several."""

import copy
import pickle
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import compile
from eqsat.errors import ArgumentError
from eqsat.program import Program
from eqsat.specs import load

ORACLE = replace(load("cpu"), target="oracle")
X = np.arange(8, dtype=np.float32).reshape(2, 4) / 4
pytestmark = pytest.mark.usefixtures("shared_search")


def compiled(outputs: object) -> Program:
    return compile(outputs, ORACLE, cache=Cache(None))


class Pair(NamedTuple):
    first: object
    second: object


def test_named_tuples_are_given_back() -> None:
    x = g.input("x", (4,))
    program = compiled({"pair": Pair(x + 1.0, Pair(x, [x * 2.0]))})
    found = program(X[0])["pair"]
    assert type(found) is Pair and type(found.second) is Pair
    np.testing.assert_array_equal(found.first, X[0] + 1)
    np.testing.assert_array_equal(found.second.second[0], X[0] * 2)


def test_inputs_named_as_what_a_call_takes() -> None:
    own, out = g.input("self", (4,)), g.input("out", (4,))
    program, given = compiled(own - out), np.empty(4, np.float32)
    assert not program(X[0], X[0]).any()
    assert program(X[0], X[1], out=given) is given
    with pytest.raises(ArgumentError, match=r"missing out; .* Pass input 'out' by position: out="):
        program(self=X[0], out=X[1])
    assert np.array_equal(compiled(own + 1.0)(self=X[0]), X[0] + 1)


def test_out_of_several_that_cannot_take_them() -> None:
    x = g.input("x", (4,))
    program, given = compiled((x + 1.0, x * 2.0)), np.empty(4, np.float32)
    with pytest.raises(ArgumentError, match=r"out= is of type NoneType; pass a NumPy array"):
        program(X[0], out=(given, None))
    with pytest.raises(ArgumentError, match=r"2 arrays .*, \(\., \.\); got a value of type int\."):
        program(X[0], out=3)
    with pytest.raises(ArgumentError, match=r"got 1 as \(\.\)\. Pass one for each dot"):
        program(X[0], out=[given])


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy, copy.copy])
def test_a_program_is_not_copied(copied) -> None:
    program = compiled(g.input("x", (4,)) + 1.0)
    with pytest.raises(TypeError, match=r"nor copied\. Compile its graph again") as one:
        copied(program)
    assert isinstance(one.value, ArgumentError)
