"""Tensors of torch go into programs on the GPU, and come out, whichever stream is torch's."""

import pytest

import eqsat
from eqsat.codegen.cuda.run import arrays as cuda_arrays

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


def test_a_graph_of_torch_takes_programs():
    """Of several kernels, with temporaries that no other call writes to."""
    x = eqsat.input("x", (512, 512))
    y = eqsat.input("y", (512, 512))
    program = eqsat.compile(eqsat.softmax(x @ y, axis=0) @ x, eqsat.specs.from_device())
    assert len(program.kernels) > 1
    given = [torch.randn(512, 512, device="cuda") for _ in range(4)]
    wanted = program(*given[:2])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = program(*given[:2])
        second = program(first, given[1])
    wanted_second = program(wanted, given[1])
    for _ in range(3):
        first.zero_()
        second.zero_()
        graph.replay()
        with torch.cuda.stream(torch.cuda.Stream()):
            program(*given[2:])
        torch.cuda.synchronize()
        assert torch.equal(first, wanted) and torch.equal(second, wanted_second)


def test_calls_on_several_streams_do_not_meet():
    x = eqsat.input("x", (1024, 1024))
    program = eqsat.compile(eqsat.softmax(eqsat.tanh(x @ x) @ x, axis=0), eqsat.specs.from_device())
    given = [torch.randn(1024, 1024, device="cuda") / 32 for _ in range(4)]
    wanted = [program(one) for one in given]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in given]
    results = []
    for _ in range(8):
        for stream, one in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                results.append(program(one))
    torch.cuda.synchronize()
    for number, result in enumerate(results):
        assert torch.equal(result, wanted[number % 4])


def test_a_capture_refuses_a_call_that_waits():
    x = eqsat.input("x", (300, 1 << 17))
    program = eqsat.compile(eqsat.sort(x), eqsat.specs.from_device())
    given = torch.randn(300, 1 << 17, device="cuda")
    program(given)
    refused = pytest.raises(eqsat.EqsatError, match="stream capture")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.neg(given)
        with refused:
            program(given)
    program(given)
