"""What the schedule rules ask for: relations of menus, how far a schedule has come, its grid, and
what is on offer once it settles every axis.
"""

from collections.abc import Collection, Mapping

from eqsat.saturate.egglog_text import SCHEDULE, constructor
from eqsat.schedule.stream_k import MOST_WAVES

Ops = Mapping[str, tuple[str, ...]]

MENUS = (
    "(relation body (i64 E))",
    "(relation prepared (E E String i64))",
    "(relation rounded (String))",
    "(relation axis (i64 String))",
    "(relation next_axis (E String))",
    "(relation tile_menu (String i64))",
    "(relation chunk_menu (String i64))",
    "(relation keep_menu (String))",
    "(relation thread_menu (i64))",
    "(relation stage_menu (String i64))",
    "(relation extent (String i64))",
    "(relation part_menu (String i64))",
    "(relation most_tiles (i64))",
    "(relation filling (String i64 i64))",
    "(relation turn_menu (String))",
    "(relation cluster_menu (i64))",
    "(relation share_menu (i64))",
    "(relation stream_k_menu (i64))",
    "(relation processors (i64))",
)
CUT = "(* c (/ (+ e (- x1 1)) x1))"  # the tiles of c in each of e points cut into tiles of x1
OTHERS = frozenset({"tile", "keep", "launch", "stage"})  # entries that settle an axis, but stream
NO_AXIS = '""'
KNOWN = (
    "(function depth (E) i64 :no-merge)",
    "(function grid (E) i64 :no-merge)",
    "(relation whole (E))",  # streams no axis
    "(relation streamed (E))",
    "(relation on_offer (E String String i64))",  # schedule, what, an axis or none, how many
)


def schedule_facts(ops: Ops) -> list[str]:
    """Relations of the menus, and what follows of each schedule."""
    start = f"(= s ({constructor('untiled')}))"
    entries = SCHEDULE & set(ops) - {"kernel", "untiled"}
    return [
        *MENUS,
        *KNOWN,
        _rule(start, "(set (depth s) 0) (set (grid s) 1) (whole s)"),
        _rule("(= d (depth s)) (axis d x)", "(next_axis s x)"),
        *_entered(ops, entries, "(= d (depth {}))", "(set (depth s) (+ d 1))"),
        *_entered(ops, entries - {"tile"}, "(= c (grid {}))", "(set (grid s) c)"),
        *_entered(ops, {"tile"}, "(= c (grid {})) (extent x0 e)", f"(set (grid s) {CUT})"),
        *_entered(ops, OTHERS, "(whole {})", "(whole s)"),
        *_entered(ops, OTHERS, "(streamed {})", "(streamed s)"),
        *_entered(ops, {"stream"}, "", "(streamed s)"),
        *_offered(ops),
    ]


def _offered(ops: Ops) -> list[str]:
    """What a schedule s that settles every axis, of c tiles, may have besides, n of it: parts of a
    reduction over x, x outermost in what is stored, blocks that compute a tile, blocks that copy
    for each other, parts of the tiles of a last wave.
    """
    wave = f"(processors p) (> (% c p) 0) (<= (* (% c p) n) p) (< c (* p {MOST_WAVES}))"
    lines = [
        _rule(f'(next_axis s "{what}") (= c (grid s)) {when}', f'(on_offer s "{what}" {axis} n)')
        for what, axis, when in (
            ("parts", "x", "(part_menu x n) (most_tiles m) (<= (* c n) m)"),
            ("parts", "x", "(filling x c n)"),
            ("turn", "x", "(turn_menu x) (= n 1)"),
            ("cluster", NO_AXIS, "(whole s) (cluster_menu n)"),
            ("share", NO_AXIS, "(share_menu n) (<= n c)"),
            ("stream_k", NO_AXIS, f"(streamed s) (stream_k_menu n) {wave}"),
        )
    ]
    for op, names in (("split", "x m"), ("turn", "x")):  # their blocks may copy for each other too
        if op in ops:
            before = f'(= s ({constructor(op)} {names} t)) (next_axis t "share") (= c (grid s))'
            shared = f'(on_offer s "share" {NO_AXIS} n)'
            lines.append(_rule(f"{before} (share_menu n) (<= n c)", shared))
    return lines


def _entered(ops: Ops, entries: Collection[str], before: str, then: str) -> list[str]:
    """What holds of a schedule s that ends with one of some entries, x0 and x1 its arguments, by
    what holds of the schedule before it.
    """
    lines = []
    for op in sorted(set(entries) & set(ops)):
        args = [f"x{i}" for i in range(len(ops[op]))]
        own = f"(= s ({constructor(op)} {' '.join(args)}))"
        lines.append(_rule(f"{own} {before.format(args[-1])}", then))
    return lines


def _rule(when: str, then: str) -> str:
    return f"(rule ({when}) ({then}) :ruleset facts)"
