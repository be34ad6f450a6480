"""The answer against float64, before any clock starts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np

from eqsat.bench.case import Instance, input_axis, instance, row_axes
from eqsat.bench.contender import Contender, Device, Sets
from eqsat.graph.evaluate import evaluate, topological

MAX_ROWS = 256
HOST_ELEMENTS = 1 << 27  # of all float64 arrays of a reference, formed on the host
HOST_UPDATES = 2e10  # multiply-adds of a reference on the host
DEVICE_ELEMENTS = 1 << 30  # of the float64 arrays of one step on the device


def error(actual: Any, expected: Any) -> float:
    """max |actual - expected| / (|expected| + rms of expected); infinite where either has a NaN.

    Of float64 arrays, both NumPy's or both torch's.
    """
    if not prod(expected.shape):
        return 0.0
    if bool((actual != actual).any()) or bool((expected != expected).any()):
        return inf
    differs = actual != expected
    if not bool(differs.any()):
        return 0.0
    found, wanted = actual[differs], expected[differs]
    if bool((abs(found) == inf).any()) or bool((abs(wanted) == inf).any()):
        return inf
    finite = expected[abs(expected) < inf]
    scale = float((finite * finite).mean()) ** 0.5 + 1e-300
    return float((abs(found - wanted) / (abs(wanted) + scale)).max())


@dataclass(frozen=True)
class Reference:
    """float64 results of the graph itself, of all rows or of a sample.

    `chunk`: rows that fit into one float64 computation on the device.
    """

    whole: Instance
    rows: np.ndarray | None
    axes: tuple[int | None, ...]
    values: tuple[np.ndarray, ...]
    inputs: tuple[Any, ...]
    chunk: int
    note: str

    def error(self, outputs: Sequence[Any], device: Device) -> float:
        """The largest error of any output."""
        worst = 0.0
        for array, like, axis, value in zip(
            outputs, self.whole.outputs, self.axes, self.values, strict=True
        ):
            if tuple(array.shape) != like.shape:
                return inf
            found = np.asarray(device.fetch(array, like, self.rows, axis), np.float64)
            worst = max(worst, error(found, np.asarray(value, np.float64)))
        if self.rows is not None and worst < inf:
            rest = device.whole_error(self.whole, self.inputs, outputs, self.chunk)
            worst = worst if rest is None else max(worst, rest)
        return worst


def reference(whole: Instance, sets: Sets, device: Device) -> Reference:
    """The graph's meaning for the first set: of all rows, or of as many as the host can do."""
    case, rows_name = whole.case, whole.case.rows
    total = whole.sizes.get(rows_name, 1)
    one, per_row = whole, 1
    if rows_name:
        one, two = (instance(case, {**whole.sizes, rows_name: n}) for n in (1, 2))
        per_row = max(1, _elements(two) - _elements(one))
    count = min(total, max(1, _rows_on_host(one, per_row))) if rows_name else total
    rows, few = None, whole
    if count < total:
        count = min(count, MAX_ROWS)
        rows = _chosen(total, count)
        few = instance(case, {**whole.sizes, rows_name: count})
    values = {}
    for (name, described), node, array in zip(
        case.inputs.items(), whole.inputs, sets[0], strict=True
    ):
        axis = input_axis(described, rows_name) if rows is not None else None
        values[name] = device.fetch(array, node, rows if axis is not None else None, axis)
    expected = evaluate(list(few.outputs), values, float_dtype=np.float64)
    chunk = max(1, DEVICE_ELEMENTS // per_row)
    axes = tuple(row_axes(case, whole, few))
    note = f"all of {rows_name or 'it'}" if rows is None else f"{count} of {total} {rows_name}"
    made = Reference(whole, rows, axes, tuple(expected), tuple(sets[0]), chunk, "")
    return replace(made, note=f"{note} by the graph in float64 on the host")


def _chosen(total: int, count: int) -> np.ndarray:
    """The first and last row, and others at random."""
    inner = np.random.default_rng(0).choice(total, count, replace=False)
    if count > 1:
        inner[:2] = 0, total - 1
    chosen = np.unique(inner)
    spare = np.setdiff1d(np.arange(min(total, 3 * count)), chosen)
    return np.sort(np.concatenate([chosen, spare[: count - chosen.size]]))


def _rows_on_host(one: Instance, per_row: int) -> int:
    updates = sum(amount for unit, amount in one.work.items() if unit.startswith("contract"))
    return int(min(HOST_ELEMENTS / per_row, HOST_UPDATES / max(updates, 1)))


def _elements(one: Instance) -> int:
    """Elements of all arrays that a computation of the graph forms."""
    computed = (
        node for node in topological(one.outputs) if node.op not in ("input", "view", "mul")
    )
    return sum(node.size for node in computed)  # views and products of a contraction are not formed


def measured_error(contender: Contender, expected: Reference, device: Device) -> float:
    """The error of what is timed, and of the public call where that is another path."""
    found = expected.error(contender.answer(), device)
    if contender.public is not None:
        found = max(found, expected.error(contender.public(), device))
    return found
