"""Cut a frozen e-graph into kernels: which values touch memory, and how each is computed.

Bottom-up over an acyclic order, each class keeps its few best un-materialised candidates besides
"load it"; a plan's cost counts every materialised class once.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

import numpy as np

from eqsat.cut.cuts import (
    Candidate,
    Cut,
    Plan,
    agree,
    joins_stored,
    least,
    of_size,
    reductions,
    varied,
)
from eqsat.cut.join import as_joined, in_order, join, without_copies
from eqsat.cut.learned import LearnedPrices
from eqsat.cut.narrow_stored import narrowed
from eqsat.cut.pruned import PrunedGraph
from eqsat.graph.dtypes import DType, as_dtype
from eqsat.graph.index import row_major
from eqsat.price.pricer import Pricer
from eqsat.saturate.saturation import ENode, FrozenEGraph
from eqsat.terms.algebra import LEAVES, SCANS, SCATTERS, Facts, Read, Renaming, Term, post_order
from eqsat.terms.extremes import COMPARED, EXTREMES
from eqsat.terms.form import REDUCING, Stored, is_product
from eqsat.terms.reindex import push

KEPT = 6
SHARED = 4  # besides, those that are best if others need what they read, too; and one that reads
MOVES = 8  # values that might be stored besides
MOST_CHANGED = 400  # classes, up to which plans with them are made
ROUNDS = 3  # of plans, each from what the one before it stores
WHOLE = frozenset((*REDUCING, *SCANS, "reindex", "gather"))  # no points of their own
MANY, FEW = 60, 32  # classes, beyond which only so many choices of each are priced
LEAST = 3  # of those, of each node
MOST_PRICED = 4000  # choices of all classes: where these are more, fewer of each

# Of a class its candidates, its best kernel, and what this reduces, if there is one.
Visited = tuple[list[Candidate], tuple[Candidate, float] | None, frozenset[Term] | None]


class Extractor(LearnedPrices):
    """Finds kernels for the roots of one e-graph; `narrows`: floats to which factors of such alone
    may be rounded where they are stored.
    """

    def __init__(
        self,
        graph: FrozenEGraph,
        pricer: Pricer,
        order: Mapping[int, tuple[str, ...]],
        narrows: frozenset[DType] = frozenset(),
    ) -> None:
        super().__init__(Facts(graph.universe), pricer)
        self.graph, self.order, self.narrows = graph, order, narrows
        self.candidates: dict[int, list[Candidate]] = {}
        self.kernel: dict[int, tuple[Candidate, float]] = {}
        # Reductions of each class that has a kernel, pivots of carries among them.
        self.reduced: dict[int, frozenset[Term]] = {}
        self._together: dict[frozenset[int], float] = {}
        self.pruned = PrunedGraph(graph, pricer)
        self.nodes = self.pruned.nodes
        self.stored: frozenset[int] = frozenset()
        self.best: tuple[Mapping[int, Cut], Mapping[int, Sequence[Candidate]]] = {}, {}
        self.pushed: dict[Term, dict[tuple[Renaming, Term], None]] = {}
        # What visits found, by the class and what is free of all that it is made of.
        self._visited: dict[tuple[int, int], Visited] = {}
        self._beneath: dict[int, int] = {}  # of a class, as bits, itself among them
        self._elsewhere: dict[int, set[int]] = {}
        self._orders: dict[int, tuple[str, ...]] = {}

    # -- candidates -----------------------------------------------------------------------------

    def names(self, number: int) -> tuple[str, ...]:
        """The memory order of a class's names: a value's of the graph, or as what is read lies."""
        if number not in self._orders:
            own = self.graph.universe.members(self.graph.free[number])
            preferred = self.order.get(number) or self.pruned.as_read(number)
            rest = tuple(n for n in own if n not in preferred)
            self._orders[number] = tuple(n for n in preferred if n in own) + rest
        return self._orders[number]

    def load(self, number: int) -> Term:
        """A class read from memory."""
        names = self.names(number)
        dtype, universe = as_dtype(self.graph.dtype[number]), self.graph.universe
        self.pricer.sizes[f"t{number}"] = self.load_bytes(number)
        self.pricer.constants |= {f"t{number}"} if number in self.pruned.constant else set()
        return Term("read", Read(f"t{number}", dtype, row_major(names, universe.extents)))

    def load_bytes(self, number: int) -> int:
        """The size in memory of a class that is stored."""
        points = self.graph.universe.size(self.graph.free[number])
        return int(points) * as_dtype(self.graph.dtype[number]).itemsize

    def _stored_bytes(self, closure: frozenset[int]) -> int:
        return sum(map(self.load_bytes, closure))

    def learn(self, stored: tuple[Stored, ...], seconds: float) -> bool:
        """See LearnedPrices. What visits found was of other prices."""
        known = not super().learn(stored, seconds)
        if not known:
            self._visited.clear()
        return not known

    def _options(self, number: int) -> list[Candidate]:
        found = [*self.candidates[number]]
        if number in self.kernel:
            closure = self.kernel[number][0].closure | {number}
            load = self.load(number)
            found.append(Candidate(load, closure, 0.0, {number: load}))
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
        """Seconds of the kernels that a set of stored classes needs; of those that may be one, as
        they compute the same reductions at the same points, of the longest.
        """
        lacking = closure - self.stored
        if lacking not in self._together:
            kept: list[int] = []
            for number in sorted(lacking, key=lambda n: -self.kernel[n][1]):
                if not any(self._is_computed_beside(number, other) for other in kept):
                    kept.append(number)
            self._together[lacking] = sum(self.kernel[number][1] for number in kept)
        return self._together[lacking]

    def _is_computed_beside(self, number: int, other: int) -> bool:
        """Whether the kernel of one class has all reductions that another class needs."""
        own, every = self.reduced[number], self.reduced[other]
        needed = self.kernel[number][0].closure, self.kernel[other][0].closure
        alike = self.graph.free[number] == self.graph.free[other] and own and own <= every
        return bool(alike) and other not in needed[0] and number not in needed[1]

    def _made_of(self, number: int) -> int:
        """A class and all that it is made of, as bits."""
        if number not in self._beneath:
            below = {child for node in self.nodes[number] for child in node.children}
            self._beneath[number] = reduce(or_, map(self._made_of, below), 1 << number)
        return self._beneath[number]

    def _visit_once(self, number: int, stored: int) -> None:
        """Visit a class, or take what a visit found when as much of what it is made of was free."""
        found = self._visited.get((number, stored))
        if found is None:
            self.visit(number)
            parts = self.candidates[number], self.kernel.get(number), self.reduced.get(number)
            self._visited[number, stored] = parts
            return
        self.candidates[number], kernel, reduced = found
        if kernel is not None and reduced is not None:
            self.kernel[number], self.reduced[number] = kernel, reduced

    def visit(self, number: int) -> None:
        """Candidates of a class, and its best kernel."""
        each = min(MOST_PRICED / len(self.pruned.order) / FEW, 1.0)
        few = math.ceil(max(FEW / len(self.nodes[number]), LEAST) * each)
        composed: dict[Term, tuple[ENode, tuple[Candidate, ...]]] = {}
        for node in self.nodes[number]:
            if node.op in LEAVES:
                self.candidates[number] = [Candidate(self._compose(node, ()), frozenset(), 0.0)]
                return
            for choice in self._choices(node, few):
                term = self._compose(node, tuple(option.term for option in choice))
                composed.setdefault(term, (node, choice))
        found: dict[Term, Candidate] = {}
        for term, (node, choice) in (of_size(composed) or composed).items():
            closure = frozenset().union(*(option.closure for option in choice))
            ways = {n: t for option in choice for n, t in option.ways.items()}
            ways = {number: term} if node.op == "reindex" else {**ways, number: term}
            seconds = self._use(number, term) + self.closure_seconds(closure)
            found[term] = Candidate(term, closure, seconds, ways)
        scattered = [candidate for term, candidate in found.items() if term.op in SCATTERS]
        plain = [candidate for term, candidate in found.items() if term.op not in SCATTERS]
        ranked = sorted(plain or scattered, key=lambda c: c.seconds)
        kept = varied(ranked)[:KEPT]
        beside = self._beside(number)
        shared = sorted(
            ranked, key=lambda c: c.seconds - self.closure_seconds(c.closure & beside) / 2
        )
        alone = min(ranked, key=lambda c: self._use(number, c.term))
        for candidate in (*varied(shared)[:SHARED], alone):
            kept += [candidate] if candidate not in kept else []
        finite = [candidate for candidate in kept if candidate.seconds < np.inf]
        self.candidates[number] = finite or kept[:1]
        if scattered or self._worth_storing(number, ranked[0].term):
            best, _ = self.kernel[number] = self._kernel(number, [*scattered, *ranked[:KEPT]])
            terms = post_order([best.term])
            self.reduced[number] = frozenset(r for t in terms for r in reductions(t))
        if number in self.graph.roots:
            self.candidates[number] += scattered

    def _beside(self, number: int) -> set[int]:
        """Classes that are needed elsewhere too: if they are stored, it is for both."""
        if number not in self._elsewhere:
            reached = {number}
            stack = [root for root in self.graph.roots if root != number]
            while stack:
                one = stack.pop()
                if one not in reached:
                    reached.add(one)
                    stack += [child for node in self.nodes[one] for child in node.children]
            self._elsewhere[number] = reached - {number}
        return self._elsewhere[number]

    def _choices(self, node: ENode, few: int) -> list[tuple[Candidate, ...]]:
        """Options for the children of a node that agree in how each class is had, if any do; where
        classes are many, so few.
        """
        every = list(itertools.product(*(self._options(child) for child in node.children)))
        if node.op in COMPARED:
            every = [choice for choice in every if not self._met_again(node, choice)] or every
        alike = [choice for choice in every if agree([option.ways for option in choice])]
        return self._promising(alike or every, few)

    def _met_again(self, node: ENode, choice: tuple[Candidate, ...]) -> bool:
        """Whether a value is compared with its own extremum, and not read from memory."""
        pairs = list(zip(node.children, choice, strict=True))
        for (value, one), (top, _) in (pairs, pairs[::-1]):
            over = (n.children[0] for n in self.graph.nodes[top] if n.op in EXTREMES)
            if value in over and one.term.op != "read":
                return True
        return False

    def _promising(
        self, choices: list[tuple[Candidate, ...]], few: int
    ) -> list[tuple[Candidate, ...]]:
        """Where classes are many, the choices whose parts need least; first of all one for each
        set of classes that they need in memory.
        """
        if len(self.pruned.order) <= MANY or len(choices) <= few:
            return choices
        closures = [frozenset().union(*(c.closure for c in choice)) for choice in choices]

        def least(place: int) -> float:
            own = (c.seconds - self.closure_seconds(c.closure) for c in choices[place])
            return sum(max(part, 0.0) for part in own) + self.closure_seconds(closures[place])

        ranked = sorted(range(len(choices)), key=least)
        first = {closures[place]: place for place in reversed(ranked)}
        ranked.sort(key=lambda place: first[closures[place]] != place)
        return [choices[place] for place in ranked[:few]]

    def _use(self, number: int, term: Term) -> float:
        """Seconds of a kernel that stores a term, or its sum where nothing else is made of it."""
        found = self._sum_of(number)
        if not found:
            return self.price(term, self.names(number), self.graph.dtype[number])
        mask, above = found
        universe, free = self.graph.universe, self.graph.free[number]
        names = [n for n in self.names(above) if universe.mask([n]) & free]
        total = Term("reduce_sum", mask & free, term) if mask & free else term
        return self.price(total, tuple(names), self.graph.dtype[above])

    def _sum_of(self, number: int) -> tuple[int, int] | None:
        """The names and the class of the sum that alone is made of a class, if there is one; what
        is scanned before, step by step, need not be stored either.
        """
        first, scanned = number, False
        while True:
            uses = self.pruned.summed.get(number, set())
            scanned |= any(node.op in SCANS for node in self.nodes[number])
            if len(uses) == 1 and (0, 0) not in uses and (scanned or number == first):
                return next(iter(uses))
            users = self.pruned.users.get(number, set())
            if len(users) != 1:
                return None
            (number,) = users

    def _kernel(self, number: int, ranked: list[Candidate]) -> tuple[Candidate, float]:
        """The best way to store a class."""
        names, dtype = self.names(number), self.graph.dtype[number]

        def seconds(one: Candidate) -> float:
            return self.price(one.term, names, dtype) + self.closure_seconds(one.closure)

        best = least(ranked, seconds, lambda one: self._stored_bytes(one.closure))
        return best, self.price(best.term, names, dtype)

    def _worth_storing(self, number: int, term: Term) -> bool:
        """Storing saves work only behind a reduction, or where a value is used again; and matrix
        operations may take from memory alone what is summed over. A wider copy, or the same with
        other indices, saves none, but of integers as 16-bit floats that are multiplied. What is
        made of several stored values is one read in their place.
        """
        if number in self.graph.roots:
            return True
        for below in self.pruned.below("cast", [number]) | self.pruned.below("reindex", [number]):
            own, other = (as_dtype(self.graph.dtype[n]) for n in (number, below))
            stands = below in self.kernel or self.nodes[below][0].op in LEAVES
            taken = other.kind != "float" and own.itemsize == 2 and number in self.pruned.factors
            if stands and own.itemsize >= other.itemsize and not taken:
                return False
        if len(self.pruned.users.get(number, ())) > 1:
            return True
        if self._is_passed_on(number):
            return False
        terms = list(post_order([term]))
        reduced = any(sub.op in REDUCING or sub.op in SCANS for sub in terms)
        return number in self.pruned.factors or reduced or joins_stored(terms)

    def _is_passed_on(self, number: int) -> bool:
        """Whether all that is made of a class is another one, point by point from it and leaves,
        that is no larger: that one is stored instead.
        """
        (user,) = self.pruned.users[number]
        sizes = [as_dtype(self.graph.dtype[n]).itemsize for n in (user, number)]
        if self.graph.free[user] != self.graph.free[number] or sizes[0] > sizes[1]:
            return False
        nodes = [node for node in self.nodes[user] if number in node.children]
        others = {c for node in nodes for c in node.children} - {number}
        leaves = all(self.nodes[other][0].op in LEAVES for other in others)
        return leaves and not any(node.op in WHOLE for node in nodes)

    def run(self, outputs: list[tuple[int, str, tuple[str, ...]]]) -> Plan:
        """Kernels for the outputs: (class, buffer, names in the buffer's order).

        What one plan stores anyway is free for the choices of the next, until none is better.
        """
        best: Plan | None = None
        self.stored = frozenset()
        for _ in range(ROUNDS):
            plan = self._planned(outputs, best)
            if plan is best:
                break
            best = plan
            self.stored = frozenset(number for number in self.best[0] if number >= 0)
        assert best is not None
        return self._changed(outputs, best)

    def _planned(self, outputs: list[tuple[int, str, tuple[str, ...]]], best: Plan | None) -> Plan:
        """The plan of choices for which `stored` is free, if it is better than another one."""
        self.candidates, self.kernel, self._together = {}, {}, {}
        stored = sum(1 << number for number in self.stored)
        for number in self.pruned.order:
            self._visit_once(number, stored & self._made_of(number))
        cuts = self._cuts(outputs)
        plan = self.joined(cuts)
        if best is not None and plan.seconds >= best.seconds:
            return best
        self.best = cuts, self.candidates
        return plan

    def _changed(self, outputs: list[tuple[int, str, tuple[str, ...]]], best: Plan) -> Plan:
        """A plan with other values in memory, where one is better than the best of choices made one
        by one.
        """
        for _ in range(ROUNDS):
            before = best
            for stored in self._others():
                self.stored = stored
                best = self._planned(outputs, best)
            if best is before:
                break
        return best

    def _others(self) -> list[frozenset[int]]:
        """What else might lie in memory besides: one value more that has a reduction which several
        kernels compute, or a product in whatever way, the smallest first.
        """
        cuts, _ = self.best
        stored = frozenset(number for number in cuts if number >= 0)
        reduced = Counter(
            term
            for cut in cuts.values()
            for term in post_order([cut.stored.term])
            if term.op in REDUCING or is_product(term, self.facts)
        )
        again = {term for term, count in reduced.items() if count > 1}
        classes = Counter(number for cut in cuts.values() for number in cut.ways)
        if not max(classes.values(), default=0) > 1 or len(self.pruned.order) > MOST_CHANGED:
            return []
        sharing: list[int] = []
        for n in self.kernel.keys() - stored:
            products_of = [t for t in self.reduced[n] if is_product(t, self.facts)]
            sharing += [n] * bool(self.reduced[n] & again or (classes[n] > 1 and products_of))
        sharing.sort(key=lambda n: (self.load_bytes(n), self.kernel[n][1], n))
        return [stored | {number} for number in sharing[:MOVES]]

    def _cuts(self, outputs: list[tuple[int, str, tuple[str, ...]]]) -> dict[int, Cut]:
        """A kernel for each class that is stored, and for each output under a number below zero."""
        cuts: dict[int, Cut] = {}
        for number, buffer, names in outputs:
            best = self._best_output(number, names)
            for needed in sorted(best.closure):
                self._emit(needed, cuts)
            one = Stored(buffer, best.term, names, as_dtype(self.graph.dtype[number]))
            self.pricer.sizes[buffer] = self.load_bytes(number)
            cuts[-len(cuts) - 1] = Cut(number, one, best.closure, best.ways)
        return cuts

    def joined(self, cuts: Mapping[int, Cut]) -> Plan:
        """The plan of some cuts, kernels joined and values in 16 bits where that is faster."""
        plan = self._joined(cuts)
        narrow = narrowed(cuts, self.facts, self.narrows) if self.narrows else cuts
        if narrow == cuts:
            return plan
        for number, cut in narrow.items():
            if cut.stored.buffer != cuts[number].stored.buffer:
                self.pricer.sizes[cut.stored.buffer] = self.load_bytes(cut.number) // 2
        other = self._joined(narrow)
        return other if other.seconds < plan.seconds else plan

    def _joined(self, cuts: Mapping[int, Cut]) -> Plan:
        separate = in_order([(one,) for one in without_copies(cuts, self.graph.universe.extents)])
        wanted = [cut.stored.buffer for number, cut in cuts.items() if number < 0]
        joined = join(separate, self.facts, self.price_kernel, wanted)
        seconds = sum(self.price_kernel(kernel) for kernel in joined)
        return Plan(tuple(joined), seconds, as_joined(separate, joined, self.facts))

    def _best_output(self, number: int, names: tuple[str, ...]) -> Candidate:
        dtype = self.graph.dtype[number]

        def stored_so(one: Candidate) -> bool:
            return self.names(number) == names and one.term == self.load(number)

        def seconds(one: Candidate) -> float:
            own = 0.0 if stored_so(one) else self.price(one.term, names, dtype)
            return own + self.closure_seconds(one.closure)

        def needs(one: Candidate) -> tuple[bool, int]:
            there = stored_so(one) and self.kernel[number][0].term.op not in SCATTERS
            return not there, self._stored_bytes(one.closure)

        return least(self._options(number), seconds, needs)

    def _emit(self, number: int, cuts: dict[int, Cut]) -> None:
        if number in cuts:
            return
        best, _ = self.kernel[number]
        for needed in sorted(best.closure):
            self._emit(needed, cuts)
        dtype = as_dtype(self.graph.dtype[number])
        stored = Stored(f"t{number}", best.term, self.names(number), dtype)
        cuts[number] = Cut(number, stored, best.closure, best.ways)
