"""On which stream a call runs, and which calls run one after another: those of one lane."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from eqsat.program import Lane

from .arrays import library_of, stream_of_torch
from .launch import done, import_cupy


@contextmanager
def on_stream_of(values: Sequence[Any]) -> Iterator[Lane]:
    """Within it CuPy's current stream is torch's, if a value is a tensor of torch on a GPU and the
    caller has set no stream of CuPy's.
    """
    cuda = import_cupy().cuda
    current = cuda.get_current_stream()
    wanted = 0
    if not current.ptr:
        given = (v for v in values if library_of(v) == "torch" and v.is_cuda)
        wanted = next((stream_of_torch(tensor.device.index) for tensor in given), 0)
    if not wanted:
        yield lane(current)
        return
    with _external(wanted) as stream:
        yield lane(stream)


def lane(stream: Any) -> Lane:
    """The lane of a stream of CuPy's, with the number of the capture that it is in."""
    if not is_capturing(stream):
        return Lane(stream.ptr)
    from cuda.bindings import driver

    status, _, number, *_ = driver.cuStreamGetCaptureInfo(driver.CUstream(stream.ptr))
    return Lane(stream.ptr, int(done((status, number))))


def is_capturing(stream: Any = None) -> bool:
    """Whether a stream of CuPy's, the current one unless said, records what it is told."""
    stream = stream or import_cupy().cuda.get_current_stream()
    return bool(stream.ptr) and stream.is_capturing()


class _Lent:
    """A stream that another library owns, as CUDA's protocol gives streams away."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def _external(address: int) -> Any:
    cuda = import_cupy().cuda
    if hasattr(cuda.Stream, "from_external"):
        return cuda.Stream.from_external(_Lent(address))
    return cuda.ExternalStream(address)
