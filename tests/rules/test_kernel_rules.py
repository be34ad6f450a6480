"""Every kernel rule: what it proves, what it refuses, and that kernels compute the same with it.

Fusion and substitution rules equate values; the others lead from one schedule of a kernel to the
next, and no schedule may change what the kernel computes.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from carry_rows import LAWS, OWN, first, hold_cases
from carry_rows import ROWS as ALGEBRA_ROWS
from kernel_cases import UNTILED, Case, equal, run, search
from numeric import SCHEDULED, Meaning, check, random_buffers
from row_check import row_faults
from terms import NAMES, Terms, add, div, exp, mul, universe

from eqsat.driver import default_rules
from eqsat.lower.lowering import Schedule
from eqsat.rule import collect
from eqsat.rules import kernels
from eqsat.rules.carries import FIRST_LARGEST, VARIANCE, carry_rules
from eqsat.saturate.saturation import SearchWorker
from eqsat.terms.algebra import Term, post_order

RULES = {r.name: r for r in (*collect(vars(kernels)), *carry_rules((*LAWS, *OWN)))}


@dataclass(frozen=True)
class Row:
    proves: tuple[Case, ...]
    refuses: tuple[Case, ...]


def value_rows() -> dict[str, Row]:
    """Rules that equate values."""
    t = Terms(universe())
    a, b = t.read("a", "ij"), t.read("b", "jk")
    body = exp(a)
    kept = t.read("kept", "ji")
    total, count = t.sum("j", a), t.universe.extents["j"]
    share, mean = t.number(1.0 / count), div(total, t.number(count))
    return {
        "inline": Row(
            (Case(Term("value", 0), body, values=(body,)),),
            (Case(Term("value", 1), body, values=(body,)),),
        ),
        "contract": Row(
            (Case(t.sum("j", mul(a, b)), t.contract("j", a, b)),),
            (Case(t.sum("jk", mul(a, b)), t.contract("jk", a, b)),),
        ),
        "prepare": Row(
            (Case(a, kept, prepared=((a, kept, "", 0),)),),
            (
                Case(a, kept),
                Case(b, kept, prepared=((a, kept, "", 0),)),
                Case(a, kept, prepared=((a, kept, "bfloat16", t.mask("t")),)),
            ),
        ),
        "divide_by_count": Row(
            (Case(mul(total, share), mean), Case(mul(share, total), mean)),
            (Case(mul(total, t.number(1.0 / 99)), div(total, t.number(99))),),
        ),
        **{f"hold_{law.name}": Row(*hold_cases(t, law)) for law in (*LAWS, *OWN)},
    }


def schedule_rows() -> dict[str, Row]:
    """Rules that settle the next axis of a schedule with a size on offer."""
    t = Terms(universe())
    body = t.sum("j", mul(t.read("a", "ij"), t.read("b", "jk")))

    def case(given: Term, schedule: Term, *facts: str) -> Case:
        return Case(Term("kernel", body, given), Term("kernel", body, schedule), facts)

    tiled, kept = Term("tile", "i", 2, UNTILED), Term("keep", "j", UNTILED)
    streamed = Term("stream", "j", 2, UNTILED)
    launched = Term("launch", 64, UNTILED)
    staged = Term("stage", "shared", 2, UNTILED)
    whole_grid, cut_grid = (Term("split", "j", 2, given) for given in (UNTILED, tiled))
    parts = ('(part_menu "j" 2)', '(extent "i" 7)')  # 4 tiles of 2
    filled = ('(filling "j" 4 3)', '(extent "i" 7)')
    clustered, streams = Term("cluster", 4, kept), Term("cluster", 4, streamed)
    blocks = ('(axis 1 "cluster")', "(cluster_menu 4)")
    paired, pairs = Term("share", 2, tiled), ('(axis 1 "share")', "(share_menu 2)")
    parted, turned = Term("share", 2, cut_grid), Term("turn", "k", UNTILED)
    summed = Term("tile", "i", 2, streamed)  # 4 tiles of 2, or 3
    shared, waves = Term("stream_k", 2, summed), ('(axis 2 "stream_k")', "(stream_k_menu 2)")
    return {
        "tile": Row(
            (case(UNTILED, tiled, '(axis 0 "i")', '(tile_menu "i" 2)'),),
            (
                case(UNTILED, tiled, '(axis 0 "i")', '(tile_menu "i" 4)'),
                case(UNTILED, tiled, '(axis 0 "k")', '(tile_menu "i" 2)'),
                case(tiled, Term("tile", "i", 2, tiled), '(axis 0 "i")', '(tile_menu "i" 2)'),
            ),
        ),
        "stream": Row(
            (case(UNTILED, streamed, '(axis 0 "j")', '(chunk_menu "j" 2)'),),
            (case(UNTILED, streamed, '(axis 0 "j")', '(tile_menu "j" 2)'),),
        ),
        "keep": Row(
            (case(UNTILED, kept, '(axis 0 "j")', '(keep_menu "j")'),),
            (case(UNTILED, kept, '(axis 0 "j")', '(chunk_menu "j" 2)'),),
        ),
        "launch": Row(
            (case(UNTILED, launched, '(axis 0 "threads")', "(thread_menu 64)"),),
            (
                case(UNTILED, launched, '(axis 0 "i")', "(thread_menu 64)"),
                case(UNTILED, launched, '(axis 0 "threads")', "(thread_menu 128)"),
            ),
        ),
        "stage": Row(
            (case(UNTILED, staged, '(axis 0 "stages")', '(stage_menu "shared" 2)'),),
            (case(UNTILED, staged, '(axis 0 "stages")', '(stage_menu "registers" 2)'),),
        ),
        "turn": Row(
            (
                case(UNTILED, turned, '(axis 0 "turn")', '(turn_menu "k")'),
                case(
                    tiled,
                    Term("turn", "k", tiled),
                    *('(axis 1 "turn")', '(turn_menu "k")', '(extent "i" 7)'),
                ),
            ),
            (
                case(UNTILED, turned, '(axis 0 "turn")', '(turn_menu "i")'),
                case(tiled, Term("turn", "k", tiled), '(axis 0 "turn")', '(turn_menu "k")'),
                case(turned, Term("turn", "k", turned), '(axis 0 "turn")', '(turn_menu "k")'),
            ),
        ),
        "cluster": Row(
            (case(kept, clustered, *blocks),),
            (
                case(streamed, streams, *blocks),
                case(UNTILED, Term("cluster", 4, UNTILED), *blocks),
                case(kept, Term("cluster", 2, kept), *blocks),
                case(clustered, Term("cluster", 4, clustered), *blocks),
            ),
        ),
        "share": Row(
            (
                case(tiled, paired, *pairs, '(extent "i" 7)'),  # 4 tiles of 2
                case(tiled, paired, *pairs, '(extent "i" 6)'),  # 3, of which one is repeated
                case(cut_grid, parted, *pairs, '(extent "i" 7)'),
                case(
                    Term("turn", "k", tiled),
                    Term("share", 2, Term("turn", "k", tiled)),
                    *(*pairs, '(extent "i" 7)'),
                ),
            ),
            (
                case(cut_grid, parted, *pairs, '(extent "i" 2)'),  # of each part one tile
                case(parted, Term("share", 2, parted), *pairs, '(extent "i" 7)'),
                case(tiled, paired, *pairs, '(extent "i" 2)'),
                case(tiled, Term("share", 4, tiled), *pairs, '(extent "i" 7)'),
                case(UNTILED, Term("share", 2, UNTILED), *pairs, '(extent "i" 7)'),
                case(paired, Term("share", 2, paired), *pairs, '(extent "i" 7)'),
            ),
        ),
        "stream_k": Row(
            (case(summed, shared, *waves, "(processors 3)", '(extent "i" 7)'),),  # 1 tile over
            (
                case(summed, shared, *waves, "(processors 2)", '(extent "i" 7)'),  # whole waves
                case(summed, shared, *waves, "(processors 3)", '(extent "i" 9)'),  # 2 tiles over
                case(
                    summed, Term("stream_k", 4, summed), *waves, "(processors 3)", '(extent "i" 7)'
                ),
                case(
                    tiled,
                    Term("stream_k", 2, tiled),
                    '(axis 1 "stream_k")',
                    "(stream_k_menu 2)",
                    "(processors 3)",
                    '(extent "i" 7)',
                ),
                case(
                    shared, Term("stream_k", 2, shared), *waves, "(processors 3)", '(extent "i" 7)'
                ),
            ),
        ),
        "split": Row(
            (
                case(UNTILED, whole_grid, *parts, '(axis 0 "parts")', "(most_tiles 2)"),
                case(tiled, cut_grid, *parts, '(axis 1 "parts")', "(most_tiles 8)"),
                case(tiled, Term("split", "j", 3, tiled), *filled, '(axis 1 "parts")'),
            ),
            (
                case(UNTILED, whole_grid, *parts, '(axis 0 "i")', "(most_tiles 2)"),
                case(UNTILED, whole_grid, *parts, '(axis 0 "parts")', "(most_tiles 1)"),
                case(tiled, cut_grid, *parts, '(axis 0 "parts")', "(most_tiles 8)"),
                case(tiled, cut_grid, *parts, '(axis 1 "parts")', "(most_tiles 7)"),
                case(tiled, Term("split", "j", 2, tiled), *filled, '(axis 1 "parts")'),
                case(UNTILED, Term("split", "j", 3, UNTILED), *filled, '(axis 0 "parts")'),
                case(
                    UNTILED,
                    Term("split", "j", 4, UNTILED),
                    *(*parts, '(axis 0 "parts")', "(most_tiles 8)"),
                ),
            ),
        ),
    }


ROWS = value_rows() | schedule_rows()


def test_every_rule_has_a_row() -> None:
    shipped = {rule.name for rule in default_rules()}
    own = {rule.name for rule in carry_rules(OWN)}
    faults = row_faults(shipped | own, {*ALGEBRA_ROWS, *ROWS})
    assert not faults, faults


@pytest.mark.parametrize("name", ROWS)
def test_a_rule_proves_its_cases(name: str, worker: SearchWorker) -> None:
    for case in ROWS[name].proves:
        assert equal(case, worker, RULES[name])


@pytest.mark.parametrize("name", ROWS)
def test_a_rule_refuses_its_near_misses(name: str, worker: SearchWorker) -> None:
    for case in ROWS[name].refuses:
        assert not equal(case, worker, RULES[name])


@pytest.mark.parametrize("name", sorted(value_rows().keys() - {"prepare"}))  # see test_prepare.py
def test_values_are_the_same(name: str, worker: SearchWorker) -> None:
    """`value 0` means its body, which is a term of the same class."""
    for case in ROWS[name].proves:
        graph = search(case, worker, RULES[name])
        meant = {t: c for t, c in graph.class_of.items() if t.op not in SCHEDULED}
        graph = replace(graph, class_of=meant)
        assert not check(graph, random_buffers(meant, universe(), 3))


# --- no schedule changes what a kernel computes -------------------------------------------------


def attention_like(t: Terms) -> Term:
    """sum_j softmax_j(s) b: two phases over j, one carried by a running maximum."""
    s, b = t.read("s", "ij"), t.read("b", "jk")
    total = t.weighted("j", s, t.number(1))
    return Term("div", t.weighted("j", s, b), total)


def weighted_sums(t: Terms) -> Term:
    """sum_j w b / sum_j w by laws that no operation computes, about two pivots."""
    _, share, lowest, hinge = OWN
    s, b = t.read("s", "ij"), t.read("b", "jk")
    squares = Term("square", s)
    found = Term("div", t.weighted("j", s, b, hinge), t.weighted("j", s, t.number(1), hinge))
    return add(found, mul(t.weighted("j", squares, b, share), t.weighted("j", s, b, lowest)))


def variance_like(t: Terms) -> Term:
    """sum_j (s - mean_j s)^2 + mean_j s: the pivot is wanted, too."""
    s = t.read("s", "ij")
    mean = Term("div", t.sum("j", s), t.number(t.universe.extents["j"]))
    return add(add(t.weighted("j", s, t.number(1), VARIANCE), mean), t.read("c", "k"))


def first_largest(t: Terms) -> Term:
    """The first j where s is largest, some rows being equal everywhere."""
    s = Term("round", t.read("s", "ij"))
    (_, found), c = first(t, s, FIRST_LARGEST), t.read("c", "k")
    return add(t.cast(t.dtype, found), c)


def matmul(t: Terms) -> Term:
    """sum_j a b + c"""
    product = t.sum("j", mul(t.read("a", "ij"), t.read("b", "jk")))
    return Term("add", product, t.read("c", "k"))


IN_TWO = {"split", "turn"}  # see test_split.py, test_batches.py


@pytest.mark.parametrize("name", sorted(schedule_rows().keys() - IN_TWO))
@pytest.mark.parametrize(
    "program",
    [matmul, attention_like, weighted_sums, variance_like, first_largest],
    ids=lambda p: p.__name__,
)
def test_kernels_are_the_same_under_every_schedule(name: str, program) -> None:
    rng = np.random.default_rng(5)
    for extents in [(1, 1, 1, 1), (3, 5, 2, 1), *rng.integers(1, 8, (3, 4)).tolist()]:
        over = universe(*extents)
        term = program(Terms(over, "float64"))
        arrays = random_buffers([term], over)
        meaning = Meaning(over, arrays).term(term)
        expected = meaning.transpose(0, 2, 1, 3).reshape(over.extents["i"], over.extents["k"])
        tiles = {n: over.extents[n] for n in NAMES if n in "ik"}
        size = int(rng.integers(1, 4))
        reads = {t: "shared" for t in post_order([term]) if t.op == "read"}
        schedule = {
            "tile": Schedule({"i": size, "k": int(rng.integers(1, 4))}),
            "stream": Schedule(tiles, {"j": size}),
            "keep": Schedule(tiles),
            "launch": Schedule(tiles, {"j": size}, threads=64),
            "cluster": Schedule(tiles, threads=64, cluster=2),
            "share": Schedule({"i": size, "k": 1}, memory=reads, shared=2),
            "stream_k": Schedule({"i": size, "k": 1}, {"j": 1}, memory=reads, last_parts=2),
            "stage": Schedule(tiles, {"j": size}, stages=2, memory=reads),
        }[name]
        np.testing.assert_allclose(run(term, over, arrays, schedule), expected, rtol=1e-9)
