"""A graph as text, as a networkx graph and as a drawing."""

from collections.abc import Sequence
from html import escape
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from eqsat.errors import DTypeError
from eqsat.graph.arguments import entries
from eqsat.graph.dtypes import DType
from eqsat.graph.evaluate import input_nodes, topological
from eqsat.graph.tensor import Tensor

if TYPE_CHECKING:
    import networkx

_BOX_WIDTH, _BOX_HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 40, 20, 36, 20
_LONGEST_LINE = 30

Outputs = Tensor | Sequence[Tensor]


def _listed(outputs: Outputs) -> Sequence[Tensor]:
    """The outputs as a sequence; DTypeError unless they are tensors."""
    listed = [outputs] if isinstance(outputs, Tensor) else entries(outputs)
    for x in listed:
        if not isinstance(x, Tensor):
            raise DTypeError(
                f"got a value of type {type(x).__name__}, not a tensor. Give a tensor of the "
                f"graph, or a sequence of them."
            )
    return listed


def names_of(outputs: Sequence[Tensor]) -> dict[Tensor, str]:
    """A name for each node that the outputs need: an input's own, else %0, %1, ..."""
    input_nodes(outputs)
    numbers = count()
    return {
        node: f"%{node.attributes['name'] if node.op == 'input' else next(numbers)}"
        for node in topological(outputs)
    }


def describe(outputs: Outputs) -> str:
    """The graph as one line per node, operands before users:

    %0 = view(%x) [i0, 0] : float32[3, 4]  # softmax
    """
    outputs = _listed(outputs)
    names = names_of(outputs)
    lines: list[str] = []
    for node, name in names.items():
        operands = ", ".join(names[x] for x in node.operands)
        details = attribute_text(node)
        shape = ", ".join(map(str, node.shape))
        line = f"{name} = {node.op}({operands}){f' {details}' if details else ''}"
        lines.append(f"{line} : {node.dtype}[{shape}]{f'  # {node.label}' if node.label else ''}")
    lines.append(f"return {', '.join(names[output] for output in outputs)}")
    return "\n".join(lines)


def attribute_text(node: Tensor) -> str:
    """The attributes in short: coordinates as index expressions, small constants as values."""
    parts: list[str] = []
    for key, value in node.attributes.items():
        if key == "coordinates":
            entries = ("index" if c is None else str(c) for c in value)
            parts.append(f"[{', '.join(entries)}]")
        elif key == "value":
            parts.append(_constant_text(value))
        elif value is not None and key != "name":
            shown = str(value) if isinstance(value, DType) else repr(value)
            parts.append(f"{key}={shown}")
    return " ".join(parts)


def _constant_text(value: np.ndarray) -> str:
    if value.size > 4:
        return "values"
    return str(value.tolist()) if value.dtype.kind != "V" else str(value.astype("f4").tolist())


def to_networkx(outputs: Outputs) -> "networkx.MultiDiGraph[Any]":
    """A networkx MultiDiGraph with an edge from operand to user for each use.

    Nodes are the names of `describe`, with op, shape, dtype, label, text and output (bool); edges
    carry the operand's position.
    """
    import networkx  # takes 0.2 s to import

    outputs = _listed(outputs)
    names = names_of(outputs)
    graph: networkx.MultiDiGraph[Any] = networkx.MultiDiGraph()
    wanted = set(outputs)
    for node, name in names.items():
        graph.add_node(
            name,
            op=node.op,
            shape=node.shape,
            dtype=node.dtype.name,
            label=node.label,
            text=attribute_text(node),
            output=node in wanted,
        )
        for position, operand in enumerate(node.operands):
            graph.add_edge(names[operand], name, position=position)
    return graph


def to_svg(outputs: Outputs) -> str:
    """The graph drawn in layers, operands above users, as a self-contained SVG document."""
    import networkx  # takes 0.2 s to import

    graph = to_networkx(outputs)
    layers = [sorted(layer) for layer in networkx.topological_generations(graph)]
    place = _layout(graph, layers)
    widest = max((len(layer) for layer in layers), default=1)
    width = widest * (_BOX_WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN
    height = len(layers) * (_BOX_HEIGHT + _GAP_Y) - _GAP_Y + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#666"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    parts += [_edge_svg(place[a], place[b]) for a, b in sorted(set(graph.edges()))]
    parts += [_box_svg(name, graph.nodes[name], *place[name]) for name in graph.nodes]
    return "\n".join([*parts, "</svg>", ""])


def _layout(graph: Any, layers: Sequence[Sequence[str]]) -> dict[str, tuple[float, float]]:
    """The top left corner of each box; a layer is ordered by the mean place of its operands."""
    step_x, step_y = _BOX_WIDTH + _GAP_X, _BOX_HEIGHT + _GAP_Y
    widest = max((len(layer) for layer in layers), default=1)
    place: dict[str, tuple[float, float]] = {}

    def mean_x(name: str) -> float:
        above = [place[operand][0] for operand in graph.predecessors(name)]
        return sum(above) / len(above) if above else 0.0

    for depth, layer in enumerate(layers):
        left = _MARGIN + (widest - len(layer)) * step_x / 2
        for at, name in enumerate(sorted(layer, key=lambda name: (mean_x(name), name))):
            place[name] = (left + at * step_x, _MARGIN + depth * step_y)
    return place


def _edge_svg(source: tuple[float, float], target: tuple[float, float]) -> str:
    x1, y1 = source[0] + _BOX_WIDTH / 2, source[1] + _BOX_HEIGHT
    x2, y2 = target[0] + _BOX_WIDTH / 2, target[1]
    middle = (y1 + y2) / 2
    path = f"M{x1:g},{y1:g} C{x1:g},{middle:g} {x2:g},{middle:g} {x2:g},{y2:g}"
    return f'<path d="{path}" fill="none" stroke="#999" marker-end="url(#arrow)"/>'


def _box_svg(name: str, data: Any, x: float, y: float) -> str:
    fill = {"input": "#dbeafe", "constant": "#f1f5f9"}.get(
        data["op"], "#dcfce7" if data["output"] else "#fff"
    )
    shape = ", ".join(map(str, data["shape"]))
    title = f"{name} = {data['op']} {data['text']} : {data['dtype']}[{shape}] {data['label']}"
    lines = (f"{name} {data['op']} {data['label']}".strip(), f"{data['dtype']}[{shape}]")
    texts = "".join(
        f'<text x="{x + _BOX_WIDTH / 2:g}" y="{y + 16 + 15 * at:g}" text-anchor="middle">'
        f"{escape(_shortened(line))}</text>"
        for at, line in enumerate(lines)
    )
    box = (
        f'<rect x="{x:g}" y="{y:g}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="5" '
        f'fill="{fill}" stroke="#444"/>'
    )
    return f"<g><title>{escape(title)}</title>{box}{texts}</g>"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 1] + "…"
