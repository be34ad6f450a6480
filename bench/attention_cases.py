"""Rows of the group attention: forward, causal, decoding, and written naively in primitives."""

from dataclasses import replace
from typing import Any

from eqsat.bench.case import Case, Input, Sizes

BF16 = "bfloat16"


def _sizes(b: int, h: int, s: int, d: int) -> Sizes:
    return {"b": b, "h": h, "s": s, "d": d}


SMALL = _sizes(2, 4, 128, 64)
TINY = _sizes(1, 2, 33, 16)


def _attention(
    name: str, full: Sizes, function: Any, share: str = "1", small: Sizes = SMALL
) -> Case:
    """`share`: the part of the queries and keys that meet (causal: about half)."""
    axes = Input("b h s d", BF16)
    return Case(
        name=name,
        group="attention",
        target="cuda",
        function=function,
        inputs={"q": axes, "k": axes, "v": axes},
        sizes={"full": full, "small": small, "tiny": TINY},
        work={
            "contract bfloat16": (f"2 {share} b h s s d",),
            "exp float32": (f"{share} b h s s",),
        },
        rows="h",
    )


def _plain(f: Any, q: Any, k: Any, v: Any) -> Any:
    return f.attention(q, k, v)


def _causal(f: Any, q: Any, k: Any, v: Any) -> Any:
    return f.attention(q, k, v, causal=True)


def _naive(f: Any, q: Any, k: Any, v: Any) -> Any:
    return f.softmax((q @ f.swap(k)) * q.shape[-1] ** -0.5) @ v


def _step(f: Any, q: Any, k: Any, v: Any, slope: Any) -> Any:
    return f.attention_step(q, k, v, slope)


def _causal_step(f: Any, q: Any, k: Any, v: Any, slope: Any) -> Any:
    return f.attention_step(q, k, v, slope, causal=True)


def _with_gradients(name: str, full: Sizes, function: Any, share: str = "1") -> Case:
    """Seven products of queries and keys: two of the result, five of its gradients."""
    made = _attention(name, full, function, share)
    axes = Input("b h s d", BF16)
    work = {**made.work, "contract bfloat16": (f"7 {share} b h s s d",)}
    # Where few keys are met, rounded weights and slopes tell.
    return replace(made, inputs={**made.inputs, "slope": axes}, work=work, tolerance=5e-2)


DECODE = Case(
    name="attention-decode",
    group="attention",
    target="cuda",
    function=_plain,
    inputs={
        "q": Input("b h one d", BF16),
        "k": Input("b g s d", BF16),
        "v": Input("b g s d", BF16),
    },
    sizes={
        "full": {"b": 64, "h": 32, "g": 8, "one": 1, "s": 8192, "d": 128},
        "small": {"b": 4, "h": 8, "g": 2, "one": 1, "s": 512, "d": 64},
        "tiny": {"b": 2, "h": 4, "g": 2, "one": 1, "s": 33, "d": 16},
    },
    work={"contract bfloat16": ("2 b h s d",), "exp float32": ("b h s",)},
    rows="b",
)

CASES = (
    _attention("attention", _sizes(4, 32, 4096, 128), _plain),
    # The first rows are means of few values: rounded weights tell there. torch: 2.8e-2.
    replace(
        _attention("attention-causal", _sizes(4, 32, 4096, 128), _causal, "0.5"), tolerance=5e-2
    ),
    replace(
        _attention("attention-causal-long", _sizes(1, 16, 16384, 128), _causal, "0.5"),
        tolerance=5e-2,
    ),
    _attention("attention-64", _sizes(8, 16, 2048, 64), _plain),
    DECODE,
    _with_gradients("attention-gradients", _sizes(4, 16, 2048, 64), _step),
    # torch's are off by 1.1e-1 there.
    replace(
        _with_gradients(
            "attention-gradients-causal", _sizes(2, 16, 4096, 128), _causal_step, "0.5"
        ),
        tolerance=1.5e-1,
    ),
    # As written, scores are rounded to bfloat16: half a unit of a score of 8 is 1.6% of its weight.
    replace(_attention("attention-naive", _sizes(4, 32, 4096, 128), _naive), tolerance=6e-2),
)
