"""Loads of several elements at once into a thread's registers: neighbours along an index, or fields
of a record, which several loads take from one place."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from eqsat.graph.index import Affine
from eqsat.kernel.ir import Access, Kernel, Load
from eqsat.layout.needs import VECTOR_BYTES

from ..place.block import Block
from ..place.tile import Point, constant
from ..prelude.math import cast, literal, storage_type, widen


def load_vector(
    block: Block,
    s: Load,
    point: Point,
    condition: str,
    width: int,
    element: Callable[[str], str],
) -> None:
    """Write one access to `width` elements that lie together; `element(e)` names the register of
    the e-th. Where the condition, if there is one, does not hold they are the load's fill.
    """
    out = block.out
    _read_pack(block, s, point, condition, width)
    out.line("#pragma unroll")
    with out.block(f"for (int e = 0; e < {width}; ++e)"):
        out.line(f"{element('e')} = {_item(block, s, condition, 'pack', 'e')};")


def _read_pack(
    block: Block,
    s: Load,
    point: Point,
    condition: str,
    width: int,
    name: str = "pack",
    before: int = 0,
) -> None:
    """Write one access to `width` elements, of which so many lie before that of the load, to a
    variable; of one that is not named `pack` the condition is its own, too.
    """
    out, buffer = block.out, block.kernel.buffer(s.access.buffer)
    pack = f"Pack<{storage_type(buffer.dtype)}, {width}>"
    source = " + ".join(block.place(s.accesses, point))
    source += f" - {before}" if before else ""
    out.line(f"{pack} {name} = {{}};")
    if condition:
        out.line(f"const bool {_exists(name)} = {condition};")
    read = f"{name} = *reinterpret_cast<const {pack}*>({source});"
    out.line(f"if ({_exists(name)}) {read}" if condition else read)


def _exists(pack: str) -> str:
    """The variable that says whether what a pack is read from is there."""
    return "exists" if pack == "pack" else f"{pack}_exists"


def _item(block: Block, s: Load, condition: str, pack: str, number: str) -> str:
    """An element of what was read as a load gives it: its fill where nothing was."""
    dtype = block.kernel.buffer(s.access.buffer).dtype
    value = cast(dtype, s.dtype, widen(dtype, f"{pack}.item[{number}]"))
    text = f"{_exists(pack)} ? {value} : {literal(s.dtype, s.fill)}"
    return text if condition and s.fill else value


def fields(kernel: Kernel, loads: Iterable[Load], s: Load) -> tuple[Mapping[int, Load], int]:
    """By their position in it, the loads that take their elements from the same record as a load
    at each point; and how many elements a record has, which lie together and aligned.

    Records are as wide as an access may be and divide what the addresses are multiples of, and the
    buffer: the elements that nothing takes exist as well.
    """
    buffer, address = kernel.buffer(s.access.buffer), s.access.address
    steps = [step for _, step in address.terms] + [c.stride for c in s.access.coordinates]
    width = VECTOR_BYTES // buffer.dtype.itemsize
    while any(step % width for step in (*steps, buffer.size)):
        width //= 2
    start = address.constant // width * width
    found = {address.constant - start: s}
    for other in loads:
        constant = other.access.address.constant
        same = replace(s.access, address=Affine(address.terms, constant))
        alike = other == replace(s, name=other.name, access=same)
        if alike and 0 <= constant - start < width:
            found.setdefault(constant - start, other)
    return found, width


def load_fields(block: Block, found: Mapping[int, Load], width: int) -> None:
    """Write one access to each record; the loads' registers are declared."""
    place, s = next(iter(found.items()))
    with block.points(s.indices) as point, block.out.block():
        condition = block.present(s, point)
        _read_pack(block, s, point, condition, width, before=place)
        for number, one in found.items():
            value = _item(block, one, condition, "pack", str(number))
            block.out.line(f"{block.element(one.name, point)} = {value};")


@contextmanager
def points_of_late(
    block: Block,
    indices: Collection[str],
    late: Mapping[str, Load],
    vector: Callable[[Access, list[str]], tuple[str, int]],
) -> Iterator[Point]:
    """Loops over a thread's points of some indices, at which values are read that lie in memory, by
    the names by which they are read: neighbours along an index at once. `vector` says along which
    one registers lie as memory does, and of how many.
    """
    out, before = block.out, {name: block.readers[name] for name in late}
    outer = {i for s in late.values() for i in s.indices}
    found = {n: vector(s.access, block.ordered(s.indices)) for n, s in late.items() if not s.rest}
    index, width = max(found.values(), key=lambda one: one[1], default=("", 1))
    with block.points(indices, outer=outer, steps={index: width}) as first, ExitStack() as loop:
        together = [name for name, one in found.items() if width > 1 and one == (index, width)]
        packs = {late[name].name: f"late_{block.names.of(late[name].name)}" for name in together}
        for s in {late[name].name: late[name] for name in together}.values():
            _read_pack(block, s, first, block.present(s, first), width, packs[s.name])
        if width > 1:
            out.line("#pragma unroll")
            loop.enter_context(out.block(f"for (int e = 0; e < {width}; ++e)"))
        for name in together:
            s = late[name]
            item = _item(block, s, block.present(s, first), packs[s.name], "e")
            block.readers[name] = constant(f"({item})")
        yield block.shifted(first, index, "e") if width > 1 else first
    block.readers |= before
