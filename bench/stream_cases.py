"""Rows of the groups rows and memory: reductions and norms over rows, and work bound by memory."""

from typing import Any

from eqsat.bench.case import Case, Input, Sizes

BF16 = "bfloat16"
TINY = {"m": 33, "n": 70}


def _case(
    name: str,
    group: str,
    function: Any,
    inputs: dict[str, Input],
    full: Sizes,
    small: Sizes,
    tiny: Sizes = TINY,
    **further: Any,
) -> Case:
    sizes = {"full": full, "small": small, "tiny": tiny}
    further.setdefault("rows", "m")
    further.setdefault("work", {})
    return Case(name, group, "cuda", function, inputs, sizes, **further)


def _mn(m: int, n: int) -> Sizes:
    return {"m": m, "n": n}


def _residual_rms_norm(f: Any, x: Any, r: Any, g: Any) -> Any:
    total = x + r
    return total, f.rms_norm(total, g)


ROWS = (
    _case(
        "softmax-8192",
        "rows",
        lambda f, x: f.softmax(x),
        {"x": Input("m n", BF16)},
        _mn(8192, 8192),
        _mn(512, 512),
        work={"exp float32": ("m n",)},
    ),
    _case(
        "softmax-long",
        "rows",
        lambda f, x: f.softmax(x),
        {"x": Input("m n")},
        _mn(128, 131072),
        _mn(16, 16384),
        work={"exp float32": ("m n",)},
        peers=("torch", "inductor", "numpy"),
    ),
    _case(
        "layer-norm",
        "rows",
        lambda f, x, w, b: f.layer_norm(x, w, b),
        {"x": Input("m n", BF16), "w": Input("n", BF16), "b": Input("n", BF16)},
        _mn(16384, 4096),
        _mn(512, 512),
    ),
    _case(
        "residual-rms-norm",
        "rows",
        _residual_rms_norm,
        {"x": Input("m n", BF16), "r": Input("m n", BF16), "g": Input("n", BF16)},
        _mn(16384, 4096),
        _mn(512, 512),
    ),
    _case(
        "rms-norm-gradients",
        "rows",
        lambda f, x, g, slope: f.norm_step(x, g, slope),
        {"x": Input("m n", BF16), "g": Input("n", BF16), "slope": Input("m n", BF16)},
        _mn(16384, 4096),
        _mn(512, 512),
        rows="",  # the gradient by the gain is a sum over all
    ),
    _case(
        "cross-entropy",
        "rows",
        lambda f, x, t: f.cross_entropy(x, t),
        {"x": Input("m n", BF16), "t": Input("m", "int64", below="n")},
        _mn(8192, 128256),
        _mn(128, 4096),
        work={"exp float32": ("m n",)},
    ),
)

MEMORY = (
    _case(
        "bias-gelu-residual",
        "memory",
        lambda f, x, b, r: f.gelu(x + b) + r,
        {"x": Input("m n", BF16), "b": Input("n", BF16), "r": Input("m n", BF16)},
        _mn(16384, 8192),
        _mn(512, 512),
    ),
    _case(
        "column-sum",
        "memory",
        lambda f, x: f.sum(x, 0),
        {"x": Input("m n")},
        _mn(16384, 16384),
        _mn(1024, 1024),
        rows="n",
        peers=("torch", "inductor", "numpy"),
    ),
    _case(
        "transpose",
        "memory",
        lambda f, x: f.stored(f.swap(x)),
        {"x": Input("m n")},
        _mn(16384, 16384),
        _mn(1024, 1024),
        peers=("torch", "inductor", "numpy"),
    ),
    _case(
        "prefix-sum",
        "memory",
        lambda f, x: f.cumulative_sum(x, axis=1),
        {"x": Input("m n")},
        _mn(8192, 16384),
        _mn(512, 1024),
        peers=("torch", "inductor", "numpy"),
    ),
    # The recurrence of a Mamba layer: channels d, states n of each, steps along t.
    _case(
        "selective-scan",
        "memory",
        lambda f, x, delta, a, b, c: f.selective_scan(x, delta, a, b, c),
        {
            "x": Input("batch t d"),
            "delta": Input("batch t d", scale="t", sign=1),
            "a": Input("d n", sign=-1),
            "b": Input("batch t n"),
            "c": Input("batch t n"),
        },
        {"batch": 8, "t": 2048, "d": 2048, "n": 16},
        {"batch": 2, "t": 512, "d": 256, "n": 16},
        {"batch": 2, "t": 19, "d": 6, "n": 4},
        rows="d",
        work={"exp float32": ("batch t d n",), "fma float32": ("4 batch t d n",)},
        peers=("torch", "inductor", "numpy"),
        tolerance=3e-4,
    ),
    # A point almost as near to one centre as to another may join either: 1 point in about 4000.
    _case(
        "k-means-step",
        "memory",
        lambda f, x, c: f.group_means(x, c),
        {"x": Input("points d"), "c": Input("centres d")},
        {"points": 1_000_000, "d": 64, "centres": 256},
        {"points": 4096, "d": 32, "centres": 16},
        {"points": 300, "d": 8, "centres": 4},
        rows="",
        work={"contract tfloat32 x3": ("points d centres",)},
        tolerance=5e-3,
    ),
)

CASES = ROWS + MEMORY
