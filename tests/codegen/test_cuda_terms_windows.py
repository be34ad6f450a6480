"""Convolutions of float32 images, multiplied by a warpgroup from terms that lie in memory: the
boxes of windows and the runs of pixels that bring them, in the emulator.
"""

from dataclasses import replace

import numpy as np
import pytest
from cuda_emulation import asked, emulate, run_between_guards
from fast_products import planned
from kernel_building import Sample
from pipeline_cases import OPERATIONS

import eqsat.graph as g
from eqsat.codegen import oracle
from eqsat.graph.evaluate import evaluate, input_nodes
from eqsat.kernel.ir import Kernel

PIXELS = "along pixels"


def convolved(
    images: tuple[int, ...], out: int, windows: tuple[int, ...], layout: str = "NCHW", **how: int
) -> g.Tensor:
    channels = images[-1] if layout == "NHWC" else images[1]
    w = g.input("w", (out, channels, *windows))
    return g.conv(g.input("x", images), w, layout=layout, **how)


CASES = {  # and whether runs of pixels are copied
    "boxes": (convolved((2, 24, 9, 64), 40, (3, 3), padding=1), False),
    "steps": (convolved((1, 64, 15, 131), 32, (3, 5), stride=2, padding=1), True),
    "runs in each image": (convolved((3, 64, 10, 10), 64, (3, 3), padding=1), True),
    "runs through images": (convolved((3, 7, 7, 64), 64, (3, 3), layout="NHWC", padding=1), True),
}


def multiplying(out: g.Tensor) -> Sample:
    """The last kernel, with what those before it leave for it in the oracle."""
    given = {
        name: np.random.default_rng(len(name)).standard_normal(x.shape).astype(np.float32)
        for name, x in input_nodes([out]).items()
    }
    program = planned(out)
    memory = {one.buffer: given[one.name] for one in program.parts.arguments}
    *before, last = program.parts.launches
    for launch in before:
        oracle.run(launch.kernel, arrays_of(launch.kernel, launch.buffers, memory))
    (answer,) = evaluate([out], given, np.float64)
    inputs = arrays_of(last.kernel, last.buffers, memory)
    stored = {buffer.name for buffer in last.kernel.buffers if buffer.role == "output"}
    expected = {name: answer.reshape(inputs.pop(name).shape) for name in stored}
    buffers = (
        replace(b, role="input" if b.name in inputs else b.role) for b in last.kernel.buffers
    )
    return Sample(replace(last.kernel, buffers=tuple(buffers)), inputs, expected, 1e-5)


def arrays_of(kernel: Kernel, names: tuple[str, ...], memory: dict) -> dict[str, np.ndarray]:
    for buffer, name in zip(kernel.buffers, names, strict=True):
        memory.setdefault(name, np.zeros(buffer.shape, buffer.dtype.numpy))
    return {b.name: memory[name] for b, name in zip(kernel.buffers, names, strict=True)}


@pytest.fixture(scope="module")
def samples(request):
    """Of the cases that run."""
    names = asked(request, test_terms_of_windows_are_multiplied, "name")
    return {name: multiplying(CASES[name][0]) for name in names}


@pytest.fixture(scope="module")
def emulator(samples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("terms-windows")
    return emulate([one.kernel for one in samples.values()], folder, OPERATIONS)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "runs in each image" else name
        for name in CASES
    ],
)
def test_terms_of_windows_are_multiplied(emulator, samples, name):
    sample = samples[name]
    rules = sample.kernel.rules
    assert any(rule.startswith("split_ahead_") for rule in rules) and "prepare x2" in rules
    assert (PIXELS in rules) == CASES[name][1]
    run_between_guards(emulator, [*samples].index(name), sample)
