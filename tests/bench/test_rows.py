"""The table of rows: what can be listed, what each row means, its float64 check, its floor."""

from dataclasses import replace
from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest

from eqsat.bench import check
from eqsat.bench.case import GROUPS, SCALES, Case, Input, instance, row_axes
from eqsat.bench.cases import CASES, select
from eqsat.bench.check import error, reference
from eqsat.bench.cuda import Cuda
from eqsat.bench.environment import git_commit
from eqsat.bench.floor import floor
from eqsat.bench.host import Host
from eqsat.bench.inputs import MAX_SETS, host_set, sets_needed
from eqsat.bench.run import main
from eqsat.bench.vocabulary import NumpyVocabulary
from eqsat.graph import evaluate
from eqsat.nesting import flatten
from eqsat.specs import cpu, load

BY_NAME = {case.name: case for case in CASES}


def test_list_shows_every_row(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(case.name in shown for case in CASES)


def test_names_are_unique_and_groups_known():
    assert len(BY_NAME) == len(CASES)
    assert {case.group for case in CASES} == set(GROUPS)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("softmax*", {"softmax-8192", "softmax-long"}),
        ("model", {"llama-block", "minilm-layer"}),
        ("lora, cpu-m*", {"lora", "cpu-matmul", "cpu-matmul-few-rows"}),
    ],
)
def test_rows_are_chosen_by_name_group_or_pattern(patterns, names):
    assert {case.name for case in select(patterns)} == names


def test_a_pattern_without_a_row_is_refused(capsys):
    assert main(["list", "--cases", "gemm,sofmax"]) == 2
    assert "no row or group matches 'sofmax'" in capsys.readouterr().err


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_row_has_a_graph_at_every_scale(case):
    assert set(case.sizes) == set(SCALES)
    for sizes in case.sizes.values():
        whole = instance(case, sizes)
        assert whole.bytes > 0 and whole.tolerance > 0
        assert all(amount > 0 for amount in whole.work.values())
        if case.rows:  # results are independent along it: the axes are found without fault
            assert row_axes(case, whole, instance(case, {**sizes, case.rows: 1}))


@pytest.mark.parametrize(
    "case", [c for c in CASES if "numpy" in c.peers], ids=lambda case: case.name
)
def test_the_numpy_peer_computes_the_graph(case):
    whole = instance(case, case.sizes["tiny"])
    arrays = host_set(case, whole.sizes, 0)
    expected = evaluate(whole.outputs, dict(zip(case.inputs, arrays, strict=True)), np.float64)
    found = flatten(case.function(NumpyVocabulary, *arrays))
    for value, wanted in zip(found, expected, strict=True):
        assert error(value.astype(np.float64), wanted) <= whole.tolerance


# --- the check ---


@pytest.mark.parametrize(
    ("actual", "expected", "result"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, nan], [3.0, 4.0], inf),
        ([3.0, nan], [3.0, nan], inf),
        ([3.0, inf], [3.0, inf], 0.0),
        ([3.0, 1.0], [3.0, inf], inf),
        ([0.0, 0.5], [0.0, 0.0], inf),
        ([2.0, -2.0], [2.0, 2.0], 1.0),
        ([3.0, 3.0, inf], [3.0, 0.0, inf], pytest.approx(2**0.5)),
        ([], [], 0.0),
    ],
)
def test_error(actual, expected, result):
    found = error(np.array(actual), np.array(expected))
    assert found == result or (result == inf and not found <= 1e100)


def test_a_sample_of_rows_is_checked_where_all_are_too_many(monkeypatch):
    monkeypatch.setattr(check, "HOST_UPDATES", 40 * 48 * 7)
    host, whole = Host(cpu()), instance(BY_NAME["cpu-matmul"], BY_NAME["cpu-matmul"].sizes["tiny"])
    sets = host.sets(whole.case, whole.sizes, 1)
    expected = reference(whole, sets, host)
    assert expected.note.startswith("7 of 33 m")
    assert expected.rows is not None and {0, 32} <= set(expected.rows) and len(expected.rows) == 7
    right = sets[0][0] @ sets[0][1]
    assert expected.error([right], host) < whole.tolerance
    right[32] += 1
    assert expected.error([right], host) > whole.tolerance
    assert expected.error([right[:32]], host) == inf


def test_integers_must_be_equal():
    case = Case("i", "rows", "cpu", lambda f, x: x + x, {"x": Input("n", "int64", below="n")},
                {"tiny": {"n": 5}}, {})  # fmt: skip
    whole, host = instance(case, {"n": 5}), Host(cpu())
    sets = host.sets(case, whole.sizes, 1)
    expected = reference(whole, sets, host)
    assert whole.tolerance == 0.0
    assert expected.error([2 * sets[0][0]], host) == 0.0
    assert expected.error([2 * sets[0][0] + 1], host) > 0.0


# --- floor and rotation ---


def test_the_floor_is_bytes_over_bandwidth_or_work_over_rate():
    h200 = load("h200")
    assert h200.main_memory.name == "dram"
    assert floor(h200, 4_800_000_000, {}).seconds == pytest.approx(1e-3)
    least = floor(h200, 0, {"contract bfloat16": 8192**3})
    assert least.bound == "contract bfloat16"
    # 2048 multiply-adds a cycle on each of 132 SMs at 1.98 GHz
    assert least.seconds == pytest.approx(8192**3 / (2048 * 132 * 1.98e9), rel=1e-3)
    thrice = floor(h200, 0, {"contract tfloat32 x3": 1e12}).seconds
    assert thrice == pytest.approx(3 * floor(h200, 0, {"contract tfloat32": 1e12}).seconds)
    assert floor(h200, 8, {"exp float32": 1e9}).bound == "exp float32"
    assert floor(h200, 8, {"no_such_unit float32": 1e9}).bound == "memory"


def test_inputs_rotate_over_twice_the_last_cache():
    assert load("h200").last_level_cache_bytes == load("h200").memory("l2").size_bytes
    assert sets_needed(10, 100) == 21
    assert sets_needed(10**9, 100) == 2
    assert sets_needed(1, 10**6) == MAX_SETS


def test_inputs_are_normal_and_differ_between_sets():
    case = BY_NAME["llama-block"]
    sizes = {**case.sizes["tiny"], "h": 400, "q": 400}
    one, other = host_set(case, sizes, 0), host_set(case, sizes, 1)
    assert abs(np.std(one[0].astype(np.float32)) - 1) < 0.05
    assert abs(np.std(one[2].astype(np.float32)) - 0.05) < 0.005  # scaled by h ** -0.5
    assert not np.array_equal(one[0], other[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool", "float16", "float64"])
def test_arrays_drawn_for_a_device_are_of_the_dtype(dtype):
    """But for what CuPy lacks, whose bits they have: of a bfloat16, or of 8 bits."""
    host = SimpleNamespace(cupy=np)  # all that drawing asks of CuPy, NumPy has too
    drawn = Cuda._draw(host, Input("n", dtype), {"n": 9}, np.random.default_rng(0))
    assert drawn.shape == (9,) and drawn.dtype == np.dtype(dtype if dtype != "float16" else "u2")


def test_no_commit_outside_a_checkout(tmp_path):
    assert git_commit(tmp_path) == "unknown"


def test_a_row_with_other_extents_is_the_same_row():
    whole = instance(BY_NAME["cpu-softmax"], {"m": 2, "n": 3})
    assert whole.bytes == 2 * 2 * 3 * 4
    assert replace(whole.case, tolerance=0.5).tolerance == 0.5
