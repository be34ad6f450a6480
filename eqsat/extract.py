"""Cut a frozen e-graph into kernels: which values touch memory, and how each is computed.

Bottom-up over an acyclic order, each class keeps its few best un-materialised candidates besides
"load it"; a plan's cost counts every materialised class once.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eqsat.algebra import LEAVES, Facts, Read, Renaming, Term, post_order
from eqsat.form import REDUCING, Stored, form
from eqsat.graph.dtypes import as_dtype
from eqsat.graph.index import row_major
from eqsat.join import in_order, join
from eqsat.menu import chunks
from eqsat.price import Pricer
from eqsat.reindex import push
from eqsat.saturate import ENode, FrozenEGraph

KEPT = 3
LARGE = 1500  # e-nodes after pruning, beyond which fewer ways of each class are tried
COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "logical_and", "logical_or", "equal"})


@dataclass(frozen=True)
class Candidate:
    """A way to compute a class without storing it; `closure` are the classes it needs in memory."""

    term: Term
    closure: frozenset[int]
    seconds: float


@dataclass(frozen=True)
class Plan:
    """Kernels in order, what each stores; their predicted seconds; the values before joining."""

    kernels: tuple[tuple[Stored, ...], ...]
    seconds: float
    separate: tuple[Stored, ...] = ()


class Extractor:
    """Finds kernels for the roots of one e-graph."""

    def __init__(
        self, graph: FrozenEGraph, pricer: Pricer, order: Mapping[int, tuple[str, ...]]
    ) -> None:
        self.graph, self.pricer, self.order = graph, pricer, order
        self.facts = Facts(graph.universe)
        self.candidates: dict[int, list[Candidate]] = {}
        self.kernel: dict[int, tuple[Candidate, float]] = {}
        self.prices: dict[tuple[Term, tuple[str, ...]], float] = {}
        self._parents: dict[int, int] = {}
        self.pushed: dict[Term, dict[tuple[Renaming, Term], None]] = {}

    # -- acyclic order --------------------------------------------------------------------------

    def prune(self) -> list[int]:
        """Keep, per class, the nodes over cheaper classes; return classes, children first."""
        nodes = {c: self._unique(ns) for c, ns in self.graph.nodes.items()}
        cost = self._lower_bounds(nodes)
        for number, members in nodes.items():
            own = cost.get(number, np.inf)
            kept = [
                node
                for node in members
                if all(cost.get(child, np.inf) < own for child in node.children)
                and self._node_cost(number, node, cost) <= 2.5 * own
            ]
            leaf = [node for node in kept if node.op in LEAVES]
            nodes[number] = leaf[:1] or kept
        self._bound(nodes, cost)
        self.nodes = nodes
        reached: set[int] = set()
        stack = list(self.graph.roots)
        while stack:
            number = stack.pop()
            if number not in reached:
                reached.add(number)
                stack += [child for node in nodes[number] for child in node.children]
        for number in reached:
            for child in {c for node in nodes[number] for c in node.children}:
                self._parents[child] = self._parents.get(child, 0) + 1
        return sorted(reached, key=lambda number: (cost[number], number))

    def _bound(self, nodes: dict[int, list[ENode]], cost: Mapping[int, float]) -> None:
        """In a large e-graph keep only the cheapest nodes of each class."""
        total = sum(len(members) for members in nodes.values())
        if total > LARGE:
            most = 4 if total <= 4 * LARGE else 2
            for number, members in nodes.items():
                ranked = sorted(members, key=lambda n, c=number: self._node_cost(c, n, cost))
                nodes[number] = ranked[:most]

    @staticmethod
    def _unique(nodes: list[ENode]) -> list[ENode]:
        seen: dict[tuple[object, ...], ENode] = {}
        for node in nodes:
            key: tuple[object, ...] = (node.op, node.args)
            if node.op in COMMUTATIVE:
                key = (node.op, tuple(sorted(node.children)))
            seen.setdefault(key, node)
        return list(seen.values())

    def _node_cost(self, number: int, node: ENode, cost: Mapping[int, float]) -> float:
        """A lower bound on the work below a node; strictly more than any of its children's."""
        universe, free = self.graph.universe, self.graph.free
        points = free[number]
        for child in node.children:
            points |= free[child]
        own = 1e-3 if node.op in LEAVES else float(universe.size(points)) * 0.25 + 1.0
        return (
            own
            + max((cost[child] for child in node.children), default=0.0)
            + 0.05 * sum(cost[child] for child in node.children)
        )

    def _lower_bounds(self, nodes: Mapping[int, list[ENode]]) -> dict[int, float]:
        cost: dict[int, float] = {}
        changed = True
        while changed:
            changed = False
            for number, members in nodes.items():
                for node in members:
                    if all(child in cost for child in node.children):
                        found = self._node_cost(number, node, cost)
                        if found < cost.get(number, np.inf) * (1 - 1e-12):
                            cost[number] = found
                            changed = True
        return cost

    # -- candidates -----------------------------------------------------------------------------

    def names(self, number: int) -> tuple[str, ...]:
        """The memory order of a class's names."""
        universe = self.graph.universe
        own = universe.members(self.graph.free[number])
        preferred = self.order.get(number, ())
        return tuple(n for n in preferred if n in own) + tuple(n for n in own if n not in preferred)

    def load(self, number: int) -> Term:
        """A class read from memory."""
        names = self.names(number)
        dtype = as_dtype(self.graph.dtype[number])
        return Term(
            "read", Read(f"t{number}", dtype, row_major(names, self.graph.universe.extents))
        )

    def price(self, term: Term, names: tuple[str, ...], dtype: str) -> float:
        """The best predicted seconds of a kernel that stores the term."""
        key = (term, names)
        if key not in self.prices:
            self.prices[key] = self.price_kernel((Stored("t", term, names, as_dtype(dtype)),))
        return self.prices[key]

    def price_kernel(self, stored: tuple[Stored, ...]) -> float:
        """The best predicted seconds of a kernel that stores several values."""
        made = form(stored, self.facts)
        return float(self.pricer.price(made, chunks(made)).seconds.min())

    def _options(self, number: int) -> list[tuple[Term, frozenset[int]]]:
        found = [(c.term, c.closure) for c in self.candidates[number]]
        if number in self.kernel:
            closure = self.kernel[number][0].closure | {number}
            found.append((self.load(number), closure))
        return found

    def _compose(self, node: ENode, children: tuple[Term, ...]) -> Term:
        if node.op == "reindex":
            renaming, (body,) = node.args[0], children
            assert isinstance(renaming, Renaming)
            result = push(renaming, body, self.facts)
            self.pushed.setdefault(result, {})[renaming, body] = None
            return result
        return node.term(children)

    def closure_seconds(self, closure: frozenset[int]) -> float:
        """Seconds of the kernels that a set of materialised classes needs."""
        return sum(self.kernel[number][1] for number in closure)

    def visit(self, number: int) -> None:
        """Candidates of a class, and its best kernel."""
        found: dict[Term, Candidate] = {}
        names, dtype = self.names(number), self.graph.dtype[number]
        for node in self.nodes[number]:
            if node.op in LEAVES:
                self.candidates[number] = [Candidate(self._compose(node, ()), frozenset(), 0.0)]
                return
            options = [self._options(child) for child in node.children]
            for choice in itertools.product(*options):
                term = self._compose(node, tuple(term for term, _ in choice))
                closure = frozenset().union(*(closure for _, closure in choice))
                if term not in found:
                    own = self.price(term, names, dtype)
                    seconds = own + self.closure_seconds(closure)
                    found[term] = Candidate(term, closure, seconds)
        ranked = sorted(found.values(), key=lambda c: c.seconds)
        self.candidates[number] = ranked[:KEPT]
        best = ranked[0]
        if self._worth_storing(number, best.term):
            self.kernel[number] = (best, self.price(best.term, names, dtype))

    def _worth_storing(self, number: int, term: Term) -> bool:
        """Storing saves work only behind a reduction, or where a value is used again."""
        reduces = any(sub.op in REDUCING for sub in post_order([term]))
        return reduces or self._parents.get(number, 0) > 1 or number in self.graph.roots

    def run(self, outputs: list[tuple[int, str, tuple[str, ...]]]) -> Plan:
        """Kernels for the outputs: (class, buffer, names in the buffer's order)."""
        for number in self.prune():
            self.visit(number)
        kernels: dict[int, tuple[Stored, ...]] = {}
        for number, buffer, names in outputs:
            best = self._best_output(number, names)
            for needed in sorted(best.closure):
                self._emit(needed, kernels)
            one = Stored(buffer, best.term, names, as_dtype(self.graph.dtype[number]))
            kernels[-len(kernels) - 1] = (one,)
        separate = in_order(list(kernels.values()))
        joined = join(separate, self.facts, self.price_kernel)
        seconds = sum(self.price_kernel(kernel) for kernel in joined)
        return Plan(tuple(joined), seconds, tuple(one for kernel in separate for one in kernel))

    def _best_output(self, number: int, names: tuple[str, ...]) -> Candidate:
        dtype = self.graph.dtype[number]
        options = self._options(number)
        return min(
            (
                Candidate(
                    term,
                    closure,
                    self.price(term, names, dtype) + self.closure_seconds(closure),
                )
                for term, closure in options
            ),
            key=lambda candidate: candidate.seconds,
        )

    def _emit(self, number: int, kernels: dict[int, tuple[Stored, ...]]) -> None:
        if number in kernels:
            return
        best, _ = self.kernel[number]
        for needed in sorted(best.closure):
            self._emit(needed, kernels)
        dtype = as_dtype(self.graph.dtype[number])
        kernels[number] = (Stored(f"t{number}", best.term, self.names(number), dtype),)
