"""Which kernels programs become for a large GPU, and what those keep in memory. None runs on it."""

from dataclasses import replace
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.targets import TARGETS
from eqsat.cut.cuts import Plan
from eqsat.cut.extraction import Extractor
from eqsat.driver import compile, plan
from eqsat.graph.evaluate import evaluate, topological
from eqsat.graph.ops import ELEMENTWISE
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Contract, Kernel, Load, Map, Reduce
from eqsat.program import Launch, Program
from eqsat.segment.fold import settle
from eqsat.specs import ParallelOperation, load
from eqsat.terms.algebra import post_order

pytestmark = pytest.mark.usefixtures("shared_search")
BF16 = "bfloat16"


def planned(*outputs: Tensor) -> tuple[list[Kernel], dict[str, int]]:
    """The kernels, and the temporaries with their points."""
    parts = plan(list(outputs), load("h200"), cache=Cache(None)).parts
    temporary = {n: prod(b.shape) for n, b in parts.buffers.items() if b.role == "temporary"}
    return [launch.kernel for launch in parts.launches], temporary


def operations(kernel: Kernel) -> list[str]:
    return [s.operation for s in kernel.statements() if isinstance(s, Contract)]


def loads(kernel: Kernel) -> list[str]:
    return [s.access.buffer for s in kernel.statements() if isinstance(s, Load)]


def bf16(**shapes: tuple[int, ...]) -> list[Tensor]:
    return [g.input(name, shape, BF16) for name, shape in shapes.items()]


def test_cross_entropy_reads_the_logits_once() -> None:
    """The maximum, the sum of exponentials and the target's logit in one pass over each row."""
    x, t = g.input("x", (1024, 128256), BF16), g.input("t", (1024,), "int64")
    kernels, temporary = planned(g.cross_entropy(x, t, reduction="none"))
    assert len(kernels) == 1 and not temporary
    (streamed,) = (phase for phase in kernels[0].phases if phase.stream)
    assert len([s for s in streamed.body if isinstance(s, Load)]) == 1


def turned_halves(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = y.shape[-1] // 2
    a, b = y[..., :half], y[..., half:]
    return g.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)


