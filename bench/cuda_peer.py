"""torch on the GPU: its view of our arrays, its captured graph, its float64."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from eqsat.bench.case import Case, Instance, input_axis, instance, row_axes
from eqsat.bench.check import error
from eqsat.bench.peer_functions import torch_function
from eqsat.nesting import flatten

WARM_UPS = 3


def as_tensor(array: Any, dtype: str) -> Any:
    """A CuPy array as a torch tensor of the same memory; narrow floats from their bits."""
    import torch

    wanted = getattr(torch, dtype)
    if array.dtype == np.uint16:
        array = array.view(np.int16)
    return torch.from_dlpack(array).view(wanted)


def capture_torch(
    function: Callable[..., Any], sets: Sequence[tuple[Any, ...]], calls: int, stream: int
) -> tuple[Callable[[], None], list[Any]]:
    """Calls over the rotated inputs as a CUDA graph: what replays it, and the first set's results.

    The results of one call for each set stay alive, so that every set has memory of its own, as on
    our side. ValueError for a function that gives a view of an input.
    """
    import torch

    with torch.no_grad(), _backends():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                results = flatten(function(*sets[0]))
        torch.cuda.synchronize()
        lent = {tensor.untyped_storage().data_ptr() for tensor in sets[0]}
        if any(result.untyped_storage().data_ptr() in lent for result in results):
            raise ValueError("the peer gives a view of an input; it must compute")
        del results
        graph, kept = torch.cuda.CUDAGraph(), [[] for _ in sets]
        with torch.cuda.graph(graph, stream=side):
            for call in range(calls):
                kept[call % len(sets)] = flatten(function(*sets[call % len(sets)]))
    on = torch.cuda.ExternalStream(stream)

    def replay() -> None:
        with torch.cuda.stream(on):
            graph.replay()

    replay.kept = kept  # type: ignore[attr-defined]  # the graph writes to them as long as it lives
    return replay, kept[0]


def _backends() -> AbstractContextManager[Any]:
    """torch's attention backends with the fastest one first; cuDNN's search for convolutions."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.backends.cudnn.benchmark = True
    order = [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    return sdpa_kernel(order, set_priority=True)


def whole_error(
    whole: Instance, inputs: Sequence[Any], outputs: Sequence[Any], chunk: int
) -> float:
    """The error of every row against the row's function in float64, `chunk` rows at a time."""
    import torch

    case, rows = whole.case, whole.case.rows
    function = torch_function(case, compiled=False)
    total = whole.sizes[rows] if rows else 1
    step = min(total, chunk) if rows else 1
    axes = _axes(case, whole) if rows else [None] * len(outputs)
    worst = 0.0
    with torch.no_grad():
        for start in range(0, total, step):
            stop = min(total, start + step)
            wide = [
                _part(tensor, input_axis(one, rows) if rows else None, start, stop)
                for tensor, one in zip(inputs, case.inputs.values(), strict=True)
            ]
            wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in wide]
            expected = flatten(function(*wide))
            for output, axis, value in zip(outputs, axes, expected, strict=True):
                found = _part(output, axis, start, stop)
                worst = max(worst, error(found.double(), value.double()))
    return worst


def _axes(case: Case, whole: Instance) -> list[int | None]:
    other = instance(case, {**whole.sizes, case.rows: whole.sizes[case.rows] + 1})
    return row_axes(case, whole, other)


def _part(tensor: Any, axis: int | None, start: int, stop: int) -> Any:
    return tensor if axis is None else tensor.narrow(axis, start, stop - start)
