"""What each family of rules is for, and what the search finds that positional compilers miss."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.driver import compile, default_rules
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Contract, Kernel, Map
from eqsat.program import Program
from eqsat.specs import OperationSemantics, ParallelProcessingUnit, load, loads

pytestmark = pytest.mark.usefixtures("shared_search")

MATRIX_UNIT = """
[[operations]]
name = "four_by_four"
supported_by = "core"
supported_data_types = [{a = "float32", b = "float32", d = "float32"}]
latency_cycles = 4
throughput_per_cycle = 0.5
throughput_group = "core"
semantics = "d[m,n] += a[m,k] * b[k,n]"
extents = {m = 4, n = 4, k = 4}
operand_memory = {a = "registers", b = "registers", d = "registers"}
[operations.native_implementation]
oracle = "by its semantics"
"""
N = 256


@pytest.fixture(scope="module")
def plain() -> ParallelProcessingUnit:
    """Two cores without a matrix operation that the oracle may use."""
    return replace(load("cpu"), target="oracle")


@pytest.fixture(scope="module")
def matrix() -> ParallelProcessingUnit:
    """The same with a made-up matrix operation, in a TOML of its own."""
    text = (Path(__file__).parents[2] / "specs/cpu.toml").read_text()
    return loads(text.replace('target = "cpu"', 'target = "oracle"') + MATRIX_UNIT)


def compiled(
    outputs: Tensor | Sequence[Tensor], unit: ParallelProcessingUnit, *without: str
) -> Program:
    rules = [rule for rule in default_rules() if rule.name not in without]
    assert len(rules) + len(without) == len(default_rules()), "a rule to leave out is unknown"
    return compile(outputs, unit, rules=rules, cache=Cache(None))


def matrices(**shapes: tuple[int, ...]) -> list[Tensor]:
    return [g.input(name, shape) for name, shape in shapes.items()]


def contractions(program: Program) -> list[Contract]:
    return [s for k in program.kernels for s in k.statements() if isinstance(s, Contract)]


def operations(program: Program) -> set[str]:
    """The spec's operations that the kernels use."""
    return {contract.operation for contract in contractions(program)} - {""}


def work(program: Program) -> int:
    """Points of the largest statement of each kernel."""
    return sum(max(_points(kernel, s) for s in kernel.statements()) for kernel in program.kernels)


def _points(kernel: Kernel, statement: object) -> int:
    over = getattr(statement, "over", ())
    names = {*statement.indices, *((over,) if isinstance(over, str) else over)}  # type: ignore[attr-defined]
    return prod(kernel.axes()[name].extent for name in names)


# --- one rule of each family ---------------------------------------------------------------------


def mlp() -> Tensor:
    x, w, b = matrices(x=(N, N), w=(N, N), b=(N,))
    return g.gelu(x @ w + b)


def test_without_inline_each_operation_is_a_kernel(plain: ParallelProcessingUnit) -> None:
    assert len(compiled(mlp(), plain).kernels) == 1
    unfused = compiled(mlp(), plain, "inline")
    assert len(unfused.kernels) > 4
    assert unfused.cost > compiled(mlp(), plain).cost


def test_without_tile_a_kernel_is_one_tile(plain: ParallelProcessingUnit) -> None:
    def cut(program: Program) -> list[bool]:
        return [axis.tile < axis.extent for kernel in program.kernels for axis in kernel.grid]

    assert any(cut(compiled(mlp(), plain)))
    whole = compiled(mlp(), plain, "tile")
    assert not any(cut(whole))
    assert whole.cost > compiled(mlp(), plain).cost


@pytest.mark.parametrize("rule", ["contract"])
def test_without_contract_no_operation_is_used(rule: str, matrix: ParallelProcessingUnit) -> None:
    assert operations(compiled(mlp(), matrix)) == {"four_by_four"}
    assert operations(compiled(mlp(), matrix, rule)) == set()


