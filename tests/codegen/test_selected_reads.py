"""Reads of which positions select one, as one read: of what is joined of many pieces."""

from collections.abc import Callable

import numpy as np
import pytest
from cuda_emulation import emulate, run_between_guards
from kernel_building import Sample, arrays, check

import eqsat.graph as g
from eqsat import specs
from eqsat.cache.store import Cache
from eqsat.codegen import oracle
from eqsat.codegen.cuda.emit import emit
from eqsat.driver import plan
from eqsat.graph.dtypes import DType, bool_, float32, int64
from eqsat.graph.index import var
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import (
    Access,
    Axis,
    Buffer,
    Guard,
    Kernel,
    Literal,
    Load,
    Map,
    Phase,
    Position,
    Statement,
    Store,
)
from eqsat.lower.selected_reads import with_selected_reads

RNG = np.random.default_rng(37)


def mirrored(x: Tensor, axis: int) -> Tensor:
    """An image with its last but one row beyond each edge."""
    at = (slice(None),) * axis
    return g.concat([x[(*at, slice(1, 2))], x, x[(*at, slice(-2, -1))]], axis=axis)


def repeated(x: Tensor, axis: int) -> Tensor:
    at = (slice(None),) * axis
    return g.concat([x[(*at, slice(0, 1))], x, x[(*at, slice(-1, None))]], axis=axis)


def blocks(*given: Tensor) -> Tensor:
    """Two rows of two matrices."""
    a, b, c, d = given
    return g.concat([g.concat([a, b], axis=1), g.concat([c, d], axis=1)], axis=0)


PROGRAMS: dict[str, tuple[Callable[..., Tensor], str, list[tuple[int, ...]], int]] = {
    "mirrored": (lambda x: mirrored(mirrored(x, 1), 2), "bfloat16", [(3, 10, 12)], 9),
    "repeated": (lambda x: repeated(repeated(x, 1), 2) * 2, "float32", [(3, 10, 12)], 9),
    "turned": (
        lambda x: g.permute_dims(mirrored(mirrored(x, 1), 2), (1, 2, 0)) + 1,
        "bfloat16",
        [(64, 10, 12)],
        9,
    ),
    "three": (
        lambda *x: g.concat(list(x), axis=1),
        "float32",
        [(9, 16), (9, 8), (9, 24)],
        3,
    ),
    "odd": (lambda *x: g.concat(list(x), axis=1), "float16", [(9, 7), (9, 5), (9, 3)], 3),
    "five": (lambda *x: g.concat(list(x), axis=0), "int8", [(n, 32) for n in (1, 4, 2, 3, 5)], 5),
    "blocks": (blocks, "float32", [(5, 8), (5, 4), (3, 8), (3, 4)], 4),
    "sums": (lambda *x: g.sum(g.concat(list(x), axis=1), axis=1), "float32", [(40, 24)] * 3, 3),
    "beyond": (
        lambda *x: g.pad(g.concat(list(x), axis=0), ((1, 1), (2, 2)), 3),
        "float32",
        [(5, 12), (3, 12), (4, 12)],
        3,
    ),
}


def sample_of(name: str) -> Sample:
    """The only kernel of a program, with what it reads and gives."""
    build, dtype, shapes, _ = PROGRAMS[name]
    inputs = [g.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]
    output = build(*inputs)
    planned = plan([output], specs.load("h200"), inputs=inputs, cache=Cache(None))
    (launch,) = planned.parts.launches
    kernel = launch.kernel
    assert isinstance(kernel, Kernel)
    arrays = {
        t.attributes["name"]: RNG.integers(-9, 9, t.shape).astype(t.dtype.numpy) for t in inputs
    }
    (answer,) = g.evaluate([output], arrays, np.float64)
    by_place = {a.buffer: arrays[a.name] for a in planned.parts.arguments}
    local = dict(zip((b.name for b in kernel.buffers), launch.buffers, strict=True))
    given = {name: by_place[place] for name, place in local.items() if place in by_place}
    (made,) = local.keys() - given.keys()
    return Sample(kernel, given, {made: answer})


