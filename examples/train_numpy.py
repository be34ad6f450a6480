"""The training step of train.py's MLP in NumPy, its derivatives written by hand."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Adam:
    """The constants of Adam (Kingma and Ba, arXiv:1412.6980)."""

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6


def loss_and_slopes(
    p: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> tuple[float, dict[str, np.ndarray]]:
    """The mean cross-entropy of the two-layer MLP, and its derivatives by the parameters."""
    inner = images @ p["w1"] + p["b1"]
    hidden = np.maximum(inner, 0)
    logits = hidden @ p["w2"] + p["b2"]
    shifted = logits - logits.max(1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    row = np.arange(len(labels)), labels
    slope = np.exp(logarithms)
    slope[row] -= 1
    slope /= len(labels)
    below = slope @ p["w2"].T * (inner > 0)
    slopes = {
        "w1": images.T @ below,
        "b1": below.sum(0),
        "w2": hidden.T @ slope,
        "b2": slope.sum(0),
    }
    return float(-logarithms[row].mean()), slopes


def losses(
    parameters: dict[str, np.ndarray],
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    adam: Adam,
) -> np.ndarray:
    """The loss of every step of the training, in float64."""
    p = {name: array.astype(np.float64) for name, array in parameters.items()}
    first = {name: np.zeros_like(array) for name, array in p.items()}
    second = {name: np.zeros_like(array) for name, array in p.items()}
    found = []
    for time, (images, labels) in enumerate(batches, 1):
        loss, slopes = loss_and_slopes(p, images.astype(np.float64), labels)
        found.append(loss)
        for name, slope in slopes.items():
            first[name] += (1 - adam.beta1) * (slope - first[name])
            second[name] += (1 - adam.beta2) * (slope**2 - second[name])
            mean = first[name] / (1 - adam.beta1**time)
            spread = np.sqrt(second[name] / (1 - adam.beta2**time))
            p[name] = p[name] - adam.rate * mean / (spread + adam.epsilon)
    return np.array(found)
