"""Tuning measures what was found and keeps the fastest, be it one kernel or several in a row."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import eqsat
import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.targets import OracleBackend
from eqsat.driver import plan
from eqsat.kernel.ir import Literal
from eqsat.planned import Planned
from eqsat.program import Launch, Program
from eqsat.specs import load
from eqsat.tune import TuneWarning, fastest

SPEC = replace(load("a100"), target="oracle")
SHAPE = (64, 32768)  # rows that one kernel streams about as fast as two do
Seconds = Callable[[Sequence[Launch]], float]
pytestmark = pytest.mark.usefixtures("shared_search")


class Timed(OracleBackend):
    """The tile interpreter, with seconds of our choosing."""

    def __init__(self, seconds: Seconds, cold: int = 0) -> None:
        super().__init__(SPEC, None)
        self.cold = cold
        self.sets: Sequence[Mapping[str, Any]] = ()
        self.seconds = seconds
        self.measured: list[Sequence[Launch]] = []
        self.given: dict[str, np.ndarray] = {}

    def prepare(self, launches: Sequence[Launch]) -> Any:
        run = super().prepare(launches)

        def timed(arrays: Mapping[str, Any]) -> None:
            run(arrays)

        timed.launches = launches  # type: ignore[attr-defined]
        return timed

    @property
    def cold_bytes(self) -> int:
        return self.cold

    def timer(self, run: Any, sets: Sequence[Mapping[str, Any]]) -> Callable[[], float]:
        self.measured.append(run.launches)
        self.given.update(sets[0])
        self.sets = sets
        return lambda: self.seconds(run.launches)


@pytest.fixture(scope="module")
def planned() -> Planned:
    """Softmax of long rows with two candidates: one kernel, and two."""
    x = g.input("x", SHAPE)
    found = plan(g.softmax(x), SPEC, cache=Cache(None), candidates=8)
    sequences = [found.parts.launches, *found.parts.launches[0].alternatives]
    alone, pair = (next(s for s in sequences if len(s) == count) for count in (1, 2))
    assert [launch.followers for launch in (*alone, *pair)] == [0, 1, 0]
    launch = replace(alone[0], alternatives=(pair,))
    return replace(found, parts=replace(found.parts, launches=(launch,)))


def answer(planned: Planned, launches: tuple[Launch, ...], backend: OracleBackend) -> None:
    """Check what a program of these launches computes."""
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    parts = replace(planned.parts, launches=launches)
    program = Program(parts, backend, planned.structure, planned.report, planned.explain)
    weights = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(program(x), weights / weights.sum(1, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_fastest_candidate_runs_and_is_explained(
    planned: Planned, count: int, tmp_path
) -> None:
    backend = Timed(lambda launches: abs(len(launches) - count) + 1.0)
    store = Cache(tmp_path)
    tuned = fastest(planned.parts.launches, backend, store)
    assert len(tuned) == count and tuned[0].measured == 1.0
    answer(planned, tuned, backend)
    explanation = planned.explain("tuned", tuned)
    assert explanation.notes == ()
    assert [k.kernel for k in explanation.segments[0].kernels] == [t.kernel for t in tuned]
    backend.measured.clear()
    assert fastest(planned.parts.launches, backend, store) == tuned
    assert not backend.measured  # it is remembered


def test_a_device_that_gets_warm_favours_none(planned: Planned) -> None:
    """Candidates take turns: each run takes longer than the one before."""
    calls: list[int] = []

    def seconds(launches: Sequence[Launch]) -> float:
        calls.append(len(launches))
        return 1.0 + 0.05 * len(calls) - 0.1 * (len(launches) == 2)

    tuned = fastest(planned.parts.launches, Timed(seconds), Cache(None))
    assert len(tuned) == 2 and calls[:4] == [1, 2, 2, 1]


@pytest.mark.parametrize(("usual", "once", "kept"), [(1.05, 0.5, 1), (0.995, 0.9, 1), (0.97, 2, 2)])
def test_one_run_makes_no_candidate_the_fastest(
    planned: Planned, usual: float, once: float, kept: int
) -> None:
    """Nor does less than runs differ by."""
    calls: list[int] = []

    def seconds(launches: Sequence[Launch]) -> float:
        calls.append(len(launches))
        return 1.0 if len(launches) == 1 else once if calls.count(2) == 4 else usual

    assert len(fastest(planned.parts.launches, Timed(seconds), Cache(None))) == kept


def test_a_candidate_of_other_results_is_refused(planned: Planned) -> None:
    """Of several kernels the results are compared, not what lies between them."""
    (launch,) = planned.parts.launches
    first, second = launch.alternatives[-1]
    (*phases, last) = second.kernel.phases
    value = Literal("wrong", last.body[-1].dtype, 7.0)
    stores = tuple(replace(store, value="wrong") for store in last.stores)
    changed = replace(last, body=(*last.body, value), stores=stores)
    wrong = replace(second, kernel=replace(second.kernel, phases=(*phases, changed)))
    one = replace(launch, alternatives=((first, wrong),))
    backend = Timed(lambda launches: 1.0 / len(launches))
    with pytest.warns(TuneWarning, match=r"split i\d \d+\) is refused: its y0 differs"):
        assert fastest([one], backend, Cache(None))[0].kernel == launch.kernel


def test_followers_are_measured_with_what_they_follow() -> None:
    """The kernels of a pair are one candidate; the second has candidates of its own, which run
    after the first: it is set up while that one ends.
    """
    found = plan(g.sum(g.input("x", (1 << 18,))), SPEC, cache=Cache(None), candidates=8)
    launches = found.parts.launches
    assert [launch.followers for launch in launches] == [1, 0]
    assert all(launch.alternatives for launch in launches)
    backend = Timed(lambda run: 1.0 + (run[0].kernel != found.parts.launches[0].kernel))
    tuned = fastest(launches, backend, Cache(None))
    assert [one.kernel for one in tuned][:1] == [launches[0].kernel] and len(tuned) == 2
    assert {len(run) for run in backend.measured} == {2}
    x = np.random.default_rng(3).standard_normal(1 << 18).astype(np.float32)
    parts = replace(found.parts, launches=tuned)
    program = Program(parts, backend, found.structure, found.report, found.explain)
    np.testing.assert_allclose(program(x), x.astype(np.float64).sum(), rtol=1e-4)


@pytest.mark.parametrize("dtype", [pytest.param("int32", marks=pytest.mark.slow), "uint8"])
def test_places_are_drawn_over_their_range(dtype: str) -> None:
    """All values combined at one place or two would wait for each other."""
    x, ids = g.input("x", (1 << 16,)), g.input("ids", (1 << 16,), dtype)
    for output in (g.segment_sum(x, ids, 300), g.take(g.input("table", (300,)), ids) * x):
        found = plan(output, SPEC, cache=Cache(None), candidates=4)
        backend = Timed(lambda launches: 1.0)
        fastest(found.parts.launches, backend, Cache(None))
        (places,) = (a for a in backend.given.values() if a.dtype == np.dtype(dtype))
        assert places.min() == 0 and places.max() == min(300, np.iinfo(dtype).max + 1) - 1


def test_other_integers_are_small() -> None:
    n = g.input("n", (1 << 16,), "int32")
    found = plan(g.astype(n, "float32") * 2.0, SPEC, cache=Cache(None), candidates=4)
    backend = Timed(lambda launches: 1.0)
    fastest(found.parts.launches, backend, Cache(None))
    assert {a.max() for a in backend.given.values() if a.dtype == np.int32} == {1}


def test_results_beyond_all_numbers_are_compared_where_they_are_numbers() -> None:
    """Of what is drawn some rows overflow; the others tell whether a candidate is right."""
    x = g.input("x", SHAPE)
    total = g.sum(g.exp(x * 21.0), axis=1)  # e^88.7 is the most
    found = plan([g.log(1e38 - total)], SPEC, cache=Cache(None), candidates=4)
    backend = Timed(lambda launches: float(launches[0].kernel == found.parts.launches[0].kernel))
    with warnings.catch_warnings():
        warnings.simplefilter("error", TuneWarning)
        tuned = fastest(found.parts.launches, backend, Cache(None))
    assert tuned[0].kernel != found.parts.launches[0].kernel
    drawn = next(a for a in backend.given.values() if a.shape == SHAPE)
    row = np.exp(21 * drawn.astype(np.float64)).sum(axis=1)
    assert 0 < (row > 1e38).sum() < len(row)


def test_what_a_program_is_given_is_cold_and_what_it_has_just_written_is_not() -> None:
    """Sets of arrays that together are larger than the caches; the copies hold the same values."""
    x, w, v = (g.input(n, s) for n, s in (("x", (4096, 128)), ("w", (128, 256)), ("v", (256, 512))))
    weights = g.softmax(x @ w)
    planned = plan((weights, weights @ v), SPEC, cache=Cache(None), candidates=2)
    launches = planned.parts.launches
    assert len(launches) > 1 and not any(launch.followers for launch in launches)
    written = {name for one in launches[:-1] for name in one.buffers} - {"in0", "in1", "in2"}
    backend = Timed(lambda launches: 1.0, cold=10 * 4 * 4096 * 256)
    fastest(launches, backend, Cache(None))
    last = launches[-1]
    assert len(backend.sets) > 2
    for parameter, name in zip(last.kernel.buffers[:-1], last.buffers, strict=False):
        arrays = [one[parameter.name] for one in backend.sets]
        assert all(np.array_equal(arrays[0], other) for other in arrays[1:])
        assert (len({id(array) for array in arrays}) == 1) == (name in written), name


def test_library_calls_are_left_as_they_are() -> None:
    a = g.input("a", (12, 20))
    program = eqsat.compile([g.sum(a, axis=1), g.sort(a)], tune=True, candidates=3)
    x = np.random.default_rng(3).random((12, 20), np.float32)
    sums, ordered = program(x)
    np.testing.assert_allclose(sums, x.sum(1), rtol=1e-6)
    np.testing.assert_array_equal(ordered, np.sort(x))
