"""What is copied of tiles that reach beyond a tensor; answers are tested where products are."""

import re

import pytest
from cuda_cases import case
from multicast_cases import shared
from pipeline_cases import OPERATIONS, attention, gemm

from eqsat.codegen.cuda.emit import emit
from eqsat.kernel.ir import Kernel


def copied(kernel: Kernel) -> tuple[str, list[tuple[int, ...]], list[str]]:
    """What a slot expects, the boxes of the maps, and the lines that copy."""
    source = emit(kernel, OPERATIONS)
    boxes = [tuple(d.box for d in box.dimensions) for box in source.maps]
    expected = re.search(r"barrier_expect\([^,]*, (.*)\);", source.text)
    assert expected
    body = source.text.partition('extern "C"')[2]
    return expected[1], boxes, re.findall(r"(.*\n)\s*copy_box", body)


@pytest.mark.parametrize(
    ("m", "expected", "boxes"),
    [
        (128, "8192", [(32, 64), (32, 64)]),
        (150, "(tile_i == 128 ? 1408 : 4096) + 4096", [(32, 64), (32, 64), (32, 22)]),
        (40, "(0 == 0 ? 2560 : 4096) + 4096", [(32, 64), (32, 64), (32, 40)]),
    ],
)
def test_rows_beyond_the_tensor_are_not_copied(m, expected, boxes):
    found = copied(case("rows", gemm(m, 128, 96, (64, 64, 32), 64, "nt"), 128, 2).kernel)
    assert found[:2] == (expected, boxes)


@pytest.mark.parametrize(
    ("m", "conditions"),
    [
        (168, ["tile_i != 128 || rank < 0", "rank == 0"]),
        (200, ["tile_i != 128 || rank < 1", "rank == 1"]),
        (192, ["tile_i != 128 || rank < 1"]),
    ],
)
def test_each_block_copies_what_is_left_of_its_slice(m, conditions):
    sample = gemm(m, 256, 72, (128, 64, 32), 64, "nt")
    _, _, lines = copied(shared(case("slices", sample, 128, 2), 2).kernel)
    assert [
        found[1] for line in lines if (found := re.search(r"if \((.*)\) {", line))
    ] == conditions


def test_parts_that_begin_beyond_the_tensor_are_not_copied():
    sample = gemm(64, 296, 72, (64, 256, 64), 256, "nn")
    text = emit(case("parts", sample, 128, 2).kernel, OPERATIONS).text
    assert "(tile_j == 256 ? 8192 : 32768) + 8192" in text
    assert text.count("if (tile_j != 256) copy_box_2d") == 3


def test_what_is_summed_ends_in_zeros():
    """Keys beyond the last one, and terms of a sum: their rows are copied, as zeros."""
    source = emit(case("keys", attention(64, 77, 64, (64, 32)), 128, 2).kernel, OPERATIONS)
    assert not [name for name in re.findall(r"TensorMap (\w+)", source.text) if "edge" in name]