def plus_turned(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = y.shape[-1] // 2
    other = g.concat([-y[..., half:], y[..., :half]], axis=-1)
    return y * g.concat([cos, cos], axis=-1) + other * g.concat([sin, sin], axis=-1)


@pytest.mark.parametrize("rotary", [turned_halves, plus_turned])
def test_rows_that_are_normed_and_turned_by_halves_are_summed_once(rotary) -> None:
    """What of a row is the same at all of its places stays so where these move under a guard."""
    x, w, cos, sin = bf16(x=(4096, 32, 128), w=(128,), cos=(4096, 1, 64), sin=(4096, 1, 64))
    kernels, temporary = planned(rotary(g.rms_norm(x, w), cos, sin))
    assert len(kernels) == 1 and not temporary
    (summed,) = (s for s in kernels[0].statements() if isinstance(s, Reduce))
    assert len(summed.indices) == 2


@pytest.mark.slow
def test_an_output_that_others_are_made_of_is_stored_once() -> None:
    """A product of weights that are asked for too reads them where they were stored."""
    x, w, v = bf16(x=(4096, 4096), w=(4096, 1024), v=(1024, 4096))
    weights = g.softmax(x @ w)
    parts = plan([weights, weights @ v], load("h200"), cache=Cache(None)).parts
    names = [name for name, *_ in parts.outputs]
    (first,) = (launch for launch in parts.launches if names[0] in writes(launch))
    last = parts.launches[-1]
    assert operations(last.kernel) and names[1] in writes(last)
    assert names[0] in {*last.buffers} - writes(last) and first is not last


def writes(launch: Launch) -> set[str]:
    """The program's buffers that a launch stores to."""
    named = dict(zip((b.name for b in launch.kernel.buffers), launch.buffers, strict=True))
    stores = (store for phase in launch.kernel.phases for store in phase.stores)
    return {named[store.access.buffer] for store in stores}


def huber(x: Tensor, y: Tensor) -> Tensor:
    far = g.abs(x - y)
    return g.mean(g.where(far < 1, 0.5 * (x - y) ** 2, far - 0.5))


LOSSES = {
    "huber": huber,
    "cubes": lambda x, y: g.sum((x - y) ** 3),
    "largest": lambda x, y: g.max(g.abs(x * y) + x * y),
}


@pytest.mark.parametrize(  # by default each loss of one shape
    ("name", "shape"),
    [
        pytest.param(name, shape, marks=[] if n == at else pytest.mark.slow)
        for n, name in enumerate(LOSSES)
        for at, shape in enumerate(((8192, 8192), (65536, 512), (64, 1024, 512)))
    ],
)
def test_a_loss_over_all_axes_reads_its_arrays_once(name: str, shape: tuple[int, ...]) -> None:
    """In parts, and then the parts: what is used several times is computed, not stored."""
    x, y = g.input("x", shape), g.input("y", shape)
    kernels, temporary = planned(LOSSES[name](x, y))
    assert len(kernels) == 2 and all(points < 4096 for points in temporary.values())
    assert not any("pow" in str(statement) for k in kernels for statement in k.statements())


@pytest.mark.parametrize("axis", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_sum_of_a_rounded_product_is_of_sums(axis: int) -> None:
    """sum_i round(A B) = (sum_i A) B: what is summed need not be rounded first."""
    a, b = bf16(a=(4096, 4096), b=(4096, 4096))
    kernels, temporary = planned(g.sum(a @ b, axis))
    assert max(temporary.values()) <= 4096 * 64  # sums, or parts of them: never the product
    assert not any(map(any, map(operations, kernels)))


def test_a_program_that_asks_for_exact_results_keeps_the_rounding() -> None:
    a, b = bf16(a=(512, 512), b=(512, 512))
    parts = plan(g.sum(a @ b, 0), load("h200"), cache=Cache(None), precision="exact").parts
    assert any(operation for launch in parts.launches for operation in operations(launch.kernel))


@pytest.mark.slow
def test_queries_that_share_keys_take_them_by_matrix_operations() -> None:
    """Four heads of queries to one of keys: nothing is copied, nor computed by other means."""
    q, k, v = bf16(q=(2, 16, 1024, 128), k=(2, 4, 1024, 128), v=(2, 4, 1024, 128))
    kernels, temporary = planned(g.attention(q, k, v, causal=True))
    assert len(kernels) == 1 and not temporary
    assert len(operations(kernels[0])) == 2
    assert all("wgmma" in operation for operation in operations(kernels[0]))
    assert sorted(set(loads(kernels[0]))) == sorted(loads(kernels[0]))


def test_one_query_of_heads_that_share_keys_is_rows_of_a_product() -> None:
    """Decoding: a tile holds the four heads that read the same keys, which are read once."""
    q, k, v = bf16(q=(64, 32, 1, 128), k=(64, 8, 4096, 128), v=(64, 8, 4096, 128))
    (kernel,), temporary = planned(g.attention(q, k, v))
    assert not temporary and all("wgmma" in operation for operation in operations(kernel))
    axes = kernel.axes()
    names = {s.access.buffer: set(s.indices) for s in kernel.statements() if isinstance(s, Load)}
    (shared,) = (q for b, q in names.items() if b == "x0")
    heads = shared - set().union(*(own for b, own in names.items() if b != "x0"))
    assert [axes[name].extent for name in heads] == [4] == [axes[name].tile for name in heads]


@pytest.mark.slow
def test_attention_between_projections_stores_no_scores() -> None:
    """Views split and swap the heads of one product: their names lie between those of its rows."""
    batch, length, size, heads = 8, 1024, 768, 12
    x, out = g.input("x", (batch, length, size), BF16), g.input("out", (size, size), BF16)
    joint = x @ g.input("w", (size, 3 * size), BF16)

    def split(part: int) -> Tensor:
        own = joint[:, :, part * size : (part + 1) * size]
        return g.permute_dims(g.reshape(own, (batch, length, heads, -1)), (0, 2, 1, 3))

    seen = g.attention(split(0), split(1), split(2), causal=True)
    y = g.reshape(g.permute_dims(seen, (0, 2, 1, 3)), x.shape) @ out
    parts = plan(y, load("h200"), cache=Cache(None)).parts
    assert len(parts.launches) == 3
    assert max(b.size for b in parts.buffers.values()) == batch * length * 3 * size


def test_a_sum_over_heads_and_their_features_streams_one_head_at_a_time() -> None:
    x, w = bf16(x=(2, 32, 1024, 128), w=(4096, 1024))
    joined = g.reshape(g.permute_dims(x, (0, 2, 1, 3)), (2, 1024, 4096))
    kernels, temporary = planned(joined @ w)
    assert len(kernels) == 1 and not temporary
    assert "wgmma" in operations(kernels[0])[0]


@pytest.mark.slow
def test_what_several_products_share_is_stored_once_in_its_narrow_dtype() -> None:
    """A normalised row is a factor of three products; none computes it for each of its tiles."""
    x, n, q, k, v = bf16(x=(4096, 4096), n=(4096,), q=(4096, 4096), k=(4096, 1024), v=(4096, 1024))
    y = g.rms_norm(x, n)
    kernels, temporary = planned(y @ q, y @ k, y @ v)
    assert list(temporary.values()) == [x.size]
    assert all("_ss" in operation for kernel in kernels for operation in operations(kernel))


def test_a_gate_is_no_wider_in_memory_than_written() -> None:
    x, gate, up, down = bf16(x=(2048, 2048), gate=(2048, 8192), up=(2048, 8192), down=(8192, 2048))
    parts = plan((g.silu(x @ gate) * (x @ up)) @ down, load("h200"), cache=Cache(None)).parts
    temporary = [b for b in parts.buffers.values() if b.role == "temporary"]
    assert temporary and all(b.dtype.name == BF16 for b in temporary)


def test_a_kernel_computes_nothing_that_it_also_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms of centres, by which the nearest one is found: stored or computed, not both."""
    plans: list[Plan] = []
    run = Extractor.run

    def keep(extractor: Extractor, outputs: list[tuple[int, str, tuple[str, ...]]]) -> Plan:
        plans.append(run(extractor, outputs))
        return plans[-1]

    monkeypatch.setattr(Extractor, "run", keep)
    x, c = g.input("x", (100000, 64)), g.input("c", (256, 64))
    planned(g.argmin(g.sum(c * c, 1) - 2 * (x @ c.T), 1))
    stored = {one.buffer: one.term for found in plans for one in found.separate}
    for term in stored.values():
        below = set(post_order([term]))
        reads = {sub.args[0].buffer for sub in below if sub.op == "read"}
        assert not below & {stored[buffer] for buffer in reads & set(stored)}


# --- operations of kernels alone -----------------------------------------------------------------


@pytest.mark.parametrize(
    "form", ["gelu", "half of the whole", pytest.param("one before", marks=pytest.mark.slow)]
)
def test_one_plus_erf_is_one_operation_where_the_spec_has_a_row(form: str) -> None:
    x = g.input("x", (1024, 1024))
    curve = g.erf(x * 0.7071)
    forms = {
        "gelu": g.gelu(x),
        "half of the whole": x * (curve + 1.0) / 2.0,
        "one before": 0.5 * x * (1.0 + curve),
    }
    units = [load(name) for name in ("h200", "cpu")]
    bare = [
        replace(unit, operations=tuple(map(without_one_plus_erf, unit.operations)))
        for unit in units
    ]
    expectations = [(unit, {"one_plus_erf"}) for unit in units] + [(one, {"erf"}) for one in bare]
    for spec, expected in expectations:
        (launch,) = plan([forms[form]], spec, cache=Cache(None)).parts.launches
        ops = {s.op for s in launch.kernel.statements() if isinstance(s, Map)}
        assert ops & {"erf", "one_plus_erf"} == expected


def without_one_plus_erf(operation: ParallelOperation) -> ParallelOperation:
    kept = {name: n for name, n in operation.implements.items() if name != "one_plus_erf"}
    return replace(operation, implements=kept) if kept else operation


# --- numbers alone -------------------------------------------------------------------------------


NUMBERS = {
    "power": lambda x: g.grad(g.sum(x**2), x),
    "root": lambda x: x * g.sqrt(g.constant(2.0)),
    "choice": lambda x: x + g.where(g.constant(1.0) > 2, 3.0, g.full((4,), 5.0) * 2),
    "bits": lambda x: g.astype(x, "int64") + (g.constant(2**53) - 2**52),
    "narrow": lambda x: g.astype(x, "bfloat16") * g.sqrt(g.constant(2.0, "bfloat16")),
}
KEPT = {
    "not a number": (lambda x: x + g.log(g.constant(-1.0)), "log"),
    "more bits than literals": (lambda x: g.astype(x, "int64") + (g.constant(2**53) + 1), "add"),
}


@pytest.mark.parametrize("name", [*NUMBERS, *KEPT])
def test_what_is_made_of_numbers_alone_is_a_number(name: str) -> None:
    x = g.input("x", (3, 4))
    output = NUMBERS[name](x) if name in NUMBERS else KEPT[name][0](x)
    (settled,) = settle([output])
    made = [t for t in topological([settled]) if t.op in ELEMENTWISE]
    alone = {t.op for t in made if not any(o.op == "input" for o in topological([t]))}
    assert alone == ({KEPT[name][1]} if name in KEPT else set())
    given = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}
    (wanted,) = evaluate([output], given)
    np.testing.assert_array_equal(evaluate([settled], given)[0], wanted)
    np.testing.assert_array_equal(np.asarray(compile(output, "cpu")(**given)), wanted)


# --- gathers -------------------------------------------------------------------------------------


def taken(name: str) -> SimpleNamespace:
    """Programs that take points of something computed, and how much the settled table holds."""
    x, t = g.input("x", (6, 40)), g.input("t", (6,), "int64")
    tables = {
        "cast": g.astype(x, "float64"),
        "log_softmax": g.log_softmax(x),
        "scaled": g.exp(x * 2.0) + g.reshape(g.sum(x, 0), (1, 40)),
        "product": x @ g.matrix_transpose(x) @ x,
    }
    return SimpleNamespace(x=x, t=t, output=g.take(tables[name], t, 1))


@pytest.mark.parametrize("name", ["cast", "log_softmax", "scaled", "product"])
def test_points_are_taken_before_they_are_computed(name: str) -> None:
    """f(x)[i] = f(x[i]), where that leaves less to store."""
    made = taken(name)
    (settled,) = settle([made.output])
    gathers = [t for t in topological([settled]) if t.op == "gather"]
    assert {t.operands[0].op for t in gathers} <= {"input", "reduce_sum", "reduce_max"}
    rng = np.random.default_rng(0)
    values = {"x": rng.standard_normal((6, 40), np.float32), "t": rng.integers(0, 40, 6)}
    (expected,), (found,) = evaluate([made.output], values), evaluate([settled], values)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    program = compile(made.output, "cpu", inputs=[made.x, made.t], cache=Cache(None))
    np.testing.assert_allclose(program(*values.values()), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_rows_that_are_looked_up_cost_what_is_read(name: str) -> None:
    table, rows = g.input("t", (50000, 64)), g.input("i", (1 << 20,), "int64")
    spec = load(name)
    launches = plan(g.take(table, rows, 0), spec, cache=Cache(None)).parts.launches
    dram = spec.memory("dram").bandwidth_gb_per_s * 1e9
    assert sum(launch.seconds for launch in launches) < 3 * 4 * (1 << 26) / dram


def crowded(name: str) -> Tensor:
    """A sum over several names, none long enough to be streamed in chunks, that do not join."""
    x, y = g.input("x", (2, 200, 190)), g.input("y", (2, 190, 200))
    if name == "extremum":
        return g.max(x + y.mT, axis=(1, 2))
    if name == "dot":
        return g.sum(x * g.permute_dims(y, (0, 2, 1)))
    a, b, w = (
        g.input("a", (4, 16, 28, 28)),
        g.input("b", (4, 16, 28, 28)),
        g.input("w", (16, 16, 3, 3)),
    )
    return g.grad(g.conv(a, w, padding=1), w, cotangent=b)


@pytest.mark.parametrize("device", ["h200", "a100"])
@pytest.mark.parametrize("name", ["extremum", "dot", "weights of a convolution"])
def test_sums_over_several_short_names_fit_a_tile(name: str, device: str) -> None:
    output = crowded(name)
    planned = plan(output, load(device), cache=Cache(None))
    assert sum(launch.seconds for launch in planned.parts.launches) < 1e-3
    backend = TARGETS["oracle"].backend(load(device), None)
    program = Program(planned.parts, backend, output, planned.report, planned.explain)
    rng = np.random.default_rng(5)
    arrays = {a.name: rng.standard_normal(a.shape, np.float32) for a in program.arguments}
    (expected,) = evaluate(
        [output], {**arrays, "w": np.zeros((16, 16, 3, 3), np.float32)}, np.float64
    )
    scale = np.abs(expected).max()
    np.testing.assert_allclose(program(**arrays) / scale, expected / scale, atol=1e-4)


def test_columns_that_are_reduced_in_pairs_are_stored_as_the_product_has_them() -> None:
    """A price that took the pairs for strides would rather have copied the weights."""
    x, w = bf16(x=(1024, 8192), w=(8192, 8192))
    _, temporary = planned(g.max(g.reshape(x @ w, (1024, 4096, 2)), axis=2))
    assert max(temporary.values()) <= 1024 * 8192


def test_rows_are_reduced_while_their_columns_are_normed() -> None:
    """A chunk of a row's sum beside all rows is a few columns: the columns' own sums are whole."""
    x = g.input("x", (1024, 8192))
    wide = (x - g.mean(x, axis=0)) * g.rsqrt(g.var(x, axis=0) + 1e-5)
    kernels, _ = planned(g.softmax(wide * 0.7, axis=1))
    assert len(kernels) <= 3
