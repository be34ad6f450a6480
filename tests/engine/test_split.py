"""Reductions in parts: the two kernels together compute what the one kernel does.

Each program is lowered whole, and as the kernels of its parts; both run on the tile interpreter and
are compared with NumPy in float64.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numeric import Meaning, random_buffers
from terms import Terms, add, div, exp, mul, sub, universe

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen import oracle
from eqsat.driver import compile, plan
from eqsat.errors import TraceError
from eqsat.explain.explanation import from_json, to_json
from eqsat.explain.replay import check as check_trace
from eqsat.graph import index
from eqsat.graph.dtypes import as_dtype
from eqsat.kernel.ir import Access, Axis, Buffer, Kernel, Load, check
from eqsat.lower.lowering import Schedule, lower
from eqsat.program import Program
from eqsat.rules.carries import SOFTMAX
from eqsat.schedule.ranking import Offer, Ranked, rank
from eqsat.schedule.reduction_parts import Division, divide, fill_processors, part_length
from eqsat.specs import load
from eqsat.terms.algebra import Facts, Read, Term, Universe, post_order
from eqsat.terms.form import SUBSTITUTED, Form, Stored, form

Arrays = dict[str, np.ndarray]
EXTENTS = [(2, 12, 3), (3, 13, 2), (1, 150, 2), (2, 1, 1), (2, 200, 3)]  # of i, j, k; j is split
PARTS = (2, 3, 8)


def bias(t: Terms) -> Term:
    """relu(sum_j a b + c)"""
    product = t.sum("j", mul(t.read("a", "ij"), t.read("b", "jk")))
    return Term("maximum", add(product, t.read("c", "k")), t.number(0))


def by_operation(t: Terms) -> Term:
    """The same product of bfloat16 factors, by an operation, rounded after a bias is added."""
    sides = [
        t.cast("float32", t.read(n, names, "bfloat16")) for n, names in (("a", "ij"), ("b", "jk"))
    ]
    return t.cast("bfloat16", add(t.contract("j", *sides, "mma"), t.read("c", "k", "float32")))


def computed_factors(t: Terms) -> Term:
    """sum_j (1 / a) exp(b): beyond the axis neither factor is zero by itself."""
    return t.sum("j", mul(Term("reciprocal", t.read("a", "ij")), exp(t.read("b", "jk"))))


def column_sum(t: Terms) -> Term:
    return add(t.sum("j", t.read("a", "jk")), mul(t.read("c", "i"), t.number(0)))


def product(t: Terms) -> Term:
    shifted = add(t.number(1), mul(t.read("a", "ijk"), t.number(0.01)))
    return Term("reduce_prod", t.mask("j"), shifted)


def highest(t: Terms) -> Term:
    return t.max("j", sub(t.read("a", "ij"), t.read("b", "jk")))


def lowest(t: Terms) -> Term:
    return Term("reduce_min", t.mask("j"), exp(t.read("a", "ijk")))


def argmax(t: Terms) -> Term:
    """min_j of the j where a is largest: in parts twice."""
    a, place = t.read("a", "ijk"), Term("position", index.var("j"))
    none = Term("literal", float(t.universe.extents["j"]), "int64")
    found = Term("where", Term("equal", a, t.max("j", a)), place, none)
    return t.cast(t.dtype, Term("reduce_min", t.mask("j"), found))


def variance(t: Terms) -> Term:
    """The mean of squared distances from the mean: in parts twice."""
    a, count = t.read("a", "ijk"), t.number(t.universe.extents["j"])
    away = sub(a, div(t.sum("j", a), count))
    return div(t.sum("j", mul(away, away)), count)


def attention(t: Terms) -> Term:
    s = add(t.read("a", "ij"), t.read("mask", "ij"))
    total = t.weighted("j", s, t.number(1))
    return div(t.weighted("j", s, t.read("b", "jk")), total)


def attention_by_operation(t: Terms) -> Term:
    s = add(t.read("a", "ij"), t.read("mask", "ij"))
    values = t.cast("float32", t.read("b", "jk", "bfloat16"))
    weighted = Term("weighted_contract", t.mask("j"), s, values, "mma", SOFTMAX)
    return div(weighted, t.weighted("j", s, t.number(1)))


SIMPLE = (bias, computed_factors, column_sum, product, highest, lowest, argmax, variance, attention)


def softmax(t: Terms) -> Term:
    """Of rows: j is reduced and stored."""
    s = add(t.read("a", "ij"), t.read("mask", "ij"))
    weight = Term("exp_difference", s, t.max("j", s))
    return mul(div(weight, t.weighted("j", s, t.number(1))), t.read("c", "k"))


def setup(
    program: Callable[[Terms], Term], over: Universe, names: str, dtype: str = "float64"
) -> tuple[tuple[Stored, ...], dict[str, Buffer], Arrays, np.ndarray]:
    """A program's stored value and buffers, arrays for them, and the answer."""
    term = program(Terms(over, dtype))
    arrays = random_buffers([term], over)
    if "mask" in arrays:
        hidden = np.random.default_rng(3).random(arrays["mask"].shape) < 0.4
        arrays["mask"] = np.where(hidden, -np.inf, 0.0)
        rows = arrays["mask"].reshape(over.extents["i"], -1)
        rows[0] = -np.inf  # nothing is seen in this row
        rows[-1, : rows.shape[1] // 2] = -np.inf  # nor in the first parts of this one
    shape = tuple(over.extents[name] for name in names)
    meaning = Meaning(over, arrays).term(term)
    axes = ["ijkt".index(name) for name in names]
    rest = [axis for axis in range(4) if axis not in axes]
    expected = meaning.transpose(*axes, *rest)[(..., *([0] * len(rest)))]
    expected = np.broadcast_to(expected, shape).astype(np.float64)
    kind = Facts(over).dtype(term)
    buffers = {"y": Buffer("y", shape, kind, "output")}
    for sub_term in post_order([term]):
        if sub_term.op == "read":
            read = sub_term.args[0]
            assert isinstance(read, Read)
            size = (arrays[read.buffer].size,)
            buffers[read.buffer] = Buffer(read.buffer, size, read.dtype, "input")
    return (Stored("y", term, tuple(names), kind),), buffers, arrays, expected


def run(kernels: list[Kernel], arrays: Arrays) -> np.ndarray:
    """What the kernels, in order, leave in y."""
    memory: Arrays = {}
    for kernel in kernels:
        check(kernel)
        for buffer in kernel.buffers:
            if buffer.name not in memory:
                given = np.full(buffer.size, 7.0) if buffer.role != "input" else arrays[buffer.name]
                memory[buffer.name] = given.astype(buffer.dtype.numpy).reshape(buffer.shape)
        oracle.run(kernel, memory)
    return memory["y"].astype(np.float64)


def whole(
    stored: tuple[Stored, ...], facts: Facts, buffers: dict[str, Buffer], size: int
) -> Kernel:
    """One kernel; what is reduced first is streamed in chunks of `size`."""
    made = form(stored, facts)
    return lower("k", made, schedule(made, size), buffers, "oracle")


def schedule(made: Form, size: int, **tiles: int) -> Schedule:
    tiles = {name: 2 for name in made.grid} | tiles
    chunks = {n: min(size, made.extents[n]) for n in made.reduced}
    operations = {t: str(t.args[3]) for t in made.terms if t.op in SUBSTITUTED}
    return Schedule(tiles, chunks, operations=operations)


def in_parts(
    stored: tuple[Stored, ...], facts: Facts, buffers: dict[str, Buffer], parts: int, size: int
) -> list[Kernel]:
    """The kernels of the parts, again for as long as j is reduced; then the one that joins them."""
    kernels: list[Kernel] = []
    while True:
        division = divide(form(stored, facts), "j", parts, f"k{len(kernels)}")
        if division is None:
            return [*kernels, whole(stored, facts, buffers, size)]
        buffers |= {buffer.name: buffer for buffer in division.buffers}
        kernels.append(of_parts(division, buffers, size))
        stored, facts = division.rest, division.rest_facts


def of_parts(division: Division, buffers: dict[str, Buffer], size: int) -> Kernel:
    made = form(division.first, division.first_facts)
    kernel = lower("k", made, schedule(made, size, **{division.part: 1}), buffers, "oracle")
    (axis,) = (axis for axis in kernel.grid if axis.name == division.part)
    assert axis == Axis(division.part, division.buffers[0].shape[0], 1)
    return kernel


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("program", SIMPLE, ids=lambda p: p.__name__)
def test_parts_join_to_the_whole(program, extents) -> None:
    over = universe(*extents, 1)
    stored, buffers, arrays, expected = setup(program, over, "ik")
    np.testing.assert_allclose(
        run([whole(stored, Facts(over), dict(buffers), 5)], arrays), expected, rtol=1e-9, atol=1e-9
    )
    for parts in PARTS:
        kernels = in_parts(stored, Facts(over), dict(buffers), parts, 5)
        uneven = extents[1] % parts  # no literal of float64 is the identity of min in int64
        again = program is variance or (program is argmax and not uneven)
        assert len(kernels) == 2 + again
        np.testing.assert_allclose(run(kernels, arrays), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
def test_rows_that_are_stored_are_free_of_their_parts(extents) -> None:
    over = universe(*extents, 1)
    stored, buffers, arrays, expected = setup(softmax, over, "kij")
    for parts in PARTS:
        kernels = in_parts(stored, Facts(over), dict(buffers), parts, 5)
        assert [axis.name for axis in kernels[1].grid] == ["k", "i", "j"]
        np.testing.assert_allclose(run(kernels, arrays), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "program", [by_operation, attention_by_operation], ids=lambda p: p.__name__
)
def test_products_by_an_operation_stay_products_of_what_lies_in_memory(program) -> None:
    """Points beyond the axis are read as zeros, so that no select stands before the operation."""
    for extents in EXTENTS:
        over = universe(*extents, 1)
        stored, buffers, arrays, expected = setup(program, over, "ik", "float32")
        kernels = in_parts(stored, Facts(over), dict(buffers), 3, 5)
        found = [s for s in kernels[0].statements() if type(s).__name__ == "Contract"]
        assert [s.operation for s in found] == ["mma"]
        loads = {s.name for s in kernels[0].statements() if type(s).__name__ == "Load"}
        assert found[0].right in loads
        close = run([whole(stored, Facts(over), dict(buffers), 5)], arrays)
        np.testing.assert_allclose(run(kernels, arrays), close, rtol=2e-2, atol=2e-2)
        np.testing.assert_allclose(close, expected, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "bool", "bfloat16"])
@pytest.mark.parametrize("op", ["reduce_sum", "reduce_max", "reduce_min"])
def test_every_dtype_has_an_identity(op, dtype) -> None:
    """Exactly as in one kernel; 16-bit floats are stored as they are added, in float32."""
    for extents in EXTENTS:
        over = universe(*extents, 1)
        stored, buffers, arrays, _ = setup(
            lambda t: Term(op, t.mask("j"), t.read("a", "ijk")), over, "ik", dtype
        )
        arrays["a"] = np.round(10 * arrays["a"])
        if dtype in {"bool", "uint8"}:
            arrays["a"] = np.abs(arrays["a"])
        expected = run([whole(stored, Facts(over), dict(buffers), 5)], arrays)
        kernels = in_parts(stored, Facts(over), dict(buffers), 3, 5)
        kept = kernels[0].buffers[-1].dtype
        assert kept == as_dtype(dtype).compute
        np.testing.assert_array_equal(run(kernels, arrays), expected)


def test_a_stored_maximum_is_the_pivot_of_its_weights() -> None:
    over = universe(2, 12, 3, 1)
    stored, buffers, _, _ = setup(attention, over, "ik")
    first, _ = in_parts(stored, Facts(over), buffers, 3, 2)
    stream = next(phase for phase in first.phases if phase.stream)
    assert sorted(carry.monoid for carry in stream.carries) == ["max", "sum", "sum"]
    assert {carry.pivot for carry in stream.carries} == {"", first.phases[-1].stores[0].value}


@pytest.mark.parametrize(
    ("extent", "parts", "length"), [(12, 3, 4), (13, 3, 64), (1000, 3, 384), (1 << 20, 8, 1 << 17)]
)
def test_parts_are_of_equal_or_of_aligned_length(extent, parts, length) -> None:
    assert part_length(extent, parts) == length


def test_what_cannot_be_in_parts() -> None:
    t = Terms(universe(2, 13, 3, 2))
    a, b = t.read("a", "ij"), t.read("b", "jk")
    scanned = t.sum("j", mul(Term("scan_sum", t.mask("j"), a), b))
    shadowed = t.sum("j", mul(t.sum("j", mul(a, b)), b))
    wide = Term("reduce_min", t.mask("j"), t.read("n", "j", "int64"))
    for term in (scanned, wide):
        made = form([Stored("y", term, ("i", "k"), as_dtype("float32"))], Facts(t.universe))
        assert divide(made, "j", 3, "k") is None
        assert divide(made, "t", 2, "k") is None
    made = form([Stored("y", shadowed, ("i", "k"), as_dtype("float32"))], Facts(t.universe))
    division = divide(made, "j", 3, "k")
    assert division is not None and len(division.first) == 1  # the inner one, which comes first
    even = form([Stored("y", wide, (), as_dtype("int64"))], Facts(universe(2, 12, 3, 2)))
    assert divide(even, "j", 3, "k") is not None


# --- the choice -----------------------------------------------------------------------------------

H200 = load("h200")
ORACLE = replace(H200, target="oracle")


def kernels_of(outputs: g.Tensor, **options: object) -> list[Kernel]:
    planned = plan(outputs, H200, cache=Cache(None), **options)  # type: ignore[arg-type]
    return [launch.kernel for launch in planned.parts.launches]


def is_split(kernel: Kernel) -> bool:
    return any(rule.startswith("split ") for rule in kernel.rules)


def matmul(m: int, n: int, k: int) -> g.Tensor:
    return g.input("a", (m, k), "bfloat16") @ g.input("b", (k, n), "bfloat16")


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        pytest.param(
            lambda: matmul(512, 512, 32768), [True, False], marks=pytest.mark.slow, id="deep"
        ),
        (lambda: matmul(4096, 4096, 4096), [False]),
        (lambda: g.sum(g.input("x", (1 << 28,), "float32")), [True, False]),
        (lambda: g.var(g.input("x", (1 << 28,), "float32")), [True, False]),
        (lambda: g.softmax(g.input("x", (16, 1 << 20), "float32")), [True, False]),
        (lambda: g.softmax(g.input("x", (8192, 1024), "float32")), [False]),
    ],
    ids=[None, "cube", "sum", "var", "long rows", "short rows"],
)
@pytest.mark.usefixtures("shared_search")
def test_few_tiles_are_split_and_many_are_not(outputs, expected) -> None:
    assert [is_split(kernel) for kernel in kernels_of(outputs())] == expected