@pytest.mark.parametrize(
    "rule", ["mul_associate", "factor_out_of_sum", "nest_sums", "swap_in_sum", "mul_commute"]
)
def test_without_a_law_a_chain_costs_more(rule: str, plain: ParallelProcessingUnit) -> None:
    """(A B) v, v (A B), u (A B) v, with each law needed by one of them or more."""
    a, b, v, u = matrices(a=(N, N), b=(N, N), v=(N,), u=(N,))
    chains = [(a @ b) @ v, u @ (a @ b), a @ (b @ g.reshape(v, (N, 1)) @ g.reshape(u, (1, N)))]
    full = [compiled(chain, plain).cost for chain in chains]
    less = [compiled(chain, plain, rule).cost for chain in chains]
    assert all(a <= b * 1.0001 for a, b in zip(full, less, strict=True))


# --- operations are data -------------------------------------------------------------------------


def test_a_made_up_operation_is_used_and_runs(matrix: ParallelProcessingUnit) -> None:
    x, w = matrices(x=(10, 7), w=(7, 9))
    larger = compiled(mlp(), matrix)
    assert operations(larger) == {"four_by_four"}
    assert "substitute_four_by_four" in larger.kernels[0].rules
    program = compiled(g.tanh(x @ w) @ w.T, matrix)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, np.float32) for s in ((10, 7), (7, 9))]
    expected = np.tanh(arrays[0] @ arrays[1]) @ arrays[1].T
    np.testing.assert_allclose(program(*arrays), expected, rtol=1e-4, atol=1e-5)


def test_a_deleted_operation_is_in_no_kernel(matrix: ParallelProcessingUnit) -> None:
    kept = tuple(op for op in matrix.operations if op.name != "four_by_four")
    program = compiled(mlp(), replace(matrix, operations=kept))
    assert operations(program) == set()
    assert program.cost > compiled(mlp(), matrix).cost


@pytest.mark.parametrize(
    ("text", "extents"),
    [
        ("d[m,n] += a[m,k] * b[m,k]", {"m": 4, "n": 4, "k": 4}),
        ("d[m,n] += a[k,n] * b[k,n]", {"m": 4, "n": 4, "k": 4}),
        ("d[] += a[k] * b[k]", {"k": 4}),
    ],
)
def test_an_operation_that_multiplies_no_matrices_is_in_no_kernel(
    text: str, extents: dict[str, int], matrix: ParallelProcessingUnit
) -> None:
    semantics = OperationSemantics.parse(text)
    other = matrix.replace_operation("four_by_four", semantics=semantics, extents=extents)
    assert operations(compiled(mlp(), other)) == set()


def test_a_slow_operation_is_left_alone(matrix: ParallelProcessingUnit) -> None:
    slow = tuple(
        replace(op, throughput_per_cycle=1e-4) if op.name == "four_by_four" else op
        for op in matrix.operations
    )
    assert operations(compiled(mlp(), replace(matrix, operations=slow))) == set()


def test_an_operation_of_another_dtype_is_not_used(matrix: ParallelProcessingUnit) -> None:
    x, w = g.input("x", (N, N), "float64"), g.input("w", (N, N), "float64")
    assert operations(compiled(x @ w, matrix)) == set()


# --- wins of the e-graph -------------------------------------------------------------------------


def test_a_product_with_a_vector_is_regrouped(plain: ParallelProcessingUnit) -> None:
    """(A B) v = A (B v)"""
    a, b, v = matrices(a=(N, N), b=(N, N), v=(N,))
    found, plainly = compiled((a @ b) @ v, plain), compiled((a @ b) @ v, plain, "mul_associate")
    assert work(found) <= 2 * N * N < work(plainly)
    assert found.cost * 3 < plainly.cost


@pytest.mark.parametrize("axis", [0, 1, None])
def test_a_sum_of_a_product_is_summed_first(
    axis: int | None, plain: ParallelProcessingUnit
) -> None:
    """sum_ij A B = sum_k (sum_i A) (sum_j B)"""
    a, b = matrices(a=(N, N), b=(N, N))
    found = compiled(g.sum(a @ b, axis), plain)
    plainly = compiled(g.sum(a @ b, axis), plain, "factor_out_of_sum", "split_sum_of_product")
    assert work(found) <= 2 * N * N < work(plainly)
    assert found.cost * 3 < plainly.cost