@pytest.fixture(scope="module")
def samples() -> dict[str, Sample]:
    return {name: sample_of(name) for name in PROGRAMS}


@pytest.fixture(scope="module")
def emulator(samples, tmp_path_factory):
    kernels = [one.kernel for one in samples.values()]
    return emulate(kernels, tmp_path_factory.mktemp("selected"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_read_has_all_places(samples, name):
    loads = [s for s in samples[name].kernel.statements() if isinstance(s, Load)]
    assert [len(load.accesses) for load in loads] == [PROGRAMS[name][-1]]


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_right(samples, emulator, name):
    """By the interpreter, and in CUDA beside memory that holds NaN."""
    one = samples[name]
    found = arrays(one)
    oracle.run(one.kernel, found)
    check(one, found)
    run_between_guards(emulator, [*PROGRAMS].index(name), one)


def test_aligned_pieces_are_read_in_vectors():
    inputs = [g.input(f"x{i}", (4096, width)) for i, width in enumerate((1024, 512, 256))]
    planned = plan(g.concat(inputs, axis=1), specs.load("h200"), cache=Cache(None))
    (launch,) = planned.parts.launches
    assert isinstance(launch.kernel, Kernel)
    text = emit(launch.kernel).text
    assert text.count("pack = *reinterpret_cast<const Pack<float, 4>*>") == 1
    assert "? p_x0 : " in text


def reads(*values: Statement) -> list[Load]:
    """The reads of a kernel that stores the last of some values, once they are selected."""
    axes = (Axis("i", 12, 12),)
    names = [f"x{n}" for n in range(4)]
    inputs = [Buffer(name, (12,), float32, "input") for name in names]
    loads = [Load(f"v{n}", float32, ("i",), Access(name, var("i"))) for n, name in enumerate(names)]
    store = Store(Access("y", var("i")), values[-1].name)
    phase = Phase((), (*loads, Position("p", int64, ("i",), var("i")), *values), stores=(store,))
    output = Buffer("y", (12,), float32, "output")
    kernel = with_selected_reads(Kernel("k", (*inputs, output), axes, (), (phase,)))
    return [s for s in kernel.statements() if isinstance(s, Load)]


def number(name: str, value: float, dtype: DType = int64) -> Literal:
    return Literal(name, dtype, value)


def less(name: str, than: str) -> Map:
    return Map(name, bool_, ("i",), "less", ("p", than))


def where(name: str, condition: str, one: str, other: str) -> Map:
    return Map(name, float32, ("i",), "where", (condition, one, other))


def plus(a: str, b: str) -> Map:
    return Map("sum", float32, ("i",), "add", (a, b))


FIRST = (number("four", 4), less("early", "four"), where("w", "early", "v0", "v1"))
SECOND = (number("nine", 9), less("soon", "nine"))


def test_what_is_selected_is_one_read():
    _, found = reads(*FIRST, *SECOND, where("w2", "soon", "w", "v2"), plus("w2", "v3"))
    i = var("i")
    assert found.accesses == (
        Access("x0", i, (Guard(i, 0, 4),)),
        Access("x1", i, (Guard(i, 4, 9),)),
        Access("x2", i),  # where the others are not
    )


@pytest.mark.parametrize(
    "last",
    [
        (where("all", "soon", "w", "w"),),  # used twice
        (where("all", "soon", "w", "v2"), plus("all", "v2")),
        (Map("m", float32, ("i",), "neg", ("v2",)), where("all", "soon", "w", "m")),  # computed
        (less("told", "v2"), where("all", "told", "w", "v2")),  # by what is read
        (number("zero", 1.0, float32), where("all", "soon", "w", "zero")),  # two places, and 1
    ],
)
def test_other_reads_stay(last):
    assert all(len(load.accesses) == 1 for load in reads(*FIRST, *SECOND, *last))


def test_a_piece_that_is_never_there_is_no_place():
    never = (number("none", 0), less("never", "none"))
    whole = where("all", "soon", "w", "v2"), where("u", "never", "v3", "all")
    (found,) = reads(*FIRST, *SECOND, *never, *whole)
    assert [access.buffer for access in found.accesses] == ["x0", "x1", "x2"]
