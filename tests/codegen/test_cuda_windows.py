"""Loads through overlapping windows: answers, places that are read once, lanes side by side."""

import re

import numpy as np
import pytest
from cuda_emulation import asked, emulate, run_between_guards
from window_cases import long_cases, window_cases

import eqsat.graph as g
from eqsat.cache.store import Cache
from eqsat.codegen.cuda.emit import choose, emit
from eqsat.codegen.cuda.values.windows import windows, windows_in_turn
from eqsat.driver import plan
from eqsat.kernel.ir import Contract, Load
from eqsat.specs import load

pytestmark = pytest.mark.usefixtures("shared_search")

SHORT, LONG = list(window_cases()), list(long_cases())
CASES = [*SHORT, *LONG]
NUMBERS = [  # by default each window at one of two sizes, by turns
    pytest.param(
        n,
        id=c.name,
        marks=pytest.mark.slow if c in SHORT and (n + n // 2 + n // 12) % 2 else [],
    )
    for n, c in enumerate(CASES)
]


@pytest.fixture(scope="module")
def emulator(request, tmp_path_factory):
    """Of the cases that run, each at the place of its number."""
    numbers = asked(request, test_a_kernel_gives_its_answer)
    emulator = emulate([CASES[n].kernel for n in numbers], tmp_path_factory.mktemp("windows"))
    return emulator, numbers


@pytest.mark.parametrize("number", NUMBERS)
def test_a_kernel_gives_its_answer(emulator, number):
    """Also beside memory that holds NaN: nothing outside the array is read or written."""
    compiled, numbers = emulator
    run_between_guards(compiled, numbers.index(number), CASES[number].sample)


def found_windows(name):
    (one,) = (c for c in CASES if c.name == name)
    _, distribution = choose(one.kernel, {})
    (load,) = (s for s in one.kernel.statements() if isinstance(s, Load) and s.name == "a")
    serial = [i for s in one.kernel.statements() if isinstance(s, Contract) for i in s.over]
    return windows(one.kernel, distribution, load, serial), distribution, one


@pytest.mark.parametrize("kind", ["max", "sum"])
def test_a_thread_reads_what_its_points_share_once(kind):
    """Points side by side down, lanes side by side along a row: of 3 x 3 windows, R points read
    R + 2 rows.
    """
    found, distribution, one = found_windows(f"{kind}-float32-3111-17")
    rows = distribution.registers("i")
    assert found and rows > 1 and found.places == (rows + 2,)
    assert distribution.registers("j") == 1 and distribution.factors["j"][-2].stride == 1
    elements = found.elements
    assert elements == distribution.registers("c") * 3 * (rows + 2)
    assert re.search(rf"w_a\[{elements}\]", emit(one.kernel).text)


@pytest.mark.parametrize(("columns", "turn"), [(8, "r"), (16, "s")])
def test_windows_too_large_to_hold_are_held_along_one_axis_at_a_time(columns, turn):
    """Of 7 x 7 places, two neighbours share 8 along the axis on which they lie."""
    (one,) = (c for c in CASES if c.name == f"turns-bfloat16-71-12x{columns}")
    _, distribution = choose(one.kernel, {})
    (load,) = (s for s in one.kernel.statements() if isinstance(s, Load) and s.name == "a")
    assert windows(one.kernel, distribution, load, "rs") is None
    found = windows_in_turn(one.kernel, distribution, load, "rs", 16)
    assert found and found.looped == (turn,) and found.places == (8,) and found.elements == 8 * 8
    text = emit(one.kernel).text
    around, loads, inner = (text.index(part) for part in (f"int r_{turn} = 0", "w_a[64]", "left["))
    assert around < loads < inner and text.count("w_a[64]") == 1
    assert windows_in_turn(one.kernel, distribution, load, "rs", 512) is None, "code too long"


def test_windows_that_do_not_overlap_are_read_as_they_are():
    found, _, one = found_windows("max-float32-2201-16")
    assert found is None and "w_a" not in emit(one.kernel).text


@pytest.mark.parametrize(("name", "beside"), [("3111", 2), ("3211", 1)])
def test_a_lane_reads_as_many_neighbours_as_fill_four_bytes(name, beside):
    _, distribution, _ = found_windows(f"max-bfloat16-{name}-16")
    assert distribution.vector("j") == beside


@pytest.mark.parametrize("kind", ["max", "sum"])
def test_what_long_windows_span_is_read_in_vectors(kind):
    """Where rows are aligned and threads have results enough, unless an end is not there: a thread
    has neighbours, then, whose windows share what they span.
    """
    texts = {c.name: emit(c.kernel).text for c in LONG if kind in c.name}
    lined = {name for name, text in texts.items() if "const line = " in text}
    few = ("-33161-40", "bfloat16-3101-600", "bfloat16-1752-640")
    wide = [name for name in texts if not name.endswith((*few, "-333"))]
    assert lined == {*wide}
    for name in lined:
        found, distribution, one = found_windows(name)
        beside = distribution.vector("j")
        assert beside == distribution.registers("j")
        assert beside % (4 if "float32" in name else 8) == 0
        (window,) = one.kernel.inner
        apart = 2 if "-1752-" in name else 1
        assert found.places == (apart * (window.extent - 1) + beside,)


@pytest.mark.parametrize(
    ("stride", "size", "channels"), [(1, 28, 64), pytest.param(2, 29, 256, marks=pytest.mark.slow)]
)
def test_channels_that_lie_side_by_side_are_read_together(tmp_path, stride, size, channels):
    """A convolution of each channel by itself, channels last: the padding is no element. Weights,
    which lie apart, may be laid side by side first.
    """
    rng = np.random.default_rng(stride)
    x = g.input("x", (16, size, size, channels), "bfloat16")
    w = g.input("w", (channels, 3, 3, 1), "bfloat16")
    weight = g.permute_dims(w, (0, 3, 1, 2))
    y = g.conv(x, weight, stride=stride, padding=1, layout="NHWC", groups=channels)
    launches = plan(y, load("h200"), cache=Cache(None)).parts.launches
    (product,) = (s for s in launches[-1].kernel.statements() if isinstance(s, Contract))
    text = emit(launches[-1].kernel).text
    assert not product.operation and re.search(r"Pack<unsigned short, [48]>\*>\(p_x0", text)
    drawn = [rng.standard_normal(one.shape).astype(np.float32) for one in (x, w)]
    given = [array.astype(one.dtype.numpy) for array, one in zip(drawn, (x, w), strict=True)]
    result = np.zeros(y.shape, y.dtype.numpy)
    arrays = {"x0": given[0], "x1": given[1], "y0": result}
    device = emulate([launch.kernel for launch in launches], tmp_path)
    for number, launch in enumerate(launches):
        for buffer in launch.kernel.buffers:
            arrays.setdefault(buffer.name, np.zeros(buffer.shape, buffer.dtype.numpy))
        device.run(number, {buffer.name: arrays[buffer.name] for buffer in launch.kernel.buffers})
    (wide,) = g.evaluate([y], {"x": given[0], "w": given[1]}, np.float64)
    np.testing.assert_allclose(result.astype(np.float64), wide, rtol=2e-2, atol=2e-2)


def test_windows_walked_backwards_are_held_as_those_walked_forwards():
    """The gradient of a depthwise convolution sums over places from the end of each window."""
    x, w = g.input("x", (32, 96, 56, 56)), g.input("w", (96, 1, 7, 7))
    y = g.conv(x, w, padding=3, groups=96)
    gradient = g.grad(y, x, cotangent=g.input("d", y.shape))
    planned = plan([gradient], load("h200"), cache=Cache(None))
    (launch,) = planned.parts.launches
    text = emit(launch.kernel).text
    assert text.count("float w_") == 1, "read once, not at each step of the sum"


def test_products_over_windows_with_few_columns_hold_windows_in_registers():
    """A group of four channels leaves most of a matrix operation idle."""
    x, w = g.input("x", (8, 64, 28, 28)), g.input("w", (64, 4, 3, 3))
    planned = plan([g.conv(x, w, padding=1, groups=16)], load("h200"), cache=Cache(None))
    (launch,) = planned.parts.launches
    contracts = [s for s in launch.kernel.statements() if isinstance(s, Contract)]
    assert [s.operation for s in contracts] == [""]
    text = emit(launch.kernel).text
    assert text.count("float w_") == 1 and "copy_async" not in text
