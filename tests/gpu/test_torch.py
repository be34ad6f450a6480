"""Tensors of torch go into programs on the GPU, and come out, whichever stream is torch's."""

import pytest

import eqsat
from eqsat.codegen import cuda_arrays

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

SHAPE = (48, 80)
DTYPES = ["float32", "bfloat16", "float16", "float64", "int64", "int8"]


@pytest.fixture(scope="module", params=DTYPES)
def doubled(request):
    x = eqsat.input("x", SHAPE, request.param)
    program = eqsat.compile(x + x, eqsat.specs.from_device())
    assert program.arguments[0].shape == SHAPE
    return program, getattr(torch, request.param)


def drawn(dtype, *shape):
    return torch.randint(-9, 10, shape, device="cuda").to(dtype)


def check(result, x):
    assert result.dtype == x.dtype and result.device == x.device
    assert torch.equal(result, x + x)


def test_a_tensor_of_the_device(doubled):
    program, dtype = doubled
    x = drawn(dtype, *SHAPE)
    check(program(x), x)
    kept = torch.empty_like(x)
    assert program(x, out=kept) is kept
    check(kept, x)


def test_memory_is_lent_not_copied(doubled):
    _, dtype = doubled
    x = drawn(dtype, *SHAPE)
    array = cuda_arrays.as_cupy(x, "x")
    assert array.data.ptr == x.data_ptr() and array.shape == SHAPE


def test_tensors_that_lie_otherwise(doubled):
    program, dtype = doubled
    for x in (
        drawn(dtype, *SHAPE[::-1]).T,
        drawn(dtype, SHAPE[0], 2 * SHAPE[1])[:, ::2],
        drawn(dtype, SHAPE[0] * SHAPE[1] + 1)[1:].view(SHAPE),  # off a unit of 16 bytes
    ):
        check(program(x), x)


def test_a_tensor_with_a_gradient(doubled):
    program, dtype = doubled
    if dtype.is_floating_point:
        x = drawn(dtype, *SHAPE).requires_grad_()
        result = program(x)
        assert not result.requires_grad
        check(result, x.detach())


def test_a_stream_of_torch(doubled):
    """What torch's stream still computes is waited for, and what follows waits for the result."""
    program, dtype = doubled
    busy = torch.randn(2048, 2048, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(8):
        with torch.cuda.stream(stream):
            for _ in range(8):
                busy = busy @ busy * 1e-3
            x = drawn(dtype, *SHAPE)
            result = program(x)
            follows = result + 0
        stream.synchronize()
        check(follows, x)


def test_results_stay_when_more_are_made(doubled):
    program, dtype = doubled
    given = [drawn(dtype, *SHAPE) for _ in range(5)]
    results = [program(x) for x in given]
    for x, result in zip(given, results, strict=True):
        check(result, x)


def test_a_tensor_of_the_host(doubled):
    program, dtype = doubled
    x = drawn(dtype, *SHAPE).cpu()
    check(program(x).cpu(), x)
