"""The CUDA source of whole programs compiles without a GPU, and no thread spills registers."""

import pytest

from eqsat.codegen import cuda_compile, cuda_emit
from eqsat.codegen.cuda_fit import misfit
from eqsat.codegen.targets import TARGETS
from eqsat.driver import default_rules
from eqsat.fold import settle
from eqsat.rules.kernels import substitutions
from eqsat.saturate import Limits, SearchWorker
from eqsat.schedule import Search
from eqsat.segments import partition
from eqsat.solve import solve
from eqsat.specs import load

from .programs import PROGRAMS

SAMPLE = [name for i, name in enumerate(PROGRAMS) if i % 4 == 0 or "-" not in name]


@pytest.fixture(scope="module")
def worker():
    with SearchWorker() as shared:
        yield shared


def compile_for(name, device, worker):
    unit = load(device)
    rules = default_rules() + substitutions(unit, TARGETS["cuda"].operations)
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