def program_of(outputs: g.Tensor, cache: Cache, **options: object) -> Program:
    return compile(outputs, ORACLE, cache=cache, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("shared_search")
def test_a_program_runs_the_parts_and_then_what_joins_them(tmp_path) -> None:
    """Found anew, and again from the cache."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((32, 8192), (8192, 32)))
    given = [g.input("a", a.shape, "float32"), g.input("b", b.shape, "float32")]
    store = Cache(tmp_path)
    for known in (False, True):
        program = program_of(g.tanh(given[0] @ given[1] / 99), store)
        assert program.report.from_cache == known
        assert [is_split(kernel) for kernel in program.kernels] == [True, False]
        assert [b.role for b in program.parts.buffers.values()].count("temporary") == 1
        expected = np.tanh(a.astype(np.float64) @ b / 99)
        np.testing.assert_allclose(program(a, b), expected, rtol=1e-4, atol=1e-5)


def rows(x: g.Tensor) -> g.Tensor:
    return g.abs(x - g.mean(x, axis=-1, keepdims=True))


OF_ROWS = {
    "mean": lambda x: g.mean(rows(x)),
    "largest": lambda x: g.max(rows(x)),
    "weights": lambda x: g.sum(g.softmax(x) ** 2),
    "normal": lambda x: g.sum(g.layer_norm(x) ** 3),
}

OFTEN = (((600, 1000), "weights"), ((4, 150, 520), "largest"))


@pytest.mark.usefixtures("shared_search")
@pytest.mark.parametrize(
    ("shape", "name"),
    [
        pytest.param(shape, name, marks=[] if (shape, name) in OFTEN else pytest.mark.slow)
        for shape in ((600, 1000), (4, 150, 520))
        for name in OF_ROWS
    ],
    ids=str,
)
def test_what_rows_are_reduced_to_is_reduced_after_one_pass(name, shape) -> None:
    """Each row is a part, and stays where its own reduction left it."""
    data = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x = g.input("x", shape, "float32")
    program = program_of(OF_ROWS[name](x), Cache(None))
    reads = [a.buffer for k in program.kernels for a in loads(k)]
    assert reads.count("x0") == 1 and len(reads) > 1
    (wanted,) = g.evaluate([OF_ROWS[name](x)], {"x": data}, np.float64)
    np.testing.assert_allclose(program(x=data), wanted, rtol=2e-5)
    planned = plan(OF_ROWS[name](x), H200, cache=Cache(None))
    explanation = from_json(json.loads(json.dumps(to_json(planned.explain()))))
    assert check_trace(explanation, planned.segments, planned.search.rules, H200) > 0


def loads(kernel: Kernel) -> list[Access]:
    return [s.access for s in kernel.statements() if isinstance(s, Load)]


@pytest.mark.usefixtures("shared_search")
def test_a_given_grid_or_block_is_that_of_one_kernel() -> None:
    x = g.input("x", (1 << 20,), "float32")
    assert [is_split(kernel) for kernel in kernels_of(g.sum(x))] == [True, False]
    (kernel,) = kernels_of(g.sum(x), grid_dim=1)
    assert kernel.tiles == 1
    (kernel,) = kernels_of(g.sum(x), block_dim=256)
    assert kernel.threads == 256


@pytest.mark.usefixtures("shared_search")
@pytest.mark.parametrize(
    "program",
    ["sum", *(pytest.param(name, marks=pytest.mark.slow) for name in ("var", "attention"))],
)
def test_the_explanation_has_the_split_and_holds(program) -> None:
    x = g.input("x", (1 << 24,), "float32")
    q, k, v = (
        g.input(n, (1, 8, s, 64), "float32") for n, s in zip("qkv", (1, 32768, 32768), strict=True)
    )
    outputs = {
        "sum": lambda: g.sum(x),
        "var": lambda: g.var(x),
        "attention": lambda: g.attention(q, k, v),
    }
    planned = plan(outputs[program](), H200, cache=Cache(None))
    launched = [launch.kernel for launch in planned.parts.launches]
    planned_seconds = sum(launch.seconds for launch in planned.parts.launches)
    explanation = planned.explain()
    assert explanation.notes == ()
    assert explanation.seconds == pytest.approx(planned_seconds)
    (segment,) = explanation.segments
    assert [k.kernel for k in segment.kernels] == launched
    last = [kernel.trace.steps[-1].rule for kernel in segment.kernels]
    assert "split" in last and last[-1] != "split"
    rules, spec = planned.search.rules, planned.search.spec
    restored = from_json(json.loads(json.dumps(to_json(explanation))))
    assert check_trace(restored, planned.segments, rules, spec) > 0
    dropped = replace(segment, kernels=segment.kernels[:-1])
    with pytest.raises(TraceError, match="no kernel joins the parts in t"):
        check_trace(replace(explanation, segments=(dropped,)), planned.segments, rules, spec)
    other = replace(segment.kernels[-1], stored=segment.kernels[0].stored)
    changed = replace(segment, kernels=(*segment.kernels[:-1], other))
    with pytest.raises(TraceError, match=r"does not compute what the parts in t.* leave to do"):
        check_trace(replace(explanation, segments=(changed,)), planned.segments, rules, spec)


def test_parts_fill_the_processors_where_powers_of_two_leave_some_idle() -> None:
    """Of 132 processors 12 tiles in 11 parts keep all at work, and in 8 only 96."""
    filling = dict(fill_processors(132, (4, 8, 16), 32768, 128))
    assert filling[12] == 11 and filling[9] == 14 and filling[6] == 22
    assert 8 not in filling and 16 not in filling  # in 16, or 8, 128
    assert 66 not in filling  # in 2 parts all, as in 4 parts twice
    assert all(0.8 * 132 < tiles * parts <= 132 for tiles, parts in filling.items())
    assert all(parts <= 8 for _, parts in fill_processors(132, (2, 4, 8), 2048, 8))
    lengths = {part_length(32768, parts) * parts >= 32768 for parts in filling.values()}
    assert lengths == {True}


@pytest.mark.usefixtures("shared_search")
def test_a_product_of_few_tiles_is_in_as_many_parts_as_fill_the_device() -> None:
    first, *_ = kernels_of(matmul(384, 384, 16384))
    assert first.tiles > 0.9 * load("h200").processors and first.grid[0].count not in (8, 16, 32)


@pytest.mark.usefixtures("shared_search")
@pytest.mark.slow
def test_blocks_of_a_part_copy_factors_for_each_other(monkeypatch) -> None:
    """The step `share` after `split`, as the explanation replays it."""

    def both(offered: Sequence[Offer]) -> tuple[list[Ranked], set[str]]:
        ranked, refused = rank(offered)
        wanted = [one for one in ranked if one.choice.parts and one.choice.shared > 1]
        return wanted or ranked, refused

    monkeypatch.setattr("eqsat.schedule.scheduling.rank", both)
    planned = plan(matmul(512, 512, 8192), H200, cache=Cache(None))
    first, _ = (launch.kernel for launch in planned.parts.launches)
    assert first.multicast == 2 and first.rules[-2].startswith("split ")
    (segment,) = planned.explain().segments
    assert [step.rule for step in segment.kernels[0].trace.steps][-2:] == ["split", "share"]
    restored = from_json(json.loads(json.dumps(to_json(planned.explain()))))
    assert check_trace(restored, planned.segments, planned.search.rules, planned.search.spec) > 0


@pytest.mark.usefixtures("shared_search")
def test_statistics_of_long_columns_are_found_once_and_in_equal_parts() -> None:
    """4 000 000 is no multiple of a power of two of parts; sums about means join where parts are
    equal, and what every row needs is joined before rows are read.
    """
    x = g.input("x", (4_000_000, 32))
    kernels = kernels_of((x - g.mean(x, axis=0)) / g.std(x, axis=0))
    reading = [kernel for kernel in kernels if "x0" in {b.name for b in kernel.buffers}]
    sums, rows = reading
    assert [len(phase.stream) for phase in sums.phases].count(1) == 1
    assert not any(phase.stream for phase in rows.phases)


@pytest.mark.usefixtures("shared_search")
def test_a_sum_over_rows_and_columns_is_in_parts_that_fill_the_device() -> None:
    """Rows cannot be one with columns: a factor has one number for each. What is long in memory is
    read along; parts are of rows.
    """
    x, y = g.input("x", (32768, 1024)), g.input("y", (32768,))
    first, *_ = kernels_of(g.mean(g.relu(1 - x * y[:, None])))
    assert math.prod(axis.count for axis in first.grid) >= 128
    (load,) = (s for s in first.statements() if isinstance(s, Load) and s.access.buffer == "x0")
    (along,) = (i for i in load.indices if dict(load.access.address.terms).get(i) == 1)
    assert min(first.axes()[along].tile, first.axes()[along].extent) >= 256
