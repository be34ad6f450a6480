"""Every e-node of every class has the value of its class: programs, adversarial terms, bad laws."""

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from operator import mul as product

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numeric import Bad, Meaning, check, check_terms, differ, random_buffers, random_data, stored
from programs import PROGRAMS
from random_terms import random_terms, renamings
from terms import Terms, add, exp, mul, sub, universe

import eqsat.graph as g
from eqsat.driver import default_rules
from eqsat.encode.encoding import Encoding, encode
from eqsat.graph.dtypes import DType
from eqsat.graph.evaluate import input_nodes, topological
from eqsat.graph.index import var
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Guard
from eqsat.nesting import flatten
from eqsat.rule import Condition, Free, Rewrite, Rule, Variable, apply, rewrite
from eqsat.rules import algebra
from eqsat.rules.carries import SOFTMAX
from eqsat.saturate.saturation import FrozenEGraph, Limits, SearchWorker, saturate
from eqsat.segment.fold import settle
from eqsat.segment.segments import partition
from eqsat.solve import ALGEBRA, finite_buffers, leaf_names
from eqsat.terms.algebra import Facts, Renaming, Term
from eqsat.terms.reindex import push

RULES = tuple(rule for rule in default_rules() if rule.group in ALGEBRA)
SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


def values_of(outputs: list[Tensor]) -> dict[Tensor, np.ndarray]:
    """The value of every node of a graph for random inputs, floats in float64."""
    rng = np.random.default_rng(3)
    arrays = {
        name: random_data(rng, node.size, node.dtype).reshape(node.shape).astype(node.dtype.numpy)
        for name, node in input_nodes(outputs).items()
    }
    order = topological(outputs)
    return dict(zip(order, g.evaluate(order, arrays, np.float64), strict=True))


def laid_out(value: np.ndarray, encoding: Encoding, number: int) -> np.ndarray:
    """The value of an output's term in the shape of its tensor."""
    output, names = encoding.outputs[number], encoding.universe.names
    axes = [names.index(name) for dim in output.dims for name in dim]
    shape = [
        encoding.universe.extents[name] if axis in axes else 1 for axis, name in enumerate(names)
    ]
    rest = [axis for axis in range(len(names)) if axis not in axes]
    return np.broadcast_to(value, shape).transpose([*axes, *rest]).reshape(output.tensor.shape)


