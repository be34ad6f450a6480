"""The CUDA source of whole programs compiles without a GPU, and no thread spills registers."""

import shutil

import numpy as np
import pytest

import eqsat.graph as G
from eqsat.cache.store import Cache
from eqsat.codegen.cuda import emit as cuda_emit
from eqsat.codegen.cuda.fit import misfit
from eqsat.codegen.cuda.run import compile as cuda_compile
from eqsat.codegen.cuda.run.backend import CudaBackend
from eqsat.codegen.cuda.run.target import missing
from eqsat.codegen.targets import TARGETS
from eqsat.driver import compile, default_rules, plan
from eqsat.errors import UnsupportedError
from eqsat.rule import allowed
from eqsat.rules.substitution import substitutions
from eqsat.saturate.saturation import Limits, SearchWorker
from eqsat.schedule.scheduling import Search
from eqsat.segment.fold import settle
from eqsat.segment.segments import partition
from eqsat.solve import solve
from eqsat.specs import load

from .programs import PROGRAMS, tensor

SLOW = {
    "reassociated",
    "eight_bits",
    "in_parts",
    "pages",
    "several_kernels",
    "rows-33x4097-float32",
    "convolution",
    "views",
    "integers-int32",
    "matmul-128x128x512-float64",
    "attention-float32",
    "gradient_of_weights",
    "gradients_of_convolutions",
    "last_tiles_in_parts",
    "sums_of_products",
    "at_positions",
    "eight_bit_integers",
    "recurrence_in_parts",
    "distances",
    "pieces_side_by_side",
    "eight_bit_cache-300",
    "grouped_and_transposed",
}
SAMPLE = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
    for i, name in enumerate(PROGRAMS)
    if i % 4 == 0 or "-" not in name
]


@pytest.fixture(scope="module")
def worker():
    with SearchWorker() as shared:
        yield shared


def compile_for(name, device, worker):
    unit = load(device)
    cuda = TARGETS["cuda"]
    rules = default_rules() + substitutions(unit, cuda.operations, cuda.splits)
    rules = allowed(rules, "default")
    search = Search(rules, unit, TARGETS["cuda"].operations, worker, Limits(), misfit)
    operations = {operation.name: operation for operation in unit.operations}
    for segment in partition([t for t in settle(PROGRAMS[name]()) if t.size]):
        for predicted in solve(segment, search).kernels:
            source = cuda_emit.emit(predicted.kernel, operations)
            cubin = cuda_compile.compile_cubin(source.text, unit.architecture)
            assert cubin.spills == 0, source.text


@pytest.mark.parametrize("name", SAMPLE)
def test_compiles_for_hopper(name, worker):
    compile_for(name, "h200", worker)


@pytest.mark.parametrize("name", SAMPLE[::3])
def test_compiles_for_ampere(name, worker):
    compile_for(name, "a100", worker)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["h200", "a100", "example_cuda"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiles_for_every_device(name, device, worker):
    compile_for(name, device, worker)


def test_ptx_and_machine_code_are_shown_without_a_gpu():
    unit = load("h200")
    a, b = (tensor(name, 2048, 2048, dtype="bfloat16") for name in "ab")
    (launch,) = plan(a @ b, unit, cache=Cache(None)).parts.launches
    backend = CudaBackend(unit, None)
    assert "wgmma.mma_async.sync.aligned.m64n" in backend.ptx(launch.kernel)
    if shutil.which("nvdisasm") is not None:
        assert "HGMMA.64x" in backend.sass(launch.kernel)


def test_a_program_of_the_host_has_no_ptx():
    program = compile(tensor("x", 8) * 2.0, cache=Cache(None))
    for show in (program.ptx, program.sass):
        with pytest.raises(UnsupportedError, match="runs on the host"):
            show()


@pytest.mark.skipif(not missing(), reason="a GPU is here")
def test_a_program_for_a_gpu_is_read_without_one_and_refuses_to_run():
    program = compile(tensor("x", 64) * G.constant(2.0), "h200", cache=Cache(None))
    assert "__global__" in program.source() and program.cost > 0
    with pytest.raises(UnsupportedError, match="running CUDA kernels needs"):
        program(np.ones(64, np.float32))
