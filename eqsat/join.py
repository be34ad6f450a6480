"""Join kernels that share what they read, where the cost model says that one launch is cheaper."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from eqsat.algebra import Facts, Read, Renaming, Term, post_order
from eqsat.form import Stored
from eqsat.graph.index import var
from eqsat.reindex import push

Group = tuple[Stored, ...]


def read_buffers(kernel: Group) -> list[str]:
    """Names of the buffers that a kernel reads, in order of first use."""
    names: dict[str, None] = {}
    for term in post_order(one.term for one in kernel):
        if term.op in {"read", "gather"}:
            read = term.args[0]
            assert isinstance(read, Read)
            names[read.buffer] = None
    return list(names)


def in_order(kernels: Sequence[Group]) -> list[Group]:
    """Producers before consumers."""
    made = {one.buffer: kernel for kernel in kernels for one in kernel}
    done: set[str] = set()
    ordered: list[Group] = []

    def place(kernel: Group) -> None:
        if kernel[0].buffer in done:
            return
        done.add(kernel[0].buffer)
        for buffer in read_buffers(kernel):
            if buffer in made:
                place(made[buffer])
        ordered.append(kernel)

    for kernel in kernels:
        place(kernel)
    return ordered


def join(kernels: Sequence[Group], facts: Facts, price: Callable[[Group], float]) -> list[Group]:
    """The kernels with pairs joined, the most profitable first, until no pair gains."""
    current = list(kernels)
    prices = {kernel: price(kernel) for kernel in current}
    while len(current) > 1:
        best: tuple[float, Group, Group, Group] | None = None
        below = _ancestors(current)
        for a, b in itertools.combinations(current, 2):
            if id(a) in below[id(b)] or id(b) in below[id(a)]:
                continue
            if not set(read_buffers(a)) & set(read_buffers(b)):
                continue
            both = (*a, *_aligned(a, b, facts))
            if both not in prices:
                prices[both] = price(both)
            gain = prices[a] + prices[b] - prices[both]
            if gain > 0 and (best is None or gain > best[0]):
                best = gain, a, b, both
        if best is None:
            break
        _, a, b, both = best
        current = in_order([both, *(k for k in current if k is not a and k is not b)])
    return current


def _ancestors(kernels: Sequence[Group]) -> dict[int, set[int]]:
    """For each kernel, by id, the kernels that must run before it."""
    made = {one.buffer: kernel for kernel in kernels for one in kernel}
    below: dict[int, set[int]] = {}
    for kernel in kernels:  # in order: producers first
        own: set[int] = set()
        for buffer in read_buffers(kernel):
            if buffer in made:
                producer = made[buffer]
                own |= {id(producer)} | below[id(producer)]
        below[id(kernel)] = own
    return below


def _aligned(a: Group, b: Group, facts: Facts) -> Group:
    """b with its own output names renamed to those of a where extents agree, to share a grid."""
    extents = facts.universe.extents
    theirs = {name for one in a for name in one.names}
    mine = {name for one in b for name in one.names}
    open_names = list(dict.fromkeys(n for one in a for n in one.names if n not in mine))
    renamed: dict[str, str] = {}
    for name in dict.fromkeys(n for one in b for n in one.names if n not in theirs):
        match = next((n for n in open_names if extents[n] == extents[name]), None)
        if match is not None:
            renamed[name] = match
            open_names.remove(match)
    if not renamed:
        return b
    renaming = Renaming(tuple(renamed), tuple(var(n) for n in renamed.values()))

    def rename(term: Term) -> Term:
        return push(renaming, term, facts)

    return tuple(
        replace(one, term=rename(one.term), names=tuple(renamed.get(n, n) for n in one.names))
        for one in b
    )
