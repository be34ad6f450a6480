"""Rows of the group model: one layer of a model, weights being inputs at run time."""

from typing import Any

from eqsat.bench.case import Case, Input

BF16 = "bfloat16"


def _split(f: Any, x: Any, size: int) -> Any:
    """(batch, tokens, heads * size) -> (batch, heads, tokens, size)."""
    batch, tokens, width = x.shape
    return f.permute(f.reshape(x, (batch, tokens, width // size, size)), (0, 2, 1, 3))


def _join(f: Any, x: Any) -> Any:
    batch, heads, tokens, size = x.shape
    return f.reshape(f.permute(x, (0, 2, 1, 3)), (batch, tokens, heads * size))


def _rotate(f: Any, x: Any, cosine: Any, sine: Any) -> Any:
    """Rotary position embedding (Su et al., arXiv:2104.09864) on halves."""
    half = x.shape[-1] // 2
    left, right = x[..., :half], x[..., half:]
    return f.concat([left * cosine - right * sine, right * cosine + left * sine], -1)


def llama_block(f: Any, x: Any, *weights: Any) -> Any:
    """A decoder block as in Llama 3 (arXiv:2407.21783): grouped queries, rotary, SwiGLU."""
    norm, wq, wk, wv, wo, cosine, sine, norm_mlp, gate, up, down = weights
    size = cosine.shape[-1] * 2
    y = f.rms_norm(x, norm)
    q, k, v = (_split(f, y @ w, size) for w in (wq, wk, wv))
    q, k = _rotate(f, q, cosine, sine), _rotate(f, k, cosine, sine)
    x = x + _join(f, f.attention(q, k, v, causal=True)) @ wo
    y = f.rms_norm(x, norm_mlp)
    return x + (f.silu(y @ gate) * (y @ up)) @ down


def encoder_layer(f: Any, x: Any, *weights: Any) -> Any:
    """An encoder layer as in MiniLM-L6 (arXiv:2002.10957); heads of 32."""
    wq, bq, wk, bk, wv, bv, wo, bo, g1, c1, w_in, b_in, w_out, b_out, g2, c2 = weights
    q, k, v = (_split(f, x @ w + b, 32) for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    x = f.layer_norm(x + (_join(f, f.attention(q, k, v)) @ wo + bo), g1, c1)
    return f.layer_norm(x + (f.gelu(x @ w_in + b_in) @ w_out + b_out), g2, c2)


def _encoder_inputs() -> dict[str, Input]:
    inputs = {"x": Input("b t h")}
    for name in "qkvo":
        inputs |= {f"w{name}": Input("h h", scale="h"), f"b{name}": Input("h")}
    inputs |= {"g1": Input("h"), "c1": Input("h")}
    inputs |= {"w_in": Input("h f", scale="h"), "b_in": Input("f")}
    inputs |= {"w_out": Input("f h", scale="f"), "b_out": Input("h")}
    return inputs | {"g2": Input("h"), "c2": Input("h")}


CASES = (
    Case(
        name="llama-block",
        group="model",
        target="cuda",
        function=llama_block,
        inputs={
            "x": Input("b t h", BF16),
            "norm": Input("h", BF16),
            "wq": Input("h q", BF16, scale="h"),
            "wk": Input("h g", BF16, scale="h"),
            "wv": Input("h g", BF16, scale="h"),
            "wo": Input("q h", BF16, scale="q"),
            "cosine": Input("t half", BF16),
            "sine": Input("t half", BF16),
            "norm_mlp": Input("h", BF16),
            "gate": Input("h f", BF16, scale="h"),
            "up": Input("h f", BF16, scale="h"),
            "down": Input("f h", BF16, scale="f"),
        },
        sizes={
            "full": {"b": 2, "t": 2048, "h": 4096, "q": 4096, "g": 1024, "half": 64, "f": 14336},
            "small": {"b": 2, "t": 64, "h": 128, "q": 128, "g": 64, "half": 16, "f": 448},
            "tiny": {"b": 2, "t": 9, "h": 32, "q": 32, "g": 16, "half": 4, "f": 48},
        },
        work={
            "contract bfloat16": (
                *("b t h q", "b t h g 2", "b t q h", "b t h f 3"),
                "b t t q",  # scores and their product with v, half of each masked
            )
        },
        rows="b",
        tolerance=5e-2,
    ),
    Case(
        name="minilm-layer",
        group="model",
        target="cpu",
        function=encoder_layer,
        inputs=_encoder_inputs(),
        sizes={
            "full": {"b": 8, "t": 128, "h": 384, "f": 1536},
            "small": {"b": 2, "t": 64, "h": 384, "f": 1536},
            "tiny": {"b": 2, "t": 9, "h": 64, "f": 96},
        },
        work={"contract float32": ("4 b t h h", "2 b t t h", "2 b t h f")},
        rows="b",
        peers=("numpy", "torch", "inductor"),
    ),
)
