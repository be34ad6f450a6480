"""Tiles of overlapping windows in shared memory: answers, places that lie there once."""

import re
from dataclasses import replace

import numpy as np
import pytest
from cuda_emulation import asked, emulate, run_between_guards
from grouped_cases import grouped_cases

import eqsat.graph as g
from eqsat.bench.variants import drawn
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import emit
from eqsat.driver import compile
from eqsat.kernel.ir import Contract
from eqsat.specs import load

H200 = load("h200")

CASES = list(grouped_cases())


@pytest.fixture(scope="module")
def emulator(request, tmp_path_factory):
    numbers = asked(request, test_a_kernel_gives_its_answer)
    return emulate([CASES[n].kernel for n in numbers], tmp_path_factory.mktemp("grouped")), numbers


@pytest.mark.parametrize("number", [pytest.param(n, id=c.name) for n, c in enumerate(CASES)])
def test_a_kernel_gives_its_answer(emulator, number):
    """Also beside memory that holds NaN: nothing outside the array is read or written."""
    compiled, numbers = emulator
    run_between_guards(compiled, numbers.index(number), CASES[number].sample)


def found(label: str):
    (one,) = (c for c in CASES if c.name.startswith(f"grouped-{label}"))
    return emit(one.kernel)


def test_places_that_windows_share_lie_in_memory_once():
    """4 x 8 windows of 3 x 3 are 6 x 10 places, each of four channels of four groups."""
    source = found("9x13x5x4x4x3x3-11-last-bfloat16-4x8x4x4--1")
    places, points, weights = 6 * 10 * 16, 4 * 8 * 16 * 9, 4 * 4 * 4 * 9
    assert 2 * (places + weights) <= source.shared_bytes < points + 2 * weights


def test_windows_of_an_operation_are_taken_apart_where_elements_lie_along_one():
    """It reads eight elements at once, from units of 16 bytes."""
    source = found("9x18x3x16x8x3x3-11-first-mma-2x16x2x8--1")
    points = 2 * 16 * 2 * 16 * 9
    assert source.shared_bytes >= 2 * points


def test_rows_of_a_fragment_lie_in_different_banks():
    """Of two groups of 16 channels, padded: neighbours lie an odd number of units apart."""
    source = found("9x18x3x8x8x3x3-11-last-mma-4x16x2x8--1")
    steps = re.findall(
        r"load_matrix_x4\(left\[block\], s_a \+ .*?lane % 8\)\) \* (\d+)", source.text
    )
    assert steps and all(int(step) * 2 // 16 % 2 for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "into", "out", "window", "stride", "dilation", "dtype"),
    [
        ("NHWC", 8, 8, 3, 1, 1, "bfloat16"),
        ("NHWC", 4, 5, 3, 2, 1, "float16"),
        ("NHWC", 16, 8, 3, 1, 2, "float32"),
        ("NCHW", 8, 4, 5, 1, 1, "bfloat16"),
        ("NCHW", 3, 16, 3, 2, 1, "float32"),
    ],
)
def test_whatever_schedule_is_drawn_gives_the_answer(
    tmp_path, layout, into, out, window, stride, dilation, dtype
):
    """Of a grouped convolution: by threads and by warps, chunks of any, factors prepared or not."""
    shape = (2, 3 * into, 10, 12) if layout == "NCHW" else (2, 10, 12, 3 * into)
    x, w = g.input("x", shape, dtype), g.input("w", (3 * out, into, window, window), dtype)
    y = g.conv(x, w, padding=1, stride=stride, dilation=dilation, groups=3, layout=layout)
    random = np.random.default_rng(into)
    given = {
        name: random.integers(-3, 4, one.shape).astype(one.dtype.numpy)
        for name, one in (("x", x), ("w", w))
    }
    (wide,) = g.evaluate([y], given, np.float64)
    program = compile([y], H200, candidates=2, drawn=24, cache=Cache(None))
    staged = [v for v in drawn(program) if by_waiting_threads(v)][:4]
    assert staged
    for number, variant in enumerate(staged):
        kernels = [with_instructions(one.kernel) for one in variant.launches]
        folder = tmp_path / str(number)
        folder.mkdir()
        device = emulate(kernels, folder)
        memory = {a.buffer: given[a.name] for a in program.parts.arguments}
        for place, launch in enumerate(variant.launches):
            for buffer, name in zip(launch.kernel.buffers, launch.buffers, strict=True):
                memory.setdefault(name, np.zeros(buffer.shape, buffer.dtype.numpy))
            pairs = zip(launch.kernel.buffers, launch.buffers, strict=True)
            device.run(place, {b.name: memory[name].reshape(b.shape) for b, name in pairs})
        found = memory[variant.launches[-1].buffers[-1]].astype(np.float64).reshape(wide.shape)
        np.testing.assert_allclose(found, wide, rtol=2e-2, atol=2e-2 * np.abs(wide).max())


def by_waiting_threads(variant):
    """Whether a kernel stages factors of operations that threads wait for, or of none."""
    rules = [rule for one in variant.launches for rule in one.kernel.rules]
    refused = any("wgmma" in rule or "tf32" in rule or "share" in rule.split() for rule in rules)
    return any(rule.startswith("stage shared") for rule in rules) and not refused


def with_instructions(kernel):
    """The kernel by the instructions that the spec's operations name."""
    names = {one.name: one.invocation_name for one in H200.operations}
    phases = []
    for phase in kernel.phases:
        body = tuple(
            replace(s, operation=names.get(s.operation, s.operation))
            if isinstance(s, Contract)
            else s
            for s in phase.body
        )
        phases.append(replace(phase, body=body))
    return replace(kernel, phases=tuple(phases))
