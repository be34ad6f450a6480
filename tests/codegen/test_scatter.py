"""Values combined in memory on every target: the oracle, Numba with several threads, CUDA."""

from dataclasses import replace

import pytest
from cuda_emulation import COMPILER, Emulator
from kernel_building import arrays, check
from scatter_cases import kept, scatter_samples, segments

from eqsat.cache.kernel_json import decode, encode
from eqsat.codegen import oracle
from eqsat.codegen.cpu import target as numba_target
from eqsat.codegen.cuda import emit as cuda_emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import as_dtype
from eqsat.kernel.ir import check as well_formed
from eqsat.kernel.text import show

SAMPLES = dict(scatter_samples())
CUDA = {**SAMPLES, **{f"{name}-kept": kept(sample) for name, sample in SAMPLES.items()}}
CUDA["counts-alone-kept"] = kept(SAMPLES["counts"], "c")


@pytest.mark.parametrize("name", SAMPLES)
def test_oracle(name):
    sample = SAMPLES[name]
    well_formed(sample.kernel)
    found = arrays(sample)
    oracle.run(sample.kernel, found)
    check(sample, found)


@pytest.mark.parametrize("name", ["sum-float32", "sum-int64-same", "max-float64", "min-int32"])
def test_numba(name, tmp_path_factory):
    sample = SAMPLES[name]
    found = arrays(sample)
    folder = tmp_path_factory.getbasetemp() / "numba"
    numba_target.load(sample.kernel, folder)([found[b.name] for b in sample.kernel.buffers])
    check(sample, found)


@pytest.mark.parametrize("monoid", ["sum", "max"])
def test_several_threads_combine_in_copies(monoid, tmp_path, monkeypatch):
    monkeypatch.setattr(numba_target, "_POINTS_WORTH_A_THREAD", 1)
    monkeypatch.setenv("EQSAT_NUM_THREADS", "3")
    sample = segments(3000, 2, 10, (7, 2), monoid)
    run = numba_target.load(sample.kernel, tmp_path)
    results = []
    for _ in range(4):
        found = arrays(sample)
        run([found[b.name] for b in sample.kernel.buffers])
        check(sample, found)
        results.append(found["y"].tobytes())
    assert len(set(results)) == 1


def test_copies_are_made_only_where_they_are_few():
    assert numba_target._worth_copies(segments(3000, 2, 10, (7, 2)).kernel, 4)
    assert not numba_target._worth_copies(segments(300, 2, 100, (7, 2)).kernel, 4)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no g++ on this machine")
    kernels = [replace(sample.kernel, threads=64) for sample in CUDA.values()]
    sources = [cuda_emit.emit(kernel) for kernel in kernels]
    return Emulator(kernels, sources, tmp_path_factory.mktemp("scatter"))


@pytest.mark.parametrize("name", CUDA)
def test_cuda_emulated(emulator, name):
    found = arrays(CUDA[name])
    emulator.run(list(CUDA).index(name), found, blocks=2)
    check(CUDA[name], found)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_cuda_compiles(arch):
    for name in (
        "sum-float32",
        "sum-int64-same",
        "max-float64-kept",
        "min-float32",
        "max-int64-kept",
        "min-int32",
        "wide",
        "wide-kept",
        "counts-kept",
        "counts-alone-kept",
    ):
        source = cuda_emit.emit(replace(CUDA[name].kernel, threads=128))
        built = compile_cubin(source.text, arch)
        assert built.data


def test_neighbouring_sums_are_one_operation():
    text = cuda_emit.emit(replace(SAMPLES["wide"].kernel, threads=64)).text
    assert "combine_sum_4(p_y" in text
    assert "combine_sum_4" not in cuda_emit.emit(replace(CUDA["wide-kept"].kernel, threads=64)).text


def test_lanes_combine_side_by_side_in_shared_memory():
    """Four elements of one thread would be in the way of those of seven other lanes."""
    widths = {}
    for name in ("wide", "wide-kept"):
        kernel = replace(CUDA[name].kernel, threads=64)
        widths[name] = cuda_emit.choose(kernel)[1].vector("d")
    assert widths == {"wide": 4, "wide-kept": 1}


def test_lanes_that_hold_the_same_points_combine_another_each():
    """Counts beside rows: the lanes of a row know where it belongs, and one of them adds."""
    text = cuda_emit.emit(replace(CUDA["counts-kept"].kernel, threads=64)).text
    assert "number++ == lane" in text and "combine_sum(own_c + place, own);" in text
    assert "number++" not in cuda_emit.emit(replace(CUDA["counts"].kernel, threads=64)).text


def test_blocks_that_stay_join_from_places_of_their_own():
    text = cuda_emit.emit(replace(CUDA["many-kept"].kernel, threads=64)).text
    assert "const int first = int((long long)(480) * blockIdx.x / gridDim.x) / 32 * 32;" in text


def test_what_cuda_cannot_combine_is_refused():
    sample = segments(9, 1, 4, (9, 1), "max", as_dtype("float16"))
    with pytest.raises(UnsupportedError, match="combines float16 values by max"):
        cuda_emit.emit(replace(sample.kernel, threads=64))


def test_text_and_json():
    kernel = CUDA["max-float32-kept"].kernel
    assert "store y[d + 3*place] max= a in shared" in show(kernel)
    assert decode(encode(kernel)) == kernel
