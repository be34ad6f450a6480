"""Programs that the GPU tests run and the compile tests only compile, by name."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

import eqsat.graph as G
from eqsat.graph import Tensor

Build = Callable[[], list[Tensor]]
SIZES = [(1, 1, 1), (17, 31, 23), (64, 128, 32), (129, 257, 65), (128, 128, 512)]
FLOATS = ["float64", "float32", "float16", "bfloat16"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8"]


def tensor(name: str, *shape: int, dtype: str = "float32") -> Tensor:
    """An input."""
    return G.input(name, shape, dtype)


def matmul(m: int, n: int, k: int, dtype: str) -> list[Tensor]:
    return [tensor("a", m, k, dtype=dtype) @ tensor("b", k, n, dtype=dtype)]


def integer_matmul() -> list[Tensor]:
    a, b = tensor("a", 33, 70, dtype="int8"), tensor("b", 70, 65, dtype="int8")
    return [G.astype(a, "int32") @ G.astype(b, "int32")]


def split_on_the_way() -> list[Tensor]:
    """float32 products of many rows, of which the small factor's terms are stored alone."""
    x, w = tensor("x", 40004, 136), tensor("w", 136, 72)
    b, v, y = tensor("b", 8, 5000, 64), tensor("v", 8, 64, 48), tensor("y", 96, 30000)
    return [x @ w, w.T @ x.T, b @ v, y.T @ tensor("u", 96, 40), G.relu(b @ tensor("z", 64, 128))]


def pieces_side_by_side() -> list[Tensor]:
    """Products of what lies in pieces of memory: along the sum, columns and keys."""
    x, y = tensor("x", 512, 192, dtype="bfloat16"), tensor("y", 512, 320, dtype="bfloat16")
    w, v = tensor("w", 512, 512, dtype="bfloat16"), tensor("v", 512, 256, dtype="bfloat16")
    q, k = (tensor(name, 8, 256, 64, dtype="bfloat16") for name in "qk")
    fresh = [tensor(name, 8, 128, 64, dtype="bfloat16") for name in ("fk", "fv")]
    old = tensor("ov", 8, 256, 64, dtype="bfloat16")
    keys, values = (G.concat([a, b], axis=1) for a, b in zip((k, old), fresh, strict=True))
    return [
        G.concat([x, y], axis=1) @ w,
        w @ G.concat([v, x], axis=1),
        G.concat([w, x.mT, y.mT], axis=0) @ v,
        G.attention(q, keys, values),
    ]


def a_cache_and_one_more() -> list[Tensor]:
    """Attention to keys that were there and one more, in parts; a row's norm and three products."""
    q = tensor("q", 2, 16, 1, 64, dtype="bfloat16")
    old, new = (2, 4, 2048, 64), (2, 4, 1, 64)
    keys, values = (
        G.concat(
            [tensor(n, *old, dtype="bfloat16"), tensor(f"{n}1", *new, dtype="bfloat16")], axis=2
        )
        for n in "kv"
    )
    x, gain = tensor("x", 8, 2048, dtype="bfloat16"), tensor("g", 2048, dtype="bfloat16")
    y = G.rms_norm(x, gain)
    weights = [tensor(f"w{n}", 2048, n, dtype="bfloat16") for n in (2048, 512, 520)]
    return [G.attention(q, keys, values), *(y @ w for w in weights)]


def eight_bits() -> list[Tensor]:
    """Products of 8-bit floats with scales: rounded, exposed, across the sum, by 16-bit ones."""
    kinds = {"a": "float8_e4m3fn", "b": "float8_e5m2", "c": "float8_e4m3fn", "d": "bfloat16"}
    shapes = {"a": (530, 2064), "b": (1032, 2064), "c": (2064, 1032), "d": (530, 2064)}
    a, b, c, d = (
        G.astype(tensor(name, *shapes[name], dtype=kind), "float32") for name, kind in kinds.items()
    )
    rows, columns = tensor("r", 530, 1), tensor("s", 1032)
    return [
        G.astype((a @ b.T) * (rows * columns), "bfloat16"),
        G.astype(a @ c, "float16"),
        a @ b.T,
        G.astype(G.gelu((a @ a.T) * 0.1), "bfloat16"),
        G.astype(d @ b.T, "bfloat16"),
    ]


