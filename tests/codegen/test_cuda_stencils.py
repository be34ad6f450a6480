"""Points of a thread that lie side by side: what they read of each other's neighbours is read once,
few coordinates are in the registers of one thread, and what is scanned is scanned at once.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
from cuda_emulation import emulate, run_between_guards
from stencil_cases import CUBE, FIVE, directions, scanned_columns, stencil, stencil_cases, torus

from eqsat.codegen.cuda.emit import choose, emit
from eqsat.graph.index import Affine, add, mod, scale, var
from eqsat.kernel.ir import Guard, Load
from eqsat.kernel.stencils import Walk, held_names, steps_between, walk

CASES = list(stencil_cases())


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return emulate([c.kernel for c in CASES], tmp_path_factory.mktemp("stencils"))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_a_kernel_gives_its_answer(emulator, number):
    """Also beside memory that holds NaN: nothing outside the array is read or written."""
    run_between_guards(emulator, number, CASES[number].sample)


def with_threads(sample, threads):
    return replace(sample.kernel, threads=threads)


@pytest.mark.parametrize(
    ("shape", "tile", "places", "cells"),
    [
        ((66, 66), (4, 32), FIVE, {"near_x0": 6}),
        ((18, 34, 66), (2, 4, 32), CUBE, dict.fromkeys(("near_x0", "near_x1", "near_x2"), 24)),
    ],
)
def test_what_points_share_is_read_once(shape, tile, places, cells):
    """Of 27 neighbours 2 x 4 points read 3 times 4 x 6 cells."""
    text = emit(with_threads(stencil(shape, tile, places), 32)).text
    found = {name: int(size) for name, size in re.findall(r"float (near_\w+)\[(\d+)\];", text)}
    assert found == cells


def test_what_may_be_missing_is_shared_too():
    """Beyond an edge the cells say so: 2 x 4 points read 3 times 4 x 6 of them, all with guards."""
    kernel = with_threads(stencil((16, 32, 64), (2, 4, 32), CUBE, 0.0), 32)
    text = emit(kernel).text
    assert sorted(re.findall(r"float near_\w+\[(\d+)\];", text)) == ["24"] * 3
    loads = [line for line in text.splitlines() if "= given_or_zero(" in line]
    assert len(loads) == 3 and all(">= 0" in line and "< 32" in line for line in loads)


def test_what_begins_anew_is_shared_too():
    text = emit(with_threads(torus((16, 32, 64), (2, 4, 32), CUBE), 32)).text
    assert sorted(re.findall(r"float near_\w+\[(\d+)\];", text)) == ["24"] * 3
    assert text.count("% 32)") == text.count("% 16)") == 3


def test_a_tile_too_small_for_its_threads_shares_nothing():
    assert "near_" not in emit(with_threads(stencil((66, 66), (4, 32), FIVE), 128)).text


def test_one_thread_has_all_coordinates_of_a_place():
    for n, alone in ((3, True), (5, True), (24, False)):
        kernel = with_threads(directions(256, n, 64), 64)
        _, distribution = choose(kernel, {})
        assert (distribution.registers("c") == n) == alone
        assert ("reduce_lanes<" in emit(kernel).text) != alone


def test_a_threads_run_of_a_column_is_scanned_at_once():
    kernel = with_threads(scanned_columns(96, 64, 8), 64)
    _, distribution = choose(kernel, {})
    assert distribution.vector("i") == distribution.registers("i") > 1
    loads = [s for s in kernel.statements() if isinstance(s, Load)]
    assert len(loads) == 1 and emit(kernel).text.count("scan_warps<") == 1


def test_steps_between_walks():
    def row(constant, buffer="x"):
        return Walk(buffer, Affine((("i", 100), ("j", 1)), constant))

    assert steps_between(row(101), row(0), {}) == {"i": 1, "j": 1}
    assert steps_between(row(99), row(0), {}) == {"i": 1, "j": -1}
    assert steps_between(row(7), row(7), {}) == {}
    assert steps_between(row(7, "y"), row(7), {}) is None
    far, near = (Walk("x", Affine((("i", 100),), constant)) for constant in (30, 0))
    assert steps_between(far, near, {}) is None


def test_steps_between_walks_that_may_miss():
    """Guards must tell the same of an element, whichever walk comes there."""
    extents = {"i": 10, "j": 100}

    def row(i, guards):
        rows = (Guard(Affine((("i", 1),), by), 0, size) for by, size in guards)
        return Walk("x", Affine((("i", 100), ("j", 1)), 100 * i), tuple(rows))

    middle, up, down = row(0, ()), row(-1, [(-1, 10)]), row(1, [(1, 10)])
    assert steps_between(up, middle, extents) == {"i": -1}
    assert steps_between(middle, down, extents) == {"i": -1}
    assert steps_between(up, down, extents) == {"i": -2}
    assert steps_between(row(1, ()), middle, extents) == {"i": 1}
    assert steps_between(row(1, ()), down, extents) is None  # it reads a row that the other misses
    assert steps_between(row(1, [(1, 9)]), down, extents) is None
    assert steps_between(row(0, [(0, 9)]), up, extents) is None


def test_steps_around():
    """The last row is behind the first; but not of a row that lies before the array."""
    extents = {"i": 8, "j": 100}

    def moved(by):
        row = mod(Affine((("i", 1),), by), 8, extents)
        return walk("x", add(scale(row, 100), var("j")), (), extents)

    assert moved(7) == Walk("x", Affine((("i", 100), ("j", 1)), -100), (), (("i", -1),))
    middle = walk("x", Affine((("i", 100), ("j", 1)), 0), (), extents)
    assert steps_between(moved(1), moved(7), extents) == {"i": 2}
    assert steps_between(moved(7), middle, extents) == {"i": -1}
    before = walk("x", Affine((("i", 100), ("j", 1)), -100), (), extents)
    assert steps_between(moved(7), before, extents) is None
    assert steps_between(middle, before, extents) == {"i": 1}


def test_names_of_which_threads_hold_all_points():
    def at(i, j, k):
        return Walk("x", Affine((("i", 1000), ("j", 10), ("k", 1)), 1000 * i + 10 * j + k))

    points = {name: np.array([2, 4, 16]) for name in "ij"} | {"k": np.array([64, 64, 64])}
    walks = [at(0, 0, 0), at(1, 0, 0), at(0, 1, 0), at(0, 2, 0), at(0, 0, 1)]
    found = held_names(walks, {}, points, np.array([64, 64, 64]))
    assert found.keys() == {"i", "j"}
    assert found["j"].tolist() == [True, True, False] and found["i"].tolist() == [
        True,
        False,
        False,
    ]
    few = held_names(walks, {}, points, np.array([512, 64, 64]))
    assert not few["i"][0] and not few["j"][0]


def test_of_names_that_are_crossed_alike_the_outermost_is_held_first():
    """Whichever of the walks comes first: a price and a kernel may have them in other orders."""
    strides = (("i", 1000), ("j", 10), ("k", 1))
    walks = [Walk("x", Affine(strides, constant)) for constant in (0, 10, 1000)]
    points = {"i": 8, "j": 4, "k": 64}
    for order in (walks, walks[::-1]):
        found = held_names(order, {}, points, 32)
        assert [name for name, holds in found.items() if holds] == ["i"]
