"""Measure the best few kernels of each region on the device, and keep the fastest.

A candidate whose results differ from those of the best predicted one is refused: prediction may
err, answers may not.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.cache import Cache, content_key
from eqsat.graph.dtypes import DType
from eqsat.kernel import Kernel
from eqsat.program import Backend, Launch

ROUNDS = 5
SAMPLED = 1 << 20  # random numbers drawn, and results compared, of an array


class TuneWarning(UserWarning):
    """A candidate kernel that was refused: its results differ, or it did not run."""


def fastest(launches: Sequence[Launch], backend: Backend, store: Cache) -> tuple[Launch, ...]:
    """The launches with the fastest of each one's kernels; what was measured is remembered."""
    chosen: dict[str, Launch] = {}
    result: list[Launch] = []
    for launch in launches:
        key = launch.kernel.fingerprint
        if key not in chosen:
            chosen[key] = _fastest(launch, backend, store)
        result.append(replace(chosen[key], buffers=launch.buffers))
    return tuple(result)


def _fastest(launch: Launch, backend: Backend, store: Cache) -> Launch:
    candidates = [
        launch,
        *(
            replace(launch, kernel=a.kernel, seconds=a.seconds, bottleneck=a.bottleneck)
            for a in launch.alternatives
        ),
    ]
    if len(candidates) == 1:
        return launch
    prints = [candidate.kernel.fingerprint for candidate in candidates]
    key = content_key("tuned", backend.device, *prints)
    known = store.get("tuned", key)
    if known is not None and known.get("winner") in prints:
        place = prints.index(known["winner"])
        return replace(candidates[place], measured=known["seconds"][place])
    arrays = _sample(launch.kernel, backend)
    expected = _run(candidates[0], arrays, backend)
    seconds = []
    for candidate in candidates:
        seconds.append(_seconds(candidate, arrays, expected, backend))
    place = int(np.argmin(seconds))
    record = [s if np.isfinite(s) else None for s in seconds]
    store.put("tuned", key, {"winner": prints[place], "seconds": record})
    return replace(candidates[place], measured=seconds[place])


def _sample(kernel: Kernel, backend: Backend) -> dict[str, Any]:
    """Device arrays for a kernel's inputs: normal floats, small non-negative integers."""
    generator = np.random.default_rng(0)
    arrays = {}
    for buffer in kernel.buffers:
        if buffer.role == "input" or buffer.name[0] in "xb":
            shape, dtype = buffer.shape, buffer.dtype
            few = min(buffer.size, SAMPLED)
            if dtype.kind == "float":
                values = generator.standard_normal(few, np.float32).astype(dtype.numpy)
            else:
                values = generator.integers(0, 2, few).astype(dtype.numpy)
            arrays[buffer.name] = backend.constant(np.resize(values, shape))
    return arrays


def _names(launch: Launch) -> Launch:
    """The launch over buffers named as the kernel's own parameters."""
    return replace(launch, buffers=tuple(buffer.name for buffer in launch.kernel.buffers))


def _outputs(kernel: Kernel, arrays: dict[str, Any], backend: Backend) -> dict[str, Any]:
    return {
        buffer.name: backend.empty(buffer.shape, buffer.dtype)
        for buffer in kernel.buffers
        if buffer.name not in arrays
    }


def _run(launch: Launch, arrays: dict[str, Any], backend: Backend) -> dict[str, np.ndarray]:
    outputs = _outputs(launch.kernel, arrays, backend)
    backend.prepare([_names(launch)])({**arrays, **outputs})
    dtypes = {buffer.name: buffer.dtype for buffer in launch.kernel.buffers}
    return {name: _host(array, backend, dtypes[name]) for name, array in outputs.items()}


def _host(array: Any, backend: Backend, dtype: DType) -> np.ndarray:
    given = np.asarray(backend.give(array, np.empty(0), dtype)).reshape(-1)
    given = given[:: max(1, given.size // SAMPLED)]
    return given.astype(np.float64) if dtype.kind == "float" else given


def _seconds(
    launch: Launch, arrays: dict[str, Any], expected: dict[str, np.ndarray], backend: Backend
) -> float:
    """Least seconds of a few runs; infinite for a candidate that is refused."""
    try:
        found = _run(launch, arrays, backend)
    except Exception as error:  # whatever a compiler or driver raises
        _refuse(launch, f"it does not run: {error}")
        return np.inf
    for name, values in found.items():
        scale = np.abs(expected[name]).max(initial=1.0)
        if not np.allclose(values, expected[name], rtol=2e-2, atol=2e-2 * scale, equal_nan=True):
            _refuse(launch, f"its {name} differs from that of the best predicted kernel")
            return np.inf
    outputs = _outputs(launch.kernel, arrays, backend)
    run = backend.prepare([_names(launch)])
    return min(backend.measure(run, {**arrays, **outputs}) for _ in range(ROUNDS))


def _refuse(launch: Launch, why: str) -> None:
    rules = ", ".join(launch.kernel.rules)
    warnings.warn(
        f"a candidate of {launch.kernel.name} ({rules}) is refused: {why}", TuneWarning, 3
    )
