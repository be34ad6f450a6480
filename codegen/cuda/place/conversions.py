"""Right factors of a warpgroup's products that threads of their own convert from copied tiles.

The instruction takes its right factor from shared memory. Where that is computed, of the elements
of a cache of 8 bits say, a tile of what it is made of is copied first; a warpgroup that multiplies
nothing makes the factor of it, laid out as if it had been copied.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from eqsat.kernel.ir import Contract, Kernel, Literal, Load, Map, Position, Statement, operands


def conversions(
    kernel: Kernel, contracts: Collection[Contract], users: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Statement, ...]]:
    """The factors of contractions that can be converted, each with the statements that make it."""
    statements = {s.name: s for s in kernel.statements()}
    found: dict[str, tuple[Statement, ...]] = {}
    for factor in {name: None for c in contracts for name in (c.left, c.right)}:
        products = {c.name for c in contracts if factor in (c.left, c.right)}
        if chain := _chain(statements, factor, users, products):
            found[factor] = chain
    return found


def _chain(
    statements: Mapping[str, Statement],
    factor: str,
    users: Mapping[str, Sequence[str]],
    products: Collection[str],
) -> tuple[Statement, ...]:
    """Elementwise operations on one load that has all of the factor's indices, and on others that
    are read where they lie; empty where it is made of anything else, or more is made of these.
    """
    if not isinstance(statements.get(factor), Map) or not set(users[factor]) <= set(products):
        return ()
    inside, todo = set[str](), [factor]
    while todo:
        name = todo.pop()
        s = statements.get(name)  # a carry is none
        if isinstance(s, Literal | Position) or name in inside:
            continue
        plain = isinstance(s, Load) and not (s.access.coordinates or s.fill)
        if s is None or not (plain or isinstance(s, Map)):
            return ()
        inside.add(name)
        todo += operands(s)
    if any(not set(users[name]) <= inside for name in inside - {factor}):
        return ()
    chain = tuple(s for s in statements.values() if s.name in inside)
    return chain if len([*sources(chain)]) == 1 else ()


def sources(chain: Sequence[Statement]) -> Iterator[Load]:
    """The loads of a chain whose tile is copied: those that have all indices of its result."""
    for s in chain:
        if isinstance(s, Load) and {*s.indices} == {*chain[-1].indices}:
            yield s
