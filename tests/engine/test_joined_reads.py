"""Factors in pieces of memory: one read of all, each tile copied from the piece that it lies in."""

from dataclasses import replace

import numpy as np
import pytest
from fast_products import H200, normal, planned, run, traced
from hypothesis import given, settings
from hypothesis import strategies as st

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.driver import plan
from eqsat.errors import UnsupportedError
from eqsat.graph.index import evaluate, row_major
from eqsat.kernel.ir import Axis, Contract, Kernel, Load
from eqsat.kernel.joined import Joined, Piece, is_apart
from eqsat.planned import Planned
from eqsat.schedule import recast
from eqsat.schedule.joined_reads import joined_reads
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

JOINED = "pieces joined"
BF16 = "bfloat16"
OPERATIONS = {one.name: one for one in H200.operations}


def along_sum(x: g.Tensor, y: g.Tensor, z: g.Tensor, w: g.Tensor) -> g.Tensor:
    """128 x 64, 128 x 128 and 128 x 64 side by side, times 256 x 128."""
    return g.concat([x, y, z], axis=1) @ w


def along_columns(x: g.Tensor, y: g.Tensor, z: g.Tensor, w: g.Tensor) -> g.Tensor:
    return w.mT @ g.concat([g.reshape(x, (256, 32)), g.reshape(y, (256, 64))], axis=1)


def along_rows(x: g.Tensor, y: g.Tensor, z: g.Tensor, w: g.Tensor) -> g.Tensor:
    return g.concat([x, z], axis=0) @ w[:64]


def of_both(x: g.Tensor, y: g.Tensor, z: g.Tensor, w: g.Tensor) -> g.Tensor:
    return g.concat([x, y], axis=1) @ g.concat([w[:64], w[:128]], axis=0)


def later_first(x: g.Tensor, y: g.Tensor, z: g.Tensor, w: g.Tensor) -> g.Tensor:
    """A choice that is written the other way round."""
    at = g.arange(128)
    left = g.where(at >= 64, g.concat([z, z], axis=1), g.concat([x, x], axis=1))
    return left @ w[:128]


def of_keys(x: g.Tensor, y: g.Tensor, z: g.Tensor, w: g.Tensor) -> g.Tensor:
    """Attention to 128 keys that were there and 128 more."""
    keys = g.concat([x, z], axis=0)
    return g.softmax(x @ keys.mT * 0.125, axis=-1) @ g.concat([z, x], axis=0)


PROGRAMS = (along_sum, along_columns, along_rows, of_both, later_first, of_keys)
SHAPES = {"x": (128, 64), "y": (128, 128), "z": (128, 64), "w": (256, 128)}


def built(function) -> g.Tensor:
    return function(*(g.input(name, shape, BF16) for name, shape in SHAPES.items()))


def in_pieces(program: Planned) -> list[Load]:
    kernels = [launch.kernel for launch in program.parts.launches]
    return [s for k in kernels for s in k.statements() if isinstance(s, Load) and s.rest]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_products_of_what_lies_in_pieces(function):
    program = planned(built(function))
    assert in_pieces(program)
    values = {name: normal(*shape).astype(g.bfloat16.numpy) for name, shape in SHAPES.items()}
    values = {a.name: values[a.name] for a in program.parts.arguments}
    (wanted,) = g.evaluate([built(function)], values, np.float64)
    found = run(program, **values).astype(np.float64)
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


def test_a_cache_and_one_more_key_are_attended_to_in_parts():
    """2049 keys are no two parts alike: the second one ends where the pieces do."""
    q, fresh = g.input("q", (1, 8, 1, 64), BF16), ["k", "v"]
    sides = [
        g.concat(
            [g.input(n, (1, 2, 2048, 64), BF16), g.input(f"{n}1", (1, 2, 1, 64), BF16)], axis=2
        )
        for n in fresh
    ]
    out = g.attention(q, *sides)
    program = planned(out, H200)
    first, *_ = (launch.kernel for launch in program.parts.launches)
    (stream,) = (axis for phase in first.phases for axis in phase.stream)
    assert stream.extent < 2049 and len(in_pieces(program)) == 2
    values = {a.name: normal(*a.shape).astype(g.bfloat16.numpy) for a in program.parts.arguments}
    (wanted,) = g.evaluate([out], values, np.float64)
    found = run(program, **values).astype(np.float64)
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


