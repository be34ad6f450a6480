"""Factors that a kernel of its own copies, or splits into terms, for the one that multiplies them.

Programs are planned for a device on which nothing but the operations of a warpgroup is fast, and
run on the tile interpreter; what is planned for the real one is looked at.
"""

import json
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from fast_products import FAST, H200, fast, normal, planned, run
from terms import Terms, mul, universe

import eqsat.graph as g
from eqsat.errors import TraceError
from eqsat.explain.explanation import from_json, to_json
from eqsat.explain.replay import check as check_trace
from eqsat.graph.dtypes import as_dtype, bfloat16
from eqsat.kernel.ir import Contract
from eqsat.layout.prepare import Preparation, preparations, used
from eqsat.terms.algebra import Facts, Read
from eqsat.terms.form import Form, Stored, form

pytestmark = pytest.mark.usefixtures("shared_search")

WIDENED = {"bfloat16": "float32", "float16": "float32", "int8": "int32"}


KINDS = {
    "bfloat16": "bf16",
    "float16": "f16",
    "int8": "i8",
    "float32": "tf32",
    "float8_e4m3fn": "f8",
}


def product(a: str, b: str, dtype: str, extents: tuple[int, int, int]) -> Form:
    """The form of y[i,k] = sum_j a b; the names of each factor in the order of memory."""
    over = universe(*extents, 1)
    t = Terms(over)
    sides = [t.read(x, names, dtype) for x, names in (("a", a), ("b", b))]
    wide = WIDENED.get(dtype, dtype)
    if wide != dtype:
        sides = [t.cast(wide, side) for side in sides]
    return form([Stored("y", t.sum("j", mul(*sides)), ("i", "k"), as_dtype(wide))], Facts(over))


def offered(a: str, b: str, dtype: str, extents: tuple[int, int, int]) -> dict[str, Preparation]:
    """What is copied for a product, by the buffer that is."""
    found = {}
    for one in preparations(product(a, b, dtype, extents), H200):
        read = one.source.args[0]
        assert isinstance(read, Read)
        if not one.narrow:
            found[read.buffer] = one
    return found


def test_rows_that_no_box_can_copy_are_set_apart():
    assert offered("ij", "jk", "bfloat16", (64, 72, 80)) == {}
    odd = offered("ij", "jk", "bfloat16", (63, 72, 79))
    assert list(odd) == ["b"]  # rows of a are 144 bytes apart
    one = odd["b"]
    assert [s.names for s in one.stored] == [("j", "k")] and one.stored[0].pitch == 128
    assert one.buffer.shape == (72, 128)
    assert one.row == (one.source, one.copy, "", 0)
    assert {name.split("_")[0] for name in one.operations} == {"wgmma"}
    assert offered("ij", "jk", "bfloat16", (63, 71, 79)).keys() == {"a", "b"}
    assert offered("ij", "kj", "bfloat16", (63, 72, 79)) == {}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_what_cannot_be_turned_on_the_way_is_turned_before(dtype):
    found = offered("ij", "jk", dtype, (64, 128, 256))
    assert list(found) == ["b"] and found["b"].stored[0].names == ("k", "j")
    assert found["b"].stored[0].pitch == 0  # rows of 128 begin where they should
    assert offered("ij", "kj", dtype, (64, 128, 256)) == {}
    assert offered("ji", "jk", dtype, (64, 128, 256)).keys() == {"a", "b"}


def test_terms_are_offered_for_float32_alone():
    for dtype in ("float32", "bfloat16", "int8"):
        found = preparations(product("ij", "jk", dtype, (64, 128, 256)), H200)
        terms = [one for one in found if one.narrow]
        assert len(terms) == (2 if dtype == "float32" else 0)
        for one in terms:
            assert len(one.stored) == one.buffer.shape[0] == 3
            assert one.buffer.dtype.name == "bfloat16"
            assert {name[-3:] for name in one.operations} == {"_ss", "_rs"}
        assert len({one.terms for one in terms}) <= 1


