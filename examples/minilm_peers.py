"""The encoder in plain NumPy, and in torch: what the compiled program is checked and timed against.

Nothing here is shared with the graph version but the names of the weights.
"""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from minilm_model import Config
from scipy.special import erf

Encoder = Callable[[np.ndarray, np.ndarray], np.ndarray]


def numpy_encoder(config: Config, weights: Mapping[str, np.ndarray], dtype: Any) -> Encoder:
    """The encoder as a function of ids and mask, computed in one floating dtype."""
    w = {name: value.astype(dtype) for name, value in weights.items()}
    one, half = dtype(1), dtype(0.5)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        variance = (x * x).mean(-1, keepdims=True)
        x *= one / np.sqrt(variance + dtype(config.epsilon))
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def attend(x: np.ndarray, name: str, penalty: np.ndarray) -> np.ndarray:
        tokens, width = x.shape
        batch = penalty.shape[0]
        shape = (batch, tokens // batch, config.heads, width // config.heads)
        q, k, v = (
            linear(x, f"{name}.self.{part}").reshape(shape).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 1, 3, 2)
        scores *= dtype(shape[-1] ** -0.5)
        scores += penalty
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        context = (scores @ v).transpose(0, 2, 1, 3).reshape(tokens, width)
        return linear(context, f"{name}.output.dense")

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        batch, length = ids.shape
        penalty = np.where(mask, dtype(0), dtype(-1e9))[:, None, None, :]
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.position_embeddings.weight"][:length]
        x = (x + w["embeddings.token_type_embeddings.weight"][0]).reshape(batch * length, -1)
        x = norm(x, "embeddings.LayerNorm")
        for layer in range(config.layers):
            name = f"encoder.layer.{layer}"
            x = norm(
                x + attend(x, f"{name}.attention", penalty), f"{name}.attention.output.LayerNorm"
            )
            wide = linear(x, f"{name}.intermediate.dense")
            wide = wide * half * (one + erf(wide * dtype(np.sqrt(0.5))))
            x = norm(x + linear(wide, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        kept = mask.astype(dtype)[:, :, None]
        mean = (x.reshape(batch, length, -1) * kept).sum(1) / kept.sum(1)
        return mean / np.sqrt((mean * mean).sum(-1, keepdims=True))

    return run


def has_torch() -> bool:
    """Whether torch can be imported (without importing it)."""
    return importlib.util.find_spec("torch") is not None


def torch_encoder(
    config: Config, weights: Mapping[str, np.ndarray], threads: int, compiled: bool = False
) -> Encoder:
    """The encoder with torch's own functions on the CPU, in float32, eager or by torch.compile."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    w = {name: torch.from_numpy(value.copy()) for name, value in weights.items()}

    def norm(x: Any, name: str) -> Any:
        size = (config.hidden,)
        weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
        return functional.layer_norm(x, size, weight, bias, config.epsilon)

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def attend(x: Any, name: str, penalty: Any) -> Any:
        shape = (*x.shape[:2], config.heads, config.hidden // config.heads)
        q, k, v = (
            linear(x, f"{name}.self.{part}").view(shape).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        context = functional.scaled_dot_product_attention(q, k, v, penalty)
        return linear(context.transpose(1, 2).reshape(x.shape), f"{name}.output.dense")

    def encode(ids: Any, mask: Any) -> Any:
        penalty = torch.where(mask > 0, 0.0, -1e9)[:, None, None, :]
        x = functional.embedding(ids, w["embeddings.word_embeddings.weight"])
        x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(config.layers):
            name = f"encoder.layer.{layer}"
            x = norm(
                x + attend(x, f"{name}.attention", penalty), f"{name}.attention.output.LayerNorm"
            )
            wide = functional.gelu(linear(x, f"{name}.intermediate.dense"))
            x = norm(x + linear(wide, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        kept = mask.to(x.dtype)[:, :, None]
        return functional.normalize((x * kept).sum(1) / kept.sum(1), dim=-1)

    function: Any = torch.compile(encode) if compiled else encode

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return function(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    return run