def eight_bit_cache(queries: int) -> list[Tensor]:
    """Queries of 16 bits to keys and values that are kept in 8."""
    k = G.astype(tensor("k", 2, 4, 700, 64, dtype="float8_e4m3fn"), "bfloat16")
    v = G.astype(tensor("v", 2, 4, 700, 64, dtype="float8_e5m2"), "bfloat16")
    return [G.attention(tensor("q", 2, 4, queries, 64, dtype="bfloat16"), k, v)]


def eight_bit_integers() -> list[Tensor]:
    a, b = tensor("a", 530, 2064, dtype="int8"), tensor("b", 2064, 1032, dtype="uint8")
    return [G.astype(a, "int32") @ G.astype(b, "int32")]


def batched_transposed() -> list[Tensor]:
    return [tensor("a", 3, 40, 70).mT @ tensor("b", 3, 40, 50)]


def rows(m: int, n: int, dtype: str) -> list[Tensor]:
    x = tensor("x", m, n, dtype=dtype)
    gain, bias = (tensor(name, n, dtype=dtype) for name in ("g", "b"))
    return [G.softmax(x, axis=-1), G.layer_norm(x, gain, bias), G.sum(x, axis=0), G.max(x)]


def attention(causal: bool, dtype: str) -> list[Tensor]:
    q, k, v = (tensor(name, 2, 4, 75, 32, dtype=dtype) for name in "qkv")
    return [G.attention(q, k, v, causal=causal)]


def heads_of_any_size() -> list[Tensor]:
    """Columns that tiles of the next power of two hold."""
    heads = []
    for size in (12, 24, 40, 56):
        q, k, v = (tensor(f"{n}{size}", 3, 260, size, dtype="bfloat16") for n in "qkv")
        heads.append(G.attention(q, k, v, causal=size == 40))
    return heads


def gelu_epilogue() -> list[Tensor]:
    x, w, b, r = tensor("x", 100, 64), tensor("w", 64, 130), tensor("b", 130), tensor("r", 100, 130)
    return [G.gelu(x @ w + b) + r]


def gated() -> list[Tensor]:
    x = tensor("x", 100, 64)
    return [G.silu(x @ tensor("w", 64, 130)) * (x @ tensor("u", 64, 130))]


def normed_product() -> list[Tensor]:
    return [G.rms_norm(tensor("x", 100, 64), tensor("g", 64)) @ tensor("w", 64, 130)]


def reassociated() -> list[Tensor]:
    a, b = tensor("a", 90, 80), tensor("b", 80, 70)
    return [(a @ b) @ tensor("v", 70), G.sum(a @ b, axis=1), a @ b + tensor("d", 90, 80) @ b]


def views() -> list[Tensor]:
    x = tensor("x", 20, 30)
    joined = G.concat([x[:5], x[9:]], axis=0)
    return [x.T, x[::-1, 2:20:3], joined, G.roll(x, 3, axis=1), G.reshape(x, (15, 40)) * 2.0]


def convolution() -> list[Tensor]:
    x, w = tensor("x", 2, 6, 15, 17), tensor("w", 8, 6, 3, 3)
    return [G.conv(x, w, stride=2, padding=1), G.max_pool(x, 3, stride=2)]


def large_windows() -> list[Tensor]:
    """More places than a thread takes at once: of two axes, of one, channels last."""
    x, w = tensor("x", 2, 6, 37, 41), tensor("w", 6, 1, 9, 11)
    y, v = tensor("y", 2, 5, 301), tensor("v", 5, 1, 127)
    z = tensor("z", 2, 33, 35, 7, dtype="bfloat16")
    return [
        G.conv(x, w, padding=(4, 5), groups=6),
        G.max_pool(x, 13, stride=1, padding=6),
        G.conv(y, v, padding=63, groups=5),
        G.avg_pool(z, 19, stride=2, layout="NHWC"),
    ]


