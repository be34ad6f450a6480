"""Rows of the groups gemm and fused: matrix products alone, and with what surrounds them."""

from typing import Any

from eqsat.bench.case import Case, Input, Sizes

BF16 = "bfloat16"
E4M3 = "float8_e4m3fn"


def _matmul(
    name: str, full: Sizes, small: Sizes, dtype: str = BF16, unit: str = "", **further: Any
) -> Case:
    return Case(
        name=name,
        group="gemm",
        target="cuda",
        function=lambda f, a, b: a @ b,
        inputs={"a": Input("m k", dtype), "b": Input("k n", dtype)},
        sizes=_scales(full, small),
        work={unit or f"contract {dtype}": ("m n k",)},
        rows="m",
        **further,
    )


def _scaled(name: str, full: Sizes, small: Sizes) -> Case:
    """Products of 8-bit floats with a scale for each factor."""
    return Case(
        name=name,
        group="gemm",
        target="cuda",
        function=lambda f, a, b, p, q: f.scaled_product(a, b, p, q),
        inputs={
            "a": Input("m k", E4M3),
            "b": Input("n k", E4M3),
            "p": Input("one"),
            "q": Input("one"),
        },
        sizes={s: {**sizes, "one": 1} for s, sizes in _scales(full, small).items()},
        work={f"contract {E4M3}": ("m n k",)},
        rows="m",
    )


def _scales(full: Sizes, small: Sizes) -> dict[str, Sizes]:
    return {"full": full, "small": small, "tiny": mnk(33, 40, 48)}


def mnk(m: int, n: int, k: int) -> Sizes:
    """The extents of a product of matrices."""
    return {"m": m, "n": n, "k": k}


def _cube(n: int) -> Sizes:
    return mnk(n, n, n)


GEMM = (
    _matmul("matmul-bf16-8192", _cube(8192), _cube(512)),
    _matmul("matmul-bf16-4096", _cube(4096), _cube(384)),
    _matmul("matmul-bf16-2048", _cube(2048), _cube(256)),
    _matmul("matmul-bf16-1024", _cube(1024), _cube(128)),
    _matmul("matmul-bf16-decode", mnk(16, 8192, 8192), mnk(16, 1024, 1024)),
    _matmul("matmul-bf16-odd", mnk(4095, 4097, 4099), mnk(255, 257, 259)),
    _matmul("matmul-bf16-deep", mnk(512, 512, 32768), mnk(64, 64, 4096)),
    _matmul("matmul-fp16-4096", _cube(4096), _cube(384), "float16"),
    _scaled("matmul-fp8-4096", _cube(4096), _cube(384)),
    _scaled("matmul-fp8-8192", _cube(8192), _cube(512)),
    _matmul(
        "matmul-tf32-4096",
        _cube(4096),
        _cube(384),
        "float32",
        "contract tfloat32",
        tolerance=2e-3,
        options={"precision": "tf32"},
    ),
    # 3xTF32 is the cheapest known way to float32's accuracy.
    _matmul(
        "matmul-fp32-4096",
        _cube(4096),
        _cube(384),
        "float32",
        "contract tfloat32 x3",
        peers=("torch", "inductor", "numpy"),
    ),
)


def _fused(name: str, function: Any, inputs: dict[str, Input], **further: Any) -> Case:
    return Case(name, "fused", "cuda", function, inputs, **further)


def _swiglu(f: Any, x: Any, gate: Any, up: Any) -> Any:
    return f.silu(x @ gate) * (x @ up)


FUSED = (
    _fused(
        "gelu-linear",
        lambda f, x, w, b: f.gelu(x @ w + b),
        {"x": Input("m k", BF16), "w": Input("k n", BF16), "b": Input("n", BF16)},
        sizes={
            "full": mnk(8192, 16384, 4096),
            "small": mnk(256, 1024, 256),
            "tiny": mnk(33, 40, 48),
        },
        work={"contract bfloat16": ("m n k",)},
        rows="m",
    ),
    _fused(
        "swiglu",
        _swiglu,
        {"x": Input("m k", BF16), "gate": Input("k n", BF16), "up": Input("k n", BF16)},
        sizes={
            "full": mnk(8192, 11008, 4096),
            "small": mnk(256, 688, 256),
            "tiny": mnk(33, 40, 48),
        },
        work={"contract bfloat16": ("2 m n k",)},
        rows="m",
    ),
    _fused(
        "rms-norm-matmul",
        lambda f, x, g, w: f.rms_norm(x, g) @ w,
        {"x": Input("m k", BF16), "g": Input("k", BF16), "w": Input("k n", BF16)},
        sizes={"full": _cube(4096), "small": _cube(384), "tiny": mnk(33, 40, 48)},
        work={"contract bfloat16": ("m n k",)},
        rows="m",
    ),
    _fused(
        "lora",
        lambda f, x, w, a, b: x @ w + (x @ a) @ b,
        {
            "x": Input("m k", BF16),
            "w": Input("k n", BF16),
            "a": Input("k r", BF16),
            "b": Input("r n", BF16),
        },
        sizes={
            "full": {**_cube(4096), "r": 16},
            "small": {**_cube(384), "r": 16},
            "tiny": {**mnk(33, 40, 48), "r": 4},
        },
        work={"contract bfloat16": ("m n k", "m k r", "m n r")},
        rows="m",
    ),
    _fused(
        "product-vector",
        lambda f, a, b, v: (a @ b) @ v,
        {"a": Input("m k", BF16), "b": Input("k n", BF16), "v": Input("n", BF16)},
        sizes={"full": _cube(8192), "small": _cube(512), "tiny": mnk(33, 40, 48)},
        work={"fma float32": ("k n", "m k")},
        rows="m",
    ),
    _fused(
        "product-sum",
        lambda f, a, b: f.sum(a @ b, 0),
        {"a": Input("m k", BF16), "b": Input("k n", BF16)},
        sizes={"full": _cube(8192), "small": _cube(512), "tiny": mnk(33, 40, 48)},
        work={"fma float32": ("k n", "m k")},
        rows="n",
    ),
    _fused(
        "conv-3x3",
        lambda f, x, w: f.conv(x, w),
        {"x": Input("n s s c", BF16), "w": Input("o three three c", BF16)},
        sizes={
            "full": {"n": 64, "s": 56, "c": 256, "o": 256, "three": 3},
            "small": {"n": 4, "s": 14, "c": 64, "o": 64, "three": 3},
            "tiny": {"n": 2, "s": 7, "c": 8, "o": 8, "three": 3},
        },
        work={"contract bfloat16": ("n s s o c 9",)},
        rows="n",
    ),
)

CASES = GEMM + FUSED
