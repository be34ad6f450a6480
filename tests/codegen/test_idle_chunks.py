"""Chunks that are left out since nothing is stored of what they sum up."""

from kernel_building import Body, at, buffers

from eqsat.graph import index
from eqsat.graph.dtypes import bool_, float32, int32
from eqsat.kernel.idle_chunks import live_bounds
from eqsat.kernel.ir import Axis, Carry, Kernel, Position, Store


def test_a_carry_that_another_one_is_made_of_is_read():
    """mean[i], and sum_l (x - mean)^2 whole beside what a mask stores of it."""
    b, c, end = Body(), Body(), Body()
    x, y, z = buffers(x=(64, 256), y=(64,), z=(64,))
    b.load("a", "i l", at(x, "i", "l"))
    b.reduce("p", "i", "sum", "l", "a")
    b.update("next", "i", "first", "sum", "p")
    c.load("e", "i k", at(x, "i", "k"))
    c.map("d", "i k", "sub", "e", "first")
    c.reduce("q", "i", "sum", "k", "d")
    c.update("later", "i", "second", "sum", "q")
    end.add(Position, "at_i", "i", index.var("i"), dtype=int32)
    end.literal("half", 32, dtype=int32)
    end.literal("none", 0.0)
    end.map("low", "i", "less", "at_i", "half", dtype=bool_)
    end.map("some", "i", "where", "low", "second", "none")
    streams = [
        body.phase(stream=(Axis(n, 256, 64),), carries=(Carry(name, float32, ("i",), "sum"),))
        for body, n, name in ((b, "l", "first"), (c, "k", "second"))
    ]
    for stored, bounds in ((("some", "some"), 1), (("second", "some"), 0)):
        stores = (Store(at(to, "i"), v) for to, v in zip((y, z), stored, strict=True))
        phases = (*streams, end.phase(*stores))
        kernel = Kernel("moments", (x, y, z), (Axis("i", 64, 16),), (), phases)
        assert [len(live_bounds(kernel, one)) for one in phases] == [bounds, bounds, 0]
