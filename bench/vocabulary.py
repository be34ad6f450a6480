"""The functions that a row is written in, as the graph API and each peer have them.

A row's function takes one of these first, then arrays of that library, so that one text states the
computation for all. Each peer uses the call that its users would write.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import eqsat.graph as G
from eqsat.graph import Tensor


class GraphVocabulary:
    """Lazy tensors: the graph API's own functions."""

    softmax = staticmethod(G.softmax)
    layer_norm = staticmethod(G.layer_norm)
    rms_norm = staticmethod(G.rms_norm)
    gelu = staticmethod(G.gelu)
    silu = staticmethod(G.silu)
    attention = staticmethod(G.attention)
    sum = staticmethod(G.sum)
    cumulative_sum = staticmethod(G.cumulative_sum)
    permute = staticmethod(G.permute_dims)
    reshape = staticmethod(G.reshape)
    concat = staticmethod(G.concat)

    @staticmethod
    def swap(x: Tensor) -> Tensor:
        """The last two axes swapped, as a view where the library has views."""
        return G.matrix_transpose(x)

    @staticmethod
    def stored(x: Tensor) -> Tensor:
        """x in memory, in the order of its axes."""
        return x

    @staticmethod
    def scaled_product(a: Tensor, b: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """p q a b^T in bfloat16: a (m, k) and b (n, k) of 8-bit floats, p and q numbers."""
        product = G.astype(a, "float32") @ G.astype(b, "float32").T
        return G.astype(product * (p * q), "bfloat16")

    @staticmethod
    def attention_step(
        q: Tensor, k: Tensor, v: Tensor, slope: Tensor, causal: bool = False
    ) -> tuple[Tensor, ...]:
        """Attention, and its gradients by q, k and v for a slope of the result."""
        y = G.attention(q, k, v, causal=causal)
        return y, *G.grad(y, [q, k, v], cotangent=slope)

    @staticmethod
    def norm_step(x: Tensor, weight: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
        """An RMS norm, and its gradients by x and the weight for a slope of the result."""
        y = G.rms_norm(x, weight)
        return y, *G.grad(y, [x, weight], cotangent=slope)

    @staticmethod
    def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each row."""
        return G.cross_entropy(logits, targets, reduction="none")

    @staticmethod
    def conv(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 1) -> Tensor:
        """Convolution, 3x3 as a rule: x (n, h, w, c), weight (out, *window, c)."""
        weight = G.permute_dims(weight, (0, 3, 1, 2))
        return G.conv(x, weight, stride=stride, padding=padding, layout="NHWC")

    @staticmethod
    def conv_nchw(x: Tensor, weight: Tensor) -> Tensor:
        """Convolution, padded by 1: x (n, c, h, w), weight (out, c, *window)."""
        return G.conv(x, weight, padding=1)

    @staticmethod
    def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """y_t = sum_n c_t h_t, where h_t = exp(delta_t a) h_(t-1) + delta_t b_t x_t: x and delta
        (batch, t, d), a (d, n), b and c (batch, t, n).
        """
        decay = G.exp(G.expand_dims(delta, 3) * a)
        drive = G.expand_dims(delta * x, 3) * G.expand_dims(b, 2)
        states = G.affine_scan(decay, drive, axis=1)
        return G.sum(states * G.expand_dims(c, 2), axis=3)

    @staticmethod
    def group_means(points: Tensor, centres: Tensor) -> Tensor:
        """The mean of the points nearest to each centre; a centre without points becomes 0."""
        near = G.argmin(G.sum(centres * centres, axis=1) - 2.0 * (points @ centres.T), axis=1)
        belongs = G.expand_dims(near, 1) == G.arange(centres.shape[0])
        member = G.astype(belongs, points.dtype)
        counts = G.maximum(G.sum(member, axis=0), 1.0)
        return (member.T @ points) / G.expand_dims(counts, 1)


class NumpyVocabulary:
    """Plain NumPy, as a user writes it; erf from SciPy."""

    concat = staticmethod(np.concatenate)
    permute = staticmethod(np.transpose)
    reshape = staticmethod(np.reshape)
    cumulative_sum = staticmethod(np.cumsum)
    stored = staticmethod(np.ascontiguousarray)

    @staticmethod
    def swap(x: np.ndarray) -> np.ndarray:
        return np.swapaxes(x, -1, -2)

    @staticmethod
    def sum(x: np.ndarray, axis: int) -> np.ndarray:
        return x.sum(axis)

    @staticmethod
    def softmax(x: np.ndarray) -> np.ndarray:
        weights = x - x.max(-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(-1, keepdims=True)
        return weights

    @staticmethod
    def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        spread = np.square(centred).mean(-1, keepdims=True)
        centred /= np.sqrt(spread + x.dtype.type(1e-5))
        return centred * weight + bias

    @staticmethod
    def gelu(x: np.ndarray) -> np.ndarray:
        from scipy.special import erf

        return x * x.dtype.type(0.5) * (erf(x * x.dtype.type(0.5**0.5)) + x.dtype.type(1))

    @staticmethod
    def conv_nchw(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
        seen = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], axis=(2, 3))
        return np.einsum("nchwrs,ocrs->nohw", seen, weight, optimize=True)

    @staticmethod
    def selective_scan(
        x: np.ndarray, delta: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray
    ) -> np.ndarray:
        y, drive = np.empty_like(x), delta * x
        state = np.zeros((x.shape[0], *a.shape), x.dtype)
        for t in range(x.shape[1]):
            state *= np.exp(delta[:, t, :, None] * a)
            state += drive[:, t, :, None] * b[:, t, None, :]
            y[:, t] = np.einsum("bdn,bn->bd", state, c[:, t])
        return y

    @staticmethod
    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = q @ np.swapaxes(k, -1, -2)
        scores *= q.dtype.type(q.shape[-1] ** -0.5)
        return NumpyVocabulary.softmax(scores) @ v


_CHUNK = 256  # steps whose decay a float32 can hold


class TorchVocabulary:
    """torch's own fused calls, with eager kernels or under torch.compile."""

    def __init__(self, compiled: bool = False) -> None:
        import torch

        self.torch = torch
        self.compiled = compiled
        self.functional = torch.nn.functional
        self.silu = torch.nn.functional.silu
        self.gelu = torch.nn.functional.gelu
        self.concat = torch.cat
        self.reshape = torch.reshape
        self.permute = torch.permute
        self.cumulative_sum = torch.cumsum

    def swap(self, x: Any) -> Any:
        return x.mT

    def stored(self, x: Any) -> Any:
        return x.contiguous()

    def sum(self, x: Any, axis: int) -> Any:
        return x.sum(axis)

    def softmax(self, x: Any) -> Any:
        return self.torch.softmax(x, -1)

    def layer_norm(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)

    def rms_norm(self, x: Any, weight: Any) -> Any:
        return self.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)

    def attention(self, q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        grouped = q.shape[-3] != k.shape[-3]
        return self.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=grouped
        )

    def attention_step(
        self, q: Any, k: Any, v: Any, slope: Any, causal: bool = False
    ) -> tuple[Any, ...]:
        with self.torch.enable_grad():
            factors = [x.detach().requires_grad_() for x in (q, k, v)]
            y = self.attention(*factors, causal=causal)
            return y.detach(), *self.torch.autograd.grad(y, factors, slope)

    def norm_step(self, x: Any, weight: Any, slope: Any) -> tuple[Any, ...]:
        with self.torch.enable_grad():
            x, weight = (one.detach().requires_grad_() for one in (x, weight))
            y = self.rms_norm(x, weight)
            return y.detach(), *self.torch.autograd.grad(y, (x, weight), slope)

    def cross_entropy(self, logits: Any, targets: Any) -> Any:
        return self.functional.cross_entropy(logits, targets, reduction="none")

    def scaled_product(self, a: Any, b: Any, p: Any, q: Any) -> Any:
        torch = self.torch
        if a.element_size() > 1:  # the reference
            return (a @ b.T) * (p * q)
        scales, out = {"scale_a": p, "scale_b": q}, torch.bfloat16
        return torch._scaled_mm(a, b.T, **scales, out_dtype=out, use_fast_accum=False)

    def conv(self, x: Any, weight: Any, stride: int = 1, padding: int = 1) -> Any:
        channels_last: Sequence[int] = (0, 3, 1, 2)
        y = self.functional.conv2d(
            x.permute(channels_last), weight.permute(channels_last), stride=stride, padding=padding
        )
        return y.permute(0, 2, 3, 1)

    def conv_nchw(self, x: Any, weight: Any) -> Any:
        return self.functional.conv2d(x, weight, padding=1)

    def selective_scan(self, x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
        """A loop of steps; compiled, one of chunks, in each of which cumulative sums of exponents
        and of what they have not yet shrunk give all states.
        """
        torch, parts = self.torch, []
        state = x.new_zeros((x.shape[0], *a.shape))
        for start in range(0, x.shape[1], _CHUNK if self.compiled else 1):
            part = slice(start, start + (_CHUNK if self.compiled else 1))
            rate = delta[:, part, :, None] * a
            drive = (delta[:, part] * x[:, part])[..., None] * b[:, part, None, :]
            if self.compiled:
                decay = torch.exp(torch.cumsum(rate, 1))
                states = decay * (state[:, None] + torch.cumsum(drive / decay, 1))
            else:
                states = torch.exp(rate) * state[:, None] + drive
            state = states[:, -1]
            parts.append((states * c[:, part, None, :]).sum(-1))
        return torch.cat(parts, 1)

    def group_means(self, points: Any, centres: Any) -> Any:
        distances = (centres * centres).sum(1) - 2.0 * (points @ centres.T)
        near = distances.argmin(1)
        sums = self.torch.zeros_like(centres).index_add_(0, near, points)
        counts = self.torch.zeros_like(centres[:, 0])
        counts.index_add_(0, near, self.torch.ones_like(points[:, 0]))
        return sums / counts.clamp(min=1.0)[:, None]
