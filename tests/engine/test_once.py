"""What a program makes of constants alone is made once, before its first run."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat import compile, specs
from eqsat.cache.store import Cache
from eqsat.codegen.targets import CpuBackend
from eqsat.driver import plan
from eqsat.graph.tensor import Tensor
from eqsat.program import Program

pytestmark = pytest.mark.usefixtures("shared_search")
RNG = np.random.default_rng(41)
FIRST, SECOND = RNG.standard_normal((2, 96, 96)).astype(np.float32)


def product(x: Tensor) -> Tensor:
    """Both constants are multiplied first: there are few columns in that and many rows in x."""
    return x @ (g.constant(FIRST) @ g.constant(SECOND))


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The kernels of each run, as runs come."""
    runs: list[list[str]] = []
    plain = CpuBackend.prepare

    def prepare(self: CpuBackend, launches):
        run = plain(self, launches)

        def told(arrays):
            runs.append([launch.kernel.name for launch in launches])
            return run(arrays)

        return told

    monkeypatch.setattr(CpuBackend, "prepare", prepare)
    return runs


def test_constants_are_multiplied_once(prepared: list[list[str]]) -> None:
    x = g.input("x", (4096, 96))
    program = compile(product(x), cache=Cache(None))
    first, second = program.kernels
    for _ in range(3):
        array = RNG.standard_normal(x.shape).astype(np.float32)
        exact = array.astype(np.float64) @ FIRST.astype(np.float64) @ SECOND
        np.testing.assert_allclose(program(array), exact, rtol=1e-3, atol=1e-2)
    assert prepared == [[first.name], [second.name], [second.name], [second.name]]
    once, every = program.parts.launches
    assert program.cost == every.seconds < every.seconds + once.seconds
    assert program.describe().count("run once, as it reads constants alone") == 1
    assert "once" in program.explain().split("inputs")[0]


def test_outputs_of_constants_are_given_each_time(prepared: list[list[str]]) -> None:
    program: Program = compile(g.constant(FIRST) @ g.constant(SECOND), cache=Cache(None))
    one, other = program(), program()
    np.testing.assert_allclose(one, FIRST @ SECOND, rtol=1e-4, atol=1e-4)
    assert one is not other and len(prepared) == 2 and not program.parts.once


def test_what_others_add_to_is_begun_each_time() -> None:
    """The target of a scatter is written by one kernel, and added to by another."""
    at = g.input("at", (50,), "int32")
    counts = g.astype(g.bincount(at, 7), "float32") + g.sum(g.constant(FIRST))
    program = compile(counts, cache=Cache(None))
    for _ in range(2):
        array = RNG.integers(0, 7, 50).astype(np.int32)
        want = np.bincount(array, minlength=7) + FIRST.sum(dtype=np.float64)
        np.testing.assert_allclose(program(array), want, rtol=1e-4)


def launches(output: Tensor, spec: str) -> tuple[int, int]:
    """How many launches a program has before its first run, and in each."""
    parts = plan(output, specs.load(spec), cache=Cache(None)).parts
    return len(parts.once), len(parts.repeated)


def weights(*shape: int, dtype: str = "bfloat16") -> Tensor:
    return g.constant(RNG.standard_normal(shape).astype(g.as_dtype(dtype).numpy))


@pytest.mark.parametrize("known", [True, False])
def test_two_constants_are_multiplied_where_two_arguments_are_not(known: bool) -> None:
    """Both ways multiply as much: x (a b) is one product a run, (x a) b two."""
    x = g.input("x", (1024, 1024), "bfloat16")
    shape = (1024, 1024)
    a, b = (weights(*shape) if known else g.input(n, shape, "bfloat16") for n in "ab")
    assert launches((x @ a) @ b, "h200") == ((1, 1) if known else (0, 2))


def test_a_product_of_low_rank_stays_one() -> None:
    x = g.input("x", (4096, 4096), "bfloat16")
    assert launches((x @ weights(4096, 16)) @ weights(16, 4096), "h200")[0] == 0


def test_scales_of_channels_are_part_of_constant_weights() -> None:
    """Normalisation by known statistics costs a convolution nothing."""
    x = g.input("x", (8, 64, 28, 28), "bfloat16")
    y = g.conv(x, weights(64, 64, 3, 3), padding=1)
    plain = launches(y, "h200")
    scaled = y * g.reshape(weights(64), (64, 1, 1)) + g.reshape(weights(64), (64, 1, 1))
    once, every = launches(g.relu(scaled), "h200")
    assert once >= plain[0] == 1 and every == plain[1]


def test_terms_of_constant_factors_are_made_once() -> None:
    x = g.input("x", (2048, 2048))
    once, every = launches(x @ weights(2048, 2048, dtype="float32"), "h200")
    assert (once, every) == (1, 2)  # those of x are made in each run
