"""From unfused kernels to fused, tiled, staged and substituted ones, as rewrites of kernel terms.

`(kernel b s)` computes the tile expression b under the schedule s. `(value v)` is a value read from
memory; `body(v, t)` says how it is computed. A schedule is a chain that settles one axis after the
other; the sizes on offer are facts drawn from the spec.
"""

from collections.abc import Iterator

from eqsat.rule import (
    WIDE_FLOATS,
    DTypeOf,
    Free,
    Node,
    NumberOf,
    PointsIn,
    Rewrite,
    apply,
    disjoint,
    dtype_in,
    fact,
    rewrite,
    rule,
)


def kernel(body: object, schedule: object) -> Node:
    """A kernel term."""
    return apply("kernel", body, schedule)  # type: ignore[arg-type]


@rule("fusion")
def inline(v: "Count", t: "Expr") -> Iterator[Rewrite]:
    """load v  ->  t,  the computation of v
    when: v is a value of this kernel's region, so that it need not touch memory.
    """
    yield rewrite(apply("value", v), t).when(fact("body", v, t))


@rule("fusion")
def contract(a: "Expr", b: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S a * b  ->  contract_S(a, b)
    when: both factors span all of S.
    """
    both = Free(a) & Free(b)
    yield rewrite(
        apply("reduce_sum", S, a * b),  # type: ignore[arg-type]
        apply("contract", S, a, b, ""),  # type: ignore[arg-type]
    ).when(disjoint(S, S.without(both)))


@rule("fusion")
def prepare(r: "Read", b: "Expr") -> Iterator[Rewrite]:
    """read r  ->  read b,  which a kernel of its own copied from r
    when: a product's operation asks for its factor in another layout, or threads would read it
    element by element, and that of b is such.
    """
    a = apply("read", r)
    yield rewrite(a, b).when(fact("prepared", a, b, "", 0))


@rule("fusion")
def divide_by_count(s: "Expr", S: "Indices") -> Iterator[Rewrite]:
    """sum_S s * (1 / n)  ->  sum_S s / n,  of n points: a mean is one value, however it is written
    when: a law holds the rows about their mean, and 1 / n is a number. float: rounding.
    """
    total = apply("reduce_sum", S, s)  # type: ignore[arg-type]
    count = apply("literal", PointsIn(S), DTypeOf(s))  # type: ignore[arg-type]
    share = apply("literal", NumberOf("/", 1.0, PointsIn(S)), DTypeOf(s))  # type: ignore[arg-type]
    yield rewrite(total * share, total / count).when(dtype_in(s, *WIDE_FLOATS))  # type: ignore[arg-type]
    yield rewrite(share * total, total / count).when(dtype_in(s, *WIDE_FLOATS))  # type: ignore[arg-type]


@rule("tiling")
def tile(b: "Expr", s: "Expr", x: "Text", n: "Count") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, axis x cut into tiles of n
    when: x is the next grid axis that s leaves open, and the spec offers n.
    """
    conditions = (fact("next_axis", s, x), fact("tile_menu", x, n))
    yield rewrite(kernel(b, s), kernel(b, apply("tile", x, n, s))).when(*conditions)


@rule("tiling")
def stream(b: "Expr", s: "Expr", x: "Text", n: "Count") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, reduction over x streamed in chunks of n"""
    conditions = (fact("next_axis", s, x), fact("chunk_menu", x, n))
    yield rewrite(kernel(b, s), kernel(b, apply("stream", x, n, s))).when(*conditions)


@rule("tiling")
def keep(b: "Expr", s: "Expr", x: "Text") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, all of the reduction over x inside each tile"""
    conditions = (fact("next_axis", s, x), fact("keep_menu", x))
    yield rewrite(kernel(b, s), kernel(b, apply("keep", x, s))).when(*conditions)


@rule("tiling")
def launch(b: "Expr", s: "Expr", n: "Count") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, n threads to a tile
    when: every axis is settled, and the spec's block holds n threads.
    """
    conditions = (fact("next_axis", s, "threads"), fact("thread_menu", n))
    yield rewrite(kernel(b, s), kernel(b, apply("launch", n, s))).when(*conditions)


@rule("tiling")
def split(b: "Expr", s: "Expr", x: "Text", n: "Count") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, reduction over x in n parts that a kernel joins
    when: s settles every axis, and its tiles in n parts still fit the processors a few times.
    """
    yield rewrite(kernel(b, s), kernel(b, apply("split", x, n, s))).when(
        fact("on_offer", s, "parts", x, n)
    )


@rule("tiling")
def turn(b: "Expr", s: "Expr", x: "Text") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, x outermost in what it stores, which a kernel orders
    when: s settles every axis; both factors of a product have x, and memory has it innermost.
    """
    yield rewrite(kernel(b, s), kernel(b, apply("turn", x, s))).when(
        fact("on_offer", s, "turn", x, 1)
    )


@rule("tiling")
def cluster(b: "Expr", s: "Expr", n: "Count") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, each tile computed by the n blocks of a cluster
    when: s settles every axis and streams none, so that a cluster holds a tile that is too much
    for one block; its rows are long, and a cluster of the spec has n blocks.
    """
    yield rewrite(kernel(b, s), kernel(b, apply("cluster", n, s))).when(
        fact("on_offer", s, "cluster", "", n)
    )


@rule("tiling")
def share(b: "Expr", s: "Expr", n: "Count") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, the blocks of n tiles copying factors for each other
    when: s settles every axis, in parts or not, it has n tiles at least, and n blocks, which lie
    side by side on any device with clusters, can be one. Where tiles are no multiple of n, the last
    are computed twice.
    """
    yield rewrite(kernel(b, s), kernel(b, apply("share", n, s))).when(
        fact("on_offer", s, "share", "", n)
    )


@rule("tiling")
def stream_k(b: "Expr", s: "Expr", n: "Count") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, the tiles of its last wave in n parts of their chunks
    when: s settles every axis and streams some, and these parts are one wave. float: rounding.
    """
    yield rewrite(kernel(b, s), kernel(b, apply("stream_k", n, s))).when(
        fact("on_offer", s, "stream_k", "", n)
    )


@rule("staging")
def stage(b: "Expr", s: "Expr", m: "Text", n: "Count") -> Iterator[Rewrite]:
    """kernel b under s  ->  kernel b under s, operands of contractions staged in memory m, n deep
    when: m is a memory of the spec that a program places data in and a whole tile sees.
    """
    conditions = (fact("next_axis", s, "stages"), fact("stage_menu", m, n))
    yield rewrite(kernel(b, s), kernel(b, apply("stage", m, n, s))).when(*conditions)
