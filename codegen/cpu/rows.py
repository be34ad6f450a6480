"""Products by rows: a row of the right factor at a time is added to rows of the product.

What is summed goes by a few points at a time. Few rows of a product have their sums side by side
and pass over the right factor together, so that it is read once for all of them.
"""

from collections.abc import Sequence
from itertools import product as points
from math import prod

from eqsat.codegen.cpu import scalars
from eqsat.graph.dtypes import DType
from eqsat.kernel.ir import Access, Contract, Store, operands, store_operands

from .plan import Action, Commit, Hold, Rescale, Sink, Stored
from .routine_calls import RoutineCalls
from .scope import Scope, hoist, total

UNROLL = 4  # rows of the right factor that one pass over a row of the product adds
AT_ONCE = 2  # rows of a product in one loop over its columns
FEW = 16  # rows that one pass adds at most


class Rows(RoutineCalls):
    """The loops of products that no routine computes, and what actions read."""

    def accessed(self, action: Action) -> list[Access]:
        """What of buffers an action reads, and writes."""
        match action:
            case Hold(value=name):
                return [*self.values.loaded([name], opened=name)]
            case Store(access=access):
                return [access, *self.values.loaded(store_operands(action))]
            case Commit() | Rescale():
                return []
            case _:
                return [*self.values.loaded(operands(action))]

    def multiply(self, a: str, b: str, dtype: DType) -> str:
        return scalars.expression("mul", dtype, dtype, (a, b))

    def term(self, contract: Contract, scope: Scope) -> str:
        left, right = (
            self.value(x, scope, contract.dtype) for x in (contract.left, contract.right)
        )
        return self.multiply(left, right, contract.dtype)

    def rows(self, sink: Sink, contract: Contract, scope: Scope) -> None:
        """Add left * row of right to a row of the product, a few rows of right at a time; or to
        each of several rows.
        """
        *summed, column = sink.leaf
        row = summed.pop(0) if summed and summed[0] not in contract.over else ""
        kept = self.plan.stored[contract.name]
        sizes = [self.values.size(index) for index in summed]
        if summed and all(map(self.values.whole, summed)) and prod(sizes) <= FEW:
            copies = []
            for point in points(*map(range, sizes)):
                copies.append(Scope(scope, scope.lines))
                copies[-1].offsets.update(zip(summed, map(str, point), strict=True))
            self.row(contract, kept, column, scope, [copies], first=not sink.into)
            self.home[kept] = scope
            return
        if not sink.into:
            zero = self.constant(0, contract.dtype)
            self.fill(kept, [i for i in (row, column) if i in kept.dims], zero, scope)
        opened = [scope]
        for index in summed[:-1]:
            opened.append(self.inside(index, opened[-1]))
        if summed:
            self.unrolled(contract, kept, summed[-1], column, opened[-1], row)
        else:
            self.row(contract, kept, column, scope, [[scope]])
        for index in reversed(summed[:-1]):
            inner = opened.pop()
            self.end(index, inner, opened[-1])
        self.home[self.plan.stored[contract.name]] = scope

    def unrolled(
        self, contract: Contract, kept: Stored, index: str, column: str, scope: Scope, row: str
    ) -> None:
        length = self.length(index, scope)
        main = hoist(scope, f"{length} - {length} % {UNROLL}", self.names, "main")
        for step, header in (
            (UNROLL, f"range(0, {main}, {UNROLL})"),
            (1, f"range({main}, {length})"),
        ):
            if step == 1 and length.isdigit() and int(length) % UNROLL == 0:
                continue
            body = Scope(scope)
            first = self.names.fresh(index)
            copies = []
            for ahead in range(step):
                copy = Scope(body, body.lines)
                copy.offsets[index] = hoist(copy, total([first, str(ahead)]), self.names, index)
                copies.append(copy)
            self.each_row(contract, kept, column, body, copies, row)
            scope.close(f"for {first} in {header}:", body)

    def each_row(
        self,
        contract: Contract,
        kept: Stored,
        column: str,
        scope: Scope,
        copies: Sequence[Scope],
        row: str,
    ) -> None:
        """The same for all points of `row`, a few in one loop over the column."""
        if not row:
            self.row(contract, kept, column, scope, [copies])
            return
        size = self.values.size(row)
        main = size - size % AT_ONCE
        for step, header in (
            (AT_ONCE, f"range(0, {main}, {AT_ONCE})"),
            (1, f"range({main}, {size})"),
        ):
            if (main if step > 1 else size - main) == 0:
                continue
            body, first = Scope(scope), self.names.fresh(row)
            groups = []
            for ahead in range(step):
                point = hoist(body, total([first, str(ahead)]), self.names, row)
                groups.append([Scope(copy, body.lines) for copy in copies])
                for copy in groups[-1]:
                    copy.offsets[row] = point
            self.row(contract, kept, column, body, groups)
            scope.close(f"for {first} in {header}:", body)

    def row(
        self,
        contract: Contract,
        kept: Stored,
        column: str,
        scope: Scope,
        groups: Sequence[Sequence[Scope]],
        first: bool = False,
    ) -> None:
        """product[column] += the terms of every copy of the scope, in one loop over the column, for
        each group of them; without the sum so far if they are the `first`.
        """
        every = [copy for copies in groups for copy in copies]
        reads = [(access, copy) for copy in every for access in self.accessed(contract)]
        for inner in self.ranges(column, scope, reads):
            sums = []
            for copies in groups:
                at = Scope(copies[0], inner.lines)
                at.offsets.update(inner.offsets)
                text = self.constant(0, contract.dtype) if first else self.get(kept, at)
                for copy in copies:
                    point = Scope(copy, inner.lines)
                    point.offsets.update(inner.offsets)
                    point.met = inner.met
                    term = self.term(contract, point)
                    text = scalars.combine("sum", contract.dtype, text, term, False)
                sums.append((at, text))
            if len(sums) > 1:  # all are read before one is written
                names = [self.names.fresh(contract.name) for _ in sums]
                inner.lines += [f"{n} = {text}" for n, (_, text) in zip(names, sums, strict=True)]
                sums = [(at, name) for name, (at, _) in zip(names, sums, strict=True)]
            for at, text in sums:
                self.put(kept, text, at)
