"""The e-nodes of a frozen e-graph among which kernels are sought: not dear, in no circle."""

from collections.abc import Iterable, Mapping, Set
from functools import reduce
from graphlib import TopologicalSorter
from operator import or_

import numpy as np

from eqsat.kernel.idle_chunks import COMPARED
from eqsat.price.pricer import Pricer
from eqsat.price.rates import RUNS
from eqsat.saturate.saturation import ENode, FrozenEGraph
from eqsat.terms.algebra import LEAVES, SCATTERS, Read

DEAR = 2.5  # times the least work of a class, from where a way to compute it is not tried
WIDE = 2.0  # times a product's work without a factor of 16 bits, where these are multiplied faster
LARGE = 1500  # e-nodes after pruning, beyond which fewer ways of each class are tried
COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "logical_and", "logical_or", "equal"})


class PrunedGraph:
    """`nodes` of each class, kept for what their work is at the least; the classes that are reached
    from the roots in `order`, children first; of each its `users`, the names over which and the
    class in which it is `summed`, (0, 0) where it is used otherwise; what is a factor; and what may
    be made of constants alone (`constant`).
    """

    def __init__(self, graph: FrozenEGraph, pricer: Pricer) -> None:
        self.graph, self.pricer = graph, pricer
        self.users: dict[int, set[int]] = {}
        self.summed: dict[int, set[tuple[int, int]]] = {}
        self.factors: set[int] = set()
        self.constant = self._made_of_constants()
        self._narrow = self._narrow_factors()
        self.order = self._prune()

    def _prune(self) -> list[int]:
        """Keep, per class, nodes that are not dear and make no circle; classes, children first."""
        nodes = {c: self._unique(ns) for c, ns in self.graph.nodes.items()}
        cost = self._lower_bounds(nodes)
        dearer: list[tuple[float, int, ENode]] = []
        for number, members in nodes.items():
            own = cost.get(number, np.inf)
            kept = []
            for node in members:
                if all(cost.get(child, np.inf) < own for child in node.children):
                    kept.append(node)
                elif all(child in cost for child in node.children):
                    dearer.append((self._node_cost(number, node, cost), number, node))
            most = np.inf if any(node.op in SCATTERS for node in members) else DEAR * own
            kept = [node for node in kept if self._node_cost(number, node, cost) <= most]
            leaf = [node for node in kept if node.op in LEAVES]
            nodes[number] = leaf[:1] or kept
        for number, members in nodes.items():  # of ways that cost as much the first is taken
            told = [node for node in members if not self._compares_size(node, nodes)]
            nodes[number] = sorted(told or members, key=lambda node: self._obscures(node, nodes))
        self._bound(nodes, cost)
        self.nodes = nodes
        if sum(map(len, nodes.values())) <= LARGE:
            self._add_dearer(sorted(dearer, key=lambda one: one[:2]), cost)
        reached: set[int] = set()
        stack = list(self.graph.roots)
        while stack:
            number = stack.pop()
            if number not in reached:
                reached.add(number)
                stack += [child for node in nodes[number] for child in node.children]
        for number in reached:
            for child in {c for node in nodes[number] for c in node.children}:
                self.users.setdefault(child, set()).add(number)
            for node in nodes[number]:
                use = (node.args[0], number) if node.op == "reduce_sum" else (0, 0)
                for child in node.children:
                    self.summed.setdefault(child, set()).add(use)  # type: ignore[arg-type]
        self._find_factors(reached)
        order = TopologicalSorter(
            {n: {c for node in nodes[n] for c in node.children} for n in sorted(reached)}
        )
        return list(order.static_order())

    def _made_of_constants(self) -> set[int]:
        """Classes that constants alone are enough for, besides numbers and positions."""
        found: set[int] = set()
        waiting = [(n, node) for n, members in self.graph.nodes.items() for node in members]
        self._plain = {n for n, node in waiting if node.op in LEAVES and node.op != "read"}
        before = -1
        while self.pricer.constants and len(found) > before:
            before = len(found)
            found |= {number for number, node in waiting if self._is_constant(node, found)}
            waiting = [(n, node) for n, node in waiting if n not in found]
        return found

    def _is_constant(self, node: ENode, found: Set[int]) -> bool:
        """Whether a node reads constants, or values made of these, and nothing else."""
        reads = [atom for atom in node.args if isinstance(atom, Read)]
        known = all(self.pricer.constants.issuperset(read.buffers) for read in reads)
        some = bool(reads) or not found.isdisjoint(node.children)
        return known and some and all(c in found or c in self._plain for c in node.children)

    def _narrow_factors(self) -> set[int]:
        """What is widened from floats of which the spec multiplies whole matrices."""
        found: set[int] = set()
        for number, members in self.graph.nodes.items():
            narrow = (self.graph.dtype[n.children[0]] for n in members if n.op == "cast")
            if any(map(self.pricer.has_products, narrow)):
                found.add(number)
        return found

    def _is_wide(self, number: int, node: ENode) -> bool:
        """Whether a node multiplies rows by columns, neither of which has a narrow form."""
        return (
            bool(self._narrow)
            and not self._narrow & {*node.children}
            and self._is_outer(number, node)
        )

    def _is_outer(self, number: int, node: ENode) -> bool:
        """Whether a node multiplies rows by columns."""
        free = self.graph.free
        return node.op == "mul" and all(free[child] != free[number] for child in node.children)

    def _find_factors(self, reached: Iterable[int]) -> None:
        """What is cast and re-indexed, in whatever order, to be a factor of a sum of products; and
        float32 factors of rows by columns, where the spec multiplies terms of what lies in memory.
        """
        products = {n for n in reached for use in self.summed.get(n, ()) if use != (0, 0)}
        found: set[int] = set()
        for number in reached:
            for node in self.nodes[number]:
                if node.op == "weighted_sum" or (node.op == "mul" and number in products):
                    found |= {*node.children}
                if (
                    number in products
                    and self.pricer.float32_products
                    and self._is_outer(number, node)
                ):
                    wide = (n for n in node.children if self.graph.dtype[n] == "float32")
                    self.factors |= {*wide} - self._narrow
        while found:
            found = (self.below("cast", found) | self.below("reindex", found)) - self.factors
            self.factors |= found

    def below(self, op: str, numbers: Iterable[int]) -> set[int]:
        """What operations of a kind among the nodes of some classes are applied to."""
        nodes = [node for number in numbers for node in self.nodes[number] if node.op == op]
        return {child for node in nodes for child in node.children}

    def as_read(self, number: int) -> tuple[str, ...]:
        """The order in which the names of a class lie in what has all of them in memory."""
        free, met, waiting = self.graph.free, {number}, [number]
        own = self.graph.universe.members(free[number])
        for one in waiting:
            for node in self.nodes.get(one, ()):
                if node.op == "read" and isinstance(read := node.args[0], Read):
                    strides = {str(name): stride for name, stride in read.address.terms}
                    if all(strides.get(name, 0) > 0 for name in own):
                        return tuple(sorted(own, key=lambda name: -strides[name]))
                within = [c for c in node.children if not free[number] & ~free[c] and c not in met]
                met.update(within)
                waiting += within if node.op != "reindex" else []
        return ()

    def _add_dearer(
        self, dearer: list[tuple[float, int, ENode]], cost: Mapping[int, float]
    ) -> None:
        """Add nodes over dearer classes, the cheapest first, none of which leads back."""
        below = {n: {c for m in ms for c in m.children} for n, ms in self.nodes.items()}
        for price, number, node in dearer:
            members = self.nodes[number]
            if price > DEAR * cost[number] or any(member.op in LEAVES for member in members):
                continue
            reached: set[int] = set()
            stack = list(node.children)
            while stack and number not in reached:
                one = stack.pop()
                if one not in reached:
                    reached.add(one)
                    stack += below[one]
            if number not in reached:
                members.append(node)
                below[number] |= set(node.children)

    def _bound(self, nodes: dict[int, list[ENode]], cost: Mapping[int, float]) -> None:
        """In a large e-graph keep only the cheapest nodes of each class."""
        total = sum(len(members) for members in nodes.values())
        if total > LARGE:
            most = 4 if total <= 4 * LARGE else 2
            for number, members in nodes.items():
                ranked = sorted(members, key=lambda n, c=number: self._node_cost(c, n, cost))
                nodes[number] = ranked[:most]

    @staticmethod
    def _compares_size(node: ENode, nodes: Mapping[int, list[ENode]]) -> bool:
        """Whether a node compares an absolute value, so that no kernel knows where it fails."""
        compared = node.children if node.op in COMPARED else ()
        return any(one.op == "abs" for child in compared for one in nodes[child])

    @staticmethod
    def _obscures(node: ENode, nodes: Mapping[int, list[ENode]]) -> bool:
        """Whether a node hides where a mask leaves nothing: a number tells, chosen last."""
        last = nodes[node.children[2]] if node.op == "where" else ()
        return node.op == "logical_not" or any(other.op != "literal" for other in last)

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
        points = reduce(or_, (free[child] for child in node.children), free[number])
        steps = self.pricer.steps(node.op, self.graph.dtype[number])
        own = 1e-3 if node.op in LEAVES else universe.size(points) * steps * 0.25 + 1.0
        own *= WIDE if self._is_wide(number, node) else 1.0
        own *= 1 / RUNS if self._is_constant(node, self.constant) else 1.0
        below = sorted(cost[child] for child in node.children)
        return own + sum(below[-1:]) + 0.05 * sum(below[:-1])

    def _lower_bounds(self, nodes: Mapping[int, list[ENode]]) -> dict[int, float]:
        cost: dict[int, float] = {}
        changed = True
        while changed:
            changed = False
            for number, members in nodes.items():
                plain = [node for node in members if node.op not in SCATTERS]
                for node in plain or members:  # by what others may compute, where there is such
                    if all(child in cost for child in node.children):
                        found = self._node_cost(number, node, cost)
                        if found < cost.get(number, np.inf) * (1 - 1e-12):
                            cost[number] = found
                            changed = True
        return cost
