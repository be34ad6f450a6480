"""Programs with gradients: what segments store, what joins, kernels that reduce a name twice."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

import eqsat.graph as g
from eqsat import specs
from eqsat.cache.store import Cache
from eqsat.codegen import oracle
from eqsat.codegen.targets import TARGETS
from eqsat.cut.join import join, read_buffers
from eqsat.driver import plan
from eqsat.errors import SpecError
from eqsat.graph.dtypes import as_dtype
from eqsat.graph.evaluate import topological
from eqsat.graph.index import row_major
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Buffer, Contract, Kernel, Map, Reduce, check
from eqsat.lower.lowering import Schedule, lower
from eqsat.program import Program
from eqsat.rules.carries import SOFTMAX
from eqsat.schedule import apart
from eqsat.schedule.menu import schedule_menus
from eqsat.schedule.scheduling import Predicted
from eqsat.segment.boundary import is_elementwise, stored_values
from eqsat.segment.segments import anchor, partition
from eqsat.terms.algebra import Facts, Read, Term, Universe
from eqsat.terms.form import Stored, form

pytestmark = pytest.mark.usefixtures("shared_search")
RNG = np.random.default_rng(5)
SLOW = pytest.mark.slow


def classifier() -> tuple[Tensor, dict[str, Tensor], dict[str, np.ndarray]]:
    """A loss of two layers, its inputs, and arrays for them."""
    shapes = {"x": (32, 20), "w": (20, 24), "b": (24,), "v": (24, 10), "c": (10,)}
    arrays = {name: RNG.uniform(-1, 1, shape).astype("float32") for name, shape in shapes.items()}
    arrays["t"] = RNG.integers(0, 10, 32)
    at = {name: g.input(name, array.shape, array.dtype) for name, array in arrays.items()}
    scores = g.relu(at["x"] @ at["w"] + at["b"]) @ at["v"] + at["c"]
    return g.cross_entropy(scores, at["t"]), at, arrays


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("example_cuda", "xv"),
        *(pytest.param(*one, marks=SLOW) for one in (("h200", "xv"), ("example_cuda", "xwbvc"))),
    ],
)
def test_kernels_for_a_gpu_compute_the_gradients_of_a_classifier(name: str, wanted: str) -> None:
    """Sums inside the loops of one kernel bind names that the kernel reduces outside, too."""
    loss, at, arrays = classifier()
    outputs = (loss, *g.grad(loss, [at[one] for one in wanted]))
    unit = specs.load(name)
    planned = plan(outputs, unit, cache=Cache(None))
    for launch in planned.parts.launches:
        check(launch.kernel)
    backend = TARGETS["oracle"].backend(unit, None)
    program = Program(planned.parts, backend, outputs, planned.report, planned.explain)
    results = program(**{argument.name: arrays[argument.name] for argument in program.arguments})
    expected = g.evaluate(outputs, arrays, np.float64)
    for found, wide in zip(results, expected, strict=True):
        np.testing.assert_allclose(found, wide, rtol=1e-4, atol=1e-6)


def test_a_name_reduced_inside_a_loop_and_outside_is_not_streamed() -> None:
    over = Universe()
    i, j, k = (over.add(size) for size in (4, 64, 512))
    facts = Facts(over)

    def read(buffer: str, *names: str) -> Term:
        address = row_major(names, over.extents)
        return Term("read", Read(buffer, as_dtype("float32"), address))

    x, w = read("x", i, k), read("w", j, k)
    nested = Term("reduce_sum", over.mask([k]), Term("mul", x, w))
    outer = Term("reduce_max", over.mask([j]), nested)
    hoisted = Term("reduce_sum", over.mask([k]), x)
    made = form([Stored("y", Term("add", outer, hoisted), (i,), as_dtype("float32"))], facts)
    assert made.held == {k} and k in made.reduced
    menus = schedule_menus(made, specs.load("h200"))
    assert k not in menus.chunks and k in menus.kept


def attention_step() -> list[Tensor]:
    """A loss of two blocks of attention, and its gradients."""
    shapes = {"x": (16, 8, 32), "wq": (32, 32), "wk": (32, 32), "wv": (32, 32), "w": (32, 64)}
    shapes |= {"u": (64, 32), "a": (32,), "c": (32,)}
    at = {name: g.input(name, shape) for name, shape in shapes.items()}
    x = at["x"]
    for _ in range(2):
        normal = g.layer_norm(x, at["a"], at["c"])
        x = x + g.attention(normal @ at["wq"], normal @ at["wk"], normal @ at["wv"])
        x = x + g.gelu(g.layer_norm(x, at["a"], at["c"]) @ at["w"]) @ at["u"]
    loss = g.mean(g.square(x))
    return [loss, *g.grad(loss, list(at.values()))]


def test_segments_of_a_training_step_are_small_and_store_no_product_before_its_sum() -> None:
    outputs = attention_step()
    segments = partition(outputs)
    assert len(segments) > 2
    largest = max(output.size for output in outputs)
    for segment in segments:
        own = [t for t in segment.tensors if t.op not in {"view", "constant", "iota", "input"}]
        assert len(own) < 400
        assert all(t.size <= max(largest, 16 * 8 * 64) for t in segment.stored)
    made = {id(tensor) for segment in segments for tensor in segment.stored}
    read = {id(leaf) for segment in segments for leaf in segment.leaves if leaf.op != "input"}
    assert read <= made | {id(leaf) for s in segments for leaf in s.leaves if leaf.op == "constant"}


def test_of_what_crosses_the_fewest_bytes_are_stored() -> None:
    x = g.input("x", (64, 8))
    h = g.sum(g.expand_dims(x, 2) * g.input("w", (8, 32)), axis=1)
    a, b, c = g.exp(h), g.tanh(h), h * 2.0
    inside = {t for t in (h, a, b, c, anchor(h), h.operands[0])}
    kept = stored_values([a, b, c], inside, (), anchor)
    assert {id(t) for t in kept} == {id(h)}
    kept = stored_values([a], inside, (), anchor)
    assert {id(t) for t in kept} == {id(a)}, "of equal ones the nearest"
    narrow = g.astype(h, "bfloat16")
    wide = g.astype(narrow, "float32")
    kept = stored_values([wide], {*inside, narrow, wide}, (), anchor)
    assert {id(t) for t in kept} == {id(narrow)}
    kept = stored_values([wide], {*inside, narrow, wide}, {wide}, anchor)
    assert {id(t) for t in kept} == {id(wide)}, "it lies in memory anyway"
    assert is_elementwise(a) and not is_elementwise(h)


def joined_one_by_one(kernels: list[tuple[Stored, ...]], price: object) -> list[set[str]]:
    """Every pair priced in every round."""
    current = list(kernels)
    while True:
        gains = [
            (price(a) + price(b) - price((*a, *b)), a, b)  # type: ignore[operator]
            for a, b in itertools.combinations(current, 2)
            if set(read_buffers(a)) & set(read_buffers(b))
        ]
        gain, a, b = max(gains, key=lambda one: one[0], default=(0, (), ()))
        if gain <= 0:
            return [{one.buffer for one in kernel} for kernel in current]
        current = [(*a, *b), *(kernel for kernel in current if kernel not in (a, b))]


@pytest.mark.parametrize("seed", range(8))
def test_joining_prices_few_pairs_and_finds_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    over = Universe()
    i = over.add(64)
    facts, dtype = Facts(over), as_dtype("float32")
    cost = dict(zip("abcdef", rng.uniform(0.2, 3, 6), strict=True))

    def read(buffer: str) -> Term:
        return Term("read", Read(buffer, dtype, row_major((i,), over.extents)))

    kernels = []
    for number in range(12):
        left, right = rng.choice(list("abcdef"), 2, replace=False)
        kernels.append((Stored(f"y{number}", Term("add", read(left), read(right)), (i,), dtype),))
    calls = []

    def price(kernel: tuple[Stored, ...]) -> float:
        """A launch, what is read once, and more than in proportion to what is stored."""
        calls.append(kernel)
        return 1 + sum(cost[b] for b in read_buffers(kernel)) + 0.3 * len(kernel) ** 1.7

    wanted = joined_one_by_one(kernels, price)
    every = len(calls)
    calls.clear()
    found = [{one.buffer for one in kernel} for kernel in join(kernels, facts, price)]
    assert sorted(map(sorted, found)) == sorted(map(sorted, wanted))
    assert len(calls) < every / 4


def scheduled(
    monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float], count: int = 4
) -> list[list[str]]:
    """The buffers of each kernel for values whose kernels were taken to need a second each."""

    def schedule(name: str, stored: tuple[Stored, ...], *rest: object) -> list[Predicted]:
        if seconds(len(stored)) == np.inf:
            raise SpecError("no schedule fits")
        kernel = Kernel(" ".join(one.buffer for one in stored), (), (), (), ())
        return [Predicted(kernel, seconds(len(stored)), "")]

    monkeypatch.setattr(apart, "schedule_region", schedule)
    monkeypatch.setattr(apart, "estimate", lambda stored, *rest: float(len(stored)))
    read = Term("literal", 1.0, "float32")
    values = tuple(Stored(f"y{i}", read, (), as_dtype("float32")) for i in range(count))
    found = apart.schedule_joined("k", values, Facts(Universe()), None, {}, None)  # type: ignore[arg-type]
    return [predicted.kernel.name.split() for predicted in found]


def test_what_was_joined_is_scheduled_in_halves_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["y0", "y1", "y2", "y3"]
    assert scheduled(monkeypatch, lambda n: n) == [names]
    assert scheduled(monkeypatch, lambda n: n**3) == [[name] for name in names]
    assert scheduled(monkeypatch, lambda n: 9 if n > 2 else n) == [names[:2], names[2:]]
    assert scheduled(monkeypatch, lambda n: np.inf if n > 2 else n) == [names[:2], names[2:]]
    assert scheduled(monkeypatch, lambda n: 100 / n) == [names], "the halves are slower still"
    with pytest.raises(SpecError, match="no schedule fits"):
        scheduled(monkeypatch, lambda n: np.inf)


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_weights_over_a_held_name_are_computed_in_the_tile(rate: float) -> None:
    """k is reduced inside the loop over j as well: no chunk of it may be streamed."""
    over, dtype = Universe(), as_dtype("float32")
    i, j, k = (over.add(size) for size in (6, 5, 7))
    arrays = {name: RNG.normal(size=shape).astype("float32") for name, shape in
              {"x": (6, 7), "w": (5, 7)}.items()}  # fmt: skip

    def read(buffer: str, *names: str) -> Term:
        return Term("read", Read(buffer, dtype, row_major(names, over.extents)))

    x, w = read("x", i, k), read("w", j, k)
    s = Term("mul", x, Term("literal", rate, "float32"))
    one = Term("literal", 1.0, "float32")
    weighted = [Term("weighted_sum", over.mask([k]), s, r, SOFTMAX) for r in (one, x)]
    nested = Term("reduce_sum", over.mask([k]), Term("mul", x, w))
    outer = Term("reduce_max", over.mask([j]), nested)
    total = Term("add", outer, Term("div", weighted[1], weighted[0]))
    made = form([Stored("y", total, (i,), dtype)], Facts(over))
    assert made.held == {k}
    buffers = {name: Buffer(name, a.shape, dtype, "input") for name, a in arrays.items()}
    buffers["y"] = Buffer("y", (6,), dtype, "output")
    kernel = lower("k", made, Schedule({i: 4}, {j: 2}), buffers, "oracle")
    check(kernel)
    memory = {**arrays, "y": np.full(6, np.nan, "float32")}
    oracle.run(kernel, memory)
    a, b = (arrays[name].astype("float64") for name in "xw")
    weights = np.exp(rate * a)
    expected = (a @ b.T).max(1) + (weights * a).sum(1) / weights.sum(1)
    np.testing.assert_allclose(memory["y"], expected, rtol=1e-5)


@SLOW
def test_a_value_compared_with_its_own_maximum_is_computed_once() -> None:
    """By two kernels that round otherwise it would differ from its maximum: the slope is lost."""
    x, w = g.input("x", (2, 2)), g.input("w", (2, 2))
    product = x @ w
    loss = g.sum((x * product) @ product) + g.max(g.logsumexp(product, axis=1))
    outputs = (loss, *g.grad(loss, [x, w]))
    unit = specs.load("a100")
    planned = plan(outputs, unit, cache=Cache(None))
    backend = TARGETS["oracle"].backend(unit, None)
    program = Program(planned.parts, backend, outputs, planned.report, planned.explain)
    arrays = {name: RNG.uniform(-2, 2, (2, 2)).astype("float32") for name in "xw"}
    results = program(**{argument.name: arrays[argument.name] for argument in program.arguments})
    for found, wide in zip(results, g.evaluate(outputs, arrays, np.float64), strict=True):
        np.testing.assert_allclose(found, wide, rtol=1e-4, atol=1e-5)


def test_a_program_of_numbers_alone_is_planned() -> None:
    """Its cuts may leave a segment that stores nothing."""
    x, y = g.linspace(-2.0, 0.5, 6)[None, :], g.linspace(-1.0, 1.0, 5)[:, None]
    a = b = g.zeros((5, 6))
    count = g.zeros((5, 6), "int32")
    for _ in range(6):
        a, b = g.minimum(a * a - b * b + x, 1e3), g.clip(2.0 * a * b + y, -1e3, 1e3)
        count = count + g.astype(a * a + b * b <= 4.0, "int32")
    (wanted,) = g.evaluate([count], {})
    planned = plan([count], specs.load("h200"), cache=Cache(None))
    backend = TARGETS["oracle"].backend(specs.load("h200"), None)
    program = Program(planned.parts, backend, [count], planned.report, planned.explain)
    (found,) = program()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("shape", "causal", "wanted"),
    [
        pytest.param((2, 16, 2048, 128), False, "qkv", marks=SLOW, id="long"),
        pytest.param((8, 16, 512, 64), True, "qkv", marks=SLOW, id="short"),
        pytest.param((8, 16, 512, 64), True, "v", id="short, of values"),
    ],
)
def test_gradients_of_attention_store_no_scores(
    shape: tuple[int, int, int, int], causal: bool, wanted: str
) -> None:
    """They are computed anew in each kernel: no schedule holds short rows of several products, and
    none computes a product in one pass that statistics of its rows need in another.
    """
    at = {name: g.input(name, shape, "bfloat16") for name in "qkv"}
    slope = g.input("slope", shape, "bfloat16")
    result = g.attention(*at.values(), causal=causal)
    gradients = g.grad(result, [at[name] for name in wanted], cotangent=slope)
    planned = plan(list(gradients), specs.load("h200"), cache=Cache(None))
    batch, heads, length, _ = shape
    largest = max(buffer.size for buffer in planned.parts.buffers.values())
    assert largest < batch * heads * length * length
    assert len(planned.parts.launches) <= 4


def test_what_is_made_of_a_kernels_result_alone_is_computed_in_it() -> None:
    """Attention, of which nothing is stored twice, and what its gradients ask of each row."""
    shape = (4, 16, 2048, 64)
    q, k, v, slope = (g.input(name, shape, "bfloat16") for name in "qkvs")
    result = g.attention(q, k, v)
    rows = g.sum(g.astype(result, "float32") * g.astype(slope, "float32"), axis=-1)
    (launch,) = plan([result, rows], specs.load("h200"), cache=Cache(None)).parts.launches
    assert [b.role for b in launch.kernel.buffers] == ["input"] * 4 + ["output"] * 2


def test_a_maximum_that_is_stored_leaves_its_factor_to_the_weights() -> None:
    """max c x = c max x: the weights take c in one multiply-add, and rows are reduced once."""
    q, k = (g.astype(g.input(n, (64, 2048, 64), "bfloat16"), "float32") for n in "qk")
    scores = q @ g.matrix_transpose(k) * 0.125
    top = g.max(scores, axis=-1, keepdims=True)
    outputs = [top, g.sum(g.exp(scores - top), axis=-1)]
    (launch,) = plan(outputs, specs.load("h200"), cache=Cache(None)).parts.launches
    ops = [s for s in launch.kernel.statements() if isinstance(s, Map | Reduce)]
    assert sum(isinstance(s, Reduce) and s.monoid == "max" for s in ops) == 1
    powers = [s for s in ops if isinstance(s, Map) and s.op == "exp_difference"]
    assert powers and all(len(s.arguments) == 3 for s in powers)


def image(n: int, s: int, c: int, o: int, **options: int) -> tuple[Tensor, Tensor, Tensor]:
    """A convolution with channels last, and its image and weights."""
    x, w = g.input("x", (n, s, s, c), "bfloat16"), g.input("w", (o, c, 3, 3), "bfloat16")
    return g.conv(x, w, layout="NHWC", **options), x, w


def test_the_gradient_of_a_convolution_is_one_sum_over_channels_and_windows():
    def axes_summed(**options: int) -> list[int]:
        y, x, _ = image(2, 8, 16, 24, padding=1, **options)
        gradient = g.grad(y, x, cotangent=g.input("d", y.shape, "bfloat16"))
        sums = [t for t in topological([gradient]) if t.op == "reduce_sum"]
        return [len(t.attributes["axes"]) for t in sums]

    assert axes_summed() == [3]
    assert axes_summed(stride=2) == [3], "over the windows of each phase"
    assert axes_summed(stride=2, dilation=2) == [1, 2], "three of four products are of zeros"


def test_gradients_of_a_convolution_are_products_of_warpgroups_that_store_no_windows():
    y, x, w = image(32, 28, 128, 128, padding=1)
    d = g.input("d", y.shape, "bfloat16")
    for wanted, most in ((x, 1.1), (w, 40.0)):
        planned = plan(g.grad(y, wanted, cotangent=d), specs.load("h200"), cache=Cache(None))
        kernels = [launch.kernel for launch in planned.parts.launches]
        assert sum(any("wgmma" in r for r in k.rules) for k in kernels) == 1
        stored = [b for k in kernels for b in k.buffers if b.role != "input"]
        size = wanted.size * wanted.dtype.itemsize
        assert all(np.prod(b.shape) * b.dtype.itemsize <= most * size for b in stored)


@pytest.mark.parametrize(
    ("n", "size", "channels"),
    [pytest.param(16, 14, 256, marks=pytest.mark.slow), (32, 56, 64)],
)
def test_gradients_by_weights_sum_over_the_batch_at_once(n: int, size: int, channels: int):
    """Along rows windows slide beyond the image's edges; a batch has none."""
    y, _, w = image(n, size, channels, channels, padding=1)
    d = g.input("d", y.shape, "bfloat16")
    planned = plan(g.grad(y, w, cotangent=d), specs.load("h200"), cache=Cache(None))
    main, _ = (launch.kernel for launch in planned.parts.launches)
    assert any("wgmma" in rule for rule in main.rules)
    batch = [axis for axis in main.phases[0].stream if axis.extent == n and axis.tile == 1]
    assert not batch and sum(axis.tile == 1 for axis in main.phases[0].stream) == 2