@pytest.mark.parametrize("axis", [0, 1, None])
def test_a_sum_of_a_product_with_a_bias_is_summed_first(
    axis: int | None, plain: ParallelProcessingUnit
) -> None:
    """sum_ij (A B + b) = sum_k (sum_i A) (sum_j B) + sum_ij b"""
    a, b, bias = matrices(a=(N, N), b=(N, N), bias=(N,))
    found = compiled(g.sum(a @ b + bias, axis), plain)
    plainly = compiled(g.sum(a @ b + bias, axis), plain, "split_sum_of_products")
    assert work(found) <= 2 * N * N < work(plainly)
    assert found.cost * 3 < plainly.cost


def test_the_trace_of_a_product_needs_its_diagonal_alone(plain: ParallelProcessingUnit) -> None:
    a, b = matrices(a=(N, N), b=(N, N))
    assert work(compiled(g.trace(a @ b), plain)) <= 2 * N * N


def test_two_projections_of_one_input_are_one(plain: ParallelProcessingUnit) -> None:
    """x W + x U = x (W + U)"""
    x, w, u = matrices(x=(N, N), w=(N, N), u=(N, N))
    found, plainly = compiled(x @ w + x @ u, plain), compiled(x @ w + x @ u, plain, "add_sums")
    assert len(contractions(found)) == 1 and len(contractions(plainly)) == 2
    assert found.cost * 1.5 < plainly.cost


@pytest.mark.parametrize("scale", ["input", "constant", "number"])
def test_a_scale_is_folded_into_a_weight(scale: str, matrix: ParallelProcessingUnit) -> None:
    """(x s) W = x (s W), W being the smaller one"""
    x, w = matrices(x=(8 * N, N), w=(N, N))
    s: Tensor | float = {
        "input": g.input("s", (N,)),
        "constant": g.constant(np.linspace(1, 2, N, dtype=np.float32)),
        "number": 2.0,
    }[scale]
    found = compiled((x * s) @ w, matrix)
    products = [
        _points(kernel, statement)
        for kernel in found.kernels
        for statement in kernel.statements()
        if isinstance(statement, Map) and statement.op == "mul"
    ]
    assert products == [N * N], found.describe()
    assert operations(found) == {"four_by_four"}


def test_a_shift_vanishes_from_a_softmax(plain: ParallelProcessingUnit) -> None:
    """softmax(x + c) = softmax(x) where c does not vary along the axis"""
    x, c = matrices(x=(N, N), c=(N, 1))
    found = compiled(g.softmax(x + c), plain)
    plainly = compiled(g.softmax(x + c), plain, "cancel_shift")
    used = {name for launch in found.parts.launches for name in launch.buffers}
    assert "in1" not in used and found.cost < plainly.cost
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s, np.float32) for s in ((N, N), (N, 1))]
    weights = np.exp(arrays[0] - arrays[0].max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(found(*arrays), expected, rtol=1e-4, atol=1e-6)


def test_two_products_of_one_input_are_joined(plain: ParallelProcessingUnit) -> None:
    """One kernel reads x once for both."""
    x, w, u = matrices(x=(N, N), w=(N, N), u=(N, N))
    both = compiled((x @ w, x @ u), plain)
    assert len(both.kernels) == 1 and len(contractions(both)) == 2
    assert both.cost < compiled(x @ w, plain).cost + compiled(x @ u, plain).cost


def test_attention_is_one_kernel_that_streams_over_keys_once(plain: ParallelProcessingUnit) -> None:
    q, k, v = matrices(q=(N, 32), k=(N, 32), v=(N, 32))
    found = compiled(g.attention(q, k, v), plain)
    (kernel,) = found.kernels
    assert sum(bool(phase.stream) for phase in kernel.phases) == 1
    assert found.cost < compiled(g.attention(q, k, v), plain, "carry_softmax").cost
