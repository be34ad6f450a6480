"""Attention as it is written in a textbook: every intermediate value spelled out.

eqsat-explain examples/attention.py:naive_attention --spec h200 --precision tf32

One kernel, with products of tf32. With products as accurate as float32's that device is faster
where scores are stored; in bfloat16 it is one kernel again.
"""

import eqsat
from eqsat.graph import Tensor

HEADS = (2, 8, 1024, 64)
Q, K, V = (eqsat.input(name, HEADS, "float32") for name in ("q", "k", "v"))


def naive_attention(q: Tensor = Q, k: Tensor = K, v: Tensor = V) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, for every head: scores and weights are whole matrices."""
    scores = q @ eqsat.permute_dims(k, (0, 1, 3, 2)) * q.shape[-1] ** -0.5
    weights = eqsat.exp(scores - eqsat.max(scores, axis=-1, keepdims=True))
    return weights / eqsat.sum(weights, axis=-1, keepdims=True) @ v
