"""What the assembler makes of kernels: it must not move reads ahead of what they wait for."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice

import pytest
from pipeline_cases import OPERATIONS, pipeline_cases
from prologue_cases import prologue_cases
from sass_products import before_launches, disassembled, touched_early

import eqsat.graph as eg
from eqsat import driver
from eqsat.codegen.cuda.emit import emit
from eqsat.codegen.cuda.run.compile import compile_cubin
from eqsat.graph import nn
from eqsat.graph.dtypes import bfloat16, float64
from eqsat.kernel.ir import Kernel
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")


def odd() -> eg.Tensor:
    return eg.input("a", (4095, 4099), bfloat16) @ eg.input("b", (4099, 4097), bfloat16)


def turned() -> eg.Tensor:
    """Rows of heads, as a transformer's projections leave them."""
    y = eg.input("x", (2048, 4096), bfloat16) @ eg.input("w", (4096, 4096), bfloat16)
    return eg.permute_dims(eg.reshape(y, (2048, 32, 128)), (1, 0, 2))


def few_rows() -> eg.Tensor:
    """The factors turned about: neighbouring registers lie in different rows of memory."""
    return eg.input("x", (16, 4096), bfloat16) @ eg.input("w", (4096, 4096), bfloat16)


def attention() -> eg.Tensor:
    q, k, v = (eg.input(name, (2, 8, 1024, 64), bfloat16) for name in "qkv")
    return nn.softmax((q @ eg.matrix_transpose(k)) * 0.125) @ v


def gathered() -> eg.Tensor:
    """The right factor lies across the sum: it goes through registers that products read."""
    return eg.input("a", (1024, 1024), eg.float32) @ eg.input("b", (1024, 1024), eg.float32)


def softmax() -> eg.Tensor:
    return nn.softmax(eg.input("x", (512, 1000), bfloat16))


def transposed() -> eg.Tensor:
    return eg.matrix_transpose(eg.input("x", (512, 1024), eg.float32))


def running() -> eg.Tensor:
    return eg.cumulative_sum(eg.input("x", (64, 4096), eg.float32), axis=1)


def counted() -> eg.Tensor:
    return eg.bincount(eg.input("x", (100000,), eg.int32), 64)


@cache
def gathering() -> Kernel:
    (launch,) = driver.plan([gathered()], load("h200"), precision="tf32").parts.launches
    return launch.kernel


def early(kernels: Iterator[Kernel]) -> dict[str, list[str]]:
    def of(kernel: Kernel) -> tuple[str, list[str]]:
        cubin = compile_cubin(emit(kernel, OPERATIONS).text, "sm_90a", kernel.rules)
        return kernel.name, touched_early(disassembled(cubin.data))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {name: found for name, found in pool.map(of, kernels) if found}


@pytest.mark.parametrize(
    "program",
    [turned, *(pytest.param(one, marks=pytest.mark.slow) for one in (attention, odd, few_rows))],
)
def test_planned_kernels_touch_no_accumulator_under_way(program):
    launches = driver.plan([program()], load("h200")).parts.launches
    kernels = [launch.kernel for launch in launches]
    assert any("wgmma" in emit(kernel, OPERATIONS).text for kernel in kernels)
    assert early(iter(kernels)) == {}


def test_gathered_factors_stay_until_their_products_are_done():
    assert "_held" in emit(gathering(), OPERATIONS).text
    assert early(iter([gathering()])) == {}


def test_between_products_a_gathered_factor_is_read_and_no_more():
    """Two rows of a step at once; where they lie is known before the products are done."""
    kernel = gathering()
    cubin = compile_cubin(emit(kernel, OPERATIONS).text, "sm_90a", kernel.rules)
    pauses = re.findall(
        r"DEPBAR\.LE gsb0, 0x[1-7] ;((?:(?!GMMA).)*LDS.*?)HGMMA", disassembled(cubin.data), re.S
    )
    assert pauses
    for pause in pauses:
        reads = re.findall(r"\bLDS\S*", pause)
        assert set(reads) == {"LDS.64"} and pause.count(" ;") < 10 * len(reads)


def test_the_loop_of_a_float64_product_reads_factors_and_multiplies():
    """What computes addresses fits between products, of which each takes 32 cycles of a warp."""
    product = eg.input("a", (2048, 2048), float64) @ eg.input("b", (2048, 2048), float64)
    (launch,) = driver.plan([product], load("h200")).parts.launches
    source = emit(launch.kernel, OPERATIONS)
    cubin = compile_cubin(source.text, "sm_90a", launch.kernel.rules)
    assert not cubin.spills and launch.kernel.phases[0].stages > 1
    body = re.search(r"[^\n]*DMMA.*DMMA[^\n]*", disassembled(cubin.data), re.S)
    used = Counter(re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ )?([A-Z]\w*)\S* ", body[0]))
    assert used["DMMA"] >= 64 and used["LDS"] <= 1.5 * used["DMMA"]
    assert sum(used.values()) - used["NOP"] <= 4 * used["DMMA"]


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_computed_factors_stay_until_their_products_are_done(every):
    assert early(c.kernel for c in islice(prologue_cases(), 0, None, every)) == {}


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_no_accumulator_is_touched_while_it_is_written(every):
    assert early(c.kernel for c in islice(pipeline_cases(), 0, None, every)) == {}


def test_the_check_sees_a_missing_wait():
    kernel = next(pipeline_cases()).kernel
    cubin = compile_cubin(emit(kernel, OPERATIONS).text, "sm_90a", kernel.rules)
    text = disassembled(cubin.data)
    last = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
    assert last in text and not touched_early(text)
    assert touched_early(text.replace(last, "NOP"))


def test_the_check_sees_a_factor_overwritten():
    kernel = gathering()
    cubin = compile_cubin(emit(kernel, OPERATIONS).text, "sm_90a", kernel.rules)
    text = disassembled(cubin.data)
    product = next(line for line in text.splitlines() if "HGMMA" in line and "gsb0" in line)
    factor = product.split("HGMMA")[1].split(", ")[1]
    again = product.split("HGMMA")[0] + f"LDS {factor}, [R1] ;"
    assert touched_early(text.replace(product, f"{product}\n{again}"))


@pytest.mark.parametrize(
    "program",
    [
        *(softmax, transposed, running),
        *(pytest.param(one, marks=pytest.mark.slow) for one in (odd, counted)),
    ],
)
def test_global_memory_waits_for_earlier_launches(program):
    for launch in driver.plan([program()], load("h200")).parts.launches:
        cubin = compile_cubin(emit(launch.kernel, OPERATIONS).text, "sm_90a", launch.kernel.rules)
        assert before_launches(disassembled(cubin.data)) == []