def matmul(m: int, n: int, k: int, dtype: str) -> g.Tensor:
    a, b = g.input("a", (m, k), dtype), g.input("b", (k, n), dtype)
    wide = WIDENED.get(dtype, dtype) if dtype == "int8" else dtype
    return g.matmul(a, b) if wide == dtype else g.matmul(g.astype(a, wide), g.astype(b, wide))


@pytest.mark.parametrize(
    ("dtype", "extents", "copies", "options"),
    [
        ("bfloat16", (70, 77, 99), 2, {}),
        ("float16", (70, 80, 99), 1, {}),
        ("float32", (130, 136, 100), 1, {"precision": "tf32"}),
        ("int8", (70, 80, 128), 1, {}),
        ("float8_e4m3fn", (70, 80, 128), 1, {}),
        ("float8_e4m3fn", (70, 80, 99), 2, {}),
    ],
)
def test_programs_compute_the_same(dtype, extents, copies, options):
    m, n, k = extents
    program = planned(matmul(m, n, k, dtype), fast(KINDS[dtype]), **options)
    *before, main = program.parts.launches
    assert len(before) == copies and before[0].followers == copies
    assert f"prepare x{copies}" in main.kernel.rules
    a, b = (np.rint(4 * x) if dtype == "int8" else x for x in (normal(m, k), normal(k, n)))
    a, b = (x.astype(as_dtype(dtype).numpy) for x in (a, b))
    found = run(program, a=a, b=b)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    if dtype == "int8":
        np.testing.assert_array_equal(found, exact)
        return
    tolerances = {"bfloat16": 4e-3, "float16": 5e-4, "float32": 1e-6, "float8_e4m3fn": 0.065}
    tolerance = tolerances[dtype]
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=tolerance, atol=30 * tolerance)


def test_terms_in_memory_are_as_accurate_as_float32_and_keep_what_is_not_finite():
    program = planned(matmul(64, 45, 99, "float32"))
    assert len(program.parts.launches) == 3
    a, b = normal(64, 99), normal(99, 45)
    a[0], b[0] = 0, 1.0
    largest = np.finfo(np.float32).max
    for row, value in enumerate((largest, np.inf, -np.inf, np.nan), 1):
        a[row, 0] = value
    a[1, 1:] = 0  # what is largest is finite, and would be rounded to infinity
    with np.errstate(invalid="ignore", over="ignore"):
        exact = a.astype(np.float64) @ b.astype(np.float64)
        found = run(program, a=a, b=b)
        magnitudes = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(exact))
    finite = np.isfinite(exact)
    away = np.abs(found[finite] - exact[finite])
    assert (away <= 3e-7 * magnitudes[finite]).all()


def test_sums_in_parts_take_prepared_factors():
    """A long sum of few tiles: terms, then parts, then what joins them."""
    program = planned(matmul(16, 24, 4101, "float32"))
    names = [launch.kernel.name for launch in program.parts.launches]
    assert names == ["k0_ty0_prepared0", "k0_ty0_prepared1", "k0", "k0_joined"]
    assert program.parts.launches[0].followers == 3
    a, b = normal(16, 4101), normal(4101, 24)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(run(program, a=a, b=b), exact, rtol=1e-5, atol=1e-4)


# what is planned for the real device


@pytest.mark.parametrize(
    ("extents", "dtype", "precision", "prepared", "terms"),
    [
        ((4095, 4097, 4099), "bfloat16", "default", 2, 1),
        ((64, 33, 17), "bfloat16", "default", 0, 1),
        ((4096, 4096, 4096), "float32", "tf32", 0, 1),  # the factor across goes through registers
        ((4096, 4096, 4096), "float32", "default", 2, 3),
        ((256, 256, 256), "float32", "default", 0, 1),  # float32 arithmetic, and no other launch
    ],
)
def test_plans_prepare_where_it_pays(extents, dtype, precision, prepared, terms):
    program = planned(matmul(*extents, dtype), H200, precision=precision)
    kernels = [launch.kernel for launch in program.parts.launches]
    assert len([one for one in kernels if "prepared" in one.name]) == prepared
    main = kernels[prepared]
    contracts = [s for s in main.statements() if isinstance(s, Contract)]
    assert [one.operation.startswith("wgmma") for one in contracts] == [min(extents) > 1000]
    assert contracts[0].terms == terms


