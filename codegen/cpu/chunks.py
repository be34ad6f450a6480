"""The chunks of a stream that a loop nest runs: masks leave nothing of others."""

from math import prod

from eqsat.graph.index import free_names
from eqsat.kernel.idle_chunks import live_ranges, told
from eqsat.kernel.ir import Kernel, Phase

from .scope import Names, Scope, affine, hoist


def live_chunks(kernel: Kernel, phase: Phase, scope: Scope, names: Names) -> tuple[str, str]:
    """The first chunk of a tile that changes anything, and the one after the last; at least one."""
    chunks, axes = prod(axis.count for axis in phase.stream), kernel.axes()
    known = live_ranges(kernel, phase)
    ranges = [found for found in known if not any(map(told, free_names(found[0])))]
    if not ranges:
        return "0", str(chunks)
    corner = Scope(scope, scope.lines)
    corner.offsets.update(dict.fromkeys(axes, "0"))
    extents = {name: axis.extent for name, axis in axes.items()}
    first, last = ["0"], [str(chunks)]
    for start, step in ranges:
        text = affine(start, corner, extents, names)
        if step == 0:
            last.append(f"({chunks} if {text} >= 0 else 0)")
        elif step < 0:
            last.append(f"({text}) // {-step} + 1")
        else:
            first.append(f"-(({text}) // {step})")
    low = hoist(scope, f"min({_of('max', first)}, {chunks - 1})", names, "first")
    return low, hoist(scope, f"max({_of('min', last)}, {low} + 1)", names, "last")


def _of(function: str, values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"{function}({', '.join(values)})"
