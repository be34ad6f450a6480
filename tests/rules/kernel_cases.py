"""Terms of kernels that rules make equal, or must not; and what a kernel of a term computes."""

from dataclasses import dataclass

import numpy as np
from terms import universe

from eqsat.carry_law import CarryLaw
from eqsat.codegen import oracle
from eqsat.kernel.ir import Buffer
from eqsat.lower.lowering import Schedule, lower
from eqsat.rule import SCHEDULING, Rule
from eqsat.saturate.egglog_text import (
    constructor,
    declarations,
    rule_lines,
    seed,
    signatures,
    subset_points,
    table_for,
)
from eqsat.saturate.saturation import FrozenEGraph, SearchWorker, thaw
from eqsat.schedule.facts import schedule_facts
from eqsat.terms.algebra import Facts, Read, Term, Universe, post_order
from eqsat.terms.form import Stored, form

UNTILED = Term("untiled")


@dataclass(frozen=True)
class Case:
    """Two terms, and the facts under which a rule makes them equal, or must not."""

    left: Term
    right: Term
    facts: tuple[str, ...] = ()
    values: tuple[Term, ...] = ()  # bodies of the values 0, 1, ...
    prepared: tuple[tuple[Term, Term, str, int], ...] = ()  # rows of the relation


def search(case: Case, worker: SearchWorker, *rules: Rule) -> FrozenEGraph:
    """The e-graph of both terms of a case."""
    over, roots = universe(), (case.left, case.right, *case.values, UNTILED)
    roots += tuple(term for a, b, *_ in case.prepared for term in (a, b))
    table = table_for(roots, rules)
    terms = list(post_order(roots))
    for term in terms:
        for arg in term.args:
            if not isinstance(arg, Term | int | float | str | CarryLaw):
                table.number(arg)
    ops = signatures(terms, rules)
    seeds, numbers = seed(roots, over, table, frozenset())
    commands = [
        *declarations(ops, SCHEDULING),
        *schedule_facts(ops),
        *rule_lines(rules),
        *subset_points([over.mask("ijkt")], over),
        *seeds,
        *(f"(body {i} (node {numbers[body]}))" for i, body in enumerate(case.values)),
        *(
            f'(prepared (node {numbers[a]}) (node {numbers[b]}) "{narrow}" {terms})'
            for a, b, narrow, terms in case.prepared
        ),
        *case.facts,
    ]
    every = " ".join(f"(run {group})" for group in SCHEDULING)
    schedule = f"(run-schedule (repeat 3 (saturate (run facts)) {every}) (saturate (run facts)))"
    read = [*map(constructor, ops), "free", "dtype", "node"]
    request = {"commands": commands, "schedules": [schedule], "read": read}
    answer = worker.ask(request, 20, len(over.names))
    assert "error" not in answer, answer
    return thaw(answer, ops, table, over, terms, numbers, roots)


def equal(case: Case, worker: SearchWorker, *rules: Rule) -> bool:
    graph = search(case, worker, *rules)
    return graph.class_of[case.left] == graph.class_of[case.right]


def run(term: Term, over: Universe, arrays: dict[str, np.ndarray], schedule: Schedule, **more):
    """What the kernel of a term stores over i, k under a schedule, by the tile interpreter."""
    extents, facts = over.extents, Facts(over)
    dtype = facts.dtype(term)
    buffers = {"y": Buffer("y", (extents["i"], extents["k"]), dtype, "output")}
    for sub_term in post_order([term]):
        if sub_term.op == "read":
            read = sub_term.args[0]
            assert isinstance(read, Read)
            size = arrays[read.buffer].size
            buffers[read.buffer] = Buffer(read.buffer, (size,), read.dtype, "input")
    made = form([Stored("y", term, ("i", "k"), dtype)], facts)
    kernel = lower("k0", made, schedule, buffers, "oracle")
    y = np.full((extents["i"], extents["k"]), 7, dtype.numpy)
    typed = {n: a.astype(buffers[n].dtype.numpy) for n, a in arrays.items() if n in buffers}
    oracle.run(kernel, {"y": y, **typed}, more.get("operations"))
    return y