def triangles(dtype: str) -> list[Tensor]:
    """Tiles of products of which nothing is stored, chunks of triangles, rows beyond a length."""
    a, b, c = (tensor(name, 520, 520, dtype=dtype) for name in "abc")
    d, e = tensor("d", 300, 264, dtype=dtype), tensor("e", 264, 328, dtype=dtype)
    inside = G.expand_dims(G.arange(300), 1) < tensor("length", 1, dtype="int32") * 20
    return [
        G.tril(a @ a.mT),
        G.triu(G.triu(b) @ G.triu(c)),
        G.where(inside, d @ e, 1.0),
    ]


def windows_of_few_channels(dtype: str) -> list[Tensor]:
    """Tiles of all places that windows read, in steps or not, of images of any size."""
    x, w = (
        tensor(n, *s, dtype=dtype) for n, s in (("x", (4, 150, 130, 32)), ("w", (24, 32, 3, 3)))
    )
    y, v = (
        tensor(n, *s, dtype=dtype) for n, s in (("y", (4, 161, 167, 16)), ("v", (32, 16, 7, 7)))
    )
    z, u = (
        tensor(n, *s, dtype=dtype) for n, s in (("z", (4, 16, 160, 271)), ("u", (40, 16, 8, 8)))
    )
    return [
        G.conv(x, w, padding=1, layout="NHWC"),
        G.conv(y, v, padding=3, stride=2, layout="NHWC"),
        G.conv(z, u, padding=2, stride=4),
        G.conv(y, v, padding=9, dilation=3, layout="NHWC"),
    ]


def grouped_and_transposed() -> list[Tensor]:
    """Products of terms by six axes, phases of strides, patches."""
    x, w = tensor("x", 8, 64, 12, 16), tensor("w", 64, 16, 3, 3)
    y, v = tensor("y", 1, 32, 3, 6, 8), tensor("v", 32, 64, 3, 3, 3)
    z, u = tensor("z", 8, 3, 42, 28), tensor("u", 96, 3, 14, 14)
    return [
        G.conv(x, w, padding=1, groups=4),
        G.conv_transpose(y, v, stride=2, padding=1, output_padding=1),
        G.conv(z, u, stride=14),
    ]


def gradient_of_weights() -> list[Tensor]:
    """A product of terms by runs of rows and batches."""
    x, k = tensor("x", 8, 64, 12, 16), tensor("k", 32, 64, 3, 3)
    return [*G.grad(G.sum(G.square(G.conv(x, k, padding=1))), [k])]


def gradients_of_convolutions() -> list[Tensor]:
    """By an image in groups; by an image and weights of 16 bits, with a stride."""
    x, w = tensor("x", 8, 64, 12, 16), tensor("w", 64, 16, 3, 3)
    b, c = (tensor(name, *shape, dtype="bfloat16") for name, shape in (
        ("b", (16, 64, 14, 14)), ("c", (64, 64, 3, 3))
    ))  # fmt: skip
    layer = G.conv(b, c, padding=1, stride=2)
    return [
        *G.grad(G.sum(G.square(G.conv(x, w, padding=1, groups=4))), [x]),
        *G.grad(layer, [b, c], cotangent=tensor("d", *layer.shape, dtype="bfloat16")),
    ]


def selections() -> list[Tensor]:
    """Gradients of segments, and of windows that overlap."""
    x, ids = tensor("x", 1003), G.input("i", (1003,), "int32")
    y = tensor("y", 2, 3, 17, 18)
    values = [f(x, ids % 37, 37) for f in (G.segment_sum, G.segment_max, G.segment_min)]
    pools = [f(y, 3, stride=2, padding=1) for f in (G.max_pool, G.avg_pool)]
    return [
        *(G.grad(G.sum(G.square(value)), [x])[0] for value in values),
        *(G.grad(G.sum(G.square(pool)), [y])[0] for pool in pools),
    ]


def gather() -> list[Tensor]:
    return [G.take(tensor("t", 50, 33), tensor("i", 12, dtype="int64"), axis=0)]


