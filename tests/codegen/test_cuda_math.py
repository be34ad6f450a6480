"""Device functions of the CUDA target that approximate, against SciPy."""

import numpy as np
import pytest
from cuda_cases import case
from cuda_emulation import COMPILER, Emulator
from kernel_building import Body, Sample, at, buffers
from sass_products import disassembled

from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.prelude.functions import LOG2_ERFC
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.graph.dtypes import BY_NAME
from eqsat.kernel.ir import Axis, Kernel, Store

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40]
ERROR = {"float32": 1.6e-7, "float64": 5e-16}


def applied(op: str, x: np.ndarray) -> Kernel:
    """An elementwise operation on a whole array."""
    dtype = BY_NAME[x.dtype.name]
    source, target = buffers(dtype, x=x.shape, y=x.shape)
    b = Body(dtype)
    b.load("a", "i", at(source, "i"))
    b.map("b", "i", op, "a")
    phases = (b.phase(Store(at(target, "i"), "b")),)
    kernel = Kernel(op, (source, target), (Axis("i", x.size, 1024),), (), phases)
    return case(op, Sample(kernel, {"x": x}, {}), threads=128).kernel


def points(dtype: str) -> np.ndarray:
    near, far = np.linspace(-12, 12, 200_001), np.geomspace(1e-30, 3e38, 5_000)
    return np.concatenate([near, far, -far, SPECIAL]).astype(dtype)


@pytest.mark.parametrize("dtype", ERROR)
def test_one_plus_erf(dtype, tmp_path):
    from scipy.special import erfc

    if COMPILER is None:
        pytest.skip("no g++ on this machine")
    x = points(dtype)
    kernel = applied("one_plus_erf", x)
    found = {"x": x, "y": np.full_like(x, 77)}
    Emulator([kernel], [emit(kernel)], tmp_path).run(0, found)
    y = found["y"].astype(np.float64)
    expected = erfc(-x.astype(np.float64))
    known = ~np.isnan(x)
    assert np.isnan(y[~known]).all()
    assert np.abs(y - expected)[known].max() < ERROR[dtype]
    assert (y[x == -np.inf] == 0).all() and (y[x == np.inf] == 2).all() and (y[x == 0] == 1).all()
    assert (y[x < -30] == 0).all() and (y[known] >= 0).all()
    near = (x >= -4) & (x <= 0)
    assert np.abs(y[near] / expected[near] - 1).max() < 1e-2


def test_the_exponent_of_one_plus_erf_falls():
    """Also beyond where it was fitted, so that nothing large comes back."""
    power = np.polynomial.Polynomial([0, *LOG2_ERFC])
    roots = power.deriv().roots()
    assert not any(abs(r.imag) < 1e-9 and r.real > 0 for r in roots)
    assert LOG2_ERFC[-1] < 0 and LOG2_ERFC[0] < 0


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_one_plus_erf_takes_no_branch(architecture):
    kernel = applied("one_plus_erf", np.zeros(1024, np.float32))
    text = disassembled(compile_cubin(emit(kernel).text, architecture).data)
    assert text.count("MUFU.EX2") == 8 and text.count("FFMA") == 8 * 7
    assert text.count("FSEL") == 0 and text.count("BRA") == 1  # that after the end
