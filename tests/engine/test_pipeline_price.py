"""The time of tiles that stay, and which of an operation's siblings a tile takes."""

import re
from dataclasses import replace

import numpy as np
import pytest
from terms import Terms, add, universe

import eqsat
from eqsat.codegen.cuda.place.operations import OPERATIONS
from eqsat.codegen.targets import TARGETS
from eqsat.price.pipeline import Flow, handed_over, in_flight, pipelined, spread, whole_slots
from eqsat.price.siblings import (
    family,
    representative,
    settle_operations,
    settled_alike,
    siblings,
    stand_ins,
)
from eqsat.rule import applicable
from eqsat.rules.substitution import substitutions
from eqsat.specs import load
from eqsat.terms.algebra import Facts
from eqsat.terms.form import SUBSTITUTED, Stored, form

SPEC = load("h200")
TRIP, RATE = 1000.0, 3e12


def columns(operation) -> int:
    return list(operation.extents.values())[1]


# the busiest team


def test_spread_is_the_best_of_all_divisions():
    random = np.random.default_rng(0)
    rows, across = (random.integers(1, 40, 400).astype(float) for _ in range(2))
    teams = random.integers(1, 9, 400).astype(float)
    down, right = spread(rows, across, teams)
    for r, c, t, found in zip(rows, across, teams, zip(down, right, strict=True), strict=True):
        whole = [(n, int(t) // n) for n in range(1, int(t) + 1) if t % n == 0]
        each = [(-(-r // n) * n, -(-c // m) * m) for n, m in whole]
        assert found in each and found[0] * found[1] == min(a * b for a, b in each)


def test_spread_of_whole_shares_adds_nothing():
    rows, across = np.array([4.0, 2, 1, 3]), np.array([2.0, 1, 4, 1])
    teams = np.array([4.0, 2, 4, 3])
    down, right = spread(rows, across, teams)
    np.testing.assert_array_equal(down * right, rows * across)
    down, right = spread(np.array([1.0]), np.array([1.0]), np.array([4.0]))
    assert down * right == 4  # three teams of four have nothing to do


# tiles that stay


def flow(**more) -> Flow:
    """A product of 4096 in tiles of 128 x 256 and chunks of 64."""
    fields = {"matrix": 2e-4, "other": 1e-6, "after": 0, "tiles": 512, "steps": 64, "stages": 4}
    fields |= {"teams": 2, "resident": 1, "stored": 65536, "turns": 1, "last_parts": 0}
    fields |= {"copied": 0, "gathered": 0, "chain": 0, "beside": 0, "early": 0}
    fields |= more
    fields.setdefault("waits", fields["steps"])
    return Flow(**{name: np.array([float(value)]) for name, value in fields.items()})


def seconds(**more) -> float:
    return float(pipelined(SPEC, flow(**more), TRIP, RATE)[0])


def test_tiles_take_at_least_what_their_matrix_operations_take():
    assert seconds() > 2e-4
    waves = -(-512 // SPEC.processors) * SPEC.processors / 512
    assert seconds(stages=9, stored=0) >= 2e-4 * waves


@pytest.mark.parametrize(
    ("names", "few", "many"),
    [("stages", 2, 4), ("resident", 1, 2), ("teams", 1, 2), ("teams turns", 1, 2)],
)
def test_more_of_what_hides_latency_is_no_slower(names, few, many):
    fewer, more = (dict.fromkeys(names.split(), n) for n in (few, many))
    assert seconds(**more, other=1e-4) <= seconds(**fewer, other=1e-4)


def test_of_teams_that_take_turns_one_has_all_of_a_tile():
    """Its chunks wait for their products; the other one's tile is not begun, or is stored."""
    work = {"matrix": 1e-3, "other": 1e-3, "teams": 2}
    assert seconds(**work, turns=2) > 1.2 * seconds(**work, turns=1)


def test_three_slots_are_few_where_copies_take_most_of_the_time():
    long = {"matrix": 2e-3, "copied": 2e-3}
    assert seconds(**long, stages=3) > 1.02 * seconds(**long, stages=4)
    long["copied"] = 2e-4
    assert seconds(**long, stages=3) < 1.01 * seconds(**long, stages=4)


def test_work_on_results_hides_behind_another_team():
    """That of a tile which is alone on its processor is added to its products."""
    alone, turns = (seconds(after=4e-5, turns=n) - seconds(turns=n) for n in (1, 2))
    assert turns < 0.1 * alone and alone > 3e-5


def test_what_a_team_waits_for_is_hidden_by_another():
    """Unless it is more than the other's work: then teams wait at the same time."""
    for chain, hidden in ((2e-7, True), (2e-6, False)):
        alone, turns = (seconds(chain=chain, teams=n) - seconds(teams=n) for n in (1, 2))
        assert alone > 60 * chain
        assert (turns == 0) if hidden else (0.5 * alone < turns < alone)


def test_a_short_ring_waits_for_memory():
    assert seconds(stages=2) > seconds(stages=4)
    assert seconds(stages=1) > seconds(stages=2)


def test_one_tile_more_than_processors_takes_another_wave():
    full = SPEC.processors
    work = {"matrix": 1e-5 * full, "tiles": full}
    beyond = {"matrix": 1e-5 * (full + 1), "tiles": full + 1}
    assert seconds(**beyond) > 1.9 * seconds(**work)


def test_a_ring_draws_what_is_under_way():
    held = np.array([2e7, 2e7, 4e7])
    drawn = in_flight(SPEC, SPEC.memory("dram"), held, np.array([2.0, 4.0, 2.0]))
    assert drawn[0] < drawn[1] and drawn[2] == 2 * drawn[0]


# operations that differ in their columns alone


def test_families_are_of_one_dtype_and_place():
    ours = [o for o in SPEC.operations if o.asynchronous and o.invocation_name in OPERATIONS]
    plain = {o.name: o.name.replace(f"n{columns(o)}k", "nk") for o in ours}
    for a in ours:
        for b in ours:
            assert (family(a) == family(b)) == (plain[a.name] == plain[b.name]), (a.name, b.name)


def test_siblings_come_widest_first_and_can_be_emitted():
    one = SPEC.operation("wgmma_m64n64k16_bf16_ss")
    found = siblings(SPEC, one, OPERATIONS)
    widths = [columns(o) for o in found]
    assert one in found and widths == sorted(set(widths), reverse=True) and widths[0] == 256
    some = {one.invocation_name, SPEC.operation("wgmma_m64n128k16_bf16_ss").invocation_name}
    assert [columns(o) for o in siblings(SPEC, one, some)] == [128, 64]
    waiting = SPEC.operation("mma_m16n8k16_bf16")
    assert siblings(SPEC, waiting, OPERATIONS) == [waiting]


def test_the_widest_stands_for_its_family():
    names = [
        "wgmma_m64n64k16_bf16_ss",
        "wgmma_m64n128k16_bf16_ss",
        "wgmma_m64n64k16_bf16_rs",
        "wgmma_m64n64k16_f16_ss",
        "mma_m16n8k16_bf16",
    ]
    wide = "wgmma_m64n128k16_bf16_ss"
    assert stand_ins(SPEC, names) == dict(zip(names, [wide, wide, *names[2:]], strict=True))


def test_of_each_kind_of_rule_the_widest_operation_is_searched_with():
    unit, cuda = SPEC, TARGETS["cuda"]
    rules = substitutions(unit, cuda.operations, cuda.splits)
    kept = {rule.name for rule in representative(rules, unit)}
    assert kept < {rule.name for rule in rules}
    for kind, width in (("substitute", 256), ("widen", 256), ("round_weights", 256)):
        own = [n for n in kept if re.fullmatch(rf"{kind}_wgmma_m64n\d+k16_bf16_rs", n)]
        assert own == [f"{kind}_wgmma_m64n{width}k16_bf16_rs"]
    waiting = [n for n in kept if n.startswith("substitute_mma")]
    assert sorted(waiting) == sorted(r.name for r in rules if r.name.startswith("substitute_mma"))


def test_rules_for_dtypes_that_cannot_occur_are_left_out():
    cuda = TARGETS["cuda"]
    rules = substitutions(SPEC, cuda.operations, cuda.splits)
    ops = {"contract", "cast", "read"}
    kept = " ".join(rule.name for rule in applicable(rules, ops, {"bfloat16"}))
    assert "substitute_wgmma_m64n256k16_bf16_ss" in kept
    assert "_f16_" not in kept and "_f8_" not in kept and "_s8_" not in kept
    every = {rule.name for rule in applicable(rules, ops)}
    assert "substitute_wgmma_m64n256k16_f16_ss" in every


def test_settling_changes_the_operations_named_and_nothing_else():
    t = Terms(universe(), "bfloat16")
    a, b, c = t.read("a", "ij"), t.read("b", "jk"), t.read("c", "jk")
    wide = "wgmma_m64n256k16_bf16_ss"
    p, q = t.contract("j", a, b, wide), t.contract("j", a, c, wide)
    facts = Facts(t.universe)
    made = form([Stored("y", add(p, q), ("i", "k"), facts.dtype(p))], facts)
    settled = settle_operations(made, {p: "wgmma_m64n64k16_bf16_ss"})
    assert settled.stored == (
        replace(made.stored[0], term=add(t.contract("j", a, b, "wgmma_m64n64k16_bf16_ss"), q)),
    )
    assert settle_operations(made, {}).stored == made.stored


def test_a_body_is_settled_as_its_part_is():
    t = Terms(universe(), "bfloat16")
    a, b, c = t.read("a", "ij"), t.read("b", "jk"), t.read("c", "jk")
    wide, narrow = "wgmma_m64n256k16_bf16_ss", "wgmma_m64n64k16_bf16_ss"
    facts = Facts(t.universe)

    def body(*terms):
        dtype = facts.dtype(terms[0])
        return form([Stored(f"y{n}", x, ("i", "k"), dtype) for n, x in enumerate(terms)], facts)

    whole = body(t.contract("j", a, b, wide), t.contract("j", a, c, wide))
    part = body(t.contract("j", c, b, wide), t.contract("j", c, c, wide))
    second = [x for x in part.terms if x.op in SUBSTITUTED][1]
    settled = settled_alike(whole, part, {second: narrow})
    names = [x.args[3] for x in settled.terms if x.op in SUBSTITUTED]
    assert names == [wide, narrow]
    own = [x for x in whole.terms if x.op in SUBSTITUTED]
    itself = settled_alike(whole, whole, {own[0]: narrow})
    assert [x.args[3] for x in itself.terms if x.op in SUBSTITUTED] == [narrow, wide]


def test_parts_of_the_last_tiles_save_most_of_a_wave():
    few, many = SPEC.processors + 8, 2 * SPEC.processors - 8
    alone = seconds(tiles=few, matrix=2e-4)
    assert seconds(tiles=few, matrix=2e-4, last_parts=4) < 0.7 * alone
    assert seconds(tiles=few, last_parts=4) < seconds(tiles=few, last_parts=2) < alone
    assert seconds(tiles=many) < seconds(tiles=2 * many)


def test_sums_that_are_handed_over_take_their_time():
    parts, sums = (np.array([float(value)]) for value in (4, 131072))
    whole, small = (handed_over(SPEC, parts, s, TRIP, RATE)[0] for s in (sums, sums / 2))
    assert 1e-6 < small < whole < 5e-5
    assert handed_over(SPEC, 0 * parts, sums, TRIP, RATE)[0] == 0


# tiles that lie in memory whole


def test_whole_tiles_have_slots_in_a_part_of_shared_memory():
    sizes = np.array([1e3, 16384, 30000, 70000, 200000])
    np.testing.assert_array_equal(whole_slots(sizes, 233472), [4, 4, 2, 1, 1])


def test_a_tile_that_fills_its_part_of_memory_is_not_copied_ahead():
    """128 points of a sum in one chunk of 64 KiB wait for each copy; two chunks of it do not."""
    a, b = (
        eqsat.input("a", (32, 512, 128), "bfloat16"),
        eqsat.input("b", (32, 128, 512), "bfloat16"),
    )
    program = eqsat.compile(a @ b, "h200")
    (launch,) = program.parts.launches
    assert [axis.tile for axis in launch.kernel.phases[0].stream] == [64]