def coarsest(tensors: Iterable[Tensor]) -> DType:
    """The float dtype of the fewest digits, which rounds what is computed from it; or else int."""
    dtypes = {tensor.dtype.name: tensor.dtype for tensor in tensors}
    names = [name for name in ("bfloat16", "float16", "float32", "float64") if name in dtypes]
    return dtypes[names[0]] if names else next(iter(dtypes.values()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_e_node_of_a_program(name: str, worker: SearchWorker) -> None:
    """The encoding means what the graph means, and every law keeps it so."""
    outputs = settle(flatten(PROGRAMS[name]()))
    values = values_of(outputs)
    for segment in partition(outputs):
        leaves = leaf_names(segment)
        encoding = encode(segment.tensors, segment.stored, leaves)
        graph = saturate(
            [output.term for output in encoding.outputs],
            encoding.universe,
            RULES,
            worker,
            Limits(),
            finite_buffers(segment),
        )
        assert graph.saturated and not graph.note
        buffers = {leaf: stored(values[t].ravel(), t.dtype) for t, leaf in leaves.items()}
        meaning = Meaning(encoding.universe, buffers)
        for number, output in enumerate(encoding.outputs):
            value = laid_out(meaning.term(output.term), encoding, number)
            assert differ(values[output.tensor], value, coarsest(segment.tensors)) < 1
        assert check(graph, buffers) == []


def test_rows_over_merged_classes_are_dropped(worker: SearchWorker) -> None:
    """Many factors, each along an axis of its own: back-off holds matches back, and applies them
    late.
    """
    axes = [tuple(2 if d == axis else 1 for d in range(5)) for axis in range(5)]
    factors = [g.input(f"x{axis}", shape) for axis, shape in enumerate(axes)]
    (segment,) = partition([g.sum(reduce(product, factors) * factors[0] / factors[1], axis=(0, 2))])
    encoding = encode(segment.tensors, segment.stored, leaf_names(segment))
    (output,) = encoding.outputs
    known = finite_buffers(segment)
    graph = saturate([output.term], encoding.universe, RULES, worker, Limits(), known)
    assert graph.size > 1000
    for number, nodes in graph.nodes.items():
        assert number in graph.free and number in graph.dtype
        assert all(child in graph.nodes for node in nodes for child in node.children)
    assert check_terms(graph) == []


def test_classes_without_a_dtype_are_dropped(worker: SearchWorker) -> None:
    """Rows that back-off leaves behind may have free indices and no dtype."""
    table, rows = g.input("table", (500, 128)), g.input("rows", (64, 16), dtype="int32")
    w, target = g.input("w", (128, 64)), g.input("target", (64, 64))
    loss = g.mean(g.square(g.mean(g.take(table, rows, axis=0), axis=1) @ w - target))
    for segment in partition(settle(g.grad(loss, (table, w)))):
        encoding = encode(segment.tensors, segment.stored, leaf_names(segment))
        terms = [output.term for output in encoding.outputs]
        known = finite_buffers(segment)
        graph = saturate(terms, encoding.universe, RULES, worker, Limits(), known)
        assert all(number in graph.dtype for number in graph.nodes)


# --- adversarial terms --------------------------------------------------------------------------

OVER = universe(2, 3, 2, 3)


def search(worker: SearchWorker, term: Term, *rules: Rule, finite: bool = True) -> FrozenEGraph:
    """A short search; buffers that begin with w are not known to be finite."""
    buffers = random_buffers([term], OVER)
    known = frozenset(name for name in buffers if finite and not name.startswith("w"))
    return saturate([term], OVER, rules or RULES, worker, Limits(nodes=2000, rounds=3), known)


def wrong(graph: FrozenEGraph) -> list[Bad]:
    """What the check finds with ordinary data, and with infinities in the buffers of w."""
    awkward = [name for name in random_buffers(graph.class_of, OVER) if name.startswith("w")]
    return [*check_terms(graph), *check_terms(graph, 1, awkward)]


@settings(SETTINGS, max_examples=80)
@given(random_terms(OVER))
def test_laws_hold_on_terms_with_shared_names(worker: SearchWorker, term: Term) -> None:
    assert wrong(search(worker, term)) == []


@pytest.mark.slow
@settings(SETTINGS, max_examples=1500)
@given(random_terms(OVER, 4))
def test_laws_hold_on_many_terms_with_shared_names(worker: SearchWorker, term: Term) -> None:
    assert wrong(search(worker, term)) == []


@settings(SETTINGS, max_examples=150)
@given(st.data())
def test_a_pushed_re_indexing_means_the_same(data: st.DataObject) -> None:
    over = universe(2, 3, 2, 3)
    moved = data.draw(renamings(over, data.draw(random_terms(over))))
    renaming, body = moved.args
    assert isinstance(renaming, Renaming) and isinstance(body, Term)
    pushed = push(renaming, body, Facts(over))
    meaning = Meaning(over, random_buffers([moved], over))
    assert differ(meaning.term(moved), meaning.term(pushed), Facts(over).dtype(body)) < 1


def test_a_guard_is_not_captured_by_a_reduction() -> None:
    """The guard speaks of the i outside; the sum below it binds an i of its own."""
    over = universe(3, 3, 2, 1)
    t = Terms(over)
    body = add(t.sum("i", t.read("x", "i")), t.read("z", "j"))
    moved = t.renamed(body, {"j": var("k")}, [Guard(var("i"), 0, 2)])
    pushed = push(moved.args[0], body, Facts(over))  # type: ignore[arg-type]
    meaning = Meaning(over, random_buffers([moved], over))
    assert differ(meaning.term(moved), meaning.term(pushed), Facts(over).dtype(body)) < 1


# --- the check itself: each broken law is caught ------------------------------------------------

A, B = Variable("a"), Variable("b")
S, T = Variable("S", "Indices"), Variable("T", "Indices")
WEIGHT = apply("exp", A - apply("reduce_max", T, A))
BROKEN: dict[str, Rewrite] = {
    "factor_out_of_sum": rewrite(algebra.sum_(S, A * B), A * algebra.sum_(S, B)),
    "shift_out_of_max": rewrite(algebra.max_(S, A + B), A + algebra.max_(S, B)),
    "nest_sums": rewrite(algebra.sum_(S, A * algebra.sum_(T, B)), algebra.sum_(S | T, A * B)),
    "swap_in_sum": rewrite(A * algebra.sum_(S, B), algebra.sum_(S, A * B)),
    "merge_sums": rewrite(algebra.sum_(S, algebra.sum_(T, A)), algebra.sum_(S | T, A)),
    "split_sum_of_product": rewrite(
        algebra.sum_(S, A * B), algebra.sum_(S & Free(A), A * algebra.sum_(S, B))
    ),
    "carry_softmax": rewrite(
        algebra.sum_(S, WEIGHT * B), apply("weighted_sum", S, A, B, SOFTMAX)
    ),  # the maximum is over another set
    "cancel_shift": rewrite((A + B) - (A + B), B - A),
}


def adversaries() -> list[Term]:
    """Terms whose bound names are free beside them, or bound again inside them."""
    t = Terms(OVER)
    a, b, c = t.read("a", "ij"), t.read("b", "jk"), t.read("c", "i")
    inner = t.sum("j", mul(a, b))
    top = t.max("i", a)
    return [
        mul(b, t.sum("j", a)),
        t.sum("j", mul(b, inner)),
        t.sum("ij", mul(a, t.sum("i", mul(c, a)))),
        t.sum("i", t.sum("ij", a)),
        t.max("j", add(a, mul(c, t.read("d", "j")))),
        t.sum("j", mul(exp(sub(a, top)), b)),
        sub(add(a, c), add(a, c)),
    ]


@pytest.mark.parametrize("name", BROKEN)
def test_a_law_without_its_guard_is_caught(name: str, worker: SearchWorker) -> None:
    law = Rule(name, "algebra", "a law without its guard", "", (BROKEN[name],))
    graphs = [search(worker, term, law) for term in adversaries()]
    assert sum(graph.fired.get(name, 0) for graph in graphs)
    assert any(check_terms(graph) for graph in graphs)


def test_sound_laws_pass_on_the_same_terms(worker: SearchWorker) -> None:
    assert not any(wrong(search(worker, term)) for term in adversaries())


@pytest.mark.parametrize("name", ["swap_in_sum", "nest_sums", "distribute_in_sum"])
def test_a_law_blind_to_infinities_is_caught(name: str, worker: SearchWorker) -> None:
    t = Terms(OVER)
    w, b, c = t.read("wi", "i"), t.read("b", "jk"), t.read("c", "k")
    short = t.read("s", "jk", "float16")
    term = {
        "swap_in_sum": mul(w, t.sum("j", b)),
        "nest_sums": t.sum("i", mul(w, t.sum("j", b))),
        "distribute_in_sum": t.sum("j", mul(w, add(t.cast(t.dtype, short), c))),
    }[name]
    (law,) = (rule for rule in RULES if rule.name == name)
    assert not search(worker, term, law).fired.get(name)
    blind = [replace(one, conditions=_less_finite(one)) for one in law.rewrites]
    graph = search(worker, term, replace(law, rewrites=tuple(blind)))
    assert graph.fired.get(name) and any(check_terms(graph, seed, ["wi"]) for seed in range(20))


def _less_finite(one: Rewrite) -> tuple[Condition, ...]:
    return tuple(condition for condition in one.conditions if condition.kind != "finite")
