"""Prices of kernels that a cut may choose, and what is learned of them once they are scheduled."""

import numpy as np

from eqsat.cut.cuts import UNFIT, PlainPrice, Reductions, kinds
from eqsat.graph.dtypes import as_dtype
from eqsat.price.pricer import Pricer
from eqsat.schedule.menu import least_seconds
from eqsat.schedule.recast import before_schedules
from eqsat.schedule.whole_rows import kernels_of_whole_rows
from eqsat.terms.algebra import Facts, Term
from eqsat.terms.form import Stored, form, is_product
from eqsat.terms.scattered import starts


class LearnedPrices:
    """Seconds of kernels by what they store, before they are scheduled."""

    def __init__(self, facts: Facts, pricer: Pricer) -> None:
        self.facts, self.pricer = facts, pricer
        self.prices: dict[tuple[Term, tuple[str, ...]], float] = {}
        self._plain: dict[tuple[Stored, ...], PlainPrice] = {}
        self.floors: dict[tuple[Reductions, float], float] = {}
        self.unfit: set[tuple[Reductions, float]] = set()  # what kernels reduce, as in `floors`
        self.alone: dict[tuple[Term, ...], float] = {}  # seconds of kernels that store these terms
        self.nested: dict[int, float] = {}  # times a price, by how many reductions: `times`

    def price(self, term: Term, names: tuple[str, ...], dtype: str) -> float:
        """The best predicted seconds of a kernel that stores the term."""
        key = (term, names)
        if key not in self.prices:
            self.prices[key] = self.price_kernel((Stored("t", term, names, as_dtype(dtype)),))
        return self.prices[key]

    def price_kernel(self, stored: tuple[Stored, ...]) -> float:
        """The best predicted seconds of a kernel that stores several values, and of those that
        write what scatters start from.
        """
        plain = self._plain_price(stored)
        seconds = plain.seconds * plain.times(self.nested)
        part, points = plain.reductions, plain.points
        found = [least for (r, n), least in self.floors.items() if r <= part and n <= points]
        before = sum(self.price(s.term, s.names, s.dtype.name) for s in starts(stored))
        own = self.alone.get(tuple(one.term for one in stored), 0.0)
        share = self.pricer.share_of(one.term for one in stored)
        return share * max([seconds, own, *found]) + before

    def _plain_price(self, stored: tuple[Stored, ...]) -> PlainPrice:
        if stored not in self._plain:
            made = form(stored, self.facts)
            merged = before_schedules(stored, self.facts, self.pricer)
            rows = kernels_of_whole_rows(merged) if self.pricer.overlap else ()
            plain = least_seconds(merged, self.pricer)
            whole = sum(least_seconds(one, self.pricer) for one in rows) or np.inf
            several = sum(is_product(t, self.facts) for t in made.terms) > 1
            taken = [merged] if plain <= whole else rows
            nested = any(one.nested or (several and one.held) for one in taken)
            points = max(self.facts.universe.size(self.facts.free(one.term)) for one in stored)
            self._plain[stored] = PlainPrice(min(plain, whole), nested, kinds(made), points)
        return self._plain[stored]

    def learn(self, stored: tuple[Stored, ...], seconds: float) -> bool:
        """Take it from now on that a kernel with all reductions of these values, which stores as
        many points, and computes what it multiplies if these do, needs so long, and nested ones as
        many times their price; without reductions, and of the first that fits no schedule (UNFIT),
        that it needs so long itself. False where that was known.
        """
        plain, terms = self._plain_price(stored), tuple(one.term for one in stored)
        key = (plain.reductions, plain.points)
        itself = not plain.reductions or (seconds == UNFIT and key not in self.unfit)
        if (self.alone.get(terms, 0.0) if itself else self.floors.get(key, 0.0)) >= seconds:
            return False
        if itself:
            self.alone[terms] = seconds
            self.unfit |= {key} if seconds == UNFIT else set()
        else:
            if plain.nested:
                times = plain.times(self.nested) * max(seconds / self.price_kernel(stored), 1.0)
                self.nested[len(plain.reductions)] = times
            self.floors[key] = seconds
        self.prices.clear()
        return True

    def computes_factors(self, stored: tuple[Stored, ...]) -> bool:
        """Whether a kernel computes, or gathers, what it multiplies."""
        return any(len(one) > 3 for one in self._plain_price(stored).reductions)
