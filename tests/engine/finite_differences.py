"""Derivatives by central differences of what a graph means, in float64."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

import eqsat.graph as g
from eqsat.graph.tensor import Tensor

STEP = 1e-5
Arrays = Mapping[str, np.ndarray]


def differences(loss: Tensor, names: Sequence[str], arrays: Arrays) -> list[np.ndarray]:
    """The derivatives of a scalar by every element of the named inputs."""

    def value(name: str, array: np.ndarray) -> float:
        return float(g.evaluate([loss], {**arrays, name: array}, np.float64)[0])

    found = []
    for name in names:
        array = arrays[name]
        slope = np.zeros(array.shape)
        for at in np.ndindex(array.shape):
            moved = [array.copy(), array.copy()]
            moved[0][at] -= STEP
            moved[1][at] += STEP
            low, high = (value(name, one) for one in moved)
            slope[at] = (high - low) / float(moved[1][at] - moved[0][at])
        found.append(slope)
    return found


def weighted(*outputs: Tensor) -> Tensor:
    """A scalar in which every element of the outputs counts differently."""
    rng = np.random.default_rng(7)
    parts = [
        g.sum(g.astype(y, "float64") * g.constant(rng.uniform(0.5, 2.0, y.shape))) for y in outputs
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def inputs_of(arrays: Arrays) -> dict[str, Tensor]:
    """An input for each array."""
    return {name: g.input(name, a.shape, a.dtype) for name, a in arrays.items()}


def check(
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    tolerance: float = 1e-6,
    **arrays: np.ndarray,
) -> list[np.ndarray]:
    """The gradient of the function by its floating arrays is that of differences; it is returned.

    The function gets an input for each array, in order.
    """
    tensors = inputs_of(arrays)
    outputs = function(*tensors.values())
    loss = weighted(*(outputs if isinstance(outputs, tuple) else (outputs,)))
    names = [name for name, x in tensors.items() if x.dtype.kind == "float"]
    gradient = g.grad(loss, [tensors[name] for name in names])
    found = g.evaluate(gradient, arrays)
    expected = differences(loss, names, arrays)
    for name, got, wanted in zip(names, found, expected, strict=True):
        assert got.dtype == arrays[name].dtype and got.shape == arrays[name].shape
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance, err_msg=name)
    return found