def test_the_explanation_has_the_preparations_and_holds():
    out = matmul(70, 77, 99, "bfloat16")
    program = planned(out)
    explanation = program.explain()
    assert not explanation.notes
    (segment,) = explanation.segments
    *copies, main = segment.kernels
    assert [step.rule for step in main.trace.steps].count("prepare") == len(copies) == 2
    again = from_json(json.loads(json.dumps(to_json(explanation))))
    assert again == explanation
    check_trace(again, program.segments, program.search.rules, FAST)

    def without(kernels: tuple) -> None:
        wrong = replace(explanation, segments=(replace(segment, kernels=kernels),))
        check_trace(wrong, program.segments, program.search.rules, FAST)

    with pytest.raises(TraceError, match=r"reads ty0_prepared0, ty0_prepared1 prepared, which no"):
        without((copies[0], main))
    with pytest.raises(TraceError, match=r"no kernel reads what is prepared in ty0_prepared0"):
        without((*copies, main, copies[0]))
    moved = replace(copies[0].stored[0], pitch=0)
    with pytest.raises(TraceError, match=r"which no kernel stores so"):
        without((replace(copies[0], stored=(moved,)), copies[1], main))


def test_what_a_body_reads_is_what_is_prepared():
    made = product("ij", "jk", "bfloat16", (63, 71, 79))
    found = preparations(made, H200)
    assert used(found, made.stored) == ()
    both = Stored("y", mul(found[0].copy, found[1].copy), ("i", "k"), as_dtype("bfloat16"))
    assert used(found, (both,)) == found


def test_weights_of_each_channel_are_laid_side_by_side_for_threads():
    """They lie 49 apart: threads that have neighbouring channels would read each by itself."""
    x, w = g.input("x", (8, 56, 56, 96), "bfloat16"), g.input("w", (96, 1, 7, 7), "bfloat16")
    out = g.conv(x, w, padding=3, layout="NHWC", groups=96)
    copy, main = planned(out, H200).parts.launches
    assert "prepare x1" in main.kernel.rules
    assert copy.kernel.buffers[-1].shape == (7, 7, 96)


def test_weights_of_a_sum_over_everything_lie_along_nothing():
    x, w = g.input("x", (8, 28, 28, 96), "bfloat16"), g.input("w", (96, 1, 7, 7), "bfloat16")
    program = planned(g.sum(g.conv(x, w, padding=3, layout="NHWC", groups=96)), H200)
    assert program.parts.outputs[0][1] == ()


def test_weights_that_lie_side_by_side_are_read_where_they_are():
    x, w = g.input("x", (8, 56, 56, 96), "bfloat16"), g.input("w", (7, 7, 1, 96), "bfloat16")
    out = g.conv(x, g.permute_dims(w, (3, 2, 0, 1)), padding=3, layout="NHWC", groups=96)
    (main,) = planned(out, H200).parts.launches
    assert not any("prepare" in rule for rule in main.kernel.rules)


# channels that are not contiguous: what windows read is copied by axes


def convolution(batch: int, channels: int, out: int, side: int, **options: int) -> g.Tensor:
    x = g.input("x", (batch, channels, side, side), "bfloat16")
    return g.conv(x, g.input("w", (out, channels, 3, 3), "bfloat16"), **options)


SLOW = pytest.mark.slow
WINDOWS = [
    pytest.param({"padding": 1, "stride": 2}, id="steps"),
    pytest.param({"padding": 1}, marks=SLOW, id="plain"),
    pytest.param({"padding": 2, "dilation": 2}, marks=SLOW, id="apart"),
    pytest.param({}, marks=SLOW, id="no padding"),
]


