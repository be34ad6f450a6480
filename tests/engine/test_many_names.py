"""Programs of more index names than one e-graph holds."""

import numpy as np
import pytest

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen import oracle
from eqsat.codegen.targets import TARGETS
from eqsat.driver import plan
from eqsat.encode.encoding import encode
from eqsat.explain.hunt import Hunt, equations
from eqsat.explain.proof import shortest
from eqsat.graph.dtypes import as_dtype
from eqsat.graph.index import var
from eqsat.graph.tensor import Tensor
from eqsat.kernel.ir import Buffer
from eqsat.price.pricer import Pricer
from eqsat.program import Program
from eqsat.rule import collect
from eqsat.rules import algebra, kernels
from eqsat.saturate.saturation import Limits, SearchWarning, SearchWorker, saturate
from eqsat.schedule.scheduling import Search, schedule_region
from eqsat.segment import segments
from eqsat.segment.segments import partition
from eqsat.solve import leaf_names
from eqsat.specs import load
from eqsat.terms.algebra import MOST_NAMES, Facts, Read, Term, Universe
from eqsat.terms.form import Stored
from eqsat.terms.matching import Setting

pytestmark = pytest.mark.usefixtures("shared_search")
RNG = np.random.default_rng(7)


def updates(names: int) -> tuple[list[Tensor], dict[str, np.ndarray]]:
    """Values that share no index, of up to four dimensions each, and arrays for them."""
    ranks = [min(4, names - start) for start in range(0, names, 4)]
    shapes = {f"x{i}": (2 + i, 3, 2, 3)[:rank] for i, rank in enumerate(ranks)}
    arrays = {name: RNG.random(shape, np.float32) for name, shape in shapes.items()}
    return [g.input(name, shape) * 0.9 for name, shape in shapes.items()], arrays


def run(outputs: list[Tensor], arrays: dict[str, np.ndarray]) -> Program:
    """The program, its answer checked."""
    planned = plan(outputs, "example_cuda", cache=Cache(None))
    backend = TARGETS["oracle"].backend(load("example_cuda"), None)
    program = Program(planned.parts, backend, outputs, planned.report, planned.explain)
    for found, exact in zip(
        program(**arrays), g.evaluate(outputs, arrays, np.float64), strict=True
    ):
        np.testing.assert_allclose(found, exact, rtol=1e-5)
    return program


def count_names(segment: segments.Segment) -> int:
    return len(encode(segment.tensors, segment.stored, leaf_names(segment)).universe.names)


def test_as_many_names_as_an_e_graph_holds_are_one_segment() -> None:
    outputs, _ = updates(MOST_NAMES)
    assert [count_names(one) for one in partition(outputs)] == [MOST_NAMES]


def test_more_names_are_cut_into_segments_that_have_few() -> None:
    outputs, arrays = updates(MOST_NAMES + 1)
    assert [count_names(one) for one in partition(outputs)] == [32, 32]
    report = run(outputs, arrays).report
    assert report.notes == () and report.saturated and report.fired["mul_commute"] > 0


def test_a_segment_of_more_names_all_the_same_is_compiled_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "_of_few_names", lambda piece, order: [piece])
    outputs, arrays = updates(MOST_NAMES + 1)
    said = f"{MOST_NAMES + 1} index names, and an e-graph holds {MOST_NAMES}"
    with pytest.warns(SearchWarning) as warned:
        program = run(outputs, arrays)
    (only,) = (str(one.message) for one in warned)
    assert only.startswith(f"the search was cut: {said}; the program is compiled as written. ")
    assert program.report.notes == (said,)


def test_a_kernel_of_more_names_is_scheduled_without_a_search(worker: SearchWorker) -> None:
    over = Universe()
    names = [over.add(2) for _ in range(MOST_NAMES + 1)]
    dtype = as_dtype("float32")
    total = Term("literal", 0.0, dtype.name)
    for number, name in enumerate(names):
        read = Term("read", Read(f"x{number}", dtype, var(name)))
        total = Term("add", total, Term("reduce_sum", over.mask([name]), read))
    buffers = {f"x{number}": Buffer(f"x{number}", (2,), dtype, "input") for number in range(64)}
    buffers["y"] = Buffer("y", (), dtype, "output")
    stored = (Stored("y", total, (), dtype),)
    unit = load("example_cuda")
    search = Search(collect(vars(kernels)), unit, frozenset(), worker, Limits())
    pricer = Pricer(unit, frozenset(), {})
    with pytest.warns(SearchWarning, match="64 index names, and an e-graph holds 63; k is sched"):
        (made,) = schedule_region("k", stored, Facts(over), pricer, buffers, search)
    memory = {name: np.full(buffer.shape, 0.5, "float32") for name, buffer in buffers.items()}
    oracle.run(made.kernel, memory)
    assert memory["y"] == len(names)


def test_a_sum_over_many_axes_has_no_search_of_all_their_subsets() -> None:
    x = g.input("x", (2,) * 20)
    array = RNG.random(x.shape, np.float32)
    report = run([g.sum(x)], {"x": array}).report
    assert report.saturated and report.notes == ()


def test_names_that_no_term_has_need_no_room(worker: SearchWorker) -> None:
    """Views that were carried down leave a segment's universe with many."""
    over, dtype = Universe(), as_dtype("float32")
    i, j = over.add(3), over.add(4)
    for _ in range(MOST_NAMES):
        over.add(4)
    x, y = (Term("read", Read(name, dtype, var(n))) for name, n in (("x", i), ("y", j)))
    total = Term("reduce_sum", over.mask([j]), Term("mul", x, y))
    factored = Term("mul", x, Term("reduce_sum", over.mask([j]), y))
    rules = collect(vars(algebra))
    graph = saturate([total], over, rules, worker, Limits())
    assert graph.saturated and graph.fired["factor_out_of_sum"] > 0
    hunt = Hunt(rules, Setting(Facts(over), frozenset()), worker)
    found, note = equations(total, factored, hunt)
    assert not note and shortest(found, total, factored, 1.0)
