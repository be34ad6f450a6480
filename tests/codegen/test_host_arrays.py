"""Callers' arrays on the host: torch's by their memory, and what has none there is refused."""

import numpy as np
import pytest

import eqsat
import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.host.arrays import as_numpy, given_back
from eqsat.errors import ArgumentError
from eqsat.graph.dtypes import DType, bfloat16, float8_e4m3fn, float8_e5m2, float16, float32
from eqsat.program import Program

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("shared_search")
NARROW = [float16, bfloat16, float8_e4m3fn, float8_e5m2]


def doubled(dtype: DType) -> Program:
    x = g.input("x", (3,), dtype)
    return eqsat.compile(x + x, cache=Cache(None))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_floats_of_torch_are_taken_written_and_given(dtype: DType) -> None:
    kind, program = getattr(torch, dtype.name), doubled(dtype)
    x = torch.tensor([1.0, -2.0, 0.5]).to(kind)
    expected = torch.tensor([2.0, -4.0, 1.0]).to(kind)
    out = torch.zeros(3).to(kind)
    assert program(x, out=out) is out
    apart = torch.stack([x, out], 1)[:, 0]
    jitted = eqsat.jit(lambda x: x + x, cache=Cache(None))
    for found in (out, program(x), program(apart), jitted(x)):
        assert found.dtype == kind
        assert found.float().tolist() == expected.float().tolist()


@pytest.mark.parametrize("dtype", [float32, *NARROW], ids=str)
def test_nothing_is_copied(dtype: DType) -> None:
    x = torch.ones((2, 3)).to(getattr(torch, dtype.name)).T
    array = as_numpy(x, "x")
    assert array.dtype == dtype.numpy and array.shape == (3, 2)
    assert array.__array_interface__["data"][0] == x.data_ptr()
    assert given_back(array, x).data_ptr() == x.data_ptr()


def test_another_dtype_is_named() -> None:
    x = torch.ones(3)
    with pytest.raises(ArgumentError, match=r"input 'x' is bfloat16; .* for float32\. Convert"):
        doubled(float32)(x.bfloat16())
    with pytest.raises(ArgumentError, match=r"out= is bfloat16\[3\]; .* float32\[3\]"):
        doubled(float32)(x, out=x.bfloat16())


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda x: x.to_sparse(), r"has the layout torch\.sparse_coo; .* Pass \.to_dense\(\)"),
        (lambda x: x.to("meta"), r"is on the device meta, .* Pass one that has some"),
        (lambda x: (x * 1j).conj(), r"is conjugated only when read; .* Pass \.resolve_conj\(\)"),
        (torch._neg_view, r"is negated only when read; .* Pass \.resolve_neg\(\)"),
        (lambda x: x.to(torch.complex32), r"dtype torch\.complex32 gives NumPy no memory"),
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_what_has_no_elements_in_memory_is_refused(made, message: str) -> None:
    x = torch.ones(3)
    with pytest.raises(ArgumentError, match=f"input 'x' .*{message}"):
        doubled(float32)(made(x))
    with pytest.raises(ArgumentError, match=f"out= .*{message}"):
        doubled(float32)(x, out=made(x))


class Foreign:
    """An array of another package, whose memory NumPy cannot reach."""

    shape, dtype = (3,), "float32"

    def __dlpack__(self, **options: object) -> object:
        raise BufferError("the memory is elsewhere")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_an_array_without_memory_here_is_named() -> None:
    message = r"of type Foreign and dtype float32 .*: the memory is elsewhere\. Pass a NumPy array"
    with pytest.raises(ArgumentError, match=message):
        doubled(float32)(Foreign())


def test_a_parameter_of_a_module_gives_a_tensor() -> None:
    found = doubled(float32)(torch.nn.Parameter(torch.ones(3)))
    assert type(found) is torch.Tensor and found.tolist() == [2, 2, 2]
    assert np.array_equal(doubled(float32)(np.ones(3, np.float32)), [2, 2, 2])