@pytest.mark.parametrize("options", WINDOWS)
def test_convolutions_with_channels_first_compute_the_same(options):
    out = convolution(2, 32, 40, 16, **options)
    program = planned(out)
    *copies, main = program.parts.launches
    assert [len(launch.kernel.buffers) for launch in copies] == [2, 2]
    assert "prepare x2" in main.kernel.rules
    x, w = (np.rint(3 * normal(*shape)) for shape in ((2, 32, 16, 16), (40, 32, 3, 3)))
    given = {"x": x.astype(bfloat16.numpy), "w": w.astype(bfloat16.numpy)}
    (wanted,) = g.evaluate([out], given)
    np.testing.assert_array_equal(run(program, **given), wanted)
    explanation = program.explain()
    assert not explanation.notes
    check_trace(explanation, program.segments, program.search.rules, FAST)


def repeated(x: g.Tensor) -> g.Tensor:
    """Each pixel as 2 x 2."""
    return g.repeat(g.repeat(x, 2, axis=2), 2, axis=3)


def pixels_of_channels(x: g.Tensor) -> g.Tensor:
    """Of four channels one, each pixel as the 2 x 2 that they have there."""
    n, c, h, w = x.shape
    quarters = g.permute_dims(g.reshape(x, (n, c // 4, 2, 2, h, w)), (0, 1, 4, 2, 5, 3))
    return g.reshape(quarters, (n, c // 4, 2 * h, 2 * w))


def channels_of_pixels(x: g.Tensor) -> g.Tensor:
    """Of 2 x 2 pixels one, with four times as many channels."""
    n, c, h, w = x.shape
    quarters = g.permute_dims(g.reshape(x, (n, c, h // 2, 2, w // 2, 2)), (0, 1, 3, 5, 2, 4))
    return g.reshape(quarters, (n, 4 * c, h // 2, w // 2))


@pytest.mark.parametrize(
    ("image", "moved", "options"),
    [
        ((2, 32, 8, 8), repeated, {"padding": 1}),
        ((2, 32, 8, 8), repeated, {"stride": 3}),
        ((2, 128, 6, 10), pixels_of_channels, {"padding": 2}),
        ((2, 16, 20, 16), channels_of_pixels, {"padding": 1}),
    ],
)
def test_windows_over_pixels_that_are_moved_copy_each_once(image, moved, options):
    """The copy is the moved image, channels last, not all windows of it."""
    x = moved(g.input("x", image, "bfloat16"))
    out = g.conv(x, g.input("w", (40, x.shape[1], 3, 3), "bfloat16"), **options)
    program = planned(out)
    *copies, main = program.parts.launches
    assert "prepare x2" in main.kernel.rules
    sizes = [buffer.size for buffer in copies[0].kernel.buffers]
    assert sizes[0] == prod(image) and sizes[1] <= x.size  # in no window are the last, by steps
    own = (image, (40, x.shape[1], 3, 3))
    x, w = (np.rint(3 * normal(*shape)).astype(bfloat16.numpy) for shape in own)
    (wanted,) = g.evaluate([out], {"x": x, "w": w})
    np.testing.assert_array_equal(run(program, x=x, w=w), wanted)
    explanation = program.explain()
    assert not explanation.notes
    check_trace(explanation, program.segments, program.search.rules, FAST)


@SLOW
@pytest.mark.parametrize("options", WINDOWS)
def test_convolutions_with_channels_first_are_products_of_warpgroups(options):
    *copies, main = planned(convolution(32, 128, 128, 56, **options), H200).parts.launches
    (product,) = [s for s in main.kernel.statements() if isinstance(s, Contract)]
    assert product.operation.startswith("wgmma") and len(copies) == 2


@pytest.mark.parametrize(
    ("window", "step", "padding"),
    [
        pytest.param(2, 2, 1, id="side by side, padded"),
        pytest.param(8, 4, 2, id="as long as what copies move at least"),
        pytest.param(8, 8, 3, id="both", marks=SLOW),
        pytest.param(8, 2, 0, id="without padding", marks=SLOW),
        pytest.param(16, 8, 4, id="few in a box"),
    ],
)
def test_steps_along_a_row_are_products_of_warpgroups(window, step, padding):
    """Their places lie along memory as no box has them: channels are laid innermost."""
    x, w = g.input("x", (2, 32, 90), "bfloat16"), g.input("w", (48, 32, window), "bfloat16")
    out = g.conv(x, w, stride=step, padding=padding)
    program = planned(out)
    given = {
        n: np.rint(3 * normal(*t.shape)).astype(bfloat16.numpy) for n, t in (("x", x), ("w", w))
    }
    (wanted,) = g.evaluate([out], given)
    np.testing.assert_array_equal(run(program, **given), wanted)
    large = g.conv(
        g.input("x", (10, 256, 3400), "bfloat16"),
        g.input("w", (256, 256, window), "bfloat16"),
        stride=step,
        padding=padding,
    )
    kernels = [launch.kernel for launch in planned(large, H200).parts.launches]
    (product,) = (s for k in kernels for s in k.statements() if isinstance(s, Contract))
    assert product.operation.startswith("wgmma")


@pytest.mark.slow
def test_products_of_copied_factors_are_not_left_to_what_joins_parts():
    """A gated cell: one product is in parts, the other is summed by what joins them."""
    x, s = g.input("x", (256, 1024)), g.input("s", (256, 1024))
    a, b = x @ g.input("w", (1024, 2048)), s @ g.input("u", (1024, 2048))
    out = g.tanh(a[:, 1024:] + g.sigmoid(a[:, :1024] + b[:, :1024]) * b[:, 1024:])
    written: set[str] = set()
    for launch in planned(out, H200).parts.launches:
        read = {one.name for one in launch.kernel.buffers if one.role == "temporary"}
        stores = {one.access.buffer for phase in launch.kernel.phases for one in phase.stores}
        assert read <= written | stores
        written |= stores


@pytest.mark.parametrize(
    ("images", "weights", "options"),
    [
        ((2, 32, 20, 40), (64, 32, 5, 9), {}),  # windows along which weights lie in whole units
        pytest.param((1, 16, 40, 40), (64, 16, 3, 3), {"padding": 1}, marks=SLOW),  # few channels
        ((2, 64, 15, 17), (72, 64, 3, 3), {"stride": 2, "padding": 1}),
        pytest.param((2, 64, 300), (72, 64, 5), {"dilation": 3}, marks=SLOW),
    ],
)
def test_convolutions_of_float32_are_products_of_their_terms(images, weights, options):
    out = g.conv(g.input("x", images), g.input("w", weights), **options)
    program = planned(out)
    rules = [rule for launch in program.parts.launches for rule in launch.kernel.rules]
    assert any(rule.startswith("split_ahead_") for rule in rules)
    given = {"x": normal(*images), "w": normal(*weights)}
    (wanted,) = g.evaluate([out], given, np.float64)
    np.testing.assert_allclose(run(program, **given), wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_of_a_large_and_a_small_factor_the_small_one_alone_is_prepared(turned):
    """The terms of many rows are made in registers, on the way to products, not in memory."""
    x, w = g.input("x", (40000, 128)), g.input("w", (128, 64))
    out = (w.T @ x.T) if turned else x @ w
    program = planned(out, H200)
    rules = [rule for launch in program.parts.launches for rule in launch.kernel.rules]
    assert any(rule.startswith("split_one_ahead_") for rule in rules)
    prepared = [b for launch in program.parts.launches for b in launch.kernel.buffers
                if b.role == "temporary" and b.dtype == bfloat16]  # fmt: skip
    assert {b.size for b in prepared} == {3 * 128 * 64}
    given = {"x": normal(40000, 128), "w": normal(128, 64)}
    (wanted,) = g.evaluate([out], given, np.float64)
    np.testing.assert_allclose(run(program, **given), wanted, rtol=1e-5, atol=2e-5)


def test_a_batch_of_many_images_leaves_tiles_of_one():
    """None fits of which each tile has 64 images and as many places."""
    x, w = g.input("x", (128, 64, 128, 128)), g.input("w", (128, 64, 3, 3))
    main = planned(g.conv(x, w), H200).parts.launches[-1].kernel
    assert main.grid[0].extent == 128 and main.grid[0].tile == 1