def pages() -> list[Tensor]:
    """Attention over pages of 16 tokens that a table names, 100 to 540 of each sequence."""
    q = tensor("q", 12, 8, 4, 128, dtype="bfloat16")
    k, v = (tensor(name, 11, 16, 8, 128, dtype="bfloat16") for name in "kv")
    table, count = tensor("t", 12, 64, dtype="int32"), tensor("n", 12, 1, 1, 1, dtype="int32")
    caches = (G.reshape(G.take(x, table, axis=0), (12, 1024, 8, 128)) for x in (k, v))
    keys, values = (G.permute_dims(x, (0, 2, 1, 3)) for x in caches)
    scores = G.astype(q @ keys.mT, "float32") * 128**-0.5
    inside = G.arange(1024) < count * 40 + 300
    weights = G.softmax(G.where(inside, scores, -float("inf")), axis=-1)
    return [G.astype(weights, "bfloat16") @ values]


def scan() -> list[Tensor]:
    x = tensor("x", 9, 500)
    return [G.cumulative_sum(x, axis=1), G.argmax(x, axis=1)]


def recurrence_in_parts() -> list[Tensor]:
    a, x = tensor("a", 7, 20000), tensor("x", 7, 20000)
    flat = tensor("f", 300001)
    states = G.affine_scan(G.sigmoid(a), x, 1)
    return [states, G.affine_scan(G.full_like(flat, 0.99), flat, 0)]


def recurrence_along_rows(steps: int, dtype: str) -> list[Tensor]:
    a, x = tensor("a", 37, steps, dtype=dtype), tensor("x", 37, steps, dtype=dtype)
    factors = G.sigmoid(a) if dtype != "int32" else a % 3
    states = G.affine_scan(factors, x, 1)
    back = G.flip(G.affine_scan(*(G.flip(t, axis=1) for t in (factors, x)), 1), axis=1)
    return [states, back, G.sum(states, axis=1), G.affine_scan(factors, x, 0)]


def one_selective_scan() -> list[Tensor]:
    x, dt, b = tensor("x", 3000, 64), tensor("dt", 3000, 64), tensor("b", 3000, 8)
    decay = G.exp(-G.abs(G.expand_dims(dt, 2) * tensor("a", 64, 8)))
    drive = G.expand_dims(dt * x, 2) * G.expand_dims(b, 1)
    return [G.sum(G.affine_scan(decay, drive, 0) * G.expand_dims(b, 1), axis=2)]


