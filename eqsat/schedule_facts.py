"""What the schedule rules ask for: relations of menus, how far a schedule has come, its grid."""

from collections.abc import Mapping

from eqsat.egglog_text import SCHEDULE, constructor
from eqsat.stream_k import MOST_WAVES


def schedule_facts(ops: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Relations of the menus, and how far a schedule has come."""
    lines = [
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
        *_part_facts(ops),
        *_cluster_facts(ops),
        *_stream_k_facts(ops),
        "(function depth (E) i64 :no-merge)",
        f"(rule ((= s ({constructor('untiled')}))) ((set (depth s) 0)) :ruleset facts)",
        "(rule ((= d (depth s)) (axis d x)) ((next_axis s x)) :ruleset facts)",
    ]
    for op in sorted(SCHEDULE & set(ops) - {"kernel", "untiled"}):
        args = [f"x{i}" for i in range(len(ops[op]))]
        lines.append(
            f"(rule ((= s ({constructor(op)} {' '.join(args)})) (= d (depth {args[-1]}))) "
            f"((set (depth s) (+ d 1))) :ruleset facts)"
        )
    return lines


def _part_facts(ops: Mapping[str, tuple[str, ...]]) -> list[str]:
    """How many tiles the grid of a schedule has, and in how many parts each may then be."""
    lines = [
        "(relation part_menu (String i64))",
        "(relation extent (String i64))",
        "(relation most_tiles (i64))",
        "(relation filling (String i64 i64))",
        "(relation parts_fit (E String i64))",
        "(function grid (E) i64 :no-merge)",
        f"(rule ((= s ({constructor('untiled')}))) ((set (grid s) 1)) :ruleset facts)",
        '(rule ((next_axis s "parts") (part_menu x n) (most_tiles m) (= c (grid s)) '
        "(<= (* c n) m)) ((parts_fit s x n)) :ruleset facts)",
        '(rule ((next_axis s "parts") (= c (grid s)) (filling x c n)) ((parts_fit s x n)) '
        ":ruleset facts)",
    ]
    for op in sorted(SCHEDULE & set(ops) - {"kernel", "untiled"}):
        args = [f"x{i}" for i in range(len(ops[op]))]
        size = "c" if op != "tile" else "(* c (/ (+ e (- x1 1)) x1))"
        lines.append(
            f"(rule ((= s ({constructor(op)} {' '.join(args)})) (= c (grid {args[-1]}))"
            f"{' (extent x0 e)' if op == 'tile' else ''}) ((set (grid s) {size})) :ruleset facts)"
        )
    return lines


def _cluster_facts(ops: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Which schedules hold all that a tile reads, and how many blocks may then compute a tile; how
    many blocks may copy for each other.
    """
    lines = [
        "(relation cluster_menu (i64))",
        "(relation clusters_fit (E i64))",
        "(relation share_menu (i64))",
        "(relation shares_fit (E i64))",
        '(rule ((next_axis s "share") (share_menu n) (= c (grid s)) (= 0 (% c n))) '
        "((shares_fit s n)) :ruleset facts)",
        "(relation whole (E))",
        f"(rule ((= s ({constructor('untiled')}))) ((whole s)) :ruleset facts)",
        '(rule ((next_axis s "cluster") (whole s) (cluster_menu n)) ((clusters_fit s n)) '
        ":ruleset facts)",
    ]
    if "split" in ops:
        lines.append(
            f'(rule ((= s ({constructor("split")} x m t)) (next_axis t "share") (share_menu n) '
            "(= c (grid s)) (= 0 (% c n))) ((shares_fit s n)) :ruleset facts)"
        )
    for op in sorted({"tile", "keep", "launch", "stage"} & set(ops)):
        args = [f"x{i}" for i in range(len(ops[op]))]
        lines.append(
            f"(rule ((= s ({constructor(op)} {' '.join(args)})) (whole {args[-1]})) "
            f"((whole s)) :ruleset facts)"
        )
    return lines


def _stream_k_facts(ops: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Which schedules stream an axis, and in how many parts the tiles of a last wave may be."""
    lines = [
        "(relation stream_k_menu (i64))",
        "(relation waves_fit (E i64))",
        "(relation processors (i64))",
        "(relation streamed (E))",
        '(rule ((next_axis s "stream_k") (streamed s) (stream_k_menu n) (= c (grid s)) '
        f"(processors p) (> (% c p) 0) (<= (* (% c p) n) p) (< c (* p {MOST_WAVES}))) "
        "((waves_fit s n)) :ruleset facts)",
    ]
    for op in sorted({"tile", "keep", "stream", "launch", "stage"} & set(ops)):
        args = [f"x{i}" for i in range(len(ops[op]))]
        below = "" if op == "stream" else f" (streamed {args[-1]})"
        lines.append(
            f"(rule ((= s ({constructor(op)} {' '.join(args)})){below}) ((streamed s)) "
            f":ruleset facts)"
        )
    return lines