@pytest.mark.parametrize("function", [along_sum, along_columns], ids=lambda f: f.__name__)
def test_a_tile_is_copied_from_its_piece(function):
    program = planned(built(function))
    (launch,) = program.parts.launches
    source = emit(launch.kernel, OPERATIONS)
    pieces = {access.buffer for load in in_pieces(program) for access in load.accesses}
    assert pieces <= {box.buffer for box in source.maps}
    assert "_piece1" in source.text
    assert compile_cubin(source.text, "sm_90a").spills == 0


def test_a_form_of_joined_pieces_has_facts_of_its_own(monkeypatch):
    """Forms are told apart by these."""
    own = []

    def watched(*values):
        found = joined_reads(*values)
        own.extend([found[1] is not values[1]] if found else [])
        return found

    monkeypatch.setattr(recast, "joined_reads", watched)
    plan([built(along_sum)], H200, cache=Cache(None))
    assert own and all(own)


@pytest.mark.slow
def test_a_trace_says_that_pieces_are_joined():
    traced(planned(built(along_sum)), {JOINED: ""})


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y, z, w: g.concat([x[:, :20], y[:, 20:]], axis=1) @ w[:128],  # no whole unit
        lambda x, y, z, w: g.concat([x, z * z], axis=1) @ w[:128],  # computed
        lambda x, y, z, w: g.concat([x, z], axis=1) + y,  # no factor
        lambda x, y, z, w: g.concat([x, x.mT[:, :64]], axis=0) @ w[:64],  # lies otherwise
    ],
    ids=["odd", "computed", "added", "across"],
)
def test_other_values_are_computed(other):
    assert not in_pieces(planned(built(other), H200))


def test_without_copies_of_boxes_pieces_are_computed():
    assert not in_pieces(planned(built(along_sum), load("a100")))


def test_a_tile_of_two_pieces_and_threads_that_read_them_are_refused():
    (launch,) = planned(built(along_sum)).parts.launches
    kernel = launch.kernel
    assert isinstance(kernel, Kernel)
    (read,) = (s for s in kernel.statements() if isinstance(s, Load) and s.rest)
    axes = kernel.axes()
    (summed,) = (
        i
        for i in read.indices
        if any(i in map(str, dict(a.guards[0].expression.terms)) for a in read.rest)
    )
    assert is_apart(read, axes)
    for tile in (96, 256):
        assert not is_apart(read, {**axes, str(summed): Axis(str(summed), 256, tile)})
    (phase,) = (phase for phase in kernel.phases if read in phase.body)
    (wide,) = (replace(axis, tile=128) for axis in phase.stream)
    phases = (replace(p, stream=(wide,)) if p is phase else p for p in kernel.phases)
    with pytest.raises(UnsupportedError, match="a piece must begin where a tile does"):
        emit(replace(kernel, phases=tuple(phases)), OPERATIONS)
    body = tuple(replace(s, operation="") if isinstance(s, Contract) else s for s in phase.body)
    phases = (replace(p, body=body) if p is phase else p for p in kernel.phases)
    with pytest.raises(UnsupportedError, match="only copies of boxes read"):
        emit(replace(kernel, phases=tuple(phases)), OPERATIONS)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_element_is_that_of_its_piece(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    cuts = sorted(data.draw(st.sets(st.integers(1, 7), min_size=1, max_size=3)))
    ends = [*cuts, cuts[-1] + data.draw(st.integers(1, 4))]
    shape = (*shape[:axis], ends[-1], *shape[axis + 1 :])
    whole, start, memory, pieces = np.full(shape, -1), 0, {}, []
    for number, end in enumerate(ends):
        own = (*shape[:axis], end - start, *shape[axis + 1 :])
        offset = data.draw(st.integers(0, 3))
        memory[str(number)] = np.arange(offset + np.prod(own)) + 1000 * number
        part = memory[str(number)][offset:].reshape(own)
        whole[(slice(None),) * axis + (slice(start, end),)] = part
        steps = tuple(stride // part.itemsize for stride in part.strides)
        pieces.append(Piece(str(number), start, end, offset, steps))
        start = end
    names = [f"i{n}" for n in range(len(shape))]
    address = row_major(names, dict(zip(names, shape, strict=True)))
    found = Joined(shape, axis, tuple(pieces)).accesses(address)
    for place in np.ndindex(shape):
        at = dict(zip(names, place, strict=True))
        there = [
            memory[a.buffer][evaluate(a.address, at)]
            for a in found
            if all(
                guard.lower <= evaluate(guard.expression, at) < guard.upper for guard in a.guards
            )
        ]
        assert there == [whole[place]]
