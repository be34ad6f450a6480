"""Values that lie in memory as the kernels after them read them, instead of being copied so.

A product by matrix operations copies a factor that lies otherwise than they take it. Where another
kernel of the plan computes that factor, it may store it so in the first place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from eqsat.cut.cuts import Order, Orders, Plan
from eqsat.graph.index import row_major, substitute
from eqsat.kernel.ir import Kernel, Load
from eqsat.terms.algebra import (
    SCATTERS,
    Facts,
    Read,
    Term,
    Universe,
    post_order,
    rebuild,
    with_children,
)
from eqsat.terms.form import Stored
from eqsat.terms.renaming import read_renaming


def orders_read(plan: Plan, kernels: Iterable[Kernel], extents: Mapping[str, int]) -> Orders:
    """Of the values that a plan stores for itself, and that a kernel copies into another order of
    their elements, that order.
    """
    movable = {one.buffer: one for one in plan.separate if one.buffer[0] == "t"}
    for one in plan.separate:
        for term in post_order([one.term]):
            read = term.args[0] if term.args else None
            if isinstance(read, Read) and (read.extent or read.joined):
                for buffer in read.buffers:  # rows that are gathered stay rows
                    movable.pop(buffer, None)
        if one.at is not None or one.pitch or one.offset or one.term.op in SCATTERS:
            movable.pop(one.buffer, None)
    found: dict[str, Order] = {}
    for kernel in kernels:
        read = copied(kernel)
        if read in movable and read not in found:
            names = movable[read].names
            order = order_copied(kernel, names, extents)
            if order and order != names:
                found[read] = Order(names, order)
    return found


def read_otherwise(orders: Orders, kernels: Iterable[Kernel]) -> set[str]:
    """The buffers among these that some kernel reads which does not copy them."""
    loads = (
        access.buffer
        for kernel in kernels
        if copied(kernel) not in orders
        for phase in kernel.phases
        for one in phase.body
        if isinstance(one, Load)
        for access in one.accesses
    )
    return {buffer for buffer in loads if buffer in orders}


def laid(plan: Plan, orders: Orders, facts: Facts) -> Plan:
    """The plan with these values in other orders, wherever it stores and reads them."""

    def moved(one: Stored) -> Stored:
        names = orders[one.buffer].after if one.buffer in orders else one.names
        return replace(one, term=read_as_laid(one.term, orders, facts.universe), names=names)

    kernels = tuple(tuple(map(moved, kernel)) for kernel in plan.kernels)
    separate = tuple(map(moved, plan.separate))
    return replace(plan, kernels=kernels, separate=separate, orders=orders)


def read_as_laid(term: Term, orders: Orders, universe: Universe) -> Term:
    """The term with its reads of values that lie in other orders."""

    def change(sub: Term, children: tuple[Term, ...]) -> Term:
        read = sub.args[0] if sub.args else None
        if not isinstance(read, Read) or read.buffer not in orders:
            return with_children(sub, children)
        order = orders[read.buffer]
        place = read_renaming(read, order.before, universe)
        at = dict(zip(place.source, place.target, strict=True))
        address = substitute(row_major(order.after, universe.extents), at, universe.extents)
        return Term(sub.op, replace(read, address=address), *sub.args[1:])

    return rebuild(term, change) if orders else term


def copied(kernel: Kernel) -> str:
    """The buffer that a kernel copies, each element as it is, and nothing else; "" where it does
    something else.
    """
    if len(kernel.phases) != 1 or kernel.phases[0].stream:
        return ""
    body, stores = kernel.phases[0].body, kernel.phases[0].stores
    if len(body) != 1 or len(stores) != 1 or not isinstance(body[0], Load) or body[0].rest:
        return ""
    (load,), (store,) = body, stores
    plain = not (load.access.guards or load.access.coordinates or store.access.guards)
    dtypes = {b.name: b.dtype for b in kernel.buffers}
    same = dtypes[store.access.buffer] == dtypes[load.access.buffer] == load.dtype
    return load.access.buffer if plain and same and not store.monoid else ""


def order_copied(
    kernel: Kernel, names: Sequence[str], extents: Mapping[str, int]
) -> tuple[str, ...]:
    """The names of what a kernel copies, in the order in which its elements lie in the copy; none
    where that is no order of names.
    """
    (load,), (store,) = kernel.phases[0].body, kernel.phases[0].stores
    assert isinstance(load, Load)
    read, written = dict(load.access.address.terms), dict(store.access.address.terms)
    if load.access.address.constant or store.access.address.constant:
        return ()
    place: dict[str, int] = {}
    for name, step in row_major(names, extents).terms:
        for axis in kernel.axes().values():
            own = read.get(axis.name, 0)
            if own and own <= step < own * axis.extent and step % own == 0:
                place[str(name)] = written.get(axis.name, 0) * (step // own)
    order = tuple(sorted(names, key=lambda name: -place.get(name, 0)))
    whole = {str(name): step for name, step in row_major(order, extents).terms}
    right = all(place.get(name) == step for name, step in whole.items() if extents[name] > 1)
    return order if right else ()