def integers(dtype: str) -> list[Tensor]:
    a, b = tensor("a", 1000, dtype=dtype), tensor("b", 1000, dtype=dtype)
    return [a + b, a * b, a // b, a % b, a & b, a ^ b, G.maximum(a, b), a < b, G.sum(a)]


def functions(dtype: str) -> list[Tensor]:
    x = tensor("x", 999, dtype=dtype)
    names = ["exp", "expm1", "tanh", "erf", "sin", "cos", "atan", "floor", "round", "sign"]
    made = [getattr(G, name)(x) for name in names]
    return [*made, G.sqrt(G.abs(x)), G.log1p(G.abs(x)), G.isnan(x), G.where(x > 0, x, -x)]


def empty_and_scalar() -> list[Tensor]:
    return [tensor("e", 0, 4) + 1.0, G.sum(tensor("f", 3, 0), axis=1), tensor("s") * 2.0]


def negated_number() -> list[Tensor]:
    return [-G.constant(-1.5), G.broadcast_to(-G.constant(-2.0, "float64"), (5,))]


def several_kernels() -> list[Tensor]:
    x, w = tensor("x", 64, 64), tensor("w", 64, 64)
    hidden = G.layer_norm(G.tanh(x @ w) @ w, tensor("g", 64), tensor("b", 64))
    return [G.softmax(hidden @ w, axis=0)]


def distances() -> list[Tensor]:
    """Of all pairs of points: by squares, the largest and rounded ones, with weights; and ways."""
    x, y = G.expand_dims(tensor("x", 131, 37), 1), G.expand_dims(tensor("y", 70, 37), 0)
    a, b = G.expand_dims(tensor("a", 300, 200), 2), G.expand_dims(tensor("b", 200, 260), 0)
    p, q = tensor("p", 515, 1, 40, dtype="bfloat16"), tensor("q", 1, 260, 40, dtype="bfloat16")
    squares = G.sum((x - y) ** 2, axis=-1)
    weighed = G.sum(G.abs(x - y) * tensor("w", 37), axis=-1)
    far = G.max(G.abs(G.astype(p, "float32") - G.astype(q, "float32")), axis=-1)
    return [squares, weighed, far, G.argmin(squares, axis=-1), G.min(a + b, axis=1)]


def in_parts() -> list[Tensor]:
    """Long reductions of few tiles."""
    q, k, v = (tensor(name, 2, n, 64) for name, n in (("q", 1), ("k", 5000), ("v", 5000)))
    long = tensor("x", 3, 40001)
    deep = tensor("a", 33, 8200, dtype="bfloat16") @ tensor("b", 8200, 40, dtype="bfloat16")
    return [deep, G.softmax(long), G.var(long), G.attention(q, k, v)]


def last_tiles_in_parts() -> list[Tensor]:
    """Grids of two waves, the last one short, of products, of products of products and of their
    gradients.
    """
    q, k, v, y = (tensor(name, 2, 9, 2048, 64, dtype="bfloat16") for name in "qkvy")
    gated = G.sigmoid(0.125 * (q @ G.matrix_transpose(k))) @ v
    plain = tensor("a", 2560, 512, dtype="bfloat16") @ tensor("b", 512, 2560, dtype="bfloat16")
    return [plain, gated, *G.grad(G.sum(gated * y), [q, k])]


def sums_of_products() -> list[Tensor]:
    """Rows summed up beside a product, of a bias that is cast; means of columns, summed first."""
    x, w = tensor("x", 512, 1024, dtype="bfloat16"), tensor("w", 2048, 1024, dtype="bfloat16")
    wide = G.astype(x @ w.T, "float32")
    biased = wide + G.astype(tensor("b", 2048, dtype="bfloat16"), "float32")
    means = G.mean(G.reshape(wide, (512, 128, 16)), axis=2)
    found = G.sum(G.sigmoid(0.02 * biased), axis=1), G.max(G.gelu(means), axis=1)
    return [G.astype(one, "bfloat16") for one in found]


def at_positions() -> list[Tensor]:
    x, at = tensor("x", 33, 500), tensor("at", 33, 70, dtype="int64")
    values, order = tensor("v", 3000), 0.01 * G.astype(G.arange(777), "float32") - 4.0
    return [G.take_along_axis(x, at, 1), G.searchsorted(order, values, side="right"), G.diff(x, 0),
            G.cumulative_prod(0.01 * x + 1.0, 1), G.cumulative_prod(0.01 * x + 1.0, 0)]  # fmt: skip


def rows_that_begin_anywhere() -> list[Tensor]:
    """Rows of odd lengths, of parts of them, of a table, their sums and what they are added up to;
    transposes, of even ones too.
    """
    x, g = tensor("x", 200, 4095, dtype="bfloat16"), tensor("g", 4095, dtype="bfloat16")
    y, u = tensor("y", 200, 2048, dtype="float16"), tensor("u", 300, 2047, dtype="uint8")
    table, at = tensor("t", 700, 1021, dtype="float16"), tensor("i", 90, dtype="int64")
    z = tensor("z", 150, 8190)
    stored = [G.matrix_transpose(one) for one in (x, y, u, z)]
    return [
        G.softmax(x), x + g, y[:, 1:2041] * 2.0, G.take(table, at, 0) + 1.0, G.sum(x, axis=1),
        G.cumulative_sum(z[:, 1:], axis=1), G.maximum(u, u[:, ::-1]), *stored,
        G.matrix_transpose(x) + tensor("w", 4095, 200, dtype="bfloat16"),
    ]  # fmt: skip


def convolutions_in_turn() -> list[Tensor]:
    """A block with channels first whose values lie with channels last; weights that are known."""
    random = np.random.default_rng(3)

    def weights(*shape: int) -> Tensor:
        return G.constant((random.standard_normal(shape) / 24).astype(G.bfloat16.numpy))

    def block(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return G.relu(G.conv(G.relu(G.conv(x, a, padding=1)), b, padding=1) + x)

    x = tensor("x", 8, 64, 28, 28, dtype="bfloat16")
    given = tensor("w", 64, 64, 3, 3, dtype="bfloat16") * 0.03
    known = weights(64, 64, 3, 3) * G.reshape(weights(64), (64, 1, 1, 1)) * 24
    return [block(x, given, known), G.relu(x @ weights(28, 28) @ weights(28, 28))]


def joined_of_many() -> list[Tensor]:
    """An image mirrored at its edges, before a convolution and alone; rows of many arrays."""
    x, w = tensor("x", 4, 64, 30, 33, dtype="bfloat16"), tensor("w", 64, 64, 3, 3, dtype="bfloat16")

    def mirrored(y: Tensor, axis: int) -> Tensor:
        at = (slice(None),) * axis
        return G.concat([y[(*at, slice(1, 2))], y, y[(*at, slice(-2, -1))]], axis=axis)

    whole = mirrored(mirrored(x, 2), 3)
    parts = [tensor(f"p{n}", 70, width) for n, width in enumerate((64, 40, 33, 8, 100))]
    return [
        G.conv(whole, w),
        whole * 2.0,
        G.concat(parts, axis=1),
        G.concat(parts[:3], axis=1) + 1.0,
    ]


def _named() -> Iterator[tuple[str, Build]]:
    for (m, n, k), dtype in itertools.product(SIZES, FLOATS):
        yield f"matmul-{m}x{n}x{k}-{dtype}", lambda a=(m, n, k, dtype): matmul(*a)
    for (m, n), dtype in itertools.product(
        [(1, 1), (5, 1000), (33, 4097), (300, 17)], ["float32", "bfloat16"]
    ):
        yield f"rows-{m}x{n}-{dtype}", lambda a=(m, n, dtype): rows(*a)
    for causal, dtype in itertools.product([False, True], FLOATS[1:]):
        yield f"attention-{dtype}{'-causal' * causal}", lambda a=(causal, dtype): attention(*a)
    for dtype in INTEGERS:
        yield f"integers-{dtype}", lambda a=dtype: integers(a)
    for steps, dtype in itertools.product([1, 100, 2049], ["float32", "bfloat16", "int32"]):
        run = (steps, dtype)
        yield f"recurrence-{steps}-{dtype}", lambda a=run: recurrence_along_rows(*a)
    for queries in (300, 1):
        yield f"eight_bit_cache-{queries}", lambda a=queries: eight_bit_cache(a)
    for dtype in FLOATS:
        yield f"functions-{dtype}", lambda a=dtype: functions(a)
    for dtype in ("bfloat16", "float16"):
        yield f"windows_of_few_channels-{dtype}", lambda a=dtype: windows_of_few_channels(a)
    for dtype in FLOATS:
        yield f"triangles-{dtype}", lambda a=dtype: triangles(a)
    for build in (
        integer_matmul, batched_transposed, gelu_epilogue, gated, normed_product, reassociated,
        views, convolution, large_windows, grouped_and_transposed, selections, gather, pages,
        gradient_of_weights, gradients_of_convolutions, pieces_side_by_side,
        split_on_the_way, a_cache_and_one_more, eight_bits, eight_bit_integers, scan,
        empty_and_scalar, negated_number,
        several_kernels, heads_of_any_size, in_parts, last_tiles_in_parts, recurrence_in_parts,
        one_selective_scan, distances, sums_of_products, at_positions, rows_that_begin_anywhere,
        convolutions_in_turn, joined_of_many,
    ):  # fmt: skip
        yield build.__name__, build


PROGRAMS: dict[str, Build] = dict(_named())
