"""Everything emitted compiles for sm_80 and sm_90a without spills; errors say what to do."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from cuda_cases import BF16, all_cases, case, elementwise_cases, flash, matrix_cases, product
from float64_cases import M8, M16, early_cases, hopper_cases
from kernel_products import matmul
from kernels import SAMPLES

from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run import compile as cuda_compile
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.errors import CompileError, UnsupportedError
from eqsat.graph.dtypes import bfloat16, float64

ARCHS = ("sm_80", "sm_90a")


def spread(cases: list, count: int) -> list:
    """`count` of the cases, evenly spread."""
    return cases[:: max(1, -(-len(cases) // count))]


def assert_no_spills(cases: list, archs: tuple[str, ...] = ARCHS) -> None:
    def build(item):
        (case, arch) = item
        return case.name, arch, compile_cubin(emit(case.kernel).text, arch, case.kernel.rules)

    pairs = [(case, arch) for case in cases for arch in archs]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = list(pool.map(build, pairs))
    spilled = [(name, arch, cubin.log) for name, arch, cubin in cubins if cubin.spills]
    assert not spilled, spilled
    assert all(cubin.data[:4] == b"\x7fELF" and cubin.registers for _, _, cubin in cubins)


def test_a_sample_of_all_kernels_compiles_without_spills():
    """Each for one architecture, by turns."""
    sample = [*spread(all_cases(), 20), *elementwise_cases()]
    for turn, arch in enumerate(ARCHS):
        assert_no_spills(sample[turn::2], (arch,))


@pytest.mark.slow
def test_all_kernels_compile_without_spills():
    assert_no_spills(all_cases())


@pytest.mark.slow
def test_all_products_of_float64_compile_without_spills():
    assert_no_spills([*early_cases()])
    assert_no_spills([*hopper_cases()], ARCHS[-1:])


def test_products_of_float64_compile_without_spills():
    early = spread([*early_cases()], 4)
    for turn, arch in enumerate(ARCHS):
        assert_no_spills(early[turn::2], (arch,))
    assert_no_spills(spread([*hopper_cases()], 8), ARCHS[-1:])


@pytest.mark.parametrize("operation", M16)
def test_a_large_product_of_float64_keeps_its_registers(operation):
    sample = product((256, 256, 64), (128, 128, 16), float64, float64, operation)
    source = emit(case("large", sample, 256, 3).kernel)
    assert "copy_async<16>" in source.text and "load_matrix" not in source.text
    assert "round_fragment" not in source.text
    cubin = compile_cubin(source.text, "sm_90a")
    assert cubin.registers <= 255 and not cubin.spills


def test_eight_rows_at_a_time_make_a_fragment():
    """Rows lane/4 and then lane/4 + 8, each with its own results."""
    sample = product((32, 32, 16), (32, 32, 16), float64, float64, M8)
    lines = emit(case("halves", sample).kernel).text.splitlines()
    first = next(n for n, line in enumerate(lines) if "asm(" in line and "m8n8k4" in line)
    form = "{%0, %1}, {%2}, {%3}, {%0, %1};"
    assert [line.strip() for line in lines[first : first + 6]] == [
        line
        for part in (0, 1)
        for line in (
            f'asm("{M8}.f64.f64.f64.f64 {form}"',
            f': "+d"(d{2 * part}), "+d"(d{2 * part + 1})',
            f': "d"(a[{part}]), "d"(b[0]));',
        )
    ]


@pytest.mark.parametrize("transposed", [False, True])
def test_half_a_warp_reads_float64_from_different_banks(transposed):
    """Sixteen lanes at a time: four rows of one factor, each at four k."""
    sample = product((128, 128, 32), (128, 128, 16), float64, float64, M16[1], transposed)
    text = emit(case("banks", sample, 256).kernel).text
    for side in ("left", "right"):
        (place,) = re.findall(rf"{side}\[block(?: \+ 0)?\]\[0\] = \w+\[(.*)\];", text)
        for half in (range(16), range(16, 32)):
            where = {"block": 0, "step": 0, "warp_i": 0, "warp_j": 0}
            banks = {eval(place.replace("/", "//"), {**where, "lane": n}) % 16 for n in half}
            assert len(banks) == 16, place


def test_a_large_matrix_product_keeps_its_registers():
    sample = matmul(1024, 1024, 1024, (128, 128, 32), bfloat16, BF16)
    source = emit(case("large", sample, 256, 3).kernel)
    assert source.grid == 64 and source.shared_bytes == 56832
    assert "copy_async<16>" in source.text and "load_matrix_x4_transposed" in source.text
    for arch in ARCHS:
        cubin = compile_cubin(source.text, arch)
        assert cubin.registers <= 128 and not cubin.spills and not cubin.shared_bytes


def test_attention_feeds_the_second_product_from_registers():
    source = emit(case("flash", flash(64, 64, 64, (64, 64, 1)), 128, 2).kernel)
    assert "pack_bfloat16" in source.text and "staged" not in source.text


def test_names_reach_the_source_only_as_identifiers():
    kernel = case("plain", SAMPLES["row_reduce"](8, 8, 8)).kernel
    nasty = 'x\n*/ int y; // \\\n"'
    source = emit(replace(kernel, name=nasty, spec=nasty, rules=(nasty,))).text
    code = re.sub(r"//.*", "", source)
    assert "int y" in source and "int y" not in code and "*/" not in code
    assert "\\" not in source.split("template")[0]
    compile_cubin(source, "sm_80")


@pytest.mark.parametrize("times", [2, pytest.param(3, marks=pytest.mark.gpu)])
def test_what_was_compiled_before_is_told_of_as_well(times):
    """Beside a driver NVRTC keeps results of its own, and says nothing more about them."""
    source = emit(case("flash", flash(64, 64, 64, (64, 64, 1)), 128, 2).kernel).text
    cubins = [compile_cubin(source, "sm_90a") for _ in range(times)]
    assert len({cubin.registers for cubin in cubins}) == 1 and cubins[0].registers > 0


def test_a_compile_failure_shows_lines_log_and_rules():
    with pytest.raises(CompileError) as caught:
        compile_cubin("__global__ void f() {\n    oops;\n}", "sm_80", ("fuse", "tile"))
    text = str(caught.value)
    assert "2 |     oops;" in text and 'identifier "oops"' in text and "fuse, tile" in text


def test_without_the_library_the_error_names_the_extra(monkeypatch):
    cuda_compile._library.cache_clear()
    monkeypatch.setattr(cuda_compile, "_candidates", lambda: iter(()))
    with pytest.raises(UnsupportedError, match=r"pip install 'eqsat\[cuda13\]'"):
        compile_cubin("", "sm_80")
    cuda_compile._library.cache_clear()


REFUSED = {
    "threads": (
        lambda: case("k", SAMPLES["row_reduce"](8, 8, 8), 1).kernel,
        "blocks of 1 threads; the CUDA target takes multiples of 32 up to 1024",
    ),
    "library call": (
        lambda: case("k", SAMPLES["matmul_blas"](8, 8, 8)).kernel,
        "cannot emit the operation 'cblas_gemm' for factors of float32",
    ),
    "wrong dtype": (
        lambda: case("k", matmul(8, 8, 8, operation="mma.sync.aligned.m16n8k32.row.col")).kernel,
        "for factors of float32 and float32 and a float32 result. For such factors it has:",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_target_cannot_express_is_refused(name):
    build, message = REFUSED[name]
    with pytest.raises(UnsupportedError) as caught:
        emit(build())
    assert message in str(caught.value)


def test_matrix_cases_use_their_instructions():
    for c in matrix_cases():
        assert ("mma_sync_aligned" in emit(c.kernel).text) != ("scalar" in c.name), c.name