def layer(act: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    """The gradients of a layer in bfloat16, by its input, weights and bias."""
    shapes = {"x": (4096, 1024), "w": (1024, 2048), "b": (2048,)}
    given = [g.input(name, shape, "bfloat16") for name, shape in shapes.items()]
    x, w, b = given
    y = act(x @ w + b)
    return g.grad(y, given, cotangent=g.input("d", y.shape, "bfloat16"))


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(g.relu, marks=SLOW),
        pytest.param(g.tanh, marks=SLOW),
        lambda x: x * g.sigmoid(x),
    ],
)
def test_gradients_of_a_layer_multiply_three_times_and_store_16_bits(
    act: Callable[[Tensor], Tensor],
) -> None:
    """The sum for the bias reads what is stored, it does not multiply anew."""
    planned = plan(list(layer(act)), specs.load("h200"), cache=Cache(None))
    kernels = [launch.kernel for launch in planned.parts.launches]
    products = [s for k in kernels for s in k.statements() if isinstance(s, Contract)]
    assert len([s for s in products if s.operation]) == 3
    large = [b for k in kernels for b in k.buffers if b.size >= 1 << 20]
    assert max(b.dtype.itemsize for b in large) == 2


def test_gradients_of_scores_are_no_wider_than_float32_and_not_rounded() -> None:
    """What no kernel should store stays in float32; results of layers are rounded as they are."""

    def roundings(y: Tensor, x: Tensor) -> int:
        found = topological([g.grad(y, x, cotangent=g.input("d", y.shape, "bfloat16"))])
        return sum(t.op == "cast" and t.dtype == y.dtype and t.shape == y.shape for t in found)

    x, w = g.input("x", (512, 64), "bfloat16"), g.input("w", (64, 96), "bfloat16")
    assert roundings(g.tanh(x @ w), x) == 2, "of the product, and of its gradient"
    assert roundings(g.tanh(x @ g.matrix_transpose(x)), x) == 1


