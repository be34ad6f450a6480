"""Rows of the group cpu: float32 on the cores of this machine."""

from typing import Any

from eqsat.bench.case import Case, Input, Sizes
from eqsat.bench.product_cases import mnk


def _case(
    name: str, function: Any, inputs: dict[str, Input], full: Sizes, small: Sizes, **further: Any
) -> Case:
    tiny = further.pop("tiny", {"m": 33, "n": 40, "k": 48})
    sizes = {"full": full, "small": small, "tiny": tiny}
    peers = ("numpy", "torch", "inductor")
    further.setdefault("rows", "m")
    return Case(f"cpu-{name}", "cpu", "cpu", function, inputs, sizes, peers=peers, **further)


CUBE, SMALL_CUBE = mnk(1024, 1024, 1024), mnk(256, 256, 256)
MATRICES = {"a": Input("m k"), "b": Input("k n")}
HEADS = Input("b h s d")

CASES = (
    _case(
        "matmul",
        lambda f, a, b: a @ b,
        MATRICES,
        CUBE,
        SMALL_CUBE,
        work={"contract float32": ("m n k",)},
    ),
    _case(
        "matmul-few-rows",
        lambda f, a, b: a @ b,
        MATRICES,
        mnk(8, 4096, 4096),
        mnk(8, 256, 512),
        work={"contract float32": ("m n k",)},
    ),
    _case(
        "gelu-linear",
        lambda f, x, w, b: f.gelu(x @ w + b),
        {"x": Input("m k"), "w": Input("k n"), "b": Input("n")},
        mnk(1024, 4096, 1024),
        mnk(256, 1024, 256),
        work={"contract float32": ("m n k",)},
    ),
    _case(
        "softmax",
        lambda f, x: f.softmax(x),
        {"x": Input("m n")},
        {"m": 4096, "n": 4096},
        {"m": 512, "n": 512},
        work={"exp float32": ("m n",)},
    ),
    _case(
        "layer-norm",
        lambda f, x, w, b: f.layer_norm(x, w, b),
        {"x": Input("m n"), "w": Input("n"), "b": Input("n")},
        {"m": 4096, "n": 1024},
        {"m": 512, "n": 512},
        work={},
    ),
    _case(
        "product-vector",
        lambda f, a, b, v: (a @ b) @ v,
        {**MATRICES, "v": Input("n")},
        CUBE,
        SMALL_CUBE,
        work={"fma float32": ("k n", "m k")},
    ),
    _case(
        "product-sum",
        lambda f, a, b: f.sum(a @ b, 0),
        MATRICES,
        CUBE,
        SMALL_CUBE,
        rows="n",
        work={"fma float32": ("k n", "m k")},
    ),
    _case(
        "attention",
        lambda f, q, k, v: f.attention(q, k, v),
        {"q": HEADS, "k": HEADS, "v": HEADS},
        {"b": 8, "h": 12, "s": 128, "d": 32},
        {"b": 2, "h": 4, "s": 64, "d": 32},
        tiny={"b": 1, "h": 2, "s": 17, "d": 8},
        rows="h",
        work={"contract float32": ("2 b h s s d",), "exp float32": ("b h s s",)},
    ),
    _case(
        "conv-3x3",
        lambda f, x, w: f.conv_nchw(x, w),
        {"x": Input("n c s s"), "w": Input("o c three three")},
        {"n": 8, "s": 56, "c": 64, "o": 64, "three": 3},
        {"n": 2, "s": 28, "c": 32, "o": 32, "three": 3},
        tiny={"n": 2, "s": 7, "c": 8, "o": 8, "three": 3},
        rows="n",
        work={"contract float32": ("n s s o c 9",)},
    ),
)