@pytest.mark.parametrize(("size", "window"), [pytest.param(28, 3, marks=SLOW), (20, 7)])
def test_gradients_of_depthwise_weights_have_a_plan(size: int, window: int) -> None:
    """A sum over all places of an image is spread over threads, however windows walk it."""
    x = g.input("x", (8, 32, size, size))
    w = g.input("w", (32, 1, window, window))
    y = g.conv(x, w, padding=window // 2, groups=32)
    gradients = g.grad(y, [x, w], cotangent=g.input("d", y.shape))
    arrays = {n: RNG.uniform(-1, 1, t.shape).astype("float32") for n, t in (("x", x), ("w", w))}
    arrays["d"] = RNG.uniform(-1, 1, y.shape).astype("float32")
    unit = specs.load("h200")
    planned = plan(list(gradients), unit, cache=Cache(None))
    backend = TARGETS["oracle"].backend(unit, None)
    program = Program(planned.parts, backend, list(gradients), planned.report, planned.explain)
    results = program(**{argument.name: arrays[argument.name] for argument in program.arguments})
    for found, wide in zip(results, g.evaluate(gradients, arrays, np.float64), strict=True):
        np.testing.assert_allclose(found, wide, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("window", "padding"), [pytest.param(4, 1, marks=SLOW), (3, 1), (2, 0)])
def test_transposed_convolutions_multiply_each_phase_by_matrix_operations(
    window: int, padding: int
) -> None:
    """With a stride of 2: no zeros between elements, and no product for each place of a window."""
    x = g.input("x", (16, 128, 64, 64), "bfloat16")
    w = g.input("w", (128, 64, window, window), "bfloat16")
    y = g.conv_transpose(x, w, stride=2, padding=padding, output_padding=int(window == 3))
    assert y.shape == (16, 64, 128, 128)
    launches = plan([y], specs.load("h200"), cache=Cache(None)).parts.launches
    contracts = [s for one in launches for s in one.kernel.statements() if isinstance(s, Contract)]
    assert [c.operation.startswith("wgmma") for c in contracts] == [True]
    assert sum(one.seconds for one in launches) < 1e-4


@pytest.mark.parametrize("groups", [1, 32])
def test_gradients_of_strided_convolutions_are_convolutions(groups: int) -> None:
    """Nothing larger than an image is stored for it."""
    x = g.input("x", (32, 64, 56, 56))
    w = g.input("w", (128, 64 // groups, 3, 3))
    y = g.conv(x, w, stride=2, padding=1, groups=groups)
    gradient = g.grad(y, [x], cotangent=g.input("d", y.shape))
    launches = plan(list(gradient), specs.load("h200"), cache=Cache(None)).parts.launches
    stored = [b for one in launches for b in one.kernel.buffers if b.role == "temporary"]
    assert max((b.bytes for b in stored), default=0) <= 6 * y.size  # three terms of 16 bits


def test_gradients_of_grouped_convolutions_are_convolutions() -> None:
    """One sum over the channels of a group and its windows, by matrix operations."""
    shapes = (("x", (16, 64, 56, 56)), ("w", (64, 16, 3, 3)))
    x, w = (g.input(name, shape, "bfloat16") for name, shape in shapes)
    y = g.conv(x, w, padding=1, groups=4)
    gradient = g.grad(y, [x], cotangent=g.input("d", y.shape, "bfloat16"))
    launches = plan(list(gradient), specs.load("h200"), cache=Cache(None)).parts.launches
    statements = [s for one in launches for s in one.kernel.statements()]
    (product,) = (s for s in statements if isinstance(s, Contract))
    assert "mma" in product.operation
    assert sum(one.seconds for one in launches) < 1e-4
